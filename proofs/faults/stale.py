"""What an earlier owner or step left behind and a later one reads.

A row is a function from column to entry, so that one unknown column stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from invariants.arithmetic import all_of, where
from invariants.parameters import size
from proofs.faults.model import PAD, Claim, Fault, Kind, Report, equal, sizes_of

__all__ = ["FAULTS"]

_Row = Callable[[int], int]

_NULL_BLOCK = 0


def _filled(value: int) -> _Row:
    return lambda _column: value


def _written(row: _Row, count: int, entry: int) -> _Row:
    """Write one entry into the first columns of a row."""
    return lambda column: where(column < count, entry, row(column))


def _cut(row: _Row, count: int, value: int) -> _Row:
    """Keep the first columns of a row and fill the rest."""
    return lambda column: where(column < count, row(column), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reused:
    """A row that a request takes over from another."""

    old_count: int = size("entries of the row's last owner")
    old_block: int = size("a block of the last owner", minimum=1)
    new_count: int = size("entries of the new owner")
    new_block: int = size("a block of the new owner", minimum=1)
    column: int = size("a column past the new owner's entries")


def _past_the_new_owner(sizes: _Reused) -> bool:
    return sizes.column >= sizes.new_count


def _tail_is_null(sizes: _Reused, *, cleared: bool) -> Claim:
    old = _written(_filled(_NULL_BLOCK), sizes.old_count, sizes.old_block)
    row = _written(old, sizes.new_count, sizes.new_block)
    if cleared:
        row = _cut(row, sizes.new_count, _NULL_BLOCK)
    return equal(entry=row(sizes.column), null_block=_NULL_BLOCK)


def _graph_input_is_null(sizes: _Reused, *, cleared: bool) -> Claim:
    """Copy a new batch into a graph's buffer, which the repair clears first."""
    old = _written(_filled(_NULL_BLOCK), sizes.old_count, sizes.old_block)
    before = _filled(_NULL_BLOCK) if cleared else old
    return equal(
        entry=_written(before, sizes.new_count, sizes.new_block)(sizes.column), null_block=_NULL_BLOCK
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """A row that is moved to another place of the table."""

    count: int = size("entries of the row", minimum=1)
    block: int = size("a block of the row", minimum=1)
    column: int = size("a column of the vacated row")


def _vacated_is_null(sizes: _Moved, *, cleared: bool) -> Claim:
    row = _written(_filled(_NULL_BLOCK), sizes.count, sizes.block)
    vacated = _filled(_NULL_BLOCK) if cleared else row
    return equal(entry=vacated(sizes.column), null_block=_NULL_BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evicted:
    """A sliding-window request whose first blocks left the window."""

    held: int = size("entries of the request", minimum=1)
    evicted: int = size("entries whose blocks were freed")
    block: int = size("a block of the request", minimum=1)
    column: int = size("a column of the row")


def _worker_sees_eviction(sizes: _Evicted, *, resent: bool) -> Claim:
    handed_over = _written(_filled(_NULL_BLOCK), sizes.held, sizes.block)
    scheduler = _written(handed_over, sizes.evicted, _NULL_BLOCK)
    worker = scheduler if resent else handed_over
    return equal(worker_entry=worker(sizes.column), scheduler_entry=scheduler(sizes.column))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    """A captured graph that is replayed without a real request."""

    real_tokens: int = size("tokens of the last real step", minimum=1)
    slot: int = size("a slot of that step")
    dummy_tokens: int = size("tokens of the dummy step", minimum=1)
    token: int = size("a token of the dummy step, from 0")


def _dummy_reads_pad(sizes: _Replayed, *, filled: bool) -> Claim:
    slots = _written(_filled(PAD), sizes.real_tokens, sizes.slot)
    if filled:
        slots = _written(slots, sizes.dummy_tokens, PAD)
    return equal(slot_read=slots(sizes.token), padding=PAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speculated:
    """A decode step that follows one whose drafts may have been rejected."""

    num_computed_tokens: int = size("tokens before the step")
    num_draft_tokens: int = size("drafts of the step")
    num_accepted: int = size("drafts that were accepted")


def _length_is_corrected(sizes: _Speculated, drafts: int) -> Claim:
    return equal(
        length_used=sizes.num_computed_tokens + 1 + drafts,
        length=sizes.num_computed_tokens + 1 + sizes.num_accepted,
    )


FAULTS: tuple[Fault, ...] = (
    Fault(
        thread="vllm#39589",
        also=(
            "vllm#39591",
            "vllm#42494",
            "gittensor-ai-lab/sparkinfer#185",
            "gittensor-ai-lab/sparkinfer#146",
        ),
        kind=Kind.STALE,
        title="a shorter request that takes over a row leaves the last owner's blocks in its tail",
        seen="up to 7 different outputs in 20 greedy runs",
        domain=sizes_of(_Reused),
        assumes=_past_the_new_owner,
        faulty=lambda sizes: _tail_is_null(sizes, cleared=False),
        repaired=lambda sizes: _tail_is_null(sizes, cleared=True),
        reports=(
            Report(
                sizes={"old_count": 4, "old_block": 7, "new_count": 2, "new_block": 9, "column": 2},
                faulty={"entry": 7, "null block": 0},
                repaired={"entry": 0},
                first="column",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="InternLM/lmdeploy#4569",
        kind=Kind.STALE,
        title="a graph's block offsets are not cleared before the next batch is copied in",
        seen="block 0 belongs to the padding, and padded rows name others",
        domain=sizes_of(_Reused),
        assumes=_past_the_new_owner,
        faulty=lambda sizes: _graph_input_is_null(sizes, cleared=False),
        repaired=lambda sizes: _graph_input_is_null(sizes, cleared=True),
        reports=(
            Report(
                sizes={"old_count": 8, "old_block": 5, "new_count": 0, "new_block": 6, "column": 0},
                faulty={"entry": 5, "null block": 0},
                repaired={"entry": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm:move-row",
        kind=Kind.STALE,
        title="a row that was moved away still names its blocks for whoever reads it as a dummy",
        seen="kept by an upstream test of vacated rows",
        domain=sizes_of(_Moved),
        faulty=lambda sizes: _vacated_is_null(sizes, cleared=False),
        repaired=lambda sizes: _vacated_is_null(sizes, cleared=True),
        reports=(
            Report(
                sizes={"count": 3, "block": 11},
                faulty={"entry": 11, "null block": 0},
                repaired={"entry": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#42273",
        also=("vllm#42276",),
        kind=Kind.STALE,
        title="blocks that leave the window become null for the scheduler and stay in the worker's row",
        seen="damaged output once freed blocks are used again early",
        domain=sizes_of(_Evicted),
        assumes=lambda sizes: sizes.evicted <= sizes.held,
        faulty=lambda sizes: _worker_sees_eviction(sizes, resent=False),
        repaired=lambda sizes: _worker_sees_eviction(sizes, resent=True),
        reports=(
            Report(
                sizes={"held": 8, "evicted": 3, "block": 21, "column": 2},
                faulty={"worker entry": 21, "scheduler entry": 0},
                repaired={"worker entry": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#9818",
        also=(
            "vllm-ascend#11774",
            "vllm-ascend#3482",
            "vllm-ascend#1416",
            "sgl-project/sglang#23037",
        ),
        kind=Kind.STALE,
        title="a dummy step replays a graph whose slots are those of the last real step",
        seen="a request returns 200, then the idle dummy batch faults",
        domain=sizes_of(_Replayed),
        assumes=lambda sizes: sizes.token < sizes.dummy_tokens,
        faulty=lambda sizes: _dummy_reads_pad(sizes, filled=False),
        repaired=lambda sizes: _dummy_reads_pad(sizes, filled=True),
        reports=(
            Report(
                sizes={"real_tokens": 5, "slot": 80, "dummy_tokens": 1, "token": 0},
                faulty={"slot read": 80, "padding": -1},
                repaired={"slot read": -1},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#10032",
        kind=Kind.STALE,
        title="decode state is built from lengths that count drafts which may be rejected",
        seen="repeated tokens",
        domain=sizes_of(_Speculated),
        assumes=lambda sizes: all_of(sizes.num_accepted <= sizes.num_draft_tokens),
        faulty=lambda sizes: _length_is_corrected(sizes, sizes.num_draft_tokens),
        repaired=lambda sizes: _length_is_corrected(sizes, sizes.num_accepted),
        reports=(
            Report(
                sizes={"num_computed_tokens": 128, "num_draft_tokens": 3, "num_accepted": 0},
                faulty={"length used": 132, "length": 129},
                repaired={"length used": 129},
                by_hand=True,
            ),
        ),
    ),
)
