"""Appends that come as arrays: the same effect as row by row, accepted or refused whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
np = pytest.importorskip("numpy")

from hypothesis import given
from hypothesis import strategies as st

from guard import BlockTables, BlockTableViolation, GuardUsageError, Violation
from tests.guard.states import make, state_of

pytestmark = pytest.mark.gpu


def as_arrays(lists):
    """Turn one tuple of lists per row into arrays per group."""
    groups = range(len(lists[0]))
    ids = [np.array([i for row in lists for i in row[g]], dtype=np.int32) for g in groups]
    return ids, [np.array([len(row[g]) for row in lists]) for g in groups]


@given(data=st.data(), overwrite=st.booleans(), kernel_blocks=st.booleans())
def test_a_batch_does_what_its_appends_do(device, data, overwrite, kernel_blocks):
    rows = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True))
    lists = [
        (
            data.draw(st.lists(st.integers(1, 99), max_size=3)),
            data.draw(st.lists(st.integers(1, 99), max_size=2)),
        )
        for _ in rows
    ]
    both = []
    for batched in (False, True):
        extra = {"kernel_block_sizes": [8, 16]} if kernel_blocks else {}
        tables = BlockTables([16, 16], 5, 64, [4, 4], device, **extra)
        tables.append_block_ids(2, ([50], [60, 61]), overwrite=True)
        if batched:
            ids, lengths = as_arrays(lists)
            tables.append_batch(np.array(rows), ids, lengths, overwrite)
        else:
            for row, block_ids in zip(rows, lists, strict=True):
                tables.append_block_ids(row, block_ids, overwrite)
        both.append(tables)
    assert both[0].num_blocks.np.tolist() == both[1].num_blocks.np.tolist()
    for tables in both:
        tables.apply_staged_writes()
    assert both[0].num_blocks.gpu.tolist() == both[1].num_blocks.gpu.tolist()
    counts = both[0].num_blocks.np
    for group, (one, other) in enumerate(zip(both[0].block_tables, both[1].block_tables, strict=True)):
        for row in range(5):
            held = counts[group, row]
            assert one.gpu[row, :held].tolist() == other.gpu[row, :held].tolist()


@pytest.mark.parametrize(
    ("rows", "ids", "lengths", "kind", "wanted"),
    [
        ([0, 1], [[1, 2, 3], [1]], [[1, 2], [0, 1]], None, None),
        ([0, 1], [[1, 2, 3, 4, 5, 6], [1]], [[1, 5], [0, 1]], Violation.ROW_CAPACITY, 5),
        ([0, 4], [[1, 2, 3], [1]], [[1, 2], [0, 1]], Violation.ROW_INDEX, 4),
        ([0, -1], [[1, 2, 3], [1]], [[1, 2], [0, 1]], Violation.ROW_INDEX, -1),
        ([0, 1], [[1, 2, 3], [-7]], [[1, 2], [0, 1]], Violation.BLOCK_ID, -7),
        ([0, 1], [[1, 2, 2**31], [1]], [[1, 2], [0, 1]], Violation.BLOCK_ID, 2**31),
    ],
)
def test_one_bad_row_refuses_the_whole_batch(device, rows, ids, lengths, kind, wanted):
    tables = make(BlockTables, device, [4, 4])
    tables.append_block_ids(3, ([9], [9]), overwrite=True)
    before = state_of(tables)
    if kind is None:
        tables.append_batch(rows, ids, lengths, overwrite=False)
        assert state_of(tables) != before
        return
    with pytest.raises(BlockTableViolation) as caught:
        tables.append_batch(rows, ids, lengths, overwrite=False)
    assert (caught.value.kind, caught.value.wanted) == (kind, wanted)
    assert state_of(tables) == before


@pytest.mark.parametrize(
    ("rows", "ids", "lengths", "message"),
    [
        ([0, 0], [[1, 2]], [[1, 1]], "row 0 comes twice in one batch"),
        ([0], [[1, 2]], [[1]], "add up to its 2 block IDs"),
        ([0], [[1]], [[2, -1]], "must be 1 numbers of 0 or more"),
        ([0], [[1], [2]], [[1], [1]], "block_ids needs one array for each of 1 groups"),
        ([0.5], [[1]], [[1]], "rows must be a one-dimensional array of integers"),
        ([[0]], [[1]], [[1]], "rows must be a one-dimensional array of integers"),
        ([0], [["a"]], [[1]], "block_ids of group 0 must be a one-dimensional array"),
        ([0], [np.array([2**63], dtype=np.uint64)], [[1]], "holds 9223372036854775808"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(device, rows, ids, lengths, message):
    tables = make(BlockTables, device, [4])
    before = state_of(tables)
    with pytest.raises(GuardUsageError, match=message):
        tables.append_batch(rows, ids, lengths, overwrite=True)
    assert state_of(tables) == before


def test_batches_and_single_appends_keep_their_order(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([1],), overwrite=True)
    tables.append_batch([0], [[2]], [[1]], overwrite=False)
    tables.append_block_ids(0, ([3],), overwrite=False)
    tables.append_batch([1, 0], [[8, 4]], [[1, 1]], overwrite=False)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[:2].tolist() == [[1, 2, 3, 4], [8, 0, 0, 0]]
    assert tables.num_blocks.gpu.tolist() == [[4, 1, 0, 0]]


def test_an_empty_batch_stages_nothing_to_be_seen(device):
    tables = make(BlockTables, device, [4])
    tables.append_batch([], [[]], [[]], overwrite=True)
    tables.apply_staged_writes()
    assert not tables.block_tables[0].gpu.any()
