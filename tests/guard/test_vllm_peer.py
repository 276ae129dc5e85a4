"""The guarded tables and vLLM's own, with and without the refusal added, where ROWBOUND_PEER has them."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from guard import BlockTables, BlockTableViolation, Violation
from guard.vllm import unwrap, wrap
from tests.kernels.test_peer import peer  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu


@pytest.fixture
def made(peer, device):  # noqa: F811 - the fixture
    """Build the peer's tables and ours for the same arguments."""
    if device.type == "cpu":
        pytest.skip("vLLM's own tables read host memory from a GPU")
    names = peer.BlockTables.__init__.__code__.co_varnames

    def build(sizes, rows, widths, **extra):
        known = {name: value for name, value in extra.items() if name in names}
        kernel = {"kernel_block_sizes": sizes} if "kernel_block_sizes" in names else {}
        theirs = peer.BlockTables(sizes, rows, 512, widths, device, **kernel, **known)
        return theirs, BlockTables(sizes, rows, 512, widths, device, **kernel, **known)

    return build


@pytest.mark.parametrize("seed", range(4))
def test_random_work_that_fits_leaves_equal_tables_counts_rows_and_slots(made, device, seed):
    random_ = random.Random(seed)
    sizes = [random_.choice([8, 16, 32]) for _ in range(random_.randint(1, 4))]
    widths = [random_.choice([8, 32, 130]) for _ in sizes]
    cp = random_.choice([{}, {"cp_size": 2, "cp_rank": seed % 2, "cp_interleave": random_.choice([1, 4])}])
    sides = made(sizes, 12, widths, **cp)
    for _ in range(6):
        for row in random_.sample(range(12), 8):
            overwrite = random_.random() < 1 / 3
            held = [0 if overwrite else int(n) for n in sides[0].num_blocks.np[:, row]]
            block_ids = tuple(
                [random_.randrange(1, 999) for _ in range(random_.randint(0, min(9, width - n)))]
                for width, n in zip(widths, held, strict=True)
            )
            for side in sides:
                side.append_block_ids(row, block_ids, overwrite)
        for side in sides:
            side.apply_staged_writes()
        counts = sides[0].num_blocks.np
        assert counts.tolist() == sides[1].num_blocks.np.tolist()
        for one, other in zip(*(side.block_tables for side in sides), strict=True):
            assert torch.equal(one.gpu, other.gpu)
        rows = random_.sample(range(12), 7)
        mapping = torch.tensor(rows, dtype=torch.int32, device=device)
        for group, (one, other) in enumerate(
            zip(*(side.gather_block_tables(mapping, 9) for side in sides), strict=True)
        ):
            for place, row in enumerate(rows):
                assert torch.equal(one[place, : counts[group, row]], other[place, : counts[group, row]])
        shortest = [min(int(counts[g, row]) * size for g, size in enumerate(sizes)) for row in rows]
        tokens = [random_.randint(0, min(length, 9)) for length in shortest]
        starts = torch.tensor([sum(tokens[:n]) for n in range(8)], dtype=torch.int32, device=device)
        positions = torch.tensor([p for n in tokens for p in range(n)], dtype=torch.int64, device=device)
        slots = [side.compute_slot_mappings(mapping, starts, positions, 100) for side in sides]
        assert torch.equal(*slots)


def test_the_reference_case_is_refused_in_the_engines_own_tables_and_nothing_changed(made, device):
    # max_model_len 512, blocks of 16, dcp 2: both rows hold 16 entries, the state's list needs 17.
    theirs, _ = made([16, 16], 4, [16, 16])
    wrap(theirs)
    theirs.append_block_ids(1, ([1], [2]), True)
    theirs.apply_staged_writes()
    before = theirs.num_blocks.np.copy()
    with pytest.raises(BlockTableViolation) as caught:
        theirs.append_block_ids(0, (list(range(3, 12)), [0] * 16 + [12]), True)
    assert (caught.value.kind, caught.value.group, caught.value.wanted) == (Violation.ROW_CAPACITY, 1, 17)
    assert (theirs.num_blocks.np == before).all()
    assert not any(table._staged_write_indices for table in theirs.block_tables)
    theirs.apply_staged_writes()
    assert [table.gpu[:2, 0].tolist() for table in theirs.block_tables] == [[0, 1], [0, 2]]
    unwrap(theirs)
    assert "append_block_ids" not in vars(theirs)
