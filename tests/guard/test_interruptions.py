"""Whatever breaks an append off leaves the staged writes whole, and steps in flight keep their numbers."""

from __future__ import annotations

import multiprocessing

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from guard import BlockTables, BlockTableViolation, GuardError
from tests.guard.states import make, state_of


class Interrupting(list):
    """A list whose length is asked for, or whose numbers are read, while Ctrl-C arrives."""

    def __init__(self, numbers, when):
        super().__init__(numbers)
        self.when = when

    def __len__(self):
        if self.when == "len":
            raise KeyboardInterrupt
        return super().__len__()

    def __iter__(self):
        if self.when == "iter":
            raise KeyboardInterrupt
        return super().__iter__()


@pytest.mark.parametrize("when", ["len", "iter"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_an_interrupt_within_an_append_leaves_nothing_of_it(device, when, groups):
    tables = make(BlockTables, device, [4] * groups)
    tables.append_block_ids(1, ([7],) * groups, overwrite=True)
    before = state_of(tables)
    with pytest.raises(KeyboardInterrupt):
        tables.append_block_ids(0, (*([1],) * (groups - 1), Interrupting([2, 3], when)), overwrite=True)
    assert state_of(tables) == before
    tables.append_block_ids(2, ([8],) * groups, overwrite=True)
    tables.apply_staged_writes()
    assert [table.gpu[:, 0].tolist() for table in tables.block_tables] == [[0, 7, 8, 0]] * groups


@pytest.mark.parametrize("part", ["rows", "starts", "ends"])
def test_an_append_that_was_only_half_noted_is_taken_off(device, part):
    tables = make(BlockTables, device, [4, 4])
    tables.append_block_ids(1, ([7], [7, 7]), overwrite=True)
    before = state_of(tables)
    log = tables._log
    log.contents.fromlist([5, 6, 6])
    notes = {"rows": [0], "starts": [0, 0], "ends": [1, 2]}
    for name, values in notes.items():
        getattr(log, name).extend(values)
        if name == part:
            break
    log.mend(tables._counts)
    assert state_of(tables) == before


class Lying(list):
    """Says that it is shorter than what it holds."""

    def __len__(self):
        return 1


def test_a_list_that_lies_about_its_length_never_shifts_the_writes_behind_it(device):
    tables = make(BlockTables, device, [4])
    tables.append_block_ids(2, ([9],), overwrite=True)
    tables.apply_staged_writes()
    before = state_of(tables)
    tables.append_block_ids(0, (Lying([1, 2]),), overwrite=True)
    tables.append_block_ids(1, ([3],), overwrite=True)
    tables.append_block_ids(2, ([4],), overwrite=True)
    with pytest.raises(GuardError, match="add up to 3 block IDs, but 4 are staged; all of them were dropped"):
        tables.apply_staged_writes()
    assert state_of(tables) == before
    tables.append_block_ids(2, ([5],), overwrite=False)
    tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[:3, :2].tolist() == [[0, 0], [0, 0], [9, 5]]


@pytest.mark.gpu
def test_steps_in_flight_keep_their_numbers(device):
    tables = make(BlockTables, device, [64], rows=8)
    for step in range(40):
        if device.type != "cpu" and step % 8 == 0:
            torch.cuda._sleep(20_000_000)
        for row in range(8):
            tables.append_block_ids(row, ([1000 * step + row],), overwrite=step == 0)
        tables.apply_staged_writes()
    assert tables.block_tables[0].gpu[:, :40].tolist() == [
        [1000 * s + row for s in range(40)] for row in range(8)
    ]


@pytest.mark.gpu
def test_a_step_larger_than_the_staging_buffer_is_written_whole(device):
    tables = make(BlockTables, device, [9000, 9000], rows=3)
    lists = [([row + 1] * 9000, [row + 5] * 8999) for row in range(3)]
    for _ in range(6):
        for row, block_ids in enumerate(lists):
            tables.append_block_ids(row, block_ids, overwrite=True)
        tables.apply_staged_writes()
    assert tables.block_tables[0].gpu.sum(dim=1).tolist() == [9000, 18000, 27000]
    assert tables.block_tables[1].gpu.sum(dim=1).tolist() == [5 * 8999, 6 * 8999, 7 * 8999]


def _rank(rank, file, answers):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    tables = BlockTables([16], 2, 64, [4], "cpu", cp_size=2, cp_rank=rank)
    refused = 0
    for step in range(4):
        try:
            tables.append_block_ids(0, ([1] * (5 if step == 2 else 2),), True)
        except BlockTableViolation:
            # As an engine does: the step ends here on every rank, before its collective.
            refused += 1
            continue
        tables.apply_staged_writes()
        total = torch.ones(1)
        dist.all_reduce(total)
        answers.put((rank, step, int(total)))
    answers.put((rank, "refused", refused))
    dist.destroy_process_group()


def test_two_ranks_refuse_alike_and_none_waits_in_a_collective(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no collectives")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, tmp_path / "rendezvous", answers), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    found = sorted((answers.get(timeout=240) for _ in range(8)), key=str)
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    assert found == sorted(
        [(rank, step, 2) for rank in range(2) for step in (0, 1, 3)]
        + [(rank, "refused", 1) for rank in range(2)],
        key=str,
    )
