"""What a claim is: the sentence, what it quantifies over, what is given, and the numbers that must agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from invariants.assumptions import Assumption, assumptions_for
from invariants.cases import Case
from invariants.deployment import Runner
from invariants.releases import Release
from invariants.specs import Spec

__all__ = ["Given", "Invariant", "Side"]

_Holds = Callable[[Case, Release, Runner], bool]


class Side(NamedTuple):
    """One number of a claim: whose it is, what it counts, and its value."""

    who: str
    what: str
    value: int


@dataclass(frozen=True, slots=True)
class Given:
    """What narrows a claim to the cases that it speaks of; unlike an assumption it is no rule."""

    name: str
    sentence: str
    holds: _Holds


@dataclass(frozen=True, slots=True)
class Invariant:
    """One claim about every case of a kind.

    Attributes:
        name: the family, as in `--invariant`.
        sentence: what the claim says.
        holds: the claim itself.
        runners: the runners on which it is made for a type of spec; none if it says nothing of the type.
        sides: the numbers that clash when it fails, in the order in which they are shown.
        clash: what the clash means, in one sentence, from a concrete case and the values of the sides.
        part: which reader, step or consumer it is about, where the family has several.
        parts: dataclasses of parameters that it adds to those of every case.
        givens: what narrows it.
        margin: how many units are to spare; the claim fails exactly where this is negative. None where
            nothing is counted.
        waives: names of rules that it does not take as given.
        nearest: which counterexamples are shown first, if there are any such: those closest to what happens.
    """

    name: str
    sentence: str
    holds: _Holds
    runners: Callable[[Spec], tuple[Runner, ...]]
    sides: Callable[[Case, Release, Runner], tuple[Side, ...]]
    clash: Callable[[Case, tuple[int, ...]], str]
    part: str = ""
    parts: tuple[type, ...] = ()
    givens: tuple[Given, ...] = ()
    margin: Callable[[Case, Release, Runner], int] | None = None
    waives: frozenset[str] = frozenset()
    nearest: tuple[_Holds, ...] = ()

    @property
    def label(self) -> str:
        """The claim's full name: the family and, where it has several members, which."""
        return f"{self.name}/{self.part}" if self.part else self.name

    def assumptions(self, spec: Spec, release: Release) -> tuple[Assumption, ...]:
        """Return the named rules that the claim takes as given for a type of spec."""
        return tuple(a for a in assumptions_for(spec, release) if a.name not in self.waives)

    def broken(self, case: Case, release: Release, runner: Runner) -> tuple[str, ...]:
        """Return the names of what is assumed or given and does not hold in a concrete case."""
        assumed = (a.name for a in self.assumptions(case.spec, release) if not a.holds(case, release))
        given = (g.name for g in self.givens if not g.holds(case, release, runner))
        return (*assumed, *given)
