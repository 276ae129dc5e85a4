"""Integers whose products and quotients are opaque, so that whatever is said of them is linear.

A `Number` is a polynomial in canonical form: associativity, commutativity and distributivity are worked out
here, and what is left, a product of two unknowns or a quotient, is an unknown integer of its own. What it
has to do with its operands the solver learns from instances of `proofs.lemmas` alone. `Opaque.meanings` says
it in full, for the few lemmas that are proved from nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from invariants.arithmetic import Symbolic

__all__ = ["Fact", "Monomial", "Number", "Opaque", "Quotient"]

Monomial = tuple[int, ...]
"""Indices of the unknowns that are multiplied, in ascending order; () is the number 1."""


@dataclass(frozen=True, slots=True)
class Quotient:
    """One opaque quotient: rounded up if `upward`, down otherwise."""

    upward: bool
    value: Number
    divisor: Number
    result: Number


@dataclass(slots=True)
class Opaque:
    """The unknowns of one problem.

    Attributes:
        context: the solver context that they live in; None for the solver's main one.
        unknowns: solver expressions, by index; each is linear in the solver's own unknowns.
        products: the solver's unknown for each product of two or more unknowns.
        quotients: every quotient, in the order in which they came up.
        mentioned: the monomials of every comparison made; whoever wants to know empties it first.
    """

    context: z3.Context | None = None
    unknowns: list[z3.ArithRef] = field(default_factory=list)
    products: dict[Monomial, z3.ArithRef] = field(default_factory=dict)
    quotients: dict[tuple[bool, Any, Any], Quotient] = field(default_factory=dict)
    mentioned: set[Monomial] = field(default_factory=set)
    _names: list[str] = field(default_factory=list)

    def unknown(self, expr: z3.ArithRef) -> Number:
        """Return a new unknown."""
        self.unknowns.append(expr)
        plain = expr.num_args() == 0  # the printer shortens what is long, and a name must be unique
        self._names.append(str(expr) if plain else f"value!{len(self._names)}")
        return Number(self, {(len(self.unknowns) - 1,): 1})

    def constant(self, value: int) -> Number:
        """Return a known number."""
        return Number(self, {(): value} if value else {})

    def lift(self, value: object) -> Number:
        """Return a plain integer as a number, and a number as it is."""
        if isinstance(value, Number):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return self.constant(value)
        message = f"a lemma used {value!r} as a size"
        raise TypeError(message)

    def quotient(self, value: Number, divisor: Number, *, upward: bool, expr: Any = None) -> Number:
        """Return the quotient of these operands, which is one unknown however often it is asked for.

        `expr` is the solver's name for it where the solver has one already.
        """
        key = (upward, value.key(), divisor.key())
        if key not in self.quotients:
            stem = "ceil" if upward else "floor"
            made = z3.Int(f"{stem}?{len(self.quotients)}", self.context) if expr is None else expr
            self.quotients[key] = Quotient(upward, value, divisor, self.unknown(made))
        return self.quotients[key].result

    def term(self, monomial: Monomial) -> z3.ArithRef:
        """Return the solver's unknown for a product, and the unknown itself for a single one."""
        if len(monomial) == 1:
            return self.unknowns[monomial[0]]
        if monomial not in self.products:
            self.products[monomial] = z3.Int(self.name(monomial), self.context)
        return self.products[monomial]

    def name(self, monomial: Monomial) -> str:
        """Return how a product is written."""
        return " * ".join(self._names[index] for index in monomial)

    def meanings(self) -> Iterator[z3.BoolRef]:
        """Yield what each opaque unknown is, in the solver's own multiplication and division."""
        for quotient in self.quotients.values():
            value, divisor = quotient.value.expr(), quotient.divisor.expr()
            exact = -((-value) / divisor) if quotient.upward else value / divisor
            yield quotient.result.expr() == exact
        for monomial, product in self.products.items():
            yield product == z3.Product([self.unknowns[index] for index in monomial])


class Fact(Symbolic):
    """A truth value whose sizes are linear."""

    __slots__ = ("expr",)

    def __init__(self, expr: z3.BoolRef) -> None:
        """Wrap the solver's form."""
        self.expr = expr

    def __bool__(self) -> bool:
        """Refuse to be branched on."""
        message = f"a lemma branched on {self.expr}"
        raise TypeError(message)

    @classmethod
    def apply(cls, operation: str, *operands: object) -> Fact:
        """Combine truth values."""
        context = next(o for o in operands if isinstance(o, Fact)).expr.ctx
        exprs = [o.expr if isinstance(o, Fact) else z3.BoolVal(bool(o), context) for o in operands]
        combine = {"all_of": z3.And, "any_of": z3.Or, "negation": z3.Not}.get(operation)
        if combine is None:
            message = f"{operation} is not an operation on facts"
            raise TypeError(message)
        return cls(combine(*exprs))


