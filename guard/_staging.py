"""Writes that are staged for the next launch: plain lists while rows are appended, arrays on the way out.

A write spans all groups of its row, also those that gain nothing: writing no entries stores the count
that the row already has.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from guard.errors import GuardError
from kernels import PackedWrites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from guard._counts import Counts
    from kernels import StagingRing

__all__ = ["Arrays", "StagedLog", "pack"]

Int32Array: TypeAlias = "NDArray[np.int32]"


@dataclass(frozen=True, slots=True)
class Arrays:
    """Staged writes as int32 arrays, one element per write; contents back to back.

    No two writes share an entry, and those of one row agree on its `counts`, the entries that it holds
    after all of them. `lengths` counts IDs and `counts` entries, of which an ID may become several.
    `most` is the largest count of each group.
    """

    groups: Int32Array
    rows: Int32Array
    starts: Int32Array
    counts: Int32Array
    lengths: Int32Array
    contents: Int32Array
    most: NDArray[np.integer[Any]]


class StagedLog:
    """Appends in the order in which they came.

    Per append one of `rows`, and per append and group one of `starts` and `ends`: the column at which it
    starts and the one before which it ends. `contents` are the IDs of all appends and groups in that order.
    It refuses what uint32 does not hold.
    """

    __slots__ = ("_expansion", "_groups", "_num_groups", "contents", "ends", "rows", "starts")

    def __init__(self, num_rows: int, expansion: Sequence[int]) -> None:
        """Start empty, for groups whose IDs become `expansion` entries each."""
        self._num_groups = len(expansion)
        self._groups = self._tiled_groups(num_rows)
        self._expansion = np.array(expansion, dtype=np.int32) if max(expansion, default=1) > 1 else None
        self.rows: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.contents = array("I")

    def _tiled_groups(self, num_appends: int) -> Int32Array:
        return np.tile(np.arange(self._num_groups, dtype=np.int32), num_appends)

    def clear(self) -> None:
        """Forget every append; the lists stay the same objects."""
        self.rows.clear()
        self.starts.clear()
        self.ends.clear()
        del self.contents[:]

    def mend(self, counts: Counts) -> None:
        """Take off what an append that was broken off has left behind."""
        groups = self._num_groups
        whole = len(self.rows)
        if groups:
            whole = min(whole, len(self.starts) // groups, len(self.ends) // groups)
        complete = len(self.rows) * groups == len(self.starts) == len(self.ends)
        if complete and whole and counts.held(self.rows[-1]) != tuple(self.ends[-groups:]):
            whole -= 1
        del self.rows[whole:]
        del self.starts[whole * groups :]
        del self.ends[whole * groups :]
        del self.contents[self._num_ids() :]

    def _num_ids(self) -> int:
        expansion = [1] * self._num_groups if self._expansion is None else self._expansion.tolist()
        return sum(
            (end - start) // parts
            for start, end, parts in zip(self.starts, self.ends, cycle(expansion), strict=False)
        )

    def arrays(self) -> Arrays:
        """Return the appends as arrays, without those that a later one has overwritten."""
        listed = array("I", self.rows)
        kept = self._kept(listed) if len(set(listed)) < len(listed) else None
        rows = np.asarray(listed).view(np.int32)
        num_writes = len(rows) * self._num_groups
        starts = np.asarray(array("I", self.starts)).view(np.int32)
        ends = np.asarray(array("I", self.ends)).view(np.int32)
        lengths = ends - starts
        if self._expansion is not None:
            lengths //= np.tile(self._expansion, len(rows))
        contents = np.array(self.contents, dtype=np.uint32).view(np.int32)
        staged = int(np.add.reduce(lengths))
        if staged != len(contents):
            raise GuardError(
                f"staged lengths add up to {staged} block IDs, but {len(contents)} are staged; "
                f"all of them were dropped. A list changed its length while it was appended; append anew."
            )
        if num_writes > len(self._groups):
            self._groups = self._tiled_groups(len(rows))
        if self._num_groups > 1:
            rows = np.repeat(rows, self._num_groups)
        most = np.maximum.reduce(ends.reshape(-1, self._num_groups)) if self._num_groups else ends
        whole = Arrays(self._groups[:num_writes], rows, starts, ends, lengths, contents, most)
        return whole if kept is None else self._only(whole, *kept)

    def _kept(self, rows: array[int]) -> tuple[list[int], list[list[int]]]:
        """Return which appends to write, and for each what its row holds after the last of them."""
        groups = self._num_groups
        of_row: dict[int, list[int]] = {}
        for append, row in enumerate(rows):
            if any(self.starts[append * groups : (append + 1) * groups]):
                of_row.setdefault(row, []).append(append)
            else:
                of_row[row] = [append]
        kept = sorted(append for appends in of_row.values() for append in appends)
        last = [of_row[rows[append]][-1] * groups for append in kept]
        return kept, [self.ends[place : place + groups] for place in last]

    def _only(self, whole: Arrays, kept: list[int], counts: list[list[int]]) -> Arrays:
        writes = (np.array(kept)[:, None] * self._num_groups + np.arange(self._num_groups)).reshape(-1)
        chosen = np.zeros(len(whole.rows), dtype=bool)
        chosen[writes] = True
        return Arrays(
            whole.groups[writes],
            whole.rows[writes],
            whole.starts[writes],
            np.array(counts, dtype=np.int32).reshape(-1),
            whole.lengths[writes],
            whole.contents[np.repeat(chosen, whole.lengths)],
            whole.most,
        )


def pack(writes: Arrays, num_groups: int, largest_expansion: int, ring: StagingRing) -> PackedWrites:
    """Lay `writes` out in a buffer of `ring`, as the staged writer's contract says."""
    num_writes = len(writes.rows)
    size = 5 * num_writes + 1 + len(writes.contents)
    buffer, view = ring.take(size)
    for place, numbers in enumerate((writes.groups, writes.rows, writes.starts, writes.counts)):
        view[place * num_writes : (place + 1) * num_writes] = numbers
    offsets: NDArray[Any] = view[4 * num_writes : 5 * num_writes + 1]
    offsets[0] = 0
    np.cumsum(writes.lengths, out=offsets[1:])
    view[5 * num_writes + 1 : size] = writes.contents
    longest = int(np.maximum.reduce(writes.lengths)) * largest_expansion
    return PackedWrites(buffer, num_writes, num_groups, longest)
