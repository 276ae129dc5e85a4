"""One process's measurements: one peer and the guarded tables, interleaved, after their results agreed.

A step is what a runner does: each row's append, request by request from Python lists, and one apply. Host
time is from the first append to the return of apply, after an untimed step of the same side and with the
device idle; kernel time and launches are the profiler's, of steps that are not timed.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from guard import BlockTables
from guard.settings import Mode
from guard.vllm import wrap
from kernels import TableLayout, ViolationRecord, Write, pack_writes, write_staged
from kernels.bench.peers import SHAPES, Shape, peer_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Disagreement", "Measurement", "measure"]

_ROUNDS = 41
_WARM_UP = 5
_PROFILED = 10
_LAUNCHES = 50
_PLACEMENTS = 9
_TOKENS = 4096


class Disagreement(Exception):
    """The two sides do not compute the same; nothing was timed."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result: one operation of one side at one shape, beside the peer of its process."""

    peer: str
    groups: int
    rows: int
    new_blocks: int
    width: int
    operation: str
    side: str
    host_us: float
    host_low_us: float
    host_high_us: float
    ratio_to_peer: float
    launches: float
    device_us: float
    device_ratio_to_off: float
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    tables: Any


def measure(peer: Any, name: str, device: torch.device) -> Iterator[Measurement]:
    """Yield every measurement beside `peer`.

    Raises:
        Disagreement: tables, counts, gathered rows or slots differ from the peer's.
    """
    for shape in SHAPES:
        own = _Side(name, peer_tables(peer, shape, device))
        wrapped = _Side(f"{name} wrapped", wrap(peer_tables(peer, shape, device)))
        sides = [own, wrapped, *_guarded(shape, device)]
        _require_agreement(sides, shape, device)
        for operation, run, moved in _operations(shape, device):
            yield from _compare(name, shape, operation, sides, run, moved)
        del sides
        yield from _writer_kernels(name, shape, device)


def _guarded(shape: Shape, device: torch.device) -> Iterator[_Side]:
    for mode in Mode:
        tables = BlockTables(
            [16] * shape.groups, shape.rows, 8192, [shape.width] * shape.groups, device, mode=mode
        )
        yield _Side(f"rowbound {mode}", tables)


def _operations(shape: Shape, device: torch.device) -> Iterator[tuple[str, Callable[[Any], None], int]]:
    """Yield name, step and the fewest bytes that the step's kernel moves."""
    random_ = random.Random(11)
    lists = [
        tuple([random_.randrange(1, 1 << 20) for _ in range(shape.new_blocks)] for _ in range(shape.groups))
        for _ in range(shape.rows)
    ]
    written = 4 * shape.groups * shape.rows * (2 * shape.new_blocks + 1)

    def step(tables: Any, overwrite: bool) -> None:
        append = tables.append_block_ids
        for row, block_ids in enumerate(lists):
            append(row, block_ids, overwrite)
        tables.apply_staged_writes()

    mapping = torch.arange(shape.rows, dtype=torch.int32, device=device)
    tokens = min(_TOKENS, shape.rows * shape.new_blocks * 16)
    starts = torch.linspace(0, tokens, shape.rows + 1, device=device).to(torch.int32)
    positions = torch.arange(tokens, device=device) % (shape.new_blocks * 16)
    yield "overwrite", lambda tables: step(tables, True), written
    yield "append", lambda tables: step(tables, False), written
    yield (
        "gather",
        lambda tables: tables.gather_block_tables(mapping, shape.rows),
        4 * shape.groups * shape.rows * 2 * shape.new_blocks,
    )
    yield (
        "slots",
        lambda tables: tables.compute_slot_mappings(mapping, starts, positions, tokens),
        shape.groups * tokens * (8 + 4 + 8),
    )


def _require_agreement(sides: list[_Side], shape: Shape, device: torch.device) -> None:
    """Do the same random work on every side and compare what each of them holds and returns."""
    random_ = random.Random(5)
    for _ in range(3):
        for row in range(shape.rows):
            block_ids = tuple(
                [random_.randrange(1, 1 << 20) for _ in range(random_.randint(0, min(shape.new_blocks, 700)))]
                for _ in range(shape.groups)
            )
            overwrite = random_.random() < 1 / 4
            for side in sides:
                side.tables.append_block_ids(row, block_ids, overwrite)
        for side in sides:
            side.tables.apply_staged_writes()
    order = torch.randperm(shape.rows, device=device).to(torch.int32)
    expected, *results = [
        _results(side.tables, shape, order, sides[0].tables.num_blocks.np) for side in sides
    ]
    for side, found in zip(sides[1:], results, strict=True):
        for what, tensor in found.items():
            if not torch.equal(tensor, expected[what]):
                raise Disagreement(f"{shape}: {what} differ between {side.name} and {sides[0].name}")


def _results(tables: Any, shape: Shape, order: torch.Tensor, counts: Any) -> dict[str, torch.Tensor]:
    """Return tables, counts, gathered rows and slots of the last positions, by name."""
    held = torch.tensor(counts, device=order.device)[:, order.long()]
    positions = torch.clamp(held.min(dim=0).values.long() * 16 - 1, min=0)
    starts = torch.arange(shape.rows + 1, dtype=torch.int32, device=order.device)
    found = {f"tables of group {g}": table.gpu for g, table in enumerate(tables.block_tables)}
    found["counts"] = torch.tensor(tables.num_blocks.np)
    for group, table in enumerate(tables.gather_block_tables(order, shape.rows)):
        # A peer leaves the entries behind a row's count as an earlier batch left them.
        used = torch.arange(table.shape[1], device=order.device) < held[group][:, None]
        found[f"gathered rows of group {group}"] = table * used
    slots = tables.compute_slot_mappings(order, starts, positions, shape.rows)
    # A row without entries has no position to map.
    found["slots"] = torch.where(held.min(dim=0).values > 0, slots, -1)
    return found


