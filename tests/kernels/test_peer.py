"""Slot mapping and gather beside the engine's own kernels, where ROWBOUND_PEER names a directory of them.

The directory holds v<release>/ folders, each fit for sys.path and with that release's own
`vllm.v1.worker.gpu.block_table`.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import PAD_SLOT, SlidingWindow, SlotGeometry, TableLayout, gather_rows, map_slots
from kernels.record import ViolationRecord
from tests.kernels.wide_masks import accept_wide_masks

pytestmark = pytest.mark.gpu

DIRECTORY = os.environ.get("ROWBOUND_PEER", "")
RELEASES = sorted(path.name for path in Path(DIRECTORY).glob("v*")) if DIRECTORY else []
NEEDS_PEER = pytest.mark.skip(reason="ROWBOUND_PEER names no directory with the engine's own modules")


@pytest.fixture(params=RELEASES or [pytest.param("none", marks=NEEDS_PEER)])
def peer(request, monkeypatch, device):
    """One release's `block_table` module; nothing of it stays imported."""
    monkeypatch.syspath_prepend(str(Path(DIRECTORY) / request.param))
    others = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm"}
    for name in others:
        del sys.modules[name]
    if device.type == "cpu":
        accept_wide_masks(monkeypatch.setattr)
    yield importlib.import_module("vllm.v1.worker.gpu.block_table")
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.modules.update(others)


def launch(kernel, grid, **arguments):
    """Launch with those of `arguments` that this release's kernel takes."""
    known = {name: value for name, value in arguments.items() if name in kernel.arg_names}
    assert set(kernel.arg_names) == set(known)
    kernel[grid](**known)


class Case:
    """Tables of distinct block IDs and a geometry that the release can express."""

    def __init__(self, device, peer, seed):
        self.random = random.Random(seed)
        names = peer._compute_slot_mappings_kernel.arg_names
        groups, self.rows = self.random.randint(1, 4), self.random.randint(2, 5)
        self.device = device
        self.kernel_sizes = [self.random.choice([1, 4, 16]) for _ in range(groups)]
        # Releases without the second size interleave within the blocks that the table's entries stand for.
        factors = [self.random.choice([1, 2]) if "kernel_block_sizes" in names else 1 for _ in range(groups)]
        self.sizes = [size * factor for size, factor in zip(self.kernel_sizes, factors, strict=True)]
        always = "slot_mapping_enabled" not in names
        self.enabled = [always or self.random.random() < 0.8 for _ in range(groups)]
        self.sharded = [self.random.random() < 0.6 or "dcp_sharded" not in names for _ in range(groups)]
        self.cp_size = self.random.choice([1, 2, 4])
        self.cp_rank = self.random.randrange(self.cp_size)
        self.cp_interleave = self.random.choice([1, 4])
        self.dummies = "dcp_sharded" in names  # since then row -1 stands for a dummy request
        self.widths = [self.random.choice([3, 16, 40]) for _ in range(groups)]
        self.tables = []
        for group, width in enumerate(self.widths):
            first = 1 + 10_000 * group
            ids = torch.arange(first, first + self.rows * width, dtype=torch.int32, device=device)
            self.tables.append(ids.reshape(self.rows, width))
        self.layout = TableLayout.of(self.tables)
        self.geometry = SlotGeometry.of(
            self.sizes,
            device,
            kernel_block_sizes=self.kernel_sizes,
            enabled=self.enabled,
            sharded=self.sharded,
            cp_size=self.cp_size,
            cp_rank=self.cp_rank,
            cp_interleave=self.cp_interleave,
        )

    def tensor(self, values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=self.device)

    def batch(self, reach, rows):
        lengths = [self.random.randint(0, 9) for _ in range(self.random.randint(1, 6))]
        starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        mapping = [self.random.randrange(-1 if self.dummies else 0, rows) for _ in lengths]
        positions = [self.random.randrange(reach) for _ in range(starts[-1])]
        return self.tensor(mapping), self.tensor(starts), self.tensor(positions, torch.int64)

    def engine_slots(self, peer, idx_mapping, query_start_loc, positions, tokens):
        out = torch.full((len(self.tables), tokens), 555, dtype=torch.int64, device=self.device)
        launch(
            peer._compute_slot_mappings_kernel,
            (len(self.tables), idx_mapping.shape[0] + 1),
            max_num_tokens=tokens,
            idx_mapping=idx_mapping,
            query_start_loc=query_start_loc,
            pos=positions,
            block_table_ptrs=self.layout.pointers,
            block_table_strides=self.layout.strides,
            block_sizes=self.tensor(self.sizes),
            kernel_block_sizes=self.tensor(self.kernel_sizes),
            slot_mapping_enabled=self.tensor(self.enabled, torch.bool),
            dcp_sharded=self.tensor(self.sharded, torch.bool),
            slot_mappings_ptr=out,
            slot_mappings_stride=out.stride(0),
            cp_rank=self.cp_rank,
            CP_SIZE=self.cp_size,
            CP_INTERLEAVE=self.cp_interleave,
            PAD_ID=PAD_SLOT,
            TRITON_BLOCK_SIZE=1024,
        )
        return out

    def room(self):
        """Positions from 0 on that every group's row surely holds."""
        groups = zip(self.widths, self.kernel_sizes, self.sharded, strict=True)
        return min(width * size * (self.cp_size if sharded else 1) for width, size, sharded in groups)


