"""Illegal deployments are refused by the name of the rule that they break."""

import pytest

from invariants import (
    SPEC_KINDS,
    CircularBufferSpec,
    Deployment,
    FullAttentionSpec,
    IllegalDeployment,
    MambaAlignSpec,
    MambaNoneSpec,
    Request,
    UniformTypeSpec,
    release,
    require_legal,
)
from invariants.specs import CrossAttentionSpec, HiSparseHotSpec, MLAAttentionSpec, SlidingWindowMLASpec

ATTENTION = FullAttentionSpec(block_size=16)


@pytest.mark.parametrize(
    ("deployment", "spec", "request_", "name", "message"),
    [
        ({"max_model_len": 0}, ATTENTION, None, "sizes", "max_model_len must be at least 1, not 0"),
        ({"max_model_len": -5}, ATTENTION, None, "sizes", "max_model_len must be at least 1, not -5"),
        ({"max_model_len": "512"}, ATTENTION, None, "sizes", "must be a whole number, not '512'"),
        ({"max_model_len": 5.0}, ATTENTION, None, "sizes", "must be a whole number, not 5.0"),
        ({"max_model_len": True}, ATTENTION, None, "sizes", "must be a whole number, not True"),
        ({"enable_prefix_caching": 1}, ATTENTION, None, "sizes", "must be true or false, not 1"),
        ({"num_sampled_tokens": 2}, ATTENTION, None, "sizes", "must be at most 1, not 2"),
        ({}, FullAttentionSpec(block_size=0), None, "sizes", "block_size must be at least 1, not 0"),
        ({}, FullAttentionSpec(block_size=16, blocks_per_kv_block=3), None, "kernel-blocks-divide",
         "whole kernel blocks"),
        ({"cp_kv_cache_interleave_size": 3, "decode_context_parallel_size": 2}, ATTENTION, None,
         "interleave-divides", "cp_kv_cache_interleave_size=3"),
        ({"enable_prefix_caching": False}, MambaAlignSpec(block_size=16), None, "cache-mode",
         "prefix caching"),
        ({}, MambaNoneSpec(mamba_block_size=4096), None, "cache-mode", "prefix caching"),
        ({"enable_prefix_caching": False}, MambaNoneSpec(mamba_block_size=511), None,
         "state-block-covers-context", "mamba_block_size=511"),
        ({}, ATTENTION, Request(num_tokens=512), "request-within-context", "num_tokens=512"),
        ({}, ATTENTION, Request(num_tokens=0), "sizes", "num_tokens must be at least 1, not 0"),
        ({}, ATTENTION, Request(num_tokens=5, num_computed_tokens=5), "request-within-context",
         "at least one token"),
        ({}, CrossAttentionSpec(block_size=16), Request(num_tokens=5, num_encoder_tokens=1),
         "encoder-within-budget", "max_num_encoder_input_tokens"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_refused_by_its_name(deployment, spec, request_, name, message):
    with pytest.raises(IllegalDeployment, match=message) as refused:
        require_legal(Deployment(**{"max_model_len": 512, **deployment}), spec, request_)
    assert refused.value.assumption == name
    assert "\n" not in str(refused.value)


def test_a_refusal_names_every_value_that_is_not_the_usual_one_and_none_of_a_request_that_nobody_gave():
    deployment = Deployment(max_model_len=512, num_lookahead_tokens=3)
    spec = FullAttentionSpec(block_size=16, blocks_per_kv_block=3)
    said = "full-attention: a manager block is split into whole kernel blocks; this is not so for "
    sizes = "max_model_len=512, decode_context_parallel_size=1, num_lookahead_tokens=3, blocks_per_kv_block=3"
    for request, values in ((None, sizes), (Request(num_tokens=5), f"{sizes}, num_tokens=5")):
        with pytest.raises(IllegalDeployment) as refused:
            require_legal(deployment, spec, request)
        assert str(refused.value) == said + values


def test_a_context_without_room_for_a_request_hides_no_other_mistake():
    """A context of one leaves no token to compute, but nobody asked about a request."""
    with pytest.raises(IllegalDeployment, match="whole kernel blocks"):
        require_legal(Deployment(max_model_len=1), FullAttentionSpec(block_size=16, blocks_per_kv_block=3))


def test_a_wrapper_is_held_to_its_layers_rules():
    with pytest.raises(IllegalDeployment, match="block_size must be at least 1"):
        require_legal(Deployment(max_model_len=512), UniformTypeSpec(inner=FullAttentionSpec(block_size=-1)))


@pytest.mark.parametrize("length", [1, 2, 10**18])
def test_legal_deployments_pass_at_every_size(length):
    require_legal(Deployment(max_model_len=length), ATTENTION)
    require_legal(Deployment(max_model_len=length), MambaAlignSpec(block_size=48))


def test_an_unknown_release_lists_those_that_there_are():
    with pytest.raises(
        KeyError, match=r"no release is named 'vllm-9'; there are today, vllm-0\.33, vllm-0\.32"
    ):
        release("vllm-9")


def test_interleaving_matters_under_dcp_alone():
    require_legal(Deployment(max_model_len=512, cp_kv_cache_interleave_size=64), ATTENTION)


def test_a_wrapper_around_any_layer_type_can_be_checked():
    for layer in (MLAAttentionSpec, SlidingWindowMLASpec, CrossAttentionSpec):
        fields = {"sliding_window": 128} if layer is SlidingWindowMLASpec else {}
        require_legal(Deployment(max_model_len=512), UniformTypeSpec(inner=layer(block_size=16, **fields)))


@pytest.mark.parametrize(
    ("deployment", "spec", "message"),
    [
        ({}, HiSparseHotSpec(blocks_per_request=3), "has no hisparse-hot groups"),
        ({}, FullAttentionSpec(block_size=16, dcp_sharded=False), "fixes dcp_sharded at True, not False"),
        ({"block_table_token_alignment": 1}, ATTENTION, "fixes block_table_token_alignment at 128, not 1"),
    ],
)
def test_what_a_release_does_not_have_is_refused_there(deployment, spec, message):
    legal = Deployment(max_model_len=512, **deployment)
    require_legal(legal, spec)
    with pytest.raises(IllegalDeployment, match=message) as refused:
        require_legal(legal, spec, release="vllm-0.28")
    assert refused.value.assumption == "release"


@pytest.mark.parametrize(
    ("spec", "deployment", "name"),
    [
        (CrossAttentionSpec(block_size=16), {"prefill_context_parallel_size": 2},
         "one-group-under-context-parallelism"),
        (MambaAlignSpec(block_size=16), {"decode_context_parallel_size": 2},
         "no-prefix-search-under-context-parallelism"),
        (SlidingWindowMLASpec(block_size=16, sliding_window=128), {"prefill_context_parallel_size": 2},
         "no-prefix-search-under-context-parallelism"),
        (UniformTypeSpec(inner=MambaAlignSpec(block_size=16)), {"prefill_context_parallel_size": 2},
         "no-prefix-search-under-context-parallelism"),
    ],
)  # fmt: skip
def test_025_alone_refuses_context_parallelism_where_its_scheduler_does(spec, deployment, name):
    asked = Deployment(max_model_len=512, **deployment)
    with pytest.raises(IllegalDeployment) as refused:
        require_legal(asked, spec, release="vllm-0.25")
    assert refused.value.assumption == name
    require_legal(Deployment(max_model_len=512), spec, release="vllm-0.25")
    require_legal(asked, spec, release="vllm-0.26")


@pytest.mark.parametrize("name", ["vllm-0.29", "vllm-0.30"])
def test_029_and_030_alone_refuse_a_window_under_dcp(name):
    spec = SlidingWindowMLASpec(block_size=16, sliding_window=128)
    asked = Deployment(max_model_len=512, decode_context_parallel_size=2)
    with pytest.raises(IllegalDeployment) as refused:
        require_legal(asked, spec, release=name)
    assert refused.value.assumption == "window-without-dcp"
    require_legal(Deployment(max_model_len=512, prefill_context_parallel_size=2), spec, release=name)
    require_legal(asked, spec, release="vllm-0.28")
    require_legal(asked, spec, release="vllm-0.31")
    require_legal(asked, FullAttentionSpec(block_size=16), release=name)


def test_025_serves_a_window_under_context_parallelism_while_nothing_is_looked_up():
    spec = SlidingWindowMLASpec(block_size=16, sliding_window=128)
    deployment = Deployment(max_model_len=512, prefill_context_parallel_size=2, enable_prefix_caching=False)
    require_legal(deployment, spec, release="vllm-0.25")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("vllm-0.25", {"circular-buffer", "kpool-tail", "hisparse-hot", "hisparse-resident"}),
        ("vllm-0.28", {"circular-buffer", "kpool-tail", "hisparse-hot", "hisparse-resident"}),
        ("vllm-0.29", {"kpool-tail", "hisparse-hot", "hisparse-resident"}),
        ("vllm-0.30", set()),
        ("vllm-0.31", set()),
        ("vllm-0.32", {"kpool-tail", "mamba-all", "uniform-mamba-all"}),
        ("vllm-0.33", {"kpool-tail", "mamba-all", "uniform-mamba-all"}),
    ],
)
def test_a_release_lacks_the_spec_types_that_its_source_lacks(name, kinds):
    assert release(name).absent & set(SPEC_KINDS) == kinds


def test_a_wrapper_around_what_a_release_lacks_is_refused_too():
    wrapped = UniformTypeSpec(inner=CircularBufferSpec(block_size=8))
    require_legal(Deployment(max_model_len=512), wrapped, release="vllm-0.29")
    with pytest.raises(IllegalDeployment, match="has no uniform-circular-buffer groups"):
        require_legal(Deployment(max_model_len=512), wrapped, release="vllm-0.28")


@pytest.mark.parametrize(("name", "fixed"), [("vllm-0.30", True), ("vllm-0.31", False)])
def test_a_group_may_be_left_out_of_dcp_from_031_on(name, fixed):
    replicated = FullAttentionSpec(block_size=16, dcp_sharded=False)
    if not fixed:
        require_legal(Deployment(max_model_len=512), replicated, release=name)
        return
    with pytest.raises(IllegalDeployment, match=f"{name} fixes dcp_sharded at True"):
        require_legal(Deployment(max_model_len=512), replicated, release=name)
