"""The installed vLLM's Model Runner V2 on a CPU, as far as its block tables go: its own tables and methods.

Which widths the tables are made with, which row a request gets, what is appended and what is gathered are
the runner's own `initialize_kv_cache`, `finish_requests`, `add_requests`, `update_requests` and
`prepare_attn`, called on a stand-in that has what they read. Host memory stands for UVA, as the engine's CPU
worker has it, and Triton's interpreter runs the tables' own kernels.
"""

from __future__ import annotations

import functools
import importlib
from types import MethodType, SimpleNamespace
from unittest.mock import MagicMock, patch

import vllm_engine as engine

from invariants import UniformTypeSpec

_V2 = "vllm.v1.worker.gpu"
_ABSENT = (
    "adaptive_verification", "encoder_cache", "pcp_manager", "pooling_runner", "pp_handler",
    "prompt_logprobs_worker", "sampler", "speculator",
)  # fmt: skip
"""Parts of a runner that a deployment of text alone, on one rank of its pipeline, need not have."""


class _MadeError(BaseException):
    """The runner was about to make its tables with these arguments."""

    def __init__(self, arguments):
        super().__init__()
        self.arguments = arguments


@functools.cache
def _modules():
    """Import the runner, and before it the tables with their kernels as Triton's interpreter takes them.

    On a CPU vLLM takes Triton for missing: what it decorates there stays a plain function.
    """
    import triton
    import vllm.triton_utils
    import vllm.v1.attention.backends.utils

    from tests.kernels.wide_masks import accept_wide_masks

    with engine.known_layout("Model Runner V2"):
        host = importlib.import_module("vllm.v1.worker.cpu.buffer_utils")
        with (
            patch.multiple(vllm.triton_utils, triton=triton, tl=triton.language),
            patch.dict("os.environ", TRITON_INTERPRET="1"),
            patch("vllm.utils.platform_utils.is_uva_available", lambda: True),
        ):
            buffers = importlib.import_module(f"{_V2}.buffer_utils")
            buffers.UvaBuffer = host.UvaBuffer
            tables = importlib.import_module(f"{_V2}.block_table")
        if not hasattr(tables._gather_block_tables_kernel, "run"):
            raise engine.UnknownLayout(
                f"vLLM {engine.version()} imports V2's tables before they are asked for"
            )
        if hasattr(host, "is_uva_available"):
            host.is_uva_available = lambda: True
        importlib.import_module("vllm.utils.torch_utils").PIN_MEMORY = False
        accept_wide_masks()
        runner = importlib.import_module(f"{_V2}.model_runner")
        # The copies of cache blocks are not the tables' part.
        runner.copy_kv_cache_blocks_inplace = lambda *_, **__: None
        return runner, tables, importlib.import_module(f"{_V2}.states")


def table_arguments(setup):
    """Return what the runner's own code makes its tables with, by name."""
    runner, _, _ = _modules()
    config, deployment = engine.engine_config(setup), setup.deployment
    sizes = [_kernel_block_size(spec) for spec in setup.specs]

    def make(**arguments):
        raise _MadeError(arguments)

    stand_in = MagicMock(
        vllm_config=config,
        cache_config=config.cache_config,
        scheduler_config=config.scheduler_config,
        parallel_config=config.parallel_config,
        max_model_len=deployment.max_model_len,
        is_encoder_decoder=False,
        vocab_size=1,
        max_num_reqs=setup.max_num_seqs,
        max_num_tokens=setup.max_num_batched_tokens,
        device="cpu",
        dcp_size=deployment.decode_context_parallel_size,
        dcp_rank=0,
        cp_interleave=deployment.cp_kv_cache_interleave_size,
        **dict.fromkeys(_ABSENT),
    )
    with (
        engine.known_layout("V2's initialize_kv_cache"),
        patch.multiple(
            runner,
            BlockTables=make,
            init_attn_backend=lambda *_, **__: (MagicMock(), MagicMock(), sizes),
            maybe_create_adaptive_verification_manager=lambda *_, **__: None,
        ),
    ):
        try:
            runner.GPUModelRunner.initialize_kv_cache(stand_in, engine.worker_config(setup))
        except _MadeError as made:
            return made.arguments
    raise engine.UnknownLayout(f"vLLM {engine.version()}: V2's runner makes no tables")


def _kernel_block_size(spec):
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    return getattr(layer, "kernel_block_size", layer.tokens_per_block)


class Worker:
    """A runner of a setup: takes the scheduler's steps and prepares attention for a batch."""

    def __init__(self, setup):
        import torch

        runner, tables, states = _modules()
        self.arguments = table_arguments(setup)
        self._class = runner.GPUModelRunner
        with engine.known_layout("V2's BlockTables"):
            self.tables = tables.BlockTables(**{**self.arguments, "device": torch.device("cpu")})
            self.states = states.RequestState(
                max_num_reqs=setup.max_num_seqs,
                max_model_len=2 * setup.deployment.max_model_len,  # a session's tokens may pass it
                max_num_batched_tokens=setup.max_num_batched_tokens,
                num_speculative_steps=setup.deployment.num_speculative_tokens,
                vocab_size=1,
                device=torch.device("cpu"),
            )
        # Token IDs and lengths go to the device for sampling alone.
        self.states.apply_staged_writes = lambda: None
        self._runner = MagicMock(
            block_tables=self.tables, req_states=self.states, is_last_pp_rank=False, **dict.fromkeys(_ABSENT)
        )
        self._runner._remove_request = MethodType(self._class._remove_request, self._runner)

    def take(self, out):
        """Take over one step, in the order of the runner's `execute_model`."""
        with engine.known_layout("V2's steps"):
            self._class.finish_requests(self._runner, out)
            self._class.add_requests(self._runner, out)
            self._class.update_requests(self._runner, out)
            self.tables.apply_staged_writes()

    def row_of(self, name):
        """The row that the runner gave a request."""
        return self.states.req_id_to_index[name]

    def name_of(self, row):
        """The request that a row was given to."""
        return self.states.index_to_req_id[row]

    def attend(self, rows, spans, rank):
        """Return the forward-pass tables and the slot mappings that the runner prepares for a batch."""
        import torch

        counts = [len(span) for span in spans]
        starts = torch.tensor([sum(counts[:n]) for n in range(len(counts) + 1)], dtype=torch.int32)
        self.tables.cp_rank = rank
        for row, span in zip(rows, spans, strict=True):
            # On a GPU the sampler's kernels keep this count; at a step's start it is the scheduler's.
            self.states.num_computed_tokens.gpu[row] = span.start
        batch = SimpleNamespace(
            idx_mapping=torch.tensor(rows, dtype=torch.int32),
            num_reqs_after_padding=min(len(rows) + 1, self.tables.max_num_reqs),
            query_start_loc=starts,
            positions=torch.tensor([p for span in spans for p in span], dtype=torch.int64),
            num_tokens_after_padding=sum(counts),
        )
        with engine.known_layout("V2's prepare_attn"):
            gathered, slots = self._class.prepare_attn(self._runner, batch)
        return [table.tolist() for table in gathered], slots.tolist()
