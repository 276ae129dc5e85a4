"""How a size or a switch is declared, and which values it takes."""

from dataclasses import dataclass

import pytest

from invariants.parameters import Parameter, parameters_of, size, switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Sizes and switches of every kind, and a field that is neither."""

    length: int = size("longest sequence")
    block: int = size("tokens per block", minimum=1, maximum=64, usual=16, default=8)
    caching: bool = switch("whether blocks are kept", default=True)
    plain: int = 3


LENGTH, BLOCK, CACHING = parameters_of(Declared)


def test_a_parameter_is_what_its_field_declares_in_the_order_of_the_fields():
    assert parameters_of(Declared) == (
        Parameter("length", "longest sequence", 0, None, None, False),
        Parameter("block", "tokens per block", 1, 64, 16, False),
        Parameter("caching", "whether blocks are kept", 0, None, True, True),
    )
    assert (BLOCK.is_switch, CACHING.is_switch) == (False, True)
    assert (CACHING.minimum, CACHING.maximum) == (0, None)


def test_a_default_is_the_fields_and_a_size_without_one_is_required():
    assert Declared(length=5) == Declared(length=5, block=8, caching=True, plain=3)
    with pytest.raises(TypeError, match="length"):
        Declared()


@pytest.mark.parametrize(
    ("parameter", "value", "problem"),
    [
        (LENGTH, 0, None),
        (LENGTH, 10**30, None),
        (LENGTH, -1, "length must be at least 0, not -1"),
        (BLOCK, 1, None),
        (BLOCK, 64, None),
        (BLOCK, 0, "block must be at least 1, not 0"),
        (BLOCK, 65, "block must be at most 64, not 65"),
        (BLOCK, True, "block must be a whole number, not True"),
        (BLOCK, 2.0, "block must be a whole number, not 2.0"),
        (CACHING, False, None),
        (CACHING, 0, "caching must be true or false, not 0"),
    ],
)
def test_a_value_outside_is_refused_with_the_range(parameter, value, problem):
    assert parameter.problem(value) == problem
