"""One row over time: a transition system of the request that owns it; every step keeps the row sound.

`RowState` is what scheduler and worker remember between two steps, `Move` what one step is given, and each
of `STEPS` says when it may be taken and what it leaves. `row_invariant` holds at the start and after every
step; each step is a claim of its own, `append-in-step/<step>`. Lists and counts are in manager blocks here.

*scheduler* is `v1/core/sched/scheduler.py` of vLLM 0.33, *table* its `v1/worker/gpu/block_table.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from invariants.arithmetic import all_of, any_of, maximum, negation, where
from invariants.cases import REPRESENTATIVE_TYPES, Case
from invariants.claim import Given, Invariant, Side
from invariants.deployment import Deployment, Runner
from invariants.parameters import size, switch
from invariants.releases import Gap, Release, blocks, column, max_num_tokens, row_spec
from invariants.rows import negative, outside, plural, width_of
from invariants.specs import (
    FullAttentionSpec,
    HiSparseResidentSpec,
    MambaAlignSpec,
    MambaAllSpec,
    MambaSpec,
    Spec,
)

__all__ = ["INITIAL", "LIFECYCLE", "STEPS", "Move", "Now", "RowState", "Step", "now", "row_invariant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """One row and the request that owns it, between two steps."""

    known_tokens: int = size(
        "tokens of the request, prompt and outputs so far; 0 if the row is free", default=0
    )
    computed_tokens: int = size("of these, how many have their keys and values in the cache", default=0)
    listed_blocks: int = size("blocks in the scheduler's list", default=0)
    counted_blocks: int = size("blocks that the worker counts in the row", default=0)
    running: bool = switch("whether the request holds blocks and the row", default=True)
    resumable: bool = switch(
        "whether the request is a session to which chunks can be appended", default=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What one step is given from outside."""

    prompt_tokens: int = size("tokens of the prompt that is admitted", minimum=1, usual=1, default=1)
    hit_tokens: int = size("prompt tokens found in the prefix cache", usual=0, default=0)
    external_tokens: int = size("prompt tokens that a KV connector brings", usual=0, default=0)
    accepted_tokens: int = size("draft tokens that the step accepts", usual=0, default=0)
    chunk_tokens: int = size(
        "tokens of the chunk that is appended to a session", minimum=1, usual=2, default=2
    )


_WAIVED = frozenset({"request-within-context"})
"""The rule that the claims of this module show instead of assuming it."""
INITIAL = RowState(running=False)
"""A row that no request has owned yet."""


@dataclass(frozen=True, slots=True)
class Now:
    """A case as a step sees it."""

    case: Case
    release: Release
    runner: Runner

    @property
    def deployment(self) -> Deployment:
        """The engine's configuration."""
        return self.case.deployment

    @property
    def state(self) -> RowState:
        """The row before the step."""
        return self.case.part(RowState)

    @property
    def move(self) -> Move:
        """What the step is given."""
        return self.case.part(Move)

    @property
    def start(self) -> int:
        """Tokens computed when the step's forward pass starts."""
        return self.case.request.num_computed_tokens

    @property
    def end(self) -> int:
        """Tokens computed when it ends, drafts included."""
        return self.case.request.num_tokens

    @property
    def longest(self) -> int:
        """The most tokens that a step of a request may have computed and scheduled."""
        return max_num_tokens(self.deployment, release=self.release)

    @property
    def needed(self) -> int:
        """Blocks that the scheduler's list must have for this step."""
        return blocks(self.deployment, self.case.spec, self.case.request, release=self.release)

    @property
    def expansion(self) -> int:
        """Entries that the row spends on one manager block."""
        return row_spec(self.case.spec, release=self.release).expansion

    def known_after(self, known: int) -> int:
        """Return the request's tokens after the pass, which samples once all that is known is computed."""
        return where(self.end == known, known + self.deployment.num_sampled_tokens, known)


