"""The state selection's Triton kernel: each lane selects one state of one batch row.

Contract:

* `table`: int32 [num_rows, width], rows `stride` entries apart.
* `rows`, `seq_lens`: int32 or int64 [num_reqs]; rows[b] is the table row of batch row b.
* `out`: int32 [num_reqs, num_states], contiguous. The host guarantees num_states >= 1 and a block size
  of at least 1.
* out[b, s] is the table's entry at column (seq_lens[b] - 1) // block_size + s, and PAD where that column
  is not in the row, the row is not in the table, or the request has no token. What does not exist is
  never replaced by block 0 or by the last column.
* RECORD (with BOUNDED alone): reported to `words` and `flag` with the numbers `group` and `launch` (see
  `kernels.record.kernel`; without RECORD these are not read) are a row that is neither in the table nor
  -1 as READ_ROW and a negative length as POSITION, each once per batch row, and each state past the row
  as STATE_PAST_ROW. A length of 0 and row -1 are dummy requests and no violation.
* not BOUNDED: every state of a request that is no dummy is loaded from row * stride + column, wherever
  that is. This is the selection without a guard.
"""

import triton
import triton.language as tl

from kernels.record.kernel import POSITION, READ_ROW, STATE_PAST_ROW, report

__all__ = ["state_index_kernel"]


@triton.jit(
    do_not_specialize=[
        "table",
        "stride",
        "width",
        "num_rows",
        "rows",
        "seq_lens",
        "num_reqs",
        "out",
        "words",
        "flag",
        "group",
        "launch",
    ]
)
def state_index_kernel(
    table,
    stride,
    width,
    num_rows,
    rows,
    seq_lens,
    num_reqs,
    out,
    words,
    flag,
    group,
    launch,
    BOUNDED: tl.constexpr,
    RECORD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_STATES: tl.constexpr,
    PAD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    batch_row = lane // NUM_STATES
    in_batch = batch_row < num_reqs

    row = tl.load(rows + batch_row, mask=in_batch, other=-1).to(tl.int64)
    seq_len = tl.load(seq_lens + batch_row, mask=in_batch, other=0).to(tl.int64)
    # Triton's // rounds towards zero, so a length of 0 would select column 0 without its own test.
    column = (tl.maximum(seq_len, 1) - 1) // BLOCK_SIZE + lane % NUM_STATES
    if BOUNDED:
        row_exists = (row >= 0) & (row < num_rows)
        selectable = row_exists & (seq_len > 0) & (column < width)
        if RECORD:
            # One reduction while all is well; a dummy request is no violation.
            refused = (row != -1) & (seq_len != 0) & ~selectable
            if tl.max(refused.to(tl.int32), axis=0) > 0:
                first = refused & (lane % NUM_STATES == 0)
                absent = first & ~row_exists
                report(words, flag, READ_ROW, group, row, row, num_rows, launch, absent)
                negative = first & row_exists & (seq_len < 0)
                positions = width.to(tl.int64) * BLOCK_SIZE
                report(words, flag, POSITION, group, row, seq_len - 1, positions, launch, negative)
                past = refused & row_exists & (seq_len > 0)
                report(words, flag, STATE_PAST_ROW, group, row, column, width, launch, past)
    else:
        selectable = (row != -1) & (seq_len > 0)

    state = tl.load(table + row * stride + column, mask=selectable, other=PAD)
    tl.store(out + lane, state, mask=in_batch)
