"""Every refusal leaves tables, counts and staging byte-identical, and the next good append works."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
np = pytest.importorskip("numpy")

from guard import BlockTables, BlockTableViolation, GuardError, GuardUsageError, Violation
from guard._text import shown
from tests.guard.states import make, state_of

pytestmark = pytest.mark.gpu

FULL, FITS = list(range(1, 17)), [90]

CAPACITY = [
    ("one too many", 0, ([1], list(range(1, 18))), True, 1, 17),
    ("the first group", 0, (list(range(1, 18)), [1]), True, 0, 17),
    ("a row in use", 1, ([], list(range(1, 14))), False, 1, 17),
    ("the last row", 3, ([], list(range(1, 2001))), True, 1, 2000),
    ("a tuple", 0, ([1], tuple(range(1, 18))), True, 1, 17),
]
ROWS = [-1, 4, 10**18, -(10**18), 10**5000, 1.0, None, "0"]
GROUPS = [(), ([1],), ([1], [2], [3]), None, [[1]], "ab", 7]
IDS = [
    [-1],
    [128],
    [3, 128],
    [10**18],
    [10**5000],
    [1.0],
    [None],
    [[1]],
    ["1"],
    None,
    "11",
    {1},
    7,
    [3, 2.0],
    np.array([1.0]),
    np.array([[1]]),
    np.array([True]),
    [np.int64(-1)],
    [np.int64(128)],
    [np.bool_(True)],
]
LONG_IDS = [
    [*range(1, 100), 128],
    [*range(1, 100), -1],
    [*range(1, 100), 10**18],
    [*range(1, 100), 2.0],
    [*range(1, 100), None],
]


@pytest.fixture
def tables(device):
    tables = make(BlockTables, device, [16, 16], num_pool_blocks=128)
    tables.append_block_ids(1, ([1], [2, 3, 4]), overwrite=True)
    tables.apply_staged_writes()
    tables.append_block_ids(1, ([5], [6]), overwrite=False)
    tables.append_block_ids(2, ([7], [8]), overwrite=True)
    return tables


def refused(tables, row, block_ids, overwrite):
    before = state_of(tables)
    with pytest.raises(BlockTableViolation) as caught:
        tables.append_block_ids(row, block_ids, overwrite)
    assert state_of(tables) == before
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    tables.append_block_ids(0, ([20], [21, 22]), overwrite=True)
    tables.apply_staged_writes()
    assert tables.block_tables[1].gpu[0, :2].tolist() == [21, 22]
    assert tables.block_tables[1].gpu[1, :5].tolist() == [2, 3, 4, 6, 0]
    assert tables.block_tables[0].gpu[1, :3].tolist() == [1, 5, 0]
    assert tables.block_tables[0].gpu[2, 0] == 7
    return caught.value


@pytest.mark.parametrize(
    ("row", "block_ids", "overwrite", "group", "wanted"),
    [case[1:] for case in CAPACITY],
    ids=[case[0] for case in CAPACITY],
)
def test_a_write_beyond_its_row_is_refused_in_every_group(tables, row, block_ids, overwrite, group, wanted):
    violation = refused(tables, row, block_ids, overwrite)
    assert (violation.kind, violation.request, violation.group) == (Violation.ROW_CAPACITY, row, group)
    assert (violation.wanted, violation.limit) == (wanted, 16)


@pytest.mark.parametrize("row", ROWS, ids=shown)
def test_a_request_index_that_is_no_row_is_refused(tables, row):
    violation = refused(tables, row, ([1], [2]), True)
    assert violation.kind is Violation.ROW_INDEX
    assert violation.wanted is row
    assert violation.limit == 4


@pytest.mark.parametrize("block_ids", GROUPS, ids=shown)
def test_a_write_without_one_list_per_group_is_refused(tables, block_ids):
    violation = refused(tables, 0, block_ids, True)
    assert violation.kind is Violation.GROUP_COUNT
    assert violation.limit == 2


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("block_ids", IDS, ids=range(len(IDS)))
def test_what_is_no_block_of_the_pool_is_refused(tables, block_ids, overwrite):
    violation = refused(tables, 0, ([1], block_ids), overwrite)
    assert violation.kind is Violation.BLOCK_ID
    assert (violation.request, violation.group, violation.limit) in {(0, 1, 128), (0, 1, None)}


@pytest.mark.parametrize("block_ids", LONG_IDS, ids=range(len(LONG_IDS)))
def test_a_bad_id_in_a_long_list_is_refused(device, block_ids):
    tables = make(BlockTables, device, [16, 200], num_pool_blocks=128)
    before = state_of(tables)
    with pytest.raises(BlockTableViolation) as caught:
        tables.append_block_ids(0, ([1], block_ids), overwrite=True)
    assert caught.value.kind is Violation.BLOCK_ID
    assert caught.value.wanted is block_ids[-1]
    assert state_of(tables) == before


def test_without_a_pool_size_only_what_int32_holds_is_accepted(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([2**31 - 1],), overwrite=True)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[0, 0] == 2**31 - 1
    before = state_of(tables)
    with pytest.raises(BlockTableViolation, match="does not fit int32: 2147483648"):
        tables.append_block_ids(0, ([2**31],), overwrite=True)
    assert state_of(tables) == before


def test_the_message_names_the_write_and_the_remedy(tables):
    with pytest.raises(BlockTableViolation) as caught:
        tables.append_block_ids(0, (list(range(3, 12)), [0] * 16 + [12]), overwrite=True)
    assert str(caught.value) == (
        "Block table write for request 0, group 1 exceeds row capacity (17 > 16): 0 of its entries are "
        "in use, so 16 of 17 new ones fit. Nothing was written in any group. Widen the row of group 1, to 17 "
        "entries or more; guard.audit says at start-up how many its largest request needs."
    )


def test_violations_are_guard_errors_and_runtime_errors(tables):
    violation = refused(tables, -1, ([1], [2]), True)
    assert isinstance(violation, GuardError)
    assert isinstance(violation, RuntimeError)


@pytest.mark.parametrize(
    ("requests", "padded"), [(1, 5), (2, 1), (5, 5), (1, -1), (1, True), (1, 1.0), (1, 10**18)]
)
def test_a_batch_that_does_not_fit_is_refused_before_the_launch(tables, device, requests, padded):
    before = state_of(tables)
    mapping = torch.zeros(requests, dtype=torch.int32, device=device)
    with pytest.raises(BlockTableViolation) as caught:
        tables.gather_block_tables(mapping, padded)
    assert caught.value.kind is Violation.BATCH_ROWS
    assert state_of(tables) == before


def test_a_dummy_batch_that_does_not_fit_is_refused(tables):
    with pytest.raises(BlockTableViolation, match="does not fit the tables' 4 rows"):
        tables.get_dummy_block_tables(5)


def test_a_mapping_of_another_type_is_refused(tables, device):
    before = state_of(tables)
    with pytest.raises(GuardUsageError, match=r"idx_mapping is torch\.float32"):
        tables.gather_block_tables(torch.zeros(1, device=device), 1)
    assert state_of(tables) == before


def test_output_tables_of_another_shape_are_refused(tables, device):
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    narrow = tuple(torch.zeros((4, 15), dtype=torch.int32, device=device) for _ in range(2))
    addresses = torch.zeros(2, dtype=torch.uint64, device=device)
    with pytest.raises(
        GuardUsageError, match="out of group 0 must be a contiguous int32 table of 16 columns"
    ):
        tables.gather_block_tables(mapping, 1, narrow, addresses)
    with pytest.raises(GuardUsageError, match="one table and one address for each of 2 groups"):
        tables.gather_block_tables(mapping, 1, narrow)


@pytest.mark.parametrize(("dtype", "step"), [(torch.float64, 1), (torch.int32, 1), (torch.int64, 2)])
def test_addresses_that_are_none_are_refused(tables, device, dtype, step):
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    out = tuple(torch.zeros((4, 16), dtype=torch.int32, device=device) for _ in range(2))
    with pytest.raises(GuardUsageError, match="out_ptrs must be contiguous uint64 or int64 addresses"):
        tables.gather_block_tables(
            mapping, 1, out, torch.zeros(4, dtype=dtype, device=device)[: 2 * step : step]
        )


def test_addresses_on_another_device_are_refused(tables, device):
    if device.type == "cpu":
        pytest.skip("there is one device, and it has the tables")
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    out = tuple(torch.zeros((4, 16), dtype=torch.int32, device=device) for _ in range(2))
    with pytest.raises(GuardUsageError, match=r"not torch\.uint64 with stride 1 on cpu"):
        tables.gather_block_tables(mapping, 1, out, torch.zeros(2, dtype=torch.uint64))


@pytest.mark.parametrize(
    ("shape", "message"), [((), "0 dimensions"), ((5,), "1 dimensions"), ((2, 5, 5), "3 dimensions")]
)
def test_slots_of_another_shape_are_refused(tables, device, shape, message):
    rows, starts = torch.zeros(1, dtype=torch.int32, device=device), torch.tensor([0, 1], device=device)
    positions = torch.zeros(1, dtype=torch.int64, device=device)
    out = torch.zeros(shape, dtype=torch.int64, device=device)
    with pytest.raises(GuardUsageError, match=message):
        tables.compute_slot_mappings(rows, starts, positions, 1, out)


OPTIMISED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from guard import BlockTables, BlockTableViolation
assert False, "python -O drops this"
tables = BlockTables([16], 2, 64, [4], "cpu")
for row, block_ids in ((0, ([1] * 5,)), (-1, ([1],)), (0, ()), (0, ([-1],)), (0, ([2.0],))):
    try:
        tables.append_block_ids(row, block_ids, True)
    except BlockTableViolation as violation:
        print(violation.kind)
"""


