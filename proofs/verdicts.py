"""What the checker says: obligations, verdicts, counterexamples and the exit code they lead to."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from invariants import (
    COLUMN_FITS,
    INVARIANTS,
    SPEC_KINDS,
    Invariant,
    Parameter,
    Release,
    Runner,
    Spec,
    build_case,
    parameters_for,
)

__all__ = [
    "EXIT_CODES",
    "EXIT_DRIFT",
    "EXIT_INTERNAL",
    "EXIT_USAGE",
    "SOLVERS",
    "Counterexample",
    "Obligation",
    "Outcome",
    "RowPicture",
    "Verdict",
    "exit_code",
    "not_asked",
    "obligations",
    "spec_of_kind",
]


class Verdict(enum.Enum):
    """The outcome of one obligation."""

    PROVED = "PROVED"
    """No case within the assumptions breaks the claim, whatever the sizes."""
    REFUTED = "REFUTED"
    """A case breaks the claim; it was found by the solver and replayed in plain Python."""
    VACUOUS = "VACUOUS"
    """The assumptions contradict each other, so the claim would say nothing."""
    UNKNOWN = "UNKNOWN"
    """The solver gave up, or ran out of its budget or its time."""
    ERROR = "ERROR"
    """The checker contradicted itself or crashed; nothing can be said."""
    SKIPPED = "SKIPPED"
    """Not asked: the pinned values leave no legal case of this spec."""


SOLVERS = ("z3", "cvc5", "both")
"""Whose proof counts."""
EXIT_USAGE = 2
EXIT_INTERNAL = 5
EXIT_DRIFT = 6
_SEVERITY = (
    (Verdict.ERROR, EXIT_INTERNAL),
    (Verdict.REFUTED, 1),
    (Verdict.VACUOUS, 4),
    (Verdict.UNKNOWN, 3),
)
EXIT_CODES: Mapping[int, str] = {
    0: "every obligation that was asked is PROVED",
    1: "at least one is REFUTED",
    EXIT_USAGE: "wrong usage, or nothing was selected",
    3: "at least one is UNKNOWN, or --installed SKIPPED a spec class",
    4: "at least one is VACUOUS",
    EXIT_INTERNAL: "internal error",
    EXIT_DRIFT: "all PROVED, but a claim's cost left its ceiling (--ceilings)",
    130: "interrupted by Ctrl-C (143: SIGTERM, 141: the output's reader left); the rest is undecided",
}
"""Exit codes and their meaning; of several, the first of 5, 1, 4, 3 that applies."""


@dataclass(frozen=True, slots=True)
class Obligation:
    """One claim to prove: an invariant, for one type of spec, on one runner of one release."""

    kind: str
    invariant: Invariant
    runner: Runner
    release: Release

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters that the claim quantifies over, without those the release fixes."""
        every = parameters_for(self.kind, self.invariant.parts)
        return tuple(p for p in every if p.name not in self.release.constants)

    @property
    def label(self) -> str:
        """The claim's full name, which no other claim of the same kind has."""
        return self.invariant.label


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a row's life: its name, what it was given, and the row before and after it."""

    name: str
    given: Mapping[str, int | bool]
    before: Mapping[str, int | bool]
    after: Mapping[str, int | bool]


@dataclass(frozen=True, slots=True)
class RowPicture:
    """What a broken claim does to one row.

    Attributes:
        width: how many entries the row holds.
        wanted: how many entries are written to it, or the column that is read.
        kind: which of the two `wanted` is.
    """

    width: int
    wanted: int
    kind: Literal["entries", "column"]


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A case that breaks a claim.

    Attributes:
        values: every parameter's value; `build_case` builds the case from them.
        shown: the names among them that take part in the arithmetic, in declared order.
        chain: (side, quantity, arithmetic) lines that lead from the sizes to the two sides.
        summary: one sentence with the numbers that clash.
        smallest: whether each value was shown to be the smallest that fails, in the order of the
            parameters, after the usual values were kept where the fault remains.
        row: what the clash does to a row; None where it is about none.
        trace: for a claim about a step, how a row comes from its start to the state that the step breaks;
            the last one is that step. Empty where there is nothing of the kind.
        reached: what a bounded search said of whether such a state is reached at all; empty if none was made.
    """

    values: Mapping[str, int | bool]
    shown: tuple[str, ...]
    chain: tuple[tuple[str, str, str], ...]
    summary: str
    smallest: bool
    row: RowPicture | None = None
    trace: tuple[TraceStep, ...] = ()
    reached: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one obligation.

    `used` and `unused` are names of assumptions, from the solver's unsatisfiable core; they are known
    only of a proof. `witness` is a case that meets every assumption and comes as close to breaking the claim
    as `slack` says: 0 units if a row that is one entry narrower would not do. `slack` is None where nothing
    is counted or the solver did not tell. `second` says by what route a second solver proved the claim too.
    """

    verdict: Verdict
    detail: str = ""
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    seconds: float = 0.0
    rlimit: int = 0
    counterexample: Counterexample | None = field(default=None)
    witness: Mapping[str, int | bool] | None = None
    slack: int | None = None
    second: str = ""


def obligations(
    release: Release,
    *,
    kinds: Iterable[str] = SPEC_KINDS,
    invariants: Iterable[Invariant] = INVARIANTS,
    runners: Iterable[Runner] = tuple(Runner),
) -> tuple[Obligation, ...]:
    """Return the obligations of a release, spec by spec."""
    wanted, claims, asked = set(kinds), tuple(invariants), set(runners)
    return tuple(
        Obligation(kind, invariant, runner, release)
        for kind in SPEC_KINDS
        if kind in wanted and kind not in release.absent
        for invariant in claims
        for runner in invariant.runners(spec_of_kind(kind))
        if runner in asked
    )


def not_asked(
    release: Release,
    kinds: Iterable[str],
    invariants: Iterable[Invariant],
    runners: Iterable[Runner],
) -> tuple[str, ...]:
    """Return a line for each claim that a selection leaves out, with the reason.

    A claim that says nothing of a type of spec leaves nothing out; only `column-fits` itself is made of all.
    """
    wanted, asked = set(kinds), set(runners)
    claims = [i for i in invariants if i is COLUMN_FITS]
    lines = []
    for kind in SPEC_KINDS:
        if kind not in wanted or kind in release.absent:
            continue
        spec = spec_of_kind(kind)
        for invariant in claims:
            covered = invariant.runners(spec)
            left_out = [r.value for r in spec.runners if r in asked and r not in covered]
            if left_out:
                lines.append(f"{kind} {invariant.name} on {' and '.join(left_out)}: {spec.unread}")
    return tuple(lines)


def spec_of_kind(kind: str) -> Spec:
    """Return any spec of the kind: which runners cover it depends on its type alone."""
    return build_case(kind, {p.name: p.minimum for p in parameters_for(kind) if not p.is_switch}).spec


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """Return the exit code of a run with these verdicts; a run that asked nothing is wrong usage."""
    seen = set(verdicts)
    for verdict, code in _SEVERITY:
        if verdict in seen:
            return code
    return 0 if Verdict.PROVED in seen else EXIT_USAGE
