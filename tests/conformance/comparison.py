"""Compares each list that the engine holds with what `invariants` says of it, and keeps count.

A `Watch` sits in front of one `allocate_slots` of the engine. After each call it asks `invariants` how long
every group's list is now, and which of its entries a kernel may still read. What differs is a `Mismatch`,
whose message names the engine's function, the formula and the sizes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace

import vllm_engine as engine
from expected_rows import layer

from invariants import (
    Access,
    AttentionSpec,
    Gap,
    MambaAlignSpec,
    MambaAllSpec,
    MambaNoneSpec,
    Request,
    RSWASpec,
    Runner,
    entries_needed,
    max_num_tokens,
    release,
)
from invariants.releases import blocks, row_spec, row_width


class Mismatch(AssertionError):
    """The engine and `invariants` differ."""


@dataclass
class Record:
    """What was seen of one spec type."""

    setups: int = 0
    refused: dict = field(default_factory=dict)
    steps: int = 0
    largest: int = 0
    bound: int = 0
    gap: int | None = None
    reached: int = 0
    rows: int = 0
    slots: int = 0
    v2_rows: int = 0
    v2_slots: int = 0
    narrow: int = 0
    narrow_first: str = ""
    beyond: int = 0
    beyond_first: str = ""


class Tally:
    """Records of all spec types, in the order in which they were run."""

    def __init__(self):
        self.of = {}

    def record(self, kind):
        return self.of.setdefault(kind, Record())


class Watch:
    """Checks one manager's lists after each call of its `allocate_slots`."""

    def __init__(self, setup, manager, tally):
        self.setup, self.manager = setup, manager
        self.release = release(setup.release)
        self.record = tally.record(setup.kind)
        self.bounds = [_blocks_needed(setup.deployment, spec, self.release) for spec in setup.specs]
        self.largest = 0
        self.sessions = set()
        """Names of the requests that are resumable sessions."""
        self._inner = manager.allocate_slots
        self._signature = inspect.signature(self._inner)
        manager.allocate_slots = self.allocate_slots

    def allocate_slots(self, *given, **named):
        """Call the engine, and compare what it leaves."""
        bound = self._signature.bind(*given, **named)
        bound.apply_defaults()
        asked = bound.arguments
        request = asked["request"]
        computed = (
            request.num_computed_tokens
            + asked["num_new_computed_tokens"]
            + asked["num_external_computed_tokens"]
        )
        before = [len(group) for group in engine.lists_of(self.manager, request.request_id)]
        result = self._inner(*given, **named)
        if result is not None:
            step = Request(
                num_tokens=computed + asked["num_new_tokens"],
                num_computed_tokens=computed,
                num_encoder_tokens=asked["num_encoder_tokens"],
            )
            self._compare(request.request_id, before, step, asked["num_lookahead_tokens"])
        return result

    def _compare(self, name, before, step, lookahead):
        deployment = replace(self.setup.deployment, num_lookahead_tokens=lookahead)
        lists = engine.lists_of(self.manager, name)
        if self._outgrew(name, step):
            self._note_session(step, lists)
            return
        for group, (spec, held) in enumerate(zip(self.setup.specs, lists, strict=True)):
            expected = max(before[group], blocks(deployment, spec, step, release=self.release))
            if len(held) != expected:
                self._fail(group, step, lookahead, f"holds {_count(len(held))}", f"says {expected}")
            self._check_bound(group, step, len(held))
            self._check_nulls(deployment, group, step, held)
        tested = len(self.setup.specs) - 1
        self.record.steps += 1
        self._note_largest(len(lists[tested]), tested)

    def _outgrew(self, name, step):
        """Say whether the request is a session that its release lets grow past what `invariants` assumes."""
        longest = max_num_tokens(self.setup.deployment, release=self.release)
        open_gap = self.release.leaves_open(Gap.SESSION_LENGTH, Runner.V2)
        return name in self.sessions and step.num_tokens > longest and open_gap

    def _note_session(self, step, lists):
        """Keep the first step of a session whose list is longer than a worker's row."""
        spec = row_spec(self.setup.specs[-1], release=self.release)
        held = len(lists[-1]) * spec.expansion
        for runner in layer(spec).runners:
            width = row_width(self.setup.deployment, spec, runner=runner, release=self.release)
            if held > width:
                self.record.beyond += 1
                self.record.beyond_first = self.record.beyond_first or (
                    f"{held} entries at {step.num_tokens} tokens, {runner.value} row {width}; "
                    f"{self.setup.sizes()}"
                )

    def _check_bound(self, group, step, held):
        """No list is longer than that of the largest request."""
        if held > self.bounds[group]:
            self._fail(
                group, step, self.setup.deployment.num_lookahead_tokens,
                f"holds {_count(held)}", f"says {self.bounds[group]} at most", formula="entries_needed",
            )  # fmt: skip

    def _check_nulls(self, deployment, group, step, held):
        """An entry that a kernel reads in this step is a block and not the null block."""
        spec = row_spec(self.setup.specs[group], release=self.release)
        for position, column in _read_columns(deployment, spec, step):
            if column < len(held) and held[column][1]:
                self._fail(
                    group, step, deployment.num_lookahead_tokens,
                    f"has the null block in entry {column}", f"has position {position} read",
                    formula=f"{type(layer(spec)).__name__}.readable",
                )  # fmt: skip

    def _note_largest(self, held, group):
        """Keep the list that came nearest to its bound, and of those the longest."""
        record, gap = self.record, self.bounds[group] - held
        if record.gap is None or (gap, -held) < (record.gap, -record.largest):
            record.gap, record.largest, record.bound = gap, held, self.bounds[group]
        self.largest = max(self.largest, held)

    def close(self):
        """Count whether this setup's bound was reached."""
        self.record.setups += 1
        self.record.reached += self.largest == self.bounds[-1]

    def _fail(self, group, step, lookahead, engine_says, we_say, formula=None):
        spec = layer(self.setup.specs[group])
        formula = formula or f"{_definer(spec, 'entries')}.entries"
        raise Mismatch(
            f"vLLM {engine.version()}: {engine.allocator_of(self.manager, group)} {engine_says} of group "
            f"{group}, where invariants.{formula} {we_say}: num_tokens {step.num_tokens}, "
            f"num_computed_tokens {step.num_computed_tokens}, num_lookahead_tokens {lookahead}, "
            f"num_encoder_tokens {step.num_encoder_tokens}, {self.setup.sizes()}"
        )


