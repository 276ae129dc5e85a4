"""Which instances of lemmas a linear problem is given: a guess at first, then what its cases break.

Nothing here is trusted: every instance of a lemma is true, so a poor choice costs time or a proof, never a
wrong one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import z3

from proofs.linear import Monomial, Number, Opaque, Quotient

__all__ = ["Case", "Instance", "Order", "likely_bounds", "likely_orders", "likely_parts", "missed"]

_MOST_FACTORS = 4
"""The most unknowns of a product whose orders are looked at."""

Instance = tuple[str, tuple[Number, ...]]
"""A lemma's name and what it is used on."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A number, its value in a case, the value there of its product with a common factor, and its part."""

    number: Number
    single: int
    multiple: int
    is_blamed: bool
    is_constant: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """A comparison that a constraint makes somewhere: `left relation right`."""

    relation: str
    left: Number
    right: Number


class Case:
    """What a solver's case of a linear problem says each unknown and product is."""

    def __init__(self, world: Opaque, monomials: Iterable[Monomial], model: z3.ModelRef) -> None:
        """Read the values of the monomials."""
        self.world = world
        self.values: dict[Monomial, int] = {
            monomial: model.eval(world.term(monomial), model_completion=True).as_long()
            for monomial in monomials
        }
        self.values[()] = 1

    def truth(self, monomial: Monomial) -> int:
        """Return the product of the values of the single unknowns."""
        return math.prod(self.values[index,] for index in monomial)

    def of(self, number: Number) -> int:
        """Return a number's value in the case; a product that the case says nothing of has its true one."""
        return sum(
            c * (self.values[m] if m in self.values else self.truth(m)) for m, c in number.terms.items()
        )

    def knows(self, *numbers: Number) -> bool:
        """Return whether the case has values for the unknowns of the numbers."""
        return all((i,) in self.values for number in numbers for m in number.terms for i in m)


def likely_bounds(world: Opaque, orders: Sequence[Order], context: Sequence[Order]) -> Iterator[Instance]:
    """Yield bounds of quotients by what a claim compares them with, directly or one step on."""
    for quotient in world.quotients.values():
        for order in orders:
            for bound in _bounds(quotient, order):
                yield _bounded(quotient, bound)
                for known in context:
                    if known.relation == "<=" and (bound - known.right).constant() in (0, 1):
                        yield _bounded(quotient, bound - known.right + known.left)


def likely_orders(
    world: Opaque,
    orders: Sequence[Order],
    *,
    known: AbstractSet[Monomial],
    wanted: AbstractSet[Monomial],
    signs: Iterable[Monomial],
) -> Iterator[Instance]:
    """Yield signs of quotients and products, and multiples of orders that are known.

    Args:
        world: the unknowns.
        orders: comparisons that givens and earlier claims make.
        known: every unknown and product in sight.
        wanted: the products that the claim and its bounds speak of.
        signs: products whose sign may matter.
    """
    inside = [q for q in world.quotients.values() if q.result.terms.keys() <= known]
    for quotient in inside:
        yield _bounded(quotient, world.constant(-1 if quotient.upward else 0))
        for divisor in quotient.divisor.terms:
            yield from _chain(world, "mul_strict", divisor)
    for product in signs:
        yield from _chain(world, "mul_mono", product)
    for one, other in itertools.permutations((q for q in inside if q.upward), 2):
        yield from _divided(one, other, known)
    for order in orders:
        difference = order.left - order.right
        for factor in _factors(difference, wanted):
            multiplier = Number(world, {factor: 1})
            if order.relation == "==":
                yield "mul_equal", (order.left, order.right, multiplier)
            elif order.relation != "!=" and len(factor) == 1:
                least = order.left + 1 if order.relation == "<" else order.left
                yield "mul_mono", (least, order.right, multiplier)


def likely_parts(world: Opaque, known: AbstractSet[Monomial]) -> Iterator[Instance]:
    """Yield how a quotient is made up: of whole divisors that come out, or of a quotient of a quotient."""
    inside = [q for q in world.quotients.values() if q.result.terms.keys() <= known]
    for quotient in inside:
        yield from _shifted(world, quotient)
        if not quotient.upward:
            for part in inside:
                if not part.upward and part.value.key() == quotient.result.key():
                    yield "floor_nest", (quotient.value, quotient.divisor, part.divisor)
                    yield "digits", (quotient.value, quotient.divisor, part.divisor)


