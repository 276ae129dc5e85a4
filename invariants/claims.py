"""The invariants themselves: what must hold for every legal deployment, spec and reachable request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from invariants.arithmetic import all_of
from invariants.cases import Case
from invariants.deployment import Runner
from invariants.releases import Release, column, entries, row_width
from invariants.specs import Spec

__all__ = ["INVARIANTS", "Invariant"]


@dataclass(frozen=True, slots=True)
class Invariant:
    """One claim about a case.

    `given` narrows the case to what the claim speaks about (which accesses a kernel makes); `runners`
    says for which runners a type of spec is covered.
    """

    name: str
    sentence: str
    holds: Callable[[Case, Release, Runner], bool]
    runners: Callable[[Spec], tuple[Runner, ...]]
    given: Callable[[Case], bool] | None = None


def _row_fits(case: Case, release: Release, runner: Runner) -> bool:
    needed = entries(case.deployment, case.spec, case.request, release=release)
    return needed <= row_width(case.deployment, case.spec, runner=runner, release=release)


def _column_fits(case: Case, release: Release, runner: Runner) -> bool:
    read = column(case.deployment, case.spec, case.access, runner=runner, release=release)
    width = row_width(case.deployment, case.spec, runner=runner, release=release)
    return all_of(read >= 0, read < width)


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "row-fits",
        "the entries that the scheduler hands over fit the worker's row",
        _row_fits,
        lambda spec: spec.runners,
    ),
    Invariant(
        "column-fits",
        "every column that a kernel computes from a position or a state lies inside the row",
        _column_fits,
        lambda spec: tuple(r for r in spec.runners if r in spec.column_runners),
        given=lambda case: case.spec.readable(case.deployment, case.request, case.access),
    ),
)
"""The invariants that are checked, in the order in which they are printed."""
