"""Run by the engine's own Python: Model Runner V1's real block tables on the CPU, its own and guarded.

The last line of the output is RESULT and one JSON object: whether both hold the same after the same calls,
what was refused, what a refusal left, and what the engine's own tables are left with by the same call.
"""

import contextlib
import json

import torch
from vllm.v1.worker.block_table import MultiGroupBlockTable

from guard import BlockTableViolation
from guard.vllm import unwrap, wrap

ROWS, WIDTH = 4, 8


def made():
    """Return new tables of two groups whose rows hold 8 blocks of 16 tokens."""
    return MultiGroupBlockTable(
        max_num_reqs=ROWS,
        max_num_batched_tokens=64,
        pin_memory=False,
        device=torch.device("cpu"),
        block_sizes=[16, 16],
        max_num_blocks=[WIDTH, WIDTH],
    )


def state(tables):
    """Return rows and counts of every group."""
    return [(t.block_table.np.tolist(), t.num_blocks_per_row.tolist()) for t in tables.block_tables]


def fill(tables):
    """Make calls of several kinds that fit."""
    tables.add_row(([1, 2], [3, 4, 5]), 1)
    tables.append_row(([6], []), 1)
    tables.add_row(([7], list(range(10, 10 + WIDTH))), 0)
    tables.move_row(1, 2)
    tables.add_row(([8], [9]), 1)


def refused(call, *arguments):
    """Return what a call is refused with."""
    try:
        call(*arguments)
    except BlockTableViolation as violation:
        return str(violation)
    return ""


def main():
    """Compare and refuse."""
    own, guarded = made(), wrap(made())
    fill(own)
    fill(guarded)
    same = state(own) == state(guarded)
    before = state(guarded)
    # Group 0 has room in both; group 1 has none for what is appended, nor for nine at once.
    appended = refused(guarded.append_row, ([20], [21, 22]), 0)
    added = refused(guarded.add_row, ([20], list(range(30, 39))), 1)
    untouched = state(guarded) == before
    with contextlib.suppress(ValueError):
        own.append_row(([20], [21, 22]), 0)
    unwrap(guarded)
    result = {
        "same": same,
        "appended": appended,
        "added": added,
        "untouched": untouched,
        "own_half_written": state(own)[0] != before[0],
        "restored": guarded.append_row.__func__ is MultiGroupBlockTable.append_row,
    }
    print("RESULT", json.dumps(result), flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
