"""The command behind `python -m proofs.mutants`: options, lines for each mutant, a tally, the exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from rich.text import Text

from invariants import TODAY
from proofs.console import (
    WIDE,
    Parser,
    PipedConsole,
    Stopped,
    UsageError,
    echo,
    file_path,
    job_count,
    opened,
    run_command,
    saved,
    say,
)
from proofs.files import JsonFile, versions
from proofs.mutant_pool import Fate, Finding, Question, check_all
from proofs.mutated import MUTANTS
from proofs.mutations import Mutant
from proofs.verdicts import EXIT_INTERNAL, EXIT_USAGE, obligations

__all__ = ["EXIT_CODES", "SCHEMA", "finding_lines", "main", "others"]

SCHEMA = "rowbound.mutants/1"
"""The name and version of the JSON layout, which `schemas/mutants-1.json` describes.

A change that a reader can notice raises the number.
"""
EXIT_CODES: Mapping[int, str] = {
    0: "a claim refutes every mutant that was asked",
    1: "at least one mutant survived: no claim notices it",
    EXIT_USAGE: "wrong usage, or nothing was selected",
    3: "of at least one the solver could not tell, and nothing else caught it",
    EXIT_INTERNAL: "internal error, or a mutant that no longer fits the source",
    130: "interrupted by Ctrl-C (143: SIGTERM, 141: the output's reader left); the rest is undecided",
}
"""Exit codes and their meaning; of several, the first of 5, 1, 3 that applies."""

_PROGRAM = "python -m proofs.mutants"
_SEVERITY = ((Fate.ERROR, EXIT_INTERNAL), (Fate.SURVIVED, 1), (Fate.UNDECIDED, 3))
_FATE_WIDTH = max(len(fate.value) for fate in Fate)
_INDENT = " " * (_FATE_WIDTH + 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(_PROGRAM, lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    console = PipedConsole(highlight=False, markup=False, width=WIDE)
    asked = _selected(options.only)
    if options.list:
        for mutant in asked:
            console.print(*_description(mutant), sep="\n")
        return 0
    importlib.import_module("z3")  # here, so that it is missed once and not by every child
    report = opened(options.json, lambda path: JsonFile(path, SCHEMA, (), _document))
    started, findings = time.perf_counter(), list[Finding]()
    try:
        for finding in _in_order(asked, options.jobs or os.cpu_count() or 1):
            findings.append(finding)
            style = "" if finding.fate is Fate.CAUGHT else "bold red"
            first, *rest = finding_lines(finding)
            console.print(Text(first, style=style), *map(Text, rest), sep="\n")
    except Stopped as stopped:
        say(
            _PROGRAM,
            f"interrupted with {len(findings)} of {len(asked)} checked; nothing is claimed of the rest",
        )
        if report is not None:
            with suppress(OSError):  # the file says already that it is incomplete
                report.write(findings, exit_code=None)
        return 128 + stopped.number
    console.print(f"\n{_tally(findings)}; {time.perf_counter() - started:.1f} s")
    fates = {finding.fate for finding in findings}
    code = next((code for fate, code in _SEVERITY if fate in fates), 0)
    return code if report is None else saved(_PROGRAM, report, findings, code)


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = Parser(
        prog=_PROGRAM,
        description="Edit one formula of the scheduler, the worker, a kernel or a step at a time, and see "
        "that a claim of the default target, today's formulas, is refuted.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="only mutants with this text in their name or in a claim that must refute them, such as "
        "lifecycle or index-fits; repeatable",
    )
    parser.add_argument("--list", action="store_true", help="list the mutants and their edits, and stop")
    parser.add_argument(
        "--jobs", type=job_count, metavar="N", help="processes at a time; default: one per CPU"
    )
    parser.add_argument("--json", type=file_path, metavar="FILE", help="also write the outcome as JSON")
    return parser


def _selected(only: Sequence[str] | None) -> list[Mutant]:
    """Return the mutants that a selection names; all of them without one."""
    found: dict[str, Mutant] = {}
    for text in only or ("",):
        named = {m.name: m for m in MUTANTS if any(text in words for words in (m.name, *m.asks))}
        if not named:
            raise UsageError(
                f"no mutant has {echo(text)} in its name or claims; --list names all {len(MUTANTS)}"
            )
        found |= named
    return [mutant for mutant in MUTANTS if mutant.name in found]


def others(mutant: Mutant) -> tuple[str, ...]:
    """Return the claims of today that are asked if none of those that should refute a mutant does."""
    every = (f"{o.kind} {o.runner.value} {o.label}" for o in obligations(TODAY))
    return tuple(ask for ask in every if ask not in mutant.asks)


def _in_order(asked: Sequence[Mutant], jobs: int) -> Iterator[Finding]:
    """Yield a finding for each mutant, in their own order."""
    known, following = dict[int, Finding](), 0
    questions = [Question(mutant, others(mutant)) for mutant in asked]
    with closing(check_all(questions, jobs=jobs)) as answers:
        for index, finding in answers:
            known[index] = finding
            while following in known:
                yield known.pop(following)
                following += 1


def _description(mutant: Mutant) -> list[Text]:
    return [
        Text(mutant.name),
        Text(f"{_INDENT}- {mutant.old}"),
        Text(f"{_INDENT}+ {mutant.new}"),
        Text(f"{_INDENT}must be refuted by {', '.join(mutant.asks)}"),
    ]


def finding_lines(finding: Finding) -> list[str]:
    """Return the lines that a person reads about one mutant."""
    head = f"{finding.fate.value:{_FATE_WIDTH}}  {finding.mutant.name}"
    match finding.fate:
        case Fate.CAUGHT:
            rest = [f"by {finding.caught_by}, {finding.seconds * 1000:,.0f} ms: {_case(finding)}"]
        case Fate.ERROR:
            rest = [finding.detail]
        case _:
            rest = [
                f"- {finding.mutant.old}",
                f"+ {finding.mutant.new}",
                f"{finding.asked} claims asked, none is refuted, {finding.seconds:.1f} s",
            ]
    return [head, *(f"{_INDENT}{line}" for line in (*rest, *finding.undecided))]


def _case(finding: Finding) -> str:
    found = finding.counterexample
    if found is None:
        return "no case"
    sizes = ", ".join(f"{name} {_shown(found.values[name])}" for name in found.shown)
    return f"{found.summary} ({sizes})" if sizes else found.summary


def _shown(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}"


def _tally(findings: Sequence[Finding]) -> str:
    fates = Counter(finding.fate for finding in findings)
    families = Counter(f.caught_by.split()[2].split("/")[0] for f in findings if f.caught_by)
    spread = ", ".join(f"{count} by {family}" for family, count in families.items())
    caught = f"{fates[Fate.CAUGHT]} caught" + (f" ({spread})" if spread else "")
    return (
        f"{len(findings)} mutant{'s' * (len(findings) != 1)} of today's formulas: {caught}, "
        f"{fates[Fate.SURVIVED]} survived, {fates[Fate.UNDECIDED]} undecided, {fates[Fate.ERROR]} in error"
    )


def _document(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "release": TODAY.name,
        "versions": versions(),
        "mutants": [_entry(finding) for finding in findings],
    }


def _entry(finding: Finding) -> dict[str, Any]:
    mutant, found = finding.mutant, finding.counterexample
    kind, runner, label = finding.caught_by.split() if finding.caught_by else (None, None, None)
    return {
        "name": mutant.name,
        "place": mutant.place,
        "old": mutant.old,
        "new": mutant.new,
        "fate": finding.fate.value,
        "caught_by": None if label is None else {"spec": kind, "runner": runner, "claim": label},
        "case": None if found is None else {"summary": found.summary, "values": dict(found.values)},
        "asked": finding.asked,
        "undecided": finding.undecided,
        "detail": finding.detail,
        "seconds": round(finding.seconds, 4),
    }
