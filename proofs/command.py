"""The command behind `python -m proofs.check`: options, one run, and its exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from invariants import (
    ASSUMPTIONS,
    COLUMN_FITS,
    INVARIANTS,
    RELEASES,
    ROW_FITS,
    SPEC_KINDS,
    Invariant,
    Parameter,
    Release,
    Runner,
    describe_kind,
    parameters_for,
)
from proofs.answering import answer_of
from proofs.ceilings import Ceilings, CeilingsError, read_ceilings, store
from proofs.console import (
    WIDE,
    Parser,
    PipedConsole,
    Signals,
    Stopped,
    UsageError,
    closest,
    echo,
    file_path,
    job_count,
    one_of,
    opened,
    run_command,
    saved,
    say,
)
from proofs.deployment_file import shown_path
from proofs.emit import test_file
from proofs.explain import ENTRIES, explain_text
from proofs.files import OutputFile, Report, Run, RunFile
from proofs.fleet import check_file, fleet_exit_code, fleet_json, print_fleet
from proofs.junit import junit_text
from proofs.matrix import ALL, Matrix, MatrixReport, fixed_otherwise, shared_claims
from proofs.own_width import OwnWidthError, UnsupportedSpecError, load_width
from proofs.pool import decide_all
from proofs.report import JsonReport, print_outcome, tally
from proofs.sarif import sarif_text
from proofs.verdicts import (
    EXIT_CODES,
    EXIT_DRIFT,
    EXIT_INTERNAL,
    EXIT_USAGE,
    SOLVERS,
    Obligation,
    Outcome,
    Verdict,
    exit_code,
    not_asked,
    obligations,
)

__all__ = ["main"]

_INVARIANT_NAMES = tuple(dict.fromkeys(name for i in INVARIANTS for name in (i.name, i.label)))
_PROGRAM = "python -m proofs.check"
_MOST_DIGITS = 40
_FILES = ("json", "junit", "sarif", "html", "emit_test", "ceilings", "store_ceilings")
_WITH_INSTALLED = frozenset({"installed", "spec", "runner", "json", "junit", "sarif"})
_OF_ONE_RELEASE = (
    "width", "list", "junit", "sarif", "html", "ceilings", "store_ceilings", "save_queries"
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(_PROGRAM, lambda: _main(arguments))


def _answering(options: argparse.Namespace) -> int:
    """Decide a release whose rows a file of the user's makes, in a process which that file may end."""
    file = options.width.rpartition(":")[0] or options.width
    return answer_of(lambda: run_command(_PROGRAM, lambda: _main_release(options)), file)


def _say(line: str) -> None:
    say(_PROGRAM, line)


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.explain:
        PipedConsole(highlight=False, markup=False).print(explain_text(options.explain), soft_wrap=True)
        return 0
    if options.installed:
        return _check_installed(parser, options)
    if options.deployment:
        return _check_deployments(parser, options)
    if options.release == ALL:
        return _main_matrix(options)
    return _main_release(options) if options.width is None else _answering(options)


def _main_release(options: argparse.Namespace) -> int:
    """Decide the claims of one release."""
    release, runners = _subject(options)
    kinds, claims = options.spec or SPEC_KINDS, _claims(options.invariant or _INVARIANT_NAMES)
    asked = obligations(release, kinds=kinds, invariants=claims, runners=runners)
    left_out = not_asked(release, kinds, claims, runners)
    if not asked:
        raise UsageError(f"nothing is selected: {'; '.join(left_out) or f'{release.name} has no such claim'}")
    importlib.import_module("z3")  # here, so that it is missed once and not by every child
    console = PipedConsole(highlight=False, markup=False, width=WIDE)
    if options.list:
        _print_list(console, release, asked)
        return 0
    _refuse_one_file_twice(options)
    pins = _pins(options.at, release, asked)
    excluded = _unsupported(asked, pins) if options.width else {}
    _refuse_without_a_case((o for i, o in enumerate(asked) if i not in excluded), pins)
    _require_solver(options.solver)
    ceilings = _ceilings(options, release, pins)
    _start(options)
    reports = _reports(options, Run(release, pins, asked, left_out, options.width))
    outcomes, code = _run(_Lines(console, asked), asked, pins, excluded, reports, options)
    if code > EXIT_INTERNAL:
        return code
    for line in left_out:
        console.print(f"not asked: {line}", soft_wrap=True)
    if ceilings is not None and not code:
        compared = ceilings.compare(obligations(release), asked, outcomes)
        for line in compared.drifted or [compared.note or "every cost is below its ceiling"]:
            console.print(line, soft_wrap=True)
        code = EXIT_DRIFT if compared.drifted else code
    return _written(console, options, asked, outcomes, pins, reports, code)


