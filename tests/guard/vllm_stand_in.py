"""Small classes laid out as vLLM's are, for tests without vLLM: its names, its counts, its staging."""

from types import SimpleNamespace

import numpy as np


class StagedTable:
    """V2's table of one group: `gpu` has a shape, and writes are staged in lists."""

    def __init__(self, rows, width):
        self.gpu = SimpleNamespace(shape=(rows, width))
        self.staged = []

    def stage_write(self, index, start, ids):
        assert index >= 0
        self.staged.append((index, start, list(ids)))


class BlockTables:
    """V2's tables, appending as vLLM up to 0.28 does: group by group, and unchecked."""

    def __init__(self, widths, rows=4, blocks_per_kv_block=None):
        self.max_num_reqs = rows
        self.num_kv_cache_groups = len(widths)
        self.block_tables = [StagedTable(rows, width) for width in widths]
        self.num_blocks = SimpleNamespace(np=np.zeros((len(widths), rows), dtype=np.int32))
        self.blocks_per_kv_block = blocks_per_kv_block or [1] * len(widths)

    def append_block_ids(self, req_index, new_block_ids, overwrite):
        for i in range(self.num_kv_cache_groups):
            start = self.num_blocks.np[i, req_index] if not overwrite else 0
            block_ids = new_block_ids[i]
            bpk = self.blocks_per_kv_block[i]
            if bpk > 1:
                block_ids = [b * bpk + k for b in block_ids for k in range(bpk)]
            self.block_tables[i].stage_write(req_index, start, block_ids)
            self.num_blocks.np[i, req_index] = start + len(block_ids)

    def state(self):
        return [list(table.staged) for table in self.block_tables], self.num_blocks.np.tolist()


class BlockTable:
    """V1's table of one group: the count advances before the write."""

    def __init__(self, width, rows=4, blocks_per_kv_block=1):
        self.block_table = SimpleNamespace(np=np.zeros((rows, width), dtype=np.int32))
        self.num_blocks_per_row = np.zeros(rows, dtype=np.int32)
        self.use_hybrid_blocks = blocks_per_kv_block > 1
        self.blocks_per_kv_block = blocks_per_kv_block

    def append_row(self, block_ids, row_idx):
        if not block_ids:
            return
        factor = self.blocks_per_kv_block
        block_ids = [b * factor + part for b in block_ids for part in range(factor)]
        start = self.num_blocks_per_row[row_idx]
        self.num_blocks_per_row[row_idx] += len(block_ids)
        self.block_table.np[row_idx, start : start + len(block_ids)] = block_ids

    def add_row(self, block_ids, row_idx):
        self.num_blocks_per_row[row_idx] = 0
        self.append_row(block_ids, row_idx)


class MultiGroupBlockTable:
    """V1's tables of all groups."""

    def __init__(self, widths, rows=4):
        self.block_tables = [BlockTable(width, rows) for width in widths]

    def append_row(self, block_ids, row_idx):
        for i, table in enumerate(self.block_tables):
            table.append_row(block_ids[i], row_idx)

    def add_row(self, block_ids, row_idx):
        for i, table in enumerate(self.block_tables):
            table.add_row(block_ids[i], row_idx)

    def state(self):
        return [(t.block_table.np.tolist(), t.num_blocks_per_row.tolist()) for t in self.block_tables]


class FullAttentionSpec:
    """vLLM's attention spec."""

    def __init__(self, block_size=16):
        self.block_size = block_size
        self.dcp_sharded = True


class MambaSpec:
    """vLLM's one spec of recurrent state."""

    def __init__(self, block_size=16, mode="align", drafts=0):
        self.block_size = block_size
        self.mamba_cache_mode = mode
        self.num_speculative_blocks = drafts


class UniformTypeKVCacheSpecs:
    """vLLM's wrapper around layers of one type."""

    def __init__(self, inner):
        self.block_size = inner.block_size
        self.kv_cache_specs = {"layer": inner}


class EncoderOnlyAttentionSpec(FullAttentionSpec):
    """Layers that cache nothing."""


