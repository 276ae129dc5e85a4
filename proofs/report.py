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

__all__ = [
    "SCHEMA",
    "STYLES",
    "JsonReport",
    "details",
    "outcome_entry",
    "outcome_lines",
    "print_outcome",
    "run_document",
    "tally",
]

SCHEMA = "rowbound.check/1"
"""The name and version of the JSON layout; a change that a reader can notice raises the number."""

STYLES = {
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
    line.stylize(STYLES[outcome.verdict], 0, len(outcome.verdict.value))
    console.print(line, *map(Text, rest), sep="\n", soft_wrap=True)


def outcome_lines(obligation: Obligation, outcome: Outcome, *, encoding: str = "utf-8") -> list[str]:
    """Return the lines that a person reads about one obligation, drawn in signs that the encoding has."""
    line = (
        f"{outcome.verdict.value:8} {obligation.kind:22} {obligation.runner.value:2} "
        f"{obligation.label:28} {outcome.seconds * 1000:5.0f} ms  rlimit {outcome.rlimit:9,}"
    )
    match outcome.verdict:
        case Verdict.PROVED:
            return [f"{line}  uses {', '.join(outcome.used)}{_closeness(outcome)}{_second(outcome)}"]
        case Verdict.REFUTED if outcome.counterexample is not None:
            return [line, *_counterexample_lines(outcome.counterexample, encoding)]
    return [f"{line}  {outcome.detail}"]


def _second(outcome: Outcome) -> str:
    """Say by what route a second solver proved the claim too."""
    return f"; {outcome.second}" if outcome.second else ""


def _closeness(outcome: Outcome) -> str:
    """Say how close a case comes to breaking a claim that counts entries."""
    match outcome.slack:
        case None:
            return ""
        case 0:
            return "; tight"
        case slack:
            return f"; {slack} to spare"


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
        *_trace_lines(found),
    ]


def _trace_lines(found: Counterexample) -> list[str]:
    """Return the steps that lead to the fault, each with what it was given and what it changed in the row."""
    if not found.reached:
        return []
    lines = [f"{_INDENT}{found.reached}{':' * bool(found.trace)}"]
    for number, step in enumerate(found.trace, 1):
        given = ", ".join(f"{name} {_shown(value)}" for name, value in step.given.items())
        changed = ", ".join(
            f"{name} {_shown(step.before[name])} -> {_shown(step.after[name])}"
            for name in step.after
            if step.before[name] != step.after[name]
        )
        lines.append(f"{_INDENT}  {number}. {step.name:13} {given}")
        lines.append(f"{_INDENT}     {'':13} {changed or 'nothing changes'}")
    return lines


def _shown(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tally(outcomes: Iterable[Outcome]) -> str:
    """Return the number of outcomes of each verdict, zeros included."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)


def run_document(
    release: str,
    pins: Mapping[str, int | bool],
    decided: Sequence[tuple[Obligation, Outcome | None]],
    exit_code: int | None,
) -> dict[str, Any]:
    """Return what the JSON file says about one release, in the layout that `SCHEMA` names."""
    counts = Counter(outcome.verdict for _, outcome in decided if outcome is not None)
    return {
        "schema": SCHEMA,
        "release": release,
        "pins": dict(pins),
        "versions": versions(),
        "complete": exit_code is not None,
        "exit_code": exit_code,
        "tally": {verdict.value: counts[verdict] for verdict in Verdict},
        "obligations": [outcome_entry(obligation, outcome) for obligation, outcome in decided],
    }


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
        self._release, self._pins, self._asked = release, pins, asked
        self.write({}, exit_code=None)

    def document(self, outcomes: Mapping[int, Outcome], code: int | None) -> dict[str, Any]:
        """Return what the file says; without an exit code it is incomplete."""
        pairs = [(obligation, outcomes.get(index)) for index, obligation in enumerate(self._asked)]
        return run_document(self._release, self._pins, pairs, code)

    def write(self, outcomes: Mapping[int, Outcome], *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""
        text = json.dumps(self.document(outcomes, exit_code), indent=2) + "\n"
        self._file.write(text, complete=exit_code is not None)


def outcome_entry(obligation: Obligation, outcome: Outcome | None) -> dict[str, Any]:
    """Return what a JSON file says about one claim."""
    entry: dict[str, Any] = {
        "spec": obligation.kind,
        "invariant": obligation.label,
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
        "witness": None if outcome.witness is None else dict(outcome.witness),
        "slack": outcome.slack,
        "second": outcome.second,
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
            "reached": found.reached,
            "trace": [
                {"step": s.name, "given": dict(s.given), "before": dict(s.before), "after": dict(s.after)}
                for s in found.trace
            ],
        }
    return entry