def missed(
    case: Case, orders: Sequence[Order], blamed: AbstractSet[Monomial]
) -> Iterator[Iterator[Instance]]:
    """Yield choices of instances that a case breaks, those about what is to blame first."""
    yield itertools.chain(_orders(case, blamed, both=True), _quotients(case, orders, blamed))
    yield _orders(case, blamed, both=False)
    everything = case.values.keys()
    yield _quotients(case, orders, everything)
    yield _orders(case, everything, both=False)


def _bounded(quotient: Quotient, bound: Number) -> Instance:
    return "cdiv_le" if quotient.upward else "floor_lt", (quotient.value, quotient.divisor, bound)


def _shifted(world: Opaque, quotient: Quotient) -> Iterator[Instance]:
    """Yield that the multiples of its divisor come out of a quotient."""
    if len(quotient.divisor.terms) != 1:
        return
    ((divisor, coefficient),) = quotient.divisor.terms.items()
    wholes = {
        cofactor: count // coefficient
        for monomial, count in quotient.value.terms.items()
        if (cofactor := _without(monomial, divisor)) is not None and count % coefficient == 0
    }
    if wholes:
        shift = Number(world, wholes)
        left = quotient.value - shift * quotient.divisor
        yield "cdiv_shift" if quotient.upward else "floor_shift", (left, quotient.divisor, shift)
        yield "cdiv_char" if quotient.upward else "floor_char", (left, quotient.divisor)


def _bounds(quotient: Quotient, order: Order) -> tuple[Number, ...]:
    """Return what a comparison bounds the quotient by, as the lemma for its kind puts it."""
    (name,) = quotient.result.terms
    difference = order.left - order.right
    coefficient = difference.terms.get(name, 0)
    if abs(coefficient) != 1:
        return ()
    other = quotient.result - difference * coefficient
    return (other, other - 1) if quotient.upward else (other, other + 1)


def _chain(world: Opaque, name: str, product: Monomial) -> Iterator[Instance]:
    """Yield that a product has the sign of its factors, one factor after the other."""
    for taken in range(1, len(product)):
        factors: tuple[dict[Monomial, int], ...] = ({}, {product[taken : taken + 1]: 1}, {product[:taken]: 1})
        yield name, tuple(Number(world, factor) for factor in factors)


def _divided(one: Quotient, other: Quotient, known: AbstractSet[Monomial]) -> Iterator[Instance]:
    """Yield how one number, divided by two divisors and rounded up, compares with itself."""
    if one.value.key() == other.value.key():
        yield "anti_den", (one.value, other.divisor, one.divisor)
        yield from _divided_alike(other.divisor, one.divisor)
        for factor in _factors(one.result, known):
            yield "mul_mono", (one.result, other.result, Number(one.result.world, {factor: 1}))


def _divided_alike(one: Number, other: Number) -> Iterator[Instance]:
    """Yield how two divisors compare that have a factor in common."""
    if len(one.terms) != 1 or len(other.terms) != 1:
        return
    (left,), (right,) = one.terms, other.terms
    rest, common = list(right), []
    for index in left:
        if index in rest:
            rest.remove(index)
            common.append(index)
    if common:
        smaller = Number(one.world, {_without(left, tuple(common)) or (): one.terms[left]})
        yield (
            "mul_mono",
            (
                smaller,
                Number(one.world, {tuple(rest): other.terms[right]}),
                Number(one.world, {tuple(common): 1}),
            ),
        )


def _factors(number: Number, products: Iterable[Monomial]) -> dict[Monomial, None]:
    """Return by what some monomial of a number is multiplied in one of the products."""
    found: dict[Monomial, None] = {}
    for monomial in number.terms:
        for product in products if monomial else ():
            if rest := _without(product, monomial):
                found[rest] = None
    return dict(sorted(found.items()))


def _without(product: Monomial, part: Monomial) -> Monomial | None:
    """Return a product without some of its factors, or None if it lacks one."""
    left = list(product)
    for index in part:
        if index not in left:
            return None
        left.remove(index)
    return tuple(left)


def _quotients(case: Case, orders: Sequence[Order], blamed: AbstractSet[Monomial]) -> Iterator[Instance]:
    inside = [
        q
        for q in case.world.quotients.values()
        if not blamed.isdisjoint(q.result.terms) and case.knows(q.value, q.divisor, q.result)
    ]
    for quotient in inside:
        for order in orders:
            if case.knows(order.left, order.right):
                yield from _broken_bounds(case, quotient, order)
    for one, other in itertools.permutations(inside, 2):
        yield from _broken_pairs(case, one, other)


