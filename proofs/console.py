"""What the commands of this package have in common: usage errors, signals, a quiet end and one line for each.

Whatever ends a command early says so in one line on standard error and claims nothing of the rest.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar

from rich.console import Console

from proofs.verdicts import EXIT_INTERNAL, EXIT_USAGE

__all__ = [
    "WIDE",
    "Parser",
    "PipedConsole",
    "Signals",
    "Stopped",
    "UsageError",
    "Written",
    "closest",
    "echo",
    "file_path",
    "job_count",
    "one_of",
    "opened",
    "run_command",
    "saved",
    "say",
]

WIDE = 10_000
"""Lines are never folded, whatever the terminal's width says."""
_LONGEST_ECHO = 60
_MOST_JOBS = 1024


_File = TypeVar("_File")


class Written(Protocol):
    """A file about a run."""

    @property
    def name(self) -> str:
        """What a message calls it."""

    def write(self, known: Any, /, *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""


class UsageError(Exception):
    """Something in the call cannot be meant; its text is the one line that says so."""


class Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number, of which the exit code is made."""
        super().__init__(number)
        self.number = number


class PipedConsole(Console):
    """A console whose reader may leave."""

    def on_broken_pipe(self) -> None:
        """Leave it to `run_command`: rich itself would exit with 1, which here means REFUTED."""
        raise BrokenPipeError


class Parser(argparse.ArgumentParser):
    """A parser that raises in place of exiting."""

    def error(self, message: str) -> NoReturn:
        """Turn every mistake in the call into the same kind of error."""
        raise UsageError(message)


def run_command(program: str, body: Callable[[], int]) -> int:
    """Run a command and return its exit code, whatever ends it."""
    Signals.seen = None
    if sys.stdout is None:  # closed before the start: there is nobody to print for
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    with suppress(ValueError):  # only a main thread may set handlers; elsewhere the caller's stay
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, Signals.handle)
    try:
        code = body()
        sys.stdout.flush()
    except UsageError as mistake:
        say(program, f"{mistake} (see --help)")
        code = EXIT_USAGE
    except Stopped as stopped:
        say(program, "stopped before everything was decided; nothing is claimed of the rest")
        code = 128 + stopped.number
    except ModuleNotFoundError as missing:
        say(program, f"needs {missing.name}: install rowbound with what it depends on")
        code = EXIT_USAGE
    except BrokenPipeError:
        _discard_output()
        code = 128 + signal.SIGPIPE
    except OSError as error:
        _discard_output()
        say(program, f"cannot go on: {error}; nothing is claimed")
        code = EXIT_INTERNAL
    except Exception:  # noqa: BLE001  # Python's own exit code for it is 1, which here means REFUTED
        traceback.print_exc()
        say(program, "internal error; nothing is claimed")
        code = EXIT_INTERNAL
    return code


def opened(path: Path | None, start: Callable[[Path], _File]) -> _File | None:
    """Start a JSON file if one is asked for: one that cannot be written is told before anything else.

    Raises:
        UsageError: it cannot be.
    """
    if path is None:
        return None
    if str(path) == "-":
        raise UsageError("--json takes a file; /dev/stdout is one")
    try:
        return start(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def saved(program: str, report: Written, known: Any, code: int) -> int:
    """Write a file about a run; a failure to write is an error of its own and changes no finding."""
    try:
        report.write(known, exit_code=code)
    except OSError as error:
        say(program, f"the {report.name} was not written: {error}")
        return code or EXIT_USAGE
    return code


def say(program: str, line: str) -> None:
    """Say one line on standard error, if there is one."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{program}: {line}\n")
        sys.stderr.flush()


def _discard_output() -> None:
    """Give the interpreter nothing to flush into an output that is closed or full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Signals:
    """What a signal's handler saw.

    An exception that a handler raises is lost where Python cannot pass it on, such as in a destructor. While
    `held` it is therefore not raised there: whoever holds it asks with `raise_if_seen`.
    """

    seen: int | None = None
    held = False

    @classmethod
    def handle(cls, number: int, _frame: FrameType | None) -> None:
        """Note the first signal, and end the run unless someone holds it; a second one adds nothing."""
        if cls.seen is None:
            cls.seen = number
            if not cls.held:
                cls.raise_if_seen()

    @classmethod
    def raise_if_seen(cls) -> None:
        """End the run if a signal asked for it.

        Raises:
            Stopped: one did.
        """
        if cls.seen is not None:
            raise Stopped(cls.seen)

    @classmethod
    @contextmanager
    def hold(cls) -> Iterator[None]:
        """Note signals within, and raise nothing."""
        cls.held = True
        try:
            yield
        finally:
            cls.held = False


def one_of(what: str, names: Sequence[str], there_are: str) -> Callable[[str], str]:
    """Return a reader of an option's value that helps with a name that is not there."""

    def read(text: str) -> str:
        if text not in names:
            hint = closest(text, names) or f"there are {there_are}"
            raise argparse.ArgumentTypeError(f"no {what} is named {echo(text)}; {hint}")
        return text

    return read


def job_count(text: str) -> int:
    """Read how many processes to run at a time."""
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(_MOST_JOBS))
        and 1 <= int(text) <= _MOST_JOBS
    ):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST_JOBS}, not {echo(text)}")
    return int(text)


def file_path(text: str) -> Path:
    """Read the name of a file or a folder; an empty one would mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file, not ''")
    return Path(text)


def closest(text: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a question that names what was probably meant, whatever its case, or nothing.

    Names less alike than `cutoff` are not taken for one another; 1 means the very same.
    """
    known, short = list(names), text[:_LONGEST_ECHO]
    close = [name for name in known if name.lower() == short.lower()]
    close = close or difflib.get_close_matches(short, known, n=1, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else ""


def echo(text: str) -> str:
    """Return what a person typed, in quotes and not too long."""
    return repr(text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}...")
