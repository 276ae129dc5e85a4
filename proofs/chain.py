"""Numbers that remember how they were computed, so that a counterexample shows its own arithmetic.

The formulas of `invariants` run on them a third time, after ints and solver terms. Of a minimum, a maximum
or a choice only the operand that was taken is shown; adding a parameter that is 0 or multiplying by one
that is 1 is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from invariants import Case, build_case
from invariants.arithmetic import Symbolic
from proofs.verdicts import Counterexample, Obligation, RowPicture

__all__ = ["Traced", "arithmetic", "explain", "traced_case"]

_PLAIN, _CALL, _PRODUCT, _SUM = 3, 2, 1, 0
"""How tightly a text holds together: a parameter or number, a call, a product, a sum."""


class Traced(Symbolic):
    """A number or truth value with the text of its computation, in names and in digits."""

    __slots__ = ("digits", "names", "strength", "text", "value")

    def __init__(
        self,
        value: int | bool,
        text: str | None = None,
        digits: str | None = None,
        *,
        strength: int = _PLAIN,
        names: frozenset[str] = frozenset(),
    ) -> None:
        """Remember a value and where it comes from."""
        self.value = value
        self.text = str(value) if text is None else text
        self.digits = str(value) if digits is None else digits
        self.strength = strength
        self.names = names

    def __bool__(self) -> bool:
        """Refuse to be branched on, as every symbolic value does."""
        message = f"a formula branched on {self.text}"
        raise TypeError(message)

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def lift(value: object) -> Traced:
        """Return a plain value as a traced one."""
        return value if isinstance(value, Traced) else Traced(cast("int", value))

    def inside(self, strength: int) -> tuple[str, str]:
        """Return both texts, in parentheses if they would fall apart next to a stronger sign."""
        if self.strength < strength:
            return f"({self.text})", f"({self.digits})"
        return self.text, self.digits

    def is_plainly(self, value: int) -> bool:
        """Return whether this is a parameter or a number of that value, and no computation."""
        return self.strength == _PLAIN and self.value == value

    @classmethod
    def _infix(cls, sign: str, left: object, right: object, value: int, strength: int) -> Traced:
        a, b = cls.lift(left), cls.lift(right)
        (left_text, left_digits), (right_text, right_digits) = (
            a.inside(strength),
            b.inside(strength + (sign in ("-", "//", "%"))),
        )
        return cls(
            value,
            f"{left_text} {sign} {right_text}",
            f"{left_digits} {sign} {right_digits}",
            strength=strength,
            names=a.names | b.names,
        )

    def __add__(self, other: object) -> Traced:
        """Add."""
        that = self.lift(other)
        if that.is_plainly(0):
            return self
        if self.is_plainly(0):
            return that
        return self._infix("+", self, that, self.value + that.value, _SUM)

    def __radd__(self, other: object) -> Traced:
        """Add."""
        return self.lift(other) + self

    def __sub__(self, other: object) -> Traced:
        """Subtract."""
        that = self.lift(other)
        if that.is_plainly(0):
            return self
        return self._infix("-", self, that, self.value - that.value, _SUM)

    def __rsub__(self, other: object) -> Traced:
        """Subtract."""
        return self.lift(other) - self

    def __neg__(self) -> Traced:
        """Negate."""
        text, digits = self.inside(_CALL)
        return Traced(-self.value, f"-{text}", f"-{digits}", strength=_PRODUCT, names=self.names)

    def __mul__(self, other: object) -> Traced:
        """Multiply."""
        that = self.lift(other)
        if that.is_plainly(1):
            return self
        if self.is_plainly(1):
            return that
        if self.is_plainly(0) or that.is_plainly(0):
            return Traced(0)
        return self._infix("*", self, that, self.value * that.value, _PRODUCT)

    def __rmul__(self, other: object) -> Traced:
        """Multiply."""
        return self.lift(other) * self

    def __floordiv__(self, other: object) -> Traced:
        """Divide, rounding down."""
        that = self.lift(other)
        return self._infix("//", self, that, self.value // that.value, _PRODUCT)

    def __rfloordiv__(self, other: object) -> Traced:
        """Divide, rounding down."""
        return self.lift(other) // self

    def _compare(self, holds: Callable[[int, int], bool], other: object) -> Traced:
        that = self.lift(other)
        return Traced(holds(self.value, that.value), names=self.names | that.names)

    def __lt__(self, other: object) -> Traced:
        """Compare."""
        return self._compare(lambda a, b: a < b, other)

    def __le__(self, other: object) -> Traced:
        """Compare."""
        return self._compare(lambda a, b: a <= b, other)

    def __gt__(self, other: object) -> Traced:
        """Compare."""
        return self._compare(lambda a, b: a > b, other)

    def __ge__(self, other: object) -> Traced:
        """Compare."""
        return self._compare(lambda a, b: a >= b, other)

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        """Compare."""
        return self._compare(lambda a, b: a == b, other)

    @classmethod
    def apply(cls, operation: str, *operands: object) -> object:
        """Apply an operation of `invariants.arithmetic` and remember it."""
        from invariants import arithmetic  # noqa: PLC0415  # looked up by name

        values = [operand.value if isinstance(operand, Traced) else operand for operand in operands]
        result = getattr(arithmetic, operation)(*values)
        match operation:
            case "where":
                return operands[1] if values[0] else operands[2]
            case "minimum" | "maximum":
                return cls.lift(operands[0] if result == values[0] else operands[1])
            case "cdiv" | "round_up" | "common_divisor":
                a, b = map(cls.lift, operands)
                if operation == "round_up" and b.is_plainly(1):
                    return a
                name = "gcd" if operation == "common_divisor" else operation
                return cls(
                    result,
                    f"{name}({a.text}, {b.text})",
                    f"{name}({a.digits}, {b.digits})",
                    strength=_CALL,
                    names=a.names | b.names,
                )
            case "modulo":
                return cls._infix("%", operands[0], operands[1], result, _PRODUCT)
        return cls(result)


def traced_case(kind: str, values: Mapping[str, int | bool], parts: tuple[type, ...] = ()) -> Case:
    """Build a case whose numbers remember the parameters that they come from."""
    traced = {name: Traced(value, name, names=frozenset({name})) for name, value in values.items()}
    return build_case(kind, traced, parts)


def arithmetic(number: object) -> str:
    """Return how a traced number was computed: in names, in digits, and its value."""
    return _line(Traced.lift(number))


def explain(obligation: Obligation, values: Mapping[str, int | bool], *, smallest: bool) -> Counterexample:
    """Run the sides of a broken claim on traced numbers and put the clash into words."""
    claim, release, runner = obligation.invariant, obligation.release, obligation.runner
    case = traced_case(obligation.kind, values, claim.parts)
    sides = [(side.who, side.what, Traced.lift(side.value)) for side in claim.sides(case, release, runner)]
    names = frozenset().union(*(number.names for _, _, number in sides))
    shown = tuple(
        p.name
        for p in obligation.parameters()
        if p.name in names or (p.usual is not None and values[p.name] != p.usual)
    )
    return Counterexample(
        values,
        shown,
        tuple((who, what, _line(number)) for who, what, number in sides),
        claim.clash(build_case(obligation.kind, values, claim.parts), tuple(n.value for _, _, n in sides)),
        smallest,
        row=_picture(sides),
    )


def _picture(sides: Sequence[tuple[str, str, Traced]]) -> RowPicture | None:
    """Return what the clash does to a row, where it is about one."""
    values = {what: number.value for _, what, number in sides}
    if values.get("row width", -1) < 0:
        return None
    if "column" in values:
        return RowPicture(values["row width"], values["column"], "column")
    wanted = values.get("entries", values.get("count after"))
    return None if wanted is None else RowPicture(values["row width"], wanted, "entries")


def _line(traced: Traced) -> str:
    steps = [traced.text, traced.digits, str(traced.value)]
    return " = ".join(step for i, step in enumerate(steps) if step not in steps[:i])
