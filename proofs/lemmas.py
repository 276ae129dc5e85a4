"""Facts about products and quotients, from which every claim follows by linear arithmetic alone.

Five are proved from the meaning of product and quotient, each of the others by linear arithmetic from
a few instances of those before it, which `because` names. A lemma is written once and runs on plain integers
(the tests try it on them) and on `proofs.linear` (the proofs use its instances).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import z3

from invariants.arithmetic import all_of, any_of, cdiv, modulo, negation
from proofs.linear import Fact, Opaque

__all__ = ["LEMMAS", "Lemma", "lemma"]

_Claim = Callable[..., bool]
_Instances = Callable[..., Iterator[tuple[str, tuple[Any, ...]]]]


@dataclass(frozen=True, slots=True)
class Lemma:
    """One fact about all integers.

    Attributes:
        name: what proofs cite.
        sentence: the fact in words.
        givens: what it supposes, as a function of its parameters.
        claim: what it says, as a function of the same parameters.
        mutant: a claim close by that does not follow.
        because: the instances of earlier lemmas that it follows from; None if from nothing.
    """

    name: str
    sentence: str
    givens: _Claim
    claim: _Claim
    mutant: _Claim
    because: _Instances | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the integers that the lemma speaks about."""
        return tuple(inspect.signature(self.claim).parameters)

    @property
    def rests_on(self) -> frozenset[str]:
        """The names of the lemmas whose instances it follows from."""
        if self.because is None:
            return frozenset()
        return frozenset(name for name, _ in self.because(*(1 for _ in self.parameters)))

    def holds(self, *values: Any) -> bool:
        """Return the whole lemma, givens and claim, about these values."""
        return any_of(negation(self.givens(*values)), self.claim(*values))

    def denied(self, claim: _Claim | None = None) -> tuple[z3.BoolRef, ...]:
        """Return constraints that no values meet exactly if the lemma, or another claim, is true."""
        world = Opaque()
        values = [world.unknown(z3.Int(name)) for name in self.parameters]
        supposed, said = _expr(self.givens(*values)), _expr((claim or self.claim)(*values))
        if self.because is None or claim is not None:
            return (supposed, z3.Not(said), *world.meanings())
        reasons = tuple(_expr(lemma(name).holds(*taken)) for name, taken in self.because(*values))
        return (supposed, z3.Not(said), *reasons)


def _expr(fact: object) -> z3.BoolRef:
    return fact.expr if isinstance(fact, Fact) else z3.BoolVal(bool(fact))


def _exactly(left: bool, right: bool) -> bool:
    """Return whether both are true or neither is."""
    return any_of(all_of(left, right), all_of(negation(left), negation(right)))


