"""What a run prints and writes: a line per obligation, counterexamples, the tally, and the JSON file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from proofs.drawing import row_lines
from proofs.files import OutputFile, versions
from proofs.verdicts import Counterexample, Obligation, Outcome, Verdict

__all__ = ["SCHEMA", "JsonReport", "details", "outcome_lines", "print_outcome", "tally"]

SCHEMA = "rowbound.check/1"
"""The name and version of the JSON layout; a change that a reader can notice raises the number."""

_STYLES = {
    Verdict.PROVED: "green",
    Verdict.REFUTED: "bold red",
    Verdict.VACUOUS: "magenta",
    Verdict.UNKNOWN: "yellow",
    Verdict.ERROR: "bold magenta",
    Verdict.SKIPPED: "dim",
}
_INDENT = " " * 9


def print_outcome(console: Console, obligation: Obligation, outcome: Outcome) -> None:
    """Print one obligation's line and, if it is refuted, its counterexample."""
    first, *rest = outcome_lines(obligation, outcome, encoding=console.encoding)
    line = Text(first)
    line.stylize(_STYLES[outcome.verdict], 0, len(outcome.verdict.value))
    console.print(line, *map(Text, rest), sep="\n", soft_wrap=True)


def outcome_lines(obligation: Obligation, outcome: Outcome, *, encoding: str = "utf-8") -> list[str]:
    """Return the lines that a person reads about one obligation, drawn in signs that the encoding has."""
    line = (
        f"{outcome.verdict.value:8} {obligation.kind:22} {obligation.runner.value:2} "
        f"{obligation.invariant.name:11} {outcome.seconds * 1000:5.0f} ms  rlimit {outcome.rlimit:9,}"
    )
    match outcome.verdict:
        case Verdict.PROVED:
            return [f"{line}  uses {', '.join(outcome.used)}"]
        case Verdict.REFUTED if outcome.counterexample is not None:
            return [line, *_counterexample_lines(outcome.counterexample, encoding)]
    return [f"{line}  {outcome.detail}"]


def details(obligation: Obligation, outcome: Outcome) -> list[str]:
    """Return the lines below an obligation's first one, without their margin."""
    return [line.removeprefix(_INDENT) for line in outcome_lines(obligation, outcome)[1:]]


def _counterexample_lines(found: Counterexample, encoding: str) -> list[str]:
    kind = "smallest case that fails" if found.smallest else "a case that fails, perhaps not the smallest"
    values = ", ".join(f"{name} {_shown(found.values[name])}" for name in found.shown)
    width = max((len(quantity) for _, quantity, _ in found.chain), default=0)
    drawn = row_lines(found, encoding)
    return [
        f"{_INDENT}{kind}: {values}",
        *(f"{_INDENT}{side:9}  {quantity:{width}} = {line}" for side, quantity, line in found.chain),
        f"{_INDENT}{found.summary}",
        *(f"{_INDENT}{side:9}  {line}" for side, line in zip(("memory", ""), drawn, strict=False)),
    ]


def _shown(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tally(outcomes: Iterable[Outcome]) -> str:
    """Return the number of outcomes of each verdict, zeros included."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)


class JsonReport:
    """The JSON file of a run: marked incomplete from the start, promoted at the end.

    `name` is what a message calls it.
    """

    name = "JSON report"

    def __init__(
        self, path: Path, release: str, pins: Mapping[str, int | bool], asked: Sequence[Obligation]
    ) -> None:
        """Write the incomplete marker, which also shows that the path can be written.

        Raises:
            OSError: it cannot.
        """
        self._file = OutputFile(path)
        self._asked = asked
        self._head: dict[str, Any] = {
            "schema": SCHEMA,
            "release": release,
            "pins": dict(pins),
            "versions": versions(),
        }
        self.write({}, exit_code=None)

    def write(self, outcomes: Mapping[int, Outcome], *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""
        counts = Counter(outcome.verdict for outcome in outcomes.values())
        document = {
            **self._head,
            "complete": exit_code is not None,
            "exit_code": exit_code,
            "tally": {verdict.value: counts[verdict] for verdict in Verdict},
            "obligations": [
                _entry(obligation, outcomes.get(index)) for index, obligation in enumerate(self._asked)
            ],
        }
        self._file.write(json.dumps(document, indent=2) + "\n", complete=exit_code is not None)


def _entry(obligation: Obligation, outcome: Outcome | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "spec": obligation.kind,
        "invariant": obligation.invariant.name,
        "runner": obligation.runner.value,
        "verdict": None,
    }
    if outcome is None:
        return entry
    entry |= {
        "verdict": outcome.verdict.value,
        "detail": outcome.detail,
        "assumptions": {"used": outcome.used, "unused": outcome.unused},
        "seconds": round(outcome.seconds, 4),
        "rlimit": outcome.rlimit,
        "counterexample": None,
    }
    if found := outcome.counterexample:
        entry["counterexample"] = {
            "values": dict(found.values),
            "chain": [
                {"side": side, "quantity": quantity, "arithmetic": line}
                for side, quantity, line in found.chain
            ],
            "summary": found.summary,
            "smallest": found.smallest,
        }
    return entry
