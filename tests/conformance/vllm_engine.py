"""The installed vLLM's scheduler side and V1 block tables, built from `invariants`' deployments and specs.

Everything that knows vLLM's layout stands here, for vLLM 0.28 to 0.33. Another layout ends in
`UnknownLayout`, one line that names what is missing. Nothing here computes a length, a width or a column.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace

from invariants import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    MambaAlignSpec,
    MambaAllSpec,
    MambaNoneSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
    UniformTypeSpec,
)

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

FIRST, LAST = (0, 28), (0, 33)
_ATTENTION = {
    "full-attention": "FullAttentionSpec",
    "mla": "MLAAttentionSpec",
    "hidden-state": "HiddenStateCacheSpec",
    "sliding-window": "SlidingWindowSpec",
    "sliding-window-mla": "SlidingWindowMLASpec",
    "chunked-local": "ChunkedLocalAttentionSpec",
    "rswa": "RSWASpec",
    "cross-attention": "CrossAttentionSpec",
    "sink-full-attention": "SinkFullAttentionSpec",
    "circular-buffer": "CircularBufferSpec",
}
_MAMBA_MODES = {MambaNoneSpec: "none", MambaAlignSpec: "align", MambaAllSpec: "all"}
NOT_DRIVEN = {
    "encoder-only": "the engine makes no cache group of it, so there is no list",
    "hisparse-hot": "its manager needs the host pool that HiSparse allocates on a GPU",
    "hisparse-resident": "its manager needs the host pool that HiSparse allocates on a GPU",
    "sink-full-attention": "no release can construct its manager",
}
"""Spec types that these machines do not drive, and why."""


class UnknownLayout(Exception):
    """The installed vLLM is not laid out as this module expects."""


class Refused(Exception):
    """The engine itself refuses the deployment."""


@contextlib.contextmanager
def known_layout(what: str) -> Iterator[None]:
    """Turn what a changed layout raises into one line."""
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        line = str(error).split("\n")[0]
        raise UnknownLayout(f"vLLM {version()}: {what} has an unknown layout: {line}") from error


def version() -> str:
    """The installed vLLM's version, without what a build appends to it."""
    import vllm

    return str(vllm.__version__).split("+")[0]


def release_name() -> str:
    """The name under which `invariants` describes the installed vLLM."""
    major, minor = (int(part) for part in version().split(".")[:2])
    if not FIRST <= (major, minor) <= LAST:
        wanted = " to ".join(".".join(map(str, end)) for end in (FIRST, LAST))
        raise UnknownLayout(f"vLLM {version()} is installed, and this driver knows {wanted}")
    return f"vllm-{major}.{minor}"


# --- specs and configuration -----------------------------------------------------------------------


