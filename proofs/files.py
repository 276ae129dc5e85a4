"""Files that a run writes: no reader ever sees half of one, or takes an unfinished run for a finished one.

Every state of a file is written beside it and moved into place. A file about a run starts as a marker that
says so in the file's own format, and stays that if the run is killed.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from invariants import Release
from proofs.verdicts import Obligation, Outcome

__all__ = ["JsonFile", "OutputFile", "Render", "Report", "Run", "RunFile", "version", "versions"]


def _is_stream(path: Path) -> bool:
    """Return whether what is written there flows on and cannot be replaced: a pipe or a device."""
    special = path.is_relative_to("/dev") or path.is_relative_to("/proc") or path.is_fifo()
    return special and not path.is_dir()


class OutputFile:
    """A file that is replaced as a whole; a pipe or a device is written to directly, once complete."""

    def __init__(self, path: Path) -> None:
        """Follow links: what they point at is replaced, not they."""
        self._flows = _is_stream(path)
        self._path = path if self._flows else path.resolve()

    def write(self, text: str, *, complete: bool) -> None:
        """Write a state of the file.

        Raises:
            OSError: it cannot be written; what stood there before is as it was.
        """
        if self._path.is_dir():
            raise IsADirectoryError(f"{self._path} is a directory")
        if self._flows:
            if complete:  # a pipe or a device has no incomplete state
                self._path.write_text(text, encoding="utf-8", errors="replace")
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8", errors="replace")  # a file name may be no text
            beside.replace(self._path)
        finally:
            beside.unlink(missing_ok=True)


class JsonFile:
    """A JSON file about a run: marked incomplete from the start, replaced as a whole at the end."""

    name = "JSON report"

    def __init__(
        self, path: Path, schema: str, nothing: Any, body: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        """Write the incomplete marker, which also shows that the path can be written.

        `body` says in the layout of `schema` what is known; `nothing` is what is known at the start.

        Raises:
            OSError: it cannot be written.
        """
        self._file, self._schema, self._body = OutputFile(path), schema, body
        self.write(nothing, exit_code=None)

    def write(self, known: Any, *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""
        head = {"complete": exit_code is not None, "schema": self._schema, "exit_code": exit_code}
        text = json.dumps({**head, **self._body(known)}, indent=2) + "\n"
        self._file.write(text, complete=exit_code is not None)


class Report(Protocol):
    """Something that is written when a run ends, whichever way."""

    @property
    def name(self) -> str:
        """What a message calls it."""

    def write(self, outcomes: Mapping[int, Outcome], *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was asked.

    `not_asked` has a line for each claim that is left out with a reason; `width` is the call's `--width`.
    """

    release: Release
    pins: Mapping[str, int | bool]
    asked: Sequence[Obligation]
    not_asked: Sequence[str] = ()
    width: str | None = None


Render = Callable[[Run, Mapping[int, Outcome], int | None], str]
"""A file's text from the run, what is decided of it, and its exit code, which an unfinished run has not."""


class RunFile:
    """A file about a run, written incomplete at once and complete at the end."""

    def __init__(self, name: str, path: Path, run: Run, render: Render) -> None:
        """Write the incomplete marker, which also shows that the path can be written.

        Raises:
            OSError: it cannot.
        """
        self.name = name
        self._file, self._run, self._render = OutputFile(path), run, render
        self.write({}, exit_code=None)

    def write(self, outcomes: Mapping[int, Outcome], *, exit_code: int | None) -> None:
        """Write what is known; with an exit code the run is complete."""
        self._file.write(self._render(self._run, outcomes, exit_code), complete=exit_code is not None)


def versions() -> dict[str, str | None]:
    """Return the versions of what decides a run."""
    installed = {name: version(name) for name in ("rowbound", "z3-solver", "rich")}
    return installed | {"python": platform.python_version()}


def version(distribution: str) -> str | None:
    """Return a distribution's installed version, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
