"""All releases at once: what is decided only once, the table of spec types by releases, and its JSON file.

Two claims are one and the same where the formulas make the very same solver input of them: the same
parameters, constants, assumptions, definitions and goal, in two releases or for two spec types whose rows do
not differ. Such a claim is decided once, for the first that makes it, and the others take its outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from invariants import SPEC_KINDS, Runner, parameters_for
from proofs.files import versions
from proofs.report import STYLES, JsonReport, outcome_lines, run_document, tally
from proofs.verdicts import Obligation, Outcome, Verdict, exit_code

__all__ = ["ALL", "MATRIX_SCHEMA", "Matrix", "MatrixReport", "fixed_otherwise", "shared_claims"]

ALL = "all"
"""What `--release` takes in place of a release's name."""
MATRIX_SCHEMA = "rowbound.check-matrix/1"
"""The JSON layout of a run over all releases, which `schemas/check-matrix-1.json` describes.

`releases` holds one `report.SCHEMA` document for each.
"""

_WORST = (
    Verdict.ERROR,
    Verdict.REFUTED,
    Verdict.VACUOUS,
    Verdict.UNKNOWN,
    Verdict.SKIPPED,
    Verdict.PROVED,
)
_NONE = "-"


def fixed_otherwise(asked: Sequence[Obligation], pins: Mapping[str, int | bool]) -> dict[int, Outcome]:
    """Find the claims of releases whose source fixes a pinned parameter at another value."""
    left_out = {}
    for index, obligation in enumerate(asked):
        known = obligation.release
        names = {p.name for p in parameters_for(obligation.kind, obligation.invariant.parts)}
        for name, value in pins.items():
            if name in names and known.constants.get(name, value) != value:
                detail = f"{known.name} fixes {name} at {str(known.constants[name]).lower()}"
                left_out[index] = Outcome(Verdict.SKIPPED, detail)
    return left_out


def shared_claims(
    asked: Mapping[int, Obligation],
    pins: Mapping[str, int | bool],
    *,
    pulse: Callable[[], None] = lambda: None,
) -> dict[int, int]:
    """Map each claim that an earlier one decides along with itself to that earlier one.

    `pulse` is called before each; an exception in it ends the search.
    """
    import z3  # noqa: PLC0415  # a deployment's check does without the solver

    from proofs.problem import build_problem  # noqa: PLC0415

    context = z3.Context()  # one for all: it numbers equal expressions alike for as long as they live
    first: dict[tuple[object, ...], int] = {}
    shared, kept = {}, []
    for index, obligation in asked.items():
        pulse()
        problem = build_problem(obligation, pins, context)
        kept.append(problem)
        key = (
            obligation.label,
            obligation.parameters(),
            tuple(problem.fixed.items()),
            tuple((name, given.get_id()) for name, given in problem.assumptions.items()),
            tuple(fact.get_id() for fact in problem.definitions.facts),
            tuple(divisor.get_id() for divisor in problem.definitions.divisors),
            problem.goal.get_id(),
        )
        earlier = first.setdefault(key, index)
        if earlier != index:
            shared[index] = earlier
    return shared