def _count(number):
    return f"{number} block{'' if number == 1 else 's'}"


def _definer(spec, name):
    """The class in which a method stands."""
    return next(owner.__name__ for owner in type(spec).__mro__ if name in vars(owner))


def _blocks_needed(deployment, spec, known):
    """The bound in manager blocks."""
    return entries_needed(deployment, spec, release=known) // row_spec(spec, release=known).expansion


def _read_columns(deployment, spec, step):
    """Yield (position, manager block) that a kernel surely reads or writes in the step.

    Where `readable` is wider than what the engine keeps (the gap of a reference window, states of earlier
    blocks), the step's own positions and running states are asked instead.
    """
    inner = layer(spec)
    if isinstance(inner, MambaNoneSpec):
        yield from ((state, state) for state in range(inner.num_speculative_blocks + 1))
    elif isinstance(inner, MambaAlignSpec | MambaAllSpec):
        for state in range(inner.num_speculative_blocks + 1):
            access = Access(position=step.num_tokens - 1, state=state)
            yield access.position, spec.column(deployment, access)
    elif isinstance(inner, AttentionSpec) and inner.kind != "cross-attention":
        first = step.num_computed_tokens if isinstance(inner, RSWASpec) else 0
        for position in range(first, step.slot_tokens(deployment)):
            access = Access(position=position)
            if spec.readable(deployment, step, access):
                yield position, spec.column(deployment, access) // spec.expansion
