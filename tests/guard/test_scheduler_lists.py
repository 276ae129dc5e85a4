r"""Recorded lists of vLLM's own schedulers, replayed into the guarded tables and into the engine's own.

The recordings in scheduler_lists/ are real runs of each release's scheduler. After each step counts, rows,
gathered rows and slots are what the scheduler's lists and `invariants` say. To make one anew after
`make conformance` (0.32.0 is the environment's own and needs no folder):

    PYTHONHASHSEED=0 PYTHONPATH=.engines/0.33.0:. .engines/env/bin/python tests/conformance/conform.py \
        --record tests/guard/scheduler_lists/vllm-0.33.jsonl.gz
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from guard import BlockTables, BlockTableViolation, GuardUsageError, Violation
from invariants import (
    AttentionSpec,
    Gap,
    IllegalDeployment,
    Runner,
    dealt_spec,
    entries_needed,
    release,
    require_legal,
    row_width,
)
from tests.conformance.expected_rows import ExpectedRows, layer
from tests.conformance.recording import deployment_of, read, spec_of
from tests.kernels.test_peer import peer  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu

RUNS = {}
"""Runs by release and spec type."""
for _path in sorted(Path(__file__).with_name("scheduler_lists").glob("*.jsonl.gz")):
    for _run in read(_path):
        RUNS.setdefault((_run["release"], _run["kind"]), []).append(_run)

PASS_EACH = 5
"""The interpreter's forward passes are one in so many steps; a GPU's are all, and of all runs of a type."""


class Replay:
    """One run played into tables, one for each rank of its deployment."""

    def __init__(self, run, make, device):
        self.run, self.device = run, device
        self.pass_each = PASS_EACH if device.type == "cpu" else 1
        self.deployment = deployment_of(run)
        specs = tuple(map(spec_of, run["specs"]))
        self.expected = ExpectedRows(self.deployment, specs, run["release"], Runner.V2)
        self.groups = range(len(specs))
        self.ranks = [make(rank) for rank in range(self.deployment.decode_context_parallel_size)]
        self.told, self.refused, self.compared = {}, 0, 0

    def play(self, *, refuses=True):
        """Play all steps; each compares every row of the batch, and one rank's forward pass."""
        for number, step in enumerate(self.run["steps"]):
            for row, lists, overwrite, fits in step["appends"]:
                self.append(row, lists, overwrite, fits, refuses)
            for tables in self.ranks:
                tables.apply_staged_writes()
                self.compare_rows(tables, step["rows"])
            if number % self.pass_each:
                continue
            rank = number // self.pass_each % len(self.ranks)
            batch = [(row, range(start, start + tokens)) for row, _, start, tokens in step["rows"]]
            batch = [pair for pair in batch if pair[1].stop <= self.deployment.max_model_len]
            if batch:
                self.compare_pass(rank, *zip(*batch, strict=True))
        return self

    def append(self, row, lists, overwrite, fits, refuses):
        if not fits:
            self.refused += 1
            for tables in self.ranks if refuses else ():
                with pytest.raises(BlockTableViolation) as caught:
                    tables.append_block_ids(row, tuple(lists), overwrite)
                assert caught.value.kind is Violation.ROW_CAPACITY
            return
        for tables in self.ranks:
            tables.append_block_ids(row, tuple(lists), overwrite)
        before = [[] for _ in lists] if overwrite else self.told[row]
        self.told[row] = [held + more for held, more in zip(before, lists, strict=True)]

    def compare_rows(self, tables, rows):
        counts, on_device = tables.num_blocks.np, tables.num_blocks.gpu.cpu()
        for group in self.groups:
            held = tables.block_tables[group].gpu.tolist()
            for row, lists, _, _ in rows:
                count = int(counts[group, row])
                assert count == on_device[group, row]
                told = self.told[row][group]
                assert self.expected.row(group, lists[group], told, count, held[row][:count]) is None
                self.compared += 1

    def compare_pass(self, rank, rows, spans):
        tables = self.ranks[rank]
        gathered, slots = self.forward(tables, rows, spans)
        enabled = self.run["tables"].get("slot_mapping_enabled", [True] * len(self.groups))
        for group in self.groups:
            held = tables.block_tables[group].gpu.tolist()
            for place, (row, span) in enumerate(zip(rows, spans, strict=True)):
                count = int(tables.num_blocks.np[group, row])
                step = self.expected.step(span.start, len(span))
                got = gathered[group][place].tolist()[:count]
                assert self.expected.gathered(group, held[row][:count], got, step) is None
            if not enabled[group]:
                assert self.expected.unmapped(group, slots[group]) is None
            elif self.expected.maps_positions(group):
                used = [held[row] for row in rows]
                assert self.expected.slots(group, used, spans, rank, slots[group]) is None

    def forward(self, tables, rows, spans):
        lengths = [len(span) for span in spans]
        mapping = self.tensor(rows, torch.int32)
        starts = self.tensor([sum(lengths[:n]) for n in range(len(rows) + 1)], torch.int32)
        positions = self.tensor([position for span in spans for position in span], torch.int64)
        computed = torch.zeros(tables.max_num_reqs, dtype=torch.int32, device=self.device)
        for row, span in zip(rows, spans, strict=True):
            computed[row] = span.start
        masked = "num_computed_tokens" in inspect.signature(tables.gather_block_tables).parameters
        named = {"num_computed_tokens": computed} if masked else {}
        gathered = tables.gather_block_tables(mapping, len(rows), **named)
        return gathered, tables.compute_slot_mappings(mapping, starts, positions, sum(lengths)).tolist()

    def tensor(self, values, dtype):
        return torch.tensor(values, dtype=dtype, device=self.device)


