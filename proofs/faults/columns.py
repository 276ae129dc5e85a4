"""Indices that leave the row or list they are meant for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from invariants import TODAY, Case, Runner, column, row_width
from invariants.arithmetic import all_of, cdiv, minimum, modulo, round_up, where
from invariants.parameters import size
from proofs.faults.model import PAD, Claim, Fault, Kind, Report, at_most, below, differ, engine, sizes_of

__all__ = ["FAULTS"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mapped:
    """One position that a kernel maps through a row."""

    row_width: int = size("columns of the row", minimum=1)
    block_size: int = size("tokens per block", minimum=1)
    position: int = size("token position, from 0")


def _masked(column: int, width: int) -> int:
    """Return the column where it is in the row, and PAD elsewhere."""
    return where(column < width, column, PAD)


def _mapped_inside(sizes: _Mapped, column: int) -> Claim:
    return below(column=column, row_width=sizes.row_width)


def _ring_inside(case: Case, read: int) -> Claim:
    width = row_width(case.deployment, case.spec, runner=Runner.V1, release=TODAY)
    return below(column=read, row_width=width)


def _within_context(case: Case) -> bool:
    return case.access.position < case.deployment.max_model_len


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One position written through a row of which only the first entries are held."""

    held: int = size("blocks that the request holds", minimum=1)
    row_width: int = size("columns of the row", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    position: int = size("token position, from 0")


def _written_inside(sizes: _Held, bound: int) -> Claim:
    return below(
        column=_masked(sizes.position // sizes.block_size, bound),
        held=sizes.held,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gather:
    """A gather that splits a sequence among programs."""

    row_width: int = size("columns of the row", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    seq_len: int = size("tokens to gather", minimum=1)
    splits: int = size("programs that share a sequence", minimum=1)
    split: int = size("which of them, from 0")
    seq_start: int = size("first token to gather")


def _gathered_inside(sizes: _Gather, bound: int | None = None) -> Claim:
    read = cdiv(sizes.seq_len, sizes.splits) * sizes.split + sizes.seq_start // sizes.block_size
    return below(column=read if bound is None else _masked(read, bound), row_width=sizes.row_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalBlocks:
    """The block indices of one attention chunk."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    blocks_per_chunk: int = size("blocks of an attention chunk", minimum=1)
    num_tokens: int = size("tokens of the sequence", minimum=1)


def _chunk_inside(sizes: _LocalBlocks, *, clipped: bool) -> Claim:
    chunk = (sizes.num_tokens - 1) // (sizes.block_size * sizes.blocks_per_chunk)
    last = (chunk + 1) * sizes.blocks_per_chunk - 1
    width = cdiv(sizes.max_model_len, sizes.block_size)
    return below(last_column=minimum(last, width - 1) if clipped else last, row_width=width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A draft model whose context is shorter than its target's."""

    target_len: int = size("longest sequence of the target model", minimum=1)
    draft_len: int = size("longest sequence of the draft model", minimum=1)
    position: int = size("token position that is drafted, from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """A kernel that reads a row in whole tiles of columns."""

    seq_len: int = size("tokens of the sequence", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    tile: int = size("columns of one tile", minimum=1)


def _tiles_inside(sizes: _Tiles, read: int) -> Claim:
    return at_most(columns_read=read, row_width=cdiv(sizes.seq_len, sizes.block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """A loop over the blocks that a request holds."""

    held: int = size("blocks that the request holds", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identifier:
    """One entry of a row, used as an index into a pool."""

    pool_blocks: int = size("blocks in the pool", minimum=1)
    block: int = size("block ID in the row")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """A drafter that clamps positions to a length which was lowered after it had copied it."""

    configured_len: int = size("max_model_len that the drafter copied", minimum=1)
    max_model_len: int = size("max_model_len after it was fitted to the memory", minimum=2)
    block_size: int = size("tokens per block, a divisor of 128 or a multiple of it", minimum=1, usual=16)
    num_speculative_tokens: int = size("draft tokens per step", minimum=1)


def _drafted_inside(sizes: _Fitted, clamp: int) -> Claim:
    """Claim the column of the last drafted position; the last accepted one is max_model_len - 2."""
    position = minimum(sizes.max_model_len - 2 + sizes.num_speculative_tokens - 1, clamp - 1)
    return below(
        column=position // sizes.block_size,
        row_width=cdiv(sizes.max_model_len, sizes.block_size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aliased:
    """Two positions that a drafter writes near the end of the context."""

    row_width: int = size("columns of the row", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)
    earlier: int = size("a position that the sequence holds")
    later: int = size("a position that the drafter asks for")


def _slot(sizes: _Aliased, position: int) -> int:
    """Return a slot with each column's block ID taken for the column itself; the column is clamped."""
    held = minimum(position // sizes.block_size, sizes.row_width - 1)
    return held * sizes.block_size + modulo(position, sizes.block_size)


def _slots_differ(sizes: _Aliased, later: int) -> Claim:
    return differ(later_slot=later, earlier_slot=_slot(sizes, sizes.earlier))


def _slot_or_pad(sizes: _Aliased) -> int:
    past = sizes.later >= sizes.row_width * sizes.block_size
    return where(past, PAD, _slot(sizes, sizes.later))


def _earlier_is_held(sizes: _Aliased) -> bool:
    return all_of(
        sizes.earlier < sizes.later,
        sizes.earlier < sizes.row_width * sizes.block_size,
    )


def _slot_is_position(sizes: _Aliased) -> Iterator[bool]:
    """Lead to: inside the row, a slot is the position itself, and positions differ."""
    block, width = sizes.block_size, sizes.row_width
    earlier, later = sizes.earlier // block, sizes.later // block
    yield earlier < width
    yield _slot(sizes, sizes.earlier) == sizes.earlier
    yield where(sizes.later >= width * block, True, later < width)
    yield where(sizes.later >= width * block, True, _slot(sizes, sizes.later) == sizes.later)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldStates:
    """A recurrent state picked by how many drafts were accepted."""

    held: int = size("state blocks that the request holds", minimum=1)
    current: int = size("block of the running state, from 0")
    accepted: int = size("tokens accepted in the last step", minimum=1)


FAULTS: tuple[Fault, ...] = (
    Fault(
        thread="vllm#53982",
        also=("vllm#54296", "vllm#56437", "vllm#56438", "vllm#56439"),
        kind=Kind.COLUMN,
        title="slot mapping masks by whether a token is valid, not by whether its column is in the row",
        seen="a memory fault on one vendor, an illegal access blamed on later kernels on another",
        domain=sizes_of(_Mapped),
        faulty=lambda sizes: _mapped_inside(sizes, sizes.position // sizes.block_size),
        repaired=lambda sizes: _mapped_inside(
            sizes, _masked(sizes.position // sizes.block_size, sizes.row_width)
        ),
        reports=tuple(
            Report(
                sizes={"row_width": 32, "block_size": 4, "position": position},
                faulty={"column": read, "row width": 32},
                repaired={"column": PAD},
            )
            for position, read in ((130, 32), (8_192, 2_048), (1_048_575, 262_143))
        ),
    ),
    Fault(
        thread="vllm#57317",
        also=("vllm#57227", "vllm#56469", "vllm#53896", "vllm#53781"),
        kind=Kind.COLUMN,
        title="a ring of one block is mapped by position like any attention group",
        seen="prompts of 500K tokens read past a row made for one block",
        domain=engine("circular-buffer", TODAY),
        assumes=_within_context,
        faulty=lambda case: _ring_inside(case, case.access.position // case.spec.block_size),
        repaired=lambda case: _ring_inside(
            case, column(case.deployment, case.spec, case.access, runner=Runner.V2)
        ),
        reports=(
            # The threads give no block size; these are a 0.33 worker's numbers on Model Runner V1.
            Report(
                sizes={"max_model_len": 131_072, "block_size": 8, "num_tokens": 1, "position": 131_071},
                faulty={"column": 16_383, "row width": 16},
                repaired={"column": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="gittensor-ai-lab/sparkinfer#41",
        also=("gittensor-ai-lab/sparkinfer#42", "gittensor-ai-lab/sparkinfer#152"),
        kind=Kind.COLUMN,
        title="an append checks its column against the row, not against the blocks that are held",
        seen="nothing reported",
        domain=sizes_of(_Held),
        assumes=lambda sizes: sizes.held <= sizes.row_width,
        faulty=lambda sizes: _written_inside(sizes, sizes.row_width),
        repaired=lambda sizes: _written_inside(sizes, sizes.held),
        reports=(
            Report(
                sizes={"held": 2, "row_width": 4_096, "position": 32},
                faulty={"column": 2, "held": 2},
                repaired={"column": PAD},
                first="position",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#45462",
        also=("vllm#45380", "vllm#45537"),
        kind=Kind.COLUMN,
        title="a gather adds a split's tokens to the start's block without bounding the sum",
        seen="found by reading: index 1,022,342 of a table of 1,021,952",
        domain=sizes_of(_Gather),
        assumes=lambda sizes: all_of(
            sizes.split < sizes.splits, sizes.seq_start < sizes.row_width * sizes.block_size
        ),
        faulty=_gathered_inside,
        repaired=lambda sizes: _gathered_inside(sizes, sizes.row_width),
        reports=(
            Report(
                sizes={"row_width": 1_024, "seq_len": 834, "splits": 2, "split": 1, "seq_start": 15_967},
                faulty={"column": 1_414, "row width": 1_024},
                repaired={"column": PAD},
            ),
        ),
    ),
    Fault(
        thread="vllm#16209",
        also=("vllm#16157", "vllm#16274", "sgl-project/sglang#5173", "sgl-project/sglang#5170"),
        kind=Kind.COLUMN,
        title="the blocks of a whole attention chunk are indexed although the row ends inside it",
        seen="an index error at 8,193 tokens",
        domain=sizes_of(_LocalBlocks),
        assumes=lambda sizes: sizes.num_tokens <= sizes.max_model_len,
        faulty=lambda sizes: _chunk_inside(sizes, clipped=False),
        repaired=lambda sizes: _chunk_inside(sizes, clipped=True),
        reports=(
            Report(
                sizes={"max_model_len": 8_193, "blocks_per_chunk": 512, "num_tokens": 8_193},
                faulty={"last column": 1_023, "row width": 513},
                repaired={"last column": 512},
                first="num_tokens",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#41898",
        also=("vllm#41884",),
        kind=Kind.COLUMN,
        title="accepted drafts move the state index past the blocks that are held",
        seen="list index out of range; the engine is down",
        domain=sizes_of(_HeldStates),
        assumes=lambda sizes: sizes.current < sizes.held,
        faulty=lambda sizes: below(index=sizes.current + sizes.accepted - 1, held=sizes.held),
        repaired=lambda sizes: below(
            index=minimum(sizes.current + sizes.accepted - 1, sizes.held - 1), held=sizes.held
        ),
        reports=(
            Report(
                sizes={"held": 3, "current": 2, "accepted": 2},
                faulty={"index": 3, "held": 3},
                repaired={"index": 2},
                first="accepted",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#57941",
        also=("vllm#57964", "vllm#21986", "vllm#24662", "sgl-project/sglang#9388"),
        kind=Kind.COLUMN,
        title="drafting goes on past the draft model's own context",
        seen="an illegal access, or an index out of bounds",
        domain=sizes_of(_Draft),
        assumes=lambda sizes: sizes.position < sizes.target_len,
        faulty=lambda sizes: below(position=sizes.position, draft_table=sizes.draft_len),
        repaired=lambda sizes: below(
            position=_masked(sizes.position, sizes.draft_len), draft_table=sizes.draft_len
        ),
        reports=(
            Report(
                sizes={"target_len": 393_216, "draft_len": 131_072, "position": 131_072},
                faulty={"position": 131_072, "draft table": 131_072},
                repaired={"position": PAD},
                first="position",
            ),
            Report(
                sizes={"target_len": 393_216, "draft_len": 131_072, "position": 149_999},
                faulty={"position": 149_999, "draft table": 131_072},
            ),
        ),
    ),
    Fault(
        thread="flashinfer-ai/flashinfer#4737",
        also=("vllm#50852", "vllm#48043"),
        kind=Kind.COLUMN,
        title="a kernel reads its row in whole tiles",
        seen="one column past the row is read",
        domain=sizes_of(_Tiles),
        faulty=lambda sizes: _tiles_inside(
            sizes, round_up(cdiv(sizes.seq_len, sizes.block_size), sizes.tile)
        ),
        repaired=lambda sizes: _tiles_inside(
            sizes,
            minimum(
                round_up(cdiv(sizes.seq_len, sizes.block_size), sizes.tile),
                cdiv(sizes.seq_len, sizes.block_size),
            ),
        ),
        reports=(
            Report(
                sizes={"seq_len": 257, "block_size": 64, "tile": 2},
                faulty={"columns read": 6, "row width": 5},
                repaired={"columns read": 5},
            ),
        ),
    ),
    Fault(
        thread="NVIDIA/TensorRT-LLM#3736",
        kind=Kind.COLUMN,
        title="a loop over a request's blocks runs one past the list",
        seen="a crash under stress: index 180 of 180",
        domain=sizes_of(_List),
        faulty=lambda sizes: below(last_index=sizes.held, held=sizes.held),
        repaired=lambda sizes: below(last_index=sizes.held - 1, held=sizes.held),
        reports=(
            Report(
                sizes={"held": 180},
                faulty={"last index": 180, "held": 180},
                repaired={"last index": 179},
            ),
        ),
    ),
    Fault(
        thread="microsoft/onnxruntime#32391",
        kind=Kind.COLUMN,
        title="paged attention validates the table's shape and not the block IDs in it",
        seen="found in review",
        domain=sizes_of(_Identifier),
        faulty=lambda sizes: below(block=sizes.block, pool_blocks=sizes.pool_blocks),
        repaired=lambda sizes: below(
            block=_masked(sizes.block, sizes.pool_blocks), pool_blocks=sizes.pool_blocks
        ),
        reports=(
            Report(
                sizes={"pool_blocks": 64, "block": 64},
                faulty={"block": 64, "pool blocks": 64},
                repaired={"block": PAD},
                first="block",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#56059",
        kind=Kind.COLUMN,
        title="prefill stores at a block ID of the main pool in a tensor of one block per request",
        seen="a GPU memory fault; decode had the guard, prefill had not",
        domain=sizes_of(_Identifier),
        faulty=lambda sizes: below(block=sizes.block, tail_blocks=sizes.pool_blocks),
        repaired=lambda sizes: below(
            block=_masked(sizes.block, sizes.pool_blocks), tail_blocks=sizes.pool_blocks
        ),
        reports=(
            # The thread gives the block ID; the tensor's length here, 256 requests, is ours.
            Report(
                sizes={"pool_blocks": 256, "block": 3_535},
                faulty={"block": 3_535, "tail blocks": 256},
                repaired={"block": PAD},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm-0.32:drafter-clamp",
        kind=Kind.COLUMN,
        title="a drafter clamps positions to the length from before it was fitted to the memory",
        seen="nothing reported; the release's own arithmetic leaves the row at three drafts",
        domain=sizes_of(_Fitted),
        assumes=lambda sizes: sizes.max_model_len <= sizes.configured_len,
        faulty=lambda sizes: _drafted_inside(sizes, sizes.configured_len),
        repaired=lambda sizes: _drafted_inside(sizes, sizes.max_model_len),
        reports=tuple(
            Report(
                sizes={
                    "configured_len": 131_072,
                    "max_model_len": length,
                    "block_size": block,
                    "num_speculative_tokens": 3,
                },
                faulty={"column": width, "row width": width},
                repaired={"column": width - 1},
                first="num_speculative_tokens",
            )
            for length, block, width in ((1_024, 16, 64), (40_960, 128, 320))
        ),
    ),
    Fault(
        thread="vllm-0.33:draft-aliasing",
        kind=Kind.COLUMN,
        title="a drafter clamps the column but not the offset, so positions past the context share slots",
        seen="nothing reported; draft positions 128 to 133 write the slots of 112 to 117",
        domain=sizes_of(_Aliased),
        assumes=_earlier_is_held,
        faulty=lambda sizes: _slots_differ(sizes, _slot(sizes, sizes.later)),
        repaired=lambda sizes: _slots_differ(sizes, _slot_or_pad(sizes)),
        steps=_slot_is_position,
        reports=tuple(
            Report(
                sizes={"row_width": 8, "earlier": slot, "later": later},
                faulty={"later slot": slot, "earlier slot": slot},
                repaired={"later slot": PAD, "earlier slot": slot},
            )
            for later, slot in ((128, 112), (133, 117))
        ),
    ),
)
