"""Slot mappings of the guarded tables: upstream's cases, written anew, and what leaves a row."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from guard import BlockTables, BlockTableViolation, Violation
from tests.guard.states import make

pytestmark = pytest.mark.gpu

PAD = -1


def on(device, *numbers, dtype=torch.int64):
    return torch.tensor(numbers, dtype=dtype, device=device)


def slots(tables, device, rows, positions, padded=None):
    """Map one token per request and return the slots per group."""
    starts = on(device, *range(len(rows) + 1), dtype=torch.int32)
    mapped = tables.compute_slot_mappings(
        on(device, *rows, dtype=torch.int32), starts, on(device, *positions), padded or len(rows)
    )
    return mapped.tolist()


def test_a_group_that_maps_no_slots_has_none_at_any_position(device):
    # Positions of a real report: a column of the disabled group would lie far past its row of 4.
    tables = BlockTables([16, 262144], 2, 64, [4, 4], device, slot_mapping_enabled=[False, True])
    tables.append_block_ids(0, ([1], [5]), overwrite=True)
    tables.append_block_ids(1, ([2], [7]), overwrite=True)
    tables.apply_staged_writes()
    assert slots(tables, device, [0, 1], [153797, 165757]) == [
        [PAD, PAD],
        [5 * 262144 + 153797, 7 * 262144 + 165757],
    ]
    tables.report_kernel_violations(wait=True)


@pytest.mark.parametrize(
    ("rank", "sharded"),
    [(0, [40, 41, PAD, PAD, PAD, PAD, PAD, PAD, 42]), (1, [PAD, PAD, 40, 41, PAD, PAD, PAD, PAD, PAD]),
     (2, [PAD, PAD, PAD, PAD, 40, 41, PAD, PAD, PAD]), (3, [PAD, PAD, PAD, PAD, PAD, PAD, 40, 41, PAD])],
)  # fmt: skip
def test_context_parallelism_deals_out_only_what_is_sharded(device, rank, sharded):
    tables = BlockTables(
        [4, 4], 1, 64, [8, 8], device,
        cp_size=4, cp_rank=rank, cp_interleave=2, dcp_sharded=[True, False],
    )  # fmt: skip
    tables.append_block_ids(0, ([10, 11], [20, 21, 22]), overwrite=True)
    tables.apply_staged_writes()
    mapped = tables.compute_slot_mappings(
        on(device, 0, dtype=torch.int32),
        on(device, 0, 9, dtype=torch.int32),
        torch.arange(9, device=device),
        9,
    )
    assert mapped.tolist() == [sharded, [80, 81, 82, 83, 84, 85, 86, 87, 88]]


def test_a_dummy_request_has_no_slots(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(3, ([9],), overwrite=True)
    tables.apply_staged_writes()
    assert slots(tables, device, [-1, 3], [0, 5]) == [[PAD, 9 * 16 + 5]]
    tables.report_kernel_violations(wait=True)


def test_everything_behind_the_last_token_is_pad(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([1, 2],), overwrite=True)
    tables.apply_staged_writes()
    assert slots(tables, device, [0, 0, 0], [0, 1, 17]) == [[16, 17, 33]]
    assert slots(tables, device, [0], [1], padded=4) == [[17, PAD, PAD, PAD]]
    assert (tables.slot_mappings[:, 1:] == PAD).all()


def test_dummy_slot_mappings_are_pad_throughout_at_the_same_address(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(0, ([1],), overwrite=True)
    tables.apply_staged_writes()
    slots(tables, device, [0], [3])
    dummy = tables.get_dummy_slot_mappings(5)
    assert dummy.shape == (1, 5)
    assert dummy.data_ptr() == tables.slot_mappings.data_ptr()
    assert (tables.slot_mappings == PAD).all()


def test_kernel_blocks_are_what_a_slot_counts_in(device):
    # A block of 32 is two kernel blocks of 16: block 3 is kernel blocks 6 and 7.
    tables = BlockTables([32], 1, 64, [2], device, [16])
    tables.append_block_ids(0, ([3, 5],), overwrite=True)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu.tolist() == [[6, 7, 10, 11]]
    assert slots(tables, device, [0, 0, 0, 0], [0, 31, 32, 63]) == [[96, 127, 160, 191]]


@pytest.mark.parametrize(
    ("within_kernel_blocks", "expected"), [(False, [96, 97, PAD, PAD]), (True, [96, PAD, 97, PAD])]
)
def test_tokens_are_dealt_out_within_the_blocks_of_the_release(device, within_kernel_blocks, expected):
    # Block 24 of 4 tokens is kernel blocks 48 and 49 of 2: slots 96 to 99.
    tables = BlockTables(
        [4], 1, 64, [4], device, [2], 2, 0, 2 if not within_kernel_blocks else 1,
        deals_kernel_blocks=within_kernel_blocks,
    )  # fmt: skip
    tables.append_block_ids(0, ([24],), overwrite=True)
    tables.apply_staged_writes()
    assert slots(tables, device, [0] * 4, [0, 1, 2, 3]) == [expected]


def test_a_position_past_the_row_is_pad_and_raised_by_the_next_step(device):
    tables = make(BlockTables, device, [2, 2])
    tables.append_block_ids(0, ([1, 2], [3, 4]), overwrite=True)
    tables.append_block_ids(1, ([5, 6], [7, 8]), overwrite=True)
    tables.apply_staged_writes()
    assert slots(tables, device, [0, 1], [32, 31]) == [[PAD, 6 * 16 + 15], [PAD, 8 * 16 + 15]]
    if device.type != "cpu":
        torch.cuda.synchronize()
    tables.append_block_ids(0, ([9], [9]), overwrite=True)
    with pytest.raises(
        BlockTableViolation, match="Kernel launch 2 on the block tables left out 2 accesses"
    ) as caught:
        tables.apply_staged_writes()
    violation = caught.value
    assert (violation.kind, violation.request, violation.wanted, violation.limit) == (
        Violation.KERNEL_READ_PAST_ROW, 0, 2, 2,
    )  # fmt: skip
    assert (violation.launch, violation.total) == (2, 2)
    # What was staged is still there and goes out with the next step.
    tables.apply_staged_writes()
    assert tables.num_blocks.gpu.tolist() == [[1, 2, 0, 0], [1, 2, 0, 0]]


def test_every_fault_of_a_kernel_has_a_kind_of_violation():
    from kernels import DeviceFault

    assert {f"kernel-{fault.name.lower().replace('_', '-')}" for fault in DeviceFault} == {
        kind.value for kind in Violation if kind.value.startswith("kernel-")
    }
