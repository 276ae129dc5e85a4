"""Check mutants in child processes, each with one mutant at a time: what a mutant changes dies with them."""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from proofs.mutations import Mutant, MutantDoesNotApply
from proofs.pool import interrupts_blocked, solver_context
from proofs.verdicts import Counterexample, Verdict

__all__ = ["Fate", "Finding", "Question", "check_all", "check_mutant"]

_WALL_SECONDS = 300.0
"""After this a child is killed; a mutant that survives is asked of every claim, which takes a while."""


class Fate(enum.Enum):
    """What became of a mutant."""

    CAUGHT = "CAUGHT"
    """A claim refutes it."""
    SURVIVED = "SURVIVED"
    """Every claim is proved of it too."""
    UNDECIDED = "UNDECIDED"
    """No claim refutes it, and of at least one the solver could not tell."""
    ERROR = "ERROR"
    """It could not be checked; `Finding.detail` says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """A mutant, and the claims that are asked if none of those that should refute it does."""

    mutant: Mutant
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one mutant.

    `caught_by` is the claim that refutes it, as "kind runner label", and `counterexample` its smallest case;
    `asked` counts the claims up to that one. `undecided` are those of which the solver could not tell.
    """

    mutant: Mutant
    fate: Fate
    asked: int = 0
    caught_by: str | None = None
    counterexample: Counterexample | None = None
    undecided: tuple[str, ...] = ()
    detail: str = ""
    seconds: float = 0.0


def check_mutant(question: Question) -> Finding:
    """Ask claim after claim, until one refutes the mutant."""
    started = time.perf_counter()
    try:
        with question.mutant.applied():
            finding = _ask(question)
    except MutantDoesNotApply as reason:
        finding = Finding(question.mutant, Fate.ERROR, detail=str(reason))
    return replace(finding, seconds=time.perf_counter() - started)


def _ask(question: Question) -> Finding:
    from proofs.decide import decide  # noqa: PLC0415  # the parent of a fork server needs no solver

    mutant, undecided = question.mutant, list[str]()
    every = replace(mutant, asks=(*mutant.asks, *question.others))
    for asked, (ask, obligation) in enumerate(zip(every.asks, every.obligations(), strict=True), start=1):
        outcome = decide(obligation, {})
        if outcome.verdict is Verdict.REFUTED:
            return Finding(
                mutant, Fate.CAUGHT, asked, ask, outcome.counterexample, undecided=tuple(undecided)
            )
        if outcome.verdict is not Verdict.PROVED:
            undecided.append(f"{ask}: {outcome.verdict.value} {outcome.detail}")
    fate = Fate.UNDECIDED if undecided else Fate.SURVIVED
    return Finding(mutant, fate, len(every.asks), undecided=tuple(undecided))


@dataclass(slots=True)
class _Child:
    """A process, the question that it has, and when it must have answered."""

    process: BaseProcess
    pipe: Connection
    index: int
    question: Question
    deadline: float

    def finding(self) -> Finding | None:
        """Return its answer, or what its silence means, or None to wait on."""
        if self.pipe.poll():
            with suppress(EOFError):
                answer: Finding = self.pipe.recv()
                return answer
            self.process.join()
            return self._failed(f"the solver's process ended with code {self.process.exitcode}")
        if time.monotonic() < self.deadline:
            return None
        self.process.kill()
        self.process.join()
        return self._failed(f"killed after {_WALL_SECONDS:g} s of wall-clock time")

    def _failed(self, detail: str) -> Finding:
        return Finding(self.question.mutant, Fate.ERROR, detail=detail)


def check_all(questions: Sequence[Question], *, jobs: int) -> Generator[tuple[int, Finding], None, None]:
    """Yield each question's index and finding as it is known.

    Closing the iterator kills what is still running, and so does an exception in the caller.
    """
    context = solver_context()
    waiting = deque(enumerate(questions))
    running: list[_Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_started(context, *waiting.popleft()))
            wait([child.pipe for child in running], timeout=0.1)
            for child in list(running):
                finding = child.finding()
                if finding is None:
                    continue
                index = child.index
                if waiting and child.process.exitcode is None and finding.fate is not Fate.ERROR:
                    _hand_over(child, *waiting.popleft())
                else:
                    child.process.kill()
                    running.remove(child)
                yield index, finding
    finally:
        for child in running:
            child.process.kill()
        for child in running:
            child.process.join()


def _started(context: BaseContext, index: int, question: Question) -> _Child:
    ours, theirs = context.Pipe()
    process = context.Process(  # type: ignore[attr-defined]  # every concrete context has it
        target=_work, args=(theirs,), daemon=True
    )
    with interrupts_blocked():  # half a hand-over would make the fork server complain
        process.start()
    theirs.close()
    child = _Child(process, ours, index, question, 0.0)
    _hand_over(child, index, question)
    return child


def _hand_over(child: _Child, index: int, question: Question) -> None:
    child.index, child.question, child.deadline = index, question, time.monotonic() + _WALL_SECONDS
    with suppress(OSError):  # a dead child is told from its silence
        child.pipe.send(question)


def _work(pipe: Connection) -> None:
    """Check what is asked until nobody asks any more; this is a child process's whole life."""
    with suppress(EOFError, OSError):
        while True:
            question: Question = pipe.recv()
            pipe.send(check_mutant(question))
