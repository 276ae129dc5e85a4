"""Stored costs: what each claim may cost the solver before somebody has to look.

The solver's count of its work is the same on every run of one version, so that a claim which suddenly costs
more is told before it becomes UNKNOWN. The file names the version that it was stored with; costs of another
one are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proofs.files import OutputFile, version
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = ["Ceilings", "CeilingsError", "Comparison", "read_ceilings", "store"]

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


def store(path: Path, release: str, asked: Sequence[Obligation], outcomes: Mapping[int, Outcome]) -> None:
    """Write the costs of a run's proofs as its ceilings.

    Raises:
        OSError: the file cannot be written.
    """
    ceilings = {name: cost + cost // _ROOM for name, cost in _costs(asked, outcomes).items()}
    document = {
        "schema": _SCHEMA,
        "z3-solver": version("z3-solver"),
        "release": release,
        "ceilings": ceilings,
    }
    OutputFile(path).write(json.dumps(document, indent=1) + "\n", complete=True)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Stored costs, read before anything is decided."""

    path: Path
    solver: str | None
    of: Mapping[str, int]

    def compare(
        self, every: Sequence[Obligation], asked: Sequence[Obligation], outcomes: Mapping[int, Outcome]
    ) -> Comparison:
        """Hold the costs of a run's proofs against them; `every` are all claims of the release."""
        if self.solver != (here := version("z3-solver")):
            return Comparison(
                note=f"costs not compared: {self.path} is of z3-solver {self.solver}, here is {here}"
            )
        costs, known = _costs(asked, outcomes), set(map(_name, every))
        unproved = set(map(_name, asked)) - costs.keys()
        above = [
            f"{name} costs {cost:,}, above its ceiling of {self.of[name]:,}"
            for name, cost in costs.items()
            if cost > self.of.get(name, cost)
        ]
        new = [
            f"{name} costs {cost:,} and has no ceiling" for name, cost in costs.items() if name not in self.of
        ]
        gone = [
            f"{name} has a ceiling and {'was not proved in this run' if name in known else 'is no claim'}"
            for name in self.of
            if name in unproved or name not in known
        ]
        return Comparison((*above, *new, *gone))


def read_ceilings(path: Path, release: str) -> Ceilings:
    """Read the ceilings of a release.

    Raises:
        CeilingsError: there is no such file, it is not one of these, or it is another release's.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA:
            raise CeilingsError(f"{path} has the layout {document['schema']}, not {_SCHEMA}")
        if document["release"] != release:
            raise CeilingsError(f"{path} has the ceilings of {document['release']}, not of {release}")
        ceilings = {str(name): int(cost) for name, cost in document["ceilings"].items()}
    except OSError as error:
        raise CeilingsError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CeilingsError(
            f"{path} is no file of ceilings ({error}); write one with --store-ceilings"
        ) from error
    return Ceilings(path, document["z3-solver"], ceilings)


def _name(obligation: Obligation) -> str:
    return f"{obligation.kind} {obligation.runner.value} {obligation.label}"


def _costs(asked: Sequence[Obligation], outcomes: Mapping[int, Outcome]) -> dict[str, int]:
    return {
        _name(asked[index]): outcome.rlimit
        for index, outcome in sorted(outcomes.items())
        if outcome.verdict is Verdict.PROVED
    }