_FROM_NOTHING = (
    Lemma(
        "mul_equal",
        "equal numbers have equal multiples",
        lambda x, y, k: x == y,
        lambda x, y, k: x * k == y * k,
        lambda x, y, k: x * k == y,
    ),
    Lemma(
        "mul_mono",
        "multiplying by a number that is not negative keeps an order",
        lambda x, y, k: all_of(x <= y, k >= 0),
        lambda x, y, k: x * k <= y * k,
        lambda x, y, k: x * k < y * k,
    ),
    Lemma(
        "mul_strict",
        "multiples of different numbers are at least one multiplier apart",
        lambda x, y, k: all_of(x < y, k > 0),
        lambda x, y, k: x * k + k <= y * k,
        lambda x, y, k: x * k + k < y * k,
    ),
    Lemma(
        "floor_char",
        "a quotient rounded down is the most whole divisors that fit",
        lambda a, d: d > 0,
        lambda a, d: all_of(a // d * d <= a, a < a // d * d + d),
        lambda a, d: a // d * d < a,
    ),
    Lemma(
        "cdiv_char",
        "a quotient rounded up is the fewest whole divisors that cover",
        lambda a, d: d > 0,
        lambda a, d: all_of(cdiv(a, d) * d - d < a, a <= cdiv(a, d) * d),
        lambda a, d: a < cdiv(a, d) * d,
    ),
)

_QUOTIENTS = (
    Lemma(
        "cdiv_unique",
        "what covers with no whole divisor to spare is the quotient rounded up",
        lambda a, d, q: all_of(d > 0, q * d - d < a, a <= q * d),
        lambda a, d, q: q == cdiv(a, d),
        lambda a, d, q: q == a // d,
        lambda a, d, q: iter(
            (
                ("cdiv_char", (a, d)),
                ("mul_strict", (q, cdiv(a, d), d)),
                ("mul_strict", (cdiv(a, d), q, d)),
            )
        ),
    ),
    Lemma(
        "cdiv_le",
        "a quotient rounded up is at most m exactly if m divisors cover",
        lambda a, d, m: d > 0,
        lambda a, d, m: _exactly(cdiv(a, d) <= m, a <= m * d),
        lambda a, d, m: _exactly(cdiv(a, d) <= m, a < m * d),
        lambda a, d, m: iter(
            (
                ("cdiv_char", (a, d)),
                ("mul_mono", (cdiv(a, d), m, d)),
                ("mul_strict", (m, cdiv(a, d), d)),
            )
        ),
    ),
    Lemma(
        "floor_lt",
        "a quotient rounded down is below m exactly if m divisors do not fit",
        lambda a, d, m: d > 0,
        lambda a, d, m: _exactly(a // d < m, a < m * d),
        lambda a, d, m: _exactly(a // d <= m, a <= m * d),
        lambda a, d, m: iter(
            (
                ("floor_char", (a, d)),
                ("mul_mono", (m, a // d, d)),
                ("mul_strict", (a // d, m, d)),
            )
        ),
    ),
    Lemma(
        "floor_shift",
        "whole divisors come out of a quotient rounded down",
        lambda a, d, m: d > 0,
        lambda a, d, m: (a + m * d) // d == a // d + m,
        lambda a, d, m: (a + m * d + 1) // d == a // d + m,
        lambda a, d, m: iter(
            (
                ("floor_char", (a, d)),
                ("floor_lt", (a + m * d, d, a // d + m)),
                ("floor_lt", (a + m * d, d, a // d + m + 1)),
            )
        ),
    ),
    Lemma(
        "cdiv_shift",
        "whole divisors come out of a quotient rounded up",
        lambda a, d, m: d > 0,
        lambda a, d, m: cdiv(a + m * d, d) == cdiv(a, d) + m,
        lambda a, d, m: cdiv(a + m * d + 1, d) == cdiv(a, d) + m,
        lambda a, d, m: iter(
            (
                ("cdiv_char", (a, d)),
                ("cdiv_le", (a + m * d, d, cdiv(a, d) + m)),
                ("cdiv_le", (a + m * d, d, cdiv(a, d) + m - 1)),
            )
        ),
    ),
    Lemma(
        "mono_num",
        "more tokens need no fewer blocks",
        lambda a, b, d: all_of(a <= b, d > 0),
        lambda a, b, d: cdiv(a, d) <= cdiv(b, d),
        lambda a, b, d: cdiv(a, d) < cdiv(b, d),
        lambda a, b, d: iter((("cdiv_le", (a, d, cdiv(b, d))), ("cdiv_char", (b, d)))),
    ),
    Lemma(
        "floor_mono",
        "a later position lies in no earlier block",
        lambda a, b, d: all_of(a <= b, d > 0),
        lambda a, b, d: a // d <= b // d,
        lambda a, b, d: a // d < b // d,
        lambda a, b, d: iter((("floor_lt", (b, d, a // d)), ("floor_char", (a, d)))),
    ),
    Lemma(
        "anti_den",
        "larger blocks are no more blocks",
        lambda a, b, c: all_of(a >= 0, b > 0, b <= c),
        lambda a, b, c: cdiv(a, c) <= cdiv(a, b),
        lambda a, b, c: cdiv(a, c) < cdiv(a, b),
        lambda a, b, c: iter(
            (
                ("cdiv_le", (a, c, cdiv(a, b))),
                ("cdiv_le", (a, b, -1)),
                ("cdiv_char", (a, b)),
                ("mul_mono", (b, c, cdiv(a, b))),
            )
        ),
    ),
    Lemma(
        "nest",
        "rounding up twice is rounding up once by the product",
        lambda a, b, c: all_of(b > 0, c > 0),
        lambda a, b, c: cdiv(cdiv(a, b), c) == cdiv(a, b * c),
        lambda a, b, c: a // b // c == cdiv(a, b * c),
        lambda a, b, c: iter(
            (
                ("mul_strict", (0, b, c)),
                ("cdiv_char", (a, b * c)),
                ("cdiv_le", (cdiv(a, b), c, cdiv(a, b * c))),
                ("cdiv_le", (a, b, cdiv(a, b * c) * c)),
                ("cdiv_char", (cdiv(a, b), c)),
                ("cdiv_le", (a, b, cdiv(cdiv(a, b), c) * c)),
                ("cdiv_le", (a, b * c, cdiv(cdiv(a, b), c))),
            )
        ),
    ),
    Lemma(
        "floor_nest",
        "rounding down twice is rounding down once by the product",
        lambda a, b, c: all_of(b > 0, c > 0),
        lambda a, b, c: a // b // c == a // (b * c),
        lambda a, b, c: cdiv(a // b, c) == a // (b * c),
        lambda a, b, c: iter(
            (
                ("mul_strict", (0, b, c)),
                ("floor_char", (a, b * c)),
                ("floor_lt", (a // b, c, a // (b * c))),
                ("floor_lt", (a, b, a // (b * c) * c)),
                ("floor_char", (a // b, c)),
                ("floor_lt", (a, b, a // b // c * c)),
                ("floor_lt", (a, b * c, a // b // c)),
            )
        ),
    ),
    Lemma(
        "round_up",
        "rounding up to a multiple adds less than one multiple",
        lambda x, k: k > 0,
        lambda x, k: all_of(x <= cdiv(x, k) * k, cdiv(x, k) * k < x + k),
        lambda x, k: x < cdiv(x, k) * k,
        lambda x, k: iter((("cdiv_char", (x, k)),)),
    ),
    Lemma(
        "scale",
        "blocks k times as large, split into k, are no fewer than the small ones",
        lambda a, k, m: all_of(k > 0, m > 0),
        lambda a, k, m: cdiv(a, m) <= cdiv(a, k * m) * k,
        lambda a, k, m: cdiv(a, m) < cdiv(a, k * m) * k,
        lambda a, k, m: iter(
            (
                ("mul_strict", (0, k, m)),
                ("cdiv_le", (a, m, cdiv(a, k * m) * k)),
                ("cdiv_char", (a, k * m)),
            )
        ),
    ),
    Lemma(
        "subadd",
        "lists apart need no fewer blocks than together",
        lambda a, b, d: d > 0,
        lambda a, b, d: cdiv(a + b, d) <= cdiv(a, d) + cdiv(b, d),
        lambda a, b, d: cdiv(a, d) + cdiv(b, d) <= cdiv(a + b, d),
        lambda a, b, d: iter(
            (
                ("cdiv_le", (a + b, d, cdiv(a, d) + cdiv(b, d))),
                ("cdiv_char", (a, d)),
                ("cdiv_char", (b, d)),
            )
        ),
    ),
)

_POSITIONS = (
    Lemma(
        "index",
        "a position below the length lies in one of the length's blocks",
        lambda p, n, d: all_of(p < n, d > 0),
        lambda p, n, d: p // d < cdiv(n, d),
        lambda p, n, d: p // d + 1 < cdiv(n, d),
        lambda p, n, d: iter((("floor_lt", (p, d, cdiv(n, d))), ("cdiv_char", (n, d)))),
    ),
    Lemma(
        "index_nest",
        "a position below the length lies in one of the length's virtual blocks",
        lambda p, n, b, c: all_of(p < n, b > 0, c > 0),
        lambda p, n, b, c: p // (b * c) < cdiv(n, b * c),
        lambda p, n, b, c: p // (b * c) < cdiv(n, b) // c,
        lambda p, n, b, c: iter((("mul_strict", (0, b, c)), ("index", (p, n, b * c)))),
    ),
    Lemma(
        "remainder",
        "what is left of a position inside its block is below the block's size",
        lambda a, d: d > 0,
        lambda a, d: all_of(modulo(a, d) >= 0, modulo(a, d) < d),
        lambda a, d: all_of(modulo(a, d) > 0, modulo(a, d) < d),
        lambda a, d: iter((("floor_char", (a, d)),)),
    ),
    Lemma(
        "digits",
        "a position is its run, its rank in the run and its offset on the rank put together again",
        lambda p, t, r: all_of(t > 0, r > 0),
        lambda p, t, r: p // (t * r) * (t * r) + modulo(p // t, r) * t + modulo(p, t) == p,
        lambda p, t, r: p // (t * r) * (t * r) + modulo(p, r) * t + modulo(p, t) == p,
        lambda p, t, r: iter((("floor_nest", (p, t, r)), ("mul_equal", (p // t // r, p // (t * r), t * r)))),
    ),
    Lemma(
        "split",
        "a kernel block lies inside the manager block of its position",
        lambda p, k, s: all_of(k > 0, s > 0),
        lambda p, k, s: all_of(p // (k * s) * s <= p // k, p // k < p // (k * s) * s + s),
        lambda p, k, s: p // k < p // (k * s) * s + s - 1,
        lambda p, k, s: iter(
            (
                ("mul_strict", (0, k, s)),
                ("floor_char", (p, k * s)),
                ("floor_lt", (p, k, p // (k * s) * s)),
                ("floor_lt", (p, k, p // (k * s) * s + s)),
            )
        ),
    ),
    Lemma(
        "place",
        "runs of t tokens, dealt out over r ranks, fill n runs of a rank and no more",
        lambda p, t, r, n: all_of(p < t * r * n, t > 0, r > 0),
        lambda p, t, r, n: p // (t * r) * t + modulo(p, t) < t * n,
        lambda p, t, r, n: p // t * t + modulo(p, t) < t * n,
        lambda p, t, r, n: iter(
            (
                ("mul_strict", (0, t, r)),
                ("floor_lt", (p, t * r, n)),
                ("floor_char", (p, t)),
                ("mul_strict", (p // (t * r), n, t)),
            )
        ),
    ),
)

LEMMAS: tuple[Lemma, ...] = _FROM_NOTHING + _QUOTIENTS + _POSITIONS
"""Every lemma; each follows from those before it."""

_BY_NAME = {known.name: known for known in LEMMAS}


def lemma(name: str) -> Lemma:
    """Return the lemma of that name."""
    return _BY_NAME[name]
