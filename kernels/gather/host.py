"""Host side of the gather: check once what the kernel relies on, then launch once for all groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.gather.kernel import gather_kernel
from kernels.launch import Launcher, addresses
from kernels.layout import require, require_counts, require_indices, require_lane, require_record

if TYPE_CHECKING:
    from kernels.layout import TableLayout
    from kernels.record import ViolationRecord

__all__ = ["CHUNKS", "RowGatherer", "SlidingWindow", "gather_rows"]

CHUNKS = (1024,)
_LAUNCH = Launcher(gather_kernel)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """What the gather needs to blank the entries below each request's window.

    `num_computed_tokens` [num_rows] is indexed like the tables; `reach` [groups] says how many tokens
    below its first scheduled position a request can still read, 0 for a group without a window. It and
    `block_sizes` [groups] are int32.
    """

    num_computed_tokens: torch.Tensor
    reach: torch.Tensor
    block_sizes: torch.Tensor


class RowGatherer:
    """The gather between two sets of tables, whose arguments are checked once and not at every launch.

    `counts` is [groups, num_rows] int32. `filled`, int32 [groups, rows of out], knows for each destination
    row how many of its leading entries may be other than zero; with it zeros are stored only there. Whoever
    else writes to `out` raises it. `reach` and `block_sizes` are those of a `SlidingWindow`. What a bounded
    launch refuses is described in `record`, if there is one. All arrays lie on the device of the tables.
    """

    __slots__ = (
        "_addresses",
        "_constants",
        "_device_index",
        "_groups",
        "_kept",
        "_num_rows",
        "_out_rows",
        "_tensors",
    )

    def __init__(  # noqa: PLR0913 - one argument per array that the launch reads
        self,
        layout: TableLayout,
        counts: torch.Tensor,
        out: TableLayout,
        *,
        filled: torch.Tensor | None = None,
        reach: torch.Tensor | None = None,
        block_sizes: torch.Tensor | None = None,
        bounded: bool = True,
        record: ViolationRecord | None = None,
    ) -> None:
        """Check the arrays against the kernel's contract."""
        record = record if bounded else None
        _check_tables(layout, counts, out)
        _check_group_arrays(layout, out, filled, reach, block_sizes)
        require_record(record, layout.device_index)
        require_lane(gather_kernel, layout.device)
        before = (layout.pointers, layout.strides, layout.widths, layout.num_rows, counts, counts.stride(0))
        middle = (out.pointers, out.strides, filled, 0 if filled is None else filled.stride(0))
        # Without a window the kernel reads neither of the two; any tensor fills the place.
        sizes = tuple(counts if array is None else array for array in (reach, block_sizes))
        reports = (None, None) if record is None else (record.words, record.flag)
        # Tensors and tables themselves are kept, so that what the addresses lead to stays.
        self._kept = (layout, out)
        self._tensors = (before, middle, (*sizes, *reports))
        self._addresses = tuple(map(addresses, self._tensors))
        masks = (False,) if reach is None else (False, True)
        self._constants = tuple(
            (bounded, record is not None, masked, filled is not None, *CHUNKS) for masked in masks
        )
        self._device_index = layout.device_index
        self._groups, self._num_rows, self._out_rows = layout.num_groups, layout.num_rows, out.num_rows

    def gather(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        *,
        num_computed_tokens: torch.Tensor | None = None,
        launch: int = 0,
    ) -> None:
        """Fill the first `num_reqs_padded` rows from those that `idx_mapping` names, as launch `launch`.

        With `num_computed_tokens` [num_rows], indexed like the tables, entries wholly below each request's
        sliding window are zero.
        """
        require_indices("idx_mapping", idx_mapping, self._device_index)
        num_reqs = idx_mapping.shape[0]
        require(
            num_reqs <= num_reqs_padded <= self._out_rows,
            "{} requests padded to {} do not fit {} rows",
            num_reqs,
            num_reqs_padded,
            self._out_rows,
        )
        if num_reqs_padded == 0:
            return
        masked = num_computed_tokens is not None
        # Without a window the kernel does not read the tokens; any tensor fills the place.
        computed = self._computed(num_computed_tokens) if num_computed_tokens is not None else idx_mapping
        constants, types = self._constants[masked], (idx_mapping.dtype, computed.dtype)
        # Rows lie on the one grid axis that is not limited to 65,535 programs.
        grid = (num_reqs_padded, self._groups, 1)
        compiled = _LAUNCH.compiled(constants, self._device_index, types)
        if compiled is None:
            before, middle, after = self._tensors
            arguments = (*before, idx_mapping, num_reqs, *middle, computed, *after, launch)
            _LAUNCH(grid, arguments, constants, device=self._device_index, types=types)
            return
        before, middle, after = self._addresses
        compiled[grid](
            *before,
            idx_mapping.data_ptr(),
            num_reqs,
            *middle,
            computed.data_ptr(),
            *after,
            launch,
            *constants,
        )

    def _computed(self, num_computed_tokens: torch.Tensor) -> torch.Tensor:
        require(len(self._constants) > 1, "num_computed_tokens needs the groups' reach and block_sizes")
        require_indices("num_computed_tokens", num_computed_tokens, self._device_index)
        require(
            num_computed_tokens.shape[0] >= self._num_rows,
            "num_computed_tokens has fewer entries than the tables have rows",
        )
        return num_computed_tokens


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
    """Gather once with a `RowGatherer` made for it."""
    gatherer = RowGatherer(
        layout,
        counts,
        out,
        filled=filled,
        reach=None if window is None else window.reach,
        block_sizes=None if window is None else window.block_sizes,
        bounded=bounded,
        record=record,
    )
    computed = None if window is None else window.num_computed_tokens
    gatherer.gather(idx_mapping, num_reqs_padded, num_computed_tokens=computed, launch=launch)


def _check_tables(layout: TableLayout, counts: torch.Tensor, out: TableLayout) -> None:
    require_counts(counts, layout)
    require(out.row_widths == layout.row_widths, "the output tables have other widths")
    require(out.device_index == layout.device_index, "the output tables lie on another device")


def _check_group_arrays(
    layout: TableLayout,
    out: TableLayout,
    filled: torch.Tensor | None,
    reach: torch.Tensor | None,
    block_sizes: torch.Tensor | None,
) -> None:
    groups, where = layout.num_groups, layout.device_index
    if filled is not None:
        require(filled.shape == (groups, out.num_rows), "filled is not [groups, rows of out]")
    require((reach is None) == (block_sizes is None), "reach and block_sizes go together")
    for name, array in (("reach", reach), ("block_sizes", block_sizes)):
        require(array is None or array.shape == (groups,), "{} needs one entry per group", name)
    for name, array in (("filled", filled), ("reach", reach), ("block_sizes", block_sizes)):
        if array is not None:
            require(array.dtype == torch.int32, "{} is {}, not torch.int32", name, array.dtype)
            require(array.stride(-1) == 1 or array.shape[-1] == 1, "entries of {} are not adjacent", name)
            require(array.get_device() == where, "{} lies on another device than the tables", name)
