"""Rows and pages that two parts take for differently long ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from invariants import TODAY, Case, Runner, row_width
from invariants.arithmetic import cdiv, common_divisor, minimum, modulo, round_up
from invariants.parameters import size
from proofs.faults.model import Claim, Fault, Kind, Report, at_most, engine, equal, sizes_of

__all__ = ["FAULTS"]

_TILE_TOKENS = 128
"""Tokens that the kernel reads at a time; vLLM pads rows to them."""


def _whole_tiles(case: Case, width: int) -> Claim:
    """Claim that a row ends at a tile of the kernel."""
    return equal(past_a_whole_tile=modulo(width, _tile(case)), expected=0, row_width=width)


def _tile(case: Case) -> int:
    """Return how many blocks one tile has."""
    return _TILE_TOKENS // common_divisor(_TILE_TOKENS, case.spec.tokens_per_block)


def _padding_is_whole_tiles(case: Case) -> Iterator[bool]:
    blocks = case.spec.max_num_blocks_per_req(case.deployment, case.deployment.row_length(Runner.V2))
    width, tile = TODAY.width(case.deployment, case.spec, Runner.V2), _tile(case)
    yield width == cdiv(blocks, tile) * tile
    yield width // tile == cdiv(blocks, tile)


def _padded_to_tiles(case: Case) -> bool:
    return case.deployment.block_table_token_alignment == _TILE_TOKENS


def _unpadded(case: Case) -> int:
    return case.spec.max_num_blocks_per_req(case.deployment, case.deployment.max_model_len)


def _consumer_agrees(case: Case, width: int) -> Claim:
    return equal(consumer_width=width, row_width=row_width(case.deployment, case.spec, release=TODAY))


def _not_an_encoder_decoder(case: Case) -> bool:
    return case.deployment.max_num_encoder_input_tokens + case.deployment.max_source_positions == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strided:
    """A page or row that is found by its stride."""

    stride: int = size("elements from one to the next as they lie in memory", minimum=1)
    dense: int = size("elements of the content alone", minimum=1)
    index: int = size("page or row, from 0")


def _found_at(sizes: _Strided, stride: int) -> Claim:
    return equal(used_offset=sizes.index * stride, offset=sizes.index * sizes.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paged:
    """A row whose entries the manager and the kernel take for blocks of different sizes."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    block_size: int = size("tokens per block as the manager has it", minimum=1)
    kernel_page: int = size("tokens per block as the kernel has it", minimum=1)


