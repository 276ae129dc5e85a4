"""Decide one obligation: witness, divisors, goal, and on failure the smallest case that breaks it."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import z3

from invariants import Case, Parameter, build_case
from proofs.chain import explain
from proofs.problem import SIZES, Problem, build_problem
from proofs.reach import speaks_of_a_step, trace_to
from proofs.second import Opinion, Stance, second_opinion
from proofs.verdicts import SOLVERS, Obligation, Outcome, Verdict

__all__ = ["BUDGET", "RLIMIT", "decide", "exclusion"]

RLIMIT = 20_000_000
"""Solver resources that one query may spend; the slowest takes a small part of it."""
_FIRST_RLIMIT = 150_000
"""What the goal may spend before the intermediate claims are proved: many goals need none of them."""
_STEP_RLIMIT = RLIMIT // 20
"""What one attempt at an intermediate claim, or at a slack, may spend: one that is not easy is no help."""
_LINEAR: tuple[Mapping[str, int], ...] = (
    {"decode_context_parallel_size": 1, "max_model_len": 2048},
    {"decode_context_parallel_size": 1},
    {"decode_context_parallel_size": 2},
)
"""What is fixed, beside the usual sizes, to look for a case by linear arithmetic; switches stay free."""
_LONG_RUNS: Mapping[str, int] = {
    "decode_context_parallel_size": 2,
    "cp_kv_cache_interleave_size": 16,
    "blocks_per_kv_block": 2,
}
"""As those, where a smaller case is wanted: runs as long as a block, and kernel blocks of half of it."""
_SECONDS = 20
"""A soft stop inside the solver; the parent process has a hard one."""
BUDGET = f"rlimit {RLIMIT:,}, {_SECONDS} s"
"""What a query may spend, in words."""
_MOST_SLACK = 1 << 12

Values = dict[str, int | bool]


def decide(obligation: Obligation, pins: Mapping[str, int | bool], *, solver: str = SOLVERS[0]) -> Outcome:
    """Prove an obligation or find the smallest case that breaks it.

    With `solver` "both" a claim counts as proved only if Z3 proves it as it stands and cvc5 by the lemmas;
    with "cvc5" it is cvc5's proof that counts, and Z3 looks for a counterexample where there is none.
    """
    started, session = time.perf_counter(), _Session(obligation, pins)
    try:
        with _no_collection():
            session.problem = build_problem(obligation, pins, session.context)
            outcome = _SOLVED_BY[solver](session)
    except Exception as error:  # noqa: BLE001  # whatever went wrong is this claim's verdict, not a crash
        outcome = Outcome(Verdict.ERROR, f"{type(error).__name__}: {error}")
    return dataclasses.replace(outcome, seconds=time.perf_counter() - started, rlimit=session.rlimit)


def _by_z3(session: _Session) -> Outcome:
    return session.settled() or session.decide()


def _by_both(session: _Session) -> Outcome:
    outcome = _by_z3(session)
    return _confirmed(outcome, session.second_opinion()) if outcome.verdict is Verdict.PROVED else outcome


def _by_cvc5(session: _Session) -> Outcome:
    if outcome := session.settled():
        return outcome
    opinion = session.second_opinion()
    if opinion.stance is not Stance.PROVED:
        return _confirmed(session.decide(), opinion)
    assumed = opinion.assumptions or tuple(
        session.problem.assumptions
    )  # a direct proof names none: it had all
    outcome = session.proved(assumed)
    return dataclasses.replace(outcome, second=_route(opinion))


def _confirmed(outcome: Outcome, opinion: Opinion) -> Outcome:
    """Return what two solvers together say of a claim; a counterexample stands by itself, as it replays."""
    if outcome.verdict is not Verdict.PROVED:
        return outcome
    match opinion.stance:
        case Stance.PROVED:
            return dataclasses.replace(outcome, second=_route(opinion))
        case Stance.REFUTES:
            return Outcome(Verdict.ERROR, f"the solvers disagree: Z3 proves it, {opinion.detail}")
        case Stance.NOT_PROVED:
            return Outcome(Verdict.UNKNOWN, f"Z3 proves it, {opinion.solver} does not: {opinion.detail}")


def _route(opinion: Opinion) -> str:
    return f"{opinion.solver} by {opinion.detail}"


_SOLVED_BY: Mapping[str, Callable[[_Session], Outcome]] = {
    "z3": _by_z3,
    "cvc5": _by_cvc5,
    "both": _by_both,
}


def exclusion(obligation: Obligation, pins: Mapping[str, int | bool]) -> str | None:
    """Return the assumptions that the pinned values cannot meet, or None if a legal case is left."""
    problem = build_problem(obligation, pins)
    solver = z3.Solver(ctx=problem.definitions.context)
    solver.set("timeout", _SECONDS * 1000)
    solver.add(*problem.definitions.facts)
    for name, given in problem.assumptions.items():
        solver.assert_and_track(given, name)
    if solver.check() != z3.unsat:
        return None
    return ", ".join(sorted(str(name) for name in solver.unsat_core()))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of a goal: what a proof assumed, the case that breaks it, or why there is neither."""

    result: z3.CheckSatResult
    core: frozenset[str] = frozenset()
    found: Values | None = None
    reason: str = ""


