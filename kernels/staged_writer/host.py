"""Host side of the staged writer: lay writes out in one buffer and launch once.

`pack_writes` checks each write against the kernel's contract and copies them to the device. `StagingRing`
is for a caller that writes every step and keeps the contract itself: it fills a buffer of host memory
that the kernel reads in place, so that a step is one launch and no copy. Rows, starts and lengths may be
anything that int32 holds: keeping them inside the row is the kernel's work.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kernels.launch import SHORT_CHUNK, Launcher, addresses
from kernels.layout import TableLayout, require, require_counts, require_lane, require_record
from kernels.staged_writer.kernel import staged_writer_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kernels.record import ViolationRecord

__all__ = ["CHUNKS", "PackedWrites", "StagedWriter", "StagingRing", "Write", "pack_writes", "write_staged"]

CHUNKS = (SHORT_CHUNK, 1024)
_INT32_END = 2**31
_LAUNCH = Launcher(staged_writer_kernel)


class Write(NamedTuple):
    """Block IDs for one row of one group, from column `start` on."""

    group: int
    row: int
    start: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PackedWrites:
    """Writes in the kernel's buffer, on the device or in pinned host memory.

    `longest` is how many entries the longest write fills, its IDs expanded.
    """

    buffer: torch.Tensor
    num_writes: int
    num_groups: int
    longest: int


def pack_writes(
    writes: Iterable[Write], num_groups: int, device: torch.device, *, expansion: Sequence[int] | None = None
) -> PackedWrites:
    """Pack `writes`, at most one per group and row, for `num_groups` groups, and copy them to `device`.

    `expansion`, if given, says per group how many entries an ID becomes.
    """
    groups, rows, starts, counts, contents = (array("i") for _ in range(5))
    parts = [1] * num_groups if expansion is None else expansion
    lengths: list[int] = []
    seen: set[tuple[int, int]] = set()
    for group, row, start, ids in writes:
        require(0 <= group < num_groups, f"write for group {group}, but there are {num_groups} groups")
        require((group, row) not in seen, f"two writes for row {row} of group {group} in one launch")
        seen.add((group, row))
        count = start + len(ids) * parts[group]
        for values, number in ((groups, group), (rows, row), (starts, start)):
            values.extend(_as_int32([number]))
        # A count beyond int32 would be clipped to the row's width all the same.
        counts.append(min(count, _INT32_END - 1))
        contents.extend(_as_int32(list(ids)))
        lengths.append(len(ids))
    offsets = array("i", accumulate(lengths, initial=0))
    packed = torch.frombuffer(groups + rows + starts + counts + offsets + contents, dtype=torch.int32)
    if device.type != "cpu":
        # A fresh pinned block from the host allocator: it gives a block out again only after the copy
        # that reads it has run.
        packed = packed.pin_memory().to(device, non_blocking=True)
    return PackedWrites(packed, len(groups), num_groups, max(lengths, default=0) * max(parts, default=1))


class StagingRing:
    """Host buffers that launches read in place, each given out again only after its launch has ended.

    There are two halves of `depth` buffers. One event tells when the launches of a half have ended, and the
    host waits for it before it fills that half again, so at least `depth` launches may be under way. A
    buffer that is too small is replaced while no launch reads it.
    """

    __slots__ = ("_depth", "_events", "_next", "_on_gpu", "_tensors", "_views")

    def __init__(self, device: torch.device, size: int, depth: int = 4) -> None:
        """Allocate buffers of `size` int32 numbers for launches on `device`."""
        self._on_gpu = device.type != "cpu"
        self._depth = depth
        self._tensors = [self._buffer(size) for _ in range(2 * depth)]
        self._views: list[NDArray[Any]] = [tensor.numpy() for tensor in self._tensors]
        self._events: list[Any] = [torch.Event(device) for _ in range(2)] if self._on_gpu else []
        self._next = 0

    def _buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, pin_memory=self._on_gpu)

    def take(self, size: int) -> tuple[torch.Tensor, NDArray[Any]]:
        """Return a buffer of at least `size` numbers that no launch reads, and numpy's view of it."""
        require(size < _INT32_END, "{} staged numbers do not fit one launch", size)
        place = self._next
        half, place_in_half = divmod(place, self._depth)
        # An event that was never recorded counts as past.
        if self._on_gpu and not place_in_half and not self._events[half].query():
            self._events[half].synchronize()
        if len(self._views[place]) < size:
            self._tensors[place] = self._buffer(1 << (size - 1).bit_length())
            self._views[place] = self._tensors[place].numpy()
        return self._tensors[place], self._views[place]

    def launched(self) -> None:
        """Say that the launch which reads the buffer that was taken last is on the current stream."""
        half, place_in_half = divmod(self._next, self._depth)
        if self._on_gpu and place_in_half == self._depth - 1:
            self._events[half].record()
        self._next = (self._next + 1) % len(self._tensors)