class Number(Symbolic):
    """A polynomial over opaque unknowns; zero coefficients are left out."""

    __slots__ = ("_expr", "_key", "terms", "world")

    def __init__(self, world: Opaque, terms: Mapping[Monomial, int]) -> None:
        """Wrap coefficients by monomial."""
        self.world = world
        self.terms = terms
        self._key: frozenset[tuple[Monomial, int]] | None = None
        self._expr: z3.ArithRef | None = None

    __hash__ = None  # type: ignore[assignment]  # == builds a fact, so a number is no dictionary key

    def key(self) -> frozenset[tuple[Monomial, int]]:
        """Return what two equal polynomials share."""
        if self._key is None:
            self._key = frozenset(self.terms.items())
        return self._key

    def __str__(self) -> str:
        parts = [
            str(c) if m == () else f"{'' if c == 1 else f'{c} * '}{self.world.name(m)}"
            for m, c in sorted(self.terms.items())
        ]
        return " + ".join(parts) or "0"

    def expr(self) -> z3.ArithRef:
        """Return the linear solver expression."""
        if self._expr is None:
            parts = [self._scaled(monomial, count) for monomial, count in sorted(self.terms.items())]
            zero = z3.IntVal(0, self.world.context)
            self._expr = zero if not parts else parts[0] if len(parts) == 1 else z3.Sum(parts)
        return self._expr

    def _scaled(self, monomial: Monomial, count: int) -> z3.ArithRef:
        if monomial == ():
            return z3.IntVal(count, self.world.context)
        term = self.world.term(monomial)
        return term if count == 1 else count * term

    def value(self, values: Mapping[Monomial, int]) -> int:
        """Return the number's value under values of the monomials; one without a value counts as 0."""
        return sum(c * (1 if m == () else values.get(m, 0)) for m, c in self.terms.items())

    def constant(self) -> int | None:
        """Return the value of a number without unknowns, else None."""
        return self.terms.get((), 0) if self.terms.keys() <= {()} else None

    def _plus(self, other: object, factor: int) -> Number:
        terms = dict(self.terms)
        for monomial, coefficient in self.world.lift(other).terms.items():
            total = terms.get(monomial, 0) + factor * coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Number(self.world, terms)

    def __add__(self, other: object) -> Number:
        return self._plus(other, 1)

    def __radd__(self, other: object) -> Number:
        return self._plus(other, 1)

    def __sub__(self, other: object) -> Number:
        return self._plus(other, -1)

    def __rsub__(self, other: object) -> Number:
        return self.world.lift(other) - self

    def __neg__(self) -> Number:
        return self * -1

    def __mul__(self, other: object) -> Number:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in self.world.lift(other).terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Number(self.world, {m: c for m, c in terms.items() if c})

    def __rmul__(self, other: object) -> Number:
        return self * other

    def __floordiv__(self, other: object) -> Number:
        return self.world.quotient(self, self.world.lift(other), upward=False)

    def __rfloordiv__(self, other: object) -> Number:
        return self.world.lift(other) // self

    def compare(self, compare: Callable[[Any, Any], Any], other: object) -> Fact:
        """Compare by one of the six operators of the `operator` module."""
        that = self.world.lift(other)
        known = (self - that).constant()
        if known is not None:
            return Fact(z3.BoolVal(compare(known, 0), self.world.context))
        self.world.mentioned.update(self.terms, that.terms)
        return Fact(compare(self.expr(), that.expr()))

    def __lt__(self, other: object) -> Fact:
        return self.compare(operator.lt, other)

    def __le__(self, other: object) -> Fact:
        return self.compare(operator.le, other)

    def __gt__(self, other: object) -> Fact:
        return self.compare(operator.gt, other)

    def __ge__(self, other: object) -> Fact:
        return self.compare(operator.ge, other)

    def __eq__(self, other: object) -> Fact:  # type: ignore[override]
        return self.compare(operator.eq, other)

    def __ne__(self, other: object) -> Fact:  # type: ignore[override]
        return self.compare(operator.ne, other)

    @classmethod
    def apply(cls, operation: str, *operands: object) -> object:
        """Apply an operation of two integers, at least one of them a number."""
        world = next(operand for operand in operands if isinstance(operand, Number)).world
        left, right = (world.lift(operand) for operand in operands)
        match operation:
            case "cdiv":
                return world.quotient(left, right, upward=True)
            case "modulo":
                return left - left // right * right
        message = f"{operation} is not an operation on opaque numbers"
        raise TypeError(message)
