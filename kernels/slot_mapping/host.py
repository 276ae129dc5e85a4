"""Host side of the slot mapping: check once what the kernel relies on, then launch once for all groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.launch import SHORT_CHUNK, Launcher, addresses
from kernels.layout import (
    MATRIX,
    require,
    require_counts,
    require_indices,
    require_lane,
    require_record,
    to_device,
)
from kernels.slot_mapping.kernel import slot_mapping_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.layout import TableLayout
    from kernels.record import ViolationRecord

__all__ = ["CHUNKS", "PAD_SLOT", "SlotGeometry", "SlotMapper", "map_slots"]

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


class SlotMapper:
    """The slot mapping of one set of tables, whose arguments are checked once and not at every launch.

    With `counts`, int32 [groups, rows], entries that a row does not use yet are refused as well; an engine
    that maps positions before it has blocks for them leaves it out. What a bounded launch refuses is
    described in `record`, if there is one. All tensors lie on the device of the tables.
    """

    __slots__ = ("_addresses", "_constants", "_device_index", "_groups", "_kept", "_tensors")

    def __init__(
        self,
        layout: TableLayout,
        geometry: SlotGeometry,
        *,
        counts: torch.Tensor | None = None,
        bounded: bool = True,
        record: ViolationRecord | None = None,
    ) -> None:
        """Check the arrays against the kernel's contract."""
        record = record if bounded else None
        if counts is not None:
            require_counts(counts, layout)
        counts = counts if bounded else None
        require_record(record, layout.device_index)
        require_lane(slot_mapping_kernel, layout.device)
        self._device_index, self._groups = layout.device_index, layout.num_groups
        require(len(geometry.block_sizes) == self._groups, "the geometry was made for other groups")
        where = geometry.on_device[0].get_device()
        require(where == self._device_index, "the geometry lies on another device than the tables")
        tables = (layout.pointers, layout.strides, layout.widths, layout.num_rows)
        before = (*tables, counts, 0 if counts is None else counts.stride(0), *geometry.on_device)
        reports = (None, None) if record is None else (record.words, record.flag)
        # Tensors and tables themselves are kept, so that what the addresses lead to stays.
        self._kept = layout
        self._tensors = (before, (geometry.cp_rank, *reports))
        self._addresses = tuple(map(addresses, self._tensors))
        switches = (bounded, record is not None, counts is not None)
        sizes = (geometry.cp_size, geometry.cp_interleave, PAD_SLOT, PAD_CHUNK)
        self._constants = tuple((*switches, *sizes, chunk) for chunk in CHUNKS)

    def map(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        out: torch.Tensor,
        launch: int = 0,
    ) -> None:
        """Fill `out`, int64 [groups, tokens], with each token's slot, `PAD_SLOT` where it has none."""
        self._check_out(out)
        for name, tensor in (
            ("idx_mapping", idx_mapping),
            ("query_start_loc", query_start_loc),
            ("positions", positions),
        ):
            require_indices(name, tensor, self._device_index)
        num_reqs, num_positions, num_tokens = idx_mapping.shape[0], positions.shape[0], out.shape[1]
        require(
            query_start_loc.shape[0] > num_reqs,
            "query_start_loc needs {} entries, not {}",
            num_reqs + 1,
            query_start_loc.shape[0],
        )
        # Few tokens per request are one warp's work; more of them it does in turns.
        constants = self._constants[num_positions > SHORT_CHUNK * max(1, num_reqs)]
        types = (idx_mapping.dtype, query_start_loc.dtype, positions.dtype)
        # Batch rows lie on the one grid axis that is not limited to 65,535 programs.
        grid = (num_reqs + -(-num_tokens // PAD_CHUNK), self._groups, 1)
        compiled = _LAUNCH.compiled(constants, self._device_index, types)
        if compiled is None:
            before, after = self._tensors
            batch = (idx_mapping, query_start_loc, num_reqs, positions, num_positions)
            arguments = (*before, *batch, out, out.stride(0), num_tokens, *after, launch)
            _LAUNCH(grid, arguments, constants, device=self._device_index, types=types)
            return
        before, after = self._addresses
        compiled[grid](
            *before,
            idx_mapping.data_ptr(),
            query_start_loc.data_ptr(),
            num_reqs,
            positions.data_ptr(),
            num_positions,
            out.data_ptr(),
            out.stride(0),
            num_tokens,
            *after,
            launch,
            *constants,
        )

    def _check_out(self, out: torch.Tensor) -> None:
        require(out.dtype == torch.int64, "out is {}, not torch.int64", out.dtype)
        require(out.dim() == MATRIX and out.shape[0] == self._groups, "out is not [groups, tokens]")
        require(out.stride(1) == 1, "entries of out are not adjacent")
        require(out.get_device() == self._device_index, "out lies on another device than the tables")


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
    """Map once with a `SlotMapper` made for it."""
    mapper = SlotMapper(layout, geometry, counts=counts, bounded=bounded, record=record)
    mapper.map(idx_mapping, query_start_loc, positions, out, launch)
