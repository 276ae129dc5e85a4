"""A launch by addresses, which only a GPU makes, beside the launch by tensors that came first."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import (
    KernelError,
    RowGatherer,
    SlotGeometry,
    SlotMapper,
    StagedWriter,
    TableLayout,
    ViolationRecord,
    Write,
    pack_writes,
)
from kernels.launch import Launcher, addresses

CPU = torch.device("cpu")
GROUPS, ROWS = 2, 8


class Launches:
    """Stands for the compiler: notes grid and arguments, once of the tensors and then of the addresses."""

    def __init__(self, monkeypatch):
        self.first, self.again, self.variants = [], [], set()
        monkeypatch.setattr(Launcher, "__call__", self._launch)
        monkeypatch.setattr(Launcher, "compile", self._compile)
        monkeypatch.setattr(Launcher, "compiled", lambda _, *key: self if key in self.variants else None)

    def _launch(self, grid, arguments, constants, *, device, types):
        self.first.append((grid, (*addresses(arguments), *constants)))
        # Triton compiles anew for another type of an argument.
        assert set(types) <= {value.dtype for value in arguments if isinstance(value, torch.Tensor)}
        self.variants.add((constants, device, types))

    def _compile(self, grid, arguments, constants):
        self.first.append((grid, (*addresses(arguments), *constants)))
        return self

    def __getitem__(self, grid):
        return lambda *arguments: self.again.append((grid, arguments))


@pytest.fixture
def launches(monkeypatch):
    return Launches(monkeypatch)


def tables():
    return TableLayout.of([torch.zeros((ROWS, width), dtype=torch.int32) for width in (9, 5)])


def int32(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def gatherer(*, windowed=True, tracked=False, bounded=True):
    return RowGatherer(
        tables(),
        int32(GROUPS, ROWS),
        tables(),
        filled=int32(GROUPS, ROWS) if tracked else None,
        reach=int32(GROUPS) if windowed else None,
        block_sizes=int32(GROUPS) if windowed else None,
        bounded=bounded,
        record=ViolationRecord.on(CPU),
    )


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_a_gather_is_launched_again_with_the_same_numbers(launches, bounded, windowed, tracked):
    prepared = gatherer(windowed=windowed, tracked=tracked, bounded=bounded)
    mapping, computed = int32(3), int32(ROWS) if windowed else None
    for _ in range(2):
        prepared.gather(mapping, 4, num_computed_tokens=computed, launch=7)
    assert len(launches.first) == 1
    assert launches.first == launches.again


def test_numbers_of_another_type_are_a_variant_of_their_own(launches):
    prepared, mapping, computed = gatherer(), int32(3), int32(ROWS)
    for _ in range(2):
        prepared.gather(mapping, 4)
        prepared.gather(mapping.long(), 4)
        prepared.gather(mapping, 4, num_computed_tokens=computed)
        prepared.gather(mapping, 4, num_computed_tokens=computed.long())
    assert len(launches.first) == len(launches.again) == 4


def test_every_index_array_of_a_slot_mapping_has_its_type(launches):
    prepared = SlotMapper(tables(), SlotGeometry.of([16, 32], CPU))
    out, batch = torch.zeros((GROUPS, 8), dtype=torch.int64), (int32(2), int32(3), int32(5))
    for _ in range(2):
        prepared.map(*batch, out)
        for place in range(3):
            prepared.map(*(a.long() if n == place else a for n, a in enumerate(batch)), out)
    assert len(launches.first) == len(launches.again) == 4


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("tokens", [5, 500])
def test_a_slot_mapping_is_launched_again_with_the_same_numbers(launches, bounded, counted, tokens):
    mapper = SlotMapper(
        tables(),
        SlotGeometry.of([16, 32], CPU, cp_size=2, cp_rank=1),
        counts=int32(GROUPS, ROWS) if counted else None,
        bounded=bounded,
        record=ViolationRecord.on(CPU),
    )
    out = torch.zeros((GROUPS, 512), dtype=torch.int64)
    batch = (int32(2), int32(3), torch.arange(tokens))
    for _ in range(2):
        mapper.map(*batch, out, launch=7)
    assert launches.first == launches.again


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("expanded", [False, True])
def test_writes_are_launched_again_with_the_same_numbers(launches, bounded, expanded):
    prepared = StagedWriter(
        tables(),
        int32(GROUPS, ROWS),
        expansion=int32(GROUPS) + 2 if expanded else None,
        bounded=bounded,
        record=ViolationRecord.on(CPU),
    )
    writes = pack_writes([Write(0, 1, 0, [5, 6]), Write(1, 3, 2, [7])], GROUPS, CPU)
    for _ in range(2):
        prepared.write(writes, launch=7)
    assert len(launches.first) == 1
    assert launches.first == launches.again


def test_tables_stay_as_long_as_a_launch_is_prepared_for_them():
    layouts = [tables(), tables(), tables(), tables()]
    counts = int32(GROUPS, ROWS)
    prepared = [
        RowGatherer(layouts[0], counts, layouts[1]),
        SlotMapper(layouts[2], SlotGeometry.of([16, 32], CPU)),
        StagedWriter(layouts[3], counts),
    ]
    alive = [weakref.ref(table) for layout in layouts for table in layout.tables]
    del layouts
    assert all(table() is not None for table in alive)
    del prepared
    assert not any(table() is not None for table in alive)


def test_too_few_computed_tokens_are_refused():
    with pytest.raises(KernelError, match="fewer entries than the tables have rows"):
        gatherer().gather(int32(3), 4, num_computed_tokens=int32(ROWS - 1))


def test_computed_tokens_without_windows_are_refused():
    with pytest.raises(KernelError, match="needs the groups' reach and block_sizes"):
        gatherer(windowed=False).gather(int32(3), 4, num_computed_tokens=int32(ROWS))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("reach", int32(GROUPS), "reach and block_sizes go together"),
        ("block_sizes", int32(GROUPS), "reach and block_sizes go together"),
        ("filled", int32(2, GROUPS, ROWS), "filled is not"),
        ("filled", int32(GROUPS, ROWS).float(), "filled is torch.float32"),
        ("filled", int32(ROWS, GROUPS).T, "entries of filled are not adjacent"),
        ("filled", int32(), "filled is not"),
    ],
)
def test_arrays_against_the_contract_are_refused(name, array, message):
    with pytest.raises(KernelError, match=message):
        RowGatherer(tables(), int32(GROUPS, ROWS), tables(), **{name: array})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (int32(GROUPS).long(), "is torch.int64"),
        (int32(), "needs one entry per group"),
        (int32(2 * GROUPS)[::2], "are not adjacent"),
    ],
)
@pytest.mark.parametrize("name", ["reach", "block_sizes"])
def test_a_windows_sizes_against_the_contract_are_refused(name, wrong, message):
    sizes = {"reach": int32(GROUPS), "block_sizes": int32(GROUPS), name: wrong}
    with pytest.raises(KernelError, match=f"{name}.*{message}"):
        RowGatherer(tables(), int32(GROUPS, ROWS), tables(), **sizes)


@pytest.mark.parametrize("expansion", [int32(2 * GROUPS)[::2], int32(1).expand(GROUPS)])
def test_an_expansion_whose_entries_are_not_adjacent_is_refused(expansion):
    with pytest.raises(KernelError, match="entries of expansion are not adjacent"):
        StagedWriter(tables(), int32(GROUPS, ROWS), expansion=expansion)
