"""What `python -m proofs.check --installed ENGINE` prints, and its exit code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from invariants import SPEC_KINDS, Runner
from proofs.console import UsageError
from proofs.engines.vllm import Engine, LayoutError, load
from proofs.installed import PADDING, SPEC, Report, answer, questions
from proofs.report import STYLES, outcome_lines, tally
from proofs.verdicts import Outcome, Verdict, exit_code

__all__ = ["check_installed"]

_UNSEEN_SPEC = 3
"""The exit code where all that was asked is proved, and a spec class of engine or claims has no match."""


def check_installed(console: Console, kinds: Sequence[str], runners: Sequence[Runner]) -> int:
    """Decide every claim about the engine in this environment, print it, and return the exit code.

    Raises:
        UsageError: there is no such engine, its layout is not known, or nothing is selected.
    """
    started = time.perf_counter()
    try:
        engine = load()
        asked = list(questions(engine, kinds, runners))
        if all(question.label == PADDING for question in asked):
            raise UsageError(f"nothing is selected: vLLM {engine.version} has no such spec type")
        console.print(
            f"vLLM {engine.version} in {engine.root}, its own code; scheduler: the formulas of "
            f"{engine.release.name}",
            soft_wrap=True,
        )
        reports = []
        for question in asked:
            reports.append(answer(engine, question))
            _print(console, reports[-1])
    except LayoutError as error:
        raise UsageError(str(error)) from error
    unseen = engine.unknown_specs() if set(kinds) == set(SPEC_KINDS) else ()
    return _end(console, engine, reports, unseen, time.perf_counter() - started)


def _end(
    console: Console, engine: Engine, reports: Sequence[Report], unseen: Sequence[str], seconds: float
) -> int:
    for name in unseen:
        line = Text(f"{Verdict.SKIPPED.value:8} {name}: a spec class of this engine that no claim is about")
        line.stylize(STYLES[Verdict.SKIPPED], 0, len(Verdict.SKIPPED.value))
        console.print(line, soft_wrap=True)
    console.print("\nfunctions that were run:", *_functions(reports), sep="\n", soft_wrap=True)
    outcomes = [report.outcome for report in reports] + [Outcome(Verdict.SKIPPED) for _ in unseen]
    paths = sum(report.paths for report in reports)
    console.print(
        f"\n{len(reports)} claims of vLLM {engine.version} as installed, {paths} paths: {tally(outcomes)}; "
        f"{seconds:.1f} s",
        soft_wrap=True,
    )
    verdicts = {outcome.verdict for outcome in outcomes}
    return exit_code(verdicts) or (_UNSEEN_SPEC if Verdict.SKIPPED in verdicts else 0)


def _print(console: Console, report: Report) -> None:
    """Print one claim's line and, if it is refuted, its counterexample."""
    question, outcome = report.question, report.outcome
    runner = question.runner.value if question.runner else "-"
    paths = f"{report.paths} path{'s' * (report.paths != 1)}"
    first, *rest = outcome_lines(report.obligation, outcome, encoding=console.encoding)
    told = first.partition(f"rlimit {outcome.rlimit:9,}")[2]
    line = Text(
        f"{outcome.verdict.value:8} {question.kind:22} {runner:2} {question.label:22} {paths:>9} "
        f"{outcome.seconds * 1000:6.0f} ms{told}"
    )
    line.stylize(STYLES[outcome.verdict], 0, len(outcome.verdict.value))
    console.print(line, *map(Text, rest), sep="\n", soft_wrap=True)


def _functions(reports: Iterable[Report]) -> list[str]:
    """Return a line for each function that was run, the widths of specs first."""
    names = {SPEC: "spec", PADDING: "padding"}
    lines: dict[str, None] = {}
    for report in reports:
        runner = report.question.runner
        what = runner.value if runner else names[report.question.label]
        lines |= dict.fromkeys(f"  {what:8} {function}" for function in report.functions)
    return sorted(lines)