def _broken_bounds(case: Case, quotient: Quotient, order: Order) -> Iterator[Instance]:
    q, a = case.of(quotient.result), case.of(quotient.value)
    for bound in _bounds(quotient, order):
        m, covered = case.of(bound), case.of(bound * quotient.divisor)
        if (q <= m) != (a <= covered) if quotient.upward else (q < m) != (a < covered):
            yield _bounded(quotient, bound)


def _broken_pairs(case: Case, one: Quotient, other: Quotient) -> Iterator[Instance]:
    """Yield what two quotients have to do with each other, where the case breaks it."""
    q, r = case.of(one.result), case.of(other.result)
    a, b = case.of(one.value), case.of(other.value)
    if one.divisor.key() == other.divisor.key():
        match one.upward, other.upward:
            case True, True if a <= b and q > r:
                yield "mono_num", (one.value, other.value, one.divisor)
            case False, False if a <= b and q > r:
                yield "floor_mono", (one.value, other.value, one.divisor)
            case False, True if a < b and q >= r:
                yield "index", (one.value, other.value, one.divisor)
        return
    divided_alike = one.upward and other.upward and one.value.key() == other.value.key()
    if divided_alike and a >= 0 and case.of(one.divisor) >= case.of(other.divisor) and q > r:
        yield "anti_den", (one.value, other.divisor, one.divisor)


def _orders(case: Case, blamed: AbstractSet[Monomial], *, both: bool) -> Iterator[Instance]:
    """Yield orders of products with a common factor that the case breaks.

    Either all of those between products to blame, or for each of these only the nearest others.
    """
    for factor, cofactors in _cofactors(case.values).items():
        multiplier = Number(case.world, {factor: 1})
        k = case.of(multiplier)
        rows = [
            _row(Number(case.world, {c: 1}), case, multiplier, is_blamed=_times(c, factor) in blamed)
            for c in cofactors
        ]
        constants = [case.world.constant(1), case.world.constant(0)]
        rows += [_row(number, case, multiplier, is_blamed=False, is_constant=True) for number in constants]
        for row in rows:
            if row.is_blamed:
                others = [r for r in rows if r is not row and (not both or r.is_blamed or r.is_constant)]
                yield from _broken_orders(row, others, multiplier, k, every=both)


def _row(
    number: Number, case: Case, multiplier: Number, *, is_blamed: bool, is_constant: bool = False
) -> _Row:
    return _Row(number, case.of(number), case.of(number * multiplier), is_blamed, is_constant)


def _broken_orders(
    row: _Row, others: list[_Row], multiplier: Number, k: int, *, every: bool
) -> Iterator[Instance]:
    nearest = sorted(others, key=lambda other: abs(other.single - row.single))
    for pairs in ([(row, other) for other in nearest], [(other, row) for other in nearest]):
        found = (
            (name, (smaller.number, larger.number, multiplier))
            for smaller, larger in pairs
            if (name := _broken_order(smaller, larger, k))
        )
        yield from found if every else itertools.islice(found, 1)


def _broken_order(smaller: _Row, larger: _Row, k: int) -> str:
    """Return the lemma that two multiples of a number k break, or nothing."""
    x, xk, y, yk = smaller.single, smaller.multiple, larger.single, larger.multiple
    if x == y and xk != yk:
        return "mul_equal"
    if x < y and k > 0 and xk + k > yk:
        return "mul_strict"
    return "mul_mono" if x <= y and k >= 0 and xk > yk else ""


def _cofactors(values: Mapping[Monomial, int]) -> dict[Monomial, list[Monomial]]:
    """Return each factor of a product in sight, with what it is multiplied with."""
    found: dict[Monomial, dict[Monomial, None]] = {}
    for product in sorted(values):
        if len(product) > _MOST_FACTORS:
            continue
        for size in range(1, len(product)):
            for chosen in itertools.combinations(range(len(product)), size):
                factor = tuple(product[i] for i in chosen)
                if factor in values:
                    rest = tuple(product[i] for i in range(len(product)) if i not in chosen)
                    found.setdefault(factor, {})[rest] = None
    return {factor: list(rests) for factor, rests in found.items()}


def _times(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted(left + right))
