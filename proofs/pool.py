"""Decide many obligations at once, a few in each child process, which is killed if one takes too long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from invariants import RELEASES, Runner, claim
from proofs.own_width import load_width
from proofs.verdicts import SOLVERS, Obligation, Outcome, Verdict

__all__ = ["decide_all", "interrupts_blocked", "solver_context"]

_MOST_PER_CHILD = 12
"""Obligations that one process decides, each in a solver context of its own: a start costs more than most."""
_PULSE_SECONDS = 0.1
_WALL_SECONDS = 60.0
"""After this a child is killed, whatever the solver's own limits made of it."""


@dataclass(frozen=True, slots=True)
class _Question:
    """An obligation by names alone: nothing but plain data crosses the process border."""

    kind: str
    invariant: str
    runner: str
    release: str
    pins: Mapping[str, int | bool]
    solver: str


@dataclass(slots=True)
class _Child:
    """A process that decides a few obligations in turn; `waiting` are those it has not answered for yet."""

    waiting: list[int]
    process: BaseProcess
    answers: Connection
    deadline: float


def decide_all(  # noqa: PLR0913  # each has a default
    obligations: Sequence[Obligation],
    pins: Mapping[str, int | bool],
    *,
    solver: str = SOLVERS[0],
    jobs: int | None = None,
    wall_seconds: float = _WALL_SECONDS,
    pulse: Callable[[], None] = lambda: None,
) -> Generator[tuple[int, Outcome], None, None]:
    """Yield each obligation's index and outcome as it is decided.

    Closing the iterator kills what is still running, and so does an exception in the caller or in `pulse`,
    which is called several times a second.
    """
    context = solver_context()
    limit = jobs or os.cpu_count() or 1
    size = max(1, min(_MOST_PER_CHILD, len(obligations) // (4 * limit)))
    every = list(range(len(obligations)))
    batches = [every[start : start + size] for start in range(0, len(every), size)][::-1]
    running: list[_Child] = []
    try:
        while batches or running:
            while batches and len(running) < limit:
                batch = batches.pop()
                questions = [_question(obligations[index], pins, solver) for index in batch]
                running.append(_start(context, batch, questions, wall_seconds))
            nearest = min(child.deadline for child in running) - time.monotonic()
            wait([child.answers for child in running], timeout=min(max(0.0, nearest), _PULSE_SECONDS))
            pulse()
            for child in list(running):
                outcome, is_last = _outcome(child, wall_seconds)
                if outcome is None:
                    continue
                index = child.waiting.pop(0)
                child.deadline = time.monotonic() + wall_seconds
                if is_last or not child.waiting:
                    child.process.join()
                    running.remove(child)
                    if child.waiting:
                        batches.append(child.waiting)
                yield index, outcome
    finally:
        for child in running:
            child.process.kill()
        for child in running:
            child.process.join()


def _question(obligation: Obligation, pins: Mapping[str, int | bool], solver: str) -> _Question:
    names = {parameter.name for parameter in obligation.parameters()}
    return _Question(
        obligation.kind,
        obligation.label,
        obligation.runner.value,
        obligation.release.name,
        {name: value for name, value in pins.items() if name in names},
        solver,
    )


def _start(
    context: BaseContext, batch: list[int], questions: Sequence[_Question], wall_seconds: float
) -> _Child:
    answers, answer = context.Pipe(duplex=False)
    process = context.Process(  # type: ignore[attr-defined]  # every concrete context has it
        target=_run, args=(answer, questions), daemon=True
    )
    with interrupts_blocked():  # half a hand-over would make the fork server complain
        process.start()
    answer.close()
    return _Child(batch, process, answers, time.monotonic() + wall_seconds)


def _run(answer: Connection, questions: Sequence[_Question]) -> None:
    """Decide some obligations one after the other; this is a child process's whole life."""
    from proofs.decide import decide  # noqa: PLC0415  # the parent of a fork server needs no solver

    releases = {r.name: r for r in RELEASES}
    for question in questions:
        known = releases.get(question.release) or load_width(question.release)
        obligation = Obligation(question.kind, claim(question.invariant), Runner(question.runner), known)
        with suppress(OSError):  # nobody waits for the answer any more
            answer.send(decide(obligation, question.pins, solver=question.solver))


def _outcome(child: _Child, wall_seconds: float) -> tuple[Outcome | None, bool]:
    """Return what a child has to say, or what its silence means, or None to wait on; and whether that is all.

    A child that has ended may still have answers in its pipe: only their end says that there are no more.
    """
    if child.answers.poll():
        try:
            outcome: Outcome = child.answers.recv()
        except EOFError:
            child.process.join()
            code = child.process.exitcode
            return Outcome(Verdict.ERROR, f"the solver's process ended with code {code}"), True
        return outcome, False
    if time.monotonic() < child.deadline:
        return None, False
    child.process.kill()
    child.process.join()
    killed = f"killed after {wall_seconds:g} s of wall-clock time"
    return Outcome(Verdict.UNKNOWN, killed, seconds=wall_seconds), True


def solver_context() -> BaseContext:
    """Return a way to start children that begin with the solver loaded and nothing solved yet.

    A fork server gives that for the price of a fork, and the same solver state, hence the same cost
    figures, to every child.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["proofs.decide", "proofs.command"])
    from multiprocessing import forkserver, resource_tracker  # noqa: PLC0415  # absent on some systems

    # The server starts the tracker if need be, and that would lift the mask.
    resource_tracker.ensure_running()
    with interrupts_blocked():
        forkserver.ensure_running()
    return context


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Put off signals that end the run; processes started within never see them, only the parent does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
