"""The state selection's Triton kernel: each lane selects one state of one batch row.

Contract:

* `table`: int32 [num_rows, width], rows `stride` entries apart.
* `rows`, `seq_lens`: int32 or int64 [num_reqs]; rows[b] is the table row of batch row b.
* `out`: int32 [num_reqs, num_states], contiguous. The host guarantees num_states >= 1 and a block size
  of at least 1.
* out[b, s] is the table's entry at column (seq_lens[b] - 1) // block_size + s, and PAD where that column
  is not in the row, the row is not in the table, or the request has no token. What does not exist is
  never replaced by block 0 or by the last column.
"""

import triton
import triton.language as tl

__all__ = ["state_index_kernel"]


@triton.jit(do_not_specialize=["num_rows", "num_reqs"])
def state_index_kernel(
    table,
    stride,
    width,
    num_rows,
    rows,
    seq_lens,
    num_reqs,
    out,
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
    selectable = (row >= 0) & (row < num_rows) & (seq_len > 0) & (column < width)

    state = tl.load(table + row * stride + column, mask=selectable, other=PAD)
    tl.store(out + lane, state, mask=in_batch)
