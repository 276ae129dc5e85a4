"""Check one fault of the catalogue: its numbers, the faulty variant and the repaired one.

The numbers are computed in plain Python. The solver then looks for legal sizes that break the faulty claim,
which are replayed in plain Python, and for some that break the repaired one, of which there must be none.
What the solver does not answer counts as a failure, never as an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from invariants.arithmetic import all_of
from proofs.faults import Claim, Fault, Report
from proofs.terms import Definitions, Term, Truth

__all__ = ["Example", "Finding", "check_fault", "legal_sizes", "unproved"]

_RLIMIT = 4_000_000
"""Solver resources that one query may spend; the slowest takes a small part of it."""
_SECONDS = 10
_FARTHEST = 1 << 62
"""Beyond what any size of a fault is; the search for the first failing one begins there."""

_Variant = Callable[[Any], Claim]
_Values = dict[str, int | bool]


@dataclass(frozen=True, slots=True)
class Example:
    """What one example came to.

    Attributes:
        report: the example.
        faulty: the faulty claim at its sizes.
        repaired: the repaired claim at its sizes.
        first: the smallest failing value of the parameter that `report.first` names, as the solver found it.
    """

    report: Report
    faulty: Claim
    repaired: Claim
    first: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one fault.

    Attributes:
        fault: the fault.
        examples: its examples.
        smallest: sizes that break the faulty variant, usual ones where it still fails, the others made
            small one after the other.
        unreproduced: why the fault is not reproduced; empty if it is.
        unrepaired: why the repair is not proved; empty if it is.
        seconds: what it took.
    """

    fault: Fault
    examples: tuple[Example, ...]
    smallest: Mapping[str, int | bool]
    unreproduced: tuple[str, ...]
    unrepaired: tuple[str, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the fault was reproduced and refuted, and its repair proved."""
        return not self.unreproduced and not self.unrepaired


def check_fault(fault: Fault) -> Finding:
    """Reproduce a fault, refute its faulty variant for all sizes and prove the repaired one."""
    started = time.perf_counter()
    if illegal := tuple(problem for report in fault.reports for problem in _illegal(fault, report)):
        return Finding(fault, (), {}, illegal, ("not asked: an example is not legal",), 0.0)
    examples = tuple(_example(fault, report) for report in fault.reports)
    smallest = _smallest(fault)
    return Finding(
        fault,
        examples,
        smallest,
        tuple(_unreproduced(fault, examples, smallest)),
        tuple(_unrepaired(fault, examples)),
        time.perf_counter() - started,
    )


def _example(fault: Fault, report: Report) -> Example:
    """Run both variants on an example's numbers."""
    values = fault.values(report)
    sizes = fault.domain.build(values)
    first = None if report.first is None else _first_failing(fault, values, report.first)
    return Example(report, fault.faulty(sizes), fault.repaired(sizes), first)


def _first_failing(fault: Fault, values: _Values, name: str) -> int | None:
    """Return the smallest value of one parameter that breaks the faulty variant, the rest being fixed."""
    fixed = {other: value for other, value in values.items() if other != name}
    question = _Question(fault, fault.faulty, fixed)
    return question.least(name) if question.broken() else None


def _unreproduced(
    fault: Fault, examples: Iterable[Example], smallest: Mapping[str, int | bool]
) -> Iterable[str]:
    for example in examples:
        report = example.report
        yield from _differences("faulty", report.faulty, example.faulty)
        if example.faulty.holds():
            yield "the faulty variant holds at the example's sizes"
        if report.first is not None and example.first != report.sizes[report.first]:
            yield f"{report.first} fails from {example.first} on, not from {report.sizes[report.first]}"
    if not smallest:
        yield "the solver finds no sizes that break the faulty variant"
    elif not _breaks(fault, smallest):
        yield f"the solver's case does not replay: {dict(smallest)}"


def _unrepaired(fault: Fault, examples: Iterable[Example]) -> Iterable[str]:
    for example in examples:
        yield from _differences("repaired", example.report.repaired, example.repaired)
        if not example.repaired.holds():
            yield f"the repaired variant fails at the example's sizes: {example.repaired.broken()}"
    if problem := unproved(fault, fault.repaired):
        yield problem


def _illegal(fault: Fault, report: Report) -> Iterable[str]:
    """Return why an example is not one of the fault's, if it is not."""
    values = fault.values(report)
    problems = [f"there is no size {name}" for name in report.sizes if name not in values]
    problems += filter(None, (p.problem(values[p.name]) for p in fault.domain.parameters))
    if not problems and not fault.legal(fault.domain.build(values)):
        problems.append("the example's sizes are not legal")
    return problems


def _differences(variant: str, expected: Mapping[str, int], claim: Claim) -> Iterable[str]:
    given = claim.quantities()
    for name, value in expected.items():
        if given.get(name) != value:
            yield f"the {variant} variant gives {name} {given.get(name)}, not {value}"


def _smallest(fault: Fault) -> _Values:
    """Return sizes that break the faulty variant, or nothing if the solver finds none.

    Usual sizes are kept where the fault remains: all of them, or else one by one.
    """
    usual = {p.name: p.usual for p in fault.domain.parameters if p.usual is not None}
    fixed: _Values = dict(usual)
    found = _breaking(fault, fixed)
    if not found:
        fixed = {}
        if not (found := _breaking(fault, fixed)):
            return {}
        for name, value in usual.items():
            if better := _breaking(fault, {**fixed, name: value}):
                found, fixed[name] = better, value
    for parameter in fault.domain.parameters:
        name = parameter.name
        if name not in fixed and not parameter.is_switch:
            least = _Question(fault, fault.faulty, fixed).least(name, int(found[name]))
            if least is not None:
                found = _breaking(fault, {**fixed, name: least}) or found
        fixed[name] = found[name]
    return found


def _breaking(fault: Fault, fixed: Mapping[str, int | bool]) -> _Values:
    return _Question(fault, fault.faulty, fixed).broken()


def _breaks(fault: Fault, values: Mapping[str, int | bool]) -> bool:
    """Return whether sizes are legal and break the faulty variant, in plain Python."""
    sizes = fault.domain.build(values)
    return fault.legal(sizes) and not fault.faulty(sizes).holds()


def unproved(fault: Fault, variant: _Variant) -> str | None:
    """Return why a variant is not proved for all sizes, or None if it is."""
    question = _Question(fault, variant, {})
    if not question.legal():
        return "no sizes are legal, so nothing would be said"
    if not question.divisors_positive():
        return "a formula divides by what may not be positive"
    question.prove_steps()
    answer, found = question.ask()
    if answer == z3.sat:
        return f"the variant fails at {found}"
    return None if answer == z3.unsat else "the solver does not decide the variant"


def legal_sizes(fault: Fault) -> Mapping[str, int | bool]:
    """Return sizes that the solver finds legal, or nothing if there are none."""
    return _Question(fault, fault.repaired, {}).legal()


class _Question:
    """One variant of a fault as solver input, some parameters being fixed."""

    def __init__(self, fault: Fault, variant: _Variant, fixed: Mapping[str, int | bool]) -> None:
        """Run the formulas on symbols and tell the solver what is legal."""
        definitions = Definitions()
        self.fixed = dict(fixed)
        self.symbols: dict[str, Term | Truth] = {
            p.name: definitions.switch(p.name) if p.is_switch else definitions.symbol(p.name, p.minimum)
            for p in fault.domain.parameters
            if p.name not in fixed
        }
        values: dict[str, Any] = {**fixed, **self.symbols}
        sizes = fault.domain.build(values)
        ranges = [
            all_of(values[p.name] >= p.minimum, p.maximum is None or values[p.name] <= p.maximum)
            for p in fault.domain.parameters
            if not p.is_switch
        ]
        legal = definitions.truth(all_of(*ranges, fault.legal(sizes)))
        self.goal = definitions.truth(variant(sizes).holds())
        self.steps = [definitions.truth(step) for step in fault.steps(sizes)]
        self.divisors = definitions.divisors
        self.solver = z3.Solver(ctx=definitions.context)
        # Z3's own handler would swallow a Ctrl-C; Python's notes it, and the command asks between two faults.
        self.solver.set(rlimit=_RLIMIT, timeout=_SECONDS * 1000, ctrl_c=False)
        self.solver.add(*definitions.facts, legal)

    def ask(self, *bounds: z3.BoolRef) -> tuple[z3.CheckSatResult, _Values]:
        """Look for sizes that break the claim, within further bounds."""
        return self._check(z3.Not(self.goal), *bounds)

    def broken(self) -> _Values:
        """Return sizes that break the claim, or nothing."""
        return self.ask()[1]

    def legal(self) -> _Values:
        """Return sizes that are legal, or nothing."""
        return self._check()[1]

    def divisors_positive(self) -> bool:
        """Return whether every divisor is shown to be positive."""
        return all(self._follows(divisor > 0) for divisor in self.divisors)

    def prove_steps(self) -> None:
        """Add each step that follows from what is known; one that does not is dropped."""
        for step in self.steps:
            if self._follows(step):
                self.solver.add(step)

    def least(self, name: str, known: int = _FARTHEST) -> int | None:
        """Return the smallest value of a parameter with which the claim fails, or None if it stays open."""
        symbol = self.symbols[name]
        low, high = symbol.low or 0 if isinstance(symbol, Term) else 0, known
        while low < high:
            middle = (low + high) // 2
            answer, found = self.ask(symbol.expr <= middle)
            if answer == z3.unknown:
                return None
            if answer == z3.sat:
                high = int(found[name])
            else:
                low = middle + 1
        return high

    def _follows(self, claim: z3.BoolRef) -> bool:
        return self._check(z3.Not(claim))[0] == z3.unsat

    def _check(self, *claims: z3.BoolRef) -> tuple[z3.CheckSatResult, _Values]:
        """Ask whether sizes meet further claims, and which."""
        self.solver.push()
        self.solver.add(*claims)
        answer = self.solver.check()
        found = self._read() if answer == z3.sat else {}
        self.solver.pop()
        return answer, found

    def _read(self) -> _Values:
        model = self.solver.model()
        values = dict(self.fixed)
        for name, symbol in self.symbols.items():
            value = model.eval(symbol.expr, model_completion=True)
            values[name] = value.as_long() if isinstance(symbol, Term) else z3.is_true(value)
        return values
