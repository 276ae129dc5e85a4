"""One obligation as solver input: symbols, assumptions, definitions and goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import z3

from invariants import Case, assumptions_for, build_case
from proofs.steps import steps_for
from proofs.terms import Definitions, Term, Truth, truth_expr
from proofs.verdicts import READ_BY_KERNEL, Obligation

__all__ = ["SIZES", "Problem", "build_problem"]

SIZES = "sizes"
"""The assumption that every definition rests on; it counts as used by every proof."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Solver input for one obligation.

    Attributes:
        symbols: the parameters that are unknown, by name.
        fixed: the parameters that are not, by name.
        assumptions: named givens, `SIZES` first.
        definitions: what the terms of the formulas brought in.
        steps: intermediate claims, to be proved before they are used.
        goal: the claim.
    """

    symbols: Mapping[str, Term | Truth]
    fixed: Mapping[str, int | bool]
    assumptions: Mapping[str, z3.BoolRef]
    definitions: Definitions
    steps: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef

    def read(self, model: z3.ModelRef) -> dict[str, int | bool]:
        """Return every parameter's value in a model."""
        values: dict[str, int | bool] = dict(self.fixed)
        for name, symbol in self.symbols.items():
            value = model.eval(symbol.expr, model_completion=True)
            values[name] = value.as_long() if isinstance(symbol, Term) else z3.is_true(value)
        return values


def build_problem(
    obligation: Obligation, pins: Mapping[str, int | bool], *, with_steps: bool = True
) -> Problem:
    """Run the formulas of `invariants` on symbols and collect what the solver needs.

    The steps help to prove the claim and are no part of what it says; they can be left out. Pinned
    parameters are plain numbers, so that arithmetic on them is done before the solver sees it.
    """
    definitions = Definitions()
    fixed = {**obligation.release.constants, **pins}
    values: dict[str, Any] = {}
    symbols: dict[str, Term | Truth] = {}
    for parameter in obligation.parameters():
        if parameter.name in fixed:
            continue
        symbols[parameter.name] = (
            definitions.switch(parameter.name)
            if parameter.is_switch
            else definitions.symbol(parameter.name, parameter.minimum)
        )
    values = {**fixed, **symbols}
    case = build_case(obligation.kind, values)
    steps = steps_for(case, obligation.release, obligation.runner) if with_steps else ()
    return Problem(
        symbols=symbols,
        fixed={name: fixed[name] for name in case.values() if name in fixed},
        assumptions=_assumptions(obligation, case),
        definitions=definitions,
        steps=tuple(truth_expr(step) for step in steps),
        goal=truth_expr(obligation.invariant.holds(case, obligation.release, obligation.runner)),
    )


def _assumptions(obligation: Obligation, case: Case) -> dict[str, z3.BoolRef]:
    givens = {
        assumption.name: truth_expr(assumption.holds(case, obligation.release))
        for assumption in assumptions_for(case.spec, obligation.release)
    }
    if obligation.invariant.given is not None:
        givens[READ_BY_KERNEL] = truth_expr(obligation.invariant.given(case))
    return givens
