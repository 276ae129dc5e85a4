"""The engine's block tables, fed with the scheduler's lists and compared with plain lists after each step.

What must hold, on V1's `MultiGroupBlockTable` and on V2's `BlockTables`: the row's count is the scheduler's
list's length, the row has the list's blocks wherever the list has not nulled them, and each position's slot
is the one that `invariants` computes column and offset of. V2's gathered rows have what its rows have.
"""

from __future__ import annotations

import v2_runner
import vllm_engine as engine
from comparison import Mismatch
from expected_rows import ExpectedRows

from invariants import Runner, entries_needed, max_num_tokens, release, row_width

_SLOTS_EACH = 3
"""Slots are compared once in so many steps, one rank at a time: Triton's interpreter takes its time."""


class _WorkerRows:
    """What the rows of both runners have in common."""

    runner = Runner.V1
    tables_name = ""

    def __init__(self, setup, tally):
        self.setup, self.record = setup, tally.record(setup.kind)
        self.release = release(setup.release)
        self.expected = ExpectedRows(setup.deployment, setup.specs, setup.release, self.runner)
        self.known = {}
        """Each request's lists as the worker was told them."""
        self.steps = 0

    def _check_widths(self, widths):
        for group, (spec, got) in enumerate(zip(self.setup.specs, widths, strict=True)):
            wanted = row_width(self.setup.deployment, spec, runner=self.runner, release=self.release)
            if got != wanted:
                raise Mismatch(
                    f"vLLM {engine.version()}: {self.runner.value}'s {self.tables_name} makes rows of {got} "
                    f"entries for group {group}, where invariants.row_width says {wanted}: "
                    f"{self.setup.sizes()}"
                )

    def _learn(self, out):
        """Extend each request's lists by what the step tells of them."""
        for name in out.finished_req_ids:
            self.known.pop(name, None)
        for data in out.scheduled_new_reqs:
            self.known[data.req_id] = [list(group) for group in data.block_ids]
        cached = out.scheduled_cached_reqs
        for name, lists in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self.known[name] = [list(group) for group in lists]
            elif lists is not None:
                for held, more in zip(self.known[name], lists, strict=True):
                    held.extend(more)

    def _spans(self, out):
        """The positions of each request's tokens in the step."""
        starts = {data.req_id: data.num_computed_tokens for data in out.scheduled_new_reqs}
        cached = out.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return {name: range(starts[name], starts[name] + n) for name, n in out.num_scheduled_tokens.items()}

    def _compare_rows(self, name, scheduler, held):
        """Compare a request's rows, `held` as (count, entries) by group; return the scheduler's lists."""
        lists = [
            [None if is_null else block for block, is_null in listed]
            for listed in engine.lists_of(scheduler.kv_cache_manager, name)
        ]
        for group, (listed, (count, got)) in enumerate(zip(lists, held, strict=True)):
            self._require(group, self.expected.row(group, listed, self.known[name][group], count, got))
        return lists

    def _require(self, group, fault):
        if fault is not None:
            raise Mismatch(
                f"vLLM {engine.version()}: {self.runner.value}'s {self.tables_name} of group {group}: "
                f"{fault[0]}, where {fault[1]}: {self.setup.sizes()}"
            )


class V1Rows(_WorkerRows):
    """The rows of a running batch, as V1's runner keeps them."""

    tables_name = "MultiGroupBlockTable"

    def __init__(self, setup, tally):
        super().__init__(setup, tally)
        self.tables = engine.v1_tables(setup)
        self.batch = []
        """Request names by row."""
        self._check_widths(table.max_num_blocks_per_req for table in self.tables.block_tables)

    def take(self, out, scheduler):
        """Take over one step's lists, and compare every row of the batch."""
        new = {data.req_id for data in out.scheduled_new_reqs}
        cached = out.scheduled_cached_reqs
        for name in [n for n in self.batch if n not in out.num_scheduled_tokens or n in new
                     or n in cached.resumed_req_ids]:  # fmt: skip
            self._drop(name)
        self._learn(out)
        for name, lists in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if lists is not None and name in self.batch and self._fits(name):
                self.tables.append_row(lists, self.batch.index(name))
        for name in out.num_scheduled_tokens:
            if name not in self.batch:
                self._add(name)
        self._compare(out, scheduler)

    def _drop(self, name):
        """Free a row; the batch's last row moves into the hole."""
        row, last = self.batch.index(name), len(self.batch) - 1
        self.tables.clear_row(row)
        if row != last:
            self.tables.move_row(last, row)
            self.batch[row] = self.batch[last]
        self.batch.pop()

    def _fits(self, name):
        """Only a session that outgrew its context may not fit; its row is left as it was."""
        return all(
            len(self.expected.entries(group, held)) <= table.max_num_blocks_per_req
            for group, (held, table) in enumerate(
                zip(self.known[name], self.tables.block_tables, strict=True)
            )
        )

    def _add(self, name):
        self.batch.append(name)
        if self._fits(name):
            self.tables.add_row(tuple(self.known[name]), len(self.batch) - 1)

    def _compare(self, out, scheduler):
        for row, name in enumerate(self.batch):
            if self._fits(name):
                self._compare_rows(name, scheduler, self._held(row))
                self.record.rows += 1
        self.steps += 1
        if self.steps % _SLOTS_EACH == 1:
            self._compare_slots(self._spans(out))

    def _held(self, row):
        for table in self.tables.block_tables:
            count = int(table.num_blocks_per_row[row])
            yield count, table.get_numpy_array()[row, :count].tolist()

    def _compare_slots(self, spans):
        spans = [spans[name] for name in self.batch]
        if any(span.stop > self.setup.deployment.max_model_len for span in spans) or not spans:
            return  # a session beyond its context: the columns leave the row
        positions = [position for span in spans for position in span]
        for group in range(len(self.setup.specs)):
            if not self.expected.maps_positions(group):
                continue
            table = self.tables[group]
            rank = table.dcp_rank = self.steps % table.dcp_world_size
            slots = engine.slot_mapping(table, [len(span) for span in spans], positions)
            rows = table.get_numpy_array()
            self._require(group, self.expected.slots(group, rows[: len(spans)], spans, rank, slots))
            self.record.slots += len(slots)


