"""Block tables of a worker that refuse a write before it touches anything.

A drop-in for the tables of vLLM's Model Runner V2, in every form from 0.25 to 0.33. Per cache group
there is one int32 table [max_num_reqs, row width] on the device and one of the same shape for the
forward pass; all groups share slot mappings, int64 [groups, max_num_batched_tokens].

* `append_block_ids` checks the whole write, all groups of it, on the host and then stages it. A write
  that is refused leaves tables, counts and staged writes as they were, and the next one works.
  `append_batch` does the same for many rows at once, from arrays.
* `apply_staged_writes` sends what is staged in one launch and no copy, and nothing when there is none.
* `gather_block_tables` and `compute_slot_mappings` fill the forward-pass tables and the slot mappings in
  one launch each. Both keep their addresses, so a CUDA graph may read them.

None of them waits for the device, except in mode `strict`. Launches go to the current stream. What a
kernel itself refuses is written down on the device and raised by a later call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from guard import _refusals as refuse
from guard._append import Append, make_append
from guard._batch import batch_arrays
from guard._counts import Counts
from guard._geometry import INT32_END, Geometry, bind_options, whole_number
from guard._staging import Arrays, StagedLog, pack
from guard._text import shown
from guard.errors import BlockTableViolation, GuardError, GuardUsageError
from guard.metrics import GuardMetrics
from guard.settings import Mode, chosen_mode
from kernels import (
    PAD_SLOT,
    KernelError,
    RowGatherer,
    SlotGeometry,
    SlotMapper,
    StagedWriter,
    StagingRing,
    TableLayout,
    ViolationRecord,
)
from kernels.layout import MATRIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["BlockCounts", "BlockTable", "BlockTables"]


@dataclass(frozen=True, slots=True)
class BlockTable:
    """One group's table on the device."""

    gpu: torch.Tensor


class BlockCounts:
    """How many entries of each row are in use, [groups, max_num_reqs] int32."""

    __slots__ = ("_host", "gpu")

    def __init__(self, host: Counts, device: torch.device) -> None:
        """Show the host's counts and keep the device's copy."""
        self._host = host
        self.gpu = torch.zeros((len(host.no_entries), len(host.rows)), dtype=torch.int32, device=device)

    @property
    def np(self) -> NDArray[np.int32]:
        """The host's counts, staged entries included; a snapshot."""
        return self._host.as_array()

    def upload(self) -> None:
        """Replace the device's counts by the host's."""
        host = torch.from_numpy(self.np)
        pinned = host if self.gpu.device.type == "cpu" else host.pin_memory()
        self.gpu.copy_(pinned, non_blocking=True)


