"""Holds the installed vLLM against `invariants`: `python tests/conformance/conform.py`, in its environment.

For each spec type that the release has, one machine drives KVCacheManager, one Scheduler and V1's tables, and
one Scheduler and V2's tables. Prints a table. Exit code 0: no list, row or slot differs, and every bound was
reached; 1: not so; 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import machines
import recording
import replays
import vllm_engine as engine
from comparison import Mismatch, Tally
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from invariants import SPEC_KINDS, release

MACHINES = (machines.ManagerMachine, machines.SchedulerMachine, machines.V2SchedulerMachine)
_RECORDED_EXAMPLES, _RUNS_KEPT = 20, 3
"""How many runs `--record` drives of each type, and how many of each sort it keeps."""
MANAGER_ALONE = {"cross-attention": "its requests need an encoder's inputs, so Scheduler is not driven"}


def kinds_of(known):
    """The spec types of a release, in the order of `invariants`."""
    return [kind for kind in SPEC_KINDS if kind not in known.absent]


def run_kind(kind, known, tally, examples):
    """Drive the machines of one type; the first difference is raised, shrunk to the smallest one found."""
    for base in MACHINES:
        if kind in MANAGER_ALONE and issubclass(base, machines.SchedulerMachine):
            continue
        _drive(base, kind, known, tally, examples)


def _drive(base, kind, known, tally, examples):
    run_state_machine_as_test(
        machines.machine_of(base, kind, known.name, tally),
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True,
            database=None, report_multiple_bugs=False, print_blob=False,
            phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def _difference(kind, known, tally, examples):
    """Return what differs for a type in one line, or None."""
    try:
        run_kind(kind, known, tally, examples)
    except Mismatch as mismatch:
        return str(mismatch)
    except (engine.UnknownLayout, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  # whatever the engine raises in a legal step is a difference
        return f"vLLM {engine.version()}: {_place(error)} raises {type(error).__name__}: {_first_line(error)}"
    return None


def _place(error):
    """Where an error was raised."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_qualname}, line {trace.tb_lineno},"


def _first_line(error):
    return str(error).split("\n")[0] or "no message"


WORKERS = ("V1 rows", "V1 slots", "V2 rows", "V2 slots")
HEADER = ("spec type", "steps", "largest list", "bound", "gap", "bound reached", *WORKERS)


def row_of(kind, record):
    """One line of the table."""
    equal = (record.rows, record.slots, record.v2_rows, record.v2_slots)
    return (
        kind, f"{record.steps:,}", str(record.largest), str(record.bound), str(record.gap),
        f"{record.reached} of {record.setups}",
        *(f"{count:,}" if count else "-" for count in equal),
    )  # fmt: skip


def table_of(lines):
    """Align columns; numbers to the right."""
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    for line in lines:
        cells = [
            cell.ljust(w) if n == 0 else cell.rjust(w)
            for n, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def run(known, kinds, examples):
    """Drive every type and print what was seen; return whether all of it conforms."""
    tally, failures, lines = Tally(), [], [HEADER]
    for kind in kinds:
        if kind in engine.NOT_DRIVEN:
            continue
        if line := _difference(kind, known, tally, examples):
            failures.append(f"{kind}: {line}")
            continue
        record = tally.record(kind)
        lines.append(row_of(kind, record))
        if not record.reached:
            failures.append(f"{kind}: no setup of {record.setups} reached its bound, so nothing is shown")
    print("\n".join(table_of(lines)), flush=True)
    _print_notes(tally, kinds)
    for failure in failures:
        print(f"DIFFERS  {failure}")
    return not failures


def _print_notes(tally, kinds):
    for kind in kinds:
        if kind in engine.NOT_DRIVEN:
            print(f"not driven  {kind}: {engine.NOT_DRIVEN[kind]}")
        if kind in MANAGER_ALONE:
            print(f"no rows     {kind}: {MANAGER_ALONE[kind]}")
        if (record := tally.of.get(kind)) and record.narrow:
            print(f"too narrow  {kind}: {record.narrow_first}; {record.narrow} lists kept from their rows")
    for kind, record in tally.of.items():
        for reason, count in record.refused.items():
            print(f"refused     {kind}: {count} setups by the engine itself: {reason}")
    sessions = [(kind, record) for kind, record in tally.of.items() if record.beyond]
    for kind, record in sessions[:1]:
        more = f"; {len(sessions) - 1} more types likewise" if sessions[1:] else ""
        print(f"session     {kind}: {record.beyond_first} (FINDINGS.md, finding 3){more}")


def record(known, kinds, file):
    """Write what the schedulers of a release hand to V2's tables, a few runs of each type."""
    kept = []
    for kind in kinds:
        if kind in engine.NOT_DRIVEN or kind in MANAGER_ALONE:
            continue
        recorder = recording.Recorder()
        recorded = type("Recorded", (machines.V2SchedulerMachine,), {"recorder": recorder})
        _drive(recorded, kind, known, Tally(), _RECORDED_EXAMPLES)
        runs = recorder.kept(_RUNS_KEPT)
        print(f"{kind}: {len(runs)} runs of {len(recorder.runs)}")
        kept.extend(runs)
    recording.write(Path(file), kept)


def _broken(name):
    """Return the edit of a formula by that name, from those of `python -m proofs.mutants`."""
    from proofs.mutated import MUTANTS

    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    names = "\n  ".join(mutant.name for mutant in MUTANTS if "entries" in mutant.name)
    raise argparse.ArgumentTypeError(f"no edit is named {name!r}; of the lists there are\n  {names}")


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def main(given=None):
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--spec",
        action="append",
        choices=SPEC_KINDS,
        metavar="TYPE",
        help="this spec type alone; can be repeated",
    )
    parser.add_argument(
        "--examples", type=_positive, default=20, help="runs of each machine (default %(default)s)"
    )
    parser.add_argument(
        "--break",
        dest="edit",
        type=_broken,
        metavar="NAME",
        help="edit this formula first; must be noticed",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="write what V2's tables are handed to FILE (JSON lines, gzip) and stop",
    )
    asked = parser.parse_args(given)
    if asked.record and asked.edit:
        parser.error("--record does not go with --break: what is recorded is what the engine does")
    if asked.record:
        try:
            Path(asked.record).open("ab").close()
        except OSError as error:
            parser.error(f"cannot write {asked.record}: {error.strerror or error}")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    started = time.monotonic()
    try:
        known = release(engine.release_name())
        kinds = asked.spec or kinds_of(known)
        if asked.record:
            record(known, kinds, asked.record)
            return 0
        print(f"vLLM {engine.version()} against invariants' {known.name}")
        with asked.edit.applied() if asked.edit else contextlib.nullcontext():
            conforms = run(known, kinds, asked.examples)
        if not asked.edit and not asked.spec:
            conforms = replays.run() and conforms
    except (engine.UnknownLayout, ModuleNotFoundError) as error:
        print(f"conformance was not run: {error}", file=sys.stderr)
        return 2
    print(f"{'conforms' if conforms else 'DOES NOT CONFORM'}; {time.monotonic() - started:.0f} s")
    return 0 if conforms else 1


if __name__ == "__main__":
    sys.exit(main())
