"""Hypothesis strategies for legal deployments, specs, requests and block lists.

They are for property tests of a scheduler or a worker: draw what an engine may be asked to serve, run
your own code on it, and compare with `entries` and `row_width`. Everything drawn keeps every named
assumption. This is the one module of the package that needs Hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from invariants.assumptions import broken_assumptions
from invariants.cases import SPEC_KINDS, Case, build_case, parameters_for
from invariants.deployment import Access, Deployment, Request
from invariants.parameters import Parameter
from invariants.releases import TODAY, Release, entries, max_num_tokens
from invariants.specs import Spec, UniformTypeSpec

__all__ = ["block_lists", "cases", "deployments", "requests", "specs"]

_INTERLEAVES = (1, 2, 4, 8, 16)
_ALIGNMENTS = (1, 16, 64, 128, 256)
_SMALL = 8
_NEEDS_PREFIX_CACHING = {"mamba-align", "mamba-all", "uniform-mamba-align", "uniform-mamba-all"}
_NEEDS_NO_PREFIX_CACHING = {"mamba-none", "uniform-mamba-none"}
_ON_ONE_RANK = {"cross-attention"}
_ON_ONE_RANK_IF_CACHED = {"sliding-window", "sliding-window-mla", "chunked-local", *_NEEDS_PREFIX_CACHING}
"""Kinds that vLLM 0.25 serves on one context-parallel rank alone, always or with prefix caching."""
_WINDOWS = {"sliding-window", "sliding-window-mla"}
"""Kinds that vLLM 0.29 and 0.30 serve without dcp alone."""


@st.composite
def deployments(draw: st.DrawFn, *, max_model_len: int = 4096, release: Release = TODAY) -> Deployment:
    """Draw a legal deployment of at most this context length, in tokens."""
    length = draw(st.integers(2, max_model_len), label="max_model_len")
    has_encoder = draw(st.booleans(), label="has an encoder")
    return Deployment(
        max_model_len=length,
        decode_context_parallel_size=draw(st.integers(1, _SMALL), label="dcp"),
        cp_kv_cache_interleave_size=draw(st.sampled_from(_INTERLEAVES), label="interleave"),
        num_lookahead_tokens=draw(st.integers(0, _SMALL), label="lookahead"),
        num_speculative_tokens=draw(st.integers(0, _SMALL), label="speculative tokens"),
        num_sampled_tokens=draw(st.integers(0, 1), label="sampled tokens"),
        enable_prefix_caching=draw(st.booleans(), label="prefix caching"),
        max_num_encoder_input_tokens=draw(st.integers(1, 2 * length)) if has_encoder else 0,
        max_source_positions=draw(st.integers(0, 2 * length)) if has_encoder else 0,
        block_table_token_alignment=int(
            release.constants.get("block_table_token_alignment", 0)
            or draw(st.sampled_from(_ALIGNMENTS), label="alignment")
        ),
        prefill_context_parallel_size=draw(st.integers(1, _SMALL), label="pcp"),
    )


@st.composite
def specs(
    draw: st.DrawFn,
    deployment: Deployment,
    *,
    kinds: Collection[str] = SPEC_KINDS,
    release: Release = TODAY,
) -> Spec:
    """Draw a spec of one of the kinds that is legal in the deployment."""
    unfit = _unfit(deployment, release)
    kind = draw(st.sampled_from([k for k in kinds if k not in unfit | release.absent]), label="kind")
    values = {**release.constants, "max_model_len": deployment.max_model_len}
    for parameter in parameters_for(kind):
        if parameter.name not in values:
            values[parameter.name] = draw(_spec_values(parameter, deployment), label=parameter.name)
    if "blocks_per_kv_block" in values:
        # Whole kernel blocks and, under dcp, whole runs of interleaved tokens: built, not filtered for.
        dcp = deployment.decode_context_parallel_size
        run = deployment.cp_kv_cache_interleave_size if dcp > 1 else 1
        filled = math.lcm(run, values["blocks_per_kv_block"])
        values["block_size"] = filled * draw(st.integers(1, _SMALL), label="block_size in runs and splits")
    if kind == "cross-attention" and deployment.decode_context_parallel_size > 1:
        if "dcp_sharded" in release.constants:
            reject()  # such a release has no legal cross attention under dcp
        values["dcp_sharded"] = False
    return build_case(kind, values).spec


def _unfit(deployment: Deployment, release: Release) -> set[str]:
    """Return the kinds that are not legal in the deployment, whatever their own sizes are."""
    unfit = set(_unfit_by_caching(deployment))
    ranks = deployment.decode_context_parallel_size * deployment.prefill_context_parallel_size
    if release.name == "vllm-0.25" and ranks > 1:
        unfit |= _ON_ONE_RANK
        if deployment.enable_prefix_caching:
            unfit |= _ON_ONE_RANK_IF_CACHED
    if release.name in {"vllm-0.29", "vllm-0.30"} and deployment.decode_context_parallel_size > 1:
        unfit |= _WINDOWS
    return unfit


def _unfit_by_caching(deployment: Deployment) -> set[str]:
    return _NEEDS_NO_PREFIX_CACHING if deployment.enable_prefix_caching else _NEEDS_PREFIX_CACHING


def _spec_values(parameter: Parameter, deployment: Deployment) -> st.SearchStrategy[Any]:
    if parameter.is_switch:
        return st.booleans()
    if parameter.name == "mamba_block_size":
        length = deployment.max_model_len
        return st.integers(length, 2 * length)
    small = st.integers(parameter.minimum, _SMALL)
    sizes = st.sampled_from([16, 32, 48, 64, 128, 528]) if parameter.usual is not None else small
    return st.one_of(small, sizes) if parameter.usual else small


@st.composite
def requests(draw: st.DrawFn, deployment: Deployment, *, release: Release = TODAY) -> Request:
    """Draw a request at some step of its life, up to the longest that the deployment admits."""
    longest = max_num_tokens(deployment, release=release)
    # The ends of the range are where a row that is too narrow shows.
    lengths = st.one_of(st.integers(1, longest), st.just(longest), st.just(max(1, longest - 1)))
    num_tokens = draw(lengths, label="num_tokens")
    return Request(
        num_tokens=num_tokens,
        num_computed_tokens=draw(st.integers(0, num_tokens - 1), label="num_computed_tokens"),
        num_encoder_tokens=draw(
            st.integers(0, deployment.max_num_encoder_input_tokens), label="num_encoder_tokens"
        ),
        reads_host_history=draw(st.booleans(), label="reads_host_history"),
    )


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    kinds: Collection[str] = SPEC_KINDS,
    max_model_len: int = 4096,
    release: Release = TODAY,
) -> Case:
    """Draw a deployment, a spec and a request that go together, and an access to the request's row.

    The access need not be one that a kernel makes; `spec.readable` tells.
    """
    deployment = draw(deployments(max_model_len=max_model_len, release=release))
    if not set(kinds) - _unfit_by_caching(deployment):
        deployment = replace(deployment, enable_prefix_caching=not deployment.enable_prefix_caching)
    if not set(kinds) - _unfit(deployment, release):
        deployment = replace(deployment, decode_context_parallel_size=1, prefill_context_parallel_size=1)
    spec = draw(specs(deployment, kinds=kinds, release=release))
    request = draw(requests(deployment, release=release))
    longest = max(request.slot_tokens(deployment), request.num_encoder_tokens)
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    states = getattr(layer, "num_speculative_blocks", getattr(layer, "blocks_per_request", 0))
    access = Access(
        position=draw(st.integers(0, max(0, longest - 1)), label="position"),
        state=draw(st.integers(0, states), label="state"),
    )
    case = Case(deployment, spec, request, access)
    broken = broken_assumptions(case, release)
    if broken:  # pragma: no cover  # a fault of this module, not of what is tested
        raise AssertionError(f"drew an illegal case, which breaks {broken[0].name}: {case}")
    return case


@st.composite
def block_lists(  # noqa: PLR0913  # what the length follows from
    draw: st.DrawFn,
    deployment: Deployment,
    spec: Spec,
    request: Request,
    *,
    num_pool_blocks: int,
    release: Release = TODAY,
) -> list[int]:
    """Draw a list of distinct block IDs, as long as the scheduler's for this request.

    IDs run from 1 to `num_pool_blocks - 1`; block 0 is the null block. A list that the pool cannot fill
    is cut short, as a scheduler would stop there.
    """
    length = min(entries(deployment, spec, request, release=release), num_pool_blocks - 1)
    ids = st.integers(1, num_pool_blocks - 1)
    return draw(st.lists(ids, min_size=length, max_size=length, unique=True), label="block IDs")