class BlockTables:
    """The block tables of all cache groups of one worker.

    `num_pool_blocks`, if given, is the size of the block pool that all groups share; a block ID outside
    it is refused. With `deals_kernel_blocks` context parallelism deals tokens out within kernel blocks, as
    vLLM up to 0.28 does, and else within the manager's blocks. `mode` and `configuration` say what the
    guard does (`guard.settings`). The other arguments are vLLM's.
    """

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
        deals_kernel_blocks: bool = False,
        mode: Mode | str | None = None,
        configuration: Mapping[str, Any] | None = None,
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
        deals_kernel_blocks: bool = False,
        mode: Mode | str | None = None,
        configuration: Mapping[str, Any] | None = None,
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
        deals_kernel_blocks: bool = False,
        mode: Mode | str | None = None,
        configuration: Mapping[str, Any] | None = None,
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
        self._deals_kernel_blocks = deals_kernel_blocks
        self._mode = chosen_mode(mode, configuration)
        self._counts = Counts(self.max_num_reqs, self.num_kv_cache_groups)
        self._log = StagedLog(self.max_num_reqs, geometry.blocks_per_kv_block)
        self._batches: list[Arrays] = []
        self._dirty_rows = 0
        self._launches = 0
        self.metrics = GuardMetrics()
        self.metrics.resize(geometry.row_widths)
        limit = None if self._mode is Mode.OFF else self._id_limit
        self._quick_append = make_append(geometry, self._log, self._counts, limit, self._append_unusual)
        self._redirects = False
        self._choose_append()
        try:
            self.device = torch.device(device)
            self._allocate()
            self.init_block_table_layout_tensors()
        except (AssertionError, KernelError, MemoryError, RuntimeError, TypeError) as error:
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
        # How much of each forward-pass row may be other than zero.
        self._filled = torch.zeros(
            (self.num_kv_cache_groups, self.max_num_reqs), dtype=torch.int32, device=self.device
        )
        self.num_blocks = BlockCounts(self._counts, self.device)
        self.slot_mappings = torch.zeros(
            (self.num_kv_cache_groups, self.max_num_batched_tokens), dtype=torch.int64, device=self.device
        )
        self._record = None if self._mode is Mode.OFF else ViolationRecord.on(self.device)
        # Room for the headers of a full batch and some IDs; a step with more of them takes a larger one.
        self._ring = StagingRing(self.device, 8 * max(1, self.num_kv_cache_groups) * self.max_num_reqs + 1024)

    def init_block_table_layout_tensors(self) -> None:
        """Read the tables' addresses anew and restore what the device may have lost with its memory.

        Needed after the memory behind the tables was released and mapped again. The tables' contents are
        the caller's to write again.
        """
        if not self.num_kv_cache_groups:
            return
        # Nothing is known of what the forward-pass tables hold now.
        self._filled.fill_(INT32_END - 1)
        self._dirty_rows = self.max_num_reqs
        if self._record is not None:
            self._record.reset()
        geometry = self._geometry
        self._layout = TableLayout.of([table.gpu for table in self.block_tables])
        self._inputs = TableLayout.of(self.input_block_tables)
        self._reach = self._on_device(geometry.sliding_window_reach)
        self._window_block_sizes = self._on_device(geometry.kernel_block_sizes)
        slots = SlotGeometry.of(
            geometry.dealt_sizes(within_kernel_blocks=self._deals_kernel_blocks),
            self.device,
            kernel_block_sizes=geometry.kernel_block_sizes,
            enabled=geometry.slot_mapping_enabled,
            sharded=geometry.dcp_sharded,
            cp_size=geometry.cp_size,
            cp_rank=geometry.cp_rank,
            cp_interleave=geometry.cp_interleave,
        )
        self._expansion = self._on_device(geometry.blocks_per_kv_block)
        self._writer = StagedWriter(
            self._layout,
            self.num_blocks.gpu,
            expansion=self._expansion if max(geometry.blocks_per_kv_block) > 1 else None,
            bounded=self._mode is not Mode.OFF,
            record=self._record,
        )
        self._gatherer = self._gatherer_into(self._inputs, self._filled)
        self._mapper = SlotMapper(
            self._layout, slots, bounded=self._mode is not Mode.OFF, record=self._record
        )
        self.num_blocks.upload()

    def _gatherer_into(self, target: TableLayout, filled: torch.Tensor | None = None) -> RowGatherer:
        return RowGatherer(
            self._layout,
            self.num_blocks.gpu,
            target,
            filled=filled,
            reach=self._reach,
            block_sizes=self._window_block_sizes,
            bounded=self._mode is not Mode.OFF,
            record=self._record,
        )

    def _no_numbers(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, dtype=dtype, device=self.device)

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    @property
    def mode(self) -> Mode:
        """What happens to a write that does not fit; the kernels are compiled for it."""
        return self._mode

    @property
    def block_table_ptrs(self) -> torch.Tensor:
        """The tables' addresses, uint64 [groups]."""
        return self._layout.pointers if self.num_kv_cache_groups else self._no_numbers(torch.uint64)

    @property
    def block_table_strides(self) -> torch.Tensor:
        """Entries from one row to the next, int64 [groups]."""
        return self._layout.strides if self.num_kv_cache_groups else self._no_numbers(torch.int64)

    @property
    def input_block_table_ptrs(self) -> torch.Tensor:
        """The forward-pass tables' addresses, uint64 [groups]."""
        return self._inputs.pointers if self.num_kv_cache_groups else self._no_numbers(torch.uint64)

    @property
    def redirect_writes_to_null_block(self) -> bool:
        """While True every appended ID is stored as the null block, 0."""
        return self._redirects

    @redirect_writes_to_null_block.setter
    def redirect_writes_to_null_block(self, redirects: bool) -> None:
        self._redirects = bool(redirects)
        self._choose_append()

    def _choose_append(self) -> None:
        self._append: Append = self._append_unusual if self._redirects else self._quick_append
        # Found on the instance, it is called without a step in between; a subclass's own goes first.
        if type(self).append_block_ids is BlockTables.append_block_ids:
            self.__dict__["append_block_ids"] = self._append

    def append_block_ids(
        self, req_index: int, new_block_ids: Sequence[Sequence[int]], overwrite: bool
    ) -> None:
        """Stage one list of block IDs per group for row `req_index`, after the row's or in their place.

        Raises:
            BlockTableViolation: the write was refused and nothing has changed.
        """
        self._append(req_index, new_block_ids, overwrite)

    def _append_unusual(
        self, req_index: int, new_block_ids: Sequence[Sequence[int]], overwrite: bool
    ) -> None:
        """Stage any legal write, or refuse it by its first fault."""
        try:
            row, before, after, block_ids = self._checked(req_index, new_block_ids, overwrite)
        except BlockTableViolation as violation:
            self._refuse(violation)
            return
        log = self._log
        try:
            log.contents.fromlist(block_ids)
            log.rows.append(row)
            log.starts.extend(before)
            log.ends.extend(after)
            self._counts.hold(row, after)
        except BaseException:
            log.mend(self._counts)
            raise

    def _checked(
        self, req_index: Any, new_block_ids: Any, overwrite: bool
    ) -> tuple[int, tuple[int, ...], tuple[int, ...], list[int]]:
        """Return row, counts before and after, and the IDs of all groups of a legal write."""
        try:
            overwrite = bool(overwrite)
        except (RuntimeError, ValueError) as error:
            raise GuardUsageError(f"overwrite is neither true nor false: {shown(overwrite)}") from error
        row = refuse.row_of(req_index, self.max_num_reqs)
        before = self._counts.no_entries if overwrite else self._counts.held(row)
        if not isinstance(new_block_ids, tuple | list) or len(new_block_ids) != len(before):
            raise refuse.group_count(row, new_block_ids, len(before))
        block_ids: list[int] = []
        after = []
        for group, (start, given, width) in enumerate(
            zip(before, new_block_ids, self._geometry.row_widths, strict=True)
        ):
            ids = refuse.block_ids_of(row, group, given)
            added = len(ids) * self.blocks_per_kv_block[group]
            if start + added > width:
                raise refuse.row_capacity(row, group, start, added, width)
            ids = refuse.checked_block_ids(row, group, ids, self._id_limit, self.num_pool_blocks)
            block_ids += [0] * len(ids) if self._redirects else ids
            after.append(start + added)
        return row, before, tuple(after), block_ids

    def append_batch(
        self,
        rows: NDArray[np.integer[Any]],
        block_ids: Sequence[NDArray[np.integer[Any]]],
        lengths: Sequence[NDArray[np.integer[Any]]],
        overwrite: bool,
    ) -> None:
        """Stage IDs for `rows`, each row once, as one write that is accepted or refused whole.

        Per group, `block_ids` [total] holds the IDs of all rows one after another and `lengths` [rows]
        how many are each row's.

        Raises:
            BlockTableViolation: the write was refused and nothing has changed.
            GuardUsageError: the arrays do not go together.
        """
        try:
            batch, after = batch_arrays(
                self._geometry, self._counts, rows, block_ids, lengths, overwrite, self._id_limit
            )
        except BlockTableViolation as violation:
            self._refuse(violation)
            return
        if not len(batch.rows):
            return
        if self._redirects:
            batch.contents.fill(0)
        # What was appended row by row before stays ahead of the batch.
        self._close_log()
        self._batches.append(batch)
        self.metrics.appends += len(batch.rows) // self.num_kv_cache_groups
        for row, counts in after:
            self._counts.hold(row, counts)

    def _refuse(self, violation: BlockTableViolation) -> None:
        """Count a refusal, and raise it unless the mode only counts."""
        self.metrics.refusals[violation.kind.value] += violation.total
        if self._mode is not Mode.COUNT:
            raise violation

    def snapshot(self) -> dict[str, Any]:
        """Return the mode, what was refused so far by kind, and the largest share of a row that was used.

        What kernels refused counts from the call that reports it, see `report_kernel_violations`.
        Steps are the calls of `apply_staged_writes` that wrote, appends the rows that were staged.
        """
        return {"mode": self._mode.value, "launches": self._launches, **self.metrics.snapshot()}

    def report_kernel_violations(self, *, wait: bool = False) -> None:
        """Count, and raise unless the mode only counts, what kernels have refused since the last report.

        Every launch on the tables does so for those before it; without `wait` it costs a look at host
        memory and sees what has run.
        """
        record = self._record
        if record is None or not (wait or record.pending()):
            return
        found = record.read()
        record.reset()
        if found:
            for other in found[1:]:
                self.metrics.refusals[refuse.kernel_kind(other).value] += other.total
            self._refuse(refuse.recorded(found))

    def _launched(self) -> None:
        if self._mode is Mode.STRICT:
            self.report_kernel_violations(wait=True)

    def _next_launch(self) -> int:
        """Report what earlier launches refused, and number the next."""
        self.report_kernel_violations()
        return self._numbered()

    def _numbered(self) -> int:
        # Kernels take it as int32.
        self._launches = (self._launches + 1) % INT32_END
        return self._launches

    def apply_staged_writes(self) -> None:
        """Write everything that is staged into the tables, in one launch.

        Batches take a launch each.

        Raises:
            BlockTableViolation: a kernel of an earlier step refused something; everything stays staged.
            GuardError: a list changed its length while it was appended; everything that was staged since
                the last call is dropped, and the rows are as that call left them.
        """
        self.report_kernel_violations()
        if not self.num_kv_cache_groups:
            self._log.clear()
            return
        self._close_log()
        self.metrics.steps += bool(self._batches)
        while self._batches:
            self._write(self._batches[0])
            del self._batches[0]

    def _close_log(self) -> None:
        """Put what was appended row by row behind the batches."""
        if not self._log.rows:
            return
        try:
            writes = self._log.arrays()
        except GuardError:
            self._drop_staged()
            raise
        self._batches.append(writes)
        self.metrics.appends += len(self._log.rows)
        self._log.clear()

    def _drop_staged(self) -> None:
        """Forget everything that is staged, and count what the device does."""
        self._log.clear()
        self._batches.clear()
        for row, counts in enumerate(zip(*self.num_blocks.gpu.tolist(), strict=True)):
            self._counts.hold(row, counts)

    def _write(self, writes: Arrays) -> None:
        packed = pack(writes, self.num_kv_cache_groups, max(self.blocks_per_kv_block), self._ring)
        self.report_kernel_violations()
        self._writer.write(packed, self._numbered())
        self._ring.launched()
        self.metrics.most_used = [*map(max, self.metrics.most_used, writes.most.tolist())]
        self._launched()

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
        if idx_mapping.dim() != 1:
            raise GuardUsageError(f"idx_mapping has {idx_mapping.dim()} dimensions, not 1")
        target = self._inputs if out is None else self._target(out, out_ptrs)
        num_reqs = idx_mapping.shape[0]
        whole = isinstance(num_reqs_padded, int | np.integer) and not isinstance(num_reqs_padded, bool)
        if not whole or not num_reqs <= num_reqs_padded <= target.num_rows:
            raise refuse.batch_rows(num_reqs, num_reqs_padded, target.num_rows)
        # Rows that a larger batch left behind are cleared as well.
        launched = max(int(num_reqs_padded), self._dirty_rows if out is None else 0)
        computed = num_computed_tokens if self.has_sliding_window_groups else None
        try:
            gatherer = self._gatherer if out is None else self._gatherer_into(target)
            launch = self._next_launch()
            gatherer.gather(idx_mapping, launched, num_computed_tokens=computed, launch=launch)
        except KernelError as error:
            raise GuardUsageError(str(error)) from error
        if out is None:
            self._dirty_rows = num_reqs
        self._launched()
        return tuple(table[:num_reqs_padded] for table in target.tables)

    def _target(self, out: tuple[torch.Tensor, ...], out_ptrs: torch.Tensor | None) -> TableLayout:
        """Describe the caller's output tables without copying anything to the device."""
        if (
            not isinstance(out_ptrs, torch.Tensor)
            or out_ptrs.shape != (len(out),)
            or len(out) != self.num_kv_cache_groups
        ):
            message = (
                f"out and out_ptrs need one table and one address for each of "
                f"{self.num_kv_cache_groups} groups"
            )
            raise GuardUsageError(message)
        addresses_fit = (
            out_ptrs.dtype in {torch.uint64, torch.int64}
            and out_ptrs.device == self._layout.device
            and out_ptrs.is_contiguous()
        )
        if not addresses_fit:
            message = (
                f"out_ptrs must be contiguous uint64 or int64 addresses on {self._layout.device}, "
                f"not {out_ptrs.dtype} with stride {out_ptrs.stride(0)} on {out_ptrs.device}"
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
        self._filled[:, :num_reqs].fill_(INT32_END - 1)
        return tuple(table[:num_reqs] for table in self.input_block_tables)

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Map each token's position to its slot in every group, and return the first tokens' slots.

        `idx_mapping` [requests] names each request's row, -1 for a dummy one; its tokens are those from
        `query_start_loc` [requests + 1] on, with `positions` [tokens]. A token without a slot has -1: in
        a group that maps none, of a dummy request, on another rank, behind the last request's, and one
        whose column is not in its row, which is a violation. `out`, int64 [groups, tokens], replaces
        `slot_mappings`.

        Raises:
            BlockTableViolation: a kernel of an earlier launch refused something; nothing was mapped.
            GuardUsageError: a tensor has another shape, type or device than the tables need.
        """
        slots = self.slot_mappings if out is None else out
        for name, tensor in (
            ("idx_mapping", idx_mapping),
            ("query_start_loc", query_start_loc),
            ("positions", positions),
            ("out", slots),
        ):
            _require_tensor(name, tensor)
        if slots.dim() != MATRIX:
            raise GuardUsageError(f"out has {slots.dim()} dimensions, not [groups, tokens]")
        whole_number("num_tokens_padded", num_tokens_padded, minimum=0, maximum=slots.shape[-1])
        if self.num_kv_cache_groups:
            launch = self._next_launch()
            try:
                self._mapper.map(idx_mapping, query_start_loc, positions, slots, launch)
            except KernelError as error:
                raise GuardUsageError(str(error)) from error
            self._launched()
        return slots[:, :num_tokens_padded]

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Return the first tokens' slot mappings, all of them -1, for a run without requests."""
        whole_number("num_tokens", num_tokens, minimum=0, maximum=self.max_num_batched_tokens)
        # Whole: a captured graph may read past the tokens that were asked for.
        self.slot_mappings.fill_(PAD_SLOT)
        return self.slot_mappings[:, :num_tokens]


def _require_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        message = f"{name} must be a tensor, not {shown(value)}"
        raise GuardUsageError(message)
