"""The state selection against its reference, in a table whose surroundings hold canaries."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import PAD_STATE, KernelError, select_states, select_states_reference
from kernels.record import DeviceFault, DeviceViolation, ViolationRecord
from tests.kernels.canary import CANARY, CanaryTable
from tests.kernels.recorded import assert_recorded

pytestmark = pytest.mark.gpu


def table_of(device, rows, width, gap=2):
    canary = CanaryTable.of(rows, width, device, gap=gap)
    canary.table.copy_(torch.arange(10, 10 + rows * width).reshape(rows, width))
    return canary.table


def select(table, rows, seq_lens, *, block_size=16, num_states=1, dtype=torch.int32):
    device = table.device
    rows_, lens = (torch.tensor(v, dtype=dtype, device=device) for v in (rows, seq_lens))
    record, refusals = ViolationRecord.on(device), []
    sizes = {"block_size": block_size, "num_states": num_states, "group": 3}
    actual = select_states(table, rows_, lens, **sizes, record=record, launch=9)
    expected = select_states_reference(table, rows_, lens, **sizes, refusals=refusals)
    assert_recorded(record, refusals, 9)
    assert torch.equal(actual, expected)
    assert CANARY not in actual.tolist()
    return actual.tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_state_is_in_the_column_of_the_last_token(device, dtype):
    table = table_of(device, 2, 4)
    assert select(table, [0, 0, 0, 1], [1, 16, 17, 64], dtype=dtype) == [[10], [10], [11], [17]]


def test_a_column_past_the_row_is_padding_and_not_the_last_column(device):
    table = table_of(device, 2, 16)
    assert select(table, [0, 0], [256, 257]) == [[25], [PAD_STATE]]


def test_speculative_states_stop_at_the_end_of_the_row(device):
    table = table_of(device, 1, 4)
    assert select(table, [0], [40], num_states=4) == [[12, 13, PAD_STATE, PAD_STATE]]


@pytest.mark.parametrize("row", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_row_that_does_not_exist_has_no_state(device, row):
    table = table_of(device, 2, 4)
    assert select(table, [row, 1], [1, 1]) == [[PAD_STATE], [14]]


@pytest.mark.parametrize("seq_len", [0, -1, -16, -(2**31)])
def test_a_request_without_tokens_has_no_state(device, seq_len):
    table = table_of(device, 2, 4)
    assert select(table, [0], [seq_len], num_states=3) == [[PAD_STATE] * 3]


def test_an_empty_batch_selects_nothing(device):
    assert select(table_of(device, 2, 4), [], []) == []


def test_a_row_of_one_entry_has_one_state(device):
    table = table_of(device, 3, 1)
    assert select(table, [2, 2], [16, 17], num_states=2) == [[12, PAD_STATE], [PAD_STATE, PAD_STATE]]


def test_a_batch_of_several_chunks_is_selected_whole(device):
    table = table_of(device, 300, 3)
    select(table, list(range(300)), [row % 60 for row in range(300)], num_states=3)


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_match_the_reference(device, seed):
    random_ = random.Random(seed)
    rows, width = random_.randint(1, 5), random_.choice([1, 4, 1500])
    block_size, num_states = random_.choice([1, 3, 16]), random_.randint(1, 5)
    table = table_of(device, rows, width, gap=random_.choice([0, 3]))
    batch = random_.randint(0, 40)
    longest = (width + 2) * block_size
    select(
        table,
        [random_.randint(-1, rows) for _ in range(batch)],
        [random_.randint(-1, longest) for _ in range(batch)],
        block_size=block_size,
        num_states=num_states,
    )


def test_the_longest_sequence_that_int32_holds_does_not_wrap(device):
    table = table_of(device, 1, 4)
    assert select(table, [0], [2**31 - 1], block_size=1, num_states=2) == [[PAD_STATE, PAD_STATE]]


def violations(table, rows, seq_lens, **sizes):
    record = ViolationRecord.on(table.device)
    rows_, lens = (torch.tensor(v, dtype=torch.int32, device=table.device) for v in (rows, seq_lens))
    select_states(table, rows_, lens, **sizes, record=record, group=2, launch=6)
    return record.read()


def test_states_past_the_row_are_recorded_from_the_first_on(device):
    table = table_of(device, 2, 4)
    assert violations(table, [0, 1], [16, 40], block_size=16, num_states=4) == (
        DeviceViolation(DeviceFault.STATE_PAST_ROW, 2, 1, 4, 4, launch=6, total=2),
    )


def test_a_row_past_the_table_is_recorded_once_whatever_states_it_asks_for(device):
    table = table_of(device, 2, 4)
    assert violations(table, [0, 2], [1, 1], block_size=16, num_states=3) == (
        DeviceViolation(DeviceFault.READ_ROW, 2, 2, 2, 2, launch=6, total=1),
    )


def test_a_negative_length_is_recorded_as_the_position_of_its_last_token(device):
    table = table_of(device, 2, 1)
    assert violations(table, [1, 0], [-5, 0], block_size=16) == (
        DeviceViolation(DeviceFault.POSITION, 2, 1, -6, 16, launch=6, total=1),
    )


def test_dummy_requests_and_full_rows_are_no_violations(device):
    table = table_of(device, 2, 4)
    assert violations(table, [-1, 0, 1], [999, 0, 64], block_size=16) == ()


def test_an_unbounded_selection_reads_the_neighbours_state(device):
    table = table_of(device, 2, 4, gap=0)
    rows, lens = (torch.tensor(v, dtype=torch.int32, device=device) for v in ([0, -1], [65, 65]))
    assert select_states(table, rows, lens, block_size=16, bounded=False).tolist() == [[14], [PAD_STATE]]


def test_a_comparison_off_by_one_would_be_noticed(device, monkeypatch):
    """The same kernel beside the reference of rows one entry narrower must disagree with it."""
    reference = select_states_reference
    monkeypatch.setitem(
        globals(),
        "select_states_reference",
        lambda table, *rest, **sizes: reference(table[:, :-1], *rest, **sizes),
    )
    with pytest.raises(AssertionError):
        select(table_of(device, 2, 4), [0], [64])


def test_a_row_past_2_to_the_31_entries_is_read_where_it_lies(device):
    if device.type == "cpu":
        pytest.skip("a table of more than 2**31 entries is kept to the GPU")
    rows, width = 2**17, 2**14 + 16
    table = torch.zeros((rows, width), dtype=torch.int32, device=device)
    table[rows - 1, width - 1] = 7
    last = torch.tensor([rows - 1], dtype=torch.int32, device=device)
    length = torch.tensor([width], dtype=torch.int32, device=device)
    assert select_states(table, last, length, block_size=1, num_states=2).tolist() == [[7, PAD_STATE]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block size 0 is not positive"),
        ({"num_states": 0}, "number of states 0 is not positive"),
        ({"seq_lens": [1]}, "different lengths"),
        ({"dtype": torch.float32}, r"rows is torch\.float32"),
    ],
)
def test_arguments_that_break_the_contract_are_refused(device, change, message):
    arguments = {"rows": [0, 0], "seq_lens": [1, 1], **change}
    with pytest.raises(KernelError, match=message):
        select(table_of(device, 1, 4), **arguments)
