"""A second opinion on a claim: another route, by another solver.

The route is `proofs.opaque`: a chain of links, each linear, from the assumptions to the goal. Z3 looks for
the chain; what counts is that the solver asked here proves each link by itself. Where there is no chain, cvc5
is asked the claim as it stands, within a small limit. An opinion is never stronger than its route: only a
direct answer can speak against a claim.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import z3

from proofs.lemmas import LEMMAS
from proofs.opaque import Proof, Unproved, opaque_proof
from proofs.problem import Problem
from proofs.smtlib import script

__all__ = [
    "LINK_RLIMIT",
    "Opinion",
    "SolverMissing",
    "Stance",
    "require_solver",
    "second_opinion",
    "unproved_lemmas",
]

LINK_RLIMIT = 1_000_000
"""Resources, in the solver's own units, that one link may take; a link takes a small part of them."""
_LINK_MILLISECONDS = 5_000
_DIRECT_MILLISECONDS = 2_000
"""A claim as it stands is seldom easy for cvc5: it is asked shortly."""
_SOLVERS = ("z3", "cvc5")


class SolverMissing(Exception):
    """The solver is not installed; the message is one line that says what to do."""


class Stance(enum.Enum):
    """What a second opinion says of a claim."""

    PROVED = "PROVED"
    """The solver proved every link of a chain, or the claim itself."""
    NOT_PROVED = "NOT_PROVED"
    """Nothing can be said on this route."""
    REFUTES = "REFUTES"
    """The solver has a case that breaks the claim itself; it is not replayed here."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A second opinion and what it rests on.

    Attributes:
        solver: who was asked.
        stance: what it says.
        detail: the route of a proof, or why there is none.
        seconds: the time that it took, search included.
        lemmas: the lemmas that the proof used.
        assumptions: the assumptions that the proof used; none are known of a direct one.
    """

    solver: str
    stance: Stance
    detail: str
    seconds: float
    lemmas: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def require_solver(solver: str) -> None:
    """Check that a solver can be asked.

    Raises:
        SolverMissing: it is not known, or not installed.
    """
    if solver not in _SOLVERS:
        raise SolverMissing(f"there is no solver {solver!r}; there are {', '.join(_SOLVERS)}")
    if find_spec(solver) is None:
        raise SolverMissing(f"{solver} is not installed: pip install 'rowbound[{solver}]'")


def second_opinion(problem: Problem, solver: str = "cvc5") -> Opinion:
    """Prove a claim by the lemmas, each link by this solver, or else ask cvc5 the claim itself.

    Raises:
        SolverMissing: the solver is not installed.
    """
    require_solver(solver)
    started = time.perf_counter()
    stance, detail, proof = _by_lemmas(problem, solver)
    if stance is Stance.NOT_PROVED and solver == "cvc5":
        stance, detail = _directly(problem, detail)
    return Opinion(
        solver,
        stance,
        detail,
        time.perf_counter() - started,
        proof.lemmas if proof else (),
        proof.assumptions if proof else (),
    )


def unproved_lemmas(solver: str) -> tuple[str, ...]:
    """Return the lemmas that a solver does not prove from those before them: none, or it is not to be asked.

    Raises:
        SolverMissing: the solver is not installed.
    """
    require_solver(solver)
    earlier: set[str] = set()
    unproved = []
    for known in LEMMAS:
        proved = _ask(solver, known.denied(), "QF_NIA", _LINK_MILLISECONDS) == "unsat"
        if not (proved and known.rests_on <= earlier):
            unproved.append(known.name)
        earlier.add(known.name)
    return tuple(unproved)


def _by_lemmas(problem: Problem, solver: str) -> tuple[Stance, str, Proof | None]:
    try:
        proof = opaque_proof(problem)
    except Unproved as missing:
        return Stance.NOT_PROVED, str(missing), None
    for link in proof.links:
        denied = (*link.premises.values(), z3.Not(link.claim))
        if (answer := _ask(solver, denied, "QF_LIA", _LINK_MILLISECONDS)) != "unsat":
            return Stance.NOT_PROVED, f"{solver} does not follow {link.name} ({answer})", None
    count = len(proof.links)
    return Stance.PROVED, f"{count} linear link{'s' * (count != 1)}", proof


def _directly(problem: Problem, why: str) -> tuple[Stance, str]:
    known = (*problem.definitions.facts, *problem.assumptions.values())
    divisors = problem.definitions.divisors
    if divisors:
        zero = z3.Or(*(divisor <= 0 for divisor in divisors))
        if _ask("cvc5", (*known, zero), "QF_NIA", _DIRECT_MILLISECONDS) != "unsat":
            return Stance.NOT_PROVED, f"{why}; nor directly: a divisor may not be positive"
    answer = _ask("cvc5", (*known, z3.Not(problem.goal)), "QF_NIA", _DIRECT_MILLISECONDS)
    if answer == "unsat":
        return Stance.PROVED, "directly"
    if answer == "sat" and not problem.definitions.over_approximated:
        return Stance.REFUTES, "cvc5 has a case that breaks the claim"
    return Stance.NOT_PROVED, f"{why}; nor directly ({answer})"


def _ask(solver: str, constraints: Sequence[z3.BoolRef], logic: str, milliseconds: int) -> str:
    """Return "sat", "unsat" or what else there is to say; both solvers stop by themselves at a limit."""
    if solver == "cvc5":
        return _ask_cvc5(script(constraints, logic), milliseconds)
    asked = z3.Solver(ctx=constraints[0].ctx)
    asked.set("rlimit", LINK_RLIMIT)
    asked.set("timeout", milliseconds)
    asked.add(*constraints)
    return str(asked.check())


def _ask_cvc5(text: str, milliseconds: int) -> str:
    """Return cvc5's answer to a script; the text is all that passes between the solvers."""
    import cvc5  # noqa: PLC0415  # an extra

    solver: Any = cvc5.Solver()
    solver.setOption("rlimit-per", str(LINK_RLIMIT))
    solver.setOption("tlimit-per", str(milliseconds))
    parser: Any = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "query")
    symbols = parser.getSymbolManager()
    answer = ""
    try:
        while not (command := parser.nextCommand()).isNull():
            answer = command.invoke(solver, symbols).strip() or answer
    except RuntimeError as error:
        return f"error: {str(error).splitlines()[0]}"
    return answer if answer in ("sat", "unsat") else "unknown"
