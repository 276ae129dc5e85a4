"""The slot mapping against its reference, the formulas and numbers of the engine's own tests."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import PAD_SLOT, KernelError, SlotGeometry, TableLayout, map_slots, map_slots_reference
from kernels.record import DeviceFault, DeviceViolation, ViolationRecord
from kernels.slot_mapping.host import PAD_CHUNK as CHUNK
from tests.kernels.canary import CANARY, CanaryTable
from tests.kernels.recorded import assert_recorded

pytestmark = pytest.mark.gpu


class Bench:
    """Tables full of distinct block IDs and a slot mapping inside a buffer of canaries."""

    def __init__(self, device, widths, block_sizes, *, rows=4, tokens=64, gap=2, **geometry):
        self.device = device
        self.tables = [CanaryTable.of(rows, width, device, gap=gap).table for width in widths]
        for group, table in enumerate(self.tables):
            first = 1 + 1000 * group
            table.copy_(torch.arange(first, first + table.numel()).reshape(rows, -1))
        self.layout = TableLayout.of(self.tables)
        self.geometry = SlotGeometry.of(block_sizes, device, **geometry)
        stride = tokens + 5
        self.buffer = torch.full((len(widths) * stride + 64,), CANARY, dtype=torch.int64, device=device)
        self.out = torch.as_strided(self.buffer, (len(widths), tokens), (stride, 1), 32)
        self.record = ViolationRecord.on(device)
        self.launch = 70

    def tensors(self, rows, lengths, positions, dtype=torch.int32):
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return (
            torch.tensor(rows, dtype=dtype, device=self.device),
            torch.tensor(starts, dtype=dtype, device=self.device),
            torch.tensor(positions, dtype=torch.int64, device=self.device),
        )

    def run(self, rows, lengths, positions, *, dtype=torch.int32, counts=None):
        return self.run_tensors(*self.tensors(rows, lengths, positions, dtype), counts=counts)

    def run_tensors(self, idx_mapping, query_start_loc, positions, *, counts=None):
        arguments = (self.geometry, idx_mapping, query_start_loc, positions)
        if counts is not None:
            counts = torch.tensor(counts, dtype=torch.int32, device=self.device)
        self.record.reset()
        self.launch += 1
        map_slots(self.layout, *arguments, self.out, counts=counts, record=self.record, launch=self.launch)
        expected = torch.empty_like(self.out)
        refusals = map_slots_reference(self.tables, *arguments, expected, counts=counts)
        assert torch.equal(self.out, expected)
        assert_recorded(self.record, refusals, self.launch)
        self.check_canaries()
        return self.out.tolist()

    def check_canaries(self):
        inside = torch.zeros_like(self.buffer, dtype=torch.bool)
        torch.as_strided(inside, self.out.shape, self.out.stride(), self.out.storage_offset()).fill_(True)
        assert (self.buffer[~inside] == CANARY).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_slot_is_the_block_of_the_positions_column_times_its_size_plus_the_offset(device, dtype):
    bench = Bench(device, [4], [16], tokens=6)
    # Row 2 holds the blocks 9, 10, 11, 12 and row 0 the blocks 1 to 4.
    assert bench.run([2, 0], [3, 2], [0, 17, 63, 15, 16], dtype=dtype) == [[144, 161, 207, 31, 32, PAD_SLOT]]


def test_every_entry_behind_the_last_token_is_padding_in_every_group(device):
    bench = Bench(device, [4, 2], [16, 32], tokens=2 * CHUNK + 3)
    out = bench.run([1], [1], [0])
    assert [row[0] for row in out] == [5 * 16, 1003 * 32]
    assert all(set(row[1:]) == {PAD_SLOT} for row in out)


def test_an_empty_batch_is_padding_throughout(device):
    bench = Bench(device, [4], [16], tokens=5)
    assert bench.run([], [], []) == [[PAD_SLOT] * 5]


def test_tokens_of_several_chunks_are_mapped_whole(device):
    length = 2 * CHUNK + 6
    bench = Bench(device, [200], [16], tokens=3 * CHUNK, rows=2)
    bench.run([1, 0], [length, 3], [*range(length), 7, 8, 9])


def test_a_dummy_request_has_no_slots_and_is_no_violation(device):
    bench = Bench(device, [4], [16], tokens=4)
    assert bench.run([-1, 0], [2, 1], [999, -5, 0]) == [[PAD_SLOT, PAD_SLOT, 16, PAD_SLOT]]
    assert bench.record.read() == ()


def test_a_group_without_slots_is_padding_whatever_its_positions(device):
    # The engine's own test: positions past the small row of the group that opted out.
    bench = Bench(device, [2, 1], [128, 262_144], tokens=3, enabled=[False, True])
    out = bench.run([1, 0], [1, 1], [153_797, 165_757])
    assert out == [[PAD_SLOT] * 3, [1002 * 262_144 + 153_797, 1001 * 262_144 + 165_757, PAD_SLOT]]
    assert bench.record.read() == ()


def test_a_position_past_the_row_is_padding_and_recorded(device):
    # 0.26's and 0.33's own kernels give positions 128 and up of row 0 slots in row 1's blocks.
    bench = Bench(device, [8], [16], tokens=8, rows=2, gap=0)
    assert bench.run([0, 1], [3, 1], [127, 128, 166, 127]) == [[8 * 16 + 15, -1, -1, 16 * 16 + 15, *[-1] * 4]]
    assert bench.record.read() == (
        DeviceViolation(DeviceFault.READ_PAST_ROW, 0, 0, wanted=8, limit=8, launch=71, total=2),
    )


def test_the_last_row_is_not_left_either(device):
    bench = Bench(device, [32], [16], tokens=2, rows=2)
    # The case of the report: column 32 of a table of two rows of 32 entries.
    assert bench.run([1], [2], [511, 512]) == [[64 * 16 + 15, PAD_SLOT]]


@pytest.mark.parametrize("position", [-1, -15, -16, -17, -(2**31), -(2**63)])
def test_a_negative_position_is_padding_and_recorded(device, position):
    bench = Bench(device, [4], [16], tokens=2)
    assert bench.run([1], [2], [0, position]) == [[80, PAD_SLOT]]
    assert bench.record.read() == (
        DeviceViolation(DeviceFault.POSITION, 0, 1, position, 64, launch=71, total=1),
    )


@pytest.mark.parametrize("position", [64, 2**31 - 1, 2**31, 2**40, 2**62])
def test_a_large_position_does_not_wrap_into_the_row(device, position):
    bench = Bench(device, [4], [16], tokens=1)
    assert bench.run([1], [1], [position]) == [[PAD_SLOT]]
    (violation,) = bench.record.read()
    assert violation.wanted == position // 16


@pytest.mark.parametrize("row", [4, -2, 2**31 - 1, -(2**31)])
def test_a_row_that_does_not_exist_has_no_slots_and_counts_each_token_of_each_mapped_group(device, row):
    bench = Bench(device, [4, 4, 4], [16, 16, 16], tokens=8, enabled=[True, False, True])
    out = bench.run([row, 0], [5, 1], [0, 1, 2, 3, 4, 0])
    assert [line[:6] for line in out] == [[-1] * 5 + [16], [-1] * 6, [-1] * 5 + [2001 * 16]]
    (violation,) = bench.record.read()
    assert (violation.fault, violation.row, violation.limit) == (DeviceFault.READ_ROW, row, 4)
    assert violation.total == 2 * 5


def test_a_column_that_is_not_in_use_is_refused_where_counts_are_given(device):
    bench = Bench(device, [4], [16], tokens=3)
    counts = [[4, 2, 0, 0]]
    assert bench.run([1], [3], [31, 32, 63], counts=counts) == [[6 * 16 + 15, PAD_SLOT, PAD_SLOT]]
    assert bench.record.read() == (
        DeviceViolation(DeviceFault.READ_PAST_COUNT, 0, 1, 2, 2, launch=71, total=2),
    )
    assert bench.run([1], [3], [31, 32, 63]) == [[111, 112, 143]]


def test_a_stale_count_past_the_row_opens_no_column_past_the_row(device):
    bench = Bench(device, [4], [16], tokens=1)
    assert bench.run([1], [1], [64], counts=[[9, 9, 9, 9]]) == [[PAD_SLOT]]
    (violation,) = bench.record.read()
    assert violation.fault is DeviceFault.READ_PAST_ROW


def test_every_kind_of_refusal_in_one_launch_is_recorded_apart(device):
    bench = Bench(device, [4, 4], [16, 16], tokens=9)
    bench.run([0, 9, 1], [4, 1, 6], [0, -1, 64, 32, 0, *[1] * 6], counts=[[2] * 4, [2] * 4])
    assert {v.fault: v.total for v in bench.record.read()} == {
        DeviceFault.POSITION: 2,
        DeviceFault.READ_PAST_ROW: 2,
        DeviceFault.READ_PAST_COUNT: 2,
        DeviceFault.READ_ROW: 2,
        DeviceFault.TOKEN: 4,
    }


@pytest.mark.parametrize(
    ("starts", "total"),
    [([0, 3, 9], 3), ([0, 7, 9], 3), ([-2, 1, 2], 2), ([0, 2**31 - 1, 2**31 - 1], 2**31 - 7)],
)
def test_tokens_that_the_buffers_do_not_hold_are_neither_read_nor_stored(device, starts, total):
    bench = Bench(device, [4], [16], tokens=6)
    idx_mapping = torch.tensor([0, 1], dtype=torch.int32, device=device)
    query_start_loc = torch.tensor(starts, dtype=torch.int32, device=device)
    positions = torch.arange(8, dtype=torch.int64, device=device)
    arguments = (bench.geometry, idx_mapping, query_start_loc, positions, bench.out)
    map_slots(bench.layout, *arguments, record=bench.record, launch=1)
    bench.check_canaries()
    (violation,) = bench.record.read()
    assert (violation.fault, violation.limit, violation.total) == (DeviceFault.TOKEN, 6, total)
    assert violation.wanted == (-2 if starts[0] < 0 else max(6, starts[violation.row]))
    last = max(0, min(6, starts[2]))
    assert CANARY not in bench.out[0].tolist()
    assert bench.out[0, last:].tolist() == [PAD_SLOT] * (6 - last)


def test_positions_that_end_before_the_last_token_are_not_read_past_their_end(device):
    bench = Bench(device, [4], [16], tokens=8)
    memory = torch.zeros(64, dtype=torch.int64, device=device)
    idx_mapping, query_start_loc, _ = bench.tensors([1], [6], [0])
    assert bench.run_tensors(idx_mapping, query_start_loc, memory[:4]) == [[80] * 4 + [PAD_SLOT] * 4]
    assert bench.record.read() == (DeviceViolation(DeviceFault.TOKEN, 0, 0, 4, 4, launch=71, total=2),)


@pytest.mark.parametrize("rank", range(4))
def test_only_sharded_groups_are_dealt_out_to_the_ranks(device, rank):
    sizes = {"cp_size": 4, "cp_rank": rank, "cp_interleave": 2}
    bench = Bench(device, [4, 4], [8, 8], tokens=32, sharded=[True, False], **sizes)
    out = bench.run([0], [32], list(range(32)))
    # Runs of two tokens go to ranks 0, 1, 2, 3, 0, ...; block 1 starts at slot 8.
    owned = {p: 8 + n for n, p in enumerate(p for p in range(32) if p // 2 % 4 == rank)}
    assert out[0] == [owned.get(p, PAD_SLOT) for p in range(32)]
    assert out[1] == [1001 * 8 + p for p in range(32)]


@pytest.mark.parametrize("cp_size", [2, 3])
@pytest.mark.parametrize("interleave", [1, 4, 8, 16])
def test_exactly_one_rank_owns_each_position_and_no_two_positions_share_a_slot(device, cp_size, interleave):
    positions = list(range(3 * 16 * cp_size))
    owned = []
    for rank in range(cp_size):
        sizes = {"cp_size": cp_size, "cp_rank": rank, "cp_interleave": interleave}
        bench = Bench(device, [3], [16], tokens=len(positions), **sizes)
        out = bench.run([2], [len(positions)], positions)
        owned += [(position, rank, slot) for position, slot in enumerate(out[0]) if slot != PAD_SLOT]
    assert sorted(position for position, _, _ in owned) == positions
    assert len({(rank, slot) for _, rank, slot in owned}) == len(positions)


def test_every_rank_refuses_alike_whoever_owns_the_position(device):
    found = set()
    for rank in range(2):
        bench = Bench(device, [2], [16], tokens=4, cp_size=2, cp_rank=rank)
        assert bench.run([0], [4], [64, 65, -1, 63])[0][:3] == [PAD_SLOT] * 3
        found.add(bench.record.read())
    assert len(found) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_tokens_are_dealt_within_manager_blocks_and_stand_in_kernel_blocks(device, rank):
    sizes = {"cp_size": 2, "cp_rank": rank, "cp_interleave": 32}
    bench = Bench(device, [4], [32], tokens=64, kernel_block_sizes=[16], **sizes)
    out = bench.run([0], [64], list(range(64)))
    mine = [slot for slot in out[0] if slot != PAD_SLOT]
    assert mine == list(range(16, 48))
    assert out[0].index(16) == 32 * rank


def test_the_reference_places_tokens_as_the_formulas_do(device):
    invariants = pytest.importorskip("invariants")
    from invariants.deployment import Deployment

    for dcp, interleave, block_size in [(2, 1, 4), (4, 2, 8), (3, 4, 16), (2, 16, 16)]:
        spec = invariants.FullAttentionSpec(block_size=block_size)
        deployment = Deployment(
            max_model_len=4 * block_size * dcp,
            decode_context_parallel_size=dcp,
            cp_kv_cache_interleave_size=interleave,
        )
        positions = list(range(4 * block_size * dcp))
        for rank in range(dcp):
            sizes = {"cp_size": dcp, "cp_rank": rank, "cp_interleave": interleave}
            bench = Bench(device, [4], [block_size], tokens=len(positions), **sizes)
            out = bench.run([0], [len(positions)], positions)
            for position, slot in enumerate(out[0]):
                block, offset = spec.place_on_rank(deployment, position)
                is_owner = spec.owner(deployment, position) == rank
                assert slot == ((1 + block) * block_size + offset if is_owner else PAD_SLOT)


def test_a_slot_past_int32_is_not_wrapped(device):
    bench = Bench(device, [1], [2**20], tokens=1)
    bench.tables[0].fill_(2**31 - 1)
    assert bench.run([0], [1], [5]) == [[(2**31 - 1) * 2**20 + 5]]


def test_an_entry_past_2_to_the_31_of_a_table_is_read_where_it_lies(device):
    if device.type == "cpu":
        pytest.skip("a table of more than 2**31 entries is kept to the GPU")
    rows, width = 2**17, 2**14 + 16
    table = torch.zeros((rows, width), dtype=torch.int32, device=device)
    table[rows - 1, width - 1] = 77
    table[rows - 1, 0] = 78
    geometry = SlotGeometry.of([16], device)
    out = torch.zeros((1, 3), dtype=torch.int64, device=device)
    idx_mapping = torch.tensor([rows - 1], dtype=torch.int32, device=device)
    query_start_loc = torch.tensor([0, 3], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 16 * width - 1, 16 * width], dtype=torch.int64, device=device)
    record = ViolationRecord.on(device)
    arguments = (geometry, idx_mapping, query_start_loc, positions, out)
    map_slots(TableLayout.of([table]), *arguments, record=record, launch=1)
    assert out.tolist() == [[78 * 16, 77 * 16 + 15, PAD_SLOT]]
    assert [violation.total for violation in record.read()] == [1]


def test_an_unbounded_mapping_gives_out_the_neighbours_block(device):
    bench = Bench(device, [8], [16], tokens=2, rows=2, gap=0)
    arguments = (bench.geometry, *bench.tensors([0, -1], [1, 1], [128, 0]), bench.out)
    map_slots(bench.layout, *arguments, bounded=False, record=bench.record)
    # Column 8 of row 0 is row 1's first entry, block 9.
    assert bench.out.tolist() == [[9 * 16, PAD_SLOT]]
    assert bench.record.read() == ()


def random_case(device, seed):
    random_ = random.Random(seed)
    groups, rows = random_.randint(1, 5), random_.randint(1, 5)
    factors = [random_.choice([1, 2, 4]) for _ in range(groups)]
    kernel_sizes = [random_.choice([1, 3, 16]) for _ in range(groups)]
    cp_size = random_.choice([1, 1, 2, 4])
    bench = Bench(
        device,
        [random_.choice([1, 4, 33]) for _ in range(groups)],
        [size * factor for size, factor in zip(kernel_sizes, factors, strict=True)],
        rows=rows,
        tokens=80,
        gap=random_.choice([0, 3]),
        kernel_block_sizes=kernel_sizes,
        enabled=[random_.random() < 0.8 for _ in range(groups)],
        sharded=[random_.random() < 0.7 for _ in range(groups)],
        cp_size=cp_size,
        cp_rank=random_.randrange(cp_size),
        cp_interleave=random_.choice([1, 2, 16]),
    )
    return random_, bench


@pytest.mark.parametrize("seed", range(12))
def test_random_batches_match_the_reference(device, seed):
    random_, bench = random_case(device, seed)
    rows = bench.layout.num_rows
    for _ in range(3):
        lengths = [random_.randint(0, 12) for _ in range(random_.randint(0, 6))]
        positions = [random_.randint(-2, 300) for _ in range(sum(lengths))]
        mapping = [random_.randint(-2, rows) for _ in lengths]
        counts = [[random_.randint(0, w + 1) for _ in range(rows)] for w in bench.layout.row_widths]
        bench.run(mapping, lengths, positions, counts=random_.choice([None, counts]))


@pytest.mark.parametrize("seed", range(4))
def test_bounded_and_unbounded_agree_on_what_fits(device, seed):
    random_, bench = random_case(device, 50 + seed)
    ranks = bench.geometry.cp_size
    room = min(
        width * size * (ranks if sharded else 1)
        for width, size, sharded in zip(
            bench.layout.row_widths, bench.geometry.kernel_block_sizes, bench.geometry.sharded, strict=True
        )
    )
    # Uneven runs reach a little beyond a rank's share of the last stretch; stay in the first half.
    positions = [random_.randrange(max(1, room // 2 - 16)) for _ in range(20)]
    arguments = (bench.geometry, *bench.tensors([0, -1, bench.layout.num_rows - 1], [9, 2, 9], positions))
    map_slots(bench.layout, *arguments, bench.out, record=bench.record)
    unguarded = torch.empty_like(bench.out)
    map_slots(bench.layout, *arguments, unguarded, bounded=False)
    assert torch.equal(bench.out, unguarded)
    assert bench.record.read() == ()


def test_a_comparison_off_by_one_would_be_noticed(device):
    """The same kernel, told of rows one entry wider, must disagree with the reference."""
    bench = Bench(device, [8], [16], tokens=1, rows=2, gap=0)
    bench.layout = replace(bench.layout, widths=bench.layout.widths + 1)
    with pytest.raises(AssertionError):
        bench.run([0], [1], [128])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_sizes": [0]}, "block size 0 of group 0 is not a positive int32"),
        ({"block_sizes": [2**31]}, "is not a positive int32"),
        ({"kernel_block_sizes": [16, 16]}, "kernel_block_sizes has 2 entries for 1 groups"),
        ({"enabled": []}, "enabled has 0 entries for 1 groups"),
        ({"sharded": [True, True]}, "sharded has 2 entries for 1 groups"),
        ({"cp_size": 0}, "cp_size 0 is not positive"),
        ({"cp_size": 2, "cp_rank": 2}, r"cp_rank 2 is not in 0\.\.1"),
        ({"cp_interleave": 0}, "cp_interleave 0 is not positive"),
    ],
)
def test_a_geometry_that_breaks_the_contract_is_refused(device, change, message):
    arguments = {"block_sizes": [16], **change}
    with pytest.raises(KernelError, match=message):
        SlotGeometry.of(arguments.pop("block_sizes"), device, **arguments)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, lambda t: t.float(), r"idx_mapping is torch\.float32"),
        (0, lambda t: t.reshape(1, -1), "idx_mapping has 2 dimensions"),
        (1, lambda t: t[:-1], "query_start_loc needs 3 entries, not 2"),
        (2, lambda t: torch.stack([t, t], 1)[:, 0], "entries of positions are not adjacent"),
        (3, lambda t: t.int(), r"out is torch\.int32"),
        (3, lambda t: torch.cat([t, t]), r"out is not \[groups, tokens\]"),
        (3, lambda t: t.clone().T.contiguous().T, "entries of out are not adjacent"),
    ],
)
def test_arguments_that_break_the_contract_are_refused(device, place, wrong, message):
    bench = Bench(device, [4, 4], [16, 16], tokens=4)
    arguments = [*bench.tensors([0, 1], [2, 1], [1, 2, 3]), bench.out]
    arguments[place] = wrong(arguments[place])
    with pytest.raises(KernelError, match=message):
        map_slots(bench.layout, bench.geometry, *arguments)


def test_a_geometry_of_other_groups_and_counts_of_another_shape_are_refused(device):
    bench, other = Bench(device, [4], [16]), Bench(device, [4, 4], [16, 16])
    arguments = (*bench.tensors([0], [1], [1]), bench.out)
    with pytest.raises(KernelError, match="made for other groups"):
        map_slots(bench.layout, other.geometry, *arguments)
    counts = torch.zeros((2, 4), dtype=torch.int32, device=device)
    with pytest.raises(KernelError, match="counts are not"):
        map_slots(bench.layout, bench.geometry, *arguments, counts=counts)
