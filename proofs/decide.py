"""Decide one obligation: vacuity, divisors, steps, goal, and on failure the smallest case that breaks it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import z3

from invariants import Parameter, broken_assumptions, build_case
from proofs.chain import explain
from proofs.problem import SIZES, Problem, build_problem
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = ["RLIMIT", "decide", "exclusion"]

RLIMIT = 20_000_000
"""Solver resources that one query may spend; the slowest takes a small part of it."""
_STEP_RLIMIT = RLIMIT // 20
"""What one attempt at an intermediate claim may spend: a step that is not easy is no help."""
_LINEAR: tuple[Mapping[str, int], ...] = tuple({"decode_context_parallel_size": ranks} for ranks in (1, 2))
"""What is fixed, beside the usual sizes, to look for a counterexample by linear arithmetic alone."""
_SECONDS = 20
"""A soft stop inside the solver; the parent process has a hard one."""


def decide(obligation: Obligation, pins: Mapping[str, int | bool]) -> Outcome:
    """Prove an obligation or find the smallest case that breaks it."""
    started, session = time.perf_counter(), _Session(obligation)
    try:
        outcome = session.decide(pins)
    except Exception as error:  # noqa: BLE001  # whatever went wrong is this claim's verdict, not a crash
        outcome = Outcome(Verdict.ERROR, f"{type(error).__name__}: {error}")
    return Outcome(
        outcome.verdict,
        outcome.detail,
        outcome.used,
        outcome.unused,
        time.perf_counter() - started,
        session.rlimit,
        outcome.counterexample,
    )


def exclusion(obligation: Obligation, pins: Mapping[str, int | bool]) -> str | None:
    """Return the assumptions that the pinned values cannot meet, or None if a legal case is left."""
    problem = build_problem(obligation, pins)
    solver = z3.Solver()
    solver.set("timeout", _SECONDS * 1000)
    solver.add(*problem.definitions.facts)
    for name, given in problem.assumptions.items():
        solver.assert_and_track(given, name)
    if solver.check() != z3.unsat:
        return None
    return ", ".join(sorted(str(name) for name in solver.unsat_core()))


@dataclass(slots=True)
class _Session:
    """The queries of one obligation and what they cost together."""

    obligation: Obligation
    rlimit: int = field(default=0)

    def decide(self, pins: Mapping[str, int | bool]) -> Outcome:
        problem = build_problem(self.obligation, pins)
        solver = self._solver(problem)
        if (answer := self._check(solver)) != z3.sat:
            if answer == z3.unsat:
                core = ", ".join(sorted(str(name) for name in solver.unsat_core()))
                return Outcome(Verdict.VACUOUS, f"no case meets the assumptions ({core or SIZES})")
            return Outcome(Verdict.UNKNOWN, f"are the assumptions satisfiable? {_reason(solver)}")
        if not self._divisors_positive(solver, problem):
            return Outcome(Verdict.ERROR, "a formula divides by what may not be positive")
        self._prove_steps(solver, problem)
        solver.add(z3.Not(problem.goal))
        match self._check(solver):
            case z3.unsat:
                named = {str(name) for name in solver.unsat_core()}
                used = tuple(n for n in problem.assumptions if n == SIZES or n in named)
                unused = tuple(n for n in problem.assumptions if n not in used)
                return Outcome(Verdict.PROVED, used=used, unused=unused)
            case z3.sat:
                found: dict[str, int | bool] | None = problem.read(solver.model())
            case _:
                found = self._search_linear(pins)
        return Outcome(Verdict.UNKNOWN, _reason(solver)) if found is None else self._refute(pins, found)

    def _search_linear(self, pins: Mapping[str, int | bool]) -> dict[str, int | bool] | None:
        """Look for a case at usual sizes, where the arithmetic is linear, once the solver gave up on all."""
        free = [p for p in self.obligation.parameters() if p.name not in pins]
        for tried in _LINEAR:
            fixed = {**_usual(free), **{p.name: tried[p.name] for p in free if p.name in tried}, **pins}
            answer, values = self._failing(fixed)
            if answer == z3.sat:
                return values
        return None

    def _solver(self, problem: Problem) -> z3.Solver:
        """Return a solver that knows the definitions and the assumptions, these by name."""
        solver = z3.Solver()
        solver.set("rlimit", RLIMIT)
        solver.set("timeout", _SECONDS * 1000)
        solver.add(*problem.definitions.facts, problem.assumptions[SIZES])
        for name, given in problem.assumptions.items():
            if name != SIZES:
                solver.assert_and_track(given, name)
        return solver

    def _check(self, solver: z3.Solver) -> z3.CheckSatResult:
        """Ask, and add the cost; the solver's own count runs on from query to query."""
        before = _spent(solver)
        answer = solver.check()
        self.rlimit += _spent(solver) - before
        return answer

    @contextmanager
    def _supposing(self, solver: z3.Solver, claim: z3.BoolRef) -> Iterator[None]:
        solver.push()
        solver.add(claim)
        try:
            yield
        finally:
            solver.pop()

    def _divisors_positive(self, solver: z3.Solver, problem: Problem) -> bool:
        divisors = problem.definitions.divisors
        if not divisors:
            return True
        with self._supposing(solver, z3.Or(*(divisor <= 0 for divisor in divisors))):
            return self._check(solver) == z3.unsat

    def _prove_steps(self, solver: z3.Solver, problem: Problem) -> None:
        """Add each step that follows from what is known, and the assumptions it needed with it."""
        solver.set("rlimit", _STEP_RLIMIT)
        for step in problem.steps:
            with self._supposing(solver, z3.Not(step)):
                proved = self._check(solver) == z3.unsat
                needed = solver.unsat_core() if proved else []
            if proved:
                solver.add(z3.Implies(z3.And(*needed), step))
        solver.set("rlimit", RLIMIT)

    def _refute(self, pins: Mapping[str, int | bool], found: dict[str, int | bool]) -> Outcome:
        """Make the case small, and trust it only if it also fails in plain Python."""
        values, smallest = self._shrink(pins, found)
        if problem := self._replay(values):
            return Outcome(Verdict.ERROR, f"the solver's case does not replay: {problem}; {values}")
        found_case = explain(self.obligation, values, smallest=smallest)
        return Outcome(Verdict.REFUTED, counterexample=found_case)

    def _replay(self, values: Mapping[str, int | bool]) -> str | None:
        """Return why a case is no counterexample in plain Python, or None if it is one."""
        obligation = self.obligation
        case = build_case(obligation.kind, values)
        broken = broken_assumptions(case, obligation.release)
        if broken:
            return f"it breaks {', '.join(a.name for a in broken)}"
        invariant = obligation.invariant
        if invariant.given is not None and not invariant.given(case):
            return "no kernel makes this access"
        if invariant.holds(case, obligation.release, obligation.runner):
            return "the claim holds"
        return None

    def _failing(
        self,
        fixed: Mapping[str, int | bool],
        bound: tuple[str, int] | None = None,
    ) -> tuple[z3.CheckSatResult, dict[str, int | bool]]:
        """Look for a case that breaks the claim with these values fixed and one parameter bounded."""
        problem = build_problem(self.obligation, fixed)
        solver = self._solver(problem)
        solver.add(z3.Not(problem.goal))
        if bound is not None:
            name, at_most = bound
            solver.add(problem.symbols[name].expr <= at_most)
        answer = self._check(solver)
        return answer, problem.read(solver.model()) if answer == z3.sat else {}

    def _shrink(
        self, pins: Mapping[str, int | bool], found: dict[str, int | bool]
    ) -> tuple[dict[str, int | bool], bool]:
        """Keep usual values where the fault remains, then make the rest small one by one."""
        free = [p for p in self.obligation.parameters() if p.name not in pins]
        fixed, exact = dict(pins), True
        together = {**fixed, **_usual(free)}
        answer, values = self._failing(together)
        if answer == z3.sat:
            fixed, found = together, values
        else:
            for parameter in free:
                if parameter.usual is not None:
                    fixed, found = self._keep_usual(parameter, fixed, found)
        for parameter in free:
            if parameter.name in fixed:
                continue
            if parameter.is_switch:
                fixed[parameter.name] = found[parameter.name]
                continue
            found, decided = self._least(parameter, fixed, found)
            exact = exact and decided
            fixed[parameter.name] = found[parameter.name]
        return found, exact

    def _keep_usual(
        self,
        parameter: Parameter,
        fixed: dict[str, int | bool],
        found: dict[str, int | bool],
    ) -> tuple[dict[str, int | bool], dict[str, int | bool]]:
        attempt = {**fixed, **_usual([parameter])}
        answer, values = self._failing(attempt)
        return (attempt, values) if answer == z3.sat else (fixed, found)

    def _least(
        self,
        parameter: Parameter,
        fixed: Mapping[str, int | bool],
        found: dict[str, int | bool],
    ) -> tuple[dict[str, int | bool], bool]:
        """Bisect a parameter to the smallest value with which the claim can fail.

        Not a query, whichever way it ends, is taken for an answer unless the solver gave one.
        """
        name, low, exact = parameter.name, parameter.minimum, True
        at_most = low
        while low < found[name]:
            answer, values = self._failing(fixed, (name, at_most))
            if answer == z3.sat:
                found = values
            else:
                exact = exact and answer == z3.unsat
                low = at_most + 1
            at_most = (low + int(found[name]) - 1) // 2
        return found, exact


def _usual(parameters: Iterable[Parameter]) -> dict[str, int | bool]:
    """Return the usual values of the parameters that have one."""
    return {p.name: p.usual for p in parameters if p.usual is not None}


def _spent(solver: z3.Solver) -> int:
    statistics = solver.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 0  # noqa: SIM118


def _reason(solver: z3.Solver) -> str:
    reason = solver.reason_unknown()
    if reason in ("timeout", "canceled", "max. resource limit exceeded"):
        return f"the solver's budget of {RLIMIT:,} (rlimit) or {_SECONDS} s ran out"
    return f"the solver gave up ({reason})"
