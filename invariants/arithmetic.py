"""Integer arithmetic that runs alike on Python ints and on symbolic terms.

Every formula of this package is written with `+ - *`, `//` by a positive divisor, comparisons and the
functions below, and never branches on a value with `if`. A number that is not an `int` derives from
`Symbolic` and supplies the operations that Python has no operator for. Formulas are annotated with
`int` and `bool`: that is what a user passes, and what a symbolic number stands in for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeVar, cast

__all__ = [
    "Symbolic",
    "all_of",
    "any_of",
    "cdiv",
    "common_divisor",
    "maximum",
    "minimum",
    "modulo",
    "negation",
    "round_up",
    "where",
]

T = TypeVar("T", int, bool)


class Symbolic(ABC):
    """A number or truth value that is not known yet, or that remembers how it was computed."""

    @classmethod
    @abstractmethod
    def apply(cls, operation: str, *operands: object) -> object:
        """Apply a named operation of this module to operands of which at least one is symbolic."""


def _symbolic(*values: object) -> type[Symbolic] | None:
    """Return the class of the first symbolic value, or None when every value is concrete."""
    return next((type(value) for value in values if isinstance(value, Symbolic)), None)


def cdiv(numerator: int, divisor: int) -> int:
    """Return numerator / divisor rounded up; the divisor must be positive."""
    if kind := _symbolic(numerator, divisor):
        return cast("int", kind.apply("cdiv", numerator, divisor))
    return -(-numerator // divisor)


def modulo(value: int, divisor: int) -> int:
    """Return what is left of value after taking out whole divisors; the divisor must be positive."""
    if kind := _symbolic(value, divisor):
        return cast("int", kind.apply("modulo", value, divisor))
    return value % divisor


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least value."""
    if kind := _symbolic(value, multiple):
        return cast("int", kind.apply("round_up", value, multiple))
    return cdiv(value, multiple) * multiple


def common_divisor(left: int, right: int) -> int:
    """Return the greatest common divisor of two positive numbers."""
    if kind := _symbolic(left, right):
        return cast("int", kind.apply("common_divisor", left, right))
    return math.gcd(left, right)


def where(condition: bool, yes: T, no: T) -> T:
    """Return yes where the condition holds and no elsewhere; both are evaluated."""
    if kind := _symbolic(condition):
        return cast("T", kind.apply("where", condition, yes, no))
    return yes if condition else no


def minimum(left: int, right: int) -> int:
    """Return the smaller number."""
    if kind := _symbolic(left, right):
        return cast("int", kind.apply("minimum", left, right))
    return min(left, right)


def maximum(left: int, right: int) -> int:
    """Return the larger number."""
    if kind := _symbolic(left, right):
        return cast("int", kind.apply("maximum", left, right))
    return max(left, right)


def all_of(*conditions: bool) -> bool:
    """Return whether every condition holds."""
    if kind := _symbolic(*conditions):
        return cast("bool", kind.apply("all_of", *conditions))
    return all(conditions)


def any_of(*conditions: bool) -> bool:
    """Return whether at least one condition holds."""
    if kind := _symbolic(*conditions):
        return cast("bool", kind.apply("any_of", *conditions))
    return any(conditions)


def negation(condition: bool) -> bool:
    """Return whether the condition fails."""
    if kind := _symbolic(condition):
        return cast("bool", kind.apply("negation", condition))
    return not condition
