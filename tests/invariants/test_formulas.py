"""The formulas against brute force, and against numbers written down in public reports."""

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from invariants import (
    RELEASES,
    SPEC_KINDS,
    TODAY,
    Access,
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    Deployment,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiSparseHotSpec,
    HiSparseResidentSpec,
    IllegalDeployment,
    KpoolTailSpec,
    MambaAlignSpec,
    MambaAllSpec,
    MambaNoneSpec,
    MambaSpec,
    Request,
    Runner,
    SlidingWindowSpec,
    UniformTypeSpec,
    broken_assumptions,
    build_case,
    column,
    entries,
    kind_of,
    max_request,
    parameters_for,
    release,
    require_legal,
    row_width,
)
from invariants.strategies import block_lists, cases
from tests.invariants.anew import anew

ATTENTION_KINDS = [
    k
    for k in SPEC_KINDS
    if isinstance(
        build_case(k, dict.fromkeys((p.name for p in parameters_for(k) if not p.is_switch), 1)).spec,
        AttentionSpec,
    )
]


def layer_of(spec):
    return spec.inner if isinstance(spec, UniformTypeSpec) else spec


def blocks_touched(positions, tokens_per_block):
    """Walk over positions and open a block whenever one is not open yet."""
    return len({position // tokens_per_block for position in positions})


def entries_by_walking(deployment, spec, request):
    """Count a request's entries block by block, as a scheduler that allocates on demand would."""
    layer = layer_of(spec)
    slots = range(min(request.num_tokens + deployment.num_lookahead_tokens, deployment.max_model_len))
    match layer:
        case EncoderOnlyAttentionSpec():
            return 0
        case CrossAttentionSpec():
            slots = range(request.num_encoder_tokens)
        case CircularBufferSpec():
            return 1
        case HiSparseHotSpec():
            return layer.blocks_per_request if request.reads_host_history else 0
        case HiSparseResidentSpec():
            return blocks_touched(slots, layer.block_size)
        case MambaNoneSpec():
            return blocks_touched(slots, layer.mamba_block_size) + layer.num_speculative_blocks
        case MambaAlignSpec():
            scheduled = range(request.num_tokens)
            return blocks_touched(scheduled, layer.block_size) + layer.num_speculative_blocks
        case MambaAllSpec():
            return blocks_touched(slots, layer.block_size) + layer.num_speculative_blocks
    ranks = deployment.decode_context_parallel_size if layer.dcp_sharded else 1
    kernel_blocks = layer.blocks_per_kv_block
    return blocks_touched(slots, layer.block_size * ranks) * kernel_blocks


@given(cases(max_model_len=600))
@settings(max_examples=400)
def test_entries_are_what_a_scheduler_that_allocates_block_by_block_counts(case):
    assert entries(case.deployment, case.spec, case.request) == entries_by_walking(
        case.deployment, case.spec, case.request
    )


@given(cases(kinds=ATTENTION_KINDS, max_model_len=300), st.sampled_from(list(Runner)))
@settings(max_examples=300)
def test_the_column_is_where_dealing_tokens_out_to_ranks_puts_the_position(case, runner):
    """Deal positions out in runs, rank after rank, and count what the owning rank got before."""
    layer = layer_of(case.spec)
    sharded = (layer.dcp_sharded or runner is Runner.V1) and not isinstance(layer, CrossAttentionSpec)
    ranks = case.deployment.decode_context_parallel_size if sharded else 1
    interleave = case.deployment.cp_kv_cache_interleave_size
    dealt = [0] * ranks
    local = 0
    for position in range(case.access.position + 1):
        owner = position // interleave % ranks
        local = dealt[owner]
        dealt[owner] += 1
    read = column(case.deployment, case.spec, case.access, runner=runner)
    assert read == local // layer.kernel_block_size


@given(cases(max_model_len=2000), st.sampled_from(list(Runner)))
@settings(max_examples=300)
def test_today_every_reachable_request_fits_its_row(case, runner):
    assume(runner in case.spec.runners)
    assert entries(case.deployment, case.spec, case.request) <= row_width(
        case.deployment, case.spec, runner=runner
    )


@given(cases(max_model_len=2000), st.sampled_from(list(Runner)))
@settings(max_examples=300)
def test_today_every_column_read_lies_in_the_row(case, runner):
    assume(runner in case.spec.column_runners)
    assume(case.spec.readable(case.deployment, case.request, case.access))
    read = column(case.deployment, case.spec, case.access, runner=runner)
    assert 0 <= read < row_width(case.deployment, case.spec, runner=runner)


@given(cases(max_model_len=2000))
def test_entries_never_shrink_as_a_request_grows(case):
    assume(case.request.num_tokens > 1)
    shorter = dataclasses.replace(case.request, num_tokens=case.request.num_tokens - 1)
    assert entries(case.deployment, case.spec, shorter) <= entries(case.deployment, case.spec, case.request)


@given(cases())
def test_no_drawn_request_needs_more_than_the_largest_one(case):
    largest = max_request(case.deployment)
    assert entries(case.deployment, case.spec, case.request) <= entries(case.deployment, case.spec, largest)


@given(st.data(), st.sampled_from(RELEASES))
@settings(max_examples=200)
def test_strategies_draw_only_legal_cases_of_every_release(data, drawn_release):
    case = data.draw(cases(release=drawn_release))
    assert not broken_assumptions(case, drawn_release)
    ids = data.draw(
        block_lists(case.deployment, case.spec, case.request, num_pool_blocks=64, release=drawn_release)
    )
    held = entries(case.deployment, case.spec, case.request, release=drawn_release)
    assert len(ids) == min(63, held)
    assert len(set(ids)) == len(ids)
    assert all(1 <= block_id < 64 for block_id in ids)


@pytest.mark.parametrize("kind", SPEC_KINDS)
def test_a_case_survives_the_way_to_flat_values_and_back(kind):
    values = {p.name: p.maximum or p.minimum + 2 for p in parameters_for(kind) if not p.is_switch}
    case = build_case(kind, values)
    assert kind_of(case.spec) == kind
    assert build_case(kind, case.values()) == case


REFERENCE = Deployment(max_model_len=512, decode_context_parallel_size=2)


def test_the_reference_case_has_the_numbers_of_its_report():
    attention, mamba = FullAttentionSpec(block_size=16), MambaAlignSpec(block_size=16)
    request = Request(num_tokens=257)
    assert [entries(REFERENCE, spec, request) for spec in (attention, mamba)] == [9, 17]
    for name in ("vllm-0.26", "vllm-0.27", "vllm-0.28"):
        faulty = release(name)
        assert row_width(REFERENCE, attention, release=faulty) == 16
        assert row_width(REFERENCE, mamba, release=faulty) == 16
        assert row_width(REFERENCE, mamba, runner=Runner.V1, release=faulty) == 32
    assert row_width(REFERENCE, mamba) == 32


def wide(length, block_size, *, k=0, dcp=1, name="today", runner=Runner.V2, spec_type=MambaAlignSpec):
    """Return a Mamba group's row width at the given sizes."""
    deployment = Deployment(
        max_model_len=length,
        decode_context_parallel_size=dcp,
        enable_prefix_caching=spec_type is not MambaNoneSpec,
    )
    size = "mamba_block_size" if spec_type is MambaNoneSpec else "block_size"
    spec = spec_type(num_speculative_blocks=k, **{size: block_size})
    return row_width(deployment, spec, runner=runner, release=release(name))


@pytest.mark.parametrize(
    ("length", "block_size", "dcp", "name", "v2", "v1", "held"),
    [
        (18, 16, 2, "vllm-0.27", 1, 2, 2),
        (18, 16, 2, "vllm-0.28", 1, 2, 2),
        (130, 16, 2, "vllm-0.26", 8, 16, 9),
        (100, 48, 2, "vllm-0.26", 2, 4, 3),
        (64, 16, 2, "vllm-0.28", 2, 4, 4),
        (64, 16, 4, "vllm-0.28", 1, 4, 4),
    ],
)
def test_mamba_rows_before_029_have_the_widths_that_were_reported(
    length, block_size, dcp, name, v2, v1, held
):
    assert wide(length, block_size, dcp=dcp, name=name) == v2
    assert wide(length, block_size, dcp=dcp, name=name, runner=Runner.V1) == v1
    deployment = Deployment(max_model_len=length, decode_context_parallel_size=dcp)
    spec = MambaAlignSpec(block_size=block_size)
    assert entries(deployment, spec, max_request(deployment, release=release(name))) == held


@pytest.mark.parametrize(
    ("length", "block_size", "k", "width"),
    [(1_000_000, 768, 7, 1310), (512, 16, 0, 32), (128, 32, 3, 7), (33_824, 33_824, 16, 17)],
)
def test_a_positioned_mamba_row_holds_the_blocks_of_the_context_and_the_drafts(length, block_size, k, width):
    assert wide(length, block_size, k=k, dcp=16) == width


def test_a_mamba_row_without_prefix_caching_holds_one_state_and_the_drafts():
    assert wide(33_824, 33_824, k=16, spec_type=MambaNoneSpec) == 17


@pytest.mark.parametrize(
    ("length", "block_size", "dcp", "padded"),
    [
        (9_416, 32, 1, 296),
        (480_000, 64, 4, 1_876),
        (1_048_576, 64, 1, 16_384),
        (1_048_576, 64, 2, 8_192),
        (1_048_576, 16, 8, 8_192),
        (100, 48, 1, 8),
    ],
)
def test_an_attention_row_is_padded_to_whole_multiples_of_128_tokens(length, block_size, dcp, padded):
    deployment = Deployment(max_model_len=length, decode_context_parallel_size=dcp)
    for runner in Runner:
        assert row_width(deployment, FullAttentionSpec(block_size=block_size), runner=runner) == padded


def test_a_replicated_attention_group_is_not_divided_by_dcp():
    deployment = Deployment(max_model_len=4096, decode_context_parallel_size=4)
    spec = FullAttentionSpec(block_size=16, dcp_sharded=False)
    assert row_width(deployment, spec) == 256
    assert entries(deployment, spec, Request(num_tokens=4095)) == 256


def test_kernel_blocks_multiply_both_sides():
    deployment = Deployment(max_model_len=131_072)
    whole, split = FullAttentionSpec(block_size=64), FullAttentionSpec(block_size=64, blocks_per_kv_block=4)
    request = Request(num_tokens=100_000)
    assert row_width(deployment, split) == 4 * row_width(deployment, whole) == 8192
    assert entries(deployment, split, request) == 4 * entries(deployment, whole, request) == 4 * 1563


@pytest.mark.parametrize(
    ("inner", "length", "caching", "held", "widths"),
    [
        # A state block of the whole context, two drafts: the list has three entries.
        (
            MambaNoneSpec(mamba_block_size=64, num_speculative_blocks=2), 64, False, 3,
            {"vllm-0.26": (2, 2), "vllm-0.27": (1, 2), "vllm-0.28": (3, 2), "today": (3, 3)},
        ),
        (
            MambaAlignSpec(block_size=16, num_speculative_blocks=2), 128, True, 10,
            {"vllm-0.26": (8, 8), "vllm-0.27": (8, 8), "vllm-0.28": (10, 8), "today": (10, 10)},
        ),
    ],
)  # fmt: skip
def test_the_uniform_wrapper_lost_the_drafts_columns_as_reported(inner, length, caching, held, widths):
    deployment = Deployment(max_model_len=length, enable_prefix_caching=caching)
    spec = UniformTypeSpec(inner=inner)
    assert entries(deployment, spec, max_request(deployment)) == held
    for name, expected in widths.items():
        found = tuple(row_width(deployment, spec, runner=r, release=release(name)) for r in Runner)
        assert found == expected, name


def test_a_ring_holds_one_block_and_only_v1_pads_its_row():
    deployment, ring = Deployment(max_model_len=131_072), CircularBufferSpec(block_size=8)
    assert entries(deployment, ring, Request(num_tokens=100_000)) == 1
    assert row_width(deployment, ring, runner=Runner.V2) == 1
    assert row_width(deployment, ring, runner=Runner.V1) == 16


def test_an_encoder_longer_than_the_context_widens_the_row():
    deployment = Deployment(max_model_len=448, max_num_encoder_input_tokens=1500)
    spec = CrossAttentionSpec(block_size=16)
    request = Request(num_tokens=10, num_encoder_tokens=1500)
    assert entries(deployment, spec, request) == 94
    assert row_width(deployment, spec) == 96


def test_only_v2_looks_at_the_models_own_source_length():
    deployment = Deployment(max_model_len=448, max_source_positions=1500)
    spec = CrossAttentionSpec(block_size=16)
    assert row_width(deployment, spec, runner=Runner.V1) == 32
    assert row_width(deployment, spec, runner=Runner.V2) == 96


@pytest.mark.parametrize("kind", SPEC_KINDS)
@pytest.mark.parametrize("known", RELEASES, ids=lambda r: r.name)
def test_without_dcp_and_drafts_every_release_gives_every_spec_room(kind, known):
    caching = "mamba-none" not in kind
    values = {p.name: p.usual for p in parameters_for(kind) if p.usual is not None}
    values |= {"max_model_len": 1000, "mamba_block_size": 1000, "blocks_per_request": 5}
    values |= {"enable_prefix_caching": caching, "num_tokens": 999}
    case = build_case(kind, values)
    if kind in known.absent:
        return
    assert not broken_assumptions(case, known)
    for runner in case.spec.runners:
        needed = entries(case.deployment, case.spec, case.request, release=known)
        assert needed <= row_width(case.deployment, case.spec, runner=runner, release=known)


def test_a_padded_speculative_decode_could_reach_the_whole_context_before_029():
    deployment = Deployment(max_model_len=100, num_speculative_tokens=3)
    assert max_request(deployment).num_tokens == 99
    assert max_request(deployment, release=release("vllm-0.28")).num_tokens == 100


def test_mamba_specs_are_never_sharded():
    assert not any(hasattr(spec, "dcp_sharded") for spec in (MambaNoneSpec, MambaAlignSpec, MambaAllSpec))
    assert issubclass(MambaAllSpec, MambaSpec)
    assert TODAY.name == "today"


def test_cross_attention_reads_past_a_row_that_dcp_divided():
    """The layer maps encoder position 1499 to block 93; list and row are divided by dcp."""
    deployment = Deployment(
        max_model_len=448, decode_context_parallel_size=2, max_num_encoder_input_tokens=1500
    )
    spec, last = CrossAttentionSpec(block_size=16), Access(position=1499)
    for runner in Runner:
        assert column(deployment, spec, last, runner=runner) == 93
        assert row_width(deployment, spec, runner=runner) == 48
    with pytest.raises(IllegalDeployment) as refused:
        require_legal(deployment, spec)
    assert refused.value.assumption == "cross-attention-not-sharded"


def test_a_run_of_interleaved_tokens_may_span_kernel_blocks():
    """Block size 32 split in two, two ranks, runs of 32: position 32 is the second rank's first."""
    deployment = Deployment(max_model_len=512, decode_context_parallel_size=2, cp_kv_cache_interleave_size=32)
    spec = FullAttentionSpec(block_size=32, blocks_per_kv_block=2)
    require_legal(deployment, spec)
    for runner in Runner:
        read = [column(deployment, spec, Access(position=p), runner=runner) for p in (0, 16, 32, 48, 64)]
        assert read == [0, 1, 0, 1, 2]


def test_before_029_v2_divides_by_the_kernel_block_and_dcp():
    deployment = Deployment(max_model_len=512, decode_context_parallel_size=2)
    spec = FullAttentionSpec(block_size=64, blocks_per_kv_block=4)
    assert column(deployment, spec, Access(position=100), release="vllm-0.28") == 3


def test_026_pads_a_mamba_row_before_it_adds_the_drafts():
    assert wide(128, 16, k=3, name="vllm-0.26") == 11
    assert wide(128, 16, k=3, name="vllm-0.26", runner=Runner.V1) == 16


@pytest.mark.parametrize("name", ["vllm-0.26", "vllm-0.27", "vllm-0.28", "today"])
def test_without_prefix_caching_a_v2_mamba_row_holds_one_state_and_the_drafts(name):
    assert wide(4096, 4096, k=3, name=name, spec_type=MambaNoneSpec) == 4


def test_a_hot_regions_row_is_the_region_and_no_padding():
    assert row_width(Deployment(max_model_len=4096), HiSparseHotSpec(blocks_per_request=3)) == 3


def test_a_mamba_all_row_is_made_for_the_context_whatever_the_encoder():
    deployment = Deployment(max_model_len=512, max_num_encoder_input_tokens=4096)
    assert row_width(deployment, MambaAllSpec(block_size=16, num_speculative_blocks=1)) == 33
    assert row_width(deployment, MambaAlignSpec(block_size=16, num_speculative_blocks=1)) == 257


@pytest.mark.parametrize(
    ("spec", "first"),
    [
        (SlidingWindowSpec(block_size=16, sliding_window=128), 73),
        (ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=128), 128),
        (FullAttentionSpec(block_size=16), 0),
    ],
)
def test_a_step_can_attend_to_what_its_window_or_chunk_holds(spec, first):
    """Query 200 is the step's first: a window of 128 tokens reaches back to 73, its chunk to 128."""
    deployment = Deployment(max_model_len=512)
    request = Request(num_tokens=210, num_computed_tokens=200)
    readable = [p for p in range(512) if spec.readable(deployment, request, Access(position=p))]
    assert readable == list(range(first, 210))


def test_a_runner_may_be_named_and_nonsense_is_refused():
    deployment, spec = Deployment(max_model_len=512), CircularBufferSpec(block_size=8)
    assert row_width(deployment, spec, runner="V1") == 16
    with pytest.raises(ValueError, match="'V3' is not a valid Runner"):
        row_width(deployment, spec, runner="V3")


# --- releases before 0.29 and after 0.31 -------------------------------------------------------------


def sides(spec, name, *, runner, tokens, **deployment):
    """Return what the scheduler hands over and what the row holds."""
    asked = Deployment(**deployment)
    known = release(name)
    return (
        entries(asked, spec, Request(num_tokens=tokens), release=known),
        row_width(asked, spec, runner=runner, release=known),
    )


@pytest.mark.parametrize(
    ("spec", "runner", "held", "width"),
    [
        # 1000 tokens over 2 * 3 ranks of blocks of 16: 96 tokens to a block of the list, 11 blocks.
        (FullAttentionSpec(block_size=16), Runner.V1, 11, 16),
        (FullAttentionSpec(block_size=16, blocks_per_kv_block=2), Runner.V1, 22, 32),
        # V2 divides by dcp alone: 1000 / 32 is 32 blocks.
        (FullAttentionSpec(block_size=16), Runner.V2, 11, 32),
        # The wrapper around attention is divided alike.
        (UniformTypeSpec(inner=FullAttentionSpec(block_size=16)), Runner.V1, 11, 16),
    ],
)
def test_025_spreads_attention_over_all_context_parallel_ranks(spec, runner, held, width):
    found = sides(
        spec, "vllm-0.25", runner=runner, tokens=999, max_model_len=1000,
        decode_context_parallel_size=2, prefill_context_parallel_size=3,
    )  # fmt: skip
    assert found == (held, width)


def test_025_spreads_recurrent_state_on_both_sides_where_026_spreads_the_row_alone():
    """512 tokens, dcp 2, a request of 257: 9 blocks of 32 tokens for a row of 16; 0.26 hands over 17."""
    spec, sizes = MambaAlignSpec(block_size=16), {"max_model_len": 512, "decode_context_parallel_size": 2}
    assert sides(spec, "vllm-0.25", runner=Runner.V2, tokens=257, **sizes) == (9, 16)
    assert sides(spec, "vllm-0.25", runner=Runner.V1, tokens=257, **sizes) == (9, 16)
    assert sides(spec, "vllm-0.26", runner=Runner.V2, tokens=257, **sizes) == (17, 16)
    assert sides(spec, "vllm-0.26", runner=Runner.V1, tokens=257, **sizes) == (17, 32)


def test_025_v1_pads_a_mamba_row_after_it_adds_the_drafts_and_v2_before():
    spec = MambaAlignSpec(block_size=16, num_speculative_blocks=3)
    assert sides(spec, "vllm-0.25", runner=Runner.V1, tokens=128, max_model_len=128) == (11, 16)
    assert sides(spec, "vllm-0.25", runner=Runner.V2, tokens=128, max_model_len=128) == (11, 11)


@pytest.mark.parametrize(
    ("inner", "length", "caching", "held"),
    [
        (MambaNoneSpec(mamba_block_size=64, num_speculative_blocks=2), 64, False, (3, 2)),
        (MambaAlignSpec(block_size=16, num_speculative_blocks=2), 128, True, (10, 8)),
    ],
)
def test_025s_wrapper_has_no_room_for_the_drafts_on_either_runner(inner, length, caching, held):
    for runner in Runner:
        found = sides(
            UniformTypeSpec(inner=inner), "vllm-0.25", runner=runner, tokens=length, max_model_len=length,
            enable_prefix_caching=caching,
        )  # fmt: skip
        assert found == held


@pytest.mark.parametrize("name", [known.name for known in RELEASES if known.name != "vllm-0.25"])
@pytest.mark.parametrize("runner", list(Runner))
def test_only_025_reads_the_prefill_context_parallel_size(name, runner):
    for spec in (FullAttentionSpec(block_size=16), MambaAlignSpec(block_size=16)):
        one, four = (
            sides(spec, name, runner=runner, tokens=999, max_model_len=1000, prefill_context_parallel_size=n)
            for n in (1, 4)
        )
        assert one == four


def test_025_v1_reads_the_column_of_a_position_among_all_ranks():
    """Kernel blocks of 16 on 2 * 3 ranks: 96 positions to a column."""
    deployment = Deployment(
        max_model_len=1000, decode_context_parallel_size=2, prefill_context_parallel_size=3
    )
    spec = FullAttentionSpec(block_size=32, blocks_per_kv_block=2)
    read = {
        runner: [
            column(deployment, spec, Access(position=p), runner=runner, release="vllm-0.25")
            for p in (0, 95, 96, 999)
        ]
        for runner in Runner
    }
    assert read[Runner.V1] == [0, 0, 1, 10]
    assert read[Runner.V2] == [0, 2, 3, 31]


@pytest.mark.parametrize(("name", "factor"), [("vllm-0.31", 4), ("vllm-0.32", 1), ("vllm-0.33", 1)])
def test_rows_hold_kernel_blocks_up_to_031_and_manager_blocks_since(name, factor):
    """64 tokens to a manager block: 100 000 tokens take 1563 of them, the row of 131 072 holds 2048."""
    spec = FullAttentionSpec(block_size=64, blocks_per_kv_block=4)
    for runner in Runner:
        found = sides(spec, name, runner=runner, tokens=100_000, max_model_len=131_072)
        assert found == (1563 * factor, 2048 * factor)
        read = column(
            Deployment(max_model_len=131_072), spec, Access(position=99_999), runner=runner, release=name
        )
        assert read == (6249 if factor == 4 else 1562)
        wrapped = sides(
            UniformTypeSpec(inner=spec), name, runner=runner, tokens=100_000, max_model_len=131_072
        )
        assert wrapped == found


def test_030_maps_a_pooled_tail_by_position_and_031_does_not():
    """Blocks of 4 tokens: the padded row has 32 columns, which positions leave from 128 on."""
    deployment, spec = Deployment(max_model_len=4096), KpoolTailSpec(block_size=4)
    for name, last, beyond in (("vllm-0.30", 31, 32), ("vllm-0.31", 0, 0)):
        assert row_width(deployment, spec, release=name) == 32
        assert entries(deployment, spec, Request(num_tokens=4000), release=name) == 1
        assert column(deployment, spec, Access(position=127), release=name) == last
        assert column(deployment, spec, Access(position=128), release=name) == beyond


def test_blocks_that_are_larger_than_the_alignment_are_not_padded_in_026():
    """Three blocks of 256 hold 600 tokens; the newer padding takes the common divisor, which is 128 too."""
    deployment, spec = Deployment(max_model_len=600), FullAttentionSpec(block_size=256)
    for runner in Runner:
        assert row_width(deployment, spec, runner=runner, release="vllm-0.26") == 3
        assert row_width(deployment, spec, runner=runner, release="vllm-0.33") == 3


@pytest.mark.parametrize("name", ["vllm-0.25", "vllm-0.26", "vllm-0.27", "vllm-0.28"])
def test_v1_sizes_no_row_for_the_models_source_length(name):
    """160 tokens are 10 blocks of 16, 16 once padded to 128 tokens; 1500 would be 94."""
    deployment = Deployment(max_model_len=160, max_source_positions=1500)
    widths = {
        "full-attention": 16,
        "mamba-align": 10 if name in ("vllm-0.27", "vllm-0.28") else 16,
        "uniform-full-attention": 16,
        "uniform-mamba-align": 10 if name in ("vllm-0.27", "vllm-0.28") else 16,
    }
    for kind, width in widths.items():
        spec = build_case(kind, {"max_model_len": 160, "num_tokens": 1, "block_size": 16}).spec
        assert row_width(deployment, spec, runner=Runner.V1, release=name) == width, kind


def test_025_spreads_a_state_without_prefix_caching_like_any_other():
    """100 tokens, a state per 32 on each of two ranks: two, and the draft's."""
    deployment = Deployment(max_model_len=200, prefill_context_parallel_size=2, enable_prefix_caching=False)
    spec = MambaNoneSpec(mamba_block_size=32, num_speculative_blocks=1)
    assert entries(deployment, spec, Request(num_tokens=100), release="vllm-0.25") == 3
    assert entries(deployment, spec, Request(num_tokens=100), release="vllm-0.26") == 5


@pytest.mark.parametrize(
    ("name", "spec", "v1", "v2"),
    [
        # Position 100 of two ranks is the 51st of rank 0: column 3. Divided at once it is in 32nds, also 3;
        # a group that is not sharded has it in column 6, except on V1.
        ("vllm-0.25", FullAttentionSpec(block_size=16), 1, 3),
        ("vllm-0.28", FullAttentionSpec(block_size=16), 3, 3),
        ("vllm-0.28", FullAttentionSpec(block_size=16, dcp_sharded=False), 3, 6),
        ("vllm-0.30", FullAttentionSpec(block_size=16), 3, 3),
        ("vllm-0.30", FullAttentionSpec(block_size=16, dcp_sharded=False), 3, 6),
        ("vllm-0.25", CrossAttentionSpec(block_size=16), 6, 6),
        ("vllm-0.28", CrossAttentionSpec(block_size=16), 6, 6),
        ("vllm-0.30", CrossAttentionSpec(block_size=16), 6, 6),
        ("vllm-0.25", MambaAlignSpec(block_size=16), 8, 8),
        ("vllm-0.28", MambaAlignSpec(block_size=16), 8, 8),
        ("vllm-0.30", MambaAlignSpec(block_size=16), 8, 8),
    ],
)
def test_a_column_of_an_older_release_goes_by_the_runner_and_the_type(name, spec, v1, v2):
    """With pcp 2 the four ranks of V1 in 0.25 have 64 tokens to a column; a state adds itself."""
    deployment = Deployment(
        max_model_len=512, decode_context_parallel_size=2, prefill_context_parallel_size=2
    )
    access = Access(position=100, state=2)
    read = [column(deployment, spec, access, runner=runner, release=name) for runner in Runner]
    assert read == [v1, v2]


def test_030_divides_a_pooled_tails_position_by_dcp():
    deployment, spec = (
        Deployment(max_model_len=4096, decode_context_parallel_size=2),
        KpoolTailSpec(block_size=4),
    )
    read = column(deployment, spec, Access(position=127), release="vllm-0.30")
    assert (read, type(read)) == (15, int)


@pytest.mark.parametrize("runner", list(Runner))
@pytest.mark.parametrize(
    ("name", "held"), [("vllm-0.28", 5), ("vllm-0.29", 9), ("vllm-0.30", 9), ("vllm-0.31", 5)]
)
def test_029_and_030_list_every_block_of_chunked_local_attention_on_each_rank(runner, name, held):
    """129 tokens in blocks of 16 on two ranks: what these releases' own KVCacheManagers and tables made."""
    spec = ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=128)
    sizes = {"max_model_len": 130, "decode_context_parallel_size": 2}
    assert sides(spec, name, runner=runner, tokens=129, **sizes) == (held, 8)
    full = FullAttentionSpec(block_size=16)
    assert sides(full, name, runner=runner, tokens=129, **sizes) == (5, 8)
    wrapped = UniformTypeSpec(inner=full)
    assert sides(wrapped, name, runner=runner, tokens=129, **sizes) == (5, 8)
    ring = MambaAlignSpec(block_size=16)
    assert sides(ring, name, runner=Runner.V1, tokens=129, **sizes)[0] == 9


