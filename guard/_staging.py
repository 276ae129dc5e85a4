"""Staged block IDs of one step: one entry per row, so that each row of each group is written once.

A staged row spans all groups, also those that gain nothing: writing no entries stores the count that the
row already has. That keeps the work per append independent of how writes are merged.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from kernels import upload_writes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kernels import PackedWrites

__all__ = ["LONG", "StagedRow", "merge", "pack_staged"]

LONG = 64
"""From how many IDs on an array is quicker to check and pack than a list."""


StagedRow: TypeAlias = tuple[list[int], list[int], "list[int] | array[int]"]
"""What one row gains: per group the column it starts at, per group the column it ends before, all IDs.

A bare tuple, whose parts are never changed, because one is made for every append.
"""


def _by_group(row: StagedRow) -> list[list[int]]:
    starts, ends, block_ids = row
    taken = 0
    groups = []
    for start, end in zip(starts, ends, strict=True):
        groups.append(list(block_ids[taken : taken + end - start]))
        taken += end - start
    return groups


def merge(earlier: StagedRow, later: StagedRow) -> StagedRow:
    """Join two stretches of one row, `later` beginning in each group where `earlier` ends."""
    pairs = zip(_by_group(earlier), _by_group(later), strict=True)
    return earlier[0], later[1], [block_id for pair in pairs for ids in pair for block_id in ids]


def pack_staged(staged: Mapping[int, StagedRow], num_groups: int, device: torch.device) -> PackedWrites:
    """Put the staged rows into one buffer on `device`, one write per row and group."""
    starts, ends, block_ids = zip(*staged.values(), strict=True)
    num_writes = len(staged) * num_groups
    first = np.array(list(chain.from_iterable(starts)), dtype=np.intc)
    lengths = np.array(list(chain.from_iterable(ends)), dtype=np.intc) - first
    offsets = np.zeros(num_writes + 1, dtype=np.intc)
    np.cumsum(lengths, out=offsets[1:])
    groups = np.tile(np.arange(num_groups, dtype=np.intc), len(staged))
    rows = np.repeat(np.fromiter(staged, dtype=np.intc, count=len(staged)), num_groups)
    packed = np.concatenate((groups, rows, first, offsets, _joined(block_ids)))
    return upload_writes(torch.from_numpy(packed), num_writes, num_groups, int(lengths.max()), device)


def _joined(block_ids: tuple[list[int] | array[int], ...]) -> NDArray[np.intc]:
    if max(map(len, block_ids)) < LONG:
        return np.array(list(chain.from_iterable(block_ids)), dtype=np.intc)
    joined = array("i")
    for ids in block_ids:
        joined.extend(ids)
    return np.frombuffer(joined, dtype=np.intc)