@dataclass(slots=True)
class _Session:
    """The queries of one obligation, all in one solver context, and what they cost together."""

    obligation: Obligation
    pins: Mapping[str, int | bool]
    rlimit: int = 0
    context: z3.Context = field(default_factory=z3.Context)
    problem: Problem = field(init=False)
    solver: z3.Solver = field(init=False)
    witness: Values | None = None
    slack: int | None = None
    nearest: int | None = None
    """Which of the claim's preferences the counterexample keeps; None if it keeps none."""

    def settled(self) -> Outcome | None:
        """Say what a claim comes to that nobody need prove: it has no case, or divides by what may be zero.

        None where there is something to prove. Whoever proves it, the case that this found is its witness.
        """
        solver = self.solver = self._solver(self.problem)
        if not self._divisors_positive(solver, self.problem):
            return Outcome(Verdict.ERROR, "a formula divides by what may not be positive")
        self.witness, self.slack = self._near_miss(self.problem)
        if self.witness is not None:
            return None
        answer = self._check(solver)
        if answer == z3.unsat:
            return self._without_a_case(solver)
        if answer == z3.unknown:
            return Outcome(Verdict.UNKNOWN, f"are the assumptions satisfiable? {_reason(solver)}")
        self.witness = self._legal(self.problem.read(solver.model()))
        return None

    def decide(self) -> Outcome:
        """Let Z3 prove the claim as it stands, or break it."""
        answer = self._goal(self.solver, self.problem)
        if answer.result == z3.unsat:
            return self.proved(answer.core)
        found = self._search_linear() if answer.found is None else answer.found
        return Outcome(Verdict.UNKNOWN, answer.reason) if found is None else self._refute(found)

    def proved(self, core: Collection[str]) -> Outcome:
        """Return a proof that took these assumptions, with the case that comes closest to breaking it."""
        used = tuple(n for n in self.problem.assumptions if n == SIZES or n in core)
        unused = tuple(n for n in self.problem.assumptions if n not in used)
        if self.witness is None or (self.slack is None and self.problem.margin is not None):
            self.witness, self.slack = self._slack(self.problem, self.witness)
        if self.witness is not None and (told := self._contradiction(self.witness)):
            return Outcome(
                Verdict.ERROR, f"the proof does not hold of its own witness: {told}; {self.witness}"
            )
        return Outcome(Verdict.PROVED, used=used, unused=unused, witness=self.witness, slack=self.slack)

    def _without_a_case(self, solver: z3.Solver) -> Outcome:
        """Tell a claim that says nothing from one of which the pinned values leave nothing."""
        core = ", ".join(sorted(str(name) for name in solver.unsat_core())) or SIZES
        if self.pins and exclusion(self.obligation, {}) is None:
            return Outcome(Verdict.SKIPPED, f"the pinned values contradict {core}")
        return Outcome(Verdict.VACUOUS, f"no case meets the assumptions ({core})")

    def second_opinion(self) -> Opinion:
        """Ask cvc5, by the lemmas; what Z3 spends on that is no part of the claim's cost."""
        problem = build_problem(self.obligation, self.pins, with_steps=True)
        return second_opinion(problem, "cvc5")

    # --- cases ------------------------------------------------------------------------------------

    def _linear(self, *more: Mapping[str, int]) -> Iterator[Values]:
        """Yield values to fix so that the arithmetic becomes linear, the likeliest first."""
        free = [p for p in self._free() if not p.is_switch]
        for tried in (*_LINEAR, *more):
            yield {**_usual(free), **{p.name: tried[p.name] for p in free if p.name in tried}, **self.pins}

    def _free(self) -> list[Parameter]:
        return [p for p in self.obligation.parameters() if p.name not in self.pins]

    def _near_miss(self, problem: Problem) -> tuple[Values | None, int | None]:
        """Look at usual sizes for a case that the claim barely covers: it also shows that there are cases."""
        for fixed in self._linear():
            linear = build_problem(self.obligation, fixed, self.context)
            solver = self._solver(linear)
            if linear.margin is not None:
                solver.add(linear.margin == 0)
            if self._check(solver) != z3.sat:
                continue
            if (values := self._legal(linear.read(solver.model()))) is not None:
                return values, None if problem.margin is None else 0
        return None, None

    def _slack(self, problem: Problem, witness: Values | None) -> tuple[Values | None, int | None]:
        """Find how many units are to spare where no usual case comes closer: the twin claim that fails."""
        least, solver = None, self._solver(problem)
        solver.set("rlimit", _STEP_RLIMIT)
        if problem.margin is None:
            return witness, None
        low, high = 0, _MOST_SLACK
        while low < high:
            tried = (low + high) // 2 if least is not None or low else 0
            with self._supposing(solver, problem.margin <= tried):
                answer = self._check(solver)
                values = problem.read(solver.model()) if answer == z3.sat else {}
            if answer == z3.sat and self._legal(values) is not None:
                witness, least = values, self._margin(values)
                high = min(tried, least)
            elif answer == z3.unsat:
                low = tried + 1
            else:
                return witness, None
        return witness, least if least == low else None

    def _case(self, values: Mapping[str, int | bool]) -> Case:
        return build_case(self.obligation.kind, values, self.obligation.invariant.parts)

    def _legal(self, values: Values) -> Values | None:
        """Return a case of the solver's if it meets every assumption in plain Python too."""
        claim, release, runner = self.obligation.invariant, self.obligation.release, self.obligation.runner
        return None if claim.broken(self._case(values), release, runner) else values

    def _contradiction(self, values: Mapping[str, int | bool]) -> str | None:
        """Return what plain Python has against a proof that has this case, or None."""
        if (told := self._replay(values)) != "the claim holds":
            return told or "the claim fails"
        if self.slack is not None and self._margin(values) != self.slack:
            return f"{self._margin(values)} to spare, not {self.slack}"
        return None

    def _margin(self, values: Mapping[str, int | bool]) -> int:
        margin = self.obligation.invariant.margin
        if margin is None:
            return 0
        return margin(self._case(values), self.obligation.release, self.obligation.runner)

    # --- queries ----------------------------------------------------------------------------------

    def _solver(self, problem: Problem) -> z3.Solver:
        """Return a solver that knows the definitions and the assumptions, these by name."""
        return self._fresh(problem.definitions.facts, problem, problem.assumptions)

    def _fresh(self, facts: Iterable[z3.BoolRef], problem: Problem, assumed: Collection[str]) -> z3.Solver:
        solver = z3.Solver(ctx=self.context)
        solver.set("rlimit", RLIMIT)
        solver.set("timeout", _SECONDS * 1000)
        solver.add(*facts, problem.assumptions[SIZES])
        for name, given in problem.assumptions.items():
            if name != SIZES and name in assumed:
                solver.assert_and_track(given, name)
        return solver

    def _check(self, solver: z3.Solver) -> z3.CheckSatResult:
        """Ask, and note the cost: the context's own count, which runs on from query to query."""
        answer = solver.check()
        self.rlimit = _spent(solver)
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

    def _goal(self, solver: z3.Solver, problem: Problem) -> _Answer:
        """Ask for a case that breaks the claim.

        At first without help; then with the steps that can be proved, of a goal that has a cut by the cut and
        the configuration alone.
        """
        if problem.cut is None:
            solver.set("rlimit", _FIRST_RLIMIT)
            solver.add(z3.Not(problem.goal))
            if (answer := self._answer(solver, problem)).result != z3.unknown:
                return answer
        problem = build_problem(self.obligation, self.pins, self.context, with_steps=True)
        solver = self._solver(problem)
        if problem.cut is not None:
            answer = self._goal_by_cut(solver, problem, problem.cut)
            if answer.result == z3.unsat:
                return answer
        self._prove_steps(solver, problem)
        solver.set("rlimit", RLIMIT)
        solver.add(z3.Not(problem.goal))
        return self._answer(solver, problem)

    def _answer(self, solver: z3.Solver, problem: Problem) -> _Answer:
        match self._check(solver):
            case z3.sat:
                return _Answer(z3.sat, found=problem.read(solver.model()))
            case z3.unsat:
                return _Answer(z3.unsat, core=_core(solver))
        return _Answer(z3.unknown, reason=_reason(solver))

    def _goal_by_cut(self, solver: z3.Solver, problem: Problem, cut: z3.BoolRef) -> _Answer:
        """Prove the cut from everything, and the goal from the cut; a case without the rest is none."""
        solver.set("rlimit", _STEP_RLIMIT)
        with self._supposing(solver, z3.Not(cut)):
            if self._check(solver) != z3.unsat:
                return _Answer(z3.unknown)
            needed = _core(solver)
        alone = self._fresh(problem.isolated(), problem, problem.configuration)
        alone.add(cut)
        self._prove_steps(alone, problem)
        alone.set("rlimit", _STEP_RLIMIT)
        alone.add(z3.Not(problem.goal))
        if self._check(alone) != z3.unsat:
            return _Answer(z3.unknown)
        return _Answer(z3.unsat, core=needed | _core(alone))

    def _prove_steps(self, solver: z3.Solver, problem: Problem) -> None:
        """Add each step that follows from what is known, and the assumptions it needed with it."""
        solver.set("rlimit", _STEP_RLIMIT)
        for step in problem.steps:
            with self._supposing(solver, z3.Not(step)):
                proved = self._check(solver) == z3.unsat
                needed = solver.unsat_core() if proved else []
            if proved:
                solver.add(z3.Implies(z3.And(*needed), step) if len(needed) else step)

    def _search_linear(self, *more: Mapping[str, int]) -> Values | None:
        """Look for a case that breaks the claim at usual sizes."""
        for fixed in self._linear(*more):
            answer, values = self._failing(fixed)
            if answer == z3.sat:
                return values
        return None

    # --- counterexamples --------------------------------------------------------------------------

    def _refute(self, found: Values) -> Outcome:
        """Make the case small, and trust it only if it also fails in plain Python."""
        for preference in range(len(self.obligation.invariant.nearest)):
            self.nearest = preference
            if nearer := self._search_linear() or self._failing(self.pins)[1]:
                found = nearer
                break
            self.nearest = None
        values, smallest = self._shrink(found)
        if problem := self._replay(values):
            return Outcome(Verdict.ERROR, f"the solver's case does not replay: {problem}; {values}")
        found_case = explain(self.obligation, values, smallest=smallest)
        if speaks_of_a_step(self.obligation):
            trace, reached = trace_to(self.obligation, values)
            found_case = dataclasses.replace(found_case, trace=trace, reached=reached)
        return Outcome(Verdict.REFUTED, counterexample=found_case)

    def _replay(self, values: Mapping[str, int | bool]) -> str | None:
        """Return why a case is no counterexample in plain Python, or None if it is one."""
        obligation, case = self.obligation, self._case(values)
        broken = obligation.invariant.broken(case, obligation.release, obligation.runner)
        if broken:
            return f"it breaks {', '.join(broken)}"
        if obligation.invariant.holds(case, obligation.release, obligation.runner):
            return "the claim holds"
        return None

    def _failing(
        self,
        fixed: Mapping[str, int | bool],
        bound: tuple[str, int] | None = None,
    ) -> tuple[z3.CheckSatResult, Values]:
        """Look for a case that breaks the claim with these values fixed and one parameter bounded."""
        problem = build_problem(self.obligation, fixed, self.context)
        solver = self._solver(problem)
        solver.add(z3.Not(problem.goal))
        if self.nearest is not None:
            solver.add(problem.nearest[self.nearest])
        if bound is not None:
            name, at_most = bound
            solver.add(problem.symbols[name].expr <= at_most)
        answer = self._check(solver)
        return answer, problem.read(solver.model()) if answer == z3.sat else {}

    def _shrink(self, found: Values) -> tuple[Values, bool]:
        """Keep usual values where the fault remains, then make the rest small one by one."""
        free = self._free()
        fixed: Values = dict(self.pins)
        exact = True
        together = {**fixed, **_usual(free)}
        answer, values = self._failing(together)
        if answer == z3.sat:
            fixed, found = together, values
        else:
            if near := self._search_linear(_LONG_RUNS):
                # What is usual in this case stays; it makes the rest a question of linear arithmetic.
                found = near
                fixed |= {p.name: near[p.name] for p in free if p.usual == near[p.name]}
            for parameter in free:
                if parameter.usual is not None and parameter.name not in fixed:
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

    def _keep_usual(self, parameter: Parameter, fixed: Values, found: Values) -> tuple[Values, Values]:
        attempt = {**fixed, **_usual([parameter])}
        answer, values = self._failing(attempt)
        return (attempt, values) if answer == z3.sat else (fixed, found)

    def _least(
        self, parameter: Parameter, fixed: Mapping[str, int | bool], found: Values
    ) -> tuple[Values, bool]:
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting terms, which form cycles, in the middle of an obligation.

    The solver numbers its expressions anew where old ones were freed and goes another way then, so that cost
    figures would depend on what the process did before.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _usual(parameters: Iterable[Parameter]) -> Values:
    """Return the usual values of the parameters that have one."""
    return {p.name: p.usual for p in parameters if p.usual is not None}


def _core(solver: z3.Solver) -> frozenset[str]:
    """Return the names of the assumptions behind an "unsat", and none behind another answer."""
    try:
        return frozenset(str(name) for name in solver.unsat_core())
    except z3.Z3Exception:
        return frozenset()


def _spent(solver: z3.Solver) -> int:
    statistics = solver.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 0  # noqa: SIM118


def _reason(solver: z3.Solver) -> str:
    reason = solver.reason_unknown()
    if reason in ("timeout", "canceled", "max. resource limit exceeded"):
        return f"the solver's budget of {RLIMIT:,} (rlimit) or {_SECONDS} s ran out"
    return f"the solver gave up ({reason})"
