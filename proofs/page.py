"""The outcome of a run as one HTML page to read, link to and print: no scripts, no network, no other files.

Needs the extra `report` (jinja2, matplotlib). Everything that comes from outside is escaped by the template.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from invariants import ASSUMPTIONS, INVARIANTS, RELEASES, Assumption, Invariant, describe_kind
from proofs.drawing import row_svg
from proofs.emit import test_file
from proofs.explain import ENTRIES, Entry
from proofs.files import Run, label, versions
from proofs.plots import plot_svg, sweep
from proofs.verdicts import (
    READ_BY_KERNEL,
    READ_BY_KERNEL_SENTENCE,
    Counterexample,
    Obligation,
    Outcome,
    Verdict,
)

__all__ = ["page_text", "replay_command"]

_SIGNS: Mapping[Verdict, str] = {
    Verdict.PROVED: "✓",
    Verdict.REFUTED: "✗",
    Verdict.VACUOUS: "∅",
    Verdict.UNKNOWN: "?",
    Verdict.ERROR: "!",
    Verdict.SKIPPED: "–",  # noqa: RUF001  # the dash of an empty cell
}
_NOTHING = Markup()
_OTHER_FINDINGS = (Verdict.ERROR, Verdict.VACUOUS, Verdict.UNKNOWN, Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One claim's place in the matrix; `anchor` is where the page says more of it."""

    verdict: str
    sign: str
    anchor: str


@dataclass(frozen=True, slots=True)
class _Finding:
    """A claim that is not proved, as the page shows it."""

    anchor: str
    obligation: Obligation
    label: str
    outcome: Outcome
    found: Counterexample | None = None
    sizes: Sequence[tuple[str, str]] = ()
    drawing: Markup = _NOTHING
    plot: Markup = _NOTHING
    command: str = ""
    test: str = ""
    trace: Sequence[tuple[str, str]] = ()