def test_refusals_do_not_depend_on_assert():
    done = subprocess.run([sys.executable, "-O", "-c", OPTIMISED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["row-capacity", "row-index", "group-count", "block-id", "block-id"]


@pytest.mark.parametrize("asked", [1.5, None, "1", True, -1, 5, 10**18])
def test_dummy_tables_that_do_not_fit_are_refused_and_nothing_is_remembered(tables, device, asked):
    tables.gather_block_tables(torch.tensor([0, 1], device=device), 2)
    before = state_of(tables)
    with pytest.raises(BlockTableViolation):
        tables.get_dummy_block_tables(asked)
    assert state_of(tables) == before
    assert len(tables.get_dummy_block_tables(1)) == 2
    tables.gather_block_tables(torch.tensor([0], device=device), 1)


@pytest.mark.parametrize("mapping", [None, [0], 0, "0"])
def test_a_mapping_that_is_no_tensor_is_refused_in_one_line(tables, mapping):
    before = state_of(tables)
    with pytest.raises(GuardUsageError, match="idx_mapping must be a tensor"):
        tables.gather_block_tables(mapping, 1)
    assert state_of(tables) == before


@pytest.mark.parametrize("mode", ["off", "count", "raise", "strict"])
def test_a_row_given_as_an_array_never_keeps_other_rows_from_being_written(device, mode):
    tables = make(BlockTables, device, [4], mode=mode)
    tables.append_block_ids(0, ([5],), overwrite=True)
    tables.append_block_ids(np.array(1), ([6],), overwrite=False)
    if mode in {"off", "raise", "strict"}:
        with pytest.raises(BlockTableViolation):
            tables.append_block_ids(-1, ([7],), overwrite=False)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[:2, 0].tolist() == [5, 6]


@pytest.mark.parametrize("asked", [-1, 2049, 1.5, None])
def test_more_slots_than_there_are_cannot_be_asked_for(tables, device, asked):
    rows, starts = torch.zeros(1, dtype=torch.int32, device=device), torch.tensor([0, 1], device=device)
    with pytest.raises(GuardUsageError, match="num_tokens"):
        tables.compute_slot_mappings(rows, starts, torch.zeros(1, dtype=torch.int64, device=device), asked)
    with pytest.raises(GuardUsageError, match="num_tokens"):
        tables.get_dummy_slot_mappings(asked)


@pytest.mark.parametrize("overwrite", [np.array([1, 2]), torch.tensor([1, 2])])
def test_an_overwrite_that_is_neither_true_nor_false_is_refused(tables, overwrite):
    before = state_of(tables)
    with pytest.raises(GuardUsageError, match="overwrite is neither true nor false"):
        tables.append_block_ids(0, ([1], [2]), overwrite)
    assert state_of(tables) == before


def test_a_mapping_without_dimensions_is_refused(tables, device):
    with pytest.raises(GuardUsageError, match="idx_mapping has 0 dimensions"):
        tables.gather_block_tables(torch.tensor(0, device=device), 1)


def test_a_range_that_no_row_can_hold_is_refused(tables):
    before = state_of(tables)
    for block_ids in (range(10**30), range(-(10**30), 5)):
        with pytest.raises(BlockTableViolation):
            tables.append_block_ids(0, (block_ids, []), overwrite=True)
        assert state_of(tables) == before
    tables.append_block_ids(0, (range(1, 4), []), overwrite=True)
