"""Host side of the staged writer: pack writes into one buffer, copy it once, launch once.

`pack_writes` checks each write against the kernel's contract. `upload_writes` takes a buffer that already
keeps it, from a caller that stages many writes per step and has checked them itself. Rows, starts and
lengths may be anything that int32 holds: keeping them inside the row is the kernel's work.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.layout import TableLayout, require, require_lane
from kernels.staged_writer.kernel import staged_writer_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["CHUNK", "PackedWrites", "Write", "pack_writes", "upload_writes", "write_staged"]

CHUNK = 1024
_INT32_END = 2**31


class Write(NamedTuple):
    """Block IDs for one row of one group, from column `start` on."""

    group: int
    row: int
    start: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PackedWrites:
    """Writes in the kernel's buffer, on the device."""

    buffer: torch.Tensor
    num_writes: int
    num_groups: int
    longest: int


def pack_writes(writes: Iterable[Write], num_groups: int, device: torch.device) -> PackedWrites:
    """Pack `writes`, at most one per group and row, for `num_groups` groups."""
    groups, rows, starts, contents = array("i"), array("i"), array("i"), array("i")
    lengths: list[int] = []
    seen: set[tuple[int, int]] = set()
    for group, row, start, ids in writes:
        require(0 <= group < num_groups, f"write for group {group}, but there are {num_groups} groups")
        require((group, row) not in seen, f"two writes for row {row} of group {group} in one launch")
        seen.add((group, row))
        for values, new in ((groups, [group]), (rows, [row]), (starts, [start]), (contents, list(ids))):
            values.extend(_as_int32(new))
        lengths.append(len(ids))
    offsets = array("i", accumulate(lengths, initial=0))
    packed = torch.frombuffer(groups + rows + starts + offsets + contents, dtype=torch.int32)
    return upload_writes(packed, len(groups), num_groups, max(lengths, default=0), device)


def upload_writes(
    packed: torch.Tensor, num_writes: int, num_groups: int, longest: int, device: torch.device
) -> PackedWrites:
    """Copy `packed`, an int32 CPU tensor laid out as the kernel's contract says, in one transfer.

    The caller does not change it afterwards; `longest` is the length of the longest write.
    """
    require(packed.numel() < _INT32_END, f"{packed.numel()} staged numbers do not fit one launch")
    if device.type != "cpu":
        # A fresh pinned block per call, from the host allocator: it gives a block out again only after
        # the copy that reads it has run, so any number of steps may be in flight.
        packed = packed.pin_memory().to(device, non_blocking=True)
    return PackedWrites(packed, num_writes, num_groups, longest)


def write_staged(
    layout: TableLayout, counts: torch.Tensor, writes: PackedWrites, *, bounded: bool = True
) -> None:
    """Store `writes` into the tables of `layout` and their ends into `counts` [groups, num_rows] int32."""
    require(counts.dtype == torch.int32, f"counts are {counts.dtype}, not torch.int32")
    require(counts.shape == (layout.num_groups, layout.num_rows), "counts are not [groups, num_rows]")
    require(counts.stride(1) == 1, "counts of one group are not adjacent")
    require(writes.num_groups == layout.num_groups, "the writes were packed for other groups")
    require_lane(staged_writer_kernel, layout.device)
    if writes.num_writes == 0:
        return
    chunks = max(1, -(-writes.longest // CHUNK))
    staged_writer_kernel[(writes.num_writes, chunks)](
        layout.pointers,
        layout.strides,
        layout.widths,
        counts,
        counts.stride(0),
        writes.buffer,
        writes.num_writes,
        layout.num_rows,
        BOUNDED=bounded,
        CHUNK=CHUNK,
    )


def _as_int32(values: Sequence[int]) -> array[int]:
    try:
        return array("i", values)
    except (OverflowError, TypeError) as error:
        require(False, f"staged numbers must be int32 integers: {error}")
        raise
