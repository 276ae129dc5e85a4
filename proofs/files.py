"""Files that a reader never sees half of."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_stream", "write_beside"]


def is_stream(path: Path) -> bool:
    """Return whether what is written there flows on and cannot be replaced: a pipe or a device."""
    special = path.is_relative_to("/dev") or path.is_relative_to("/proc") or path.is_fifo()
    return special and not path.is_dir()


def write_beside(path: Path, text: str) -> None:
    """Write the whole text beside the file and move it into its place; a stream is written directly.

    A link stays a link: the file that it leads to is replaced.

    Raises:
        OSError: it cannot be written; what stood there before is as it was.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    if is_stream(path):
        path.write_text(text, encoding="utf-8")
        return
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
