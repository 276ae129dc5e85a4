"""The slot mapping's Triton kernel: program (b, g) maps the tokens of batch row b in group g.

Contract:

* `pointers` uint64, `strides` int64, `widths` int64: [groups], a `TableLayout` with `num_rows` rows.
* `block_sizes`, `kernel_block_sizes`, `enabled`, `sharded`: int32 [groups], a `SlotGeometry`. The host
  guarantees sizes of at least 1. Without context parallelism (CP_SIZE 1) the kernel does not read
  `block_sizes` and `sharded`.
* `idx_mapping`: int32 or int64 [num_reqs], the table row of each batch row. -1 marks a dummy request.
* `query_start_loc`: int32 or int64 [num_reqs + 1]; batch row b has the tokens query_start_loc[b] up to
  query_start_loc[b + 1]. The caller guarantees that it begins at 0 and does not fall, so that no two
  programs store to one place. `positions`: int32 or int64 [num_positions], one per token.
* `out`: int64 [groups, num_tokens], rows `out_stride` entries apart. Every entry is stored: programs
  num_reqs and up put PAD behind the last token, PAD_CHUNK each.
* A token's slot is block ID * kernel block size + offset. The block ID stands in column (local position //
  kernel block size) of its request's row, the offset is the rest. The local position is the position
  itself; in a `sharded` group the ranks take runs of CP_INTERLEAVE tokens in turn within each block_size *
  CP_SIZE tokens, and it is the place that the position has on the rank that takes it. The slot is PAD on
  all other ranks, in a group that is not `enabled`, and for a dummy request.
* BOUNDED: a block ID is loaded only from a row of the table and a column of that row, and a token is read
  and stored only below min(num_tokens, num_positions). What is refused is PAD.
* COUNTED (with BOUNDED alone): nor is one loaded from a column at or past the row's entry in `counts`,
  int32 [groups, num_rows] with row g at `counts + g * counts_stride`. Without COUNTED it is not read.
* RECORD (with BOUNDED alone): per group, what is refused is reported to `words` and `flag` with the number
  `launch` (see `kernels.record.kernel`): TOKEN for each token that the buffers do not hold (`row` is b),
  and in enabled groups READ_ROW for each token of a row that is neither in the table nor -1, and
  POSITION, READ_PAST_ROW or READ_PAST_COUNT for each other token. All ranks of a deployment report alike:
  it does not matter which of them owns the position.
* not BOUNDED: row, column and token are taken as they stand. This is the mapping without a guard.
"""

import triton
import triton.language as tl

from kernels.record.kernel import (
    POSITION,
    READ_PAST_COUNT,
    READ_PAST_ROW,
    READ_ROW,
    TOKEN,
    report,
    report_scalar,
)

__all__ = ["slot_mapping_kernel"]


