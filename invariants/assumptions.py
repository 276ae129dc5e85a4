"""What makes a deployment legal: named assumptions, each with a sentence and a source.

The proofs take them as given, `require_legal` refuses a deployment that breaks one, and the Hypothesis
strategies draw from them. They run on symbolic sizes like every formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from invariants.arithmetic import all_of, any_of, modulo, negation
from invariants.cases import Case, build_case, kind_of
from invariants.deployment import Deployment, Request
from invariants.parameters import parameters_of
from invariants.releases import TODAY, Release, max_num_tokens
from invariants.releases import release as release_named
from invariants.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    MambaNoneSpec,
    MambaSpec,
    SlidingWindowSpec,
    Spec,
    UniformTypeSpec,
)

__all__ = [
    "ASSUMPTIONS",
    "Assumption",
    "IllegalDeployment",
    "InvariantsError",
    "assumptions_for",
    "broken_assumptions",
    "require_legal",
]


class InvariantsError(Exception):
    """Base of the errors that this package raises."""


class IllegalDeployment(InvariantsError, ValueError):
    """A deployment, spec or request breaks a named assumption."""

    def __init__(self, assumption: str, message: str) -> None:
        """Keep the assumption's name beside the sentence that explains it."""
        super().__init__(message)
        self.assumption = assumption


@dataclass(frozen=True, slots=True)
class Assumption:
    """One rule that every legal deployment and reachable request keeps.

    `applies` looks at the layer type only; `holds` is arithmetic over the case. One that is not about
    the request is about the configuration alone. One that names releases is a rule of those alone.
    """

    name: str
    sentence: str
    source: str
    holds: Callable[[Case, Release], bool]
    applies: Callable[[Spec], bool] = lambda _layer: True
    about_request: bool = False
    releases: frozenset[str] | None = None


def _layer(case: Case) -> Spec:
    return case.spec.inner if isinstance(case.spec, UniformTypeSpec) else case.spec


def _sizes(case: Case, _release: Release) -> bool:
    values = case.values()
    ranges = [(values[p.name], p.minimum, p.maximum) for p in case.parameters() if not p.is_switch]
    return all_of(
        *(value >= low for value, low, _ in ranges),
        *(value <= high for value, _, high in ranges if high is not None),
    )


def _request_within_context(case: Case, release: Release) -> bool:
    request = case.request
    return all_of(
        request.num_computed_tokens < request.num_tokens,
        request.num_tokens <= max_num_tokens(case.deployment, release=release),
    )


def _encoder_within_budget(case: Case, _release: Release) -> bool:
    return case.request.num_encoder_tokens <= case.deployment.max_num_encoder_input_tokens


def _kernel_blocks_divide(case: Case, _release: Release) -> bool:
    layer = cast("AttentionSpec", _layer(case))
    return layer.kernel_block_size * layer.blocks_per_kv_block == layer.block_size


def _interleave_divides(case: Case, _release: Release) -> bool:
    layer = cast("AttentionSpec", _layer(case))
    return modulo(layer.block_size, case.deployment.interleave()) == 0


def _cross_attention_is_not_sharded(case: Case, _release: Release) -> bool:
    layer = cast("AttentionSpec", _layer(case))
    return any_of(case.deployment.decode_context_parallel_size == 1, negation(layer.dcp_sharded))


def _no_context_parallelism(case: Case, _release: Release) -> bool:
    deployment = case.deployment
    return all_of(deployment.decode_context_parallel_size == 1, deployment.prefill_context_parallel_size == 1)


def _no_decode_context_parallelism(case: Case, _release: Release) -> bool:
    return case.deployment.decode_context_parallel_size == 1


def _no_search_under_context_parallelism(case: Case, release: Release) -> bool:
    return any_of(negation(case.deployment.enable_prefix_caching), _no_context_parallelism(case, release))


def _prefix_caching_matches_mode(case: Case, _release: Release) -> bool:
    if isinstance(_layer(case), MambaNoneSpec):
        return negation(case.deployment.enable_prefix_caching)
    return any_of(case.deployment.enable_prefix_caching)


