"""Z3 integers and truth values on which the formulas of `invariants` run unchanged.

`//` has Python's floor meaning. A quotient is not Z3's own `div` but a fresh integer q with
`q * d <= a < q * d + d`, which is exact for a positive divisor d and says nothing otherwise; every divisor
that is not positive by its own bounds is listed in `Definitions.divisors`, and whoever uses the terms must
show those positive (`proofs.decide` does, before anything else). A term in an `if` raises.
"""

from __future__ import annotations

import linecache
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any

import z3

from invariants.arithmetic import Symbolic

__all__ = ["Definitions", "Division", "Term", "Truth"]


@dataclass(frozen=True, slots=True)
class Division:
    """A fresh quotient: `value / divisor`, rounded up if `upward`, down otherwise, which `fact` defines."""

    upward: bool
    value: z3.ArithRef
    divisor: z3.ArithRef
    result: z3.ArithRef
    fact: z3.BoolRef


class Definitions:
    """The fresh integers that terms brought in, and what defines them.

    Attributes:
        facts: constraints that define the fresh integers; each has a solution whatever the rest is.
        branched: where a formula branched on a symbol; whoever swallows the error is told all the same.
        divisors: divisors, and operands of a common divisor, that the definitions rely on being positive.
        quotients: what each fresh quotient is, for proofs that reason about quotients as such.
        over_approximated: whether a fresh integer may take values that the formula's would not, so that
            a proof stands but a counterexample has to be replayed.
    """

    def __init__(self, context: z3.Context | None = None) -> None:
        """Start with nothing defined, in a solver context of its own unless one is given."""
        self.context = context or z3.Context()
        self.facts: list[z3.BoolRef] = []
        self.divisors: list[z3.ArithRef] = []
        self.quotients: list[Division] = []
        self.branched: list[str] = []
        self.over_approximated = False
        self._known: dict[tuple[str, int, int], Term] = {}
        self._cofactors: dict[tuple[int, int], Term] = {}
        self._kept: list[z3.ExprRef] = []
        self._count = 0

    def symbol(self, name: str, low: int) -> Term:
        """Return an unknown integer of at least `low`; the caller asserts that bound."""
        return Term(z3.Int(name, self.context), low, self)

    def switch(self, name: str) -> Truth:
        """Return an unknown truth value."""
        return Truth(z3.Bool(name, self.context), self)

    def lift(self, value: object) -> Term:
        """Return a plain integer as a term, and a term as it is."""
        if isinstance(value, Term):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return Term(z3.IntVal(value, self.context), value, self)
        message = f"a formula used {value!r} as a size"
        raise TypeError(message)

    def truth(self, value: object) -> z3.BoolRef:
        """Return the Z3 form of a truth value, symbolic or not."""
        if isinstance(value, Truth):
            return value.expr
        if isinstance(value, bool):
            return z3.BoolVal(value, self.context)
        message = f"a formula used {value!r} as a truth value"
        raise TypeError(message)

    def _fresh(self, stem: str, low: int | None) -> Term:
        self._count += 1
        return Term(z3.Int(f"{stem}!{self._count}", self.context), low, self)

    def _once(self, operation: str, left: z3.ArithRef, right: z3.ArithRef, make: Callable[[], Term]) -> Term:
        """Define the result of an operation on the same operands only once."""
        key = (operation, left.get_id(), right.get_id())
        if key not in self._known:
            self._kept += [left, right]  # an id is unique only while its expression lives
            self._known[key] = make()
        return self._known[key]

    def quotient(self, value: Term, divisor: Term) -> Term:
        """Return the floor of value / divisor."""
        cofactor = self._cofactors.get((value.expr.get_id(), divisor.expr.get_id()))
        if cofactor is not None:
            return cofactor

        def define() -> Term:
            low = 0 if value.low is not None and value.low >= 0 else None
            q = self._fresh("floor", low)
            a, d = value.expr, divisor.expr
            fact = self._define(divisor, z3.And(q.expr * d <= a, a < q.expr * d + d))
            self.quotients.append(Division(upward=False, value=a, divisor=d, result=q.expr, fact=fact))
            return q

        return self._once("floor", value.expr, divisor.expr, define)

    def ceiling(self, value: Term, divisor: Term) -> Term:
        """Return value / divisor rounded up."""

        def define() -> Term:
            low = None if value.low is None or value.low < 0 else min(value.low, 1)
            q = self._fresh("ceil", low)
            a, d = value.expr, divisor.expr
            fact = self._define(divisor, z3.And(q.expr * d - d < a, a <= q.expr * d))
            self.quotients.append(Division(upward=True, value=a, divisor=d, result=q.expr, fact=fact))
            return q

        return self._once("ceil", value.expr, divisor.expr, define)

    def _define(self, divisor: Term, fact: z3.BoolRef) -> z3.BoolRef:
        if divisor.low is None or divisor.low < 1:
            self.divisors.append(divisor.expr)
            fact = z3.Implies(divisor.expr > 0, fact)
        self.facts.append(fact)
        return fact

    def common_divisor(self, left: Term, right: Term) -> Term:
        """Return the greatest common divisor of two numbers, which must be positive.

        Exact where one of them is a known power of two; elsewhere any common divisor stands in.
        """
        if z3.is_int_value(right.expr):
            left, right = right, left
        self.divisors += [number.expr for number in (left, right) if number.low is None or number.low < 1]

        def define() -> Term:
            if z3.is_int_value(left.expr) and left.expr.as_long().bit_count() == 1:
                divisor, cofactor = self._power_of_two_divisor(left.expr.as_long(), right)
            else:
                divisor, cofactor = self._some_divisor(left, right)
            self._cofactors[left.expr.get_id(), divisor.expr.get_id()] = cofactor
            self._kept += [left.expr, divisor.expr]
            return divisor

        return self._once("gcd", left.expr, right.expr, define)

    def _power_of_two_divisor(self, power: int, value: Term) -> tuple[Term, Term]:
        divisor, cofactor = z3.IntVal(1, self.context), z3.IntVal(power, self.context)
        candidate = 2
        while candidate <= power:
            divides = value.expr % candidate == 0
            divisor = z3.If(divides, candidate, divisor)
            cofactor = z3.If(divides, power // candidate, cofactor)
            candidate *= 2
        return Term(divisor, 1, self), Term(cofactor, 1, self)

    def _some_divisor(self, left: Term, right: Term) -> tuple[Term, Term]:
        divisor, cofactor, other = (self._fresh(stem, 1) for stem in ("gcd", "cofactor", "cofactor"))
        self.facts += [divisor.expr >= 1, cofactor.expr >= 1, other.expr >= 1]
        for number, factor in ((left, cofactor), (right, other)):
            fact = number.expr == divisor.expr * factor.expr
            is_positive = number.low is not None and number.low >= 1
            self.facts.append(fact if is_positive else z3.Implies(number.expr > 0, fact))
        self.over_approximated = True
        return divisor, cofactor


def _branched(definitions: Definitions) -> TypeError:
    """Note the formula's place and its own words: the solver's name of the value says nobody anything."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # a traceback has no frame of a swallowed error
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    place = "" if frame is None else _place(frame)
    definitions.branched.append(place)
    message = (
        f"a formula branched on a symbolic value at {place}; "
        "write it with where, minimum or maximum of invariants.arithmetic"
    )
    return TypeError(message)


def _place(frame: FrameType) -> str:
    """Return file and line of what a frame is doing, and the expression that stands there."""
    file, number = frame.f_code.co_filename, frame.f_lineno
    line, _, start, end = next(
        islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None)
    )
    source = linecache.getline(file, number).encode()  # columns count bytes
    words = source[start:end].decode(errors="replace").strip() if line == number else ""
    shown = words or source.decode(errors="replace").strip()
    return f"{file}:{number}, `{shown}`" if shown else f"{file}:{number}"


class Truth(Symbolic):
    """A truth value that the solver decides."""

    __slots__ = ("definitions", "expr")

    def __init__(self, expr: z3.BoolRef, definitions: Definitions) -> None:
        """Wrap a Z3 truth value."""
        self.expr = expr
        self.definitions = definitions

    def __bool__(self) -> bool:
        """Refuse to be branched on."""
        raise _branched(self.definitions)

    @classmethod
    def apply(cls, operation: str, *operands: object) -> object:
        """Combine truth values, or choose between two values by one."""
        known = next(o for o in operands if isinstance(o, Truth)).definitions
        match operation:
            case "all_of":
                return Truth(z3.And(*map(known.truth, operands)), known)
            case "any_of":
                return Truth(z3.Or(*map(known.truth, operands)), known)
            case "negation":
                return Truth(z3.Not(known.truth(operands[0])), known)
            case "where":
                condition, yes, no = operands
                if isinstance(yes, bool | Truth):
                    return Truth(z3.If(known.truth(condition), known.truth(yes), known.truth(no)), known)
                return _choose(known.truth(condition), known.lift(yes), known.lift(no))
        message = f"{operation} is not an operation on truth values"
        raise TypeError(message)


class Term(Symbolic):
    """An integer that the solver chooses; `low` is a bound known without asking it."""

    __slots__ = ("definitions", "expr", "low")

    def __init__(self, expr: z3.ArithRef, low: int | None, definitions: Definitions) -> None:
        """Wrap a Z3 integer."""
        self.expr = expr
        self.low = low
        self.definitions = definitions

    def __bool__(self) -> bool:
        """Refuse to be branched on."""
        raise _branched(self.definitions)

    __hash__ = None  # type: ignore[assignment]  # == builds a claim, so a term is no dictionary key

    def _lift(self, value: object) -> Term:
        return self.definitions.lift(value)

    def __add__(self, other: object) -> Term:
        """Add."""
        that = self._lift(other)
        low = None if self.low is None or that.low is None else self.low + that.low
        return Term(self.expr + that.expr, low, self.definitions)

    def __radd__(self, other: object) -> Term:
        """Add."""
        return self._lift(other) + self

    def __sub__(self, other: object) -> Term:
        """Subtract; no lower bound is known of the difference."""
        return Term(self.expr - self._lift(other).expr, None, self.definitions)

    def __rsub__(self, other: object) -> Term:
        """Subtract."""
        return self._lift(other) - self

    def __neg__(self) -> Term:
        """Negate."""
        return Term(-self.expr, None, self.definitions)

    def __mul__(self, other: object) -> Term:
        """Multiply; the bounds multiply where neither is negative."""
        that = self._lift(other)
        known = self.low is not None and that.low is not None and min(self.low, that.low) >= 0
        low = self.low * that.low if known else None  # type: ignore[operator]
        return Term(self.expr * that.expr, low, self.definitions)

    def __rmul__(self, other: object) -> Term:
        """Multiply."""
        return self._lift(other) * self

    def __floordiv__(self, other: object) -> Term:
        """Divide, rounding down."""
        return self.definitions.quotient(self, self._lift(other))

    def __rfloordiv__(self, other: object) -> Term:
        """Divide, rounding down."""
        return self._lift(other) // self

    def _compare(self, compare: Callable[[Any, Any], Any], other: object) -> Truth:
        return Truth(compare(self.expr, self._lift(other).expr), self.definitions)

    def __lt__(self, other: object) -> Truth:
        """Compare."""
        return self._compare(operator.lt, other)

    def __le__(self, other: object) -> Truth:
        """Compare."""
        return self._compare(operator.le, other)

    def __gt__(self, other: object) -> Truth:
        """Compare."""
        return self._compare(operator.gt, other)

    def __ge__(self, other: object) -> Truth:
        """Compare."""
        return self._compare(operator.ge, other)

    def __eq__(self, other: object) -> Truth:  # type: ignore[override]
        """Compare."""
        return self._compare(operator.eq, other)

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        """Compare."""
        return self._compare(operator.ne, other)

    @classmethod
    def apply(cls, operation: str, *operands: object) -> object:
        """Apply an operation of two integers, at least one of them symbolic."""
        first = next(operand for operand in operands if isinstance(operand, Term))
        left, right = (first.definitions.lift(operand) for operand in operands)
        match operation:
            case "cdiv":
                return first.definitions.ceiling(left, right)
            case "round_up":
                return first.definitions.ceiling(left, right) * right
            case "modulo":
                return left - left // right * right
            case "common_divisor":
                return first.definitions.common_divisor(left, right)
            case "minimum":
                return _choose(left.expr <= right.expr, left, right)
            case "maximum":
                lows = [low for low in (left.low, right.low) if low is not None]
                larger = _choose(left.expr >= right.expr, left, right)
                return Term(larger.expr, max(lows, default=None), first.definitions)
        message = f"{operation} is not an operation on sizes"
        raise TypeError(message)


def _choose(condition: z3.BoolRef, yes: Term, no: Term) -> Term:
    """Return yes where the condition holds and no elsewhere."""
    low = None if yes.low is None or no.low is None else min(yes.low, no.low)
    return Term(z3.If(condition, yes.expr, no.expr), low, yes.definitions)
