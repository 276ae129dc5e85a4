"""The violations that the block tables raise, each with its remedy, and the checks that find them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from guard._text import shown
from guard.errors import BlockTableViolation, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels import DeviceViolation

__all__ = [
    "batch_rows",
    "block_ids_of",
    "checked_block_ids",
    "group_count",
    "kernel_kind",
    "recorded",
    "row_capacity",
    "row_index",
    "row_of",
    "token_count",
]

_MOST_IDS = 2**31
_UNTOUCHED = "Nothing was written in any group."


def row_of(req_index: Any, max_num_reqs: int) -> int:
    """Return the row that `req_index` names, or refuse it."""
    whole = isinstance(req_index, int | np.integer)
    if whole and 0 <= req_index < max_num_reqs:
        return int(req_index)
    raise row_index(req_index, max_num_reqs)


def row_index(req_index: Any, max_num_reqs: int) -> BlockTableViolation:
    """Describe a write to a row that does not exist."""
    whole = isinstance(req_index, int | np.integer) and not isinstance(req_index, bool)
    problem = (
        f"is outside the table's {max_num_reqs} rows (0 to {max_num_reqs - 1})"
        if whole
        else f"needs a whole number as request index, not {shown(req_index)}"
    )
    return BlockTableViolation(
        f"Block table write for request {shown(req_index)} {problem}. {_UNTOUCHED} "
        f"Pass the request's own row, or raise max_num_reqs if the batch outgrew it.",
        kind=Violation.ROW_INDEX,
        request=req_index,
        wanted=req_index,
        limit=max_num_reqs,
    )


def token_count(
    request: object, tokens: int, scheduled: int, max_model_len: int, row: int
) -> BlockTableViolation:
    """Describe a request, or a session with its new chunk, that is longer than the worker allows."""
    step = f" and this step computes up to {scheduled}" if scheduled > tokens else ""
    return BlockTableViolation(
        f"Request {shown(request)} has {tokens} tokens{step}, but max_model_len is {max_model_len} and the "
        f"worker's row of tokens holds {row}. None of its rows was touched. Refuse it, or the chunk that "
        f"extends its session, before it is scheduled: prompt, chunks and output together must stay within "
        f"max_model_len.",
        kind=Violation.TOKEN_COUNT,
        request=request,
        wanted=max(tokens, scheduled),
        limit=min(max_model_len, row),
    )


def group_count(request: int, new_block_ids: Any, num_groups: int) -> BlockTableViolation:
    """Describe a write that has not one list of block IDs per group."""
    listed = isinstance(new_block_ids, list | tuple)
    plural = "s" * (listed and len(new_block_ids) != 1)
    given = f"{len(new_block_ids)} list{plural} of block IDs" if listed else shown(new_block_ids)
    return BlockTableViolation(
        f"Block table write for request {request} has {given} for {num_groups} "
        f"cache group{'s' * (num_groups != 1)}. {_UNTOUCHED} "
        f"Pass one list per group, in the order of the groups; an empty list adds nothing.",
        kind=Violation.GROUP_COUNT,
        request=request,
        wanted=len(new_block_ids) if listed else new_block_ids,
        limit=num_groups,
    )


def row_capacity(request: object, group: int, start: int, added: int, width: int) -> BlockTableViolation:
    """Describe a write that is longer than what is left of its row."""
    end = start + added
    fitting = max(width - start, 0)
    return BlockTableViolation(
        f"Block table write for request {request}, group {group} exceeds row capacity ({end} > {width}): "
        f"{start} of its entries are in use, so {fitting} of {added} new ones fit. {_UNTOUCHED} "
        f"Widen the row of group {group}, to {end} entries or more; guard.audit says at start-up how many "
        f"its largest request needs.",
        kind=Violation.ROW_CAPACITY,
        request=request,
        group=group,
        wanted=end,
        limit=width,
    )


def batch_rows(num_reqs: int, num_reqs_padded: Any, rows: int) -> BlockTableViolation:
    """Describe a batch that the forward-pass tables have no room for."""
    return BlockTableViolation(
        f"Gather of {num_reqs} requests padded to {shown(num_reqs_padded)} rows does not fit the tables' "
        f"{rows} rows. Nothing was gathered. Pad to at least the number of requests and at most {rows}.",
        kind=Violation.BATCH_ROWS,
        wanted=num_reqs_padded,
        limit=rows,
    )


def kernel_kind(found: DeviceViolation) -> Violation:
    """Return the kind under which the guard reports what a kernel recorded."""
    return Violation(f"kernel-{found.fault.name.lower().replace('_', '-')}")


def recorded(found: Sequence[DeviceViolation]) -> BlockTableViolation:
    """Describe what kernels of earlier launches have left out, by the first kind that they recorded."""
    first = found[0]
    kind = kernel_kind(first)
    others = [f"{other.total} of kind {kernel_kind(other).value}" for other in found[1:]]
    also = f" Also refused: {', '.join(others)}." if others else ""
    return BlockTableViolation(
        f"Kernel launch {first.launch} on the block tables left out {first.total} "
        f"access{'es' * (first.total != 1)} of kind {kind.value}, the first of them to {first.wanted} with a "
        f"limit of {first.limit}, for row {first.row} of group {first.group}.{also} No other row "
        f"was touched, but what this request computed since is not to be trusted: abort it, and compare its "
        f"positions and counts with the row's width.",
        kind=kind,
        request=first.row,
        group=first.group,
        wanted=first.wanted,
        limit=first.limit,
        launch=first.launch,
        total=first.total,
    )


def block_ids_of(request: int, group: int, block_ids: Any) -> Sequence[int]:
    """Return what was passed for one group as a sequence of numbers, or refuse it."""
    if isinstance(block_ids, list | tuple | array):
        return block_ids
    if isinstance(block_ids, range) and -_MOST_IDS < block_ids.start <= block_ids.stop < _MOST_IDS:
        return block_ids
    if isinstance(block_ids, np.ndarray) and block_ids.ndim == 1 and block_ids.dtype.kind in "iu":
        return list(block_ids.tolist())
    raise _bad_block_id(request, group, block_ids, None, "needs a list of block IDs, not")


def checked_block_ids(
    request: int, group: int, block_ids: Sequence[Any], limit: int, pool: int | None
) -> list[int]:
    """Return `block_ids` as a list of ints from 0 to below `limit`, or refuse the first that is not."""
    for block_id in block_ids:
        if not isinstance(block_id, int | np.integer):
            raise _bad_block_id(request, group, block_id, pool, "needs whole numbers as block IDs, not")
        if block_id < 0:
            raise _bad_block_id(request, group, block_id, pool, "names a negative block:")
        if block_id >= limit:
            outside = "does not fit int32:" if pool is None else f"is outside the pool of {pool} blocks:"
            raise _bad_block_id(request, group, block_id, pool, f"names a block that {outside}")
    return [int(block_id) for block_id in block_ids]


def _bad_block_id(
    request: int, group: int, block_id: Any, pool: int | None, problem: str
) -> BlockTableViolation:
    known = "this engine's own pool" if pool is None else f"the pool, 0 to {pool - 1}"
    return BlockTableViolation(
        f"Block table write for request {request}, group {group} {problem} {shown(block_id)}. {_UNTOUCHED} "
        f"Pass only block IDs of {known}.",
        kind=Violation.BLOCK_ID,
        request=request,
        group=group,
        wanted=block_id,
        limit=pool,
    )
