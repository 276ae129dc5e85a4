"""Solver input as SMT-LIB 2 text, which any solver reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import z3

from proofs.files import OutputFile
from proofs.problem import Problem
from proofs.verdicts import Obligation

__all__ = ["clear_queries", "query", "save_query", "script"]

_FIRST_LINE = "; claim    "
"""What every saved query begins with, and only a saved query."""


def script(constraints: Iterable[z3.BoolRef], logic: str) -> str:
    """Return text that asks whether constraints can be met together."""
    return _text({"": list(constraints)}, logic)


def query(obligation: Obligation, problem: Problem, *, budget: str) -> str:
    """Return an obligation's own problem, with a header that says what it is; unsat means PROVED."""
    claim = obligation.invariant
    header = (
        f"{_FIRST_LINE[2:]}{claim.label}: {claim.sentence}",
        f"spec     {obligation.kind} on {obligation.runner.value}",
        f"release  {obligation.release.name} ({obligation.release.description})",
        f"pinned   {', '.join(f'{name}={value}' for name, value in problem.fixed.items()) or 'nothing'}",
        f"solvers  {', '.join(_versions())}",
        f"budget   {budget}",
        "unsat means that no case breaks the claim; a case counts only if it replays in plain Python",
    )
    named = {
        "": problem.definitions.facts,
        **{name: [given] for name, given in problem.assumptions.items()},
        "claim-fails": [z3.Not(problem.goal)],
    }
    return "".join(f"; {line}\n" for line in header) + _text(named, "QF_NIA")


def save_query(directory: Path, obligation: Obligation, problem: Problem, *, budget: str) -> Path:
    """Write an obligation's own problem to a file of a directory, and return its path.

    Raises:
        OSError: it cannot be written; nothing is left behind then.
    """
    parts = (
        obligation.release.name,
        obligation.kind,
        obligation.label,
        obligation.runner.value,
    )
    path = directory / (re.sub(r"[^\w.-]+", "-", "-".join(parts)) + ".smt2")
    directory.mkdir(parents=True, exist_ok=True)
    OutputFile(path).write(query(obligation, problem, budget=budget), complete=True)
    return path


def clear_queries(directory: Path) -> None:
    """Remove the queries that an earlier run saved in a directory, and nothing else.

    Raises:
        OSError: one cannot be removed.
    """
    for path in directory.glob("*.smt2"):
        with path.open("rb") as file:
            is_saved = file.read(len(_FIRST_LINE)) == _FIRST_LINE.encode()
        if is_saved:
            path.unlink()


def _text(named: Mapping[str, Sequence[z3.BoolRef]], logic: str) -> str:
    context = next((known.ctx for group in named.values() for known in group), None)
    declared, lines = z3.Solver(ctx=context), []
    for name, constraints in named.items():
        for constraint in constraints:
            declared.add(constraint)
            text = constraint.sexpr()
            lines.append(f"(assert (! {text} :named |{name}|))" if name else f"(assert {text})")
    symbols = declared.sexpr().split("(assert", 1)[0].strip()  # a long name's declaration takes two lines
    return "\n".join([f"(set-logic {logic})", symbols, *lines, "(check-sat)"]) + "\n"


def _versions() -> list[str]:
    found = []
    for name in ("z3-solver", "cvc5"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found
