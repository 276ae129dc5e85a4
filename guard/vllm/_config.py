"""A running vLLM's own configuration in the terms of `invariants`, and the audit of its rows.

Nothing is computed here: the engine's options and cache groups are renamed, the widths are those of its own
tables, and what a request needs comes from `invariants` by the formulas of the engine's release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from guard._text import shown
from guard.audit import AuditReport, Finding, GroupAudit, audit
from guard.errors import GuardUsageError
from invariants import (
    RELEASES,
    TODAY,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    Deployment,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    HiSparseHotSpec,
    HiSparseResidentSpec,
    InvariantsError,
    KpoolTailSpec,
    MambaAlignSpec,
    MambaAllSpec,
    MambaNoneSpec,
    MLAAttentionSpec,
    Release,
    RSWASpec,
    Runner,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    Spec,
    UniformTypeSpec,
)

__all__ = ["EngineAudit", "audit_engine", "deployment_of", "release_of", "settings_of", "spec_of"]


class UnknownSpecError(GuardUsageError):
    """A cache group of a class that `invariants` does not describe."""


@dataclass(frozen=True, slots=True)
class EngineAudit:
    """The audit of those groups that could be audited, and why the others could not."""

    report: AuditReport
    unaudited: Mapping[int, str]
    release: Release


def settings_of(vllm_config: Any) -> Mapping[str, Any]:
    """Return rowbound's own part of the engine's `additional_config`.

    Raises:
        GuardUsageError: it is no mapping, or names a setting that does not exist.
    """
    additional = getattr(vllm_config, "additional_config", None)
    settings = additional.get("rowbound", {}) if isinstance(additional, Mapping) else {}
    if not isinstance(settings, Mapping):
        message = 'additional_config["rowbound"] must be a mapping such as {"mode": "raise"}, not '
        raise GuardUsageError(message + shown(settings))
    unknown = sorted(str(key) for key in settings if key != "mode")
    if unknown:
        message = f'additional_config["rowbound"] has no setting {unknown[0]!r}; there is one, "mode"'
        raise GuardUsageError(message)
    return settings


def release_of(version: str) -> Release | None:
    """Return the release that an engine's version belongs to, None if `invariants` does not have it."""
    name = "vllm-" + ".".join(version.split(".")[:2])
    return next((release for release in RELEASES if release.name == name), None)


