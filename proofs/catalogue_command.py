"""The command behind `python -m proofs.catalogue`: options, a line for each fault, and the exit code."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.text import Text

from proofs.console import (
    WIDE,
    Parser,
    PipedConsole,
    Signals,
    Stopped,
    UsageError,
    file_path,
    one_of,
    opened,
    run_command,
    saved,
    say,
)
from proofs.faults import FAULTS, UNMODELLED, Claim, Fault, Unmodelled
from proofs.files import JsonFile
from proofs.reproduce import Example, Finding, check_fault
from proofs.verdicts import EXIT_INTERNAL, EXIT_USAGE

__all__ = ["EXIT_CODES", "SCHEMA", "finding_lines", "main"]

SCHEMA = "rowbound.catalogue/1"
"""The name and version of the JSON layout; a change that a reader can notice raises the number."""
EXIT_CODES: Mapping[int, str] = {
    0: "every fault that was asked is reproduced, and its repair proved",
    1: "at least one is not",
    EXIT_USAGE: "wrong usage",
    EXIT_INTERNAL: "internal error",
    130: "interrupted by Ctrl-C (143: SIGTERM, 141: the output's reader left); the rest is undecided",
}

_PROGRAM = "python -m proofs.catalogue"
_THREAD_WIDTH = max(len(fault.thread) for fault in FAULTS)
_KIND_WIDTH = max(len(fault.kind.value) for fault in FAULTS)
_INDENT = " " * 9


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(_PROGRAM, lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    console = PipedConsole(highlight=False, markup=False, width=WIDE)
    asked, left_out = _selected(options.only)
    if options.list:
        _print_list(console, asked, left_out)
        return 0
    if not asked:
        reasons = "; ".join(_left_out_line(item) for item in left_out)
        raise UsageError(f"nothing to reproduce: {reasons}")
    report = opened(options.json, lambda path: JsonFile(path, SCHEMA, ((), ()), _document))
    started, findings = time.perf_counter(), list[Finding]()
    try:
        for finding in _findings(asked):
            findings.append(finding)
            _print_finding(console, finding, in_full=bool(options.only))
    except Stopped as stopped:
        say(
            _PROGRAM,
            f"interrupted with {len(findings)} of {len(asked)} checked; nothing is claimed of the rest",
        )
        if report is not None:
            with suppress(OSError):  # the file says already that it is incomplete
                report.write((findings, left_out), exit_code=None)
        return 128 + stopped.number
    _print_left_out(console, left_out)
    console.print(f"\n{_tally(findings, left_out)}; {time.perf_counter() - started:.1f} s")
    code = 0 if all(finding.holds for finding in findings) else 1
    return code if report is None else saved(_PROGRAM, report, (findings, left_out), code)


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = Parser(
        prog=_PROGRAM,
        description="For each public fault of this class: compute the numbers of its thread from a model of "
        "the faulty code, let the solver break that model, and prove the repaired one for all sizes.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    threads = [thread for fault in FAULTS for thread in (fault.thread, *fault.also)]
    left_out = [thread for item in UNMODELLED for thread in item.threads]
    parser.add_argument(
        "--only",
        action="append",
        type=one_of("thread", [*threads, *left_out], f"{len(threads)}, which --list names"),
        metavar="THREAD",
        help="only this fault, such as vllm#50287, and all about it; repeatable",
    )
    parser.add_argument("--list", action="store_true", help="list the faults and what is left out, and stop")
    parser.add_argument("--json", type=file_path, metavar="FILE", help="also write the outcome as JSON")
    return parser


def _selected(only: Sequence[str] | None) -> tuple[list[Fault], list[Unmodelled]]:
    """Return the faults and the omissions that a selection names; all of them without one."""
    if not only:
        return list(FAULTS), list(UNMODELLED)
    named = set(only)
    return (
        [fault for fault in FAULTS if named & {fault.thread, *fault.also}],
        [item for item in UNMODELLED if named & set(item.threads)],
    )


def _findings(asked: Sequence[Fault]) -> Iterator[Finding]:
    """Check fault by fault; a signal is answered between two of them."""
    for fault in asked:
        with Signals.hold():
            finding = check_fault(fault)
        Signals.raise_if_seen()
        yield finding


def _print_list(console: Console, asked: Sequence[Fault], left_out: Sequence[Unmodelled]) -> None:
    for fault in asked:
        console.print(f"{_head(fault)}  {fault.title}")
    _print_left_out(console, left_out)


def _print_left_out(console: Console, left_out: Sequence[Unmodelled]) -> None:
    for item in left_out:
        console.print(_left_out_line(item))


def _left_out_line(item: Unmodelled) -> str:
    return f"not modelled: {', '.join(item.threads)}: {item.reason}"


def _head(fault: Fault) -> str:
    return f"{fault.thread:{_THREAD_WIDTH}}  {fault.kind.value:{_KIND_WIDTH}}"


def _print_finding(console: Console, finding: Finding, *, in_full: bool) -> None:
    first, *rest = finding_lines(finding, in_full=in_full)
    console.print(Text(first, style="" if finding.holds else "bold red"), *map(Text, rest), sep="\n")


def finding_lines(finding: Finding, *, in_full: bool = False) -> list[str]:
    """Return the lines that a person reads about one fault."""
    fault = finding.fault
    reproduced = "NOT reproduced" if finding.unreproduced else f"reproduced {_clash(finding.examples[0])}"
    repaired = "repair NOT proved" if finding.unrepaired else "repaired: proved"
    lines = [f"{_head(fault)}  {reproduced}; {repaired}"]
    lines += [f"{_INDENT}{problem}" for problem in (*finding.unreproduced, *finding.unrepaired)]
    return lines + list(_details(finding)) if in_full else lines


def _clash(example: Example) -> str:
    text = example.faulty.broken()
    if example.report.first is not None and example.first is not None:
        text += f", first at {example.report.first} {example.first:,}"
    return f"{text} (numbers by hand)" if example.report.by_hand else text


def _details(finding: Finding) -> Iterator[str]:
    fault = finding.fault
    yield f"{_INDENT}{fault.title}"
    yield f"{_INDENT}seen: {fault.seen}"
    if fault.also:
        yield f"{_INDENT}also: {', '.join(fault.also)}"
    for example in finding.examples:
        sizes = ", ".join(f"{name} {_shown(value)}" for name, value in example.report.sizes.items())
        yield f"{_INDENT}at {sizes}"
        yield f"{_INDENT}  faulty    {_quantities(example.faulty)}"
        yield f"{_INDENT}  repaired  {_quantities(example.repaired)}"
    usual = {p.name: p.usual for p in fault.domain.parameters}
    small = ", ".join(
        f"{name} {_shown(finding.smallest[name])}"
        for name in usual
        if name in finding.smallest and finding.smallest[name] != (usual[name] or 0)
    )
    yield f"{_INDENT}smallest that breaks the faulty variant, the rest being usual or 0: {small}"


def _shown(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}"


def _quantities(claim: Claim) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in claim.quantities().items())


def _tally(findings: Sequence[Finding], left_out: Sequence[Unmodelled]) -> str:
    wrong = sum(not finding.holds for finding in findings)
    by_hand = sum(all(example.report.by_hand for example in finding.examples) for finding in findings)
    kinds = Counter(finding.fault.kind.value for finding in findings)
    spread = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f"{len(findings)} fault{'s' * (len(findings) != 1)} ({spread}): "
        f"{len(findings) - wrong} reproduced and repaired, {wrong} not; "
        f"{len(findings) - by_hand} with their thread's numbers, {by_hand} with numbers by hand; "
        f"{len(left_out)} not modelled"
    )


def _document(known: tuple[Sequence[Finding], Sequence[Unmodelled]]) -> dict[str, Any]:
    findings, left_out = known
    return {
        "faults": [_entry(finding) for finding in findings],
        "not_modelled": [{"threads": item.threads, "reason": item.reason} for item in left_out],
    }


def _entry(finding: Finding) -> dict[str, Any]:
    fault = finding.fault
    return {
        "thread": fault.thread,
        "also": fault.also,
        "class": fault.kind.value,
        "title": fault.title,
        "seen": fault.seen,
        "reproduced": not finding.unreproduced,
        "repaired": not finding.unrepaired,
        "problems": [*finding.unreproduced, *finding.unrepaired],
        "examples": [
            {
                "sizes": dict(example.report.sizes),
                "faulty": example.faulty.quantities(),
                "repaired": example.repaired.quantities(),
                "first_failing": (
                    None if example.report.first is None else {example.report.first: example.first}
                ),
                "numbers_by_hand": example.report.by_hand,
            }
            for example in finding.examples
        ],
        "smallest": dict(finding.smallest),
        "seconds": round(finding.seconds, 4),
    }