def spec_of(spec):
    """Return the engine's spec for one of `invariants`'."""
    import torch
    from vllm.v1 import kv_cache_interface as interface

    if isinstance(spec, UniformTypeSpec):
        layers = {f"layer.{n}": spec_of(spec.inner) for n in range(2)}
        return interface.UniformTypeKVCacheSpecs(
            block_size=spec.tokens_per_block, kv_cache_specs=layers, **_sharded(spec.inner, interface)
        )
    if isinstance(spec, MambaSpec):
        return interface.MambaSpec(
            block_size=spec.tokens_per_block,
            shapes=((64,),),
            dtypes=(torch.float16,),
            mamba_cache_mode=_MAMBA_MODES[type(spec)],
            num_speculative_blocks=spec.num_speculative_blocks,
        )
    values = {"block_size": spec.block_size, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    match spec:
        case SlidingWindowSpec():
            values["sliding_window"] = spec.sliding_window
        case ChunkedLocalAttentionSpec():
            values["attention_chunk_size"] = spec.attention_chunk_size
        case RSWASpec():
            values["rswa_window"] = spec.rswa_window
    return getattr(interface, _ATTENTION[spec.kind])(**values, **_sharded(spec, interface))


def _sharded(spec, interface):
    """Before 0.31 every attention group is sharded, and there is no field to say so."""
    if "dcp_sharded" in interface.KVCacheSpec.__dataclass_fields__ and isinstance(spec, AttentionSpec):
        return {"dcp_sharded": spec.dcp_sharded}
    return {}


def worker_config(setup):
    """Return the worker's KVCacheConfig, wrappers as they are."""
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    groups = [KVCacheGroupSpec([f"group.{n}"], spec_of(spec)) for n, spec in enumerate(setup.specs)]
    return KVCacheConfig(num_blocks=setup.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def cache_config(setup):
    """Return the scheduler's KVCacheConfig: wrappers are resolved by the engine's own code."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

    return generate_scheduler_kv_cache_config([worker_config(setup)])


def engine_config(setup):
    """Return what the scheduler reads of a VllmConfig; the parts that need no model are the engine's own."""
    from vllm.config import CacheConfig, ObservabilityConfig, SchedulerConfig

    deployment = setup.deployment
    cache = CacheConfig(
        block_size=setup.specs[0].tokens_per_block,
        enable_prefix_caching=deployment.enable_prefix_caching,
        mamba_cache_mode=setup.mamba_cache_mode,
    )
    cache.num_gpu_blocks = setup.num_blocks
    scheduler = SchedulerConfig(
        max_model_len=deployment.max_model_len,
        is_encoder_decoder=False,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    drafts = deployment.num_speculative_tokens
    return SimpleNamespace(
        cache_config=cache,
        scheduler_config=scheduler,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=deployment.decode_context_parallel_size,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=deployment.cp_kv_cache_interleave_size,
            pipeline_parallel_size=1,
            tensor_parallel_size=deployment.decode_context_parallel_size,
            data_parallel_size=1,
            data_parallel_index=0,
        ),
        model_config=SimpleNamespace(
            max_model_len=deployment.max_model_len,
            is_encoder_decoder=False,
            is_diffusion=False,
            runner_type="generate" if deployment.num_sampled_tokens else "pooling",
            supports_multimodal_inputs=False,
            is_multimodal_model=False,
            uses_mrope=False,
            return_sampling_mask=False,
            enable_return_routed_experts=False,
        ),
        observability_config=ObservabilityConfig(),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=drafts,
            num_speculative_tokens_per_batch_size=None,
            use_eagle=lambda: False,
            use_eagle_block_drop=lambda: False,
            needs_eagle_block_drop=lambda: False,
            disable_eagle_block_drop=False,
            use_multi_module_mtp=lambda: False,
            max_num_new_slots_for_drafting=0,
        )
        if drafts
        else None,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=deployment.num_lookahead_tokens,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=setup.max_num_batched_tokens,
        max_concurrent_batches=1,
        use_v2_model_runner=setup.on_v2,
        kv_transfer_config=None,
        kv_events_config=None,
        lora_config=None,
        ec_transfer_config=None,
        is_mm_encoder_only=False,
        is_encoder_only=False,
    )


def _block_sizes(config, vllm_config):
    """Return scheduler and hash block size as the engine resolves them."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    return resolve_kv_cache_block_sizes(config, vllm_config)


def manager(setup):
    """Return the engine's KVCacheManager for a setup.

    Raises:
        Refused: the engine refuses the setup.
    """
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    with known_layout("KVCacheManager"):
        config = cache_config(setup)
        try:
            scheduler_block, hash_block = _block_sizes(config, engine_config(setup))
            made = KVCacheManager(
                config,
                max_model_len=setup.deployment.max_model_len,
                scheduler_block_size=scheduler_block,
                hash_block_size=hash_block,
                max_in_flight_tokens=setup.max_num_batched_tokens,
                enable_caching=setup.deployment.enable_prefix_caching,
                dcp_world_size=setup.deployment.decode_context_parallel_size,
            )
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise Refused(str(error).split("\n")[0]) from error
        return made, hash_block


def scheduler(setup):
    """Return the engine's Scheduler for a setup, and the block size of its hashes.

    Raises:
        Refused: the engine refuses the setup.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    with known_layout("Scheduler"):
        config, vllm_config = cache_config(setup), engine_config(setup)
        try:
            scheduler_block, hash_block = _block_sizes(config, vllm_config)
            made = Scheduler(
                vllm_config,
                config,
                structured_output_manager=_NoStructure(),
                block_size=scheduler_block,
                hash_block_size=hash_block,
            )
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise Refused(str(error).split("\n")[0]) from error
        return made, hash_block


class _NoStructure:
    """Stands for the structured-output manager of requests without a grammar."""

    def validate_tokens(self, _request, tokens):
        return tokens

    def accept_tokens(self, *_given, **_named):
        return True

    def should_advance(self, *_given, **_named):
        return False


# --- requests and steps ----------------------------------------------------------------------------


def request(name, tokens, hash_block, *, max_tokens=1, resumable=False, pooling=False):
    """Return an engine request of these token IDs."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    with known_layout("Request"):
        init_none_hash(sha256)
        return Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=None if pooling else SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=_pooling_params() if pooling else None,
            block_hasher=get_request_block_hasher(hash_block, sha256),
            resumable=resumable,
        )


def _pooling_params():
    from vllm.pooling_params import PoolingParams

    return PoolingParams(task="embed")


def preempted(engine_request):
    """Leave a request as the scheduler leaves one that it preempts, its blocks freed."""
    from vllm.v1.request import RequestStatus

    engine_request.status = RequestStatus.PREEMPTED
    engine_request.num_computed_tokens = 0
    engine_request.spec_token_ids = []


def running(engine_request):
    """Mark a request as admitted."""
    from vllm.v1.request import RequestStatus

    engine_request.status = RequestStatus.RUNNING


def aborted():
    """The status of a request that its client gave up."""
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def lists_of(cache_manager, name):
    """Return each group's list of a request as (block ID, is null), in the engine's order."""
    return [
        [(block.block_id, block.is_null) for block in held.req_to_blocks.get(name, ())]
        for held in cache_manager.coordinator.single_type_managers
    ]


def allocator_of(cache_manager, group):
    """The name of the function that grows a group's list."""
    held = cache_manager.coordinator.single_type_managers[group]
    return f"{type(held).__name__}.allocate_new_blocks"


def runner_output(names, sampled):
    """Return what a worker hands back for a step."""
    from vllm.v1.outputs import ModelRunnerOutput

    with known_layout("ModelRunnerOutput"):
        return ModelRunnerOutput(
            req_ids=list(names),
            req_id_to_index={name: n for n, name in enumerate(names)},
            sampled_token_ids=sampled,
        )


def draft_tokens(names, drafts):
    """Return the drafts that a worker proposes."""
    from vllm.v1.outputs import DraftTokenIds

    return DraftTokenIds(list(names), drafts)


# --- the worker's tables ---------------------------------------------------------------------------


def v1_tables(setup, *, rank=0):
    """Return the engine's V1 tables of a setup, as its runner makes them. Source: 0.33 `gpu_model_runner`."""
    import torch
    from vllm.v1.worker.block_table import MultiGroupBlockTable, SlotMappingMode

    with known_layout("MultiGroupBlockTable"):
        worker, vllm_config = worker_config(setup), engine_config(setup)
        length = max(setup.deployment.max_model_len, setup.deployment.max_num_encoder_input_tokens)
        specs = [group.kv_cache_spec for group in worker.kv_cache_groups]
        kernel_blocks = [getattr(_layer(s), "kernel_block_size", spec.block_size)
                         for s, spec in zip(setup.specs, specs, strict=True)]  # fmt: skip
        takes_kernel_blocks = "kernel_block_sizes" in MultiGroupBlockTable.__init__.__code__.co_varnames
        tables = MultiGroupBlockTable(
            max_num_reqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            pin_memory=False,
            device=torch.device("cpu"),
            block_sizes=[spec.block_size for spec in specs],
            max_num_blocks=[spec.max_num_blocks_per_req(vllm_config, length) for spec in specs],
            cp_kv_cache_interleave_size=setup.deployment.cp_kv_cache_interleave_size,
            slot_mapping_modes=[
                SlotMappingMode.NONE if isinstance(_layer(s), MambaSpec) else SlotMappingMode.TOKEN_TO_KV_SLOT
                for s in setup.specs
            ],
            **({"kernel_block_sizes": kernel_blocks} if takes_kernel_blocks else {}),
        )
        for table in tables.block_tables:
            table.dcp_world_size = setup.deployment.decode_context_parallel_size
            table.dcp_rank = rank
        return tables


def _layer(spec):
    return spec.inner if isinstance(spec, UniformTypeSpec) else spec


def slot_mapping(table, counts, positions):
    """Return the slots that the engine's own kernel maps a step's positions to, or None if it maps none.

    The kernel is run by Triton's interpreter: on a CPU vLLM takes Triton for missing, so that what it
    decorates stays a plain function, and its C++ stand-in is in the CPU wheels alone.
    """
    import torch
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction
    from vllm.v1.worker import block_table as module

    if table.slot_mapping_mode is module.SlotMappingMode.NONE:
        return None
    with known_layout("V1's slot mapping"):
        kernel = getattr(module, "_compute_slot_mapping_kernel", None)
        if kernel is None:
            kernel = module.ComputeSlotMappingKernel.kernel
        kernel = getattr(kernel, "fn", kernel)
        kernel.__globals__["tl"] = triton.language
        starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
        starts[1:] = torch.tensor(counts, dtype=torch.int32).cumsum(0)
        total = sum(counts)
        slots = torch.full((table.max_num_batched_tokens,), -7, dtype=torch.int64)
        values = _kernel_arguments(kernel, table, starts, positions, slots, total)
        InterpretedFunction(kernel)[(len(counts) + 1,)](**values)
        return slots[:total].tolist()


def _kernel_arguments(kernel, table, starts, positions, slots, total):
    import torch

    known = {
        "num_tokens": total,
        "max_num_tokens": table.max_num_batched_tokens,
        "query_start_loc_ptr": starts,
        "positions_ptr": torch.tensor(positions, dtype=torch.int64),
        "block_table_ptr": table.block_table.cpu,
        "block_table_stride": table.block_table.cpu.stride(0),
        "slot_mapping_ptr": slots,
        "block_size": table.block_size,
        "KV_CACHE_BLOCK_SIZE": getattr(table, "kv_cache_block_size", table.block_size),
        "BLOCKS_PER_KV_BLOCK": getattr(table, "blocks_per_kv_block", 1),
        "TOTAL_CP_WORLD_SIZE": table.dcp_world_size,
        "TOTAL_CP_RANK": table.dcp_rank,
        "CP_KV_CACHE_INTERLEAVE_SIZE": table.cp_kv_cache_interleave_size,
        "PAD_ID": -1,
        "BLOCK_SIZE": 64,
    }
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    missing = [name for name in names if name not in known]
    if missing:
        raise UnknownLayout(f"vLLM {version()}: V1's slot mapping kernel asks for {', '.join(missing)}")
    return {name: known[name] for name in names}
