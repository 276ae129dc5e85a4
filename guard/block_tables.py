"""Block tables of a worker that refuse a write before it touches anything.

A drop-in for the tables of vLLM's Model Runner V2, with the constructor of 0.28 and of 0.33; slot mapping
is not part of it. Per cache group there is one int32 table [max_num_reqs, row width] on the device and
one of the same shape for the forward pass.

* `append_block_ids` checks the whole write, all groups of it, on the host and then stages it. A write
  that is refused leaves tables, counts and staged writes as they were, and the next one works.
* `apply_staged_writes` sends what is staged in one copy and one launch, and nothing when there is none.
* `gather_block_tables` fills the forward-pass tables in one launch. They keep their addresses, so a CUDA
  graph may read them.

None of the three waits for the device. Launches go to the current stream.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from guard import _refusals as refuse
from guard._geometry import INT32_END, Geometry, bind_options, whole_number
from guard._staging import LONG, StagedRow, merge, pack_staged
from guard._text import shown
from guard.errors import GuardUsageError
from kernels import KernelError, SlidingWindow, TableLayout, gather_rows, write_staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["BlockCounts", "BlockTable", "BlockTables"]


@dataclass(frozen=True, slots=True)
class BlockTable:
    """One group's table on the device."""

    gpu: torch.Tensor


class BlockCounts:
    """How many entries of each row are in use, [groups, max_num_reqs] int32."""

    __slots__ = ("_rows", "gpu")

    def __init__(self, rows: list[list[int]], num_groups: int, device: torch.device) -> None:
        """Show `rows`, one list of group counts per row, and keep the device's copy."""
        self._rows = rows
        self.gpu = torch.zeros((num_groups, len(rows)), dtype=torch.int32, device=device)

    @property
    def np(self) -> NDArray[np.int32]:
        """The host's counts, staged entries included; a snapshot."""
        counts = np.array(self._rows, dtype=np.int32).reshape(len(self._rows), -1)
        return np.ascontiguousarray(counts.T)

    def upload(self) -> None:
        """Replace the device's counts by the host's."""
        host = torch.from_numpy(self.np)
        pinned = host if self.gpu.device.type == "cpu" else host.pin_memory()
        self.gpu.copy_(pinned, non_blocking=True)


