"""The staged writer against its reference, with canaries around every table."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import KernelError, TableLayout, Write, pack_writes, write_staged, write_staged_reference
from tests.kernels.canary import CanaryTable

pytestmark = pytest.mark.gpu


class Bench:
    """Tables for the kernel and an equal set for the reference."""

    def __init__(self, device, widths, rows=4, gap=3):
        self.device = device
        self.actual = [CanaryTable.of(rows, width, device, gap=gap) for width in widths]
        self.expected = [table.clone() for table in self.actual]
        self.layout = TableLayout.of([table.table for table in self.actual])
        self.counts = CanaryTable.of(len(widths), rows, device, gap=0)
        self.expected_counts = self.counts.clone()

    def run(self, writes, *, bounded=True):
        packed = pack_writes(writes, len(self.actual), self.device)
        write_staged(self.layout, self.counts.table, packed, bounded=bounded)
        tables = [table.table for table in self.expected]
        write_staged_reference(tables, self.expected_counts.table, writes, bounded=bounded)

    def check(self):
        for actual, expected in zip(self.actual, self.expected, strict=True):
            assert torch.equal(actual.buffer, expected.buffer)
        assert torch.equal(self.counts.buffer, self.expected_counts.buffer)

    def check_canaries(self):
        assert all(table.is_intact() for table in [*self.actual, self.counts])


def ids(length, first=1):
    return list(range(first, first + length))


@pytest.mark.parametrize(
    "write",
    [
        Write(0, 1, 0, ids(16)),
        Write(0, 1, 15, ids(1)),
        Write(0, 1, 16, []),
        Write(0, 1, 0, []),
        Write(0, 3, 0, ids(16)),
        Write(0, 0, 4, ids(7)),
    ],
    ids=["exactly full", "last column", "empty at the end", "empty", "last row", "middle"],
)
def test_a_write_inside_its_row_is_stored_whole(device, write):
    bench = Bench(device, [16])
    bench.run([write])
    bench.check()
    bench.check_canaries()
    end = write.start + len(write.ids)
    assert bench.actual[0].table[write.row, write.start : end].tolist() == list(write.ids)
    assert bench.counts.table[0, write.row] == end


@pytest.mark.parametrize(
    "write",
    [
        Write(0, 0, 0, ids(17)),
        Write(0, 3, 0, ids(17)),
        Write(0, 1, 16, ids(1)),
        Write(0, 1, 9, ids(2000)),
        Write(0, 1, -3, ids(5)),
        Write(0, 1, -9, ids(5)),
        Write(0, -1, 0, ids(5)),
        Write(0, 4, 0, ids(5)),
        Write(0, 2**31 - 1, 0, ids(5)),
        Write(0, 1, 2**31 - 1, ids(5)),
        Write(0, -(2**31), -(2**31), ids(5)),
    ],
)
def test_what_leaves_its_row_is_not_stored_anywhere(device, write):
    bench = Bench(device, [16, 16])
    bench.run([write, Write(1, 2, 0, ids(3, first=50))])
    bench.check()
    bench.check_canaries()
    assert int(bench.counts.table.max()) <= 16
    others = [row for row in range(4) if row != write.row]
    assert not bench.actual[0].table[others].any()


def test_an_unbounded_write_runs_into_the_next_row(device):
    bench = Bench(device, [16], gap=0)
    bench.run([Write(0, 1, 0, [2])], bounded=False)
    bench.run([Write(0, 0, 0, [0] * 16 + [12])], bounded=False)
    bench.check()
    assert bench.actual[0].table[1, 0] == 12
    assert bench.counts.table[0, 0] == 17


def test_the_reference_of_an_unbounded_write_refuses_to_leave_the_storage():
    table, counts = torch.zeros((2, 4), dtype=torch.int32), torch.zeros((1, 2), dtype=torch.int32)
    with pytest.raises(IndexError, match="entry 8 lies outside the 8 entries"):
        write_staged_reference([table], counts, [Write(0, 1, 0, ids(5))], bounded=False)


def test_bounded_and_unbounded_agree_when_every_write_fits(device):
    writes = [Write(0, 0, 0, ids(16)), Write(1, 3, 1, ids(4)), Write(0, 2, 5, ids(6))]
    bounded, unbounded = Bench(device, [16, 5]), Bench(device, [16, 5])
    bounded.run(writes)
    unbounded.run(writes, bounded=False)
    for one, other in zip(bounded.actual, unbounded.actual, strict=True):
        assert torch.equal(one.buffer, other.buffer)
    assert torch.equal(bounded.counts.buffer, unbounded.counts.buffer)


@pytest.mark.parametrize("length", [1023, 1024, 1025, 2048, 2500, 2501])
def test_a_row_of_several_chunks_is_stored_whole(device, length):
    bench = Bench(device, [2500], rows=2)
    bench.run([Write(0, 1, 0, ids(length)), Write(0, 0, 2499, ids(1))])
    bench.check()
    bench.check_canaries()


def test_eight_groups_of_different_widths_take_one_launch(device):
    bench = Bench(device, [1, 2, 3, 16, 33, 128, 1024, 1025], rows=5)
    bench.run([Write(g, r, 0, ids((g * 7 + r) % 40)) for g in range(8) for r in range(5)])
    bench.check()
    bench.check_canaries()


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_match_the_reference(device, seed):
    random_ = random.Random(seed)
    widths = [random_.choice([1, 2, 7, 16, 130]) for _ in range(random_.randint(1, 8))]
    bench = Bench(device, widths, rows=3, gap=random_.choice([0, 1, 5]))
    for _ in range(4):
        places = [(g, r) for g in range(len(widths)) for r in range(-1, 5)]
        bench.run(
            [
                Write(
                    g,
                    r,
                    random_.randint(-4, widths[g] + 2),
                    ids(random_.randint(0, widths[g] + 4), first=100 * r + 1000),
                )
                for g, r in random_.sample(places, random_.randint(0, len(places)))
            ]
        )
    bench.check()
    bench.check_canaries()


def test_no_writes_change_nothing(device):
    bench = Bench(device, [4])
    bench.run([])
    bench.check()
    assert not bench.actual[0].table.any()


def test_an_overwrite_leaves_the_later_entries_and_shortens_the_count(device):
    bench = Bench(device, [8])
    bench.run([Write(0, 0, 0, ids(8))])
    bench.run([Write(0, 0, 0, ids(2, first=70))])
    bench.check()
    assert bench.counts.table[0, 0] == 2
    assert bench.actual[0].table[0].tolist() == [70, 71, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        ([Write(2, 0, 0, [1])], "write for group 2, but there are 2 groups"),
        ([Write(-1, 0, 0, [1])], "write for group -1, but there are 2 groups"),
        ([Write(0, 1, 0, [1]), Write(0, 1, 1, [2])], "two writes for row 1 of group 0 in one launch"),
        ([Write(0, 0, 0, [2**31])], "must be int32 integers"),
        ([Write(0, 0, 0, [1.5])], "must be int32 integers"),
        ([Write(0, 10**18, 0, [1])], "must be int32 integers"),
    ],
)
def test_a_write_that_breaks_the_contract_is_not_packed(device, writes, message):
    with pytest.raises(KernelError, match=message):
        pack_writes(writes, 2, device)


def test_tables_that_break_the_layout_contract_are_refused():
    good = torch.zeros((2, 4), dtype=torch.int32)
    for bad, message in [
        ([], "at least one group"),
        ([good.long()], "torch.int64, not torch.int32"),
        ([good[0]], "1 dimensions"),
        ([good.T], "not adjacent"),
        ([good, torch.zeros((3, 4), dtype=torch.int32)], "another number of rows"),
        ([torch.zeros((2, 0), dtype=torch.int32)], "no entries"),
    ]:
        with pytest.raises(KernelError, match=message):
            TableLayout.of(bad)


def test_counts_of_another_shape_or_type_are_refused(device):
    bench = Bench(device, [4])
    packed = pack_writes([Write(0, 0, 0, [1])], 1, device)
    for bad in (bench.counts.table.long(), bench.counts.table[:, :3]):
        with pytest.raises(KernelError, match="counts are"):
            write_staged(bench.layout, bad, packed)


def test_writes_packed_for_other_groups_are_refused(device):
    bench = Bench(device, [4])
    with pytest.raises(KernelError, match="packed for other groups"):
        write_staged(bench.layout, bench.counts.table, pack_writes([Write(1, 0, 0, [1])], 2, device))
