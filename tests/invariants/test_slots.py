"""Slots by brute force: which rank stores a position, at which of its slots, and who shares one."""

import itertools

import pytest

from invariants import FullAttentionSpec, Runner, build_case, claim, dealt_spec, release
from invariants.slots import OtherPosition

GRID = [
    (block, ranks, interleave)
    for block, ranks, interleave in itertools.product((4, 8), (1, 2, 3, 4), (1, 2, 4))
    if block % interleave == 0
]


def dealt(block, ranks, interleave, length):
    """Deal out positions in runs to the ranks in turn; each rank fills its slots from 0 on.

    One rank keeps everything in order, whatever the runs.
    """
    slots, filled, rank = {}, [0] * ranks, 0
    while len(slots) < length:
        for _ in range(interleave):
            slots[len(slots)] = rank, filled[rank] // block, filled[rank] % block
            filled[rank] += 1
        rank = (rank + 1) % ranks
    return {position: slots[position] for position in range(length)}


def case_of(block, ranks, interleave, position, other=0, **more):
    values = {
        "max_model_len": 1000, "num_tokens": 900, "block_size": block, "decode_context_parallel_size": ranks,
        "cp_kv_cache_interleave_size": interleave, "position": position, "other_position": other, **more,
    }  # fmt: skip
    return build_case("full-attention", values, (OtherPosition,))


@pytest.mark.parametrize(("block", "ranks", "interleave"), GRID)
def test_a_position_lies_where_dealing_out_runs_of_tokens_puts_it(block, ranks, interleave):
    length = 3 * block * ranks + 1
    for position, place in dealt(block, ranks, interleave, length).items():
        case = case_of(block, ranks, interleave, position)
        spec, deployment = case.spec, case.deployment
        assert (spec.owner(deployment, position), *spec.place_on_rank(deployment, position)) == place
        assert spec.position_at(deployment, *place) == position
        assert claim("slots-distinct/one-owner").holds(case, release("today"), Runner.V2)


@pytest.mark.parametrize(("block", "ranks", "interleave"), GRID)
def test_every_slot_of_whole_virtual_blocks_has_exactly_one_position(block, ranks, interleave):
    places = []
    for position in range(2 * block * ranks):
        case = case_of(block, ranks, interleave, position)
        block_offset = case.spec.place_on_rank(case.deployment, position)
        places.append((case.spec.owner(case.deployment, position), *block_offset))
    assert sorted(places) == sorted(itertools.product(range(ranks), range(2), range(block)))


@pytest.mark.parametrize(("block", "ranks", "interleave"), [g for g in GRID if g[0] == 4])
def test_no_two_positions_are_said_to_share_a_slot(block, ranks, interleave):
    for position, other in itertools.combinations(range(2 * block * ranks), 2):
        case = case_of(block, ranks, interleave, position, other)
        assert claim("slots-distinct").holds(case, release("today"), Runner.V2)


def test_two_positions_that_do_share_a_slot_are_found_out(monkeypatch):
    """A place that forgets the runs: positions 0 and 1 of two ranks land on one slot of rank 0."""
    case = case_of(4, 2, 1, 0, 2)
    monkeypatch.setattr(type(case.spec), "place_on_rank", lambda self, d, position: (0, 0))
    assert not claim("slots-distinct").holds(case, release("today"), Runner.V2)
    assert not claim("slots-distinct/one-owner").holds(case_of(4, 2, 1, 2), release("today"), Runner.V2)


def test_a_ring_repeats_a_slot_only_after_a_whole_round():
    invariant = claim("slots-distinct")
    for position, other in itertools.combinations(range(20), 2):
        values = {"max_model_len": 100, "num_tokens": 50, "block_size": 5}
        values |= {"position": position, "other_position": other}
        case = build_case("circular-buffer", values, (OtherPosition,))
        live = all(given.holds(case, release("today"), Runner.V2) for given in invariant.givens)
        assert live == (other - position < 5)
        assert invariant.holds(case, release("today"), Runner.V2) == ((other - position) % 5 != 0)


def test_a_block_drafters_queries_alias_where_they_leave_a_row_of_eight():
    """max_model_len 128, blocks of 16: positions from 128 on write the slots from 112 on."""
    invariant = claim("slots-distinct/draft-query")
    aliased = set()
    for other, position in itertools.product(range(120, 134), range(100, 134)):
        if position >= other:
            continue
        case = case_of(16, 1, 1, position, other, max_model_len=128, num_tokens=126, num_speculative_tokens=7)
        assert all(given.holds(case, release("vllm-0.33"), Runner.V2) for given in invariant.givens)
        assert invariant.holds(case, release("today"), Runner.V2)
        if not invariant.holds(case, release("vllm-0.33"), Runner.V2):
            aliased.add((other, position))
    assert aliased == {(128 + n, 112 + n) for n in range(6)}


@pytest.mark.parametrize("name", ["vllm-0.25", "vllm-0.26", "vllm-0.27", "vllm-0.28"])
def test_before_029_v2_gives_a_run_longer_than_a_kernel_block_to_one_rank(name):
    """Two ranks, blocks of 128 as two of 64, runs of 128: what vLLM 0.28's own kernel was seen to compute.

    With block 1, whose slots are 128 to 255, positions 64 and 128 both got slot 192, and 192 got slot 256.
    """
    values = {"blocks_per_kv_block": 2}
    one, owned = claim("slots-distinct"), claim("slots-distinct/one-owner")
    shared, deep = (case_of(128, 2, 128, *pair, **values) for pair in ((64, 128), (192, 192)))
    assert not one.holds(shared, release(name), Runner.V2)
    assert [side.value for side in one.sides(shared, release(name), Runner.V2)] == [0, 0, 64] * 2
    # Rank 0, block 0, offset 128: one past the block's last.
    assert [side.value for side in owned.sides(deep, release(name), Runner.V2)][:3] == [0, 0, 128]
    assert not owned.holds(deep, release(name), Runner.V2)
    # The last of one block and the first of the next are two slots, though both are where 256 belongs.
    assert one.holds(case_of(128, 2, 128, 192, 256, **values), release(name), Runner.V2)
    for runner, known in ((Runner.V1, name), (Runner.V2, "vllm-0.29"), (Runner.V2, "today")):
        assert one.holds(shared, release(known), runner)
        assert owned.holds(deep, release(known), runner)


def test_the_blocks_that_tokens_are_dealt_out_within_are_kernel_blocks_on_v2_before_029():
    spec = FullAttentionSpec(block_size=128, blocks_per_kv_block=2)
    kernel = FullAttentionSpec(block_size=64, blocks_per_kv_block=1)
    assert dealt_spec(spec, release="vllm-0.28") == kernel
    assert dealt_spec(spec, release=release("vllm-0.25"), runner="V2") == kernel
    assert dealt_spec(spec, release="vllm-0.28", runner=Runner.V1) is spec
    assert dealt_spec(spec, release="vllm-0.29") is spec
    assert dealt_spec(kernel, release="vllm-0.28") is kernel
    assert dealt_spec(spec) is spec


def test_before_029_v2_is_right_where_runs_divide_the_kernel_block():
    for position, other in itertools.combinations(range(64), 2):
        case = case_of(16, 2, 4, position, other, blocks_per_kv_block=2)
        assert claim("slots-distinct").holds(case, release("vllm-0.28"), Runner.V2)