class BlockTables:
    """The block tables of all cache groups of one worker.

    `num_pool_blocks`, if given, is the size of the block pool that all groups share; a block ID outside
    it is refused. The other arguments are vLLM's.
    """

    redirect_writes_to_null_block = False
    """While True every appended ID is stored as the null block, 0."""

    @overload
    def __init__(
        self,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: Sequence[int],
        device: torch.device | str,
        kernel_block_sizes: Sequence[int],
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        slot_mapping_enabled: Sequence[bool] | None = None,
        dcp_sharded: Sequence[bool] | None = None,
        *,
        num_pool_blocks: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: Sequence[int],
        device: torch.device | str,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        slot_mapping_enabled: Sequence[bool] | None = None,
        dcp_sharded: Sequence[bool] | None = None,
        sliding_window_reach: Sequence[int] | None = None,
        *,
        num_pool_blocks: int | None = None,
    ) -> None: ...

    def __init__(  # noqa: PLR0913 - the engine's own arguments
        self,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: Sequence[int],
        device: torch.device | str,
        *positional: Any,
        num_pool_blocks: int | None = None,
        **named: Any,
    ) -> None:
        """Check the arguments of either form and allocate the tables."""
        geometry = Geometry.of(
            block_sizes,
            max_num_reqs,
            max_num_batched_tokens,
            max_num_blocks_per_group,
            bind_options(positional, named),
        )
        self._geometry = geometry
        self._adopt_names(geometry)
        # The number of IDs whose last kernel block still fits int32.
        self._id_limit = INT32_END // max(geometry.blocks_per_kv_block, default=1)
        self.num_pool_blocks = num_pool_blocks
        if num_pool_blocks is not None:
            self._id_limit = whole_number(
                "num_pool_blocks", num_pool_blocks, minimum=1, maximum=self._id_limit
            )
            self.num_pool_blocks = self._id_limit
        self._row_widths = geometry.row_widths
        self._expands = any(factor > 1 for factor in geometry.blocks_per_kv_block)
        self._no_entries = [0] * self.num_kv_cache_groups
        # A row's counts are replaced and never changed in place: staged rows share them.
        self._counts = [self._no_entries] * self.max_num_reqs
        self._staged: dict[int, StagedRow] = {}
        self._dirty_rows = 0
        try:
            self.device = torch.device(device)
            self._allocate()
            self.init_block_table_layout_tensors()
        except (AssertionError, MemoryError, RuntimeError, TypeError) as error:
            line = str(error).strip().split("\n")[0]
            message = f"cannot allocate block tables on {device!s}: {line}"
            raise GuardUsageError(message) from error

    def _adopt_names(self, geometry: Geometry) -> None:
        """Show the sizes under vLLM's attribute names."""
        self.block_sizes = list(geometry.block_sizes)
        self.kernel_block_sizes = list(geometry.kernel_block_sizes)
        self.blocks_per_kv_block = list(geometry.blocks_per_kv_block)
        self.max_num_reqs = geometry.max_num_reqs
        self.max_num_batched_tokens = geometry.max_num_batched_tokens
        self.num_kv_cache_groups = len(geometry.block_sizes)
        self.cp_size = geometry.cp_size
        self.cp_rank = geometry.cp_rank
        self.cp_interleave = geometry.cp_interleave
        self.has_sliding_window_groups = any(geometry.sliding_window_reach)

    def _allocate(self) -> None:
        def zeros(width: int) -> torch.Tensor:
            return torch.zeros((self.max_num_reqs, width), dtype=torch.int32, device=self.device)

        widths = self._geometry.row_widths
        self.block_tables = [BlockTable(zeros(width)) for width in widths]
        self.input_block_tables = [zeros(width) for width in widths]
        self.num_blocks = BlockCounts(self._counts, self.num_kv_cache_groups, self.device)

    def init_block_table_layout_tensors(self) -> None:
        """Read the tables' addresses anew and restore what the device may have lost with its memory.

        Needed after the memory behind the tables was released and mapped again. The tables' contents are
        the caller's to write again.
        """
        if not self.num_kv_cache_groups:
            return
        geometry = self._geometry
        self._layout = TableLayout.of([table.gpu for table in self.block_tables])
        self._inputs = TableLayout.of(self.input_block_tables)
        self._reach = self._on_device(geometry.sliding_window_reach)
        self._window_block_sizes = self._on_device(geometry.kernel_block_sizes)
        self.num_blocks.upload()

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    @property
    def block_table_ptrs(self) -> torch.Tensor:
        """The tables' addresses, uint64 [groups]."""
        return self._layout.pointers

    @property
    def block_table_strides(self) -> torch.Tensor:
        """Entries from one row to the next, int64 [groups]."""
        return self._layout.strides

    @property
    def input_block_table_ptrs(self) -> torch.Tensor:
        """The forward-pass tables' addresses, uint64 [groups]."""
        return self._inputs.pointers

    def append_block_ids(
        self, req_index: int, new_block_ids: Sequence[Sequence[int]], overwrite: bool
    ) -> None:
        """Stage one list of block IDs per group for row `req_index`, after the row's or in their place.

        Raises:
            BlockTableViolation: the write was refused and nothing has changed.
        """
        row = req_index
        if type(row) is not int or not 0 <= row < self.max_num_reqs:
            row = refuse.row_of(req_index, self.max_num_reqs)
        starts = self._no_entries if overwrite else self._counts[row]
        write = self._quick_check(starts, new_block_ids)
        if write is None:
            write = self._full_check(row, starts, new_block_ids)
        if row in self._staged and not overwrite:
            self._staged[row] = merge(self._staged[row], write)
        else:
            self._staged[row] = write
        self._counts[row] = write[1]

    def _quick_check(self, starts: list[int], new_block_ids: Any) -> StagedRow | None:
        """Accept the usual write, plain lists of ints that fit; None for any that needs `_full_check`."""
        usual = type(new_block_ids) is tuple and len(new_block_ids) == len(starts)
        if not usual or self._expands or self.redirect_writes_to_null_block:
            return None
        block_ids: list[int] = []
        ends = []
        # All three have one element per group, and naming `strict` would cost a fifth of the loop.
        for start, ids, width in zip(starts, new_block_ids, self._row_widths):  # noqa: B905
            if type(ids) is not list:
                return None
            end = start + len(ids)
            if end > width:
                return None
            ends.append(end)
            block_ids += ids
        if len(block_ids) >= LONG:
            packed = self._packed(block_ids)
            return None if packed is None else (starts, ends, packed)
        limit = self._id_limit
        for block_id in block_ids:
            if type(block_id) is not int or not 0 <= block_id < limit:
                return None
        return starts, ends, block_ids

    def _packed(self, block_ids: list[int]) -> array[int] | None:
        """Check a long list at the speed of numpy; None when it needs `_full_check`."""
        try:
            packed = array("i", block_ids)
        except (OverflowError, TypeError):
            return None
        numbers = np.frombuffer(packed, dtype=np.intc)
        lowest = int(numbers.min())
        if lowest < 0 or int(numbers.max()) >= self._id_limit:
            return None
        # array takes a bool for the number it equals, which can only be 0 or 1.
        return None if lowest <= 1 and bool in set(map(type, block_ids)) else packed

    def _full_check(self, row: int, starts: list[int], new_block_ids: Any) -> StagedRow:
        """Accept any legal write, or refuse it by its first fault."""
        if not isinstance(new_block_ids, tuple | list) or len(new_block_ids) != len(starts):
            raise refuse.group_count(row, new_block_ids, len(starts))
        block_ids: list[int] = []
        ends = []
        for group, (start, given, width) in enumerate(
            zip(starts, new_block_ids, self._row_widths, strict=True)
        ):
            factor = self.blocks_per_kv_block[group]
            ids = refuse.block_ids_of(row, group, given)
            added = len(ids) * factor
            if start + added > width:
                raise refuse.row_capacity(row, group, start, added, width)
            ids = refuse.checked_block_ids(row, group, ids, self._id_limit, self.num_pool_blocks)
            if self.redirect_writes_to_null_block:
                ids = [0] * len(ids)
            block_ids += [block_id * factor + part for block_id in ids for part in range(factor)]
            ends.append(start + added)
        return starts, ends, block_ids

    def apply_staged_writes(self) -> None:
        """Write everything that is staged into the tables, in one copy and one launch."""
        if not self._staged or not self.num_kv_cache_groups:
            return
        packed = pack_staged(self._staged, self.num_kv_cache_groups, self.device)
        write_staged(self._layout, self.num_blocks.gpu, packed)
        self._staged.clear()

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Fill the forward-pass tables with the rows in `idx_mapping` and return their leading rows.

        A row holds its request's entries and zeros after them; padded rows, dummy requests (-1) and rows
        that do not exist are zero. `out` and `out_ptrs` replace the forward-pass tables; the caller
        guarantees that `out_ptrs` holds the addresses of `out`. With `num_computed_tokens`
        [max_num_reqs] the entries wholly below a group's sliding window are zero too.

        Raises:
            BlockTableViolation: the padded batch does not fit the tables; nothing was gathered.
            GuardUsageError: a tensor has another shape, type or device than the tables need.
        """
        if not self.num_kv_cache_groups:
            return ()
        _require_tensor("idx_mapping", idx_mapping)
        if num_computed_tokens is not None:
            _require_tensor("num_computed_tokens", num_computed_tokens)
        target = self._inputs if out is None else self._target(out, out_ptrs)
        num_reqs = idx_mapping.shape[0] if idx_mapping.dim() else 0
        whole = isinstance(num_reqs_padded, int | np.integer) and not isinstance(num_reqs_padded, bool)
        if not whole or not num_reqs <= num_reqs_padded <= target.num_rows:
            raise refuse.batch_rows(num_reqs, num_reqs_padded, target.num_rows)
        # Rows that a larger batch left behind are cleared as well.
        launched = max(int(num_reqs_padded), self._dirty_rows if out is None else 0)
        window = self._window(num_computed_tokens)
        try:
            gather_rows(self._layout, self.num_blocks.gpu, idx_mapping, target, launched, window=window)
        except KernelError as error:
            raise GuardUsageError(str(error)) from error
        if out is None:
            self._dirty_rows = num_reqs
        return tuple(table[:num_reqs_padded] for table in target.tables)

    def _window(self, num_computed_tokens: torch.Tensor | None) -> SlidingWindow | None:
        if num_computed_tokens is None or not self.has_sliding_window_groups:
            return None
        return SlidingWindow(num_computed_tokens, self._reach, self._window_block_sizes)

    def _target(self, out: tuple[torch.Tensor, ...], out_ptrs: torch.Tensor | None) -> TableLayout:
        """Describe the caller's output tables without copying anything to the device."""
        if out_ptrs is None or out_ptrs.shape != (len(out),) or len(out) != self.num_kv_cache_groups:
            message = (
                f"out and out_ptrs need one table and one address for each of "
                f"{self.num_kv_cache_groups} groups"
            )
            raise GuardUsageError(message)
        for group, (table, width) in enumerate(zip(out, self._geometry.row_widths, strict=True)):
            _require_tensor(f"out of group {group}", table)
            fits = (
                table.dtype == torch.int32
                and table.device == self._layout.device
                and table.shape[1:] == (width,)
                and table.is_contiguous()
            )
            if not fits:
                message = (
                    f"out of group {group} must be a contiguous int32 table of {width} columns "
                    f"on {self._layout.device}"
                )
                raise GuardUsageError(message)
        return TableLayout(
            tables=tuple(out),
            pointers=out_ptrs,
            strides=self._inputs.strides,
            widths=self._inputs.widths,
            num_rows=min(table.shape[0] for table in out),
        )

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Return the forward-pass tables' leading rows, zeroed, for a run without requests."""
        if type(num_reqs) is not int or not 0 <= num_reqs <= self.max_num_reqs:
            raise refuse.batch_rows(0, num_reqs, self.max_num_reqs)
        cleared = max(num_reqs, self._dirty_rows)
        for table in self.input_block_tables:
            table[:cleared].zero_()
        # Whoever asked may fill these rows before the next gather.
        self._dirty_rows = num_reqs
        return tuple(table[:num_reqs] for table in self.input_block_tables)


def _require_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        message = f"{name} must be a tensor, not {shown(value)}"
        raise GuardUsageError(message)
