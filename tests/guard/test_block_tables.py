"""The guarded tables against a model in plain Python lists."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
np = pytest.importorskip("numpy")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from guard import BlockTables, BlockTableViolation
from guard.block_tables import BlockTable
from tests.guard.states import make, state_of
from tests.kernels.canary import CanaryTable

pytestmark = pytest.mark.gpu


class Model:
    """Rows as lists: what is staged is known at once and reaches the device on apply."""

    def __init__(self, widths, rows):
        self.widths = widths
        self.rows = [[[] for _ in range(rows)] for _ in widths]
        self.cells = [[[0] * width for _ in range(rows)] for width in widths]
        self.applied = [[0] * rows for _ in widths]
        self.staged = set()

    def append(self, row, block_ids, overwrite):
        starts = [0 if overwrite else len(group[row]) for group in self.rows]
        ends = [start + len(ids) for start, ids in zip(starts, block_ids, strict=True)]
        if any(end > width for end, width in zip(ends, self.widths, strict=True)):
            return False
        for group, ids in zip(self.rows, block_ids, strict=True):
            group[row] = [*([] if overwrite else group[row]), *ids]
        self.staged.add(row)
        return True

    def apply(self):
        for group, rows in enumerate(self.rows):
            for row in self.staged:
                self.cells[group][row][: len(rows[row])] = rows[row]
                self.applied[group][row] = len(rows[row])
        self.staged.clear()

    def gathered(self, group, row):
        known = 0 <= row < len(self.cells[group])
        filled = self.cells[group][row][: self.applied[group][row]] if known else []
        return filled + [0] * (self.widths[group] - len(filled))


def with_canaries(device, widths, rows, **extra):
    """Move the tables of a `BlockTables` between canaries."""
    tables = make(BlockTables, device, widths, rows, **extra)
    canaries = [CanaryTable.of(rows, width, device) for width in widths]
    inputs = [CanaryTable.of(rows, width, device) for width in widths]
    tables.block_tables[:] = [BlockTable(canary.table) for canary in canaries]
    tables.input_block_tables[:] = [canary.table for canary in inputs]
    tables.init_block_table_layout_tensors()
    return tables, [*canaries, *inputs]


class TablesAgainstModel(RuleBasedStateMachine):
    """Any order of appends, overwrites, overflows, applies and gathers."""

    device = torch.device("cpu")

    @initialize(widths=st.lists(st.integers(1, 6), min_size=1, max_size=4), rows=st.integers(1, 4))
    def build(self, widths, rows):
        self.rows = rows
        self.tables, self.canaries = with_canaries(self.device, widths, rows)
        self.model = Model(widths, rows)

    @rule(data=st.data(), overwrite=st.booleans())
    def append(self, data, overwrite):
        row = data.draw(st.integers(0, self.rows - 1))
        block_ids = tuple(
            data.draw(st.lists(st.integers(0, 999), max_size=width + 1)) for width in self.model.widths
        )
        if self.model.append(row, block_ids, overwrite):
            self.tables.append_block_ids(row, block_ids, overwrite)
            return
        before = state_of(self.tables)
        with pytest.raises(BlockTableViolation):
            self.tables.append_block_ids(row, block_ids, overwrite)
        assert state_of(self.tables) == before

    @rule()
    def apply(self):
        self.tables.apply_staged_writes()
        self.model.apply()
        for group, table in enumerate(self.tables.block_tables):
            assert table.gpu.tolist() == self.model.cells[group]
        assert self.tables.num_blocks.gpu.tolist() == self.model.applied

    @rule(data=st.data())
    def gather(self, data):
        mapping = data.draw(st.lists(st.integers(-1, self.rows - 1), max_size=self.rows))
        padded = data.draw(st.integers(len(mapping), self.rows))
        tensor = torch.tensor(mapping, dtype=torch.int32, device=self.device)
        gathered = self.tables.gather_block_tables(tensor, padded)
        for group, table in enumerate(gathered):
            rows = [*mapping, *[-1] * (padded - len(mapping))]
            assert table.tolist() == [self.model.gathered(group, row) for row in rows]

    @precondition(lambda self: hasattr(self, "tables"))
    @invariant()
    def counts_and_canaries_hold(self):
        expected = [[len(row) for row in group] for group in self.model.rows]
        assert self.tables.num_blocks.np.tolist() == expected
        assert all(canary.is_intact() for canary in self.canaries)


def test_any_order_of_operations_matches_the_model(device):
    machine = type("Machine", (TablesAgainstModel,), {"device": device})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=20))


def test_thousands_of_random_appends_match_the_model(device):
    random_ = random.Random(7)
    widths = [16, 1, 33, 130, 1100, 4, 4, 2]
    tables, canaries = with_canaries(device, widths, rows=6)
    model = Model(widths, 6)
    refusals = 0
    for step in range(600):
        row, overwrite = random_.randrange(6), random_.random() < 0.2
        block_ids = tuple(
            [random_.randrange(10**6) for _ in range(random_.choice([0, 0, 1, 1, 2, width // 3, width]))]
            for width in widths
        )
        if model.append(row, block_ids, overwrite):
            tables.append_block_ids(row, block_ids, overwrite)
        else:
            refusals += 1
            with pytest.raises(BlockTableViolation):
                tables.append_block_ids(row, block_ids, overwrite)
        if step % 20 == 0:
            tables.apply_staged_writes()
            model.apply()
            assert [t.gpu.tolist() for t in tables.block_tables] == model.cells
            assert tables.num_blocks.gpu.tolist() == model.applied
    assert refusals > 40
    assert all(canary.is_intact() for canary in canaries)


def test_nothing_staged_means_no_launch(device, monkeypatch):
    tables = make(BlockTables, device, [4])
    monkeypatch.setattr("kernels.StagedWriter.write", lambda *_, **__: pytest.fail("launched"))
    tables.apply_staged_writes()


def test_one_step_is_one_launch_for_all_groups_and_is_not_sent_again(device, monkeypatch):
    from kernels import StagedWriter

    launches = []
    write = StagedWriter.write
    monkeypatch.setattr(StagedWriter, "write", lambda *a, **k: (launches.append(1), write(*a, **k)))
    tables = make(BlockTables, device, [4] * 8)
    for row in range(4):
        tables.append_block_ids(row, ([1],) * 8, overwrite=True)
    tables.apply_staged_writes()
    tables.apply_staged_writes()
    assert launches == [1]


def test_an_overwrite_with_a_shorter_list_shortens_the_count(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([1, 2, 3, 4],), overwrite=True)
    tables.apply_staged_writes()
    tables.append_block_ids(0, ([9],), overwrite=True)
    tables.append_block_ids(0, ([8],), overwrite=False)
    tables.apply_staged_writes()
    (gathered,) = tables.gather_block_tables(torch.zeros(1, dtype=torch.int64, device=device), 1)
    assert gathered.tolist() == [[9, 8, 0, 0]]


def test_an_overwrite_with_nothing_empties_the_row(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    tables.apply_staged_writes()
    tables.append_block_ids(0, ([],), overwrite=True)
    tables.apply_staged_writes()
    (gathered,) = tables.gather_block_tables(torch.zeros(1, dtype=torch.int64, device=device), 1)
    assert gathered.tolist() == [[0, 0, 0, 0]]


def test_the_callers_lists_may_change_after_the_append(device):
    tables = make(BlockTables, device, [4])
    block_ids = [1, 2]
    tables.append_block_ids(0, (block_ids,), overwrite=True)
    block_ids[0] = 99
    block_ids.append(98)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[0].tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("row", [np.int32(1), np.int64(1), np.uint8(1)])
@pytest.mark.parametrize(
    "block_ids", [[np.int32(5), 6], np.array([5, 6]), (5, 6), range(5, 7), np.array([5, 6], dtype=np.uint16)]
)
def test_numpy_numbers_and_other_sequences_are_accepted(device, row, block_ids):
    tables = make(BlockTables, device, [4], num_pool_blocks=128)
    tables.append_block_ids(row, [block_ids], overwrite=True)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[1].tolist() == [5, 6, 0, 0]


def test_long_lists_are_stored_whole_and_may_be_extended(device):
    tables = make(BlockTables, device, [3000, 3000])
    first, second = list(range(2, 1502)), list(range(5000, 6000))
    tables.append_block_ids(2, (first, [1]), overwrite=True)
    tables.append_block_ids(2, (second, [0, 1]), overwrite=False)
    tables.append_block_ids(2, ([7], first), overwrite=False)
    tables.append_block_ids(1, ([], [0] * 99), overwrite=True)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[2, :2502].tolist() == [*first, *second, 7, 0]
    assert tables.block_tables[1].gpu[2, :1504].tolist() == [1, 0, 1, *first, 0]
    assert tables.num_blocks.gpu.tolist() == [[0, 0, 2501, 0], [0, 99, 1503, 0]]


def test_gathered_tables_keep_their_addresses(device):
    tables = make(BlockTables, device, [4, 8])
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    first = [table.data_ptr() for table in tables.gather_block_tables(mapping, 1)]
    second = [table.data_ptr() for table in tables.gather_block_tables(mapping, 3)]
    dummy = [table.data_ptr() for table in tables.get_dummy_block_tables(2)]
    assert first == second == dummy


def test_rows_of_a_larger_earlier_batch_are_cleared(device):
    tables = make(BlockTables, device, [2])
    for row in range(4):
        tables.append_block_ids(row, ([row + 1],), overwrite=True)
    tables.apply_staged_writes()
    tables.gather_block_tables(torch.arange(4, device=device), 4)
    tables.gather_block_tables(torch.arange(1, device=device), 1)
    assert tables.input_block_tables[0].tolist() == [[1, 0], [0, 0], [0, 0], [0, 0]]


def test_dummy_tables_are_zero_and_clear_an_earlier_batch(device):
    tables = make(BlockTables, device, [2])
    tables.append_block_ids(0, ([5],), overwrite=True)
    tables.apply_staged_writes()
    tables.gather_block_tables(torch.zeros(3, dtype=torch.int32, device=device), 3)
    (dummy,) = tables.get_dummy_block_tables(1)
    assert dummy.tolist() == [[0, 0]]
    assert not tables.input_block_tables[0].any()


def test_rows_can_be_gathered_into_the_callers_tables(device):
    tables = make(BlockTables, device, [2])
    tables.append_block_ids(3, ([5],), overwrite=True)
    tables.apply_staged_writes()
    out = (torch.full((6, 2), 7, dtype=torch.int32, device=device),)
    addresses = torch.tensor([out[0].data_ptr()], dtype=torch.uint64, device=device)
    (gathered,) = tables.gather_block_tables(torch.tensor([3], device=device), 5, out, addresses)
    assert gathered.tolist() == [[5, 0], *[[0, 0]] * 4]
    assert out[0][5].tolist() == [7, 7]
    assert not tables.input_block_tables[0].any()


def test_entries_below_the_sliding_window_are_nulled(device):
    tables = make(BlockTables, device, [8, 8], sliding_window_reach=[32, 0])
    tables.append_block_ids(0, ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), overwrite=True)
    tables.apply_staged_writes()
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    computed = torch.tensor([79, 0, 0, 0], dtype=torch.int32, device=device)
    windowed, full = tables.gather_block_tables(mapping, 1, num_computed_tokens=computed)
    assert windowed.tolist() == [[0, 0, 3, 4, 5, 0, 0, 0]]
    assert full.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]


def test_no_entry_is_nulled_under_context_parallelism(device):
    tables = make(BlockTables, device, [4], sliding_window_reach=[16], cp_size=2)
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    tables.apply_staged_writes()
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    computed = torch.full((4,), 64, dtype=torch.int32, device=device)
    (gathered,) = tables.gather_block_tables(mapping, 1, num_computed_tokens=computed)
    assert gathered.tolist() == [[1, 2, 0, 0]]


def test_writes_can_be_redirected_to_the_null_block(device):
    tables = make(BlockTables, device, [4], num_pool_blocks=9)
    tables.redirect_writes_to_null_block = True
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    with pytest.raises(BlockTableViolation):
        tables.append_block_ids(1, ([9],), overwrite=True)
    tables.apply_staged_writes()
    assert tables.num_blocks.gpu.tolist() == [[2, 0, 0, 0]]
    assert not tables.block_tables[0].gpu.any()


def test_tables_without_groups_accept_empty_writes(device):
    tables = BlockTables([], 4, 64, [], device)
    tables.append_block_ids(0, (), overwrite=True)
    tables.apply_staged_writes()
    assert tables.gather_block_tables(torch.zeros(1, dtype=torch.int32, device=device), 1) == ()
    assert tables.num_blocks.np.shape == (0, 4)
    for addresses in (tables.block_table_ptrs, tables.block_table_strides, tables.input_block_table_ptrs):
        assert addresses.shape == (0,)
    with pytest.raises(BlockTableViolation):
        tables.append_block_ids(0, ([1],), overwrite=True)


def test_forward_pass_tables_are_cleared_whole_after_a_wake_up(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([5],), overwrite=True)
    tables.apply_staged_writes()
    for table in tables.input_block_tables:
        table.fill_(99)
    tables.init_block_table_layout_tensors()
    tables.gather_block_tables(torch.zeros(1, dtype=torch.int32, device=device), 1)
    assert tables.input_block_tables[0].tolist() == [[5, 0, 0, 0], *[[0] * 4] * 3]


def test_dummy_tables_that_a_caller_filled_are_cleared_by_the_next_gather(device):
    tables = make(BlockTables, device, [4])
    for table in tables.get_dummy_block_tables(2):
        table.fill_(7)
    tables.gather_block_tables(torch.full((2,), -1, dtype=torch.int32, device=device), 2)
    assert not tables.input_block_tables[0].any()
