"""A row-width function of the user's own, checked in place of a release's.

`FILE:FUNCTION` names a function of a deployment and a spec that returns how many manager blocks the row
holds. It runs on symbols, so it keeps the rule of `invariants`: no branch on a size. What goes wrong in it is
reported with file and line, as theirs.
"""

from __future__ import annotations

import importlib.util
import reprlib
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from invariants import Deployment, Release, Runner, Spec
from invariants.arithmetic import Symbolic
from proofs.answering import one_process
from proofs.console import Stopped

__all__ = ["OwnWidthError", "UnsupportedSpecError", "load_width"]

_MODULE = "rowbound_own_width"
_TOO_MANY = 10**40


class OwnWidthError(Exception):
    """The user's function cannot be loaded or run; the message says where and why."""


class UnsupportedSpecError(OwnWidthError):
    """The user's function raised NotImplementedError: it does not make rows for this type of spec."""


def load_width(reference: str) -> Release:
    """Return a release whose rows are the user's and whose other formulas are today's.

    Raises:
        OwnWidthError: there is no such file or function, or the file does not run.
    """
    file, _, name = reference.rpartition(":")
    if not file or not name.isidentifier():
        raise OwnWidthError(f"--width takes FILE:FUNCTION, not {reference!r}")
    function = _function(Path(file), name)

    def width(deployment: Deployment, spec: Spec, _runner: Runner) -> int:
        width: int = _call(function, Path(file), deployment, spec)  # or a symbol in its place
        return width

    return Release(reference, f"rows as {reference} makes them", width)


def _function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise OwnWidthError(f"there is no file {path}")
    spec = importlib.util.spec_from_loader(_MODULE, loader=None)
    module = importlib.util.module_from_spec(spec) if spec else ModuleType(_MODULE)
    module.__file__ = str(path)
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        with one_process():
            exec(code, module.__dict__)  # noqa: S102  # what was asked for
    except SyntaxError as error:
        raise OwnWidthError(f"{path}:{error.lineno}: {error.msg}") from error
    except (Stopped, KeyboardInterrupt):
        raise
    except BaseException as error:  # as in _call
        raise OwnWidthError(_located(error, path)) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise OwnWidthError(f"{path} has no function {name}")
    return function


def _call(function: Callable[..., Any], path: Path, deployment: Deployment, spec: Spec) -> Any:
    try:
        with one_process():
            width = function(deployment, spec)
    except NotImplementedError as error:
        raise UnsupportedSpecError(_located(error, path)) from error
    except (Stopped, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit in a file of theirs is no success of ours
        raise OwnWidthError(_located(error, path)) from error
    if isinstance(width, bool) or not isinstance(width, int | Symbolic) or _is_truth(width):
        code = getattr(function, "__code__", None)
        where = f"{path}:{code.co_firstlineno}" if code else str(path)
        name = getattr(function, "__name__", "the function")
        raise OwnWidthError(f"{where}: {name} returned {reprlib.repr(width)}, not a number of blocks")
    if isinstance(width, int) and abs(width) >= _TOO_MANY:
        raise OwnWidthError(f"{path}: a row of {_TOO_MANY} blocks or more is no row")
    return width


def _is_truth(width: object) -> bool:
    """Return whether a symbolic value is a truth value: those alone compare to nothing."""
    return isinstance(width, Symbolic) and not hasattr(width, "__add__")


def _located(error: BaseException, path: Path) -> str:
    """Return what went wrong, at the last line of the user's file that was running."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"{path}:{lines[-1]}" if lines else str(path)
    said = str(error) or "no message"
    return said if f" at {where}, `" in said else f"{where}: {type(error).__name__}: {said}"
