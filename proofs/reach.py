"""How a row comes to break a claim about a step: a bounded search from an empty row.

The step's claim says "from any sound state". A state that breaks it may be one that no row ever reaches;
the search unrolls the transition system of `invariants.lifecycle` from `INITIAL`, with the deployment fixed
to the counterexample's, one step deeper at a time, so that the first trace found is a shortest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import z3

from invariants import Access, Case, Move, Parameter, Request, RowState, build_case
from invariants.arithmetic import all_of, any_of, negation
from invariants.lifecycle import INITIAL, STEPS, Now, Step, now
from invariants.parameters import parameters_of
from proofs.terms import Definitions, Term, Truth
from proofs.verdicts import Obligation, TraceStep

__all__ = ["MOST_STEPS", "speaks_of_a_step", "trace_to"]

MOST_STEPS = 5
"""The longest trace that is looked for, the breaking step included."""
_QUERY_RLIMIT = 2_000_000
_INPUTS = (Request, Access, Move)


def speaks_of_a_step(obligation: Obligation) -> bool:
    """Return whether the claim is about a step of a row's life, so that a trace can lead there."""
    return RowState in obligation.invariant.parts and obligation.invariant.part != "start"


def trace_to(obligation: Obligation, values: Mapping[str, int | bool]) -> tuple[tuple[TraceStep, ...], str]:
    """Return a shortest trace to a state in which the claim's step breaks it, and what the search says.

    The trace is empty if none of at most `MOST_STEPS` steps was found. A length for which the solver gave up
    is never taken for one at which there is none.
    """
    last = next(step for step in STEPS if step.name == obligation.invariant.part)
    gave_up = False
    for before in range(MOST_STEPS):
        unrolled = _Unrolled(obligation, values, before, last)
        answer = unrolled.solve()
        gave_up = gave_up or answer == z3.unknown
        if answer == z3.sat:
            length = before + 1
            fewer = "perhaps in fewer" if gave_up else "no fewer"
            return (
                unrolled.trace(),
                f"reached from an empty row in {length} step{'s' * (length != 1)}, {fewer}",
            )
    if gave_up:
        return (), "whether it is reached from an empty row is not known: the solver gave up"
    return (), f"not reached from an empty row within {MOST_STEPS} steps; it fails as an induction"


@dataclass(frozen=True, slots=True)
class _Moment:
    """One step of the unrolled system: what it is given, the row before it, and which kind it is."""

    case: Case
    kind: z3.ArithRef | None
    symbols: Mapping[str, Term | Truth]