def now(case: Case, release: Release, runner: Runner) -> Now:
    """Return a case as a step sees it."""
    return Now(case, release, runner)


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of step: when it may be taken and what it leaves.

    `runs` says whether a forward pass reads the row in it, `given` which parts of the `Move` it looks at.
    """

    name: str
    sentence: str
    source: str
    allowed: Callable[[Now], bool]
    after: Callable[[Now], RowState]
    runs: bool = True
    given: tuple[str, ...] = ()


def _handed_over(at: Now, known: int, computed: int) -> RowState:
    """The worker gets the whole list and overwrites the row from column 0. Source: table:124-146."""
    listed = maximum(at.state.listed_blocks, at.needed)
    return dataclasses.replace(
        at.state, known_tokens=known, computed_tokens=computed, listed_blocks=listed,
        counted_blocks=listed, running=True,
    )  # fmt: skip


def _appended(at: Now, known: int, computed: int) -> RowState:
    """The worker gets what the list grew by and appends it at its own count. Source: table:124-146."""
    before = at.state
    listed = maximum(before.listed_blocks, at.needed)
    counted = before.counted_blocks + (listed - before.listed_blocks)
    return dataclasses.replace(
        before, known_tokens=known, computed_tokens=computed, listed_blocks=listed, counted_blocks=counted
    )


def _may_admit(at: Now) -> bool:
    prompt, move = at.move.prompt_tokens, at.move
    return all_of(
        negation(at.state.running),
        prompt <= at.longest,
        at.start == move.hit_tokens + move.external_tokens,
        at.end <= prompt,
    )


def _admit(at: Now) -> RowState:
    known = at.known_after(at.move.prompt_tokens)
    return dataclasses.replace(
        _handed_over(at, known, at.end), listed_blocks=at.needed, counted_blocks=at.needed
    )


def _continues(at: Now) -> bool:
    """A request of the running batch goes on where it is, and the running loop clips it."""
    state = at.state
    return all_of(state.running, at.start == state.computed_tokens, at.end <= at.longest)


def _decodes(at: Now) -> bool:
    return all_of(
        _continues(at),
        at.deployment.num_sampled_tokens == 1,
        at.state.computed_tokens + 1 == at.state.known_tokens,
    )


def _may_speculate(at: Now) -> bool:
    drafts = at.end - at.state.known_tokens
    return all_of(
        _decodes(at),
        drafts >= 1,
        drafts <= at.deployment.num_speculative_tokens,
        at.move.accepted_tokens <= drafts,
    )


def _speculate(at: Now) -> RowState:
    accepted = at.move.accepted_tokens
    return _appended(at, at.state.known_tokens + accepted + 1, at.start + accepted + 1)


def _unbounded(at: Now) -> bool:
    """Return whether the request is a session whose length nobody checks."""
    return all_of(at.state.resumable, at.release.leaves_open(Gap.SESSION_LENGTH, at.runner))


def _may_resume(at: Now) -> bool:
    state, drafts = at.state, at.deployment.num_speculative_tokens
    padded = all_of(
        at.deployment.num_sampled_tokens == 1,
        at.start + 1 == state.known_tokens,
        at.end == state.known_tokens + drafts,
        at.end <= at.longest,
    )
    return all_of(
        negation(state.running),
        state.known_tokens >= 1,
        any_of(state.known_tokens <= at.longest, _unbounded(at)),
        at.start == at.move.hit_tokens + at.move.external_tokens,
        any_of(at.end <= state.known_tokens, padded),
        at.move.accepted_tokens <= maximum(at.end - state.known_tokens, 0),
    )


def _resume(at: Now) -> RowState:
    """What a padded decode computes beyond the request's tokens counts only as far as it is accepted."""
    known, accepted = at.state.known_tokens, at.move.accepted_tokens
    is_padded = at.end > known
    return _handed_over(
        at,
        where(is_padded, known + accepted + 1, at.known_after(known)),
        where(is_padded, at.start + accepted + 1, at.end),
    )


def _session_tokens(at: Now) -> int:
    """The last sampled token is dropped, then the chunk follows. Source: scheduler:1879-1919."""
    return at.state.known_tokens - 1 + at.move.chunk_tokens


def _may_append_chunk(at: Now) -> bool:
    state, known = at.state, _session_tokens(at)
    return all_of(
        state.running,
        state.resumable,
        at.deployment.num_sampled_tokens == 1,
        state.computed_tokens + 1 == state.known_tokens,
        at.move.chunk_tokens <= at.longest,
        any_of(known <= at.longest, _unbounded(at)),
        at.start == state.computed_tokens,
        at.end <= known,
    )


def _vacated(at: Now, known: int) -> RowState:
    """The blocks go back to the pool; the row keeps its old entries and count until it is overwritten."""
    return dataclasses.replace(
        at.state, known_tokens=known, computed_tokens=0, listed_blocks=0, running=False
    )


