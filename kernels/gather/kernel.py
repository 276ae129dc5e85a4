"""The gather's Triton kernel: program (b, g) fills destination row b of group g.

Contract:

* `pointers` uint64, `strides` int64, `widths` int64: [groups], the source `TableLayout` with `num_rows`
  rows. `out_pointers` uint64 and `out_strides` int64 describe destination tables of the same widths; the
  host guarantees that they have at least as many rows as the launch has programs on axis 0.
* `counts`: int32 [groups, num_rows], row g at `counts + g * counts_stride`.
* `idx_mapping`: int32 or int64 [num_reqs], the source row of each batch row. -1 marks a dummy request.
* Destination row b gets the first min(count, width) entries of its source row and zeros after them. It
  is zero throughout when b >= num_reqs or its source row does not exist. No ID of an earlier batch is
  ever readable.
* TRACKED: `filled`, int32 [groups, destination rows] with row g at `filled + g * filled_stride`, holds how
  many leading entries of each destination row may be other than zero, 0 to width. Zeros are stored only
  up to there, and it becomes the number of entries that were copied. Without TRACKED it is not read, and
  every entry of the row is stored.
* RECORD (with BOUNDED alone): a source row that does not exist and is not -1 is reported as READ_ROW, and
  a count that is not in 0..width as COUNT, each once per batch row and group, to `words` and `flag` with
  the number `launch` (see `kernels.record.kernel`). Without RECORD these three are not read.
* not BOUNDED: row and count are taken as they stand, as far as the chunks that the widths call for reach.
  This is the gather without a guard; a count too large copies the neighbour's entries.
* MASKED: entries wholly below the sliding window are zero too: max(num_computed - reach, 0) // block
  size of them where the group's reach is positive. `num_computed_tokens` is int32 or int64 [num_rows];
  `reach` and `block_sizes` are int32 [groups], and the host guarantees block sizes of at least 1.
  Without MASKED these three are not read.
"""

import triton
import triton.language as tl

from kernels.record.kernel import COUNT, READ_ROW, report_scalar

__all__ = ["gather_kernel"]


@triton.jit(
    do_not_specialize=[
        "pointers",
        "strides",
        "widths",
        "num_rows",
        "counts",
        "counts_stride",
        "idx_mapping",
        "num_reqs",
        "out_pointers",
        "out_strides",
        "filled",
        "filled_stride",
        "num_computed_tokens",
        "reach",
        "block_sizes",
        "words",
        "flag",
        "launch",
    ]
)
def gather_kernel(
    pointers,
    strides,
    widths,
    num_rows,
    counts,
    counts_stride,
    idx_mapping,
    num_reqs,
    out_pointers,
    out_strides,
    filled,
    filled_stride,
    num_computed_tokens,
    reach,
    block_sizes,
    words,
    flag,
    launch,
    BOUNDED: tl.constexpr,
    RECORD: tl.constexpr,
    MASKED: tl.constexpr,
    TRACKED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    batch_row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)

    row = tl.load(idx_mapping + batch_row, mask=batch_row < num_reqs, other=-1).to(tl.int64)
    row_exists = (row >= 0) & (row < num_rows) if BOUNDED else row != -1
    width = tl.load(widths + group)
    count = tl.load(counts + group * counts_stride + row, mask=row_exists, other=0).to(tl.int64)
    if RECORD:
        absent = (row != -1) & ~row_exists
        report_scalar(words, flag, READ_ROW, group, row, row, num_rows, launch, absent)
        stale = row_exists & ((count < 0) | (count > width))
        report_scalar(words, flag, COUNT, group, row, count, width, launch, stale)
    if BOUNDED:
        count = tl.minimum(tl.maximum(count, 0), width)

    first = 0
    if MASKED:
        computed = tl.load(num_computed_tokens + row, mask=row_exists, other=0).to(tl.int64)
        window = tl.load(reach + group).to(tl.int64)
        below = tl.maximum(computed - window, 0) // tl.load(block_sizes + group)
        first = tl.where(window > 0, below, first)

    end = width
    if TRACKED:
        filled += group * filled_stride + batch_row
        end = tl.minimum(tl.load(filled).to(tl.int64), width)
        tl.store(filled, tl.minimum(count, width).to(tl.int32))
    end = tl.maximum(end, count)

    source = tl.load(pointers + group).to(tl.pointer_type(tl.int32))
    source += row * tl.load(strides + group)
    target = tl.load(out_pointers + group).to(tl.pointer_type(tl.int32))
    target += batch_row * tl.load(out_strides + group)
    start = end - end
    while start < end:
        column = start + tl.arange(0, CHUNK)
        block_ids = tl.load(source + column, mask=(column >= first) & (column < count), other=0)
        tl.store(target + column, block_ids, mask=column < end)
        start += CHUNK
