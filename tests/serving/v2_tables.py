"""Run by the engine's own Python: Model Runner V2's real block tables on the CPU, its own and guarded.

V2 itself needs a GPU; its tables' append is plain Python. The last line of the output is RESULT and one JSON
object: whether both staged and counted the same, and what was refused.
"""

import json

import torch
import vllm.v1.worker.gpu.buffer_utils as buffers
from vllm.v1.worker.cpu.buffer_utils import UvaBuffer

from guard import BlockTableViolation
from guard.vllm import unwrap, wrap

# As the engine's CPU worker does, before the tables are made.
buffers.UvaBuffer = UvaBuffer

from vllm.v1.worker.gpu.block_table import BlockTables

ROWS, WIDTH = 256, 4096
STAGED = (
    "_staged_write_indices",
    "_staged_write_starts",
    "_staged_write_contents",
    "_staged_write_cu_lens",
)


def made(groups):
    """Return new tables; releases up to 0.31 take the kernel's block sizes too."""
    arguments = ([16] * groups, ROWS, 8192, [WIDTH] * groups, torch.device("cpu"))
    try:
        return BlockTables(*arguments)
    except TypeError:
        return BlockTables(*arguments, [16] * groups)


def state(tables):
    """Return everything that an append changes."""
    staged = [[[int(n) for n in getattr(t, name)] for name in STAGED] for t in tables.block_tables]
    return staged, tables.num_blocks.np.tolist()


def append_all(tables):
    """Make appends of several kinds."""
    tables.append_block_ids(3, ([1, 2, 3], [4]), True)
    tables.append_block_ids(3, ([5], []), False)
    tables.append_block_ids(0, ([], list(range(WIDTH))), True)
    tables.append_block_ids(3, ([6], [7, 8]), overwrite=True)


def main():
    """Compare and refuse."""
    own, guarded = made(2), wrap(made(2))
    append_all(own)
    append_all(guarded)
    same = state(own) == state(guarded)
    before, refused = state(guarded), ""
    try:
        guarded.append_block_ids(0, ([9], [10]), False)
    except BlockTableViolation as violation:
        refused = str(violation)
    untouched = state(guarded) == before
    unwrap(guarded)
    result = {
        "same": same,
        "refused": refused,
        "untouched": untouched,
        "restored": guarded.append_block_ids.__func__ is BlockTables.append_block_ids,
    }
    print("RESULT", json.dumps(result), flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
