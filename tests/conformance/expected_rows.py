"""What a worker's rows, gathered rows and slots must hold, by `invariants`; no engine is needed to say so.

Each check returns None, or what is there and what must be, as two texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from invariants import (
    Access,
    AttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    Deployment,
    Request,
    Runner,
    SlidingWindowSpec,
    UniformTypeSpec,
    column,
    dealt_spec,
    release,
    row_spec,
)

PAD = -1


def layer(spec):
    """The spec of a group's layers."""
    return spec.inner if isinstance(spec, UniformTypeSpec) else spec


@dataclass(frozen=True)
class ExpectedRows:
    """The rules of one deployment's groups on one runner of one release."""

    deployment: Deployment
    specs: tuple
    release: str
    runner: Runner

    def held(self, group):
        """The spec as the release's row holds it."""
        return row_spec(self.specs[group], release=release(self.release))

    def entries(self, group, blocks):
        """The row's entries for a list of manager blocks."""
        split = self.held(group).expansion
        return [block * split + part for block in blocks for part in range(split)]

    def row(self, group, listed, told, count, got):
        """Check a row's count and content; `listed` has None where the scheduler nulled a block."""
        split = self.held(group).expansion
        if count != len(listed) * split:
            return f"counts {count} entries", f"the scheduler lists {len(listed)} blocks of {split}"
        if got != (wanted := self.entries(group, told)):
            return f"row is {got}", f"it was told {wanted}"
        for place, block in enumerate(listed):
            if block is not None and got[place * split] != block * split:
                return f"entry {place * split} is {got[place * split]}", f"the list has block {block}"
        return None

    def gathered(self, group, row, got, step):
        """Check a row of the forward-pass table: only what no query of the step reads may be null."""
        for place, (entry, copy) in enumerate(zip(row, got, strict=True)):
            if copy != entry and not (copy == 0 and self._behind_window(group, place, step)):
                return f"gathered entry {place} is {copy}", f"the row has {entry}"
        return None

    def _behind_window(self, group, place, step):
        spec = layer(self.held(group))
        if not isinstance(spec, SlidingWindowSpec) or self.deployment.decode_context_parallel_size > 1:
            return False
        positions = range(place * spec.kernel_block_size, (place + 1) * spec.kernel_block_size)
        return not any(spec.readable(self.deployment, step, Access(position=p)) for p in positions)

    def maps_positions(self, group):
        """Say whether the runner maps the group's positions to slots that a kernel uses."""
        spec = layer(self.specs[group])
        return isinstance(spec, AttentionSpec) and not isinstance(spec, CrossAttentionSpec)

    def unmapped(self, group, got):
        """Check the slots of a group that the runner leaves out: none, and only a ring is left out."""
        if not isinstance(layer(self.specs[group]), CircularBufferSpec):
            return "the runner maps no position", "invariants has a column for each"
        return None if set(got) == {PAD} else (f"slots are {got}", "a ring's layers map its positions")

    def slot(self, group, row, position, rank):
        """Say where a position lies: block of its column, and offset; PAD on other ranks.

        A column outside the row is said in words, which no slot equals.
        """
        spec = dealt_spec(layer(self.held(group)), runner=self.runner, release=self.release)
        if spec.owner(self.deployment, position) != rank:
            return PAD
        access = Access(position=position)
        at = column(self.deployment, self.specs[group], access, runner=self.runner, release=self.release)
        if not 0 <= at < len(row):
            return f"column {at} of a row of {len(row)}"
        _, offset = spec.place_on_rank(self.deployment, position)
        if spec.expansion > 1:
            offset %= spec.kernel_block_size
        return int(row[at]) * spec.kernel_block_size + offset

    def slots(self, group, rows, spans, rank, got):
        """Check the slots of a step, which maps the positions of each span through the row beside it."""
        wanted = [
            (p, self.slot(group, row, p, rank)) for row, span in zip(rows, spans, strict=True) for p in span
        ]
        for (position, slot), mapped in zip(wanted, got, strict=True):
            if mapped != slot:
                return (
                    f"slot of position {position} on rank {rank} is {mapped}",
                    f"invariants.column leads to {slot}",
                )
        return None

    @staticmethod
    def step(start, tokens):
        """The request of one step, as far as what its kernels read goes."""
        return Request(num_tokens=start + tokens, num_computed_tokens=start)
