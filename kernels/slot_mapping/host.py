"""Host side of the slot mapping: sizes checked once in a `SlotGeometry`, then one launch for all groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.launch import SHORT_CHUNK, Launcher
from kernels.layout import INDEX_TYPES, MATRIX, require, require_lane, to_device
from kernels.slot_mapping.kernel import slot_mapping_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.layout import TableLayout
    from kernels.record import ViolationRecord

__all__ = ["CHUNKS", "PAD_SLOT", "SlotGeometry", "map_slots"]

CHUNKS = (SHORT_CHUNK, 1024)
PAD_CHUNK = 1024
"""Tokens per program behind the last request's."""
PAD_SLOT = -1
_INT32_END = 2**31
_LAUNCH = Launcher(slot_mapping_kernel)


@dataclass(frozen=True, slots=True)
class SlotGeometry:
    """What turns a position into a column and an offset, per group, on the host and as device tensors.

    `block_sizes` are the blocks within which context parallelism deals tokens out, `kernel_block_sizes` the
    blocks that the table's entries stand for. Engines that deal out within kernel blocks (vLLM up to 0.28)
    pass the kernel block sizes as both. A group that is not `enabled` has no slots; one that is not `sharded`
    keeps all tokens on each rank.
    """

    block_sizes: tuple[int, ...]
    kernel_block_sizes: tuple[int, ...]
    enabled: tuple[bool, ...]
    sharded: tuple[bool, ...]
    cp_size: int
    cp_rank: int
    cp_interleave: int
    on_device: tuple[torch.Tensor, ...]

    @classmethod
    def of(  # noqa: PLR0913 - one argument per fact that a position's column depends on
        cls,
        block_sizes: Sequence[int],
        device: torch.device,
        *,
        kernel_block_sizes: Sequence[int] | None = None,
        enabled: Sequence[bool] | None = None,
        sharded: Sequence[bool] | None = None,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
    ) -> SlotGeometry:
        """Check the sizes of each group and copy them to `device`."""
        sizes = tuple(block_sizes)
        groups = len(sizes)
        kernel_sizes = sizes if kernel_block_sizes is None else tuple(kernel_block_sizes)
        is_enabled = (True,) * groups if enabled is None else tuple(map(bool, enabled))
        is_sharded = (True,) * groups if sharded is None else tuple(map(bool, sharded))
        for name, values in (
            ("kernel_block_sizes", kernel_sizes),
            ("enabled", is_enabled),
            ("sharded", is_sharded),
        ):
            require(len(values) == groups, f"{name} has {len(values)} entries for {groups} groups")
        for name, values in (("block size", sizes), ("kernel block size", kernel_sizes)):
            for group, value in enumerate(values):
                require(0 < value < _INT32_END, f"{name} {value} of group {group} is not a positive int32")
        require(cp_size >= 1, f"cp_size {cp_size} is not positive")
        require(0 <= cp_rank < cp_size, f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")
        require(cp_interleave >= 1, f"cp_interleave {cp_interleave} is not positive")
        rows = [sizes, kernel_sizes, is_enabled, is_sharded]
        on_device = to_device([list(map(int, row)) for row in rows], torch.int32, device)
        return cls(
            sizes, kernel_sizes, is_enabled, is_sharded, cp_size, cp_rank, cp_interleave, on_device.unbind()
        )


def map_slots(  # noqa: PLR0913, PLR0917 - one argument per array that the launch reads, and its guard
    layout: TableLayout,
    geometry: SlotGeometry,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    *,
    counts: torch.Tensor | None = None,
    bounded: bool = True,
    record: ViolationRecord | None = None,
    launch: int = 0,
) -> None:
    """Fill `out`, int64 [groups, tokens], with the slot of each token and `PAD_SLOT` where it has none.

    With `counts`, int32 [groups, rows], entries that a row does not use yet are refused as well; an engine
    that maps positions before it has blocks for them leaves it out. What a bounded mapping refuses goes to
    `record` with the number `launch`. All tensors lie on the device of the tables.
    """
    num_reqs = idx_mapping.shape[0]
    num_groups, num_tokens = out.shape
    _check(layout, geometry, idx_mapping, query_start_loc, positions, out)
    if counts is not None:
        require(counts.dtype == torch.int32, "counts are {}, not torch.int32", counts.dtype)
        require(counts.shape == (layout.num_groups, layout.num_rows), "counts are not [groups, num_rows]")
        require(counts.stride(1) == 1, "counts of one group are not adjacent")
    require_lane(slot_mapping_kernel, layout.device)
    record = record if bounded else None
    counts = counts if bounded else None
    block_sizes, kernel_block_sizes, enabled, sharded = geometry.on_device
    # Few tokens per request are one warp's work; more of them it does in turns.
    chunk = CHUNKS[positions.shape[0] > SHORT_CHUNK * max(1, num_reqs)]
    # Batch rows lie on the one grid axis that is not limited to 65,535 programs.
    _LAUNCH(
        (num_reqs + -(-num_tokens // PAD_CHUNK), num_groups, 1),
        (
            layout.pointers,
            layout.strides,
            layout.widths,
            layout.num_rows,
            counts,
            0 if counts is None else counts.stride(0),
            block_sizes,
            kernel_block_sizes,
            enabled,
            sharded,
            idx_mapping,
            query_start_loc,
            num_reqs,
            positions,
            positions.shape[0],
            out,
            out.stride(0),
            num_tokens,
            geometry.cp_rank,
            None if record is None else record.words,
            None if record is None else record.flag,
            launch,
        ),
        (
            bounded,
            record is not None,
            counts is not None,
            geometry.cp_size,
            geometry.cp_interleave,
            PAD_SLOT,
            PAD_CHUNK,
            chunk,
        ),
        device=layout.device,
        types=(idx_mapping.dtype, query_start_loc.dtype, positions.dtype),
    )


def _check(  # noqa: PLR0913, PLR0917 - what `map_slots` was given
    layout: TableLayout,
    geometry: SlotGeometry,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
) -> None:
    groups = layout.num_groups
    where = layout.device_index
    require(len(geometry.block_sizes) == groups, "the geometry was made for other groups")
    require(out.dtype == torch.int64, "out is {}, not torch.int64", out.dtype)
    require(out.dim() == MATRIX and out.shape[0] == groups, "out is not [groups, tokens]")
    require(out.stride(1) == 1, "entries of out are not adjacent")
    for name, tensor in (
        ("idx_mapping", idx_mapping),
        ("query_start_loc", query_start_loc),
        ("positions", positions),
    ):
        require(tensor.dtype in INDEX_TYPES, "{} is {}, not int32 or int64", name, tensor.dtype)
        require(tensor.dim() == 1, "{} has {} dimensions, not 1", name, tensor.dim())
        require(tensor.is_contiguous(), "entries of {} are not adjacent", name)
        require(tensor.get_device() == where, "{} lies on another device than the tables", name)
    require(
        query_start_loc.shape[0] > idx_mapping.shape[0],
        "query_start_loc needs {} entries, not {}",
        idx_mapping.shape[0] + 1,
        query_start_loc.shape[0],
    )
