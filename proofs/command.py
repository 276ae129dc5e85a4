"""The command behind `python -m proofs.check`: options, one run, and its exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from invariants import (
    ASSUMPTIONS,
    INVARIANTS,
    RELEASES,
    SPEC_KINDS,
    Parameter,
    Release,
    Runner,
    describe_kind,
    parameters_for,
)
from proofs.emit import test_file
from proofs.explain import ENTRIES, explain_text
from proofs.files import OutputFile, Report, Run, RunFile
from proofs.junit import junit_text
from proofs.own_width import OwnWidthError, UnsupportedSpecError, load_width
from proofs.pool import decide_all
from proofs.report import JsonReport, print_outcome, tally
from proofs.sarif import sarif_text
from proofs.verdicts import (
    EXIT_CODES,
    EXIT_INTERNAL,
    EXIT_USAGE,
    READ_BY_KERNEL,
    READ_BY_KERNEL_SENTENCE,
    Obligation,
    Outcome,
    Verdict,
    exit_code,
    not_asked,
    obligations,
)

__all__ = ["main"]

_PROGRAM = "python -m proofs.check"
_LONGEST_ECHO = 60
_MOST_JOBS = 1024
_MOST_DIGITS = 40
_WIDE = 10_000
"""Lines are never folded, whatever the terminal's width says."""


class _UsageError(Exception):
    """Something in the call cannot be meant; its text is the one line that says so."""


