"""The engine's V1 block tables, fed with the scheduler's lists and compared with plain lists after each step.

What must hold: the row's count is the scheduler's list's length, the row has the list's blocks wherever the
list has not nulled them, and each position's slot is the one that `invariants` computes column and offset of.
"""

from __future__ import annotations

import vllm_engine as engine
from comparison import Mismatch, layer

from invariants import Access, AttentionSpec, CircularBufferSpec, Runner, column, release, row_spec, row_width

_SLOTS_EACH = 3
"""Slots are compared once in so many steps, one rank at a time: Triton's interpreter takes its time."""


class WorkerRows:
    """The rows of a running batch, as V1's runner keeps them."""

    def __init__(self, setup, tally):
        self.setup, self.record = setup, tally.record(setup.kind)
        self.release = release(setup.release)
        self.held = [row_spec(spec, release=self.release) for spec in setup.specs]
        self.tables = engine.v1_tables(setup)
        self.batch = []
        """Request names by row."""
        self.known = {}
        """Each request's lists as the worker was told them."""
        self.steps = 0
        self._check_widths()

    def _check_widths(self):
        for group, spec in enumerate(self.setup.specs):
            wanted = row_width(self.setup.deployment, spec, runner=Runner.V1, release=self.release)
            got = self.tables[group].max_num_blocks_per_req
            if got != wanted:
                raise Mismatch(
                    f"vLLM {engine.version()}: V1's MultiGroupBlockTable makes rows of {got} entries for "
                    f"group {group}, where invariants.row_width says {wanted}: {self.setup.sizes()}"
                )

    def take(self, out, scheduler):
        """Take over one step's lists, and compare every row of the batch."""
        for name in out.finished_req_ids:
            self.known.pop(name, None)
        new = {data.req_id: data.block_ids for data in out.scheduled_new_reqs}
        cached = out.scheduled_cached_reqs
        for name in [n for n in self.batch if n not in out.num_scheduled_tokens or n in new
                     or n in cached.resumed_req_ids]:  # fmt: skip
            self._drop(name)
        for name, lists in new.items():
            self.known[name] = [list(group) for group in lists]
        for name, lists in zip(cached.req_ids, cached.new_block_ids, strict=True):
            self._grow(name, lists, resumed=name in cached.resumed_req_ids)
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

    def _grow(self, name, lists, *, resumed):
        if resumed:
            self.known[name] = [list(group) for group in lists]
            return
        if lists is None:
            return
        for held, more in zip(self.known[name], lists, strict=True):
            held.extend(more)
        if name in self.batch and self._fits(name):
            self.tables.append_row(lists, self.batch.index(name))

    def _fits(self, name):
        """Only a session that outgrew its context may not fit; its row is left as it was."""
        return all(
            len(held) * spec.expansion <= table.max_num_blocks_per_req
            for held, spec, table in zip(self.known[name], self.held, self.tables.block_tables, strict=True)
        )

    def _add(self, name):
        self.batch.append(name)
        if self._fits(name):
            self.tables.add_row(tuple(self.known[name]), len(self.batch) - 1)

    def _compare(self, out, scheduler):
        starts = {data.req_id: data.num_computed_tokens for data in out.scheduled_new_reqs}
        cached = out.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for row, name in enumerate(self.batch):
            if not self._fits(name):
                continue
            lists = engine.lists_of(scheduler.kv_cache_manager, name)
            for group, listed in enumerate(lists):
                self._compare_row(row, name, group, listed)
            self.record.rows += 1
        self.steps += 1
        if self.steps % _SLOTS_EACH == 1:
            self._compare_slots(out, starts)

    def _compare_row(self, row, name, group, listed):
        table, split = self.tables[group], self.held[group].expansion
        count = int(table.num_blocks_per_row[row])
        told = [block * split + part for block in self.known[name][group] for part in range(split)]
        got = table.get_numpy_array()[row, :count].tolist()
        if count != len(listed) * split:
            self._fail(
                group, f"counts {count} entries", f"the scheduler lists {len(listed)} blocks of {split}"
            )
        if got != told:
            self._fail(group, f"row is {got}", f"it was told {told}")
        for place, (block, is_null) in enumerate(listed):
            if not is_null and got[place * split] != block * split:
                self._fail(
                    group, f"entry {place * split} is {got[place * split]}", f"the list has block {block}"
                )

    def _compare_slots(self, out, starts):
        names = self.batch
        counts = [out.num_scheduled_tokens[name] for name in names]
        spans = [range(starts[name], starts[name] + n) for name, n in zip(names, counts, strict=True)]
        if any(span.stop > self.setup.deployment.max_model_len for span in spans) or not names:
            return  # a session beyond its context: the columns leave the row
        positions = [position for span in spans for position in span]
        for group, spec in enumerate(self.setup.specs):
            if isinstance(layer(spec), CircularBufferSpec) or not isinstance(layer(spec), AttentionSpec):
                continue
            if layer(spec).kind == "cross-attention":
                continue  # its own layer maps the encoder's positions
            table = self.tables[group]
            rank = table.dcp_rank = self.steps % table.dcp_world_size
            slots = engine.slot_mapping(table, counts, positions)
            wanted = [self._slot(group, row, p, rank) for row, span in enumerate(spans) for p in span]
            if slots != wanted:
                at = next(n for n, pair in enumerate(zip(slots, wanted, strict=True)) if pair[0] != pair[1])
                self._fail(
                    group, f"slot of position {positions[at]} on rank {rank} is {slots[at]}",
                    f"invariants.column leads to {wanted[at]}",
                )  # fmt: skip
            self.record.slots += len(slots)

    def _slot(self, group, row, position, rank):
        """Say where a position lies by `invariants`: block of its column, and offset; -1 on other ranks."""
        spec, deployment = layer(self.held[group]), self.setup.deployment
        if spec.owner(deployment, position) != rank:
            return -1
        at = column(
            deployment,
            self.setup.specs[group],
            Access(position=position),
            runner=Runner.V1,
            release=self.release,
        )
        _, offset = spec.place_on_rank(deployment, position)
        block = int(self.tables[group].get_numpy_array()[row, at])
        return block * spec.kernel_block_size + offset % spec.kernel_block_size

    def _fail(self, group, engine_says, we_say):
        raise Mismatch(
            f"vLLM {engine.version()}: V1's BlockTable of group {group}: {engine_says}, where {we_say}: "
            f"{self.setup.sizes()}"
        )
