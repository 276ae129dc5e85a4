"""Stored costs: what each claim may cost the solver before somebody has to look.

The solver's count of its work is the same on every run of one version, so that a claim which suddenly costs
more is told before it becomes UNKNOWN. The file names the version that it was stored with; costs of another
one are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proofs.files import OutputFile, version
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = ["CeilingsError", "Comparison", "compare", "store"]

_SCHEMA = "rowbound.ceilings/1"
_ROOM = 10
"""A ceiling is a tenth above the cost that was measured."""


class CeilingsError(Exception):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of the costs.

    Attributes:
        drifted: a line for each claim above its ceiling, without one, or with one but not asked any more.
        note: why nothing was compared; empty if it was.
    """

    drifted: tuple[str, ...] = ()
    note: str = ""


def store(path: Path, asked: Sequence[Obligation], outcomes: Mapping[int, Outcome]) -> None:
    """Write the costs of a run's proofs as its ceilings.

    Raises:
        OSError: the file cannot be written.
    """
    ceilings = {name: cost + cost // _ROOM for name, cost in _costs(asked, outcomes)}
    document = {"schema": _SCHEMA, "z3-solver": version("z3-solver"), "ceilings": ceilings}
    OutputFile(path).write(json.dumps(document, indent=1) + "\n", complete=True)


def compare(path: Path, asked: Sequence[Obligation], outcomes: Mapping[int, Outcome]) -> Comparison:
    """Hold the costs of a run's proofs against the stored ceilings.

    Raises:
        CeilingsError: there is no such file, or it is not one of these.
    """
    stored, ceilings = _read(path)
    if stored != (here := version("z3-solver")):
        return Comparison(note=f"costs not compared: {path} is of z3-solver {stored}, here is {here}")
    costs = dict(_costs(asked, outcomes))
    above = [
        f"{name} costs {cost:,}, above its ceiling of {ceilings[name]:,}"
        for name, cost in costs.items()
        if cost > ceilings.get(name, cost)
    ]
    new = [
        f"{name} costs {cost:,} and has no ceiling" for name, cost in costs.items() if name not in ceilings
    ]
    kinds = {obligation.kind for obligation in asked}
    gone = [
        f"{name} has a ceiling and was not proved in this run"
        for name in ceilings
        if name not in costs and name.split()[0] in kinds
    ]
    return Comparison((*above, *new, *gone))


def _costs(asked: Sequence[Obligation], outcomes: Mapping[int, Outcome]) -> Iterable[tuple[str, int]]:
    for index, obligation in enumerate(asked):
        outcome = outcomes.get(index)
        if outcome is not None and outcome.verdict is Verdict.PROVED:
            yield f"{obligation.kind} {obligation.runner.value} {obligation.label}", outcome.rlimit


def _read(path: Path) -> tuple[str | None, dict[str, int]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA:
            raise CeilingsError(f"{path} has the layout {document['schema']}, not {_SCHEMA}")
        return document["z3-solver"], {str(name): int(cost) for name, cost in document["ceilings"].items()}
    except OSError as error:
        raise CeilingsError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CeilingsError(
            f"{path} is no file of ceilings ({error}); write one with --store-ceilings"
        ) from error
