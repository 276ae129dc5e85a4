"""What `--installed` writes: JSON of a layout of its own, JUnit XML and SARIF, about one installed engine.

A file is a marker from before the engine is loaded until the run ends by itself; `note` says why there is
nothing else in it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from proofs.engines.vllm import Engine
from proofs.files import OutputFile, versions
from proofs.installed import Question, Report, claim_of
from proofs.junit import claim_case, skipped_case, suite_text
from proofs.report import outcome_entry
from proofs.sarif import FINDINGS, ROOT, claim_result, rule, text_of_run
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = [
    "INSTALLED_SCHEMA",
    "UNSEEN",
    "InstalledFile",
    "InstalledRun",
    "installed_json",
    "installed_junit",
    "installed_sarif",
]

INSTALLED_SCHEMA = "rowbound.installed/1"
"""The name and version of the JSON layout; a change that a reader can notice raises the number."""
UNSEEN = "a spec class of this engine that no claim is about"
_PLACE = re.compile(r"(\S+\.py):(\d+): ")
"""How a detail begins that names a place in the engine."""


@dataclass(slots=True)
class InstalledRun:
    """What is known of a run: what was asked of which engine, and the reports on the first of it.

    Attributes:
        engine: None until it is loaded.
        asked: the questions.
        unseen: the engine's spec classes that no claim is about.
        not_asked: a line for whatever else is left out.
        reports: what became of the questions so far, in their order.
        note: why the run could not go on; empty if it could.
    """

    engine: Engine | None = None
    asked: Sequence[Question] = ()
    unseen: Sequence[str] = ()
    not_asked: Sequence[str] = ()
    reports: list[Report] = field(default_factory=list)
    note: str = ""

    def outcomes(self) -> list[Outcome]:
        """Return every outcome, those of unseen spec classes among them."""
        skipped = [Outcome(Verdict.SKIPPED, UNSEEN)] * (len(self.unseen) if self.is_answered else 0)
        return [report.outcome for report in self.reports] + skipped

    @property
    def is_answered(self) -> bool:
        """Whether everything that was asked is decided."""
        return len(self.reports) == len(self.asked) > 0

    def told(self) -> str:
        """Return how far the run came."""
        if self.note:
            return f"{self.note}; nothing is claimed"
        if self.engine is None:
            return "the engine was not loaded; nothing is claimed"
        return f"{len(self.reports)} of {len(self.asked)} claims decided; nothing is claimed of the rest"

    def pairs(self) -> list[tuple[Question, Obligation, Report | None]]:
        """Return every question with its claim, and its report if it is decided."""
        if self.engine is None:
            return []
        claims = [claim_of(self.engine, question) for question in self.asked]
        reports = [*self.reports, *[None] * (len(self.asked) - len(self.reports))]
        return list(zip(self.asked, claims, reports, strict=True))


class InstalledFile:
    """A file about a run: marked incomplete from the start, replaced as a whole at the end."""

    def __init__(self, name: str, path: Path, render: Callable[[InstalledRun, int | None], str]) -> None:
        """Write the incomplete marker, which also shows that the path can be written.

        Raises:
            OSError: it cannot be.
        """
        self.name = name
        self._file, self._render = OutputFile(path), render
        self.write(InstalledRun(), exit_code=None)

    def write(self, known: InstalledRun, /, *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""
        self._file.write(self._render(known, exit_code), complete=exit_code is not None)


def installed_json(run: InstalledRun, exit_code: int | None) -> str:
    """Return the JSON file's text; without an exit code the run is incomplete."""
    counts = Counter(outcome.verdict for outcome in run.outcomes())
    document = {
        "complete": exit_code is not None,
        "schema": INSTALLED_SCHEMA,
        "exit_code": exit_code,
        "engine": run.engine and _engine(run.engine),
        "versions": versions(),
        "note": run.note,
        "tally": {verdict.value: counts[verdict] for verdict in Verdict},
        "claims": [_entry(*pair) for pair in run.pairs()],
        "skipped_classes": list(run.unseen),
        "not_asked": list(run.not_asked),
    }
    return json.dumps(document, indent=2) + "\n"


def _engine(engine: Engine) -> dict[str, Any]:
    return {
        "name": "vllm",
        "version": engine.version,
        "path": str(engine.root),
        "scheduler": engine.release.name,
        "described": engine.is_described,
    }


def _entry(question: Question, claim: Obligation, report: Report | None) -> dict[str, Any]:
    runner = question.runner and question.runner.value
    asked = {"spec": question.kind, "invariant": question.label, "runner": runner}
    if report is None:
        return {**asked, "verdict": None}
    return {
        **outcome_entry(claim, report.outcome),
        **asked,
        "paths": report.paths,
        "functions": [{"name": f.name, "file": f.file, "line": f.line} for f in report.functions],
        "place": _place(report.outcome),
        "replay": [{"side": s.who, "quantity": s.what, "value": s.value} for s in report.replay],
    }


def _place(outcome: Outcome) -> dict[str, Any] | None:
    """Return the place in the engine that an outcome's detail names: that which cannot be followed."""
    found = _PLACE.match(outcome.detail)
    return {"file": found[1], "line": int(found[2])} if found else None


def installed_junit(run: InstalledRun, exit_code: int | None) -> str:
    """Return the JUnit file's text; without an exit code the run is incomplete."""
    name = _name(run)
    cases = []
    for question, claim, report in run.pairs():
        shown = question.runner.value if question.runner else "-"
        whose, what = f"{name}.{shown}.{question.kind}", f"{question.kind} {shown} {question.label}"
        case = claim_case(whose, what, claim, report.outcome if report else None)
        if report is not None and report.functions:
            functions = ", ".join(map(str, report.functions))
            told = f"{report.paths} path{'s' * (report.paths != 1)} through {functions}"
            ET.SubElement(case, "system-out").text = told
        cases.append(case)
    cases += [skipped_case(f"{name}.-.{unseen}", unseen, f"{unseen}: {UNSEEN}") for unseen in run.unseen]
    stated = {f"not_asked.{index}": line for index, line in enumerate(run.not_asked, 1)}
    for key, value in (_engine(run.engine) if run.engine else {}).items():
        stated[f"engine.{key}"] = str(value).lower() if isinstance(value, bool) else value
    return suite_text(name, stated, cases, exit_code, run.told())


def installed_sarif(run: InstalledRun, exit_code: int | None) -> str:
    """Return the SARIF file's text; without an exit code the run is incomplete."""
    name = _name(run)
    pairs = run.pairs()
    sentences = {claim.invariant.name: claim.invariant.sentence for _, claim, _ in pairs}
    rules = [rule(*family) for family in sentences.items()]
    results = []
    for question, claim, report in pairs:
        if report is None or report.outcome.verdict not in FINDINGS:
            continue
        shown = question.runner.value if question.runner else "-"
        where = f"{question.kind} on {shown} of {name}"
        named = f"{name}/{shown}/{question.kind}/{question.label}"
        place = _place(report.outcome) or {"file": report.functions[0].file, "line": report.functions[0].line}
        file = {"uri": place["file"], "uriBaseId": ROOT}
        results.append(claim_result(named, where, claim, report.outcome, rules, (file, place["line"])))
    about = {
        "engine": run.engine and _engine(run.engine),
        "skipped_classes": list(run.unseen),
        "not_asked": list(run.not_asked),
    }
    return text_of_run(name, rules, results, about, exit_code, run.told())


def _name(run: InstalledRun) -> str:
    return f"vllm-{run.engine.version}-installed" if run.engine else "vllm-installed"