def deals_kernel_blocks(run):
    return release(run["release"]).leaves_open(Gap.KERNEL_BLOCK_DEALS_ON_V2, Runner.V2)


def guarded(run, device):
    """Play a run into the guarded tables, told whether the release deals tokens out within kernel blocks."""
    named = {**run["tables"], "deals_kernel_blocks": deals_kernel_blocks(run), "device": device}
    return Replay(run, lambda rank: BlockTables(**named, cp_rank=rank), device)


def outruns_its_blocks(run):
    """Say whether the release deals a group's tokens out in runs that leave the blocks it deals within."""
    for spec in map(layer, map(spec_of, run["specs"])):
        if not isinstance(spec, AttentionSpec):
            continue
        try:
            require_legal(
                deployment_of(run), dealt_spec(spec, release=run["release"]), release=run["release"]
            )
        except IllegalDeployment as illegal:
            if illegal.assumption == "interleave-divides":
                return True
    return False


def has_too_narrow_a_row(run):
    """Say whether the largest request within the context does not fit; else only a session is refused."""
    deployment, known = deployment_of(run), run["release"]
    return any(
        entries_needed(deployment, spec, release=known) > row_width(deployment, spec, release=known)
        for spec in map(spec_of, run["specs"])
    )


@pytest.mark.parametrize("release_and_kind", RUNS, ids="-".join)
def test_each_step_of_a_schedulers_run_leaves_what_it_lists(release_and_kind, device):
    runs = [run for run in RUNS[release_and_kind] if not outruns_its_blocks(run)]
    for run in runs[:1] if device.type == "cpu" else runs:
        replay = guarded(run, device).play()
        for tables in replay.ranks:
            tables.report_kernel_violations(wait=True)
        assert replay.compared > 0


def test_lists_for_which_a_release_makes_too_narrow_a_row_are_refused(device):
    (run,) = [run for run in RUNS["vllm-0.28", "mamba-align"] if has_too_narrow_a_row(run)]
    # max_model_len 35, dcp 4, states of 8 tokens: rows of 2, and a request of 35 tokens lists 5.
    assert guarded(run, device).play().refused == 4


def test_a_deployment_whose_runs_leave_the_kernel_blocks_is_refused(device):
    runs = [run for some in RUNS.values() for run in some if outruns_its_blocks(run)]
    assert {run["release"] for run in runs} == {"vllm-0.28"}
    for run in runs:
        with pytest.raises(GuardUsageError, match=r"cp_interleave \d+ does not divide the kernel block size"):
            guarded(run, device)


@pytest.mark.parametrize("place", ["appends", "rows"])
def test_one_altered_entry_is_noticed(place, device):
    """Altered in what the worker is told, or in what the scheduler lists."""
    run = copy.deepcopy(RUNS["vllm-0.33", "full-attention"][0])
    step = next(step for step in run["steps"] if step["appends"] and step["rows"])
    step[place][0][1][0][0] += 1
    with pytest.raises(AssertionError, match="the list has block"):
        guarded(run, device).play()


def test_one_lost_append_is_noticed(device):
    run = copy.deepcopy(RUNS["vllm-0.33", "full-attention"][0])
    step = next(step for step in run["steps"] if any(not overwrite for _, _, overwrite, _ in step["appends"]))
    step["appends"] = [append for append in step["appends"] if append[2]]
    with pytest.raises(AssertionError, match="the scheduler lists"):
        guarded(run, device).play()


def test_the_engines_own_tables_hold_their_own_schedulers_lists(peer, device, request):  # noqa: F811 - the fixture
    if device.type == "cpu":
        pytest.skip("vLLM's own tables read host memory from a GPU; `make conformance` has them on a CPU")
    # Folders are named v0.33.0, releases vllm-0.33.
    known = f"vllm-{'.'.join(request.node.callspec.params['peer'].removeprefix('v').split('.')[:2])}"
    runs = [run for (of, _), some in RUNS.items() if of == known for run in some]
    if not runs:
        pytest.skip(f"nothing is recorded of {known}")
    for run in runs:
        make = lambda rank, run=run: peer.BlockTables(**run["tables"], cp_rank=rank, device=device)  # noqa: E731
        Replay(run, make, device).play(refuses=False)
