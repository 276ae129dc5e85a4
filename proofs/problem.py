"""One obligation as solver input: symbols, assumptions, definitions and goal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from invariants import Case, build_case
from proofs.steps import cut_for, steps_for
from proofs.terms import Definitions, Term, Truth
from proofs.verdicts import Obligation

__all__ = ["SIZES", "Problem", "assumed", "build_problem", "symbolic_case"]

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
        cut: what the goal needs of the request, to be proved first; then the goal is asked of the
            configuration alone. None where the goal is asked at once.
        configuration: the names of the assumptions about the configuration.
        margin: how many units the claim has to spare, where it counts any.
        nearest: preferences for a counterexample.
    """

    symbols: Mapping[str, Term | Truth]
    fixed: Mapping[str, int | bool]
    assumptions: Mapping[str, z3.BoolRef]
    definitions: Definitions
    steps: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    cut: z3.BoolRef | None
    configuration: frozenset[str]
    margin: z3.ArithRef | None
    nearest: tuple[z3.BoolRef, ...]

    def isolated(self) -> list[z3.BoolRef]:
        """Return the definitions that cut, goal and steps rest on; leaving out the others is always sound."""
        spoken = [self.goal, *self.steps, *(self.assumptions[name] for name in self.configuration - {SIZES})]
        known, kept, rest = _names(spoken), [], [(fact, _names([fact])) for fact in self.definitions.facts]
        while found := [entry for entry in rest if {n for n in entry[1] if "!" in n} & known]:
            kept += [fact for fact, _ in found]
            known = known.union(*(names for _, names in found))
            rest = [entry for entry in rest if entry not in found]
        return kept

    def read(self, model: z3.ModelRef) -> dict[str, int | bool]:
        """Return every parameter's value in a model."""
        values: dict[str, int | bool] = dict(self.fixed)
        for name, symbol in self.symbols.items():
            value = model.eval(symbol.expr, model_completion=True)
            values[name] = value.as_long() if isinstance(symbol, Term) else z3.is_true(value)
        return values


def _names(claims: Iterable[z3.ExprRef]) -> set[str]:
    """Return the names of the unknowns in some claims."""
    names, waiting, seen = set(), list(claims), set()
    while waiting:
        expr = waiting.pop()
        if expr.get_id() in seen:
            continue
        seen.add(expr.get_id())
        if expr.num_args() == 0 and expr.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            names.add(expr.decl().name())
        waiting += expr.children()
    return names


def build_problem(
    obligation: Obligation,
    pins: Mapping[str, int | bool],
    context: z3.Context | None = None,
    *,
    with_steps: bool = False,
) -> Problem:
    """Run the formulas of `invariants` on symbols and collect what the solver needs.

    The steps help to prove the claim and are no part of what it says; they can be left out. Pinned
    parameters are plain numbers, so that arithmetic on them is done before the solver sees it.
    """
    definitions = Definitions(context)
    claim, release, runner = obligation.invariant, obligation.release, obligation.runner
    fixed = {**obligation.release.constants, **pins}
    case, symbols = symbolic_case(obligation, fixed, definitions)
    steps = steps_for(claim, case, release, runner) if with_steps else ()
    problem = Problem(
        symbols=symbols,
        fixed={name: fixed[name] for name in case.values() if name in fixed},
        assumptions=assumed(obligation, case, definitions) | _given(obligation, case, definitions),
        definitions=definitions,
        steps=tuple(map(definitions.truth, steps)),
        goal=definitions.truth(claim.holds(case, release, runner)),
        cut=None if (cut := cut_for(claim, case, runner)) is None else definitions.truth(cut),
        configuration=frozenset(a.name for a in claim.assumptions(case.spec, release) if not a.about_request),
        nearest=tuple(definitions.truth(near(case, release, runner)) for near in claim.nearest),
        margin=None if claim.margin is None else definitions.lift(claim.margin(case, release, runner)).expr,
    )
    if definitions.branched:
        raise TypeError(f"a formula branched on a symbolic value and went on, at {definitions.branched[0]}")
    return problem


def symbolic_case(
    obligation: Obligation, fixed: Mapping[str, int | bool], definitions: Definitions
) -> tuple[Case, dict[str, Term | Truth]]:
    """Return a case of which all is unknown that is not fixed, and the unknowns by name."""
    symbols: dict[str, Term | Truth] = {}
    for parameter in obligation.parameters():
        if parameter.name in fixed:
            continue
        symbols[parameter.name] = (
            definitions.switch(parameter.name)
            if parameter.is_switch
            else definitions.symbol(parameter.name, parameter.minimum)
        )
    values: dict[str, Any] = {**fixed, **symbols}
    return build_case(obligation.kind, values, obligation.invariant.parts), symbols


def assumed(obligation: Obligation, case: Case, definitions: Definitions) -> dict[str, z3.BoolRef]:
    """Return the rules that a claim takes as given, by name."""
    claim, release = obligation.invariant, obligation.release
    return {a.name: definitions.truth(a.holds(case, release)) for a in claim.assumptions(case.spec, release)}


def _given(obligation: Obligation, case: Case, definitions: Definitions) -> dict[str, z3.BoolRef]:
    claim, release, runner = obligation.invariant, obligation.release, obligation.runner
    return {g.name: definitions.truth(g.holds(case, release, runner)) for g in claim.givens}
