"""The check of a batch of appends that comes as arrays."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from guard import _refusals as refuse
from guard._staging import Arrays
from guard._text import shown
from guard.errors import GuardUsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from guard._counts import Counts
    from guard._geometry import Geometry

__all__ = ["batch_arrays"]


def batch_arrays(  # noqa: PLR0913, PLR0917 - the tables' state and the batch
    geometry: Geometry,
    counts: Counts,
    rows: Any,
    block_ids: Any,
    lengths: Any,
    overwrite: bool,
    id_limit: int,
) -> tuple[Arrays, Iterable[tuple[int, tuple[int, ...]]]]:
    """Return the batch as staged writes, and each row's counts after it.

    Raises:
        BlockTableViolation: some row's write does not fit, or names no block.
        GuardUsageError: the arrays do not go together, or name a row twice.
    """
    num_groups = len(geometry.row_widths)
    rows = _integers("rows", rows)
    for name, arrays in (("block_ids", block_ids), ("lengths", lengths)):
        if not isinstance(arrays, list | tuple) or len(arrays) != num_groups:
            raise GuardUsageError(f"{name} needs one array for each of {num_groups} groups")
    ids = [_integers(f"block_ids of group {group}", array) for group, array in enumerate(block_ids)]
    added = [_integers(f"lengths of group {group}", array) for group, array in enumerate(lengths)]
    _check_rows(rows, geometry.max_num_reqs)
    listed = rows.tolist()
    before = np.zeros((len(rows), num_groups), dtype=np.int64)
    if not overwrite:
        held = chain.from_iterable(counts.held(row) for row in listed)
        before = np.fromiter(held, np.int64, before.size).reshape(before.shape)
    after = before.copy()
    for group in range(num_groups):
        _check_lengths(group, added[group], len(rows), len(ids[group]))
        after[:, group] += added[group] * geometry.blocks_per_kv_block[group]
        _check_group(geometry, group, listed, before[:, group], after[:, group])
        _check_ids(group, listed, ids[group], added[group], id_limit)
    writes = Arrays(
        groups=np.repeat(np.arange(num_groups, dtype=np.int32), len(rows)),
        rows=np.tile(rows.astype(np.int32), num_groups),
        starts=before.T.astype(np.int32).reshape(-1),
        counts=after.T.astype(np.int32).reshape(-1),
        lengths=np.concatenate([*added, np.zeros(0, dtype=np.int64)]).astype(np.int32),
        contents=np.concatenate([*ids, np.zeros(0, dtype=np.int64)]).astype(np.int32),
        most=after.max(axis=0, initial=0),
    )
    return writes, zip(listed, map(tuple, after.tolist()), strict=True)


def _integers(name: str, values: Any) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise GuardUsageError(f"{name} must be a one-dimensional array of integers, not {shown(values)}")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise GuardUsageError(f"{name} holds {int(array.max())}, which is no index and no block ID")
    return array.astype(np.int64)


def _check_rows(rows: NDArray[np.int64], max_num_reqs: int) -> None:
    outside = rows[(rows < 0) | (rows >= max_num_reqs)]
    if outside.size:
        refuse.row_of(int(outside[0]), max_num_reqs)
    unique, times = np.unique(rows, return_counts=True)
    if len(unique) < len(rows):
        raise GuardUsageError(f"row {int(unique[times > 1][0])} comes twice in one batch; append it twice")


def _check_lengths(group: int, lengths: NDArray[np.int64], num_rows: int, num_ids: int) -> None:
    total = int(lengths.sum())
    if len(lengths) != num_rows or (lengths < 0).any() or total != num_ids:
        raise GuardUsageError(
            f"lengths of group {group} must be {num_rows} numbers of 0 or more that add up to its "
            f"{num_ids} block IDs; they are {len(lengths)} that add up to {total}"
        )


def _check_group(
    geometry: Geometry, group: int, rows: list[int], before: NDArray[np.int64], after: NDArray[np.int64]
) -> None:
    width = geometry.row_widths[group]
    beyond = np.flatnonzero(after > width)
    if beyond.size:
        first = int(beyond[0])
        start = int(before[first])
        raise refuse.row_capacity(rows[first], group, start, int(after[first]) - start, width)


def _check_ids(
    group: int, rows: list[int], ids: NDArray[np.int64], lengths: NDArray[np.int64], limit: int
) -> None:
    outside = np.flatnonzero((ids < 0) | (ids >= limit))
    if outside.size:
        first = int(outside[0])
        owner = rows[int(np.searchsorted(np.cumsum(lengths), first, side="right"))]
        refuse.checked_block_ids(owner, group, [int(ids[first])], limit, None)
