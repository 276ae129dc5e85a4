"""Numbers that two places derive, against widths that are widened block by block."""

import itertools

import pytest

from invariants import Runner, build_case, claim, release
from invariants.readers import Drafting


def widened(length, block, ranks=1, states=0, alignment=1):
    """Widen a row until it holds the length, and on to whole multiples of the alignment."""
    width = 0
    while width * block * ranks < length:
        width += 1
    while width * block % alignment:
        width += 1
    return width + states


def numbers(label, case, name, runner):
    consumer, worker = claim(label).sides(case, release(name), Runner(runner))
    assert claim(label).holds(case, release(name), Runner(runner)) == (consumer.value == worker.value)
    return consumer.value, worker.value


@pytest.mark.parametrize(
    ("name", "counts_drafts"), [("vllm-0.27", False), ("vllm-0.28", True), ("today", True)]
)
def test_a_wrapped_row_counts_its_layers_drafts_from_028_on(name, counts_drafts):
    for length, block, states in itertools.product(range(1, 40, 3), (1, 4, 16), (0, 1, 2)):
        values = {
            "max_model_len": length,
            "block_size": block,
            "num_speculative_blocks": states,
            "num_tokens": 1,
        }
        case = build_case("uniform-mamba-align", values)
        layer = widened(length, block, states=states)
        row = layer if counts_drafts else layer - states
        assert numbers("consumers-agree/layers", case, name, "V1") == (layer, row)


@pytest.mark.parametrize("name", ["vllm-0.27", "vllm-0.28"])
def test_a_wrapped_attention_row_on_v1_is_divided_by_dcp_from_028_on(name):
    for length, ranks in itertools.product((1, 128, 129, 500, 1000), (1, 2, 3)):
        values = {"max_model_len": length, "block_size": 16, "decode_context_parallel_size": ranks}
        case = build_case("uniform-full-attention", {**values, "num_tokens": 1})
        layer = widened(length, 16, ranks, alignment=128)
        row = layer if name == "vllm-0.28" else widened(length, 16, alignment=128)
        assert numbers("consumers-agree/layers", case, name, "V1") == (layer, row)


@pytest.mark.parametrize(
    ("name", "ignores"), [("vllm-0.31", False), ("vllm-0.32", True), ("vllm-0.33", True), ("today", False)]
)
@pytest.mark.parametrize("runner", Runner)
def test_a_kernels_table_leaves_the_encoder_out_in_032_and_033(name, ignores, runner):
    for budget, source in itertools.product((0, 100, 300, 1000), repeat=2):
        values = {
            "max_model_len": 200, "block_size": 16, "num_tokens": 1,
            "max_num_encoder_input_tokens": budget, "max_source_positions": source,
        }  # fmt: skip
        case = build_case("cross-attention", values)
        longest = max(200, budget, source if runner is Runner.V2 else 0)
        row = widened(longest, 16, alignment=128)
        table = widened(200, 16, alignment=128) if ignores else row
        assert numbers("consumers-agree/kernel-table", case, name, runner) == (table, row)


@pytest.mark.parametrize(("name", "runner", "stale"), [
    ("vllm-0.32", "V2", True), ("vllm-0.33", "V2", False), ("vllm-0.33", "V1", True), ("today", "V1", False),
])  # fmt: skip
def test_a_drafter_that_is_not_told_of_the_lowered_length_keeps_the_old_one(name, runner, stale):
    values = {"max_model_len": 1024, "configured_max_model_len": 4096, "block_size": 16, "num_tokens": 1}
    case = build_case("full-attention", values, (Drafting,))
    expected = (4096 if stale else 1024, 1024)
    assert numbers("consumers-agree/lowered-max-model-len", case, name, runner) == expected