def _row_reaches(sizes: _Paged, page: int) -> Claim:
    row = cdiv(sizes.max_model_len, sizes.block_size)
    return at_most(tokens=sizes.max_model_len, addressed=row * page, row_width=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expanded:
    """A manager block that is split into kernel blocks."""

    kernel_block_size: int = size("tokens per kernel block", minimum=1)
    kernel_blocks: int = size("kernel blocks per manager block", minimum=1)
    kernel_block: int = size("a kernel block's number")


def _kernel_block_at(sizes: _Expanded, tokens: int) -> Claim:
    return equal(
        used_offset=sizes.kernel_block * tokens,
        offset=sizes.kernel_block * sizes.kernel_block_size,
        factor=sizes.kernel_blocks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """A row that is staged in on-chip memory."""

    row_width: int = size("columns of the row", minimum=1)
    room: int = size("entries that the on-chip memory holds", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch padded for a captured graph."""

    num_reqs: int = size("requests of the batch", minimum=1)
    padded_reqs: int = size("requests of the padded batch", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clamped:
    """A size that is both aligned and clamped."""

    wanted: int = size("size that is wanted", minimum=1)
    limit: int = size("largest size", minimum=4)
    alignment: int = size("multiple that the size must be of", minimum=1, maximum=4, usual=4)


def _aligned(sizes: _Clamped, chosen: int) -> Claim:
    return equal(past_alignment=modulo(chosen, sizes.alignment), expected=0, chosen=chosen)


def _clamped_first(sizes: _Clamped) -> int:
    whole = sizes.limit // sizes.alignment * sizes.alignment
    return minimum(round_up(sizes.wanted, sizes.alignment), whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sink:
    """The table of sink attention, put together by its builder."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    block_size: int = size("tokens per block, a divisor of 128", minimum=1, usual=16)


FAULTS: tuple[Fault, ...] = (
    Fault(
        thread="vllm#39324",
        kind=Kind.ALIGNMENT,
        title="a kernel of latent attention reads whole tiles of 128 tokens and the row ends inside one",
        seen="a ValueError",
        domain=engine("mla", TODAY),
        assumes=_padded_to_tiles,
        faulty=lambda case: _whole_tiles(case, _unpadded(case)),
        repaired=lambda case: _whole_tiles(case, TODAY.width(case.deployment, case.spec, Runner.V2)),
        steps=_padding_is_whole_tiles,
        reports=(
            Report(
                sizes={"max_model_len": 9_416, "block_size": 32, "num_tokens": 1},
                faulty={"row width": 295, "past a whole tile": 3},
                repaired={"row width": 296, "past a whole tile": 0},
            ),
        ),
    ),
    Fault(
        thread="local-inference-lab/vllm#166",
        kind=Kind.ALIGNMENT,
        title="a consumer derives the row's width without its padding",
        seen="a shape error; with the row trimmed to fit, an illegal access instead",
        domain=engine("mla", TODAY),
        assumes=_not_an_encoder_decoder,
        faulty=lambda case: _consumer_agrees(case, _unpadded(case) * case.spec.expansion),
        repaired=lambda case: _consumer_agrees(case, row_width(case.deployment, case.spec, release=TODAY)),
        reports=(
            Report(
                sizes={"max_model_len": 480_000, "block_size": 64, "decode_context_parallel_size": 4},
                faulty={"consumer width": 1_875, "row width": 1_876},
                repaired={"consumer width": 1_876},
            ),
        ),
    ),
    Fault(
        thread="vllm#57477",
        kind=Kind.ALIGNMENT,
        title="a kernel walks a padded layout with the stride of a dense one",
        seen="silent corruption of the indexer's cache",
        domain=sizes_of(_Strided),
        assumes=lambda sizes: sizes.dense <= sizes.stride,
        faulty=lambda sizes: _found_at(sizes, sizes.dense),
        repaired=lambda sizes: _found_at(sizes, sizes.stride),
        reports=(
            Report(
                sizes={"stride": 19_008, "dense": 1_024, "index": 1},
                faulty={"used offset": 1_024, "offset": 19_008},
                repaired={"used offset": 19_008},
                first="index",
            ),
        ),
    ),
    Fault(
        thread="vllm#54359",
        also=("vllm#56380", "vllm#57536", "vllm#53906"),
        kind=Kind.ALIGNMENT,
        title="the kernel's page is smaller than the block size that the row was made with",
        seen="lost recall and wrong tool calls, no crash",
        domain=sizes_of(_Paged),
        faulty=lambda sizes: _row_reaches(sizes, sizes.kernel_page),
        repaired=lambda sizes: _row_reaches(sizes, sizes.block_size),
        reports=(
            Report(
                sizes={"max_model_len": 262_144, "block_size": 640, "kernel_page": 32 * 4},
                faulty={"row width": 410, "addressed": 52_480, "tokens": 262_144},
                repaired={"addressed": 262_400},
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#7019",
        also=(
            "vllm#51031",
            "vllm#47698",
            "vllm#38831",
            "vllm#27753",
            "ovg-project/kvcached#330",
        ),
        kind=Kind.ALIGNMENT,
        title="the manager's block size is used where kernel blocks are counted",
        seen="lower accuracy, or a stride that is wrong by the number of kernel blocks",
        domain=sizes_of(_Expanded),
        faulty=lambda sizes: _kernel_block_at(sizes, sizes.kernel_block_size * sizes.kernel_blocks),
        repaired=lambda sizes: _kernel_block_at(sizes, sizes.kernel_block_size),
        reports=(
            Report(
                sizes={"kernel_block_size": 16, "kernel_blocks": 33, "kernel_block": 1},
                faulty={"used offset": 528, "offset": 16, "factor": 33},
                repaired={"used offset": 16},
                first="kernel_block",
            ),
            Report(
                sizes={"kernel_block_size": 64, "kernel_blocks": 2, "kernel_block": 1},
                faulty={"used offset": 128, "offset": 64, "factor": 2},
                repaired={"used offset": 64},
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#15817",
        also=("vllm-ascend#16120",),
        kind=Kind.ALIGNMENT,
        title="a kernel stages a whole row in on-chip memory, however wide it is",
        seen="more than the on-chip memory holds at 131,072 entries",
        domain=sizes_of(_Staged),
        faulty=lambda sizes: at_most(staged=sizes.row_width, room=sizes.room),
        repaired=lambda sizes: at_most(staged=minimum(sizes.row_width, sizes.room), room=sizes.room),
        reports=(
            Report(
                sizes={"row_width": 131_072, "room": 16_384},
                faulty={"staged": 131_072, "room": 16_384},
                repaired={"staged": 16_384},
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#14714",
        kind=Kind.ALIGNMENT,
        title="table rows of the padded batch stand beside the query segments of the real one",
        seen="an error about repeats at some batch sizes only",
        domain=sizes_of(_Batch),
        assumes=lambda sizes: sizes.num_reqs <= sizes.padded_reqs,
        faulty=lambda sizes: equal(table_rows=sizes.padded_reqs, query_segments=sizes.num_reqs),
        repaired=lambda sizes: equal(
            table_rows=minimum(sizes.padded_reqs, sizes.num_reqs), query_segments=sizes.num_reqs
        ),
        reports=(
            Report(
                sizes={"num_reqs": 5, "padded_reqs": 6},
                faulty={"table rows": 6, "query segments": 5},
                repaired={"table rows": 5},
                first="padded_reqs",
            ),
        ),
    ),
    Fault(
        thread="NVIDIA/TensorRT-LLM#16957",
        kind=Kind.ALIGNMENT,
        title="a size is aligned and then clamped, and the clamp undoes the alignment",
        seen="found in review",
        domain=sizes_of(_Clamped),
        assumes=lambda sizes: sizes.limit >= sizes.alignment,
        faulty=lambda sizes: _aligned(sizes, minimum(round_up(sizes.wanted, sizes.alignment), sizes.limit)),
        repaired=lambda sizes: _aligned(sizes, _clamped_first(sizes)),
        reports=(
            Report(
                sizes={"wanted": 5, "limit": 6, "alignment": 4},
                faulty={"chosen": 6, "past alignment": 2},
                repaired={"chosen": 4, "past alignment": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#10112",
        kind=Kind.ALIGNMENT,
        title="one dummy column is added to the row, and a consumer keeps the stride without it",
        seen="found in review",
        domain=sizes_of(_Strided),
        assumes=lambda sizes: sizes.stride == sizes.dense + 1,
        faulty=lambda sizes: _found_at(sizes, sizes.dense),
        repaired=lambda sizes: _found_at(sizes, sizes.stride),
        reports=(
            Report(
                sizes={"stride": 65, "dense": 64, "index": 1},
                faulty={"used offset": 64, "offset": 65},
                repaired={"used offset": 65},
                first="index",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm-0.33:sink-columns",
        kind=Kind.ALIGNMENT,
        title="the builder of sink attention concatenates to the length's blocks, not to the padded row",
        seen="nothing reported; no release can construct the manager behind it",
        domain=engine("sink-full-attention", TODAY),
        assumes=_not_an_encoder_decoder,
        faulty=lambda case: _consumer_agrees(case, _unpadded(case) * case.spec.expansion),
        repaired=lambda case: _consumer_agrees(case, row_width(case.deployment, case.spec, release=TODAY)),
        reports=(
            Report(
                sizes={"max_model_len": 1_000, "num_tokens": 1},
                faulty={"consumer width": 63, "row width": 64},
                repaired={"consumer width": 64},
            ),
        ),
    ),
)
