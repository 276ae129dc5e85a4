"""What each mode does about a refusal, and what a snapshot then says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from guard import BlockTables, BlockTableViolation, GuardUsageError, Violation
from guard.settings import ENVIRONMENT_VARIABLE
from tests.guard.states import make, state_of

pytestmark = pytest.mark.gpu

TOO_LONG = ([1] * 5,)


def stale_read(tables, device):
    """Let a kernel refuse something: a position past a row of 4 entries of 16."""
    starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
    rows = torch.zeros(1, dtype=torch.int32, device=device)
    return tables.compute_slot_mappings(rows, starts, torch.tensor([64], device=device), 1)


def wait(device):
    if device.type != "cpu":
        torch.cuda.synchronize()


def test_counting_leaves_a_refused_write_out_and_goes_on(device):
    tables = make(BlockTables, device, [4], mode="count")
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    before = state_of(tables)
    tables.append_block_ids(0, TOO_LONG, overwrite=True)
    tables.append_block_ids(9, ([1],), overwrite=True)
    tables.append_batch([1], [[1] * 5], [[5]], overwrite=True)
    assert state_of(tables) == before
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[0].tolist() == [1, 2, 0, 0]
    assert tables.snapshot()["refusals"] == {"row-capacity": 2, "row-index": 1}


def test_counting_counts_what_kernels_refused(device):
    tables = make(BlockTables, device, [4], mode="count")
    assert stale_read(tables, device).tolist() == [[-1]]
    wait(device)
    tables.gather_block_tables(torch.zeros(1, dtype=torch.int32, device=device), 1)
    assert tables.snapshot()["refusals"] == {"kernel-read-past-row": 1}


def test_raising_reports_a_kernel_one_call_later(device):
    tables = make(BlockTables, device, [4], mode="raise")
    stale_read(tables, device)
    wait(device)
    with pytest.raises(BlockTableViolation, match="Kernel launch 1 on the block tables left out 1 access "):
        tables.gather_block_tables(torch.zeros(1, dtype=torch.int32, device=device), 1)
    tables.gather_block_tables(torch.zeros(1, dtype=torch.int32, device=device), 1)
    assert tables.snapshot()["refusals"] == {"kernel-read-past-row": 1}


def test_strict_reports_a_kernel_at_once(device):
    tables = make(BlockTables, device, [4], mode="strict")
    with pytest.raises(BlockTableViolation) as caught:
        stale_read(tables, device)
    assert caught.value.kind is Violation.KERNEL_READ_PAST_ROW
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    tables.apply_staged_writes()


def test_off_checks_nothing_and_writes_as_the_engine_does(device):
    tables = make(BlockTables, device, [4], rows=2, mode="off")
    tables.append_block_ids(1, ([7],), overwrite=True)
    tables.apply_staged_writes()
    tables.append_block_ids(0, ([0, 0, 0, 0, 9],), overwrite=True)
    tables.apply_staged_writes()
    # The fault that every other mode refuses: the fifth entry lies in the next row.
    assert tables.block_tables[0].gpu.tolist() == [[0, 0, 0, 0], [9, 0, 0, 0]]
    assert tables.num_blocks.gpu.tolist() == [[5, 1]]
    assert tables.snapshot()["refusals"] == {}


def test_off_and_raise_agree_on_what_fits(device):
    off, on = (make(BlockTables, device, [4, 9], mode=mode) for mode in ("off", "raise"))
    for tables in (off, on):
        tables.append_block_ids(2, ([1, 2, 3, 4], [5] * 9), overwrite=True)
        tables.append_block_ids(1, ([1], []), overwrite=False)
        tables.apply_staged_writes()
    for one, other in zip(off.block_tables, on.block_tables, strict=True):
        assert torch.equal(one.gpu, other.gpu)
    assert torch.equal(off.num_blocks.gpu, on.num_blocks.gpu)


def test_the_environment_and_a_mapping_choose_the_mode(device, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "count")
    assert make(BlockTables, device, [4]).snapshot()["mode"] == "count"
    assert make(BlockTables, device, [4], configuration={"mode": "strict"}).snapshot()["mode"] == "strict"
    with pytest.raises(GuardUsageError, match="choose one of off, count, raise, strict"):
        make(BlockTables, device, [4], mode="on")


def test_a_snapshot_knows_the_fullest_row_even_after_it_is_gone(device):
    tables = make(BlockTables, device, [4, 8])
    tables.append_block_ids(0, ([1, 2, 3], [1]), overwrite=True)
    tables.append_block_ids(1, ([1], [1, 2]), overwrite=True)
    tables.apply_staged_writes()
    tables.append_block_ids(0, ([], []), overwrite=True)
    tables.apply_staged_writes()
    snapshot = tables.snapshot()
    assert (snapshot["most_used"], snapshot["row_widths"]) == ([3, 2], [4, 8])
    assert snapshot["row_shares"] == [3 / 4, 2 / 8]
    assert (snapshot["launches"], snapshot["steps"], snapshot["appends"]) == (2, 2, 3)
