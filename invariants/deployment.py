"""What scheduler and worker both read: the deployment, one request, and one access to its row."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from invariants.arithmetic import maximum, minimum, where
from invariants.parameters import size, switch

__all__ = ["Access", "Deployment", "Request", "Runner"]


class Runner(enum.Enum):
    """vLLM's two worker implementations, whose row-width code differs."""

    V1 = "V1"
    """`v1/worker/gpu_model_runner.py` with `v1/worker/block_table.py`."""
    V2 = "V2"
    """`v1/worker/gpu/` (Model Runner V2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The engine configuration, in the engine's own option names. Lengths are in tokens."""

    max_model_len: int = size("longest sequence, prompt and output together, in tokens", minimum=1)
    decode_context_parallel_size: int = size(
        "ranks that shard a sequence's cache during decode (dcp)", minimum=1, default=1
    )
    cp_kv_cache_interleave_size: int = size(
        "consecutive tokens that one dcp rank stores before the next", minimum=1, usual=1, default=1
    )
    num_lookahead_tokens: int = size(
        "slots reserved for draft tokens beyond the scheduled ones", usual=0, default=0
    )
    num_speculative_tokens: int = size(
        "draft tokens per step; before vLLM 0.29 they let a request reach max_model_len", usual=0, default=0
    )
    num_sampled_tokens: int = size(
        "tokens sampled per step: 1 for generation, 0 for pooling and diffusion",
        maximum=1,
        usual=1,
        default=1,
    )
    enable_prefix_caching: bool = switch("whether prefix caching is on", default=True)
    max_num_encoder_input_tokens: int = size(
        "encoder budget of an encoder-decoder model, in tokens; 0 for a decoder", usual=0, default=0
    )
    max_source_positions: int = size(
        "encoder length in the model's own configuration; 0 if it has none", usual=0, default=0
    )
    block_table_token_alignment: int = size(
        "rows are padded to whole multiples of this many tokens", minimum=1, usual=128, default=128
    )
    prefill_context_parallel_size: int = size(
        "ranks that share a prompt's prefill (pcp); only vLLM 0.25 divides lists and rows by it",
        minimum=1,
        usual=1,
        default=1,
    )

    def interleave(self) -> int:
        """Return how many consecutive tokens one rank stores; without dcp the option means nothing.

        Source: vLLM 0.33 `v1/worker/gpu/block_table.py`:380-384.
        """
        return where(self.decode_context_parallel_size == 1, 1, self.cp_kv_cache_interleave_size)

    def row_length(self, runner: Runner) -> int:
        """Return the length in tokens that a worker sizes its rows for.

        Source: vLLM 0.33 `v1/worker/gpu/model_runner.py`:634-642 (V2) and
        `v1/worker/gpu_model_runner.py`:6850 (V1, which does not look at `max_source_positions`); the same
        in every release from 0.25.
        """
        length = maximum(self.max_model_len, self.max_num_encoder_input_tokens)
        if runner is Runner.V1:
            return length
        return maximum(length, self.max_source_positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request at one scheduling step. Lengths are in tokens."""

    num_tokens: int = size("computed and newly scheduled tokens together", minimum=1)
    num_computed_tokens: int = size("tokens computed before this step", usual=0, default=0)
    num_encoder_tokens: int = size("encoder tokens of the request", usual=0, default=0)
    reads_host_history: bool = switch(
        "whether the request resumes history that is kept on the host (HiSparse)", default=True
    )

    def slot_tokens(self, deployment: Deployment) -> int:
        """Return for how many tokens the scheduler asks for slots: lookahead included, clipped.

        Source: vLLM 0.33 `v1/core/kv_cache_manager.py`:551 (0.26:430 .. 0.32:542).
        """
        return minimum(self.num_tokens + deployment.num_lookahead_tokens, deployment.max_model_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One element of a row that a kernel addresses."""

    position: int = size("token position that the kernel maps, from 0", default=0)
    state: int = size("which of a row's running states or held blocks the kernel selects, from 0", default=0)


def shards(deployment: Deployment, dcp_sharded: bool) -> int:
    """Return over how many ranks one sequence's tokens are spread.

    Source: vLLM 0.33 `v1/kv_cache_interface.py`:610-615 (worker) and
    `v1/core/single_type_kv_cache_manager.py`:107-109 (scheduler).
    """
    return where(dcp_sharded, deployment.decode_context_parallel_size, 1)
