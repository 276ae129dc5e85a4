"""What one public fault is: its sizes, the faulty claim, the repaired one, and the numbers of its thread.

A claim is built by a plain function of the sizes, written with `invariants.arithmetic`, so that the numbers
of the thread run it as integers and the solver runs it as terms. Nothing here needs the solver.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from invariants import Release, assumptions_for, build_case, parameters_for
from invariants.arithmetic import all_of
from invariants.parameters import Parameter, parameters_of

__all__ = [
    "PAD",
    "Claim",
    "Domain",
    "Fault",
    "Kind",
    "Report",
    "at_most",
    "below",
    "differ",
    "engine",
    "equal",
    "sizes_of",
]

PAD = -1
"""What an engine's mapping holds where there is no slot."""

_BROKEN = {"<=": ">", "<": ">=", "==": "!=", "!=": "=="}
"""How a relation reads when it does not hold."""


class Kind(enum.Enum):
    """The classes of fault that the catalogue is sorted by."""

    CAPACITY = "capacity"
    """A row or buffer is made for less than is handed over."""
    COLUMN = "column"
    """A kernel reads or writes an index outside the row or list that is meant."""
    UPDATE = "update"
    """A step that ends halfway leaves two sides with different state."""
    STALE = "stale"
    """What an earlier owner or step left behind is read as if it were current."""
    INTEGER = "integer"
    """An offset does not fit the integer type that computes it."""
    ACCOUNTING = "accounting"
    """The scheduler's own count of blocks or tokens is off."""
    ALIGNMENT = "alignment"
    """Two parts take the same row or page for differently long ones."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One relation between two named quantities, and further quantities worth naming."""

    left: str
    left_value: int
    relation: str
    right: str
    right_value: int
    further: Mapping[str, int] = field(default_factory=dict)

    def holds(self) -> bool:
        """Return whether the relation holds; on terms, the claim that it does."""
        match self.relation:
            case "<=":
                return self.left_value <= self.right_value
            case "<":
                return self.left_value < self.right_value
            case "==":
                return self.left_value == self.right_value
        return self.left_value != self.right_value

    def quantities(self) -> dict[str, int]:
        """Return every named quantity."""
        return {self.left: self.left_value, self.right: self.right_value, **self.further}

    def broken(self) -> str:
        """Return how the relation reads where it does not hold."""
        sign = _BROKEN[self.relation]
        return f"{self.left} {self.left_value:,} {sign} {self.right} {self.right_value:,}"


def _claim(relation: str, quantities: Mapping[str, int]) -> Claim:
    named = {name.replace("_", " "): value for name, value in quantities.items()}
    (left, left_value), (right, right_value), *further = named.items()
    return Claim(left, left_value, relation, right, right_value, dict(further))


def at_most(**quantities: int) -> Claim:
    """Claim that the first quantity is at most the second; the rest is shown beside them."""
    return _claim("<=", quantities)


def below(**quantities: int) -> Claim:
    """Claim that the first quantity is an index below the second."""
    return _claim("<", quantities)


def equal(**quantities: int) -> Claim:
    """Claim that the first two quantities are the same."""
    return _claim("==", quantities)


def differ(**quantities: int) -> Claim:
    """Claim that the first two quantities are not the same."""
    return _claim("!=", quantities)


@dataclass(frozen=True, slots=True)
class Domain:
    """What a fault quantifies over: its parameters, and how their values become one object."""

    parameters: tuple[Parameter, ...]
    build: Callable[[Mapping[str, Any]], Any]
    legal: Callable[[Any], bool]


def sizes_of(owner: type) -> Domain:
    """Return the domain of a dataclass whose fields are declared with `size` and `switch`."""
    return Domain(parameters_of(owner), lambda values: owner(**values), lambda _sizes: True)


def engine(kind: str, release: Release, *, without: str = "") -> Domain:
    """Return the domain of the engine's own cases: a kind of spec under a release's assumptions.

    One assumption can be left out, which the fault is about.
    """

    def build(values: Mapping[str, Any]) -> Any:
        return build_case(kind, {**values, **release.constants})

    def legal(case: Any) -> bool:
        kept = [a for a in assumptions_for(case.spec) if a.name != without]
        return all_of(*(assumption.holds(case, release) for assumption in kept))

    parameters = tuple(p for p in parameters_for(kind) if p.name not in release.constants)
    return Domain(parameters, build, legal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The numbers of one example.

    Attributes:
        sizes: the example's parameters; one left out takes its usual value, or else its smallest.
        faulty: quantities that the faulty variant must give.
        repaired: quantities that the repaired variant must give.
        first: the parameter whose value here is the smallest that fails, the others being as they are.
        by_hand: whether the numbers were worked out by hand because the thread gives none.
    """

    sizes: Mapping[str, int | bool]
    faulty: Mapping[str, int]
    repaired: Mapping[str, int] = field(default_factory=dict)
    first: str | None = None
    by_hand: bool = False


def _nothing(_sizes: Any) -> bool:
    return True


def _no_steps(_sizes: Any) -> Iterable[bool]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One public fault as a model that can be run and proved.

    Attributes:
        thread: the public thread, or a source and a word where code, a test or a note is the witness.
        also: further threads with the same model.
        kind: its class.
        title: what is wrong, in our own words.
        seen: what a user saw.
        domain: the sizes that it quantifies over.
        assumes: which of them are legal, beyond the domain's own rules.
        faulty: the claim as the faulty code makes it.
        repaired: the same claim after the thread's repair, or after one that would do where it has none.
        reports: the examples whose numbers must come out.
        steps: intermediate claims for the repaired proof, each proved before it is used.
    """

    thread: str
    also: tuple[str, ...] = ()
    kind: Kind
    title: str
    seen: str
    domain: Domain
    assumes: Callable[[Any], bool] = _nothing
    faulty: Callable[[Any], Claim]
    repaired: Callable[[Any], Claim]
    reports: tuple[Report, ...]
    steps: Callable[[Any], Iterable[bool]] = _no_steps

    def values(self, report: Report) -> dict[str, int | bool]:
        """Return the value of every parameter in an example."""
        return {p.name: report.sizes.get(p.name, _default(p)) for p in self.domain.parameters}

    def legal(self, sizes: Any) -> bool:
        """Return whether sizes are within the ranges of their parameters' rules and the fault's own."""
        return all_of(self.domain.legal(sizes), self.assumes(sizes))


def _default(parameter: Parameter) -> int | bool:
    return parameter.minimum if parameter.usual is None else parameter.usual