def _compare(
    peer: str, shape: Shape, operation: str, sides: list[_Side], run: Callable[[Any], None], moved: int
) -> Iterator[Measurement]:
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    order = random.Random(f"{peer} {shape} {operation}")
    room = shape.width // shape.new_blocks
    for number in range(_WARM_UP + _ROUNDS):
        for side in order.sample(sides, len(sides)):
            # Two steps a round.
            if operation == "append" and number % ((room - 1) // 2) == 0:
                _empty(side.tables, shape)
            # Whoever follows a side like itself finds the host's caches warm: all follow themselves.
            run(side.tables)
            torch.cuda.synchronize()
            before = time.perf_counter()
            run(side.tables)
            elapsed = time.perf_counter() - before
            if number >= _WARM_UP:
                times[side.name].append(elapsed * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    profiles = {}
    for side in sides:
        if operation == "append":
            _empty(side.tables, shape)
        profiles[side.name] = _profiled(side.tables, run, min(_PROFILED, room))
    for side in sides:
        launches, device_us = profiles[side.name]
        low, _, high = statistics.quantiles(times[side.name], n=4)
        yield Measurement(
            peer=peer,
            **asdict(shape),
            operation=operation,
            side=side.name,
            host_us=round(medians[side.name], 2),
            host_low_us=round(low, 2),
            host_high_us=round(high, 2),
            ratio_to_peer=round(medians[side.name] / medians[peer], 3),
            launches=launches,
            device_us=device_us,
            device_ratio_to_off=round(device_us / (profiles["rowbound off"][1] or 1.0), 3),
            bytes_moved=moved,
        )


def _writer_kernels(peer: str, shape: Shape, device: torch.device) -> Iterator[Measurement]:
    """Time the writer's kernel alone, without and with its bound and record, from device memory.

    Where arrays lie in memory moves a launch by more than what is looked for, so tables and writes are laid
    out several times. Times and ratio are the medians over these, each beside its own.
    """
    medians, held = [], []
    for _ in range(_PLACEMENTS):
        found, arrays = _writer_times(shape, device)
        medians.append(found)
        # Held, or the allocator would give out the same addresses again.
        held.append(arrays)
    for name in medians[0]:
        ratios = [times[name] / times["off"] for times in medians]
        yield Measurement(
            peer=peer,
            **asdict(shape),
            operation="kernel",
            side=f"rowbound {name}",
            host_us=0.0,
            host_low_us=0.0,
            host_high_us=0.0,
            ratio_to_peer=0.0,
            launches=1.0,
            device_us=round(statistics.median(times[name] for times in medians), 3),
            device_ratio_to_off=round(statistics.median(ratios), 3),
            bytes_moved=4 * shape.groups * shape.rows * (2 * shape.new_blocks + 1),
        )


def _writer_times(shape: Shape, device: torch.device) -> tuple[dict[str, float], list[Any]]:
    """Return the median time of a launch by variant, and what the launches were given.

    Each variant is a graph of many launches, and the variants' replays take turns.
    """
    tables = [
        torch.zeros((shape.rows, shape.width), dtype=torch.int32, device=device) for _ in range(shape.groups)
    ]
    layout = TableLayout.of(tables)
    counts = torch.zeros((shape.groups, shape.rows), dtype=torch.int32, device=device)
    ids = list(range(1, shape.new_blocks + 1))
    writes = [Write(group, row, 7, ids) for row in range(shape.rows) for group in range(shape.groups)]
    packed = pack_writes(writes, shape.groups, device)
    record = ViolationRecord.on(device)
    variants: dict[str, dict[str, Any]] = {
        "off": {"bounded": False},
        "raise": {"record": record, "launch": 1},
    }
    graphs = {}
    for name, switches in variants.items():
        write_staged(layout, counts, packed, **switches)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(_LAUNCHES):
                write_staged(layout, counts, packed, **switches)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(_WARM_UP + 3 * _ROUNDS):
        for name in list(graphs)[:: 1 if number % 2 else -1]:
            start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            if number >= _WARM_UP:
                times[name].append(start.elapsed_time(end) * 1e3 / _LAUNCHES)
    if record.read():
        raise Disagreement(f"{shape}: the writer's kernel refused what fits")
    return {name: statistics.median(values) for name, values in times.items()}, [
        layout,
        counts,
        packed,
        record,
    ]


def _empty(tables: Any, shape: Shape) -> None:
    for row in range(shape.rows):
        tables.append_block_ids(row, ([],) * shape.groups, True)
    tables.apply_staged_writes()


def _profiled(tables: Any, run: Callable[[Any], None], steps: int) -> tuple[float, float]:
    """Return launches and median device time per step, copies and fills included."""
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            run(tables)
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    if not events:
        return 0.0, 0.0
    spent = sorted(event.device_time for event in events)
    per_step = len(events) / steps
    # A step's kernels differ in length, so a sum over steps stands for one that launches several.
    middle = spent[len(spent) // 2] if round(per_step) <= 1 else sum(spent) / steps
    return round(per_step, 2), round(middle, 3)