def page_text(run: Run, outcomes: Mapping[int, Outcome], exit_code: int | None) -> str:
    """Return the page; without an exit code the run is incomplete, and the page says so first."""
    environment = Environment(
        loader=PackageLoader("proofs", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    decided = {index: outcomes[index] for index in sorted(outcomes)}
    counts = Counter(outcome.verdict for outcome in decided.values())
    return environment.get_template("page.html").render(
        run=run,
        headline=_headline(run, counts, complete=exit_code is not None),
        mood=_mood(counts, complete=exit_code is not None),
        complete=exit_code is not None,
        decided=len(decided),
        tally=[(verdict.value, _SIGNS[verdict], counts[verdict]) for verdict in Verdict],
        columns=_columns(run),
        matrix=_matrix(run, decided),
        kinds=[(kind, describe_kind(kind)) for kind in dict.fromkeys(o.kind for o in run.asked)],
        refuted=[_refuted(run, i, o) for i, o in decided.items() if o.counterexample],
        others=[
            (verdict.value, ENTRIES[verdict.value], found)
            for verdict in _OTHER_FINDINGS
            if (found := _findings(run, decided, verdict))
        ],
        invariants=_invariants(run),
        assumptions=_assumptions(decided),
        meanings=[(v.value, _SIGNS[v], ENTRIES[v.value]) for v in Verdict],
        versions=versions(),
    )


def _headline(run: Run, counts: Mapping[Verdict, int], *, complete: bool) -> str:
    total = len(run.asked)
    if not complete:
        decided = sum(counts.values())
        return f"Incomplete: {decided} of {total} claims decided"
    if bad := counts[Verdict.REFUTED]:
        return f"{bad} of {total} claims {'is' if bad == 1 else 'are'} refuted"
    if bad := counts[Verdict.ERROR] + counts[Verdict.VACUOUS] + counts[Verdict.UNKNOWN]:
        return f"{bad} of {total} claims {'is' if bad == 1 else 'are'} not decided"
    if skipped := counts[Verdict.SKIPPED]:
        proved = counts[Verdict.PROVED]
        return f"{proved} claim{'s' * (proved != 1)} proved, {skipped} skipped"
    return "The one claim is proved" if total == 1 else f"All {total} claims are proved"


def _mood(counts: Mapping[Verdict, int], *, complete: bool) -> str:
    if not complete:
        return "UNKNOWN"
    order = (Verdict.ERROR, Verdict.REFUTED, Verdict.VACUOUS, Verdict.UNKNOWN)
    return next((verdict.value for verdict in order if counts[verdict]), Verdict.PROVED.value)


def _columns(run: Run) -> list[tuple[str, str]]:
    """Return (runner, claim) pairs, by claim, in the order in which they were asked."""
    labels = list(dict.fromkeys(map(label, run.asked)))
    runners = sorted({o.runner.value for o in run.asked})
    asked = {(o.runner.value, label(o)) for o in run.asked}
    return [(runner, name) for name in labels for runner in runners if (runner, name) in asked]


def _matrix(run: Run, outcomes: Mapping[int, Outcome]) -> list[tuple[str, list[_Cell | None]]]:
    """Return a row of cells for each spec type; None where nothing is asked."""
    cells: dict[tuple[str, str, str], _Cell] = {}
    for index, obligation in enumerate(run.asked):
        outcome = outcomes.get(index)
        cells[obligation.kind, obligation.runner.value, label(obligation)] = _Cell(
            outcome.verdict.value if outcome else "undecided",
            _SIGNS[outcome.verdict] if outcome else "…",
            _anchor(index) if outcome and outcome.verdict is not Verdict.PROVED else "",
        )
    return [
        (kind, [cells.get((kind, *column)) for column in _columns(run)])
        for kind in dict.fromkeys(o.kind for o in run.asked)
    ]


def _anchor(index: int) -> str:
    return f"claim-{index + 1}"


def _findings(run: Run, outcomes: Mapping[int, Outcome], verdict: Verdict) -> list[_Finding]:
    return [
        _Finding(_anchor(index), run.asked[index], label(run.asked[index]), outcome)
        for index, outcome in outcomes.items()
        if outcome.verdict is verdict
    ]


def _refuted(run: Run, index: int, outcome: Outcome) -> _Finding:
    obligation, found = run.asked[index], outcome.counterexample
    if found is None:
        raise ValueError(f"{obligation.kind} has no counterexample to show")
    drawn = sweep(obligation, found)
    is_described = obligation.release.name in {release.name for release in RELEASES}
    return _Finding(
        _anchor(index),
        obligation,
        label(obligation),
        outcome,
        found,
        [(name, _shown(found.values[name])) for name in found.shown],
        Markup(row_svg(found)),  # noqa: S704  # made here; what comes from outside is escaped in it
        Markup(plot_svg(drawn, _anchor(index))) if drawn else _NOTHING,  # noqa: S704  # as above
        replay_command(run, obligation, found),
        test_file([(obligation, outcome)]) if is_described else "",
        _trace(found),
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _trace(found: Counterexample) -> list[tuple[str, str]]:
    """Return (step, what it changed) pairs of a counterexample that is a sequence of steps."""
    steps: Sequence[Any] = getattr(found, "trace", ())
    return [(_step_name(step), _changes(step)) for step in steps]


def _step_name(step: Any) -> str:
    return str(getattr(step, "name", None) or getattr(step, "step", ""))


def _changes(step: Any) -> str:
    before, after = dict(getattr(step, "before", {})), dict(getattr(step, "after", {}))
    changed = [
        f"{name} {_shown(before[name])} → {_shown(after[name])}"
        if name in before
        else f"{name} {after[name]}"
        for name in after
        if before.get(name) != after[name]
    ]
    return ", ".join(changed) or "nothing changes"


def replay_command(run: Run, obligation: Obligation, found: Counterexample) -> str:
    """Return the command that finds this very case again."""
    subject = ["--width", run.width] if run.width else ["--release", run.release.name]
    pins = [f"{name}={_shown(found.values[name])}" for name in found.shown]
    parts = [
        ["python", "-m", "proofs.check", *subject],
        ["--spec", obligation.kind],
        ["--runner", obligation.runner.value],
        ["--invariant", obligation.invariant.name],
        *(["--at", pin] for pin in pins),
    ]
    return " \\\n    ".join(shlex.join(part) for part in parts)


def _invariants(run: Run) -> list[tuple[Invariant, Entry]]:
    asked = {obligation.invariant.name for obligation in run.asked}
    return [(i, ENTRIES[i.name]) for i in INVARIANTS if i.name in asked]


def _assumptions(outcomes: Mapping[int, Outcome]) -> list[tuple[Assumption, int]]:
    """Return each assumption that some proof of the run knew, and how many proofs used it."""
    known = {name for o in outcomes.values() for name in (*o.used, *o.unused)}
    used = Counter(name for outcome in outcomes.values() for name in outcome.used)
    reads = Assumption(READ_BY_KERNEL, READ_BY_KERNEL_SENTENCE, "", lambda _case, _release: True)
    return [(a, used[a.name]) for a in (*ASSUMPTIONS, reads) if a.name in known]
