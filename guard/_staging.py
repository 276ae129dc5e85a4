"""Writes that are staged for the next launch: plain lists while rows are appended, arrays on the way out.

A write spans all groups of its row, also those that gain nothing: writing no entries stores the count
that the row already has.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from guard.errors import GuardError
from kernels import PackedWrites

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kernels import StagingRing

__all__ = ["Arrays", "StagedLog", "pack"]

Int32Array: TypeAlias = "NDArray[np.int32]"


@dataclass(frozen=True, slots=True)
class Arrays:
    """Staged writes of distinct rows as int32 arrays, one element per write; contents back to back.

    `lengths` counts IDs and `ends` entries, so they differ by the group's expansion.
    """

    groups: Int32Array
    rows: Int32Array
    starts: Int32Array
    ends: Int32Array
    lengths: Int32Array
    contents: Int32Array


class StagedLog:
    """Appends in the order in which they came.

    Per append: its row, and per group the column at which it starts and the one before which it ends.
    `contents` are the IDs of all appends and groups in that order. It refuses what uint32 does not hold.
    """

    __slots__ = ("_expansion", "_groups", "_num_groups", "contents", "ends", "rows", "starts")

    def __init__(self, num_rows: int, expansion: Sequence[int]) -> None:
        """Start empty, for groups whose IDs become `expansion` entries each."""
        self._num_groups = len(expansion)
        self._groups = np.tile(np.arange(self._num_groups, dtype=np.int32), num_rows)
        self._expansion = np.array(expansion, dtype=np.int32) if max(expansion, default=1) > 1 else None
        self.rows: list[int] = []
        self.starts: list[tuple[int, ...]] = []
        self.ends: list[tuple[int, ...]] = []
        self.contents = array("I")

    def clear(self) -> None:
        """Forget every append; the lists stay the same objects."""
        self.rows.clear()
        self.starts.clear()
        self.ends.clear()
        del self.contents[:]

    def mend(self, counts: list[tuple[int, ...]]) -> None:
        """Take off what an append that was broken off has left behind."""
        whole = min(len(self.rows), len(self.starts), len(self.ends))
        complete = len(self.rows) == len(self.starts) == len(self.ends)
        if complete and whole and counts[self.rows[-1]] is not self.ends[-1]:
            whole -= 1
        for staged in (self.rows, self.starts, self.ends):
            del staged[whole:]
        del self.contents[self._num_ids() :]

    def _num_ids(self) -> int:
        expansion = [1] * self._num_groups if self._expansion is None else self._expansion.tolist()
        return sum(
            (end - start) // parts
            for starts, ends in zip(self.starts, self.ends, strict=True)
            for start, end, parts in zip(starts, ends, expansion, strict=True)
        )

    def arrays(self) -> Iterator[Arrays]:
        """Yield the appends as arrays in which no row comes twice, in an order that keeps the last ahead."""
        rows = np.asarray(array("I", self.rows)).view(np.int32)
        num_writes = len(rows) * self._num_groups
        starts = np.fromiter(chain.from_iterable(self.starts), np.int32, num_writes)
        ends = np.fromiter(chain.from_iterable(self.ends), np.int32, num_writes)
        lengths = ends - starts
        if self._expansion is not None:
            lengths //= np.tile(self._expansion, len(rows))
        contents = np.array(self.contents, dtype=np.uint32).view(np.int32)
        if int(lengths.sum()) != len(contents):
            raise GuardError(
                f"staged lengths add up to {int(lengths.sum())} block IDs, but {len(contents)} are staged; "
                f"nothing was written. A list changed its length while it was appended."
            )
        if self._num_groups > 1:
            rows = np.repeat(rows, self._num_groups)
        whole = Arrays(self._groups[:num_writes], rows, starts, ends, lengths, contents)
        if len(set(self.rows)) == len(self.rows):
            yield whole
        else:
            yield from self._stretches(whole)

    def _stretches(self, whole: Arrays) -> Iterator[Arrays]:
        """Cut before each append to a row that is in the stretch already: launches keep their order."""
        offsets = np.concatenate(([0], np.cumsum(whole.lengths)))
        seen: set[int] = set()
        first = 0
        for append, row in enumerate([*self.rows, None]):
            if row is not None and row not in seen:
                seen.add(row)
                continue
            part = slice(first * self._num_groups, append * self._num_groups)
            yield Arrays(
                whole.groups[part],
                whole.rows[part],
                whole.starts[part],
                whole.ends[part],
                whole.lengths[part],
                whole.contents[offsets[part.start] : offsets[part.stop]],
            )
            first, seen = append, {row} if row is not None else set()


def pack(writes: Arrays, num_groups: int, largest_expansion: int, ring: StagingRing) -> PackedWrites:
    """Lay `writes` out in a buffer of `ring`, as the staged writer's contract says."""
    num_writes = len(writes.rows)
    size = 4 * num_writes + 1 + len(writes.contents)
    buffer, view = ring.take(size)
    view[:num_writes] = writes.groups
    view[num_writes : 2 * num_writes] = writes.rows
    view[2 * num_writes : 3 * num_writes] = writes.starts
    offsets: NDArray[Any] = view[3 * num_writes : 4 * num_writes + 1]
    offsets[0] = 0
    np.cumsum(writes.lengths, out=offsets[1:])
    view[4 * num_writes + 1 : size] = writes.contents
    longest = int(writes.lengths.max()) * largest_expansion
    return PackedWrites(buffer, num_writes, num_groups, longest)
