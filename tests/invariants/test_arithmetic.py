"""The arithmetic that every formula is written with, on plain numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invariants.arithmetic import (
    Symbolic,
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

sizes = st.integers(-(10**20), 10**20)
divisors = st.integers(1, 10**12)


@given(sizes, divisors)
def test_cdiv_is_the_least_count_whose_blocks_cover_the_value(value, divisor):
    count = cdiv(value, divisor)
    assert (count - 1) * divisor < value <= count * divisor


@given(sizes, divisors)
def test_round_up_is_the_next_multiple(value, multiple):
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert value <= rounded < value + multiple


@given(sizes, divisors)
def test_modulo_is_pythons(value, divisor):
    assert modulo(value, divisor) == value % divisor


@given(divisors, divisors)
def test_common_divisor_is_the_greatest(left, right):
    assert common_divisor(left, right) == math.gcd(left, right)


@given(st.booleans(), sizes, sizes)
def test_where_minimum_and_maximum_choose(condition, left, right):
    assert where(condition, left, right) == (left if condition else right)
    assert minimum(left, right) == min(left, right)
    assert maximum(left, right) == max(left, right)


@given(st.lists(st.booleans()))
def test_truth_values_combine_as_in_python(values):
    assert all_of(*values) == all(values)
    assert any_of(*values) == any(values)
    assert [negation(value) for value in values] == [not value for value in values]


@pytest.mark.parametrize("divide", [cdiv, modulo, round_up])
def test_a_divisor_of_zero_raises(divide):
    with pytest.raises(ZeroDivisionError):
        divide(1, 0)


class Recorded(Symbolic):
    """A symbolic value that answers with what it was asked."""

    @classmethod
    def apply(cls, operation, *operands):
        return operation, operands


X = Recorded()


@pytest.mark.parametrize(
    "function", [cdiv, modulo, round_up, common_divisor, minimum, maximum, all_of, any_of]
)
@pytest.mark.parametrize("operands", [(X, 3), (3, X), (X, X)])
def test_an_operation_with_a_symbolic_operand_is_handed_over_whole(function, operands):
    assert function(*operands) == (function.__name__, operands)


def test_a_choice_is_handed_over_when_its_condition_is_symbolic_and_made_at_once_otherwise():
    assert where(X, 1, 2) == ("where", (X, 1, 2))
    assert where(True, X, 2) is X
    assert where(False, 1, X) is X
    assert negation(X) == ("negation", (X,))
    assert all_of(True, False, X) == ("all_of", (True, False, X))