class NewlyInventedSpec(FullAttentionSpec):
    """A class that no release has."""


def vllm_config(max_model_len=128, dcp=1, **settings):
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=dcp,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, is_encoder_decoder=False, runner_type="generate", hf_config=None
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        scheduler_config=SimpleNamespace(max_num_encoder_input_tokens=0),
        speculative_config=None,
        num_lookahead_tokens=0,
        additional_config={"rowbound": settings} if settings else {},
        use_v2_model_runner=True,
    )


def kv_cache_config(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def new_request(name, tokens, *block_ids, computed=0):
    return SimpleNamespace(
        req_id=name,
        prompt_token_ids=list(range(tokens)),
        prefill_token_ids=None,
        prompt_embeds=None,
        block_ids=block_ids,
        num_computed_tokens=computed,
    )


def step(new=(), running=(), resumed=()):
    """Return a scheduler's output; `running` holds (name, computed, scheduled, block lists or None)."""
    scheduled = {
        request.req_id: len(request.prompt_token_ids) - request.num_computed_tokens for request in new
    }
    return SimpleNamespace(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, *_ in running],
            num_computed_tokens=[computed for _, computed, *_ in running],
            new_block_ids=[ids for *_, ids in running],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens={**scheduled, **{name: number for name, _, number, _ in running}},
    )


class RunnerV2:
    """V2's runner: it makes tables, and takes new and known requests in two methods."""

    def __init__(self, config, widths, max_model_len=128):
        self.vllm_config = config
        self.max_model_len = max_model_len
        self.widths = widths
        self.req_states = SimpleNamespace(
            index_to_req_id={},
            req_id_to_index={},
            all_token_ids=SimpleNamespace(gpu=SimpleNamespace(shape=(4, max_model_len))),
        )

    def initialize_kv_cache(self, kv_cache_config):
        self.block_tables = BlockTables(self.widths)

    def add_requests(self, scheduler_output):
        for request in scheduler_output.scheduled_new_reqs:
            row = len(self.req_states.req_id_to_index)
            self.req_states.req_id_to_index[request.req_id] = row
            self.req_states.index_to_req_id[row] = request.req_id
            self.block_tables.append_block_ids(row, request.block_ids, overwrite=True)

    def update_requests(self, scheduler_output):
        requests = scheduler_output.scheduled_cached_reqs
        for name, block_ids in zip(requests.req_ids, requests.new_block_ids, strict=True):
            if block_ids is not None:
                row = self.req_states.req_id_to_index[name]
                self.block_tables.append_block_ids(row, block_ids, overwrite=False)


class RunnerV1:
    """V1's runner: one method takes a whole step; it keeps each request's block lists."""

    def __init__(self, config, widths, max_model_len=128):
        self.vllm_config = config
        self.max_model_len = max_model_len
        self.widths = widths
        self.requests = {}

    def may_reinitialize_input_batch(self, kv_cache_config):
        self.input_batch = SimpleNamespace(
            block_table=MultiGroupBlockTable(self.widths),
            req_ids=[],
            req_id_to_index={},
            token_ids_cpu=np.zeros((4, self.max_model_len), dtype=np.int32),
        )

    def _update_states(self, scheduler_output):
        batch = self.input_batch
        for request in scheduler_output.scheduled_new_reqs:
            row = batch.req_id_to_index.setdefault(request.req_id, len(batch.req_ids))
            batch.req_ids.append(request.req_id)
            self.requests[request.req_id] = SimpleNamespace(block_ids=[*map(list, request.block_ids)])
            batch.block_table.add_row(request.block_ids, row)
        requests = scheduler_output.scheduled_cached_reqs
        for name, block_ids in zip(requests.req_ids, requests.new_block_ids, strict=True):
            if block_ids is not None:
                for held, new in zip(self.requests[name].block_ids, block_ids, strict=True):
                    held.extend(new)
                batch.block_table.append_row(block_ids, batch.req_id_to_index[name])
        return "deferred"
