"""A run with every verdict, typed by hand, so that reports are tested without a solver."""

from __future__ import annotations

import dataclasses

from invariants import INVARIANTS, Runner, release
from invariants import claim as claim_labelled
from proofs.files import Run
from proofs.verdicts import Counterexample, Obligation, Outcome, RowPicture, Verdict

HOSTILE = "<script>alert('x')</script> & \"quotes\" \x00\x1b[31m \ud800"
KNOWN = release("vllm-0.28")
VALUES = {
    "max_model_len": 512, "decode_context_parallel_size": 2, "cp_kv_cache_interleave_size": 1,
    "num_lookahead_tokens": 0, "num_speculative_tokens": 0, "num_sampled_tokens": 1,
    "enable_prefix_caching": True, "max_num_encoder_input_tokens": 0, "max_source_positions": 0,
    "block_table_token_alignment": 128, "prefill_context_parallel_size": 1,
    "num_speculative_blocks": 0, "block_size": 16, "num_tokens": 257,
    "num_computed_tokens": 0, "num_encoder_tokens": 0, "reads_host_history": True, "position": 0, "state": 0,
}  # fmt: skip
SHOWN = ("max_model_len", "decode_context_parallel_size", "block_size", "num_tokens")
FOUND = Counterexample(
    VALUES,
    SHOWN,
    (
        ("scheduler", "entries", "cdiv(num_tokens, block_size) = cdiv(257, 16) = 17"),
        ("worker", "row width", "cdiv(512, 16 * 2) = 16"),
    ),
    "at 257 tokens the scheduler hands over 17 entries for a row of 16: 1 too many",
    smallest=True,
    row=RowPicture(16, 17, "entries"),
)
READ = dataclasses.replace(
    FOUND,
    values={**VALUES, "position": 256},
    shown=(*SHOWN, "position"),
    summary="column 16 of a row of 16 (columns 0 to 15) belongs to another request",
    row=RowPicture(16, 16, "column"),
)


def claim(kind="mamba-align", invariant=0, runner=Runner.V2, known=KNOWN):
    return Obligation(kind, INVARIANTS[invariant], runner, known)


ASKED = (
    claim(),
    claim(invariant=1),
    claim(runner=Runner.V1),
    claim("mla"),
    claim("mla", runner=Runner.V1),
    claim("mla", 1),
    claim("mla", 1, Runner.V1),
)
OUTCOMES = {
    0: Outcome(Verdict.REFUTED, seconds=0.25, rlimit=27380, counterexample=FOUND),
    1: Outcome(Verdict.REFUTED, seconds=0.5, rlimit=9, counterexample=READ),
    2: Outcome(
        Verdict.PROVED, used=("sizes", "request-within-context"), unused=("cache-mode",), seconds=0.125
    ),
    3: Outcome(Verdict.VACUOUS, "no case meets the assumptions (sizes)"),
    4: Outcome(Verdict.UNKNOWN, "the solver gave up"),
    5: Outcome(Verdict.ERROR, HOSTILE),
    6: Outcome(Verdict.SKIPPED, "the pinned values contradict cache-mode"),
}
RUN = Run(KNOWN, {"max_model_len": 512}, ASKED, (f"encoder-only: {HOSTILE}",))
"""Its exit code is 5: of several verdicts ERROR comes first."""


GATHER = Obligation("mamba-align", claim_labelled("column-fits/gather"), Runner.V2, KNOWN)
"""A claim with a finer name than its family's."""