@pytest.mark.parametrize("seed", range(15))
def test_slots_are_those_of_the_engine_wherever_the_row_holds_the_position(device, peer, seed):
    case = Case(device, peer, seed)
    # A rank's share of an unfinished stretch is less than one more block of each rank.
    reach = max(1, case.room() - max(case.sizes) * case.cp_size)
    batch = case.batch(reach, case.rows)
    record = ViolationRecord.on(device)
    out = torch.full((len(case.tables), 70), 777, dtype=torch.int64, device=device)
    map_slots(case.layout, case.geometry, *batch, out, record=record)
    assert torch.equal(out, case.engine_slots(peer, *batch, 70))
    assert record.read() == ()


@pytest.mark.parametrize("seed", range(10))
def test_without_bounds_the_mapping_errs_as_the_engine_does(device, peer, seed):
    case = Case(device, peer, 100 + seed)
    # All rows but the last may be left: what follows is the table's own memory.
    batch = case.batch(case.room() + min(case.kernel_sizes) * min(case.widths), case.rows - 1)
    out = torch.full((len(case.tables), 70), 777, dtype=torch.int64, device=device)
    map_slots(case.layout, case.geometry, *batch, out, bounded=False)
    assert torch.equal(out, case.engine_slots(peer, *batch, 70))


@pytest.mark.parametrize("seed", range(10))
def test_gathered_entries_are_those_of_the_engine_up_to_the_rows_count(device, peer, seed):
    case = Case(device, peer, 200 + seed)
    groups = len(case.tables)
    rows = case.tensor([case.random.randrange(case.rows) for _ in range(case.random.randint(1, case.rows))])
    counts = case.tensor([[case.random.randint(0, w) for _ in range(case.rows)] for w in case.widths])
    computed = case.tensor([case.random.randint(0, 400) for _ in range(case.rows)])
    reach = case.tensor([case.random.choice([0, 7, 40]) for _ in range(groups)])
    masked = "MASK_SLIDING_WINDOW" in peer._gather_block_tables_kernel.arg_names
    ours, theirs = ([torch.zeros_like(table) for table in case.tables] for _ in range(2))
    window = SlidingWindow(computed, reach, case.tensor(case.sizes)) if masked else None
    gather_rows(case.layout, counts, rows, TableLayout.of(ours), case.rows, window=window)
    launch(
        peer._gather_block_tables_kernel,
        (groups, case.rows),
        batch_idx_to_req_idx=rows,
        src_block_table_ptrs=case.layout.pointers,
        dst_block_table_ptrs=TableLayout.of(theirs).pointers,
        block_table_strides=case.layout.strides,
        num_blocks_ptr=counts,
        num_blocks_stride=counts.stride(0),
        num_reqs=rows.shape[0],
        num_computed_tokens_ptr=computed,
        sliding_window_reach_ptr=reach,
        block_sizes_ptr=case.tensor(case.sizes),
        MASK_SLIDING_WINDOW=masked,
        BLOCK_SIZE=1024,
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
