"""The reference case's block lists as the installed vLLM's own KVCacheManager hands them out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from guard.errors import GuardUsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invariants import Deployment

# ruff: noqa: PLC0415 - vLLM is optional and slow to import

__all__ = ["allocate_with_vllm"]


def allocate_with_vllm(
    deployment: Deployment, block_size: int, num_blocks: int, token_counts: Sequence[int]
) -> list[tuple[list[int], ...]]:
    """Return, for each token count, the block IDs of a new request per group: attention, Mamba align.

    Raises:
        GuardUsageError: vLLM is not installed, or its manager has a layout that is not known here.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        manager = _manager(deployment, block_size, num_blocks)
        return [_allocate(manager, str(n), tokens) for n, tokens in enumerate(token_counts)]
    except ModuleNotFoundError as error:
        message = f"--allocator vllm needs vLLM in this environment: no module named {error.name}"
        raise GuardUsageError(message) from error
    except (AttributeError, ImportError, TypeError) as error:
        line = str(error).split("\n")[0]
        message = f"the installed vLLM's KVCacheManager has an unknown layout: {line}"
        raise GuardUsageError(message) from error


def _manager(deployment: Deployment, block_size: int, num_blocks: int) -> Any:
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
    )

    attention = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float16)
    mamba = MambaSpec(
        block_size=block_size, shapes=((64,),), dtypes=(torch.float16,), mamba_cache_mode="align"
    )
    config = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["attention"], attention), KVCacheGroupSpec(["mamba"], mamba)],
    )
    return KVCacheManager(
        config,
        max_model_len=deployment.max_model_len,
        scheduler_block_size=block_size * deployment.decode_context_parallel_size,
        hash_block_size=block_size,
        enable_caching=deployment.enable_prefix_caching,
        dcp_world_size=deployment.decode_context_parallel_size,
    )


def _allocate(manager: Any, name: str, num_tokens: int) -> tuple[list[int], ...]:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    request = Request(
        request_id=name,
        prompt_token_ids=[0] * num_tokens,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
    )
    # Without block hashes nothing can enter the prefix cache; the block lists are the same.
    blocks = manager.allocate_slots(request, num_tokens, delay_cache_blocks=True)
    if blocks is None:
        message = f"vLLM's pool has no room for a request of {num_tokens} tokens"
        raise GuardUsageError(message)
    return tuple(list(group) for group in blocks.get_block_ids())
