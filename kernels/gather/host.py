"""Host side of the gather: check the shapes that the kernel relies on, then launch once for all groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.gather.kernel import gather_kernel
from kernels.launch import Launcher
from kernels.layout import INDEX_TYPES, require, require_lane

if TYPE_CHECKING:
    from kernels.layout import TableLayout
    from kernels.record import ViolationRecord

__all__ = ["CHUNKS", "SlidingWindow", "gather_rows"]

CHUNKS = (1024,)
_LAUNCH = Launcher(gather_kernel)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """What the gather needs to blank the entries below each request's window.

    `num_computed_tokens` [num_rows] is indexed like the tables; `reach` [groups] says how many tokens
    below its first scheduled position a request can still read, 0 for a group without a window.
    """

    num_computed_tokens: torch.Tensor
    reach: torch.Tensor
    block_sizes: torch.Tensor


def gather_rows(  # noqa: PLR0913 - one argument per table that the launch reads, and its guard
    layout: TableLayout,
    counts: torch.Tensor,
    idx_mapping: torch.Tensor,
    out: TableLayout,
    num_reqs_padded: int,
    *,
    filled: torch.Tensor | None = None,
    window: SlidingWindow | None = None,
    bounded: bool = True,
    record: ViolationRecord | None = None,
    launch: int = 0,
) -> None:
    """Fill the first `num_reqs_padded` rows of `out` from the rows that `idx_mapping` names.

    `filled`, int32 [groups, rows of out], knows for each destination row how many of its leading entries may
    be other than zero; with it zeros are stored only there. Whoever else writes to `out` raises it.

    What a bounded gather refuses goes to `record` with the number `launch`; the record lies on the device
    of the tables.
    """
    num_reqs = idx_mapping.shape[0]
    _check(layout, counts, idx_mapping, out)
    require(
        num_reqs <= num_reqs_padded <= out.num_rows,
        "{} requests padded to {} do not fit {} rows",
        num_reqs,
        num_reqs_padded,
        out.num_rows,
    )
    require_lane(gather_kernel, layout.device)
    if num_reqs_padded == 0:
        return
    if window is not None:
        _check_window(layout, window)
    if filled is not None:
        require(filled.dtype == torch.int32, "filled is {}, not torch.int32", filled.dtype)
        require(filled.shape == (layout.num_groups, out.num_rows), "filled is not [groups, rows of out]")
        require(filled.stride(1) == 1, "entries of filled are not adjacent")
    # Without a window the kernel reads none of the three; any tensor fills the place.
    computed, reach, sizes = (
        (idx_mapping, counts, counts)
        if window is None
        else (window.num_computed_tokens, window.reach, window.block_sizes)
    )
    record = record if bounded else None
    # Rows lie on the one grid axis that is not limited to 65,535 programs.
    _LAUNCH(
        (num_reqs_padded, layout.num_groups, 1),
        (
            layout.pointers,
            layout.strides,
            layout.widths,
            layout.num_rows,
            counts,
            counts.stride(0),
            idx_mapping,
            num_reqs,
            out.pointers,
            out.strides,
            filled,
            0 if filled is None else filled.stride(0),
            computed,
            reach,
            sizes,
            None if record is None else record.words,
            None if record is None else record.flag,
            launch,
        ),
        (bounded, record is not None, window is not None, filled is not None, *CHUNKS),
        device=layout.device,
        types=(idx_mapping.dtype, computed.dtype),
    )


def _check(layout: TableLayout, counts: torch.Tensor, idx_mapping: torch.Tensor, out: TableLayout) -> None:
    require(counts.dtype == torch.int32, "counts are {}, not torch.int32", counts.dtype)
    require(counts.shape == (layout.num_groups, layout.num_rows), "counts are not [groups, num_rows]")
    require(counts.stride(1) == 1, "counts of one group are not adjacent")
    require(idx_mapping.dim() == 1, "idx_mapping has {} dimensions, not 1", idx_mapping.dim())
    require(idx_mapping.dtype in INDEX_TYPES, "idx_mapping is {}, not int32 or int64", idx_mapping.dtype)
    require(
        idx_mapping.get_device() == layout.device_index, "idx_mapping lies on another device than the tables"
    )
    require(
        idx_mapping.shape[0] <= 1 or idx_mapping.stride(0) == 1, "entries of idx_mapping are not adjacent"
    )
    require(out.row_widths == layout.row_widths, "the output tables have other widths")


def _check_window(layout: TableLayout, window: SlidingWindow) -> None:
    computed = window.num_computed_tokens
    require(computed.dtype in INDEX_TYPES, "num_computed_tokens is {}, not int32 or int64", computed.dtype)
    require(
        computed.dim() == 1 and computed.shape[0] >= layout.num_rows,
        "num_computed_tokens has fewer entries than the tables have rows",
    )
    require(computed.stride(0) == 1, "entries of num_computed_tokens are not adjacent")
    require(
        computed.get_device() == layout.device_index,
        "num_computed_tokens lies on another device than the tables",
    )
    for name, tensor in (("reach", window.reach), ("block_sizes", window.block_sizes)):
        require(tensor.shape == (layout.num_groups,), "{} needs one entry per group", name)