def _state_block_covers_context(case: Case, _release: Release) -> bool:
    layer = cast("MambaNoneSpec", _layer(case))
    return layer.mamba_block_size >= case.deployment.max_model_len


ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption(
        "sizes",
        "every size is a whole number within the range that its option allows",
        "the ranges of the parameters",
        _sizes,
    ),
    Assumption(
        "request-within-context",
        "a step schedules at least one token, and computed and scheduled tokens together leave room "
        "in max_model_len for the token that the step samples",
        "vLLM 0.33 v1/core/sched/scheduler.py:854 and v1/engine/input_processor.py:557-602; "
        "not kept by resumable (streaming-input) sessions",
        _request_within_context,
        about_request=True,
    ),
    Assumption(
        "encoder-within-budget",
        "a request has at most max_num_encoder_input_tokens encoder tokens",
        "vLLM 0.33 v1/core/encoder_cache_manager.py:361-375; an encoder input is never split",
        _encoder_within_budget,
        lambda layer: isinstance(layer, CrossAttentionSpec),
        about_request=True,
    ),
    Assumption(
        "kernel-blocks-divide",
        "a manager block is split into whole kernel blocks",
        "vLLM 0.28 v1/worker/block_table.py:20-38",
        _kernel_blocks_divide,
        lambda layer: isinstance(layer, AttentionSpec),
    ),
    Assumption(
        "interleave-divides",
        "under dcp, cp_kv_cache_interleave_size divides the block size",
        "vLLM 0.33 config/vllm.py:3404-3412",
        _interleave_divides,
        lambda layer: isinstance(layer, AttentionSpec),
    ),
    Assumption(
        "cross-attention-not-sharded",
        "cross attention is served without dcp, or its group is not sharded",
        "not a rule of the engine: list and row are divided by dcp, the layer's own columns are not "
        "(vLLM 0.33 model_executor/layers/attention/cross_attention.py:57-61); without MLA, dcp needs more "
        "tensor-parallel ranks than KV heads (config/model.py:1579-1607)",
        _cross_attention_is_not_sharded,
        lambda layer: isinstance(layer, CrossAttentionSpec),
    ),
    Assumption(
        "one-group-under-context-parallelism",
        "cross attention, which is never a model's only group, is served without dcp and pcp",
        "vLLM 0.25.1 v1/core/kv_cache_utils.py:634-638, which refuses several groups under either",
        _no_context_parallelism,
        lambda layer: isinstance(layer, CrossAttentionSpec),
        releases=frozenset({"vllm-0.25"}),
    ),
    Assumption(
        "no-prefix-search-under-context-parallelism",
        "with prefix caching, sliding-window, chunked-local and Mamba groups are served without dcp and pcp",
        "vLLM 0.25.1 v1/core/single_type_kv_cache_manager.py:703-704, :936-937 and :1057-1058, asserted when "
        "a prompt is looked up in the cache",
        _no_search_under_context_parallelism,
        lambda layer: isinstance(layer, SlidingWindowSpec | ChunkedLocalAttentionSpec | MambaSpec),
        releases=frozenset({"vllm-0.25"}),
    ),
    Assumption(
        "window-without-dcp",
        "sliding-window groups are served without dcp",
        "vLLM 0.29 v1/kv_cache_interface.py:733-735 and 0.30 :845-847, asserted when their memory is counted",
        _no_decode_context_parallelism,
        lambda layer: isinstance(layer, SlidingWindowSpec),
        releases=frozenset({"vllm-0.29", "vllm-0.30"}),
    ),
    Assumption(
        "cache-mode",
        "Mamba keeps states by position exactly when prefix caching is on",
        "vLLM 0.33 model_executor/models/config.py:763-787",
        _prefix_caching_matches_mode,
        lambda layer: isinstance(layer, MambaSpec),
    ),
    Assumption(
        "state-block-covers-context",
        "without prefix caching the state's block size is max_model_len or more",
        "vLLM 0.33 config/vllm.py:3437-3450 and model_executor/models/config.py:786-787; auto-fit can only "
        "lower max_model_len",
        _state_block_covers_context,
        lambda layer: isinstance(layer, MambaNoneSpec),
    ),
)
"""Every assumption, in the order in which they are checked and printed."""


def assumptions_for(spec: Spec, release: Release = TODAY) -> tuple[Assumption, ...]:
    """Return the assumptions that speak about this type of spec in this release."""
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    return tuple(
        assumption
        for assumption in ASSUMPTIONS
        if assumption.applies(layer) and (assumption.releases is None or release.name in assumption.releases)
    )


def broken_assumptions(case: Case, release: Release = TODAY) -> tuple[Assumption, ...]:
    """Return the assumptions that a concrete case breaks, in the order of `ASSUMPTIONS`."""
    return tuple(a for a in assumptions_for(case.spec, release) if not a.holds(case, release))


def require_legal(
    deployment: Deployment,
    spec: Spec,
    request: Request | None = None,
    *,
    release: Release | str = TODAY,
) -> None:
    """Refuse a deployment, spec and (if given) request that break an assumption.

    Raises:
        IllegalDeployment: with the assumption's name and the values at fault.
    """
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    parts = [deployment, layer] + ([request] if request is not None else [])
    given = [parameter for part in parts for parameter in parameters_of(type(part))]
    for part in parts:
        for parameter in parameters_of(type(part)):
            if problem := parameter.problem(getattr(part, parameter.name)):
                raise IllegalDeployment("sizes", problem)
    kind = kind_of(spec)
    known = release_named(release) if isinstance(release, str) else release
    if kind in known.absent:
        raise IllegalDeployment("release", f"{known.name} ({known.description}) has no {kind} groups")
    # Without a request the shortest one stands in, and no rule about requests is asked.
    parts = [deployment, layer, request or Request(num_tokens=1)]
    values = {p.name: getattr(part, p.name) for part in parts for p in parameters_of(type(part))}
    for name, constant in known.constants.items():
        if values.get(name, constant) != constant:
            message = f"{known.name} fixes {name} at {constant}, not {values[name]}"
            raise IllegalDeployment("release", message)
    for broken in broken_assumptions(build_case(kind, values), known):
        if request is None and broken.about_request:
            continue
        shown = ", ".join(f"{p.name}={values[p.name]}" for p in given if values[p.name] != p.usual)
        message = f"{kind}: {broken.sentence}; this is not so for {shown}"
        raise IllegalDeployment(broken.name, message)
