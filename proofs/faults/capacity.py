"""Rows and buffers that are made for less than is handed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from invariants import TODAY, Case, Release, Runner, entries, release, row_width
from invariants.arithmetic import all_of, cdiv, maximum, minimum, modulo, round_up
from invariants.parameters import size
from proofs.faults.model import Claim, Fault, Kind, Report, at_most, below, engine, equal, sizes_of

__all__ = ["FAULTS"]

_027, _028 = release("vllm-0.27"), release("vllm-0.28")
_PADDED_TOKENS = 128


def _row_fits(case: Case, worker: Release, runner: Runner = Runner.V2) -> Claim:
    """Claim row-fits with the rows of one release."""
    return at_most(
        entries=entries(case.deployment, case.spec, case.request),
        row_width=row_width(case.deployment, case.spec, runner=runner, release=worker),
    )


def _agrees(case: Case, worker: Release) -> Claim:
    """Claim that a group's table is as wide as one of its layers takes it to be."""
    layer = case.spec.inner  # type: ignore[attr-defined]  # the domain is of wrappers
    return equal(
        metadata_width=row_width(case.deployment, layer, runner=Runner.V1, release=worker),
        row_width=row_width(case.deployment, case.spec, runner=Runner.V1, release=worker),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recurrent:
    """A recurrent group's row on an engine that scales rows by the ranks."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    block_size: int = size("tokens between two saved states", minimum=1, usual=16)
    ranks: int = size("context-parallel ranks", minimum=1)
    num_speculative_blocks: int = size("state blocks for drafts")
    num_tokens: int = size("tokens of the request", minimum=1)


def _within_context(sizes: _Recurrent) -> bool:
    return sizes.num_tokens <= sizes.max_model_len


def _recurrent_row(sizes: _Recurrent) -> int:
    return cdiv(sizes.max_model_len, sizes.block_size) + sizes.num_speculative_blocks


def _checkpoint_fits(sizes: _Recurrent, width: int) -> Claim:
    return below(
        checkpoint_column=cdiv(sizes.num_tokens, sizes.block_size) - 1,
        row_width=width,
        needed=_recurrent_row(sizes),
    )


def _at_a_boundary(sizes: _Recurrent) -> bool:
    return all_of(_within_context(sizes), modulo(sizes.num_tokens, sizes.block_size) == 0)


def _recurrent_entries(sizes: _Recurrent) -> int:
    return cdiv(sizes.num_tokens, sizes.block_size) + sizes.num_speculative_blocks


def _divided_row(sizes: _Recurrent) -> int:
    divided = cdiv(sizes.max_model_len, sizes.block_size * sizes.ranks)
    return divided + sizes.num_speculative_blocks


def _multiplied_back_covers(sizes: _Recurrent) -> Iterator[bool]:
    length, block, ranks = sizes.max_model_len, sizes.block_size, sizes.ranks
    divided = cdiv(length, block * ranks)
    yield length <= (divided * ranks) * block
    yield cdiv(length, block) <= divided * ranks
    yield sizes.num_speculative_blocks <= sizes.num_speculative_blocks * ranks
    yield cdiv(sizes.num_tokens, block) <= cdiv(length, block)


def _drafts_fit_after_content(sizes: _Recurrent, width: int) -> Claim:
    return at_most(
        draft_blocks=sizes.num_speculative_blocks,
        room_left=width - cdiv(sizes.num_tokens, sizes.block_size),
    )


def _folded_row(sizes: _Recurrent) -> int:
    return maximum(cdiv(sizes.max_model_len, sizes.block_size), 1 + sizes.num_speculative_blocks)


def _padded_row(sizes: _Recurrent) -> int:
    """Return a row padded to whole multiples of `_PADDED_TOKENS`, of blocks that divide them."""
    return round_up(cdiv(sizes.max_model_len, sizes.block_size), _PADDED_TOKENS // sizes.block_size)


def _blocks_divide_the_padding(sizes: _Recurrent) -> bool:
    return all_of(
        _within_context(sizes),
        sizes.block_size <= _PADDED_TOKENS,
        modulo(_PADDED_TOKENS, sizes.block_size) == 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """A length that was lowered after a part had copied it."""

    configured_len: int = size("max_model_len before it was fitted to the memory", minimum=1)
    fitted_len: int = size("max_model_len after that", minimum=1)
    compress_ratio: int = size("tokens per compressed entry", minimum=1)
    rounding: int = size("multiple that the buffer is rounded up to", minimum=1)


def _fitted_buffer(sizes: _Fitted) -> int:
    return round_up(cdiv(sizes.fitted_len, sizes.compress_ratio), sizes.rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class _States:
    """A row of recurrent states without prefix caching."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    block_size: int = size("tokens per block", minimum=1)
    num_speculative_tokens: int = size("draft tokens per step")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A row trimmed to the number of blocks that there are."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    pool_blocks: int = size("blocks in the pool", minimum=1)
    position: int = size("token position that a sliding group maps")


def _position_fits(sizes: _Pool, width: int) -> Claim:
    return below(
        column=sizes.position // sizes.block_size,
        row_width=width,
        needed=cdiv(sizes.max_model_len, sizes.block_size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DraftSlots:
    """A step's slot buffer, drafts included."""

    token_budget: int = size("most tokens that a step schedules", minimum=1)
    max_num_reqs: int = size("most requests of a step", minimum=1)
    num_speculative_tokens: int = size("draft tokens per step", minimum=1)
    num_tokens: int = size("tokens that the step schedules", minimum=1)
    num_reqs: int = size("requests of the step", minimum=1)


def _slots_fit(sizes: _DraftSlots, slots: int) -> Claim:
    drafted = (sizes.num_speculative_tokens - 1) * sizes.num_reqs
    return at_most(positions=sizes.num_tokens + drafted, slots=slots)


def _within_step(sizes: _DraftSlots) -> bool:
    return all_of(sizes.num_tokens <= sizes.token_budget, sizes.num_reqs <= sizes.max_num_reqs)


def _draft_slots(sizes: _DraftSlots) -> int:
    return sizes.token_budget + (sizes.num_speculative_tokens - 1) * sizes.max_num_reqs


def _drafts_of_fewer_requests(sizes: _DraftSlots) -> Iterator[bool]:
    drafts = sizes.num_speculative_tokens - 1
    yield drafts * sizes.num_reqs <= drafts * sizes.max_num_reqs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunked:
    """One prefill under chunked local attention."""

    chunk: int = size("tokens per attention chunk", minimum=1)
    num_computed_tokens: int = size("tokens computed before the step", usual=0)
    num_tokens: int = size("tokens of the step", minimum=1)


def _virtual_batches_fit(sizes: _Chunked, rows: int) -> Claim:
    start, end = sizes.num_computed_tokens, sizes.num_computed_tokens + sizes.num_tokens
    return at_most(virtual_batches=(end - 1) // sizes.chunk - start // sizes.chunk + 1, rows=rows)


def _chunk_spans(sizes: _Chunked) -> Iterator[bool]:
    chunk, start = sizes.chunk, sizes.num_computed_tokens
    last = (start + sizes.num_tokens - 1) // chunk
    spanned = last - start // chunk
    yield sizes.num_tokens <= cdiv(sizes.num_tokens, chunk) * chunk
    yield spanned * chunk <= sizes.num_tokens - 1 + chunk - 1
    yield spanned * chunk < (cdiv(sizes.num_tokens, chunk) + 1) * chunk
    yield spanned < cdiv(sizes.num_tokens, chunk) + 1
    yield spanned >= 0
    yield spanned + 1 <= sizes.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verify:
    """One table of pages for a step that verifies drafts."""

    context_len: int = size("longest sequence, in tokens", minimum=1)
    num_draft_tokens: int = size("draft tokens that one step verifies")
    seq_len: int = size("tokens of the sequence", minimum=1)


def _verified_fit(sizes: _Verify, width: int) -> Claim:
    return at_most(columns=sizes.seq_len + sizes.num_draft_tokens, row_width=width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topk:
    """The page indices of a draft graph that keeps several branches per request."""

    max_reqs: int = size("requests that the graph is captured for", minimum=1)
    context_len: int = size("longest sequence, in tokens", minimum=1)
    topk: int = size("branches per request", minimum=1)
    seq_lens_sum: int = size("tokens of all requests together", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotMap:
    """A map from a request to its state."""

    request_slots: int = size("requests that can run at a time", minimum=1)
    state_slots: int = size("states in the pool", minimum=1)
    request: int = size("slot of the request, from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preallocated:
    """Blocks handed out ahead of need."""

    row_blocks: int = size("max_model_len in blocks", minimum=1)
    needed: int = size("blocks that the tokens need", minimum=1)
    preallocated: int = size("blocks handed out ahead of need")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Capture:
    """Blocks copied into a captured graph's table."""

    capture_len: int = size("longest sequence that the graph is captured for", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    num_lookahead_tokens: int = size("slots reserved for drafts")
    num_tokens: int = size("tokens of the sequence", minimum=1)


def _copied_fit(sizes: _Capture, tokens: int) -> Claim:
    return at_most(
        blocks=cdiv(tokens, sizes.block_size),
        captured_width=cdiv(sizes.capture_len, sizes.block_size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """Cross attention whose encoder is longer than the prompt may be."""

    max_input_len: int = size("longest prompt, in tokens", minimum=1)
    encoder_limit: int = size("most positions that the encoder makes", minimum=1)
    encoder_positions: int = size("positions that the encoder makes of this request", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaddedBatch:
    """A batch padded by at most one request for a captured graph."""

    max_num_reqs: int = size("most requests of a batch", minimum=1)
    padded_reqs: int = size("requests of the padded batch", minimum=1)


FAULTS: tuple[Fault, ...] = (
    Fault(
        thread="vllm#50287",
        kind=Kind.CAPACITY,
        title="rows of replicated recurrent state are divided by the decode-context-parallel size",
        seen="the last block ID lands in the next request's row, then a device-side assert",
        domain=engine("mamba-align", _028),
        faulty=lambda case: _row_fits(case, _028),
        repaired=lambda case: _row_fits(case, TODAY),
        reports=(
            Report(
                sizes={"max_model_len": 512, "decode_context_parallel_size": 2, "num_tokens": 257},
                faulty={"entries": 17, "row width": 16},
                repaired={"entries": 17, "row width": 32},
                first="num_tokens",
            ),
        ),
    ),
    Fault(
        thread="vllm#50493",
        kind=Kind.CAPACITY,
        title="the same division at a million tokens",
        seen="corrupted metadata or an illegal address",
        domain=engine("mamba-align", _027),
        faulty=lambda case: _row_fits(case, _027),
        repaired=lambda case: _row_fits(case, TODAY),
        reports=(
            Report(
                sizes={
                    "max_model_len": 1_048_576,
                    "decode_context_parallel_size": 8,
                    "num_tokens": 1_048_575,
                },
                faulty={"entries": 65_536, "row width": 8_192},
                repaired={"entries": 65_536, "row width": 65_536},
            ),
        ),
    ),
    Fault(
        thread="local-inference-lab/vllm#418",
        kind=Kind.CAPACITY,
        title="a fork divides the recurrent group's row by the decode-context-parallel size",
        seen="a saved state that no column addresses",
        domain=sizes_of(_Recurrent),
        assumes=_at_a_boundary,
        faulty=lambda sizes: _checkpoint_fits(sizes, cdiv(_recurrent_row(sizes), sizes.ranks)),
        repaired=lambda sizes: _checkpoint_fits(sizes, _recurrent_row(sizes)),
        reports=(
            Report(
                sizes={
                    "max_model_len": 1_000_000,
                    "block_size": 768,
                    "ranks": 16,
                    "num_speculative_blocks": 7,
                    "num_tokens": 63_744,
                },
                faulty={"checkpoint column": 82, "row width": 82, "needed": 1_310},
                repaired={"row width": 1_310},
                first="num_tokens",
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#9724",
        kind=Kind.CAPACITY,
        title="recurrent rows are divided by the context-parallel ranks; the repair multiplies back",
        seen="a block table index out of range",
        domain=sizes_of(_Recurrent),
        assumes=_within_context,
        faulty=lambda sizes: at_most(entries=_recurrent_entries(sizes), row_width=_divided_row(sizes)),
        repaired=lambda sizes: at_most(
            entries=_recurrent_entries(sizes), row_width=_divided_row(sizes) * sizes.ranks
        ),
        steps=_multiplied_back_covers,
        reports=(
            Report(
                sizes={
                    "max_model_len": 1_024,
                    "ranks": 4,
                    "num_speculative_blocks": 2,
                    "num_tokens": 1_024,
                },
                faulty={"entries": 66, "row width": 18},
                repaired={"row width": 72},
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#11466",
        also=("vllm-ascend#11659",),
        kind=Kind.CAPACITY,
        title="draft states are folded into a maximum instead of added to the blocks by position",
        seen="could not broadcast input array from shape (2,) into shape (0,)",
        domain=sizes_of(_Recurrent),
        assumes=_within_context,
        faulty=lambda sizes: _drafts_fit_after_content(sizes, _folded_row(sizes)),
        repaired=lambda sizes: _drafts_fit_after_content(sizes, _recurrent_row(sizes)),
        reports=(
            Report(
                sizes={"max_model_len": 1_024, "num_speculative_blocks": 2, "num_tokens": 1_024},
                faulty={"draft blocks": 2, "room left": 0},
                repaired={"room left": 2},
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#16562",
        kind=Kind.CAPACITY,
        title="a wrapper around the spec hides that it is recurrent, so no columns are made for drafts",
        seen="a state index out of bounds and a device memory error",
        domain=engine("uniform-mamba-none", _027),
        faulty=lambda case: _row_fits(case, _027, Runner.V1),
        repaired=lambda case: _row_fits(case, TODAY, Runner.V1),
        reports=(
            Report(
                sizes={
                    "max_model_len": 4_096,
                    "enable_prefix_caching": False,
                    "mamba_block_size": 4_096,
                    "num_speculative_blocks": 3,
                },
                faulty={"entries": 4, "row width": 1},
                repaired={"row width": 4},
            ),
        ),
    ),
    Fault(
        thread="vllm-0.27:wrapped-mamba",
        kind=Kind.CAPACITY,
        title="the wrapper around aligned recurrent layers has the base formula, without draft states",
        seen="nothing reported; the release's own code hands over more than the row holds",
        domain=engine("uniform-mamba-align", _027),
        faulty=lambda case: _row_fits(case, _027, Runner.V1),
        repaired=lambda case: _row_fits(case, TODAY, Runner.V1),
        reports=(
            Report(
                sizes={"max_model_len": 128, "num_speculative_blocks": 2, "num_tokens": 127},
                faulty={"entries": 10, "row width": 8},
                repaired={"row width": 10},
            ),
        ),
    ),
    Fault(
        thread="vllm#50825",
        also=("vllm#50823", "vllm#48404"),
        kind=Kind.CAPACITY,
        title="a group's wrapper and its layers give different widths under decode context parallelism",
        seen="the expanded size of the tensor (8192) must match the existing size (16384)",
        domain=engine("uniform-mla", _027),
        faulty=lambda case: _agrees(case, _027),
        repaired=lambda case: _agrees(case, TODAY),
        reports=(
            Report(
                sizes={"max_model_len": 1_048_576, "decode_context_parallel_size": 2, "block_size": 64},
                faulty={"metadata width": 8_192, "row width": 16_384},
                repaired={"metadata width": 8_192, "row width": 8_192},
            ),
        ),
    ),
    Fault(
        thread="vllm#58149",
        also=("vllm#57034",),
        kind=Kind.CAPACITY,
        title="a model's state keeps the length from before it was fitted to the memory",
        seen="graph capture fails",
        domain=sizes_of(_Fitted),
        assumes=lambda sizes: sizes.fitted_len <= sizes.configured_len,
        faulty=lambda sizes: at_most(
            asked=cdiv(sizes.configured_len, sizes.compress_ratio), buffer=_fitted_buffer(sizes)
        ),
        repaired=lambda sizes: at_most(
            asked=cdiv(sizes.fitted_len, sizes.compress_ratio), buffer=_fitted_buffer(sizes)
        ),
        reports=(
            # The thread does not name the rounding; every power of two from 32 to 512 gives its 7,680.
            Report(
                sizes={
                    "configured_len": 1_048_576,
                    "fitted_len": 980_224,
                    "compress_ratio": 128,
                    "rounding": 128,
                },
                faulty={"asked": 8_192, "buffer": 7_680},
            ),
        ),
    ),
    Fault(
        thread="vllm-project/tpu-inference#2536",
        kind=Kind.CAPACITY,
        title="a row by length is narrower than the running state and its drafts",
        seen="not told",
        domain=sizes_of(_States),
        faulty=lambda sizes: at_most(
            states=1 + sizes.num_speculative_tokens,
            row_width=cdiv(sizes.max_model_len, sizes.block_size),
        ),
        repaired=lambda sizes: at_most(
            states=1 + sizes.num_speculative_tokens,
            row_width=maximum(cdiv(sizes.max_model_len, sizes.block_size), 1 + sizes.num_speculative_tokens),
        ),
        reports=(
            Report(
                sizes={"max_model_len": 4_096, "block_size": 4_096, "num_speculative_tokens": 1},
                faulty={"states": 2, "row width": 1},
                repaired={"row width": 2},
                first="num_speculative_tokens",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm_tt_plugin:row-width",
        kind=Kind.CAPACITY,
        title="a row is trimmed to the pool's size although sliding groups index it by position",
        seen="long prefills fail",
        domain=sizes_of(_Pool),
        assumes=lambda sizes: sizes.position < sizes.max_model_len,
        faulty=lambda sizes: _position_fits(
            sizes, minimum(cdiv(sizes.max_model_len, sizes.block_size), sizes.pool_blocks)
        ),
        repaired=lambda sizes: _position_fits(sizes, cdiv(sizes.max_model_len, sizes.block_size)),
        reports=(
            Report(
                sizes={
                    "max_model_len": 131_072,
                    "block_size": 64,
                    "pool_blocks": 1_509,
                    "position": 96_576,
                },
                faulty={"column": 1_509, "row width": 1_509, "needed": 2_048},
                repaired={"row width": 2_048},
                first="position",
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#14024",
        kind=Kind.CAPACITY,
        title="the slot buffer has two places per request for drafts, whatever their number",
        seen="assignment on the host fails; with one of two buffers widened, graph warm-up does",
        domain=sizes_of(_DraftSlots),
        assumes=_within_step,
        faulty=lambda sizes: _slots_fit(sizes, sizes.token_budget + 2 * sizes.max_num_reqs),
        repaired=lambda sizes: _slots_fit(sizes, _draft_slots(sizes)),
        steps=_drafts_of_fewer_requests,
        reports=(
            Report(
                sizes={
                    "token_budget": 80,
                    "max_num_reqs": 12,
                    "num_speculative_tokens": 5,
                    "num_tokens": 66,
                    "num_reqs": 11,
                },
                faulty={"positions": 110, "slots": 104},
                repaired={"slots": 128},
            ),
        ),
    ),
    Fault(
        thread="vllm#49980",
        also=("vllm#50022",),
        kind=Kind.CAPACITY,
        title="one prefill across attention chunks makes more virtual requests than there are rows",
        seen="provided out is the wrong size",
        domain=sizes_of(_Chunked),
        faulty=lambda sizes: _virtual_batches_fit(sizes, 1),
        repaired=lambda sizes: _virtual_batches_fit(
            sizes, minimum(2 + cdiv(sizes.num_tokens, sizes.chunk), sizes.num_tokens)
        ),
        steps=_chunk_spans,
        reports=(
            Report(
                sizes={"chunk": 8_192, "num_tokens": 8_193},
                faulty={"virtual batches": 2, "rows": 1},
                first="num_tokens",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="sgl-project/sglang#19016",
        also=(
            "sgl-project/sglang#19641",
            "sgl-project/sglang#18980",
            "sgl-project/sglang#18780",
            "sgl-project/sglang#27485",
        ),
        kind=Kind.CAPACITY,
        title="a graph's page table is as wide as the context, and verification adds drafts to it",
        seen="a size mismatch near the context limit",
        domain=sizes_of(_Verify),
        assumes=lambda sizes: sizes.seq_len <= sizes.context_len,
        faulty=lambda sizes: _verified_fit(sizes, sizes.context_len),
        repaired=lambda sizes: _verified_fit(sizes, sizes.context_len + sizes.num_draft_tokens),
        reports=(
            Report(
                sizes={"context_len": 202_752, "num_draft_tokens": 2, "seq_len": 202_752},
                faulty={"columns": 202_754, "row width": 202_752},
                repaired={"row width": 202_754},
            ),
            Report(
                sizes={"context_len": 163_840, "num_draft_tokens": 2, "seq_len": 163_840},
                faulty={"columns": 163_842, "row width": 163_840},
                repaired={"row width": 163_842},
            ),
        ),
    ),
    Fault(
        thread="sgl-project/sglang#27338",
        also=("sgl-project/sglang#27460", "sgl-project/sglang#26532"),
        kind=Kind.CAPACITY,
        title="a draft graph's index buffer does not count the branches of each request",
        seen="silently wrong drafts; sometimes an assert far away",
        domain=sizes_of(_Topk),
        assumes=lambda sizes: sizes.seq_lens_sum <= sizes.max_reqs * sizes.context_len,
        faulty=lambda sizes: at_most(
            indices=sizes.seq_lens_sum * sizes.topk, buffer=sizes.max_reqs * sizes.context_len
        ),
        repaired=lambda sizes: at_most(
            indices=sizes.seq_lens_sum * sizes.topk,
            buffer=sizes.max_reqs * sizes.context_len * sizes.topk,
        ),
        reports=(
            Report(
                sizes={"max_reqs": 2, "context_len": 2_048, "topk": 4, "seq_lens_sum": 1_025},
                faulty={"indices": 4_100, "buffer": 4_096},
                repaired={"buffer": 16_384},
                first="seq_lens_sum",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="sgl-project/sglang#24236",
        also=("sgl-project/sglang#23570", "Ascend/sglang#428"),
        kind=Kind.CAPACITY,
        title="a map is as long as the pool of states and is indexed by request",
        seen="index 32 is out of bounds for dimension 0 with size 32; silent on a GPU",
        domain=sizes_of(_SlotMap),
        assumes=lambda sizes: sizes.request < sizes.request_slots,
        faulty=lambda sizes: below(index=sizes.request, map_length=sizes.state_slots),
        repaired=lambda sizes: below(index=sizes.request, map_length=sizes.request_slots),
        reports=(
            Report(
                sizes={"request_slots": 64, "state_slots": 32, "request": 32},
                faulty={"index": 32, "map length": 32},
                repaired={"map length": 64},
                first="request",
            ),
        ),
    ),
    Fault(
        thread="vllm#10730",
        kind=Kind.CAPACITY,
        title="blocks handed out ahead of need run past the row of a nearly full request",
        seen="requests near max_model_len hold more blocks than it has",
        domain=sizes_of(_Preallocated),
        assumes=lambda sizes: sizes.needed <= sizes.row_blocks,
        faulty=lambda sizes: at_most(entries=sizes.needed + sizes.preallocated, row_width=sizes.row_blocks),
        repaired=lambda sizes: at_most(
            entries=sizes.needed + minimum(sizes.preallocated, sizes.row_blocks - sizes.needed),
            row_width=sizes.row_blocks,
        ),
        reports=(
            Report(
                sizes={"row_blocks": 32, "needed": 30, "preallocated": 3},
                faulty={"entries": 33, "row width": 32},
                repaired={"entries": 32},
                first="preallocated",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#5563",
        also=("vllm#8145", "vllm#8340", "vllm#8068", "vllm#8432", "vllm#9963"),
        kind=Kind.CAPACITY,
        title="a captured graph's table has no room for the blocks reserved for drafts",
        seen="could not broadcast input array from shape (513,) into shape (512,)",
        domain=sizes_of(_Capture),
        assumes=lambda sizes: sizes.num_tokens <= sizes.capture_len,
        faulty=lambda sizes: _copied_fit(sizes, sizes.num_tokens + sizes.num_lookahead_tokens),
        repaired=lambda sizes: _copied_fit(sizes, sizes.num_tokens),
        reports=(
            Report(
                sizes={"capture_len": 8_192, "num_lookahead_tokens": 7, "num_tokens": 8_186},
                faulty={"blocks": 513, "captured width": 512},
                repaired={"blocks": 512},
                first="num_tokens",
            ),
        ),
    ),
    Fault(
        thread="NVIDIA/TensorRT-LLM#19514",
        also=("NVIDIA/TensorRT-LLM#19516",),
        kind=Kind.CAPACITY,
        title="the cache of cross attention is sized by the longest prompt, not by the encoder",
        seen="an assertion; every request fails",
        domain=sizes_of(_Encoder),
        assumes=lambda sizes: sizes.encoder_positions <= sizes.encoder_limit,
        faulty=lambda sizes: at_most(positions=sizes.encoder_positions, room=sizes.max_input_len),
        repaired=lambda sizes: at_most(positions=sizes.encoder_positions, room=sizes.encoder_limit),
        reports=(
            Report(
                sizes={"max_input_len": 1_024, "encoder_limit": 1_500, "encoder_positions": 1_500},
                faulty={"positions": 1_500, "room": 1_024},
                repaired={"room": 1_500},
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#10769",
        kind=Kind.CAPACITY,
        title="a batch padded by one request has more rows than the table, and the slice is silently short",
        seen="an operator error, only when the batch is full",
        domain=sizes_of(_PaddedBatch),
        assumes=lambda sizes: sizes.padded_reqs <= sizes.max_num_reqs + 1,
        faulty=lambda sizes: equal(
            rows_sliced=minimum(sizes.padded_reqs, sizes.max_num_reqs), rows_wanted=sizes.padded_reqs
        ),
        repaired=lambda sizes: equal(
            rows_sliced=minimum(sizes.padded_reqs, sizes.max_num_reqs + 1), rows_wanted=sizes.padded_reqs
        ),
        reports=(
            Report(
                sizes={"max_num_reqs": 20, "padded_reqs": 21},
                faulty={"rows sliced": 20, "rows wanted": 21},
                repaired={"rows sliced": 21},
                first="padded_reqs",
            ),
        ),
    ),
    Fault(
        thread="cpp-port:state-row",
        kind=Kind.CAPACITY,
        title="a row by length, padded to 128 tokens, has none for draft states, and appends go unchecked",
        seen="free(): invalid pointer after a prompt of 93 tokens",
        domain=sizes_of(_Recurrent),
        assumes=_blocks_divide_the_padding,
        faulty=lambda sizes: at_most(entries=_recurrent_entries(sizes), row_width=_padded_row(sizes)),
        repaired=lambda sizes: at_most(entries=_recurrent_entries(sizes), row_width=_recurrent_row(sizes)),
        reports=(
            Report(
                sizes={
                    "max_model_len": 128,
                    "block_size": 32,
                    "num_speculative_blocks": 3,
                    "num_tokens": 128,
                },
                faulty={"entries": 7, "row width": 4},
                repaired={"row width": 7},
            ),
            Report(
                sizes={
                    "max_model_len": 128,
                    "block_size": 32,
                    "num_speculative_blocks": 3,
                    "num_tokens": 93,
                },
                faulty={"entries": 6, "row width": 4},
                repaired={"row width": 7},
            ),
        ),
    ),
)
