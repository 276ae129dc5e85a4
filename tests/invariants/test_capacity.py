"""What the searches over one deployment find, against looking at every request and every access."""

import pytest

from invariants import (
    SPEC_KINDS,
    Access,
    Deployment,
    FirstFailure,
    FullAttentionSpec,
    HiSparseResidentSpec,
    MambaAlignSpec,
    Request,
    Runner,
    SlidingWindowSpec,
    UniformTypeSpec,
    build_case,
    column,
    entries,
    entries_needed,
    first_outside,
    first_overflow,
    largest_access,
    max_request,
    row_width,
)

DEPLOYMENTS = (
    Deployment(max_model_len=13, num_lookahead_tokens=2, max_num_encoder_input_tokens=9),
    Deployment(
        max_model_len=14, decode_context_parallel_size=3, cp_kv_cache_interleave_size=2,
        max_num_encoder_input_tokens=17, num_sampled_tokens=0,
    ),
    Deployment(max_model_len=21, decode_context_parallel_size=2, enable_prefix_caching=False),
)  # fmt: skip
SIZES = {
    "block_size": 4, "blocks_per_kv_block": 2, "num_speculative_blocks": 2, "mamba_block_size": 21,
    "blocks_per_request": 3, "sliding_window": 3, "attention_chunk_size": 4, "rswa_window": 5,
}  # fmt: skip


def spec_of(kind):
    return build_case(kind, {"max_model_len": 1, "num_tokens": 1, **SIZES}).spec


def decoder_requests(deployment):
    return [Request(num_tokens=n) for n in range(1, max_request(deployment).num_tokens + 1)]


def encoder_requests(deployment):
    longest = max_request(deployment).num_tokens
    most = deployment.max_num_encoder_input_tokens
    return [Request(num_tokens=longest, num_encoder_tokens=n) for n in range(most + 1)]


def columns_read(deployment, spec, request, runner):
    layer = getattr(spec, "inner", spec)
    if runner not in layer.column_runners:
        return {}
    accesses = [Access(position=p, state=s) for p in range(-1, 40) for s in range(8) if p >= 0]
    return {
        access: column(deployment, spec, access, runner=runner)
        for access in accesses
        if spec.readable(deployment, request, access)
    }


def first_by_looking(deployment, fails):
    """Count decoder tokens up; only then, with as many as there are, encoder tokens."""
    for request in decoder_requests(deployment):
        if fails(request):
            return FirstFailure(request.num_tokens)
    for request in encoder_requests(deployment):
        if fails(request):
            return FirstFailure(request.num_encoder_tokens, of_encoder=True)
    return None


each_kind = pytest.mark.parametrize("kind", SPEC_KINDS)
each_deployment = pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=["drafts", "interleaved", "sharded"])


@each_kind
@each_deployment
def test_no_request_needs_more_entries_than_are_said_to_be_needed_and_one_needs_as_many(kind, deployment):
    spec = spec_of(kind)
    requests = decoder_requests(deployment) + encoder_requests(deployment)
    assert entries_needed(deployment, spec) == max(entries(deployment, spec, r) for r in requests)


@each_kind
@each_deployment
def test_the_first_overflow_is_the_first_request_that_a_count_upwards_meets(kind, deployment):
    spec = spec_of(kind)
    for width in range(entries_needed(deployment, spec) + 1):
        found = first_overflow(deployment, spec, width)
        assert found == first_by_looking(deployment, lambda r, w=width: entries(deployment, spec, r) > w)


@each_kind
@each_deployment
@pytest.mark.parametrize("runner", Runner)
def test_the_largest_access_is_the_largest_of_all(kind, deployment, runner):
    spec, request = spec_of(kind), max_request(deployment)
    read = columns_read(deployment, spec, request, runner)
    found = largest_access(deployment, spec, request, runner=runner)
    if found is None:
        assert not read
        return
    assert read[found] == max(read.values())
    assert found.state == min(a.state for a, at in read.items() if at == read[found])