class _Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`: rich itself would exit with 1, which here means REFUTED."""
        raise BrokenPipeError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Turn every mistake in the call into the same kind of error."""
        raise _UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    _Signals.seen = None
    with suppress(ValueError):  # only a main thread may set handlers; elsewhere the caller's stay
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _Signals.handle)
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except _UsageError as mistake:
        _say(f"{mistake} (see --help)")
        code = EXIT_USAGE
    except _Stopped as stopped:
        _say("stopped before everything was decided; nothing is claimed of the rest")
        code = 128 + stopped.number
    except ModuleNotFoundError as missing:
        _say(f"needs {missing.name}: install rowbound with what it depends on")
        code = EXIT_USAGE
    except BrokenPipeError:
        _discard_output()
        code = 128 + signal.SIGPIPE
    except OSError as error:
        _discard_output()
        _say(f"cannot go on: {error}; nothing is claimed")
        code = EXIT_INTERNAL
    except Exception:  # noqa: BLE001  # Python's own exit code for it is 1, which here means REFUTED
        traceback.print_exc()
        _say("internal error; nothing is claimed")
        code = EXIT_INTERNAL
    return code


def _say(line: str) -> None:
    """Say one line on standard error, if there is one."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{_PROGRAM}: {line}\n")
        sys.stderr.flush()


def _discard_output() -> None:
    """Give the interpreter nothing to flush into an output that is closed or full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Signals:
    """What a signal's handler saw.

    An exception that a handler raises is lost where Python cannot pass it on, such as in a destructor. While
    `held` it is therefore not raised there: whoever holds it asks with `raise_if_seen`.
    """

    seen: int | None = None
    held = False

    @classmethod
    def handle(cls, number: int, _frame: FrameType | None) -> None:
        cls.seen = number
        if not cls.held:
            cls.raise_if_seen()

    @classmethod
    def raise_if_seen(cls) -> None:
        if cls.seen is not None:
            raise _Stopped(cls.seen)

    @classmethod
    @contextmanager
    def hold(cls) -> Iterator[None]:
        cls.held = True
        try:
            yield
        finally:
            cls.held = False


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    if options.explain:
        _Console(highlight=False, markup=False).print(explain_text(options.explain), soft_wrap=True)
        return 0
    release, runners = _subject(options)
    kinds = options.spec or SPEC_KINDS
    claims = [i for i in INVARIANTS if not options.invariant or i.name in options.invariant]
    asked = obligations(release, kinds=kinds, invariants=claims, runners=runners)
    if not asked:
        reasons = not_asked(release, kinds, claims, runners)
        raise _UsageError(f"nothing is selected: {'; '.join(reasons) or f'{release.name} has no such claim'}")
    importlib.import_module("z3")  # here, so that it is missed once and not by every child
    console = _Console(highlight=False, markup=False, width=_WIDE)
    if options.list:
        _print_list(console, release, asked)
        return 0
    pins = _pins(options.at, release, asked)
    excluded = _unsupported(asked, pins) if options.width else {}
    if pins:
        excluded |= _excluded({i: o for i, o in enumerate(asked) if i not in excluded}, pins)
    left_out = not_asked(release, kinds, claims, runners)
    reports = _reports(options, Run(release, pins, asked, left_out, options.width))
    if options.emit_test:
        _write(options.emit_test, "")
    outcomes, code = _run(console, asked, pins, excluded, reports, options.jobs)
    for line in left_out:
        console.print(f"not asked: {line}", soft_wrap=True)
    if options.emit_test and code <= EXIT_INTERNAL:
        _write(options.emit_test, test_file((asked[i], outcomes[i]) for i in sorted(outcomes)))
    return code


def _subject(options: argparse.Namespace) -> tuple[Release, list[Runner]]:
    """Return whose formulas are checked, and on which runners."""
    runners = [Runner(name) for name in options.runner] if options.runner else list(Runner)
    if options.width is None:
        return next(r for r in RELEASES if r.name == options.release), runners
    if options.emit_test:
        raise _UsageError("--emit-test writes tests of the described releases; it does not go with --width")
    try:
        return load_width(options.width), [Runner(options.runner[0])] if options.runner else [Runner.V2]
    except OwnWidthError as error:
        raise _UsageError(str(error)) from error


def _unsupported(asked: Sequence[Obligation], pins: Mapping[str, int | bool]) -> dict[int, Outcome]:
    """Run the user's function once for each claim, so that its mistakes are told before anything else.

    Raises:
        _UsageError: it fails, or makes rows for none of the selected spec types.
    """
    from proofs.problem import build_problem  # noqa: PLC0415  # needs the solver

    left_out = {}
    for index, obligation in enumerate(asked):
        try:
            build_problem(obligation, pins)
        except UnsupportedSpecError as error:
            left_out[index] = Outcome(Verdict.SKIPPED, str(error))
        except OwnWidthError as error:
            raise _UsageError(
                f"{error} (for {obligation.kind}; raise NotImplementedError for a type that your engine "
                "does not have, or select with --spec)"
            ) from error
    if len(left_out) == len(asked):
        raise _UsageError(f"{asked[0].release.name} makes rows for none of the selected spec types")
    return left_out


def _write(path: Path, text: str) -> None:
    try:
        OutputFile(path).write(text, complete=True)
    except OSError as error:
        raise _UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = _Parser(
        prog=_PROGRAM,
        description="Prove, for all sizes, that the blocks a scheduler hands over fit the worker's row "
        "and that every column read lies inside it; or show the smallest deployment that fails.",
        epilog=f"exit codes (of several, the first of 5, 1, 4, 3 that applies):\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = [release.name for release in RELEASES]
    described = ", ".join(f"{release.name} ({release.description})" for release in RELEASES)
    parser.add_argument(
        "--release",
        default=names[0],
        type=_one_of("release", names, described),
        metavar="NAME",
        help=f"whose formulas: {described}; default: %(default)s",
    )
    parser.add_argument(
        "--width",
        metavar="FILE:FUNCTION",
        help="check rows as this function of deployment and spec makes them, in manager blocks",
    )
    parser.add_argument(
        "--spec",
        action="append",
        type=_one_of("spec type", SPEC_KINDS, ", ".join(SPEC_KINDS)),
        metavar="KIND",
        help="only this spec type; repeatable; --list names them all",
    )
    parser.add_argument(
        "--invariant",
        action="append",
        choices=[invariant.name for invariant in INVARIANTS],
        help="only this invariant; repeatable",
    )
    parser.add_argument(
        "--runner",
        action="append",
        choices=[runner.value for runner in Runner],
        help="only this model runner; repeatable",
    )
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="pin a parameter, e.g. max_model_len=512; repeatable; --list names them all",
    )
    parser.add_argument(
        "--list", action="store_true", help="list claims, parameters, assumptions and releases, and stop"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcome as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the outcome as JUnit XML")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="also write the findings as SARIF 2.1.0")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page to read (needs the extra `report`)"
    )
    parser.add_argument(
        "--emit-test", type=Path, metavar="FILE", help="also write each counterexample as a pytest case"
    )
    parser.add_argument(
        "--explain",
        type=_explained,
        metavar="CODE",
        help="say what a verdict, an invariant or an assumption means and what to do about it, and stop",
    )
    parser.add_argument(
        "--jobs", type=_job_count, metavar="N", help="processes at a time (default: all cores)"
    )
    return parser


def _job_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_JOBS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST_JOBS}, not {_echo(text)}")
    return int(text)


def _one_of(what: str, names: Sequence[str], there_are: str) -> Callable[[str], str]:
    """Return a reader of an option's value that helps with a name that is not there."""

    def read(text: str) -> str:
        if text not in names:
            hint = _closest(text, names) or f"there are {there_are}"
            raise argparse.ArgumentTypeError(f"no {what} is named {_echo(text)}; {hint}")
        return text

    return read


def _explained(text: str) -> str:
    """Read the word to explain, in whatever case it is typed."""
    known = {name.lower(): name for name in ENTRIES}
    if name := known.get(text.lower()):
        return name
    close = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[close[0]]}?" if close else f"there are {', '.join(ENTRIES)}"
    raise argparse.ArgumentTypeError(f"nothing is explained as {_echo(text)}; {hint}")


def _closest(text: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(text, names, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _pins(texts: Iterable[str], release: Release, asked: Sequence[Obligation]) -> dict[str, int | bool]:
    """Read every NAME=VALUE, refusing what no selected claim has and what its option does not allow."""
    known = {p.name: p for kind in SPEC_KINDS for p in parameters_for(kind)}
    used = {p.name for obligation in asked for p in parameters_for(obligation.kind)}
    pins: dict[str, int | bool] = {}
    for text in texts:
        name, sign, value_text = text.partition("=")
        if not sign:
            raise _UsageError(f"--at takes NAME=VALUE, not {_echo(text)}")
        if name not in known:
            short = next((p.name for p in known.values() if name and f"({name})" in p.help), None)
            hint = f"did you mean {short}?" if short else _closest(name, known) or "--list names them all"
            raise _UsageError(f"no parameter is named {_echo(name)}; {hint}")
        if name not in used:
            raise _UsageError(f"none of the selected claims has a parameter {name}")
        value = _value(known[name], value_text)
        if name in pins and pins[name] != value:
            raise _UsageError(f"{name} is pinned to both {pins[name]} and {value}")
        if release.constants.get(name, value) != value:
            raise _UsageError(f"{release.name} fixes {name} at {release.constants[name]}")
        pins[name] = value
    return pins


def _value(parameter: Parameter, text: str) -> int | bool:
    value: int | bool | str
    if parameter.is_switch:
        value = {"true": True, "false": False}.get(text.lower(), text)
    else:
        whole = re.fullmatch(r"[+-]?[0-9]+", text)
        value = int(text) if whole and len(text) <= _MOST_DIGITS else text
    if isinstance(value, str):
        kind = "true or false" if parameter.is_switch else f"a whole number of at most {_MOST_DIGITS} digits"
        raise _UsageError(f"{parameter.name} must be {kind}, not {_echo(text)}")
    if problem := parameter.problem(value):
        raise _UsageError(problem)
    return value


def _echo(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}...")


def _excluded(asked: Mapping[int, Obligation], pins: Mapping[str, int | bool]) -> dict[int, Outcome]:
    """Find the claims of which the pinned values leave no legal case.

    Raises:
        _UsageError: they leave none of any claim.
    """
    from proofs.decide import exclusion  # noqa: PLC0415  # the only use of the solver in this process

    excluded = {}
    for index, obligation in asked.items():
        if broken := exclusion(obligation, pins):
            excluded[index] = Outcome(Verdict.SKIPPED, f"the pinned values contradict {broken}")
    if len(excluded) == len(asked):
        shown = ", ".join(f"{name}={value}" for name, value in pins.items())
        first = next(iter(excluded.values()))
        raise _UsageError(f"no legal case has {shown}: {first.detail}")
    return excluded


def _reports(options: argparse.Namespace, run: Run) -> list[Report]:
    """Start every file that the call asks for, each as a marker that says that it is incomplete.

    Raises:
        _UsageError: one cannot be written, or what it needs is not installed.
    """
    _refuse_one_file_twice(options)
    reports: list[Report] = []
    try:
        if path := _file(options, "json"):
            reports.append(JsonReport(path, run.release.name, run.pins, run.asked))
        if path := _file(options, "junit"):
            reports.append(RunFile("JUnit report", path, run, junit_text))
        if path := _file(options, "sarif"):
            reports.append(RunFile("SARIF report", path, run, sarif_text))
        if path := _file(options, "html"):
            from proofs.page import page_text  # noqa: PLC0415  # needs the extra `report`

            reports.append(RunFile("HTML page", path, run, page_text))
    except ModuleNotFoundError as missing:
        raise _UsageError(f"--html needs {missing.name}: pip install 'rowbound[report]'") from missing
    except OSError as error:
        raise _UsageError(f"cannot write {path}: {error.strerror or error}") from error
    return reports


def _file(options: argparse.Namespace, name: str) -> Path | None:
    path: Path | None = getattr(options, name)
    if str(path) == "-":
        raise _UsageError(f"--{name} takes a file; /dev/stdout is one")
    return path


def _refuse_one_file_twice(options: argparse.Namespace) -> None:
    taken: dict[str, str] = {}
    for name in ("json", "junit", "sarif", "html", "emit_test"):
        if path := getattr(options, name):
            option, real = f"--{name.replace('_', '-')}", os.path.realpath(path)
            if real in taken:
                raise _UsageError(f"{taken[real]} and {option} name one file, {path}")
            taken[real] = option


def _run(  # noqa: PLR0913, PLR0917  # what a run is made of
    console: Console,
    asked: Sequence[Obligation],
    pins: Mapping[str, int | bool],
    excluded: Mapping[int, Outcome],
    reports: Sequence[Report],
    jobs: int | None,
) -> tuple[dict[int, Outcome], int]:
    """Decide everything, print each line in order as soon as those before it are known."""
    started = time.perf_counter()
    outcomes = dict(excluded)
    open_indices = [index for index in range(len(asked)) if index not in excluded]
    printed = 0
    code: int | None = None
    with _progress() as progress, _Signals.hold():
        task = progress.add_task("deciding", total=len(open_indices))
        decided = decide_all(
            [asked[index] for index in open_indices], pins, jobs=jobs, pulse=_Signals.raise_if_seen
        )
        try:
            for position, outcome in decided:
                outcomes[open_indices[position]] = outcome
                progress.advance(task)
                while printed in outcomes:
                    print_outcome(console, asked[printed], outcomes[printed])
                    printed += 1
                _Signals.raise_if_seen()
            code = exit_code(outcome.verdict for outcome in outcomes.values())
        except _Stopped as stopped:
            return outcomes, _interrupted(stopped, outcomes, len(asked), reports)
        finally:
            decided.close()
    for index in range(printed, len(asked)):
        print_outcome(console, asked[index], outcomes[index])
    release = asked[0].release
    console.print(
        f"\n{len(asked)} claim{'s' * (len(asked) != 1)} of {release.name} ({release.description}): "
        f"{tally(outcomes.values())}; {time.perf_counter() - started:.1f} s",
        soft_wrap=True,
    )
    return outcomes, _saved(reports, outcomes, code)


def _saved(reports: Iterable[Report], outcomes: Mapping[int, Outcome], code: int) -> int:
    """Write the reports; a failure to write is an error of its own and changes no verdict."""
    saved = code
    for report in reports:
        try:
            report.write(outcomes, exit_code=code)
        except OSError as error:
            _say(f"the {report.name} was not written: {error}")
            saved = code or EXIT_USAGE
    return saved


def _interrupted(
    stopped: _Stopped, outcomes: Mapping[int, Outcome], total: int, reports: Iterable[Report]
) -> int:
    """Say how far the run came, and leave files that say that they are incomplete."""
    for report in reports:
        with suppress(OSError):  # the file says already that it is incomplete
            report.write(outcomes, exit_code=None)
    _say(f"interrupted with {len(outcomes)} of {total} decided; nothing is claimed of the rest")
    return 128 + stopped.number


def _progress() -> Progress:
    """Return a progress bar on a terminal's standard error, and nothing elsewhere."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _print_list(console: Console, release: Release, asked: Sequence[Obligation]) -> None:
    def section(title: str, lines: Iterable[str]) -> None:
        listed = [f"  {line}" for line in lines]
        if listed:
            console.print(title, *listed, sep="\n", soft_wrap=True)

    section(
        f"claims of {release.name} ({release.description})",
        (f"{o.kind:22} {o.runner.value:2} {o.invariant.name}" for o in asked),
    )
    kinds = dict.fromkeys(o.kind for o in asked)
    section("spec types", (f"{kind:22} {describe_kind(kind)}" for kind in kinds))
    parameters = {p.name: p for o in asked for p in o.parameters()}
    section(
        "parameters, all free unless pinned with --at; counterexamples keep usual values where they can",
        map(_parameter_line, parameters.values()),
    )
    section(
        f"fixed by {release.name}",
        (f"{name} = {value}" for name, value in release.constants.items()),
    )
    assumed = [f"{a.name}: {a.sentence} [{a.source}]" for a in ASSUMPTIONS]
    section("assumptions", [*assumed, f"{READ_BY_KERNEL}: {READ_BY_KERNEL_SENTENCE}"])
    section("invariants", (f"{i.name}: {i.sentence}" for i in INVARIANTS))
    section("releases", (f"{r.name}: {r.description}" for r in RELEASES))


def _parameter_line(parameter: Parameter) -> str:
    if parameter.is_switch:
        kind = "true or false"
    else:
        kind = f"{parameter.minimum} to {'any size' if parameter.maximum is None else parameter.maximum}"
    usual = "" if parameter.usual is None else f", usually {str(parameter.usual).lower()}"
    return f"{parameter.name}: {parameter.help} ({kind}{usual})"
