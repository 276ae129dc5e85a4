"""The sizes and switches that a claim quantifies over, read off the dataclasses that declare them.

Each field of `Deployment`, of a spec, of `Request` and of `Access` is declared with `size` or `switch`.
From that one declaration come the symbols of a proof, the names that `--at` accepts, the ranges that
Hypothesis draws from and the check of a deployment that a person typed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Parameter", "parameters_of", "size", "switch"]

_KEY = "rowbound"
_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One size or switch of a claim.

    `usual` is the value that a counterexample is first tried with: the engine's own default.
    None means that there is no usual value and the smallest failing one is looked for.
    """

    name: str
    help: str
    minimum: int = 0
    maximum: int | None = None
    usual: int | bool | None = None
    is_switch: bool = False

    def problem(self, value: object) -> str | None:
        """Return why a value cannot be this parameter's, or None if it can."""
        if self.is_switch:
            return None if isinstance(value, bool) else f"{self.name} must be true or false, not {value!r}"
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{self.name} must be a whole number, not {value!r}"
        if value < self.minimum:
            return f"{self.name} must be at least {self.minimum}, not {value}"
        if self.maximum is not None and value > self.maximum:
            return f"{self.name} must be at most {self.maximum}, not {value}"
        return None


def size(
    help: str,  # noqa: A002  # the argparse word for it, and what --list prints
    *,
    minimum: int = 0,
    maximum: int | None = None,
    usual: int | None = None,
    default: Any = _REQUIRED,
) -> Any:
    """Declare a dataclass field that holds a whole number."""
    metadata = {_KEY: Parameter("", help, minimum=minimum, maximum=maximum, usual=usual)}
    if default is _REQUIRED:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def switch(help: str, *, default: bool) -> Any:  # noqa: A002
    """Declare a dataclass field that holds a truth value; its default is its usual value."""
    return field(default=default, metadata={_KEY: Parameter("", help, usual=default, is_switch=True)})


def parameters_of(owner: type) -> tuple[Parameter, ...]:
    """Return the parameters that a dataclass declares, in the order of its fields."""
    if owner not in _declared:
        _declared[owner] = tuple(
            dataclasses.replace(f.metadata[_KEY], name=f.name)
            for f in dataclasses.fields(owner)
            if _KEY in f.metadata
        )
    return _declared[owner]


_declared: dict[type, tuple[Parameter, ...]] = {}
