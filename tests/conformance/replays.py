"""Replays entries of FINDINGS.md on the installed vLLM's own code, and checks that they are still so."""

from __future__ import annotations

import v2_runner
import vllm_engine as engine
from expected_rows import ExpectedRows
from setups import Setup

from invariants import Deployment, FullAttentionSpec, MambaAlignSpec, Runner, row_width


def _play(setup, chunks, *, drafts=0):
    """Feed a session its chunks one after the other; yield the session and the step's tokens after each."""
    scheduler, hash_block = engine.scheduler(setup)
    for chunk in chunks:
        scheduler.add_request(
            engine.request("session", range(chunk), hash_block, max_tokens=2, resumable=True)
        )
        while (out := scheduler.schedule()).num_scheduled_tokens:
            session = scheduler.requests["session"]
            yield session, scheduler, out.num_scheduled_tokens["session"]
            proposed = len(out.scheduled_spec_decode_tokens.get("session", ()))
            known = session.num_computed_tokens - proposed >= session.num_tokens
            sampled = [7] * (1 + proposed) if known else []
            scheduler.update_from_output(out, engine.runner_output(["session"], [sampled]))
            if drafts:
                scheduler.update_draft_token_ids(engine.draft_tokens(["session"], [[7] * drafts]))


def session_outgrows_its_row():
    """Finding 3: a session's list of recurrent states passes the row of both runners."""
    deployment = Deployment(max_model_len=128)
    specs = (FullAttentionSpec(block_size=16), MambaAlignSpec(block_size=16))
    setup = Setup("mamba-align", engine.release_name(), deployment, specs, 64, max_num_batched_tokens=256)
    widths = {
        runner.value: row_width(deployment, specs[1], runner=runner, release=setup.release)
        for runner in Runner
    }
    for session, scheduler, _ in _play(setup, [111, 40]):
        held = len(engine.lists_of(scheduler.kv_cache_manager, session.request_id)[1])
        if held > min(widths.values()):
            rows = " and ".join(f"{runner}'s row has {width}" for runner, width in widths.items())
            return f"at {session.num_tokens} tokens of max_model_len 128 the list has {held} entries; {rows}"
    return None


def accepted_drafts_outlive_the_chunk():
    """Finding 4: drafts accepted past a chunk's max_tokens count as computed tokens of the next chunk."""
    deployment = Deployment(max_model_len=64, num_speculative_tokens=3, enable_prefix_caching=False)
    setup = Setup(
        "full-attention", engine.release_name(), deployment, (FullAttentionSpec(block_size=16),), 20
    )
    before = None
    try:
        for session, _, _ in _play(setup, [3, 1], drafts=3):
            before = session.num_tokens, session.num_computed_tokens
    except AssertionError:
        return "after drafts accepted past max_tokens, a chunk of 1 token fails an assertion of the scheduler"
    return None if before else "the session was never scheduled"


def short_kernel_blocks_are_dealt_anew():
    """Finding 5: V2 maps positions of one request's only block into the block behind it."""
    deployment = Deployment(
        max_model_len=1024, decode_context_parallel_size=2, cp_kv_cache_interleave_size=128
    )
    specs = (FullAttentionSpec(block_size=128, blocks_per_kv_block=2),)
    setup = Setup("full-attention", engine.release_name(), deployment, specs, 9, max_num_batched_tokens=256)
    expected = ExpectedRows(deployment, specs, setup.release, Runner.V2)
    worker = v2_runner.Worker(setup)
    worker.tables.append_block_ids(0, ([1],), overwrite=True)
    worker.tables.apply_staged_writes()
    spans = [range(256)]
    ranks = [worker.attend([0], spans, rank)[1][0] for rank in range(2)]
    rows = worker.tables.block_tables[0].gpu[:1]
    for rank, slots in enumerate(ranks):
        if fault := expected.slots(0, rows, spans, rank, slots):
            return "; ".join(fault)
    first = next((position for position, slot in enumerate(ranks[0]) if slot >= 2 * 128), None)
    if first is None:
        return None
    owned = sum(slot >= 0 for slot in ranks[1])
    return (
        f"block 1 of 128 tokens has slots 128 to 255, and position {first} of dcp 2 is mapped to slot "
        f"{ranks[0][first]} on rank 0; rank 1 has {owned} of 256 positions"
    )


REPLAYS = {
    "finding 3": (session_outgrows_its_row, {"0.28", "0.32", "0.33"}),
    "finding 4": (accepted_drafts_outlive_the_chunk, {"0.28", "0.32"}),
    "finding 5": (short_kernel_blocks_are_dealt_anew, {"0.28"}),
}
"""Each finding, how to see it, and the releases that have it."""


def run():
    """Replay all; return whether each is there exactly in the releases that FINDINGS.md names."""
    version = ".".join(engine.version().split(".")[:2])
    as_said = True
    for name, (replay, releases) in REPLAYS.items():
        seen = replay()
        expected = version in releases
        if bool(seen) == expected:
            print(f"{name}   {seen or 'not in this release, as FINDINGS.md says'}")
        else:
            as_said = False
            print(f"DIFFERS  {name}: {seen or 'no longer seen'}; FINDINGS.md says otherwise of {version}")
    return as_said
