"""Indices against the integers of the machine: ctypes wraps them as the kernels' registers would."""

import ctypes

import pytest

from invariants import Runner, build_case, claim, release
from invariants.indices import Indices


def case_of(**values):
    sizes = {"max_model_len": 128, "block_size": 16, "num_tokens": 1, "max_num_reqs": 2**31 - 1}
    return build_case("full-attention", {**sizes, **values}, (Indices,))


def agree(label, runner, name, case, index):
    """Hold the claim, its number and the number that it says it wraps to against a 32-bit integer."""
    invariant, known = claim(label), release(name)
    assert invariant.sides(case, known, Runner(runner))[0].value == index
    wrapped = ctypes.c_int32(index).value
    holds = invariant.holds(case, known, Runner(runner))
    assert holds == (wrapped == index)
    if not holds:
        values = tuple(side.value for side in invariant.sides(case, known, Runner(runner)))
        assert invariant.clash(case, values).endswith(f"wraps to {wrapped}")
    return holds


@pytest.mark.parametrize(("block", "first"), [(16, 134217728), (128, 16777216), (4096, 524288)])
def test_a_slot_wraps_from_the_reported_block_on(block, first):
    for block_id in (0, 1, first - 1, first, first + 1):
        case = case_of(block_size=block, block_id=block_id)
        assert agree("index-fits/slot", "V2", "vllm-0.33", case, block_id * block) == (block_id < first)
        assert claim("index-fits/slot").holds(case, release("today"), Runner.V2)
        assert claim("index-fits/slot").holds(case, release("vllm-0.33"), Runner.V1)


@pytest.mark.parametrize("row", [2047, 2048])
def test_a_token_offset_wraps_from_row_2048_of_a_million_tokens_on(row):
    case = case_of(max_model_len=1048576, request_row=row, position=1048575)
    holds = agree("index-fits/token-offset", "V2", "vllm-0.27", case, row * 1048576 + 1048575)
    assert holds == (row < 2048)
    assert claim("index-fits/token-offset").holds(case, release("vllm-0.28"), Runner.V2)


@pytest.mark.parametrize(("runner", "name"), [("V2", "vllm-0.31"), ("V1", "vllm-0.31"), ("V1", "vllm-0.33")])
def test_a_row_offset_wraps_where_rows_of_eight_pass_two_to_the_31(runner, name):
    for row, state in ((2**28 - 1, 7), (2**28, 0)):
        case = case_of(request_row=row, state=state)
        assert agree("index-fits/row-offset", runner, name, case, row * 8 + state) == (row < 2**28)
        assert claim("index-fits/row-offset").holds(case, release("vllm-0.33"), Runner.V2)
