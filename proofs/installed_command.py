"""What `python -m proofs.check --installed ENGINE` prints and writes, and its exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

import z3
from rich.console import Console
from rich.text import Text

from invariants import SPEC_KINDS, Runner
from proofs.console import Signals, Stopped, UsageError, saved, say
from proofs.engines.vllm import Engine, LayoutError, load
from proofs.installed import PADDING, SPEC, Report, answer, questions
from proofs.installed_report import (
    UNSEEN,
    InstalledFile,
    InstalledRun,
    installed_json,
    installed_junit,
    installed_sarif,
)
from proofs.report import STYLES, outcome_lines, tally
from proofs.verdicts import Verdict, exit_code

__all__ = ["check_installed"]

_UNSEEN_SPEC = 3
"""The exit code where all that was asked is proved, and a spec class of engine or claims has no match."""
_FILES: Mapping[str, tuple[str, Callable[[InstalledRun, int | None], str]]] = {
    "json": ("JSON report", installed_json),
    "junit": ("JUnit report", installed_junit),
    "sarif": ("SARIF report", installed_sarif),
}


def check_installed(
    program: str,
    console: Console,
    kinds: Sequence[str],
    runners: Sequence[Runner],
    paths: Mapping[str, Path],
) -> int:
    """Decide every claim about the engine in this environment, print and write it, and return the exit code.

    Args:
        program: what a message calls the command.
        console: where the claims are printed.
        kinds: the spec types that are asked about.
        runners: the model runners that are.
        paths: the files to write, by the name of their option.

    Raises:
        UsageError: there is no such engine, its layout is not known, or nothing is selected.
    """
    files, run = _started(paths), InstalledRun()
    try:
        code = _decided(console, run, kinds, runners)
    except Stopped as stopped:
        _leave(files, run)
        say(program, f"interrupted: {run.told()}")
        return 128 + stopped.number
    except UsageError as mistake:
        run.note = str(mistake)
        _leave(files, run)
        raise
    except OSError:  # nobody reads what is printed
        _leave(files, run)
        raise
    with Signals.hold():  # all files say the same
        return max([code, *(saved(program, file, run, code) for file in files)])


def _started(paths: Mapping[str, Path]) -> list[InstalledFile]:
    """Start every file, each as a marker that says that it is incomplete.

    Raises:
        UsageError: one cannot be written.
    """
    files = []
    for option, path in paths.items():
        name, render = _FILES[option]
        try:
            files.append(InstalledFile(name, path, render))
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    return files


def _leave(files: Iterable[InstalledFile], run: InstalledRun) -> None:
    """Leave files that say how far the run came, and that they are incomplete."""
    for file in files:
        with suppress(OSError):  # the file says already that it is incomplete
            file.write(run, exit_code=None)


def _decided(console: Console, run: InstalledRun, kinds: Sequence[str], runners: Sequence[Runner]) -> int:
    started = time.perf_counter()
    if sys.flags.optimize:
        raise UsageError(
            "python -O leaves out the engine's own checks (assert): run without -O and without PYTHONOPTIMIZE"
        )
    try:
        engine = load()
        Signals.raise_if_seen()
        _select(run, engine, kinds, runners)
        _print_head(console, run, engine)
        with suppress(z3.Z3Exception):  # a signal is ours to see, where this solver can be told so
            z3.set_param("ctrl_c", False)
        with Signals.hold():
            for question in run.asked:
                with redirect_stdout(sys.stderr):  # what the engine says is no part of our output
                    report = answer(engine, question, Signals.raise_if_seen)
                run.reports.append(report)
                _print(console, report)
                Signals.raise_if_seen()
    except LayoutError as error:
        raise UsageError(str(error)) from error
    return _end(console, engine, run, time.perf_counter() - started)


def _select(run: InstalledRun, engine: Engine, kinds: Sequence[str], runners: Sequence[Runner]) -> None:
    """Note what is asked of an engine and what is not.

    Raises:
        UsageError: nothing is asked.
    """
    run.engine = engine
    lacks = [runner.value for runner in runners if runner not in engine.runners]
    if len(lacks) == len(runners):
        raise UsageError(f"nothing is selected: vLLM {engine.version} has no Model Runner {lacks[0]}")
    run.asked = list(questions(engine, kinds, runners))
    if all(question.label == PADDING for question in run.asked):
        raise UsageError(f"nothing is selected: vLLM {engine.version} has no such spec type")
    rows = {(question.kind, question.runner) for question in run.asked if question.runner}
    if not rows:
        raise UsageError("nothing is selected: no such spec type has a row on such a runner")
    not_asked = [f"{runner}: this vLLM has no Model Runner {runner}" for runner in lacks]
    not_asked += [
        f"{kind}: it has no row on {runner.value}"
        for kind in kinds
        for runner in runners
        if kind not in engine.release.absent and runner in engine.runners and (kind, runner) not in rows
    ]
    if set(kinds) == set(SPEC_KINDS):
        run.unseen = engine.unknown_specs()
    else:
        absent = [kind for kind in kinds if kind in engine.release.absent]
        not_asked += [f"{kind}: {engine.release.name} has no such spec type" for kind in absent]
    run.not_asked = [*not_asked, *engine.not_run()]


def _print_head(console: Console, run: InstalledRun, engine: Engine) -> None:
    whose = engine.release.name
    lines = [f"vLLM {engine.version} in {engine.root}, its own code; scheduler: the formulas of {whose}"]
    if not engine.is_described:
        lines.append(
            f"vLLM {engine.version} is not described here: its scheduler and limits are not known, so that "
            f"nothing is proved; what holds with those of {whose} is UNKNOWN"
        )
    lines += [f"not asked: {line}" for line in run.not_asked]
    console.print(*lines, sep="\n", soft_wrap=True)


def _end(console: Console, engine: Engine, run: InstalledRun, seconds: float) -> int:
    for name in run.unseen:
        line = Text(f"{Verdict.SKIPPED.value:8} {name}: {UNSEEN}")
        line.stylize(STYLES[Verdict.SKIPPED], 0, len(Verdict.SKIPPED.value))
        console.print(line, soft_wrap=True)
    console.print("\nfunctions that were run:", *_functions(run.reports), sep="\n", soft_wrap=True)
    outcomes = run.outcomes()
    paths = sum(report.paths for report in run.reports)
    console.print(
        f"\n{len(run.reports)} claims of vLLM {engine.version} as installed, {paths} paths: "
        f"{tally(outcomes)}; {seconds:.1f} s",
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