class V2Rows(_WorkerRows):
    """The rows of V2's runner: each request keeps its own until it ends or is preempted."""

    runner = Runner.V2
    tables_name = "BlockTables"

    def __init__(self, setup, tally, recorder=None):
        super().__init__(setup, tally)
        self.worker = v2_runner.Worker(setup)
        self.tables = self.worker.tables
        self.outgrown = set()
        """Rows that a list did not fit; they are left as they were."""
        self.spans = {}
        self._own_append = self.tables.append_block_ids
        self.tables.append_block_ids = self._append
        self._widths = [table.gpu.shape[1] for table in self.tables.block_tables]
        self._check_widths(self._widths)
        self.too_narrow = self._too_narrow()
        self.recorder = recorder
        if recorder:
            recorder.begins(setup, self.worker.arguments)

    def _too_narrow(self):
        """Say whether `invariants` itself has a row of the release narrower than its largest list."""
        deployment = self.setup.deployment
        return any(
            entries_needed(deployment, spec, release=self.release)
            > row_width(deployment, spec, runner=self.runner, release=self.release)
            for spec in self.setup.specs
        )

    def take(self, out, scheduler):
        """Take over one step's lists, and compare every row, gathered row and, each few steps, slot."""
        self.spans = self._spans(out)
        self.worker.take(out)
        self._learn(out)
        self.steps += 1
        fitting = [name for name in self.spans if self.worker.row_of(name) not in self.outgrown]
        lists = {name: self._compare_one(name, scheduler) for name in fitting}
        # A session beyond its context has its row, but its columns leave it.
        batch = [n for n in fitting if self.spans[n].stop <= self.setup.deployment.max_model_len]
        self._compare_batch([self.worker.row_of(name) for name in batch], [self.spans[n] for n in batch])
        if self.recorder:
            self.recorder.step([(self.worker.row_of(n), lists[n], self.spans[n]) for n in fitting])

    def _append(self, row, lists, overwrite):
        """Stand before the tables' own append: what does not fit its row is kept from them, and noted."""
        held = [0] * len(lists) if overwrite else self.tables.num_blocks.np[:, row].tolist()
        sizes = [count + len(self.expected.entries(group, more))
                 for group, (count, more) in enumerate(zip(held, lists, strict=True))]  # fmt: skip
        fits = all(size <= width for size, width in zip(sizes, self._widths, strict=True))
        if self.recorder and (overwrite or row not in self.outgrown):
            self.recorder.appends(row, lists, overwrite=overwrite, fits=fits)
        if fits and (overwrite or row not in self.outgrown):
            self.outgrown.discard(row)
            self._own_append(row, lists, overwrite)
        elif not fits:
            self._note_outgrown(row, sizes)

    def _note_outgrown(self, row, sizes):
        """Only a session past its context, and a row that `invariants` has as too narrow, may be outgrown."""
        self.outgrown.add(row)
        tokens = self.spans[self.worker.name_of(row)].stop
        group = next(g for g, pair in enumerate(zip(sizes, self._widths, strict=True)) if pair[0] > pair[1])
        if tokens > max_num_tokens(self.setup.deployment, release=self.release):
            return
        said = f"{sizes[group]} entries at {tokens} tokens for V2's row of {self._widths[group]}"
        if not self.too_narrow:
            self._require(group, (f"cannot take {said}", "invariants.entries_needed says that all fit"))
        self.record.narrow += 1
        self.record.narrow_first = self.record.narrow_first or f"{said}; {self.setup.sizes()}"

    def _compare_one(self, name, scheduler):
        row = self.worker.row_of(name)
        lists = self._compare_rows(name, scheduler, self._held(row))
        self.record.v2_rows += 1
        return lists

    def _held(self, row):
        for group, table in enumerate(self.tables.block_tables):
            count = int(self.tables.num_blocks.np[group, row])
            if count != (copied := int(self.tables.num_blocks.gpu[group, row])):
                self._require(group, (f"the device counts {copied} entries", f"the host counts {count}"))
            yield count, table.gpu[row, :count].tolist()

    def _compare_batch(self, rows, spans):
        if not rows:
            return
        rank = self.steps % self.setup.deployment.decode_context_parallel_size
        gathered, slots = self.worker.attend(rows, spans, rank)
        for group, table in enumerate(self.tables.block_tables):
            counts = self.tables.num_blocks.np[group]
            for place, (row, span) in enumerate(zip(rows, spans, strict=True)):
                held = table.gpu[row, : counts[row]].tolist()
                got = gathered[group][place][: counts[row]]
                step = self.expected.step(span.start, len(span))
                self._require(group, self.expected.gathered(group, held, got, step))
            if any(map(any, gathered[group][len(rows) :])):
                self._require(group, ("a padded row is not zero", "padded rows belong to no request"))
            self._compare_slots(group, rows, spans, rank, slots[group])

    def _compare_slots(self, group, rows, spans, rank, slots):
        table = self.tables.block_tables[group].gpu
        enabled = self.worker.arguments.get("slot_mapping_enabled")
        if enabled and not enabled[group]:
            self._require(group, self.expected.unmapped(group, slots))
        elif self.expected.maps_positions(group):
            self._require(group, self.expected.slots(group, table[rows], spans, rank, slots))
            self.record.v2_slots += len(slots)