@each_kind
@each_deployment
@pytest.mark.parametrize("runner", Runner)
def test_the_first_read_outside_is_the_first_that_a_count_upwards_meets(kind, deployment, runner):
    spec = spec_of(kind)

    def leaves(request, width):
        read = columns_read(deployment, spec, request, runner).values()
        return any(at >= width for at in read)

    for width in (0, 1, row_width(deployment, spec, runner=runner) // 2, 100):
        found = first_outside(deployment, spec, width, runner=runner)
        assert found == first_by_looking(deployment, lambda r, w=width: leaves(r, w))


def test_a_request_in_the_middle_of_its_life_is_read_as_if_all_of_it_were_computed_now():
    deployment, spec = Deployment(max_model_len=64), spec_of("sliding-window")
    late = Request(num_tokens=40, num_computed_tokens=39)
    early = largest_access(deployment, spec, late)
    assert early == largest_access(deployment, spec, Request(num_tokens=40))
    assert early.position == 39


def test_searches_take_a_release_and_use_its_formulas():
    """At 512 tokens with dcp 2 in vLLM 0.28, 257 tokens overflow a row of 16, and column 16 is read."""
    deployment, spec = (
        Deployment(max_model_len=512, decode_context_parallel_size=2),
        MambaAlignSpec(block_size=16),
    )
    width = row_width(deployment, spec, release="vllm-0.28")
    assert width == 16
    assert entries_needed(deployment, spec, release="vllm-0.28") == 32
    assert first_overflow(deployment, spec, width, release="vllm-0.28") == FirstFailure(257)
    assert first_outside(deployment, spec, width, release="vllm-0.28") == FirstFailure(257)


def test_a_release_before_029_lets_a_speculative_request_reach_the_last_token():
    """Seventeen tokens start a second block of 16; today the last of them is left to be sampled."""
    deployment = Deployment(max_model_len=17, num_speculative_tokens=1)
    spec = MambaAlignSpec(block_size=16)
    assert entries_needed(deployment, spec) == 1
    assert entries_needed(deployment, spec, release="vllm-0.28") == 2
    assert first_overflow(deployment, spec, 1) is None
    assert first_overflow(deployment, spec, 1, release="vllm-0.28") == FirstFailure(17)
    assert first_outside(deployment, spec, 1) is None
    assert first_outside(deployment, spec, 1, release="vllm-0.28") == FirstFailure(17)
    last = max_request(deployment, release="vllm-0.28")
    assert largest_access(deployment, spec, last, release="vllm-0.28").position == 16


def test_the_column_of_a_release_decides_which_access_is_the_largest():
    """Under dcp 2 a row of one block of 16 lasts for 32 positions; V1 shards a group that says it is not."""
    deployment = Deployment(max_model_len=41, decode_context_parallel_size=2, cp_kv_cache_interleave_size=16)
    spec = FullAttentionSpec(block_size=16, dcp_sharded=True)
    assert first_outside(deployment, spec, 1, release="vllm-0.28") == FirstFailure(33)
    assert first_outside(deployment, spec, 1, runner=Runner.V1) == FirstFailure(33)
    unsharded = FullAttentionSpec(block_size=16, dcp_sharded=False)
    assert first_outside(deployment, unsharded, 1) == FirstFailure(17)
    assert first_outside(deployment, unsharded, 1, runner=Runner.V1) == FirstFailure(33)


def test_the_failing_request_is_the_largest_one_with_its_tokens_or_its_encoder_tokens_replaced():
    largest = Request(num_tokens=31, num_encoder_tokens=7, reads_host_history=False)
    assert FirstFailure(5).request(largest) == Request(num_tokens=5, reads_host_history=False)
    assert FirstFailure(5, of_encoder=True).request(largest) == Request(
        num_tokens=31, num_encoder_tokens=5, reads_host_history=False
    )


@pytest.mark.parametrize("runner", Runner)
@pytest.mark.parametrize("dcp_sharded", [True, False])
@pytest.mark.parametrize("num_tokens", range(1, 24))
def test_the_run_before_the_last_one_is_looked_at_where_it_reaches_further_into_its_block(
    runner, dcp_sharded, num_tokens
):
    """With kernel blocks of one token, position 3 is column 3 of rank 0, position 4 column 0 of rank 1."""
    deployment = Deployment(max_model_len=24, decode_context_parallel_size=2, cp_kv_cache_interleave_size=4)
    spec = FullAttentionSpec(block_size=4, blocks_per_kv_block=4, dcp_sharded=dcp_sharded)
    request = Request(num_tokens=num_tokens)
    read = columns_read(deployment, spec, request, runner)
    assert read[largest_access(deployment, spec, request, runner=runner)] == max(read.values())


def test_the_formulas_of_the_release_decide_which_run_reaches_further():
    """Version 0.28 divides by dcp at once: position 4 is column 2 and position 3 column 1."""
    deployment = Deployment(max_model_len=9, decode_context_parallel_size=2, cp_kv_cache_interleave_size=4)
    spec, request = FullAttentionSpec(block_size=4, blocks_per_kv_block=4), Request(num_tokens=5)
    assert largest_access(deployment, spec, request).position == 3
    assert largest_access(deployment, spec, request, release="vllm-0.28").position == 4
    assert first_outside(deployment, spec, 2, release="vllm-0.28") == FirstFailure(5)


def test_a_release_that_divides_by_prefill_ranks_is_searched_by_its_own_lists_and_columns():
    """Version 0.25 spreads a block of 16 over two ranks, so that 33 tokens start a second one."""
    deployment = Deployment(max_model_len=65, prefill_context_parallel_size=2)
    mamba, attention = MambaAlignSpec(block_size=16), FullAttentionSpec(block_size=16)
    assert entries_needed(deployment, mamba, release="vllm-0.25") == 2
    assert first_overflow(deployment, mamba, 1, release="vllm-0.25") == FirstFailure(33)
    assert first_outside(deployment, attention, 1, runner=Runner.V1, release="vllm-0.25") == FirstFailure(33)
    assert first_outside(deployment, attention, 1, runner=Runner.V1) == FirstFailure(17)


def test_a_window_of_one_token_reads_a_request_of_one_token():
    spec = SlidingWindowSpec(block_size=16, sliding_window=1)
    assert largest_access(Deployment(max_model_len=4), spec, Request(num_tokens=1)).position == 0


def test_a_wrapper_is_read_on_the_runners_that_read_what_it_wraps():
    spec, request = UniformTypeSpec(inner=HiSparseResidentSpec(block_size=16)), Request(num_tokens=20)
    deployment = Deployment(max_model_len=64)
    assert largest_access(deployment, spec, request, runner=Runner.V1) is None
    assert largest_access(deployment, spec, request, runner=Runner.V2).position == 19
