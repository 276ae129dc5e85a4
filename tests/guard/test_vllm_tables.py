"""The refusal added to tables that vLLM made: nothing of a refused append is kept, in any group."""

import pytest

np = pytest.importorskip("numpy")

import vllm_stand_in as engine

from guard import BlockTableViolation, GuardUsageError
from guard.vllm import _tables, unwrap, wrap
from guard.vllm._tables import view_of


@pytest.fixture(autouse=True, params=[False, True], ids=["checked", "lean"])
def append_is_known(request, monkeypatch):
    """Both ways: the engine's own append after the check, and its two statements done by the guard."""
    monkeypatch.delenv("ROWBOUND_MODE", raising=False)
    monkeypatch.setattr(_tables, "_is_known_append", lambda _append: request.param)


def test_v2_refuses_for_all_groups_before_any_is_staged():
    tables = wrap(engine.BlockTables([16, 16]))
    tables.append_block_ids(1, ([1], [2]), overwrite=True)
    before = tables.state()
    # The reference case: 257 tokens under dcp 2 give 9 and 17 blocks for rows of 16.
    with pytest.raises(BlockTableViolation, match=r"request 0, group 1 exceeds row capacity \(17 > 16\)"):
        tables.append_block_ids(0, (list(range(9)), list(range(17))), overwrite=True)
    assert tables.state() == before


def test_v2_counts_what_the_row_holds_already():
    tables = wrap(engine.BlockTables([4, 2]))
    tables.append_block_ids(2, ([1, 2, 3], [4]), overwrite=True)
    tables.append_block_ids(2, ([5], [6]), overwrite=False)
    before = tables.state()
    with pytest.raises(BlockTableViolation, match=r"group 0 exceeds row capacity \(5 > 4\): 4 of its"):
        tables.append_block_ids(2, ([7], []), overwrite=False)
    assert tables.state() == before
    tables.append_block_ids(2, ([], []), overwrite=False)
    tables.append_block_ids(2, ([8, 9], [10]), overwrite=True)
    assert tables.num_blocks.np[:, 2].tolist() == [2, 1]


def test_v2_stages_and_counts_just_as_the_engine_does():
    own, guarded = engine.BlockTables([8, 8]), wrap(engine.BlockTables([8, 8]))
    for tables in (own, guarded):
        tables.append_block_ids(0, ([1, 2], [3]), overwrite=True)
        tables.append_block_ids(0, ([4], []), overwrite=False)
        tables.append_block_ids(3, ([5] * 8, [6] * 8), overwrite=True)
    assert own.state() == guarded.state()


def test_rows_of_kernel_blocks_are_counted_in_kernel_blocks():
    tables = wrap(engine.BlockTables([8], blocks_per_kv_block=[4]))
    tables.append_block_ids(0, ([1],), overwrite=True)
    tables.append_block_ids(0, ([2],), overwrite=False)
    with pytest.raises(BlockTableViolation, match=r"\(12 > 8\)"):
        tables.append_block_ids(0, ([3],), overwrite=False)
    single = wrap(engine.BlockTable(8, blocks_per_kv_block=4))
    single.add_row([1, 2], 0)
    with pytest.raises(BlockTableViolation, match=r"\(12 > 8\)"):
        single.append_row([3], 0)


@pytest.mark.parametrize("row", [-1, 4])
def test_v2_refuses_a_row_that_does_not_exist(row):
    tables = wrap(engine.BlockTables([4, 4]))
    before = tables.state()
    with pytest.raises(BlockTableViolation, match="outside the table's 4 rows"):
        tables.append_block_ids(row, ([1], [1]), overwrite=True)
    with pytest.raises(BlockTableViolation, match="has 1 list of block IDs for 2"):
        tables.append_block_ids(0, ([1],), overwrite=True)
    assert tables.state() == before


def test_v1_checks_before_the_count_advances_even_one_block_at_a_full_row():
    tables = wrap(engine.MultiGroupBlockTable([4, 2]))
    tables.add_row(([1, 2, 3], [4, 5]), 0)
    before = tables.state()
    # numpy would take one block at a full row without a word.
    with pytest.raises(BlockTableViolation, match=r"group 1 exceeds row capacity \(3 > 2\)"):
        tables.append_row(([6], [7]), 0)
    assert tables.state() == before


def test_v1_keeps_the_old_row_when_its_replacement_is_refused():
    for tables in (wrap(engine.MultiGroupBlockTable([4])), wrap(engine.BlockTable(4))):
        one = [1, 2] if isinstance(tables, engine.BlockTable) else ([1, 2],)
        five = [3] * 5 if isinstance(tables, engine.BlockTable) else ([3] * 5,)
        tables.add_row(one, 0)
        with pytest.raises(BlockTableViolation, match=r"\(5 > 4\)"):
            tables.add_row(five, 0)
        assert view_of(tables).counts[0][0] == 2


def test_off_leaves_the_instance_as_it_was():
    tables = engine.BlockTables([1])
    before = dict(vars(tables))
    assert wrap(tables, "off") is tables
    assert vars(tables) == before


def test_count_leaves_the_outcome_to_the_engine(caplog):
    tables = wrap(engine.BlockTables([1]), "count")
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    assert tables.num_blocks.np[0, 0] == 2, "the engine's own append ran"
    assert "exceeds row capacity (2 > 1)" in caplog.text


def test_unwrapping_restores_the_very_method():
    tables = engine.MultiGroupBlockTable([4])
    wrap(tables)
    wrap(tables)
    unwrap(tables)
    assert "append_row" not in vars(tables)
    assert tables.append_row.__func__ is engine.MultiGroupBlockTable.append_row


def test_tables_of_another_layout_are_refused():
    with pytest.raises(GuardUsageError, match="neither append_block_ids nor append_row"):
        wrap(object())
    broken = engine.BlockTables([4])
    del broken.num_blocks
    with pytest.raises(GuardUsageError, match="laid out as no known vLLM's"):
        wrap(broken)