STEPS: tuple[Step, ...] = (
    Step(
        "admit",
        "a request is admitted, with or without a prefix hit and external tokens, and handed over whole",
        "scheduler:1306-1345, :1566",
        _may_admit,
        _admit,
        given=("prompt_tokens", "hit_tokens", "external_tokens"),
    ),
    Step(
        "reuse",
        "a request is admitted into a row that still has another's entries",
        "table:124-146 (overwrite)",
        lambda at: all_of(_may_admit(at), at.state.counted_blocks >= 1),
        _admit,
        given=("prompt_tokens", "hit_tokens", "external_tokens"),
    ),
    Step(
        "prefill-chunk",
        "a running request computes a further chunk of what it knows",
        "scheduler:840-858",
        lambda at: all_of(_continues(at), at.end <= at.state.known_tokens),
        lambda at: _appended(at, at.known_after(at.state.known_tokens), at.end),
    ),
    Step(
        "decode",
        "a running request computes its last token and samples the next",
        "scheduler:840-858",
        lambda at: all_of(_decodes(at), at.end == at.state.known_tokens),
        lambda at: _appended(at, at.state.known_tokens + 1, at.end),
    ),
    Step(
        "speculate",
        "a running request computes draft tokens too, and some of them are accepted",
        "scheduler:840-858; rejected tokens give back no blocks",
        _may_speculate,
        _speculate,
        given=("accepted_tokens",),
    ),
    Step(
        "preempt",
        "a running request gives its blocks back and waits",
        "scheduler:1799",
        lambda at: at.state.running,
        lambda at: _vacated(at, at.state.known_tokens),
        runs=False,
    ),
    Step(
        "resume",
        "a preempted request comes back with its outputs and overwrites its row",
        "scheduler:1306-1345 (no clip to max_model_len), :1642-1644",
        _may_resume,
        _resume,
        given=("hit_tokens", "external_tokens", "accepted_tokens"),
    ),
    Step(
        "session-chunk",
        "a session's next chunk is appended to what it has, and the session goes on",
        "scheduler:1879-1919, :1306 (no clip to max_model_len)",
        _may_append_chunk,
        lambda at: _handed_over(at, at.known_after(_session_tokens(at)), at.end),
        given=("chunk_tokens",),
    ),
    Step(
        "finish",
        "a request ends and frees its row",
        "scheduler:2964",
        lambda at: at.state.running,
        lambda at: _vacated(at, 0),
        runs=False,
    ),
)
"""Every kind of step, in the order in which a request meets them."""


def row_invariant(at: Now, state: RowState) -> bool:
    """Return whether a state between steps is sound.

    The worker counts what the scheduler lists and it fits the row; no more is computed than is known; what is
    known stays inside max_model_len (a session's tokens only where their number is checked); and a request
    that does not run holds no blocks.
    """
    width, blocks = width_of(at.case, at.release, at.runner), at.expansion
    return all_of(
        any_of(negation(state.running), state.counted_blocks == state.listed_blocks),
        any_of(state.running, state.listed_blocks == 0),
        state.counted_blocks * blocks <= width,
        state.computed_tokens <= state.known_tokens,
        any_of(state.known_tokens <= at.deployment.max_model_len, _unbounded(at)),
    )


_BEFORE = Given(
    "row-invariant",
    "the row is sound before the step: count and list agree and fit, and no token is beyond max_model_len "
    "(a session's only where the length of its chunks is checked)",
    lambda case, release, runner: row_invariant(now(case, release, runner), case.part(RowState)),
)


def _keeps(step: Step, at: Now) -> bool:
    """Return whether a step leaves the row sound.

    One that runs also starts no further than tokens are computed, counts no more as computed than it ran, and
    leaves a list that its tokens fit.
    """
    after = step.after(at)
    if not step.runs:
        return row_invariant(at, after)
    there = where(at.state.running, at.state.computed_tokens, at.move.hit_tokens + at.move.external_tokens)
    return all_of(
        row_invariant(at, after),
        after.listed_blocks >= blocks(at.deployment, at.case.spec, at.case.request, release=at.release),
        at.start <= there,
        after.computed_tokens <= at.end,
    )


def _sides(step: Step, at: Now) -> tuple[Side, ...]:
    after, blocks = step.after(at), at.expansion
    needed = (Side("scheduler", "entries needed", at.needed * blocks),) if step.runs else ()
    return (
        Side("scheduler", "entries after", after.listed_blocks * blocks),
        Side("worker", "count after", after.counted_blocks * blocks),
        Side("worker", "row width", width_of(at.case, at.release, at.runner)),
        Side("scheduler", "tokens after", after.known_tokens),
        Side("worker", "computed after", after.computed_tokens),
        *needed,
    )


def _spare(step: Step, at: Now) -> int:
    return width_of(at.case, at.release, at.runner) - step.after(at).counted_blocks * at.expansion


