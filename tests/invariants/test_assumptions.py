"""Illegal deployments are refused by the name of the rule that they break."""

import pytest

from invariants import (
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


def test_a_wrapper_is_held_to_its_layers_rules():
    with pytest.raises(IllegalDeployment, match="block_size must be at least 1"):
        require_legal(Deployment(max_model_len=512), UniformTypeSpec(inner=FullAttentionSpec(block_size=-1)))


@pytest.mark.parametrize("length", [1, 2, 10**18])
def test_legal_deployments_pass_at_every_size(length):
    require_legal(Deployment(max_model_len=length), ATTENTION)
    require_legal(Deployment(max_model_len=length), MambaAlignSpec(block_size=48))


def test_an_unknown_release_lists_those_that_there_are():
    with pytest.raises(KeyError, match=r"no release is named 'vllm-9'; there are today, vllm-0\.28"):
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
