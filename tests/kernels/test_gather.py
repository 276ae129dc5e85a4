"""The gather against its reference, with canaries around the tables that it fills."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import (
    KernelError,
    RowGatherer,
    SlidingWindow,
    TableLayout,
    gather_rows,
    gather_rows_reference,
)
from kernels.record import DeviceFault, DeviceViolation, ViolationRecord
from tests.kernels.canary import CANARY, CanaryTable
from tests.kernels.recorded import assert_recorded

pytestmark = pytest.mark.gpu


class Bench:
    """Source tables full of IDs, stale output tables, and a copy of those for the reference."""

    def __init__(self, device, widths, rows=4, gap=2):
        self.device = device
        self.sources = [CanaryTable.of(rows, width, device, gap=gap) for width in widths]
        for group, source in enumerate(self.sources):
            count = source.table.numel()
            source.table.copy_(torch.arange(1, count + 1).reshape(rows, -1) + 1000 * group)
        self.actual = [CanaryTable.of(rows, width, device, gap=gap + 1) for width in widths]
        for table in self.actual:
            table.table.fill_(777)
        self.expected = [table.clone() for table in self.actual]
        self.layout = TableLayout.of([s.table for s in self.sources])
        self.out = TableLayout.of([t.table for t in self.actual])
        self.counts = torch.zeros((len(widths), rows), dtype=torch.int32, device=device)
        self.record = ViolationRecord.on(device)
        self.launch = 40

    def run(self, idx_mapping, padded, *, window=None, dtype=torch.int32):
        mapping = torch.tensor(idx_mapping, dtype=dtype, device=self.device)
        self.record.reset()
        self.launch += 1
        gather_rows(
            self.layout,
            self.counts,
            mapping,
            self.out,
            padded,
            window=window,
            record=self.record,
            launch=self.launch,
        )
        sources = [source.table for source in self.sources]
        targets = [table.table for table in self.expected]
        refusals = gather_rows_reference(sources, self.counts, mapping, targets, padded, window=window)
        assert_recorded(self.record, refusals, self.launch)

    def check(self):
        for actual, expected in zip(self.actual, self.expected, strict=True):
            assert torch.equal(actual.buffer, expected.buffer)
            assert actual.is_intact()

    def window(self, computed, reach, block_sizes, dtype=torch.int32):
        def to(values, dtype=torch.int32):
            return torch.tensor(values, dtype=dtype, device=self.device)

        return SlidingWindow(to(computed, dtype), to(reach), to(block_sizes))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_copied_up_to_their_count_and_zero_after_it(device, dtype):
    bench = Bench(device, [4])
    bench.counts.copy_(torch.tensor([[0, 1, 3, 4]]))
    bench.run([3, 2, 1, 0], 4, dtype=dtype)
    bench.check()
    assert bench.actual[0].table.tolist() == [[13, 14, 15, 16], [9, 10, 11, 0], [5, 0, 0, 0], [0, 0, 0, 0]]


def test_padded_rows_are_zero_and_later_rows_untouched(device):
    bench = Bench(device, [4])
    bench.counts.fill_(4)
    bench.run([1], 3)
    bench.check()
    assert bench.actual[0].table.tolist() == [[5, 6, 7, 8], [0] * 4, [0] * 4, [777] * 4]


@pytest.mark.parametrize("row", [-1, -2, 4, 2**31 - 1, -(2**31)])
def test_a_row_that_does_not_exist_reads_as_zeros(device, row):
    bench = Bench(device, [4, 1])
    bench.counts.copy_(torch.tensor([[4, 4, 4, 4], [1, 1, 1, 1]]))
    bench.run([row, 0], 2)
    bench.check()
    assert not bench.actual[0].table[0].any()


def test_a_count_beyond_the_row_reads_no_further_than_the_row(device):
    bench = Bench(device, [4])
    bench.counts.copy_(torch.tensor([[5, 2**31 - 1, -1, 4]]))
    bench.run([0, 1, 2, 3], 4)
    bench.check()
    assert bench.actual[0].table[0].tolist() == [1, 2, 3, 4]
    assert bench.actual[0].table[2].tolist() == [0, 0, 0, 0]


def test_a_stale_count_is_recorded_once_with_its_row_and_what_the_row_holds(device):
    bench = Bench(device, [2500, 1])
    bench.counts.copy_(torch.tensor([[2500, 2501, 0, 0], [1, 1, 1, 1]]))
    bench.run([0, 1], 2)
    assert bench.record.read() == (DeviceViolation(DeviceFault.COUNT, 0, 1, 2501, 2500, launch=41, total=1),)


def test_a_row_past_the_table_is_recorded_once_per_group(device):
    bench = Bench(device, [2500, 1])
    bench.run([-1, 4, 0], 4)
    (violation,) = bench.record.read()
    assert violation.fault is DeviceFault.READ_ROW
    assert (violation.row, violation.wanted, violation.limit, violation.total) == (4, 4, 4, 2)


def test_dummy_requests_padding_and_full_rows_are_no_violations(device):
    bench = Bench(device, [4])
    bench.counts.fill_(4)
    bench.run([-1, 0], 4)
    assert bench.record.read() == ()


def test_an_unbounded_gather_copies_entries_of_the_neighbour(device):
    bench = Bench(device, [4], gap=0)
    bench.counts.copy_(torch.tensor([[6, 4, 4, 4]]))
    mapping = torch.tensor([0, -1], dtype=torch.int32, device=device)
    gather_rows(bench.layout, bench.counts, mapping, bench.out, 2, bounded=False, record=bench.record)
    first = torch.as_strided(bench.actual[0].buffer, (6,), (1,), bench.actual[0].table.storage_offset())
    assert first[:4].tolist() == [1, 2, 3, 4]
    assert not bench.actual[0].is_intact()
    assert CANARY not in first.tolist()[:5]
    assert bench.record.read() == ()


def test_bounded_and_unbounded_agree_on_what_fits(device):
    bench, other = Bench(device, [4, 7]), Bench(device, [4, 7])
    mapping = torch.tensor([2, -1, 1], dtype=torch.int32, device=device)
    for one, bounded in ((bench, True), (other, False)):
        one.counts.copy_(torch.tensor([[0, 1, 4, 4], [7, 7, 6, 0]]))
        gather_rows(one.layout, one.counts, mapping, one.out, 4, bounded=bounded)
    for one, two in zip(bench.actual, other.actual, strict=True):
        assert torch.equal(one.buffer, two.buffer)


def test_rows_of_several_chunks_are_filled_to_their_end(device):
    bench = Bench(device, [2500, 1024, 1], rows=3)
    bench.counts.copy_(torch.tensor([[0, 1025, 2500], [1024, 1023, 1], [1, 0, 1]]))
    bench.run([2, 1, 0], 3)
    bench.check()


def test_an_empty_batch_without_padding_changes_nothing(device):
    bench = Bench(device, [4])
    bench.run([], 0)
    bench.check()
    assert (bench.actual[0].table == 777).all()


def test_an_empty_batch_with_padding_is_zeroed(device):
    bench = Bench(device, [4])
    bench.run([], 2)
    bench.check()
    assert not bench.actual[0].table[:2].any()


def test_entries_wholly_below_the_window_are_zero(device):
    bench = Bench(device, [8, 8], rows=3)
    bench.counts.fill_(8)
    window = bench.window([40, 100, 3], [8, 0], [16, 16])
    bench.run([0, 1, 2], 3, window=window)
    bench.check()
    assert bench.actual[0].table[0].tolist() == [0, 0, 3, 4, 5, 6, 7, 8]
    assert bench.actual[1].table[0, 0] == 1001


def test_without_the_tokens_no_entry_is_below_a_window(device):
    table = torch.arange(1, 17, dtype=torch.int32, device=device).reshape(4, 4)
    out = torch.zeros_like(table)
    ones = torch.ones(1, dtype=torch.int32, device=device)
    counts = torch.full((1, 4), 4, dtype=torch.int32, device=device)
    tables = (TableLayout.of([table]), counts, TableLayout.of([out]))
    gatherer = RowGatherer(*tables, reach=ones, block_sizes=ones)
    mapping = torch.arange(4, device=device)
    gatherer.gather(mapping, 4)
    # The mapping's own numbers, read as computed tokens, would blank two entries of the last row.
    assert torch.equal(out, table)
    gatherer.gather(mapping, 4, num_computed_tokens=mapping)
    assert out[3].tolist() == [0, 0, 15, 16]


def test_a_window_beyond_the_row_zeroes_all_of_it(device):
    bench = Bench(device, [4], rows=2)
    bench.counts.fill_(4)
    window = bench.window(
        [2**31 - 1, 64],
        [
            1,
        ],
        [16],
    )
    bench.run([0, -1], 2, window=window)
    bench.check()
    assert not bench.actual[0].table.any()


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_match_the_reference(device, seed):
    random_ = random.Random(seed)
    widths = [random_.choice([1, 3, 16, 1030]) for _ in range(random_.randint(1, 8))]
    rows = random_.randint(1, 6)
    bench = Bench(device, widths, rows=rows)
    for _ in range(3):
        counts = [[random_.randint(-1, width + 3) for _ in range(rows)] for width in widths]
        bench.counts.copy_(torch.tensor(counts))
        window = bench.window(
            [random_.randint(0, 200) for _ in range(rows)],
            [random_.choice([0, 1, 40]) for _ in widths],
            [random_.choice([1, 5, 16]) for _ in widths],
            dtype=random_.choice([torch.int32, torch.int64]),
        )
        mapping = [random_.randint(-2, rows + 1) for _ in range(random_.randint(0, rows))]
        bench.run(mapping, random_.randint(len(mapping), rows), window=random_.choice([None, window]))
    bench.check()


def test_a_comparison_off_by_one_would_be_noticed(device):
    """The same kernel, told of rows one entry wider, must disagree with the reference."""
    bench = Bench(device, [4], gap=0)
    bench.counts.fill_(5)
    bench.layout = replace(bench.layout, widths=bench.layout.widths + 1)
    # A count of 5 is a violation in a row of 4, and would go unrecorded.
    with pytest.raises(AssertionError):
        bench.run([0], 1)


def test_a_row_past_2_to_the_31_entries_is_gathered_from_where_it_lies(device):
    if device.type == "cpu":
        pytest.skip("a table of more than 2**31 entries is kept to the GPU")
    rows, width = 2**17, 2**14 + 16
    table = torch.zeros((rows, width), dtype=torch.int32, device=device)
    table[rows - 1, :3] = torch.tensor([7, 8, 9])
    out = torch.full((1, width), 777, dtype=torch.int32, device=device)
    counts = torch.zeros((1, rows), dtype=torch.int32, device=device)
    counts[0, rows - 1] = 2
    mapping = torch.tensor([rows - 1], dtype=torch.int32, device=device)
    gather_rows(TableLayout.of([table]), counts, mapping, TableLayout.of([out]), 1)
    assert out[0, :4].tolist() == [7, 8, 0, 0]
    assert not out[0, 4:].any()


@pytest.mark.parametrize(("requests", "padded"), [(1, 5), (3, 2), (5, 5)])
def test_a_batch_that_does_not_fit_the_output_is_refused(device, requests, padded):
    bench = Bench(device, [4])
    with pytest.raises(KernelError, match=f"{requests} requests padded to {padded} do not fit 4 rows"):
        bench.run([0] * requests, padded)


def test_output_tables_of_another_width_are_refused(device):
    bench, other = Bench(device, [4]), Bench(device, [5])
    mapping = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(KernelError, match="other widths"):
        gather_rows(bench.layout, bench.counts, mapping, other.out, 1)


def test_an_index_of_another_type_is_refused(device):
    bench = Bench(device, [4])
    with pytest.raises(KernelError, match=r"idx_mapping is torch\.float32"):
        bench.run([0.0], 1, dtype=torch.float32)