def _clash(step: Step, case: Case, values: tuple[int, ...]) -> str:
    listed, counted, width, known, computed, *needed = values
    longest = case.deployment.max_model_len
    if counted > width:
        beyond = f"{counted - width} in the next request's row"
        return f"{step.name} leaves {counted} entries in a row of {width}: {beyond}"
    if needed and listed < needed[0]:
        return f"{step.name} leaves a list of {listed} where the step's tokens need {needed[0]}"
    if computed > min(known, case.request.num_tokens):
        return (
            f"{step.name} leaves {computed} computed tokens of {known}, {case.request.num_tokens} of them run"
        )
    if known > longest:
        return f"{step.name} leaves {plural(known, 'token')} where max_model_len is {longest}"
    return f"{step.name} leaves {counted} entries in the row for a list of {listed}"


def _runners(spec: Spec) -> tuple[Runner, ...]:
    if type(spec) not in REPRESENTATIVE_TYPES:
        return ()
    return tuple(runner for runner in spec.runners if runner in spec.column_runners)


def _no_further_than(beyond: int) -> Callable[[Case, Release, Runner], bool]:
    """Prefer a row whose request is not, or hardly, beyond max_model_len before the step."""
    return lambda case, _release, _runner: (
        case.part(RowState).known_tokens <= case.deployment.max_model_len + beyond
    )


_NEAREST = (_no_further_than(0), _no_further_than(1))


def _givens(step: Step) -> tuple[Given, ...]:
    return (
        _BEFORE,
        Given(
            "step-allowed",
            "the engine may take the step there",
            lambda case, release, runner: step.allowed(now(case, release, runner)),
        ),
    )


def _claim(step: Step) -> Invariant:
    return Invariant(
        "append-in-step",
        f"{step.sentence} [{step.source}]",
        lambda case, release, runner: _keeps(step, now(case, release, runner)),
        _runners,
        sides=lambda case, release, runner: _sides(step, now(case, release, runner)),
        clash=lambda case, values: _clash(step, case, values),
        part=step.name,
        parts=(RowState, Move),
        givens=_givens(step),
        margin=lambda case, release, runner: _spare(step, now(case, release, runner)),
        waives=_WAIVED,
        nearest=_NEAREST,
    )


_START = Invariant(
    "append-in-step",
    "a row that no request has owned yet is sound",
    lambda case, release, runner: row_invariant(now(case, release, runner), INITIAL),
    _runners,
    sides=lambda case, release, runner: (Side("worker", "row width", width_of(case, release, runner)),),
    clash=lambda _case, values: negative(values[0]),  # nothing else can be wrong with an empty row
    part="start",
    parts=(RowState, Move),
    waives=_WAIVED,
)

_BY_POSITION = (FullAttentionSpec, HiSparseResidentSpec, MambaAlignSpec, MambaAllSpec)
"""The types whose columns grow with the position, one of each that shares its formulas."""


def _written(case: Case) -> bool:
    """Return whether the step computes the position, in a state that the row has."""
    request, position = case.request, case.access.position
    states = case.spec.num_speculative_blocks if isinstance(case.spec, MambaSpec) else 0
    return all_of(
        position >= request.num_computed_tokens, position < request.num_tokens, case.access.state <= states
    )


def _read(case: Case, release: Release, runner: Runner) -> int:
    return column(case.deployment, case.spec, case.access, runner=runner, release=release)


def _reads(step: Step) -> Invariant:
    """Make the claim that what a step writes lands inside the row."""

    def inside(case: Case, release: Release, runner: Runner) -> bool:
        at = _read(case, release, runner)
        return all_of(at >= 0, at < width_of(case, release, runner))

    return Invariant(
        "column-fits",
        f"{step.sentence}: every position that it computes lies inside the row",
        inside,
        lambda spec: spec.runners if type(spec) in _BY_POSITION else (),
        sides=lambda case, release, runner: (
            Side("kernel", "column", _read(case, release, runner)),
            Side("worker", "row width", width_of(case, release, runner)),
        ),
        clash=lambda case, values: f"position {case.access.position}: {outside(*values)}",
        part=step.name,
        parts=(RowState, Move),
        givens=(
            *_givens(step),
            Given(
                "written-by-step",
                "the step computes the position (for recurrent state: in one of the states that the row has)",
                lambda case, _release, _runner: _written(case),
            ),
        ),
        margin=lambda case, release, runner: (
            width_of(case, release, runner) - _read(case, release, runner) - 1
        ),
        waives=_WAIVED,
        nearest=_NEAREST,
    )


LIFECYCLE: tuple[Invariant, ...] = (
    _START,
    *(_claim(step) for step in STEPS),
    *(_reads(step) for step in STEPS if step.runs and step.name != "reuse"),  # it reads what `admit` reads
)
"""The start and every step, each a claim of its own, and what the steps that run write."""
