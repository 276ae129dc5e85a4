"""Solver terms mean what Python's integers mean, and refuse what they cannot mean."""

import pytest
import z3
import z3.z3util
from hypothesis import given, settings
from hypothesis import strategies as st

from invariants.arithmetic import (
    all_of,
    any_of,
    cdiv,
    common_divisor,
    maximum,
    minimum,
    modulo,
    negation,
    round_up,
    where,
)
from proofs.terms import Definitions

values = st.integers(-300, 300)
divisors = st.integers(1, 40)
FORMULAS = {
    "add": lambda a, b, d: a + b + 3 + d,
    "radd": lambda a, b, d: 3 + a - (2 - b) - d,
    "multiply": lambda a, b, d: 2 * a * d - b * 5,
    "negate": lambda a, b, d: -a + -b - d,
    "floor": lambda a, b, d: a // d + b // 7,
    "constant over size": lambda a, b, d: 128 // d + a + b,
    "ceil": lambda a, b, d: cdiv(a, d) + cdiv(b, 7) + cdiv(100, d),
    "round up": lambda a, b, d: round_up(a, d) - round_up(b, 8),
    "modulo": lambda a, b, d: modulo(a, d) + modulo(b, 5),
    "minimum": lambda a, b, d: minimum(a, b) + minimum(a, 3) + d,
    "maximum": lambda a, b, d: maximum(a, b) + maximum(7, b) + d,
    "where": lambda a, b, d: where(a < b, d, 2) + where(a >= 0, 1, b),
    "greatest common divisor with a power of two": lambda a, b, d: common_divisor(128, d) + a + b,
    "padding": lambda a, b, d: round_up(a, 128 // common_divisor(128, d)) + b,
}
CLAIMS = {
    "compare": lambda a, b, d: all_of(a < b, a <= d),
    "equal": lambda a, b, d: any_of(a == b, a != d, negation(b > d)),
    "choose": lambda a, b, d: where(a < b, a == d, b >= d),
}


def solved(definitions, symbols, numbers, *more):
    solver = z3.Solver(ctx=definitions.context)
    solver.add(*definitions.facts, *more)
    solver.add(*(s.expr == n for s, n in zip(symbols, numbers, strict=True)))
    return solver


@pytest.mark.parametrize("name", FORMULAS)
@given(numbers=st.tuples(values, values, divisors))
@settings(max_examples=25)
def test_a_term_has_the_one_value_that_python_computes(name, numbers):
    definitions = Definitions()
    symbols = [definitions.symbol("a", None), definitions.symbol("b", None), definitions.symbol("d", 1)]
    term, expected = FORMULAS[name](*symbols), FORMULAS[name](*numbers)
    assert not definitions.divisors
    assert solved(definitions, symbols, numbers).check() == z3.sat
    assert solved(definitions, symbols, numbers, term.expr != expected).check() == z3.unsat


@pytest.mark.parametrize("name", CLAIMS)
@given(numbers=st.tuples(values, values, divisors))
@settings(max_examples=25)
def test_a_truth_value_is_pythons(name, numbers):
    definitions = Definitions()
    symbols = [definitions.symbol(n, None) for n in "abd"]
    claim = definitions.truth(CLAIMS[name](*symbols))
    expected = CLAIMS[name](*numbers)
    assert solved(definitions, symbols, numbers, claim != expected).check() == z3.unsat


def test_an_unknown_common_divisor_is_marked_as_approximate():
    definitions = Definitions()
    left, right = definitions.symbol("a", 1), definitions.symbol("b", 1)
    divisor = common_divisor(left, right)
    assert definitions.over_approximated
    for candidate, possible in ((6, z3.sat), (3, z3.sat), (4, z3.unsat), (12, z3.unsat)):
        supposed = solved(definitions, [left, right], (12, 18), divisor.expr == candidate)
        assert supposed.check() == possible


def test_fresh_integers_never_share_a_name():
    definitions = Definitions()
    a, b, d = (definitions.symbol(name, 1) for name in "abd")
    for term in (
        common_divisor(a, b),
        cdiv(a, d),
        b // d,
        common_divisor(b, d),
        cdiv(b, common_divisor(a, d)),
    ):
        assert term.low is not None
    defined = {str(v) for f in definitions.facts for v in z3.z3util.get_vars(f)} - {"a", "b", "d"}
    assert len(defined) == 3 * 3 + 3


@pytest.mark.parametrize("branch", [bool, lambda t: t or 0, lambda t: min(t, 3), lambda t: t and 1])
def test_branching_on_a_term_raises(branch):
    term = Definitions().symbol("max_model_len", 1)
    with pytest.raises(TypeError, match=r"branched on a symbolic value at .*test_terms\.py:"):
        branch(term)


def test_branching_on_a_comparison_raises():
    n = Definitions().symbol("n", 1)
    with pytest.raises(TypeError, match=r"branched on a symbolic value at .*test_terms\.py:[0-9]+, `.*n < 3"):
        bool(n < 3)


@pytest.mark.parametrize("other", [1.5, "1", None, True])
def test_a_term_mixes_with_whole_numbers_only(other):
    with pytest.raises(TypeError, match="as a size"):
        Definitions().symbol("n", 1) + other


def test_a_divisor_that_may_be_zero_is_listed():
    definitions = Definitions()
    value, divisor = definitions.symbol("a", 0), definitions.symbol("d", 0)
    quotient = value // divisor
    assert [str(d) for d in definitions.divisors] == ["d"]
    anything = solved(definitions, [value, divisor], (7, 0), quotient.expr == 12345)
    assert anything.check() == z3.sat, "nothing may be concluded from a division by zero"


def test_the_same_quotient_is_defined_once():
    definitions = Definitions()
    value, divisor = definitions.symbol("a", 0), definitions.symbol("d", 1)
    assert (value // divisor).expr.eq((value // divisor).expr)
    assert len(definitions.facts) == 1
