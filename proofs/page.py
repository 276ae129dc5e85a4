"""The outcome of a run as one HTML page to read, link to and print: no scripts, no network, no other files.

Needs the extra `report` (jinja2, matplotlib). Everything that comes from outside is escaped by the template.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from invariants import ASSUMPTIONS, INVARIANTS, RELEASES, Invariant, describe_kind
from proofs.drawing import row_svg
from proofs.emit import test_file
from proofs.explain import ENTRIES, Entry
from proofs.files import Run, versions
from proofs.plots import plot_svg, sweep
from proofs.verdicts import (
    Counterexample,
    Obligation,
    Outcome,
    TraceStep,
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
_WORST_FIRST = (
    Verdict.ERROR, Verdict.REFUTED, Verdict.VACUOUS, Verdict.UNKNOWN, Verdict.SKIPPED, Verdict.PROVED
)  # fmt: skip
_NOTHING = Markup()
_OTHER_FINDINGS = (Verdict.ERROR, Verdict.VACUOUS, Verdict.UNKNOWN, Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One family's place in the matrix: its worst verdict and how many claims have it; `anchor` says more."""

    verdict: str
    sign: str
    count: int
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
    """Return (runner, family of claims) pairs, by family, in the order in which they were asked."""
    families = list(dict.fromkeys(o.invariant.name for o in run.asked))
    runners = sorted({o.runner.value for o in run.asked})
    asked = {(o.runner.value, o.invariant.name) for o in run.asked}
    return [(runner, name) for name in families for runner in runners if (runner, name) in asked]


def _matrix(run: Run, outcomes: Mapping[int, Outcome]) -> list[tuple[str, list[_Cell | None]]]:
    """Return a row of cells for each spec type, a cell for each family; None where nothing is asked."""
    families: dict[tuple[str, str, str], list[int]] = {}
    for index, o in enumerate(run.asked):
        families.setdefault((o.kind, o.runner.value, o.invariant.name), []).append(index)
    cells = {key: _cell(indices, outcomes) for key, indices in families.items()}
    return [
        (kind, [cells.get((kind, *column)) for column in _columns(run)])
        for kind in dict.fromkeys(o.kind for o in run.asked)
    ]


def _cell(indices: Sequence[int], outcomes: Mapping[int, Outcome]) -> _Cell:
    """Return the worst that is known of some claims, with how many they are."""
    decided = {index: outcomes[index].verdict for index in indices if index in outcomes}
    worst = next((v for v in _WORST_FIRST if v in decided.values()), None)
    if worst is None or (worst in (Verdict.PROVED, Verdict.SKIPPED) and len(decided) < len(indices)):
        return _Cell("undecided", "…", len(indices), "")
    first = next(index for index, verdict in decided.items() if verdict is worst)
    count = sum(verdict is worst for verdict in decided.values())
    return _Cell(worst.value, _SIGNS[worst], count, "" if worst is Verdict.PROVED else _anchor(first))


def _anchor(index: int) -> str:
    return f"claim-{index + 1}"


def _findings(run: Run, outcomes: Mapping[int, Outcome], verdict: Verdict) -> list[_Finding]:
    return [
        _Finding(_anchor(index), run.asked[index], run.asked[index].label, outcome)
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
        obligation.label,
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
    """Return (step, what it was given and what it changed) pairs of a counterexample that is a sequence."""
    return [(step.name, "; ".join(filter(None, (_given(step), _changes(step))))) for step in found.trace]


def _given(step: TraceStep) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in step.given.items())


def _changes(step: TraceStep) -> str:
    return ", ".join(
        f"{name} {_shown(step.before[name])} → {_shown(value)}"
        for name, value in step.after.items()
        if step.before[name] != value
    )


def replay_command(run: Run, obligation: Obligation, found: Counterexample) -> str:
    """Return the command that finds this very case again."""
    subject = ["--width", run.width] if run.width else ["--release", run.release.name]
    pins = [f"{name}={_shown(found.values[name])}" for name in found.shown]
    parts = [
        ["python", "-m", "proofs.check", *subject],
        ["--spec", obligation.kind],
        ["--runner", obligation.runner.value],
        ["--invariant", obligation.label],
        *(["--at", pin] for pin in pins),
    ]
    return " \\\n    ".join(shlex.join(part) for part in parts)


def _invariants(run: Run) -> list[tuple[Invariant, Entry]]:
    asked = {obligation.label for obligation in run.asked}
    return [(i, ENTRIES[i.label]) for i in INVARIANTS if i.label in asked]


def _assumptions(outcomes: Mapping[int, Outcome]) -> list[tuple[str, str, str, int]]:
    """Return each assumption that some proof of the run knew, and how many proofs used it."""
    known = {name for o in outcomes.values() for name in (*o.used, *o.unused)}
    used = Counter(name for outcome in outcomes.values() for name in outcome.used)
    givens = {given.name: given for i in INVARIANTS for given in i.givens}
    stated = [(a.name, a.sentence, a.source) for a in ASSUMPTIONS]
    stated += [(name, given.sentence, "") for name, given in givens.items()]
    return [(*told, used[told[0]]) for told in stated if told[0] in known]
