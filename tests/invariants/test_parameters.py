"""How a size or a switch is declared, and which values it takes."""

from dataclasses import dataclass

import pytest

from invariants.parameters import Parameter, parameters_of, size, switch


def declared():
    """Declare a dataclass with sizes, a switch, and a field that is neither."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Declared:
        length: int = size("longest sequence")
        block: int = size("tokens per block", minimum=1, maximum=64, usual=16, default=8)
        caching: bool = switch("whether blocks are kept", default=True)
        plain: int = 3

    return Declared


def test_a_parameter_is_what_its_field_declares_in_the_order_of_the_fields():
    assert parameters_of(declared()) == (
        Parameter("length", "longest sequence", 0, None, None, False),
        Parameter("block", "tokens per block", 1, 64, 16, False),
        Parameter("caching", "whether blocks are kept", 0, None, True, True),
    )


def test_a_default_is_the_fields_and_a_size_without_one_is_required():
    kind = declared()
    assert kind(length=5) == kind(length=5, block=8, caching=True, plain=3)
    with pytest.raises(TypeError, match="length"):
        kind()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("length", 0, None),
        ("length", 10**30, None),
        ("length", -1, "length must be at least 0, not -1"),
        ("block", 1, None),
        ("block", 64, None),
        ("block", 0, "block must be at least 1, not 0"),
        ("block", 65, "block must be at most 64, not 65"),
        ("block", True, "block must be a whole number, not True"),
        ("block", 2.0, "block must be a whole number, not 2.0"),
        ("caching", False, None),
        ("caching", 0, "caching must be true or false, not 0"),
    ],
)
def test_a_value_outside_is_refused_with_the_range(name, value, problem):
    (parameter,) = [known for known in parameters_of(declared()) if known.name == name]
    assert parameter.problem(value) == problem
