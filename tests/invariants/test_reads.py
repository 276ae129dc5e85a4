"""Which accesses a kernel makes, written out one by one, and which rank stores a position."""

import pytest

from invariants import (
    Access,
    Deployment,
    FullAttentionSpec,
    Request,
    Runner,
    build_case,
    column,
    entries,
    row_width,
)

DEPLOYMENT = Deployment(max_model_len=8, num_lookahead_tokens=2, max_num_encoder_input_tokens=6)
REQUEST = Request(num_tokens=5, num_computed_tokens=3, num_encoder_tokens=4)
SIZES = {
    "block_size": 2, "num_speculative_blocks": 1, "mamba_block_size": 8, "blocks_per_request": 2,
    "sliding_window": 2, "attention_chunk_size": 2, "rswa_window": 1,
}  # fmt: skip
EVERY = range(10)


def spec_of(kind, **sizes):
    return build_case(kind, {"max_model_len": 1, "num_tokens": 1, **SIZES, **sizes}).spec


def read(kind, request=REQUEST):
    spec = spec_of(kind)
    accesses = [Access(position=p, state=s) for p in EVERY for s in EVERY]
    return {(a.position, a.state) for a in accesses if spec.readable(DEPLOYMENT, request, a)}


@pytest.mark.parametrize(
    ("kind", "positions", "states"),
    [
        # Five tokens and two of lookahead have slots, three of them computed before this step.
        ("full-attention", range(7), EVERY),
        ("rswa", range(7), EVERY),
        ("sliding-window", range(2, 7), EVERY),  # the query at 3 sees itself and one before
        ("chunked-local", range(2, 7), EVERY),  # the query at 3 lies in the chunk of 2 and 3
        ("cross-attention", range(4), EVERY),
        ("encoder-only", (), ()),
        ("circular-buffer", range(7), EVERY),
        ("kpool-tail", range(5), EVERY),
        ("hisparse-hot", EVERY, range(2)),
        ("hisparse-resident", range(7), EVERY),
        ("mamba-none", EVERY, range(2)),
        ("mamba-align", range(5), range(2)),
        ("mamba-all", range(5), range(2)),
        ("uniform-mamba-align", range(5), range(2)),
    ],
)
def test_exactly_these_positions_and_states_are_read(kind, positions, states):
    assert read(kind) == {(p, s) for p in positions for s in states}


def test_no_block_of_the_hot_region_is_read_without_host_history():
    assert read("hisparse-hot", Request(num_tokens=5, reads_host_history=False)) == set()


@pytest.mark.parametrize("runner", Runner)
def test_an_encoder_only_group_has_neither_list_nor_row(runner):
    spec = spec_of("encoder-only")
    assert (entries(DEPLOYMENT, spec, REQUEST), row_width(DEPLOYMENT, spec, runner=runner)) == (0, 0)


def test_lookahead_is_clipped_to_the_context():
    """Seven tokens and two of lookahead: eight have slots."""
    assert {p for p, _ in read("full-attention", Request(num_tokens=7))} == set(range(8))


@pytest.mark.parametrize(
    ("kind", "position", "state", "expected"),
    [
        ("full-attention", 33, 0, 2),
        ("cross-attention", 33, 0, 2),
        ("circular-buffer", 33, 5, 0),
        ("hisparse-hot", 33, 5, 5),
        ("hisparse-resident", 33, 5, 2),
        ("mamba-none", 33, 1, 1),
        ("mamba-align", 33, 1, 3),
        ("mamba-all", 15, 1, 1),
        ("mamba-all", 16, 0, 1),
    ],
)
def test_a_column_in_rows_of_blocks_of_16(kind, position, state, expected):
    spec = spec_of(kind, block_size=16, blocks_per_request=9)
    assert column(DEPLOYMENT, spec, Access(position=position, state=state)) == expected


def test_a_ring_that_v1_maps_by_position_is_read_at_the_positions_block():
    """In vLLM 0.33 position 33 of a ring of 16 is column 2 of a row of one."""
    ring, access = spec_of("circular-buffer", block_size=16), Access(position=33)
    assert column(DEPLOYMENT, ring, access, runner=Runner.V1, release="vllm-0.33") == 2
    assert column(DEPLOYMENT, ring, access, runner=Runner.V2, release="vllm-0.33") == 0


@pytest.mark.parametrize(("ranks", "interleave", "block_size"), [(1, 3, 4), (2, 1, 4), (3, 2, 4), (2, 4, 4)])
def test_dealing_positions_out_in_runs_gives_each_its_rank_block_and_offset_and_the_way_back(
    ranks, interleave, block_size
):
    deployment = Deployment(
        max_model_len=99, decode_context_parallel_size=ranks, cp_kv_cache_interleave_size=interleave
    )
    spec, dealt = FullAttentionSpec(block_size=block_size), [0] * ranks
    for position in range(60):
        rank = position // interleave % ranks
        block, offset = divmod(dealt[rank], block_size)
        dealt[rank] += 1
        assert spec.owner(deployment, position) == rank
        assert spec.place_on_rank(deployment, position) == (block, offset)
        assert spec.position_at(deployment, rank, block, offset) == position