class StagedWriter:
    """The writer for one set of tables, whose arguments are checked once and not at every launch.

    `counts` is [groups, num_rows] int32. `expansion` int32 [groups], if given, says how many entries each
    block ID becomes. What a bounded launch leaves out is described in `record`, if there is one.
    """

    __slots__ = ("_addresses", "_arguments", "_constants", "_device_index", "_expected", "_kept", "_variants")

    def __init__(
        self,
        layout: TableLayout,
        counts: torch.Tensor,
        *,
        expansion: torch.Tensor | None = None,
        bounded: bool = True,
        record: ViolationRecord | None = None,
    ) -> None:
        """Check the arrays against the kernel's contract."""
        require_counts(counts, layout)
        if expansion is not None:
            require(expansion.shape == (layout.num_groups,), "expansion needs one number per group")
            require(expansion.dtype == torch.int32, "expansion is {}, not torch.int32", expansion.dtype)
            require(expansion.is_contiguous(), "entries of expansion are not adjacent")
            where = expansion.get_device()
            require(where == layout.device_index, "expansion lies on another device than the tables")
        require_lane(staged_writer_kernel, layout.device)
        record = record if bounded else None
        require_record(record, layout.device_index)
        before = (layout.pointers, layout.strides, layout.widths, expansion, counts, counts.stride(0))
        after = (
            layout.num_rows,
            None if record is None else record.words,
            None if record is None else record.flag,
        )
        # Tensors and tables themselves are kept, so that what the addresses lead to stays.
        self._kept = layout
        self._device_index = layout.device_index
        self._arguments = (before, after)
        self._addresses = (addresses(before), addresses(after))
        self._constants = (expansion is not None, bounded, record is not None)
        self._expected = layout.num_groups
        self._variants: dict[int, Any] = {}

    def write(self, writes: PackedWrites, launch: int = 0) -> None:
        """Store `writes` into the tables and their counts, as launch number `launch`."""
        require(writes.num_groups == self._expected, "the writes were packed for other groups")
        buffer = writes.buffer
        within_reach = buffer.get_device() == self._device_index or buffer.is_pinned()
        require(
            within_reach, "the writes lie on another device than the tables, in memory that is not pinned"
        )
        if writes.num_writes == 0:
            return
        chunk = CHUNKS[writes.longest > SHORT_CHUNK]
        grid = (writes.num_writes, max(1, -(-writes.longest // chunk)), 1)
        constants = (*self._constants, chunk)
        variant = self._variants.get(chunk)
        if variant is None:
            before, after = self._arguments
            arguments = (*before, buffer, writes.num_writes, *after, launch)
            self._variants[chunk] = _LAUNCH.compile(grid, arguments, constants)
            return
        before, after = self._addresses
        variant[grid](*before, buffer.data_ptr(), writes.num_writes, *after, launch, *constants)


def write_staged(  # noqa: PLR0913 - one argument per array that the launch reads
    layout: TableLayout,
    counts: torch.Tensor,
    writes: PackedWrites,
    *,
    expansion: torch.Tensor | None = None,
    bounded: bool = True,
    record: ViolationRecord | None = None,
    launch: int = 0,
) -> None:
    """Write once with a `StagedWriter` made for it."""
    writer = StagedWriter(layout, counts, expansion=expansion, bounded=bounded, record=record)
    writer.write(writes, launch)


def _as_int32(values: Sequence[int]) -> array[int]:
    try:
        return array("i", values)
    except (OverflowError, TypeError) as error:
        require(False, f"staged numbers must be int32 integers: {error}")
        raise