class Matrix:
    """What a run over all releases prints, once everything is decided."""

    def __init__(self, console: Console, asked: Sequence[Obligation], shared: Mapping[int, int]) -> None:
        """Remember what was asked, and which claims share an outcome."""
        self._console = console
        self._asked = asked
        self._shared = shared
        self._releases = list(dict.fromkeys(o.release.name for o in asked))

    def decided(self, outcomes: Mapping[int, Outcome]) -> None:
        """Print nothing yet: a table is printed whole."""

    def end(self, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        """Print the table, each distinct failure in full, what was shared, and the tally."""
        head, rows = self._cells(outcomes)
        if self._console.is_terminal:
            self._console.print(_rich_table(head, rows), soft_wrap=True)
        else:
            for line in _plain_lines(head, rows):
                self._console.print(Text(line), soft_wrap=True)
        for verdict, first, lines in self._failures(outcomes):
            claims = Text(f"\n{verdict.value:8} {first}")
            claims.stylize(STYLES[verdict], 1, 1 + len(verdict.value))
            self._console.print(claims, *map(Text, lines), sep="\n", soft_wrap=True)
        self._console.print()
        for line in self._sharing():
            self._console.print(Text(line), soft_wrap=True)
        alone = len(self._asked) - len(self._shared)
        self._console.print(
            f"\n{len(self._asked)} claims of {len(self._releases)} releases, {alone} of them different: "
            f"{tally(outcomes.values())}; {seconds:.1f} s",
            soft_wrap=True,
        )

    def _cells(
        self, outcomes: Mapping[int, Outcome]
    ) -> tuple[list[str], list[list[tuple[Verdict | None, str]]]]:
        """Return the head and the rows of the table; a cell is the worst verdict of its claims."""
        cells: dict[tuple[str, Runner], dict[str, tuple[Verdict, str]]] = {}
        for index, obligation in enumerate(self._asked):
            row = cells.setdefault((obligation.kind, obligation.runner), {})
            found = outcomes[index]
            before = row.get(obligation.release.name)
            if before is None or _WORST.index(found.verdict) < _WORST.index(before[0]):
                row[obligation.release.name] = found.verdict, _short(found)
        rows: list[list[tuple[Verdict | None, str]]] = [
            [(None, kind), (None, runner.value), *(row.get(name, (None, _NONE)) for name in self._releases)]
            for (kind, runner), row in sorted(cells.items(), key=_place)
        ]
        return ["spec type", "", *self._releases], rows

    def _failures(self, outcomes: Mapping[int, Outcome]) -> list[tuple[Verdict, str, tuple[str, ...]]]:
        """Return each distinct failure: its verdict, the claims that fail in this very way, and its text."""
        groups: dict[tuple[Verdict, str, tuple[str, ...]], dict[str, list[str]]] = {}
        for index, obligation in enumerate(self._asked):
            found = outcomes[index]
            if found.verdict is Verdict.PROVED:
                continue
            lines = outcome_lines(obligation, found)[1:] or [f"{' ' * 9}{found.detail}"]
            who = groups.setdefault((found.verdict, obligation.label, tuple(lines)), {})
            who.setdefault(f"{obligation.kind} {obligation.runner.value}", []).append(obligation.release.name)
        failures = []
        for (verdict, invariant, text), who in groups.items():
            claims = "; ".join(f"{subject} of {', '.join(names)}" for subject, names in who.items())
            failures.append((verdict, f"{invariant:11} {claims}", text))
        return failures

    def _sharing(self) -> list[str]:
        """Return a line for each release with claims that another decides: how many, and whose."""
        counts: dict[str, Counter[str]] = {}
        for index, earlier in self._shared.items():
            of = counts.setdefault(self._asked[index].release.name, Counter())
            of[self._asked[earlier].release.name] += 1
        asked = Counter(obligation.release.name for obligation in self._asked)
        return [
            f"shared: of {asked[name]} claims of {name}, "
            + ", ".join(f"{n} as {'another of its own' if to == name else to}" for to, n in of.items())
            for name, of in counts.items()
        ]


def _place(item: tuple[tuple[str, Runner], object]) -> tuple[int, str]:
    """Keep the order of the spec types, whichever release has one first."""
    (kind, runner), _ = item
    return SPEC_KINDS.index(kind), runner.value


def _short(outcome: Outcome) -> str:
    """Return a cell's text: the verdict, or the numbers that clash."""
    found = outcome.counterexample
    if found is None or found.row is None:
        return outcome.verdict.value
    row = found.row
    if row.kind == "column":
        return f"column {row.wanted} of {row.width}"
    tokens = found.values["num_tokens"]
    return f"{tokens} token{'s' * (tokens != 1)}: {row.wanted} > {row.width}"


def _rich_table(head: Sequence[str], rows: Sequence[Sequence[tuple[Verdict | None, str]]]) -> Table:
    table = Table(box=SIMPLE)
    for title in head:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(text, style=STYLES[verdict] if verdict else "") for verdict, text in row))
    return table


def _plain_lines(head: Sequence[str], rows: Sequence[Sequence[tuple[Verdict | None, str]]]) -> list[str]:
    table = [list(head), *([text for _, text in row] for row in rows)]
    widths = [max(map(len, texts)) for texts in zip(*table, strict=True)]
    return [
        "  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


class MatrixReport(JsonReport):
    """The JSON file of a run over all releases: one document per release, and which claims are shared."""

    def __init__(
        self,
        path: Path,
        pins: Mapping[str, int | bool],
        asked: Sequence[Obligation],
        shared: Mapping[int, int],
    ) -> None:
        """Write the incomplete marker, as `JsonReport` does."""
        self._shared = shared
        super().__init__(path, ALL, pins, asked)

    def document(self, outcomes: Mapping[int, Outcome], code: int | None) -> dict[str, Any]:
        """Return the layout that `MATRIX_SCHEMA` names."""
        of: dict[str, list[int]] = {}
        for index, obligation in enumerate(self._asked):
            of.setdefault(obligation.release.name, []).append(index)
        documents = []
        for name, indices in of.items():
            pairs = [(self._asked[i], outcomes.get(i)) for i in indices]
            own = None if code is None else exit_code(found.verdict for _, found in pairs if found)
            documents.append(run_document(name, self._pins, pairs, own))
        whole = run_document(ALL, self._pins, [(o, outcomes.get(i)) for i, o in enumerate(self._asked)], code)
        return {
            "schema": MATRIX_SCHEMA,
            "pins": dict(self._pins),
            "versions": versions(),
            **{name: whole[name] for name in ("complete", "exit_code", "tally")},
            "releases": documents,
            "shared": [self._share(index, earlier) for index, earlier in self._shared.items()],
        }

    def _share(self, index: int, earlier: int) -> dict[str, dict[str, str]]:
        return {"claim": _named(self._asked[index]), "as": _named(self._asked[earlier])}


def _named(obligation: Obligation) -> dict[str, str]:
    return {
        "release": obligation.release.name,
        "spec": obligation.kind,
        "invariant": obligation.label,
        "runner": obligation.runner.value,
    }