def _claims(wanted: Iterable[str]) -> list[Invariant]:
    """Return the claims with these names or labels; a name is a whole family's."""
    names = set(wanted)
    return [i for i in INVARIANTS if i.name in names or i.label in names]


def _ceilings(
    options: argparse.Namespace, release: Release, pins: Mapping[str, int | bool]
) -> Ceilings | None:
    """Read the ceilings, if any are asked for, before anything is decided.

    Raises:
        UsageError: they cannot be read, or are of something else than this run.
    """
    if options.ceilings is None and options.store_ceilings is None:
        return None
    if options.solver != SOLVERS[0]:
        raise UsageError("ceilings are of what z3 alone costs: leave --solver out")
    if pins:
        raise UsageError("ceilings are of claims about all sizes: leave --at out")
    try:
        return None if options.ceilings is None else read_ceilings(options.ceilings, release.name)
    except CeilingsError as mistake:
        raise UsageError(str(mistake)) from mistake


def _start(options: argparse.Namespace) -> None:
    """Try every further output, so that one that cannot be written is told before anything is decided.

    Raises:
        UsageError: one cannot be.
    """
    for path in (options.emit_test, options.store_ceilings):
        if path is not None:
            try:
                OutputFile(path).write("", complete=True)
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    if options.save_queries is not None:
        from proofs.smtlib import clear_queries  # noqa: PLC0415  # needs the solver

        try:
            options.save_queries.mkdir(parents=True, exist_ok=True)
            clear_queries(options.save_queries)
        except OSError as error:
            raise UsageError(f"cannot write {options.save_queries}: {error.strerror or error}") from error


def _written(  # noqa: PLR0913, PLR0917  # what a run leaves behind
    console: Console,
    options: argparse.Namespace,
    asked: Sequence[Obligation],
    outcomes: Mapping[int, Outcome],
    pins: Mapping[str, int | bool],
    reports: Sequence[Report],
    code: int,
) -> int:
    """Write all that is written of a run that ended; what cannot be is told and changes no verdict."""
    try:
        if options.emit_test is not None:
            text = test_file((asked[i], outcomes[i]) for i in sorted(outcomes))
            OutputFile(options.emit_test).write(text, complete=True)
        if options.store_ceilings is not None:
            store(options.store_ceilings, asked[0].release.name, asked, outcomes)
        if options.save_queries is not None:
            _save_queries(console, options.save_queries, asked, outcomes, pins)
    except OSError as error:
        _say(f"not everything was written: {error}")
        code = code or EXIT_USAGE
    return max([code, *(saved(_PROGRAM, report, outcomes, code) for report in reports)])


def _main_matrix(options: argparse.Namespace) -> int:
    """Decide the claims of every release, each that several releases make alike once."""
    for name in _OF_ONE_RELEASE:
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} goes with one release, not with --release {ALL}")
    runners = [Runner(name) for name in options.runner] if options.runner else list(Runner)
    kinds = options.spec or SPEC_KINDS
    claims = _claims(options.invariant) if options.invariant else [ROW_FITS, COLUMN_FITS]
    asked = [o for r in RELEASES for o in obligations(r, kinds=kinds, invariants=claims, runners=runners)]
    unasked = dict.fromkeys(line for r in RELEASES for line in not_asked(r, kinds, claims, runners))
    if not asked:
        raise UsageError(f"nothing is selected: {'; '.join(unasked) or 'no release has such a claim'}")
    importlib.import_module("z3")
    console = PipedConsole(highlight=False, markup=False, width=WIDE)
    _refuse_one_file_twice(options)
    pins = _pins(options.at, RELEASES[0], asked)
    excluded = fixed_otherwise(asked, pins)
    _require_solver(options.solver)
    with Signals.hold():
        asked_here = {i: o for i, o in enumerate(asked) if i not in excluded}
        shared = shared_claims(asked_here, pins, pulse=Signals.raise_if_seen)
        _refuse_without_a_case((o for i, o in asked_here.items() if i not in shared), pins)
    Signals.raise_if_seen()
    _start(options)
    report = opened(options.json, lambda file: MatrixReport(file, pins, asked, shared))
    reports = [report] if report else []
    outcomes, code = _run(Matrix(console, asked, shared), asked, pins, excluded, reports, options, shared)
    if code > EXIT_INTERNAL:
        return code
    for line in unasked:
        console.print(f"not asked: {line}", soft_wrap=True)
    if not options.invariant:
        console.print("not asked: further claims, which --invariant selects and a release's own run has all")
    return _written(console, options, asked, outcomes, pins, reports, code)


