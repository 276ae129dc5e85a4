"""The staged writer's Triton kernel: program (w, c) stores chunk c of write w and, for c = 0, its count.

Contract (arrays are int32 unless said otherwise; n is `num_writes`):

* `pointers` uint64, `strides` int64, `widths` int64: [groups], a `TableLayout`.
* `counts`: [groups, num_rows], row g at `counts + g * counts_stride`.
* `writes`: group IDs [n], rows [n], starts [n], new counts [n], offsets [n + 1], contents [offsets[n]],
  back to back in one buffer of fewer than 2**31 elements, on the device or in pinned host memory: each
  number is read once. The host guarantees 0 <= group < groups, offsets that begin at 0 and do not fall,
  and of two writes for one (group, row) that they share no column and name the same count, so that the
  order of programs does not matter.
* EXPANDED: `expansion` [groups] says how many entries each block ID becomes, at least 1: ID b becomes
  b * expansion + 0, 1, ... A write's length is then its IDs times that. Without EXPANDED it is not read,
  and each ID is one entry.
* BOUNDED: a store happens only where 0 <= row < num_rows and 0 <= start + lane < width. The count stored
  is clipped to 0..width, and none is stored for a row that does not exist. So whatever was refused, no
  count ever exceeds its row.
* RECORD, with BOUNDED alone: what is refused is reported to `words` and `flag`, a `ViolationRecord`,
  under the number `launch`: a write's entries outside its row by the first of them, a row that does not
  exist once.
* not BOUNDED: every lane below the length is stored, at row * stride + start + lane from the table's
  address, and the count as it stands. This is the writer without a guard; it runs past
  a row into the next one.
"""

import triton
import triton.language as tl

from kernels.record.kernel import WRITE_PAST_ROW, WRITE_ROW, report_scalar

__all__ = ["staged_writer_kernel"]


@triton.jit(
    do_not_specialize=[
        "pointers",
        "strides",
        "widths",
        "expansion",
        "counts",
        "counts_stride",
        "writes",
        "num_writes",
        "num_rows",
        "words",
        "flag",
        "launch",
    ]
)
def staged_writer_kernel(
    pointers,
    strides,
    widths,
    expansion,
    counts,
    counts_stride,
    writes,
    num_writes,
    num_rows,
    words,
    flag,
    launch,
    EXPANDED: tl.constexpr,
    BOUNDED: tl.constexpr,
    RECORD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    write = tl.program_id(0)
    chunk = tl.program_id(1)

    group = tl.load(writes + write).to(tl.int64)
    row = tl.load(writes + num_writes + write).to(tl.int64)
    start = tl.load(writes + 2 * num_writes + write).to(tl.int64)
    count = tl.load(writes + 3 * num_writes + write).to(tl.int64)
    begin = tl.load(writes + 4 * num_writes + write).to(tl.int64)
    end = tl.load(writes + 4 * num_writes + write + 1).to(tl.int64)
    contents = writes + 5 * num_writes + 1

    table = tl.load(pointers + group).to(tl.pointer_type(tl.int32))
    stride = tl.load(strides + group)

    lane = chunk.to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    column = start + lane
    if EXPANDED:
        parts = tl.load(expansion + group).to(tl.int64)
        length = (end - begin) * parts
        block_ids = tl.load(contents + begin + lane // parts, mask=lane < length, other=0).to(tl.int64)
        entries = (block_ids * parts + lane % parts).to(tl.int32)
    else:
        length = end - begin
        entries = tl.load(contents + begin + lane, mask=lane < length, other=0)

    if BOUNDED:
        width = tl.load(widths + group)
        row_exists = (row >= 0) & (row < num_rows)
        # The lanes first <= lane < last are inside the row; there are none if last <= first.
        first = tl.maximum(-start, 0)
        last = tl.where(row_exists, tl.minimum(length, width - start), 0)
        tl.store(table + row * stride + column, entries, mask=(lane >= first) & (lane < last))
        if chunk == 0:
            stored = tl.minimum(tl.maximum(count, 0), width)
            tl.store(counts + group * counts_stride + row, stored.to(tl.int32), mask=row_exists)
            if RECORD:
                refuses = ~row_exists | (last - first < length)
                # One branch while all is well.
                if refuses:
                    kept = tl.maximum(last - first, 0)
                    refused = tl.where(row_exists, length - kept, 0)
                    wanted = tl.where((start >= 0) & (start < width), width, start)
                    report_scalar(words, flag, WRITE_PAST_ROW, group, row, wanted, width, launch, refused)
                    report_scalar(words, flag, WRITE_ROW, group, row, row, num_rows, launch, ~row_exists)
    else:
        tl.store(table + row * stride + column, entries, mask=lane < length)
        if chunk == 0:
            tl.store(counts + group * counts_stride + row, count.to(tl.int32))