def deployment_of(vllm_config: Any, max_model_len: int) -> Deployment:
    """Return what scheduler and worker read, under the names of `invariants`."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    speculative = getattr(vllm_config, "speculative_config", None)
    drafts = getattr(speculative, "num_speculative_tokens", None) or 0
    encoder = bool(getattr(model, "is_encoder_decoder", False))
    samples = getattr(model, "runner_type", None) != "pooling" and not getattr(model, "is_diffusion", False)
    return Deployment(
        max_model_len=max_model_len,
        decode_context_parallel_size=parallel.decode_context_parallel_size,
        cp_kv_cache_interleave_size=getattr(parallel, "cp_kv_cache_interleave_size", 1),
        prefill_context_parallel_size=getattr(parallel, "prefill_context_parallel_size", 1),
        num_lookahead_tokens=vllm_config.num_lookahead_tokens,
        num_speculative_tokens=drafts,
        num_sampled_tokens=1 if samples else 0,
        enable_prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        max_num_encoder_input_tokens=(
            vllm_config.scheduler_config.max_num_encoder_input_tokens if encoder else 0
        ),
        max_source_positions=(getattr(model.hf_config, "max_source_positions", 0) or 0) if encoder else 0,
    )


def spec_of(spec: Any, blocks_per_kv_block: int = 1) -> Spec:
    """Return the spec of a cache group of vLLM; `blocks_per_kv_block` says how its row is split.

    Raises:
        UnknownSpecError: `invariants` does not describe its class.
    """
    name = type(spec).__name__
    if name == "UniformTypeKVCacheSpecs":
        first = next(iter(spec.kv_cache_specs.values()))
        return UniformTypeSpec(inner=spec_of(first, blocks_per_kv_block))
    if name in _OTHERS:
        return _OTHERS[name](spec)
    if name not in _ATTENTION:
        message = f"invariants describes no cache spec named {name}"
        raise UnknownSpecError(message)
    kind, fields = _ATTENTION[name]
    own = {field: getattr(spec, field) for field in fields}
    return kind(
        block_size=spec.block_size,
        blocks_per_kv_block=blocks_per_kv_block,
        dcp_sharded=bool(getattr(spec, "dcp_sharded", True)),
        **own,
    )


def _mamba(spec: Any) -> Spec:
    mode, drafts = spec.mamba_cache_mode, spec.num_speculative_blocks
    if mode == "none":
        return MambaNoneSpec(mamba_block_size=spec.block_size, num_speculative_blocks=drafts)
    if mode not in _MAMBA_MODES:
        message = f"invariants describes no mamba_cache_mode {shown(mode)}"
        raise UnknownSpecError(message)
    return _MAMBA_MODES[mode](block_size=spec.block_size, num_speculative_blocks=drafts)


_MAMBA_MODES: Mapping[str, Callable[..., Spec]] = {"align": MambaAlignSpec, "all": MambaAllSpec}

_OTHERS: Mapping[str, Callable[[Any], Spec]] = {
    "MambaSpec": _mamba,
    "CircularBufferSpec": lambda spec: CircularBufferSpec(block_size=spec.block_size),
    "KpoolTailSpec": lambda spec: KpoolTailSpec(block_size=spec.block_size),
    "HiSparseHotSpec": lambda spec: HiSparseHotSpec(blocks_per_request=spec.blocks_per_request),
    "HiSparseResidentSpec": lambda spec: HiSparseResidentSpec(block_size=spec.block_size),
}

_ATTENTION: Mapping[str, tuple[Callable[..., Spec], tuple[str, ...]]] = {
    "FullAttentionSpec": (FullAttentionSpec, ()),
    "TQFullAttentionSpec": (FullAttentionSpec, ()),
    "MLAAttentionSpec": (MLAAttentionSpec, ()),
    "HiddenStateCacheSpec": (HiddenStateCacheSpec, ()),
    "RSWASpec": (RSWASpec, ("rswa_window",)),
    "SinkFullAttentionSpec": (SinkFullAttentionSpec, ()),
    "SlidingWindowSpec": (SlidingWindowSpec, ("sliding_window",)),
    "SlidingWindowMLASpec": (SlidingWindowMLASpec, ("sliding_window",)),
    "ChunkedLocalAttentionSpec": (ChunkedLocalAttentionSpec, ("attention_chunk_size",)),
    "CrossAttentionSpec": (CrossAttentionSpec, ()),
    "EncoderOnlyAttentionSpec": (EncoderOnlyAttentionSpec, ()),
}
"""vLLM's attention specs by the names of their classes, and the fields that theirs and ours share."""


def audit_engine(  # noqa: PLR0913 - the engine's parts, as it hands them over
    vllm_config: Any,
    kv_cache_groups: Iterable[Any],
    row_widths: Sequence[int],
    factors: Sequence[int],
    *,
    runner: Runner,
    max_model_len: int,
    version: str,
) -> EngineAudit:
    """Compare each group's real row with the most that the scheduler hands over for it."""
    release = release_of(version)
    formulas = TODAY if release is None else release
    deployment = deployment_of(vllm_config, max_model_len)
    groups: list[GroupAudit] = []
    unaudited: dict[int, str] = {}
    # V1 makes no row for encoder-only layers, and numbers its tables without them.
    rows = [
        group.kv_cache_spec
        for group in kv_cache_groups
        if runner is Runner.V2 or type(group.kv_cache_spec).__name__ != "EncoderOnlyAttentionSpec"
    ]
    if len(rows) != len(row_widths):
        message = f"{len(row_widths)} tables for {len(rows)} cache groups"
        raise GuardUsageError(message)
    for number, (row, width, factor) in enumerate(zip(rows, row_widths, factors, strict=True)):
        try:
            spec = spec_of(row, factor)
            audited = audit(deployment, [spec], [width], runner=runner, release=formulas)
        except (GuardUsageError, InvariantsError) as error:
            unaudited[number] = f"group {number} ({type(row).__name__}): {error}"
            continue
        groups.append(replace(audited.groups[0], group=number))
    findings = tuple(group for group in groups if isinstance(group, Finding))
    return EngineAudit(AuditReport(deployment, tuple(groups), findings), unaudited, formulas)
