"""What is drawn for a machine: a deployment, its cache groups and a pool, small enough to be filled.

The sizes come from `invariants.strategies` where it has them; here stands what the engine asks of groups
that it serves together. A setup that the engine refuses all the same is counted, not hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from invariants import (
    Deployment,
    FullAttentionSpec,
    MambaAllSpec,
    MambaNoneSpec,
    MambaSpec,
    UniformTypeSpec,
    build_case,
    entries_needed,
    parameters_for,
    release,
)

_CACHED = {"mamba-align", "mamba-all", "uniform-mamba-align", "uniform-mamba-all"}
_UNCACHED = {"mamba-none", "uniform-mamba-none", "cross-attention"}
_ON_ONE_RANK_IF_CACHED = {
    "sliding-window",
    "sliding-window-mla",
    "chunked-local",
    "mamba-all",
    "uniform-mamba-all",
}
_NEVER_ALONE = {"cross-attention", "circular-buffer"}
_FULL = {"full-attention", "mla", "hidden-state", "rswa", "uniform-full-attention"}


@dataclass(frozen=True)
class Setup:
    """A deployment with its cache groups; the group under test is the last one."""

    kind: str
    release: str
    deployment: Deployment
    specs: tuple
    num_blocks: int
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    on_v2: bool = False

    @property
    def mamba_cache_mode(self):
        for spec in map(_layer, self.specs):
            if isinstance(spec, MambaSpec):
                if isinstance(spec, MambaNoneSpec):
                    return "none"
                return "all" if isinstance(spec, MambaAllSpec) else "align"
        return "none"

    def sizes(self):
        """Say the setup in the engine's own option names."""
        deployment = self.deployment
        shown = [f"max_model_len {deployment.max_model_len}"]
        if deployment.decode_context_parallel_size > 1:
            shown.append(f"decode_context_parallel_size {deployment.decode_context_parallel_size}")
            shown.append(f"cp_kv_cache_interleave_size {deployment.cp_kv_cache_interleave_size}")
        drafting = ("num_lookahead_tokens", "num_speculative_tokens")
        shown.extend(f"{name} {getattr(deployment, name)}" for name in drafting if getattr(deployment, name))
        shown.append(f"prefix caching {'on' if deployment.enable_prefix_caching else 'off'}")
        shown.append(f"groups {', '.join(map(_named, self.specs))}")
        return ", ".join(shown)


def _layer(spec):
    return spec.inner if isinstance(spec, UniformTypeSpec) else spec


def _named(spec):
    layer = _layer(spec)
    states = getattr(layer, "num_speculative_blocks", 0)
    more = f", num_speculative_blocks {states}" if states else ""
    more += f", kernel blocks of {layer.kernel_block_size}" if layer.expansion > 1 else ""
    wrapper = "UniformTypeKVCacheSpecs of " if layer is not spec else ""
    return f"{wrapper}{type(layer).__name__}(block_size {layer.tokens_per_block}{more})"


@st.composite
def setups(draw, kind, release_name, *, longest=48):
    """Draw a setup whose last group is of this kind."""
    known = release(release_name)
    caching = kind in _CACHED or (kind not in _UNCACHED and draw(st.booleans(), label="prefix caching"))
    companion = kind in _NEVER_ALONE or (
        kind not in _FULL and not kind.startswith("uniform") and draw(st.booleans(), label="companion")
    )
    one_rank = companion and not kind.startswith("mamba") and kind not in _FULL
    one_rank = one_rank or (caching and kind in _ON_ONE_RANK_IF_CACHED) or kind == "circular-buffer"
    if known.name == "vllm-0.28" and caching and not companion and kind in _CACHED:
        one_rank = True  # its lookup for a lone Mamba group asserts that there is no dcp
    ranks = 1 if one_rank else draw(st.sampled_from([1, 1, 2, 4]), label="dcp")
    size = draw(st.sampled_from([2, 4, 8, 16]), label="block_size")
    drafts = draw(st.sampled_from([0, 0, 1, 3]), label="drafts")
    if kind.endswith("mamba-align"):
        drafts = min(drafts, size - 1)  # no step passes over a whole block, as with the engine's own sizes
    interleave = draw(st.sampled_from([1, 1, 2]), label="interleave") if ranks > 1 else 1
    length = draw(st.integers(4, longest), label="max_model_len")
    deployment = Deployment(
        max_model_len=length,
        decode_context_parallel_size=ranks,
        cp_kv_cache_interleave_size=interleave,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=draw(st.sampled_from([0, drafts, drafts + 1]), label="lookahead")
        if drafts
        else 0,
        num_sampled_tokens=1,
        enable_prefix_caching=caching,
        max_num_encoder_input_tokens=draw(st.integers(1, 64)) if kind == "cross-attention" else 0,
    )
    spec = _spec(draw, kind, known, deployment, size)
    specs = (spec,)
    if companion:
        smaller = draw(st.sampled_from([size, max(size // 2, interleave)]), label="companion's block_size")
        specs = (FullAttentionSpec(block_size=smaller), spec)
    needed = sum(entries_needed(deployment, s, release=known) for s in specs)
    pool = 1 + needed + draw(st.sampled_from([2, 4, needed, 4 * needed]), label="room in the pool")
    return Setup(
        kind, release_name, deployment, specs, pool,
        max_num_batched_tokens=max(min(64, 4 * length), deployment.max_num_encoder_input_tokens),
        on_v2=draw(st.booleans(), label="scheduler for V2"),
    )  # fmt: skip


def _spec(draw, kind, known, deployment, size):
    values = {**known.constants, "block_size": size, "max_model_len": deployment.max_model_len}
    drafts = deployment.num_speculative_tokens
    for parameter in parameters_for(kind):
        match parameter.name:
            case "mamba_block_size":
                # Attention groups beside it divide it, as the engine's platform makes sure.
                whole = math.lcm(size, deployment.decode_context_parallel_size)
                values[parameter.name] = -(-deployment.max_model_len // whole) * whole
            case "num_speculative_blocks":
                # One state per draft; none with ReplaySSM.
                values[parameter.name] = draw(st.sampled_from([0, drafts]), label=parameter.name)
            case "blocks_per_kv_block" if known.rows_hold_kernel_blocks:
                split = draw(st.sampled_from([1, 2]), label=parameter.name)
                values[parameter.name] = split if size % split == 0 else 1
            case "sliding_window" | "rswa_window":
                values[parameter.name] = draw(st.integers(1, 24), label=parameter.name)
            case "attention_chunk_size":
                # Source: vLLM 0.33 `v1/attention/backends/utils.py`, asserted in each step.
                values[parameter.name] = size * draw(st.integers(1, 4), label=parameter.name)
    return build_case(kind, {**values, "num_tokens": 1}).spec
