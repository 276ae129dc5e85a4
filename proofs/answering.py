"""A command whose end is believed only if it answers: code of the user's own runs in its process.

That code can end the process at any time and with any exit code, so that neither of them says anything. The
command runs in a child, which sends its exit code once everything is done.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from proofs.console import UsageError

__all__ = ["answer_of", "one_process"]

_LONGEST_ANSWER = 8


def answer_of(command: Callable[[], int], whose: str) -> int:
    """Run a command in a child process and return the exit code that it answers with.

    `whose` names the code that may have ended it. A signal is handed on to the child.

    Raises:
        UsageError: the child ended without an answer.
    """
    if not hasattr(os, "fork"):
        return command()
    answer, answering = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(answer)
        _answer(command, answering)
    os.close(answering)
    status = _waited_for(child)
    os.set_blocking(answer, False)  # a process that the user's code left behind may hold the other end
    try:
        told = os.read(answer, _LONGEST_ANSWER)
    except BlockingIOError:
        told = b""
    os.close(answer)
    if told:
        return int(told)
    how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "before its end"
    raise UsageError(f"{whose} ended the process {how}; nothing is claimed")


def _answer(command: Callable[[], int], answering: int) -> None:
    code = command()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os.write(answering, str(code).encode())
    os._exit(0)


def _waited_for(child: int) -> int:
    """Wait for a child, and hand it the signals that ask for the end; it says how far it came."""

    def hand_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return os.waitpid(child, 0)[1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def one_process() -> Iterator[None]:
    """Let only the process that enters leave: a copy that the code within forks ends there."""
    entered = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != entered:
            os._exit(0)
