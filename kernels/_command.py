"""How the commands of this package end when they are interrupted or nobody reads what they print."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ["run_command"]

INTERRUPTED = 130
UNREAD = 2


def run_command(main: Callable[[], int]) -> int:
    """Return what `main` returns; 130 after Ctrl-C, and 2 where standard output cannot be written to."""
    if sys.stdout is None:
        return UNREAD
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except OSError as error:
        # Leave the interpreter nothing to flush into what cannot be written to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"cannot print: {error}\n")
        return UNREAD
    return code