class _Unrolled:
    """The transition system from an empty row to the breaking step, with a solver that knows it."""

    def __init__(
        self, obligation: Obligation, values: Mapping[str, int | bool], before: int, last: Step
    ) -> None:
        self.obligation, self.values, self.last = obligation, values, last
        self.definitions = Definitions()
        self.solver = z3.Solver(ctx=self.definitions.context)
        self.solver.set("rlimit", _QUERY_RLIMIT)
        self._model: z3.ModelRef | None = None
        state = replace(INITIAL, resumable=cast("bool", self.definitions.switch("resumable")))
        self.moments: list[_Moment] = []
        for depth in range(before):
            state = self._any_step(depth, state)
        moment = self._moment(before, state, kind=None)
        self.moments.append(moment)
        claim, release, runner = obligation.invariant, obligation.release, obligation.runner
        for given in claim.givens:
            self._add(given.holds(moment.case, release, runner))
        self._add(negation(claim.holds(moment.case, release, runner)))

    def solve(self) -> z3.CheckSatResult:
        """Look for such a trace, and make what its steps are given small, step by step."""
        self.solver.add(*self.definitions.facts)
        answer = self.solver.check()
        if answer != z3.sat:
            return answer
        self._model = self.solver.model()
        for moment in self.moments:
            for parameter in self._inputs():
                self._make_small(moment.symbols[parameter.name], parameter)
        return answer

    def trace(self) -> tuple[TraceStep, ...]:
        """Read the trace off the solver's case and run it again on plain numbers."""
        state: RowState = replace(
            INITIAL, resumable=self._value(self.moments[0].case.part(RowState).resumable)
        )
        steps = []
        for moment in self.moments:
            step = self.last if moment.kind is None else STEPS[self._value(moment.kind)]
            given = {name: self._value(symbol) for name, symbol in moment.symbols.items()}
            at = self._now(self._case(given, state))
            after = step.after(at)
            if not step.allowed(at):
                message = f"the trace's step {step.name} is not allowed in plain Python"
                raise AssertionError(message)
            if moment.kind is None and self.obligation.invariant.holds(at.case, at.release, at.runner):
                message = f"the trace's step {step.name} breaks nothing in plain Python"
                raise AssertionError(message)
            steps.append(TraceStep(step.name, self._shown(step, given), _plain(state), _plain(after)))
            state = after
        return tuple(steps)

    def _shown(self, step: Step, given: Mapping[str, int | bool]) -> dict[str, int | bool]:
        """Return what a step was given: what it looks at, without what did not happen."""
        shown: dict[str, int | bool] = {name: given[name] for name in step.given if given[name]}
        if step.runs:
            shown["scheduled_tokens"] = given["num_tokens"] - given["num_computed_tokens"]
        return shown

    def _inputs(self) -> Iterator[Parameter]:
        for part in _INPUTS:
            yield from (p for p in parameters_of(part) if not p.is_switch)

    def _any_step(self, depth: int, state: RowState) -> RowState:
        """Add one step of any kind and return the row after it."""
        kind = z3.Int(f"step {depth}", self.definitions.context)
        moment = self._moment(depth, state, kind)
        self.moments.append(moment)
        after = RowState(**{p.name: self._symbol(p, f"after {depth}") for p in parameters_of(RowState)})
        at = self._now(moment.case)
        choices = []
        for number, step in enumerate(STEPS):
            taken = all_of(step.allowed(at), _same(after, step.after(at)))
            choices.append(z3.And(kind == number, self.definitions.truth(taken)))
        self.solver.add(z3.Or(*choices))
        return after

    def _moment(self, depth: int, state: RowState, kind: z3.ArithRef | None) -> _Moment:
        symbols = {p.name: self._symbol(p, str(depth)) for part in _INPUTS for p in parameters_of(part)}
        case = self._case(symbols, state)
        obligation = self.obligation
        for assumption in obligation.invariant.assumptions(case.spec, obligation.release):
            self._add(assumption.holds(case, obligation.release))
        self._add(case.request.num_computed_tokens < case.request.num_tokens)  # an empty pass is no step
        return _Moment(case, kind, symbols)

    def _symbol(self, parameter: Parameter, suffix: str) -> Any:
        name = f"{parameter.name} {suffix}"
        if parameter.is_switch:
            return self.definitions.switch(name)
        symbol = self.definitions.symbol(name, parameter.minimum)
        self.solver.add(symbol.expr >= parameter.minimum)
        return symbol

    def _case(self, inputs: Mapping[str, Any], state: RowState) -> Case:
        obligation = self.obligation
        row = {p.name: getattr(state, p.name) for p in parameters_of(RowState)}
        return build_case(obligation.kind, {**self.values, **inputs, **row}, obligation.invariant.parts)

    def _now(self, case: Case) -> Now:
        return now(case, self.obligation.release, self.obligation.runner)

    def _add(self, claim: bool) -> None:
        self.solver.add(self.definitions.truth(claim))

    def _value(self, symbol: Any) -> Any:
        expr = symbol.expr if isinstance(symbol, Term | Truth) else symbol
        if self._model is None or not z3.is_expr(expr):
            return expr
        value = self._model.eval(expr, model_completion=True)
        return z3.is_true(value) if z3.is_bool(value) else value.as_long()

    def _make_small(self, symbol: Any, parameter: Parameter) -> None:
        """Fix an input to its usual value, if the trace allows it, or else to the smallest that it allows."""
        usual = parameter.minimum if parameter.usual is None else int(parameter.usual)
        if not self._fix(symbol.expr == usual):
            low, high = parameter.minimum, self._value(symbol)
            while low < high:
                middle = (low + high) // 2
                if self._fix(symbol.expr <= middle):
                    high = self._value(symbol)
                else:
                    low = middle + 1
        self.solver.add(symbol.expr == self._value(symbol))

    def _fix(self, claim: z3.BoolRef) -> bool:
        self.solver.push()
        self.solver.add(claim)
        if found := self.solver.check() == z3.sat:
            self._model = self.solver.model()
        self.solver.pop()
        return found


def _same(one: RowState, other: RowState) -> bool:
    """Return whether two states are equal, field by field."""
    return all_of(
        *(
            any_of(all_of(a, b), negation(any_of(a, b))) if p.is_switch else a == b
            for p in parameters_of(RowState)
            for a, b in [(getattr(one, p.name), getattr(other, p.name))]
        )
    )


def _plain(state: RowState) -> dict[str, int | bool]:
    return {field.name: getattr(state, field.name) for field in fields(state)}