ALIGNED, SHARDED = ("block_table_token_alignment", 128), ("dcp_sharded", True)


@pytest.mark.parametrize(
    ("name", "description", "constants", "absent", "splits"),
    [
        ("today", "vLLM 0.29 to 0.33, gaps closed", [], 0, True),
        ("vllm-0.33", "vLLM 0.33.0", [ALIGNED], 4, False),
        ("vllm-0.32", "vLLM 0.32.0", [ALIGNED], 4, False),
        ("vllm-0.31", "vLLM 0.31.0", [ALIGNED], 0, True),
        ("vllm-0.30", "vLLM 0.30.0", [ALIGNED, SHARDED], 0, True),
        ("vllm-0.29", "vLLM 0.29.0", [ALIGNED, SHARDED], 6, True),
        ("vllm-0.28", "vLLM 0.28.0", [ALIGNED, SHARDED], 8, True),
        ("vllm-0.27", "vLLM 0.27.1", [ALIGNED, SHARDED], 8, True),
        ("vllm-0.26", "vLLM 0.26.0", [ALIGNED, SHARDED], 8, True),
        ("vllm-0.25", "vLLM 0.25.1", [ALIGNED, SHARDED], 8, True),
    ],
)
def test_a_release_is_described_with_what_it_fixes_and_lacks(name, description, constants, absent, splits):
    """A type that is absent is so in its wrapper too, which makes two names."""
    releases = anew("releases").RELEASES
    assert len(releases) == 10
    (known,) = [known for known in releases if known.name == name]
    assert (known.description, list(known.constants.items())) == (description, constants)
    assert (len(known.absent), known.rows_hold_kernel_blocks) == (absent, splits)
    assert {f"uniform-{kind}" for kind in known.absent if "uniform" not in kind} == {
        kind for kind in known.absent if "uniform" in kind
    }


