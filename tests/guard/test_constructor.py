"""Both constructor forms of the engine's tables, and arguments that are refused in one line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
np = pytest.importorskip("numpy")

from guard import BlockTables, BlockTableViolation, GuardUsageError

pytestmark = pytest.mark.gpu

SIZES = {
    "block_sizes": [64, 16],
    "max_num_reqs": 4,
    "max_num_batched_tokens": 256,
    "max_num_blocks_per_group": [2, 5],
}


def test_the_earlier_form_splits_manager_blocks_into_kernel_blocks(device):
    positional = BlockTables(
        [64, 16], 4, 256, [2, 5], device, [16, 16], 2, 1, 4, [True, False], [True, False]
    )
    named = BlockTables(
        **SIZES,
        device=device,
        kernel_block_sizes=[16, 16],
        cp_size=2,
        cp_rank=1,
        cp_interleave=4,
        slot_mapping_enabled=[True, False],
        dcp_sharded=[True, False],
    )
    for tables in (positional, named):
        assert [t.gpu.shape for t in tables.block_tables] == [(4, 8), (4, 5)]
        assert (tables.cp_size, tables.cp_rank, tables.cp_interleave) == (2, 1, 4)
        assert tables.blocks_per_kv_block == [4, 1]
        tables.append_block_ids(0, ([3], [3]), overwrite=True)
        tables.append_block_ids(0, ([1], []), overwrite=False)
        tables.apply_staged_writes()
        assert tables.block_tables[0].gpu[0].tolist() == [12, 13, 14, 15, 4, 5, 6, 7]
        assert tables.block_tables[1].gpu[0].tolist() == [3, 0, 0, 0, 0]
        with pytest.raises(BlockTableViolation, match=r"group 0 exceeds row capacity \(12 > 8\)"):
            tables.append_block_ids(0, ([1], []), overwrite=False)


def test_the_later_form_stores_manager_blocks(device):
    positional = BlockTables([64, 16], 4, 256, [2, 5], device, 1, 0, 1, None, [True, True], [0, 16])
    named = BlockTables(
        **SIZES, device=device, cp_size=1, dcp_sharded=[True, True], sliding_window_reach=[0, 16]
    )
    for tables in (positional, named):
        assert [t.gpu.shape for t in tables.block_tables] == [(4, 2), (4, 5)]
        assert tables.has_sliding_window_groups
        assert tables.block_sizes == [64, 16]
        assert tables.num_kv_cache_groups == 2


def test_a_kernel_block_id_beyond_int32_is_refused(device):
    tables = BlockTables([64], 1, 64, [4], device, [16])
    tables.append_block_ids(0, ([2**29 - 1],), overwrite=True)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[0, 3] == 2**31 - 1
    with pytest.raises(BlockTableViolation, match="does not fit int32"):
        tables.append_block_ids(0, ([2**29],), overwrite=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_sizes": [16]}, "max_num_blocks_per_group has 2 entries for 1 groups"),
        ({"block_sizes": [16, 0]}, "block_sizes of group 1 must be from 1 to"),
        ({"block_sizes": [16, True]}, "block_sizes of group 1 must be a whole number, not True"),
        ({"block_sizes": 16}, "block_sizes must be a list, not 16"),
        ({"max_num_reqs": 0}, "max_num_reqs must be from 1 to"),
        ({"max_num_reqs": 10**18}, "max_num_reqs must be from 1 to"),
        ({"max_num_reqs": 10**5000}, "max_num_reqs must be from 1 to 1048576, not an integer of 16610 bits"),
        ({"max_num_reqs": 4.0}, r"max_num_reqs must be a whole number, not 4\.0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens must be from 1 to"),
        ({"max_num_blocks_per_group": [2, 10**18]}, "max_num_blocks_per_group of group 1 must be from 1 to"),
        ({"max_num_blocks_per_group": [2, 0]}, "max_num_blocks_per_group of group 1 must be from 1 to"),
        (
            {"max_num_reqs": 2**20, "max_num_blocks_per_group": [2**30, 1]},
            "would take 4503599631564800 bytes",
        ),
        ({"kernel_block_sizes": [16]}, "kernel_block_sizes has 1 entries for 2 groups"),
        (
            {"kernel_block_sizes": [24, 16]},
            "kernel block size 24 of group 0 does not divide its block size 64",
        ),
        ({"cp_size": 0}, "cp_size must be from 1 to"),
        ({"cp_size": 2, "cp_rank": 2}, "cp_rank must be from 0 to 1, not 2"),
        ({"cp_rank": -1}, "cp_rank must be from 0 to 0, not -1"),
        ({"cp_interleave": 0}, "cp_interleave must be from 1 to"),
        (
            {"kernel_block_sizes": [32, 16], "deals_kernel_blocks": True, "cp_size": 2, "cp_interleave": 64},
            "cp_interleave 64 does not divide the kernel block size 32 of group 0: a run of",
        ),
        ({"dcp_sharded": [True]}, "dcp_sharded has 1 entries for 2 groups"),
        ({"slot_mapping_enabled": [True]}, "slot_mapping_enabled has 1 entries for 2 groups"),
        ({"sliding_window_reach": [-1, 0]}, "sliding_window_reach of group 0 must be from 0 to"),
        ({"num_pool_blocks": 0}, "num_pool_blocks must be from 1 to"),
        ({"num_pool_blocks": 10**18}, "num_pool_blocks must be from 1 to"),
        ({"pool": 3}, "BlockTables has no argument 'pool'"),
        ({"device": "nowhere"}, "cannot allocate block tables on nowhere"),
        ({"device": None}, "cannot allocate block tables on None"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(change, message):
    with pytest.raises(GuardUsageError, match=message) as caught:
        BlockTables(**{**SIZES, "device": "cpu", **change})
    assert "\n" not in str(caught.value)


def test_an_argument_given_twice_is_refused():
    with pytest.raises(GuardUsageError, match="got 'cp_size' twice"):
        BlockTables([16], 4, 64, [4], "cpu", 1, cp_size=1)


def test_too_many_positional_arguments_are_refused():
    with pytest.raises(GuardUsageError, match="at most 11 positional arguments"):
        BlockTables([16], 4, 64, [4], "cpu", 1, 0, 1, None, None, None, None)


def test_a_device_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(GuardUsageError, match="cannot allocate block tables on cuda"):
        BlockTables([16], 4, 64, [4], "cuda")


def test_numpy_sizes_are_accepted(device):
    tables = BlockTables(np.array([16, 16]), np.int64(4), np.int32(64), np.array([3, 4]), device)
    assert [t.gpu.shape for t in tables.block_tables] == [(4, 3), (4, 4)]
    assert type(tables.max_num_reqs) is int


@pytest.mark.parametrize("deals", [False, True])
def test_a_mamba_block_of_any_size_goes_beside_runs_of_tokens(deals, device):
    """A block of recurrent state may be max_model_len [vLLM 0.29]; nobody reads the slots of its group."""
    tables = BlockTables(
        [16, 4097], 4, 64, [128, 1], device, [16, 4097], 2, 0, 16, [True, True], deals_kernel_blocks=deals
    )
    assert [t.gpu.shape for t in tables.block_tables] == [(4, 128), (4, 1)]