@triton.jit(
    do_not_specialize=[
        "pointers",
        "strides",
        "widths",
        "num_rows",
        "counts",
        "counts_stride",
        "block_sizes",
        "kernel_block_sizes",
        "enabled",
        "sharded",
        "idx_mapping",
        "query_start_loc",
        "num_reqs",
        "positions",
        "num_positions",
        "out",
        "out_stride",
        "num_tokens",
        "cp_rank",
        "words",
        "flag",
        "launch",
    ]
)
def slot_mapping_kernel(  # noqa: C901, PLR0915 - most branches choose a variant at compile time
    pointers,
    strides,
    widths,
    num_rows,
    counts,
    counts_stride,
    block_sizes,
    kernel_block_sizes,
    enabled,
    sharded,
    idx_mapping,
    query_start_loc,
    num_reqs,
    positions,
    num_positions,
    out,
    out_stride,
    num_tokens,
    cp_rank,
    words,
    flag,
    launch,
    BOUNDED: tl.constexpr,
    RECORD: tl.constexpr,
    COUNTED: tl.constexpr,
    CP_SIZE: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    PAD: tl.constexpr,
    PAD_CHUNK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    program = tl.program_id(0)
    group = tl.program_id(1).to(tl.int64)
    target = out + group * out_stride
    held = tl.minimum(num_tokens, num_positions).to(tl.int64)

    if program >= num_reqs:
        used = tl.load(query_start_loc + num_reqs).to(tl.int64)
        if BOUNDED:
            used = tl.minimum(used, held)
        token = (program - num_reqs).to(tl.int64) * PAD_CHUNK + tl.arange(0, PAD_CHUNK)
        tl.store(target + token, PAD, mask=(token >= used) & (token < num_tokens))
    else:
        row = tl.load(idx_mapping + program).to(tl.int64)
        begin = tl.load(query_start_loc + program).to(tl.int64)
        end = tl.load(query_start_loc + program + 1).to(tl.int64)
        is_enabled = tl.load(enabled + group) != 0
        kernel_block_size = tl.load(kernel_block_sizes + group).to(tl.int64)
        width = tl.load(widths + group)
        table = tl.load(pointers + group).to(tl.pointer_type(tl.int32))
        table += row * tl.load(strides + group)

        first = begin
        last = end
        count = width
        row_exists = row != -1
        if BOUNDED:
            first = tl.minimum(tl.maximum(begin, 0), held)
            last = tl.maximum(tl.minimum(end, held), first)
            row_exists = (row >= 0) & (row < num_rows)
            if COUNTED:
                count = tl.load(counts + group * counts_stride + row, mask=row_exists, other=0).to(tl.int64)
        if RECORD:
            outside = tl.maximum(end - begin, 0) - (last - first)
            lowest = tl.where(begin < 0, begin, tl.maximum(begin, held))
            report_scalar(words, flag, TOKEN, group, program, lowest, held, launch, outside)
            absent = tl.where(is_enabled & (row != -1) & ~row_exists, last - first, 0)
            report_scalar(words, flag, READ_ROW, group, row, row, num_rows, launch, absent)

        # No token is mapped where the group or the row is not.
        mapped = tl.where(is_enabled & row_exists, last, first)
        start = first
        while start < last:
            token = start + tl.arange(0, CHUNK)
            in_request = token < last
            position = tl.load(positions + token, mask=in_request, other=0).to(tl.int64)
            local = position
            is_local = in_request
            if CP_SIZE != 1:
                is_sharded = tl.load(sharded + group) != 0
                block_size = tl.load(block_sizes + group).to(tl.int64)
                rank, place = _dealt(position, block_size, CP_SIZE, CP_INTERLEAVE)
                local = tl.where(is_sharded, place, position)
                is_local = tl.where(is_sharded, rank, cp_rank) == cp_rank
            column = local // kernel_block_size

            is_readable = token < mapped
            if BOUNDED:
                # Triton's // rounds towards zero, so a negative position has no column of its own.
                is_allowed = (position >= 0) & (column < width) & (column < count)
                if RECORD:
                    refused = is_readable & ~is_allowed
                    places = width * kernel_block_size
                    if CP_SIZE != 1:
                        places = tl.where(is_sharded, places * CP_SIZE, places)
                    _report_lanes(
                        words, flag, group, row, position, places, column, width, count, launch, refused
                    )
                is_readable = is_readable & is_allowed

            has_slot = is_readable & is_local
            block_id = tl.load(table + column, mask=has_slot, other=0).to(tl.int64)
            slot = block_id * kernel_block_size + local % kernel_block_size
            tl.store(target + token, tl.where(has_slot, slot, PAD), mask=in_request)
            start += CHUNK


@triton.jit
def _dealt(position, block_size, CP_SIZE: tl.constexpr, CP_INTERLEAVE: tl.constexpr):
    """Return the rank that a position is dealt to, and its place there."""
    stretch = block_size * CP_SIZE
    offset = position % stretch
    rounds = offset // (CP_INTERLEAVE * CP_SIZE)
    rank = offset // CP_INTERLEAVE % CP_SIZE
    return rank, position // stretch * block_size + rounds * CP_INTERLEAVE + offset % CP_INTERLEAVE


@triton.jit
def _report_lanes(words, flag, group, row, position, places, column, width, count, launch, refused):
    # One reduction while all is well.
    if tl.max(refused.to(tl.int32), axis=0) > 0:
        lanes = refused & (position < 0)
        report(words, flag, POSITION, group, row, position, places, launch, lanes)
        lanes = refused & (position >= 0) & (column >= width)
        report(words, flag, READ_PAST_ROW, group, row, column, width, launch, lanes)
        # Without counts, every column below the width is below the count.
        lanes = refused & (position >= 0) & (column < width)
        report(words, flag, READ_PAST_COUNT, group, row, column, count, launch, lanes)
