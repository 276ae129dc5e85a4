"""A counterexample shows the arithmetic that the formulas did, in names and in digits."""

from invariants import INVARIANTS, Runner, release
from invariants.arithmetic import cdiv, common_divisor, maximum, minimum, modulo, round_up, where
from proofs.chain import Traced
from proofs.decide import decide
from proofs.verdicts import Obligation


def named(**values):
    return [Traced(value, name, names=frozenset({name})) for name, value in values.items()]


def test_operations_keep_names_digits_and_value():
    a, b = named(a=17, b=16)
    cases = [
        (cdiv(a, b) + 1, "cdiv(a, b) + 1", "cdiv(17, 16) + 1", 3),
        (a * (b + 2), "a * (b + 2)", "17 * (16 + 2)", 306),
        (a - (b - 3), "a - (b - 3)", "17 - (16 - 3)", 4),
        (a // (b * 2), "a // (b * 2)", "17 // (16 * 2)", 0),
        (modulo(a, b), "a % b", "17 % 16", 1),
        (round_up(a, b), "round_up(a, b)", "round_up(17, 16)", 32),
        (common_divisor(128, b), "gcd(128, b)", "gcd(128, 16)", 16),
        (3 - a, "3 - a", "3 - 17", -14),
        (128 // b, "128 // b", "128 // 16", 8),
    ]
    for traced, text, digits, value in cases:
        assert (traced.text, traced.digits, traced.value) == (text, digits, value)
        assert eval(digits, {"cdiv": cdiv, "round_up": round_up, "gcd": common_divisor}) == value  # noqa: S307


def test_only_what_was_taken_is_shown():
    a, b, zero, one = named(a=17, b=16, zero=0, one=1)
    assert minimum(a + 5, b).text == "b"
    assert maximum(a, b).text == "a"
    assert where(a < b, a, b).text == "b"
    assert (a + zero).text == (zero + a).text == (a * one).text == (one * a).text == (a - zero).text == "a"
    assert (a + b * zero).text == "a"


def test_a_counterexample_names_only_what_takes_part():
    known = release("vllm-0.28")
    found = decide(Obligation("mamba-align", INVARIANTS[0], Runner.V2, known), {}).counterexample
    assert found.shown == ("max_model_len", "decode_context_parallel_size", "block_size", "num_tokens")
    assert found.chain == (
        ("scheduler", "entries", "cdiv(num_tokens, block_size) = cdiv(17, 16) = 2"),
        (
            "worker",
            "row width",
            "cdiv(max_model_len, block_size * decode_context_parallel_size) = cdiv(18, 16 * 2) = 1",
        ),
    )
    assert found.summary.startswith(
        "at 17 tokens the scheduler hands over 2 entries for a row of 1: 1 too many"
    )