def test_a_release_built_anew_computes_as_it_should():
    """Its own width, column, entries and longest request: those of 0.25, with dcp 2 and pcp 2."""
    known = next(known for known in anew("releases").RELEASES if known.name == "vllm-0.25")
    deployment = Deployment(
        max_model_len=512, decode_context_parallel_size=2, prefill_context_parallel_size=2,
        num_speculative_tokens=1,
    )  # fmt: skip
    spec = FullAttentionSpec(block_size=16)
    assert entries(deployment, spec, Request(num_tokens=65), release=known) == 2
    assert row_width(deployment, spec, runner=Runner.V1, release=known) == 8
    assert column(deployment, spec, Access(position=64), runner=Runner.V1, release=known) == 1
    assert max_request(deployment, release=known).num_tokens == 512


@pytest.mark.parametrize("name", ["vllm-0.26", "vllm-0.33", "today"])
def test_a_width_is_exact_where_a_binary_fraction_would_round_it(name):
    """8 * 10**17 + 8 blocks of 16 tokens are a multiple of 128 tokens, and no double."""
    blocks = 8 * 10**17 + 8
    deployment, spec = Deployment(max_model_len=16 * blocks), FullAttentionSpec(block_size=16)
    assert row_width(deployment, spec, release=name) == blocks
    assert entries(deployment, spec, max_request(deployment), release=name) == blocks
    assert column(deployment, spec, Access(position=16 * blocks - 1), release=name) == blocks - 1