def _subject(options: argparse.Namespace) -> tuple[Release, list[Runner]]:
    """Return whose formulas are checked, and on which runners."""
    runners = [Runner(name) for name in options.runner] if options.runner else list(Runner)
    if options.width is None:
        return _release(options.release) or RELEASES[0], runners
    if options.emit_test:
        raise UsageError("--emit-test writes tests of the described releases; it does not go with --width")
    try:
        return load_width(options.width), [Runner(options.runner[0])] if options.runner else [Runner.V2]
    except OwnWidthError as error:
        raise UsageError(str(error)) from error


def _release(name: str | None) -> Release | None:
    return next((known for known in RELEASES if known.name == name), None)


def _check_deployments(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Check the deployments in the given files, one after the other; no solver is needed for that."""
    beside = {"deployment", "json", "release", "runner"}
    for name, value in vars(options).items():
        if name not in beside and value != parser.get_default(name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --deployment")
    if len(options.runner or ()) > 1:
        raise UsageError("--deployment takes one --runner")
    if twice := next((p for p in options.deployment if options.deployment.count(p) > 1), None):
        raise UsageError(f"--deployment {shown_path(twice)} is given twice")
    _refuse_one_file_twice(options)
    runner = Runner(options.runner[0]) if options.runner else None
    report = opened(options.json, fleet_json)
    reports = []
    for path in options.deployment:
        reports.append(check_file(path, release=_release(options.release), runner=runner))
        if mistake := reports[-1].mistake:
            _say(f"{reports[-1].name}: {mistake}")
    print_fleet(PipedConsole(highlight=False, markup=False, width=WIDE), reports)
    code = fleet_exit_code(reports)
    return code if report is None else saved(_PROGRAM, report, reports, code)


def _check_installed(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Check the rows that the code of the installed engine makes."""
    if options.html:
        raise UsageError("--html does not go with --installed; --json, --junit and --sarif do")
    for name, value in vars(options).items():
        if name not in _WITH_INSTALLED and value != parser.get_default(name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --installed")
    _refuse_one_file_twice(options)
    paths = {name: path for name in ("json", "junit", "sarif") if (path := _file(options, name)) is not None}
    runners = [Runner(name) for name in options.runner] if options.runner else list(Runner)

    def check() -> int:
        importlib.import_module("z3")  # here, so that it is missed before the engine is loaded
        from proofs.installed_command import check_installed  # noqa: PLC0415  # needs the solver

        console = PipedConsole(highlight=False, markup=False, width=WIDE)
        return check_installed(_PROGRAM, console, options.spec or SPEC_KINDS, runners, paths)

    return answer_of(lambda: run_command(_PROGRAM, check), options.installed)


def _unsupported(asked: Sequence[Obligation], pins: Mapping[str, int | bool]) -> dict[int, Outcome]:
    """Run the user's function once for each claim, so that its mistakes are told before anything else.

    Raises:
        UsageError: it fails, or makes rows for none of the selected spec types.
    """
    from proofs.problem import build_problem  # noqa: PLC0415  # needs the solver

    left_out = {}
    for index, obligation in enumerate(asked):
        try:
            build_problem(obligation, pins)
        except TypeError as error:  # a branch that their function swallowed
            raise UsageError(f"{obligation.release.name}: {error} (for {obligation.kind})") from error
        except UnsupportedSpecError as error:
            left_out[index] = Outcome(Verdict.SKIPPED, str(error))
        except OwnWidthError as error:
            raise UsageError(
                f"{error} (for {obligation.kind}; raise NotImplementedError for a type that your engine "
                "does not have, or select with --spec)"
            ) from error
    if len(left_out) == len(asked):
        raise UsageError(f"{asked[0].release.name} makes rows for none of the selected spec types")
    return left_out


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = Parser(
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
        type=one_of("release", [*names, ALL], described),
        metavar="NAME",
        help=f"whose formulas: {described}; default: {names[0]}; {ALL}: a table of them all",
    )
    parser.add_argument(
        "--width",
        metavar="FILE:FUNCTION",
        help="check rows as this function of deployment and spec makes them, in manager blocks, on V2 "
        "(--runner V1: on V1)",
    )
    parser.add_argument(
        "--installed",
        choices=["vllm"],
        metavar="ENGINE",
        help="check rows as the engine in this environment makes them, by running its own code on symbols: "
        "vllm, from 0.26 on (newer than 0.33: nothing is proved); goes with --spec, --runner, --json, "
        "--junit and --sarif",
    )
    parser.add_argument(
        "--spec",
        action="append",
        type=one_of("spec type", SPEC_KINDS, ", ".join(SPEC_KINDS)),
        metavar="KIND",
        help="only this spec type; repeatable; --list names them all",
    )
    parser.add_argument(
        "--invariant",
        action="append",
        type=one_of("invariant", _INVARIANT_NAMES, ", ".join(dict.fromkeys(i.name for i in INVARIANTS))),
        metavar="NAME",
        help="only this invariant, or one part of it (column-fits/gather); repeatable; --list names them all",
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
    parser.add_argument(
        "--deployment",
        action="extend",
        nargs="+",
        default=[],
        type=file_path,
        metavar="FILE",
        help="check the one deployment and its cache groups in this TOML or JSON file instead; repeatable; "
        "exit code 0: every group fits, 1: one does not, 2: a mistake in a file",
    )
    parser.add_argument("--json", type=file_path, metavar="FILE", help="also write the outcome as JSON")
    parser.add_argument("--junit", type=file_path, metavar="FILE", help="also write the outcome as JUnit XML")
    parser.add_argument(
        "--sarif", type=file_path, metavar="FILE", help="also write the findings as SARIF 2.1.0"
    )
    parser.add_argument(
        "--html", type=file_path, metavar="FILE", help="also write a page to read (needs the extra `report`)"
    )
    parser.add_argument(
        "--emit-test", type=file_path, metavar="FILE", help="also write each counterexample as a pytest case"
    )
    parser.add_argument(
        "--explain",
        type=_explained,
        metavar="CODE",
        help="say what a verdict, an invariant or an assumption means and what to do about it, and stop",
    )
    parser.add_argument(
        "--solver",
        default=SOLVERS[0],
        choices=SOLVERS,
        help="whose proof counts: z3 (default), cvc5 by lemmas, or both (needs the extra `cvc5`)",
    )
    parser.add_argument(
        "--save-queries",
        type=file_path,
        metavar="DIR",
        help="also write each claim that is not proved as SMT-LIB 2, in place of an earlier run's",
    )
    parser.add_argument(
        "--ceilings",
        type=file_path,
        metavar="FILE",
        help="also hold each proof's rlimit against this stored one",
    )
    parser.add_argument(
        "--store-ceilings",
        type=file_path,
        metavar="FILE",
        help="write the run's rlimits, a tenth higher, as ceilings",
    )
    parser.add_argument(
        "--jobs", type=job_count, metavar="N", help="processes at a time (default: all cores)"
    )
    return parser


def _explained(text: str) -> str:
    """Read the word to explain, in whatever case it is typed."""
    known = {name.lower(): name for name in ENTRIES}
    if name := known.get(text.lower()):
        return name
    close = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[close[0]]}?" if close else f"there are {', '.join(ENTRIES)}"
    raise argparse.ArgumentTypeError(f"nothing is explained as {echo(text)}; {hint}")


def _pins(texts: Iterable[str], release: Release, asked: Sequence[Obligation]) -> dict[str, int | bool]:
    """Read every NAME=VALUE, refusing what no selected claim has and what its option does not allow."""
    known = {p.name: p for i in INVARIANTS for kind in SPEC_KINDS for p in parameters_for(kind, i.parts)}
    used = {p.name for o in asked for p in parameters_for(o.kind, o.invariant.parts)}
    pins: dict[str, int | bool] = {}
    for text in texts:
        name, sign, value_text = text.partition("=")
        if not sign:
            raise UsageError(f"--at takes NAME=VALUE, not {echo(text)}")
        if name not in known:
            short = next((p.name for p in known.values() if name and f"({name})" in p.help), None)
            hint = f"did you mean {short}?" if short else closest(name, known) or "--list names them all"
            raise UsageError(f"no parameter is named {echo(name)}; {hint}")
        if name not in used:
            raise UsageError(f"none of the selected claims has a parameter {name}")
        value = _value(known[name], value_text)
        if name in pins and pins[name] != value:
            raise UsageError(f"{name} is pinned to both {pins[name]} and {value}")
        if release.constants.get(name, value) != value:
            raise UsageError(f"{release.name} fixes {name} at {release.constants[name]}")
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
        raise UsageError(f"{parameter.name} must be {kind}, not {echo(text)}")
    if problem := parameter.problem(value):
        raise UsageError(problem)
    return value


def _refuse_without_a_case(asked: Iterable[Obligation], pins: Mapping[str, int | bool]) -> None:
    """See that the pinned values leave a legal case of some claim; of which not, the deciding tells.

    Raises:
        UsageError: they leave none of any.
    """
    from proofs.decide import exclusion  # noqa: PLC0415  # the only use of the solver in this process

    first = None
    for obligation in asked if pins else ():
        if (broken := exclusion(obligation, pins)) is None:
            return
        first = first or broken
    if first is not None:
        shown = ", ".join(f"{name}={value}" for name, value in pins.items())
        raise UsageError(f"no legal case has {shown}: the pinned values contradict {first}")


class _View(Protocol):
    """How a run is shown: as it goes and at its end."""

    def decided(self, outcomes: Mapping[int, Outcome]) -> None: ...

    def end(self, outcomes: Mapping[int, Outcome], seconds: float) -> None: ...


class _Lines:
    """A line for each claim in order, printed as soon as those before it are known."""

    def __init__(self, console: Console, asked: Sequence[Obligation]) -> None:
        self._console = console
        self._asked = asked
        self._printed = 0

    def decided(self, outcomes: Mapping[int, Outcome]) -> None:
        while self._printed in outcomes:
            print_outcome(self._console, self._asked[self._printed], outcomes[self._printed])
            self._printed += 1

    def end(self, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        self.decided(outcomes)
        release, count = self._asked[0].release, len(self._asked)
        self._console.print(
            f"\n{count} claim{'s' * (count != 1)} of {release.name} ({release.description}): "
            f"{tally(outcomes.values())}; {seconds:.1f} s",
            soft_wrap=True,
        )


def _reports(options: argparse.Namespace, run: Run) -> list[Report]:
    """Start every file that the call asks for, each as a marker that says that it is incomplete.

    Raises:
        UsageError: one cannot be written, or what it needs is not installed.
    """
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
        raise UsageError(f"--html needs {missing.name}: pip install 'rowbound[report]'") from missing
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    return reports


def _file(options: argparse.Namespace, name: str) -> Path | None:
    path: Path | None = getattr(options, name)
    if str(path) == "-":
        raise UsageError(f"--{name} takes a file; /dev/stdout is one")
    return path


def _refuse_one_file_twice(options: argparse.Namespace) -> None:
    """See that no output is written over another, or over what is read.

    Raises:
        UsageError: one would be.
    """
    files = {f"--{name.replace('_', '-')}": getattr(options, name) for name in _FILES}
    named = [(option, path) for option, path in files.items() if path is not None]
    named += [("--deployment", path) for path in options.deployment]
    if options.width is not None:
        named.append(("--width", options.width.rpartition(":")[0]))
    taken: dict[str, str] = {}
    for option, path in named:
        real = os.path.realpath(path)
        if real in taken and not real.startswith(("/dev/", "/proc/")):
            raise UsageError(f"{taken[real]} and {option} name one file, {path}")
        taken[real] = option


def _run(  # noqa: PLR0913, PLR0917  # what a run is made of
    view: _View,
    asked: Sequence[Obligation],
    pins: Mapping[str, int | bool],
    excluded: Mapping[int, Outcome],
    reports: Sequence[Report],
    options: argparse.Namespace,
    shared: Mapping[int, int] = MappingProxyType({}),
) -> tuple[dict[int, Outcome], int]:
    """Decide everything that is not decided by another claim, and show it."""
    started = time.perf_counter()
    outcomes = dict(excluded)
    open_indices = [index for index in range(len(asked)) if index not in excluded and index not in shared]
    code: int | None = None
    with _progress() as progress, Signals.hold():
        task = progress.add_task("deciding", total=len(open_indices))
        decided = decide_all(
            [asked[index] for index in open_indices],
            pins,
            solver=options.solver,
            jobs=options.jobs,
            pulse=Signals.raise_if_seen,
        )
        try:
            for position, outcome in decided:
                outcomes[open_indices[position]] = outcome
                progress.advance(task)
                view.decided(outcomes)
                Signals.raise_if_seen()
            outcomes |= {index: outcomes[earlier] for index, earlier in shared.items()}
            code = exit_code(outcome.verdict for outcome in outcomes.values())
        except Stopped as stopped:
            return outcomes, _interrupted(stopped, outcomes, len(asked), reports)
        finally:
            decided.close()
    view.end(outcomes, time.perf_counter() - started)
    return outcomes, code


def _require_solver(solver: str) -> None:
    """See that a second solver is there and proves the lemmas that its opinions rest on.

    Raises:
        UsageError: it is not installed, or does not.
    """
    if solver == SOLVERS[0]:
        return
    from proofs.second import SolverMissing, require_solver, unproved_lemmas  # noqa: PLC0415  # loads the solver

    try:
        require_solver("cvc5")
    except SolverMissing as missing:
        raise UsageError(str(missing)) from missing
    if unproved := [f"{name} by {s}" for s in ("z3", "cvc5") for name in unproved_lemmas(s)]:
        raise UsageError(f"lemmas are not proved in this environment: {', '.join(unproved)}")


def _save_queries(
    console: Console,
    directory: Path,
    asked: Sequence[Obligation],
    outcomes: Mapping[int, Outcome],
    pins: Mapping[str, int | bool],
) -> None:
    """Write every claim that is not proved as a query for any solver."""
    from proofs.decide import BUDGET  # noqa: PLC0415  # needs the solver
    from proofs.problem import build_problem  # noqa: PLC0415
    from proofs.smtlib import save_query  # noqa: PLC0415

    saved = [
        save_query(directory, asked[index], build_problem(asked[index], pins), budget=BUDGET)
        for index, outcome in sorted(outcomes.items())
        if outcome.verdict not in (Verdict.PROVED, Verdict.SKIPPED)
    ]
    console.print(
        f"{len(saved)} quer{'y' if len(saved) == 1 else 'ies'} saved in {directory}", soft_wrap=True
    )


def _interrupted(
    stopped: Stopped, outcomes: Mapping[int, Outcome], total: int, reports: Iterable[Report]
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
        (f"{o.kind:22} {o.runner.value:2} {o.label}" for o in asked),
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
    assumed = [
        f"{a.name}: {a.sentence} [{a.source}]"
        for a in ASSUMPTIONS
        if a.releases is None or release.name in a.releases
    ]
    section("assumptions", assumed)
    claims = dict.fromkeys(o.invariant for o in asked)
    section("invariants", (f"{i.label}: {i.sentence}" for i in claims))
    given = {g.name: g for i in claims for g in i.givens}
    section("what narrows them (no rules of the engine)", (f"{g.name}: {g.sentence}" for g in given.values()))
    section("releases", (f"{r.name}: {r.description}" for r in RELEASES))


def _parameter_line(parameter: Parameter) -> str:
    if parameter.is_switch:
        kind = "true or false"
    else:
        kind = f"{parameter.minimum} to {'any size' if parameter.maximum is None else parameter.maximum}"
    usual = "" if parameter.usual is None else f", usually {str(parameter.usual).lower()}"
    return f"{parameter.name}: {parameter.help} ({kind}{usual})"
