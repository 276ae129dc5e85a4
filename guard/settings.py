"""How the guard behaves: one mode, chosen in code, by a configuration mapping or by the environment.

The first of these that names a mode decides: the argument in code, the mapping's `mode`, the environment
variable `ROWBOUND_MODE`, the default. Nothing is read when this module is imported.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from typing import Any

from guard._text import shown
from guard.errors import GuardUsageError

__all__ = ["DEFAULT_MODE", "ENVIRONMENT_VARIABLE", "Mode", "chosen_mode"]

ENVIRONMENT_VARIABLE = "ROWBOUND_MODE"


class Mode(enum.StrEnum):
    """What the guard does about a write or a read that leaves its row."""

    OFF = "off"
    """Nothing is checked; kernels are those without a bound."""
    COUNT = "count"
    """The refused write or read is left out and counted; the run goes on."""
    RAISE = "raise"
    """A refused write raises before it touches anything; what a kernel refused raises one step later."""
    STRICT = "strict"
    """As `raise`, and every step waits for its own kernels' record before it goes on."""


DEFAULT_MODE = Mode.RAISE


def chosen_mode(mode: Mode | str | None = None, configuration: Mapping[str, Any] | None = None) -> Mode:
    """Return the mode that `mode`, else `configuration["mode"]`, else the environment names.

    Raises:
        GuardUsageError: there is no mode of that name, or the configuration holds something else.
    """
    if mode is not None:
        return _named("mode", mode)
    if configuration is not None:
        if not isinstance(configuration, Mapping) or set(configuration) - {"mode"}:
            raise GuardUsageError(f"the configuration is {shown(configuration)}; it may hold `mode` alone")
        if configuration.get("mode") is not None:
            return _named("the configuration's mode", configuration["mode"])
    variable = os.environ.get(ENVIRONMENT_VARIABLE, "")
    return _named(ENVIRONMENT_VARIABLE, variable) if variable else DEFAULT_MODE


def _named(source: str, value: Any) -> Mode:
    try:
        return Mode(value)
    except ValueError:
        known = ", ".join(Mode)
        raise GuardUsageError(f"{source} is {shown(value)}; choose one of {known}") from None
