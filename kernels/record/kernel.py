"""The Triton side of the violation record: what a kernel calls with the lanes that it refuses.

Contract:

* `words`: int64 [kinds, FIELDS], contiguous; row k belongs to the kind with the number k (the constants
  below). A kind's row holds
      TOTAL    how many lanes were refused, exactly, since the record was reset
      CLAIMED  0, or 1 once a program has described its refusal; the fields below are that program's
      GROUP    cache group
      ROW      row of the group's table, or what was taken for one
      WANTED   what was asked for (see `DeviceFault`)
      LIMIT    what it had to stay below
      LAUNCH   number of the launch that refused it
* `flag`: int32 [1] in memory that the host reads; 1 after a violation. Stored by every program that
  reports, never read by a kernel, so it needs no atomic.
* Each program reports its lowest refused lane; of several programs the first to claim the kind is kept.
  Which one that is depends on the device's order of programs. TOTAL does not.
* A launch that refuses nothing pays one reduction over the lanes and one branch; `report_scalar` pays
  the branch alone. The words and the flag are neither read nor written then.
* `launch` is a scalar argument of the launch. A CUDA graph replays the number that it was captured with.
"""

import triton
import triton.language as tl

__all__ = [
    "COUNT",
    "FIELDS",
    "POSITION",
    "READ_PAST_COUNT",
    "READ_PAST_ROW",
    "READ_ROW",
    "STATE_PAST_ROW",
    "TOKEN",
    "WRITE_PAST_ROW",
    "WRITE_ROW",
    "report",
    "report_scalar",
]

WRITE_PAST_ROW = tl.constexpr(0)
WRITE_ROW = tl.constexpr(1)
READ_PAST_ROW = tl.constexpr(2)
READ_ROW = tl.constexpr(3)
STATE_PAST_ROW = tl.constexpr(4)
POSITION = tl.constexpr(5)
COUNT = tl.constexpr(6)
READ_PAST_COUNT = tl.constexpr(7)
TOKEN = tl.constexpr(8)

FIELDS = tl.constexpr(7)
_TOTAL = tl.constexpr(0)
_CLAIMED = tl.constexpr(1)
_GROUP = tl.constexpr(2)
_ROW = tl.constexpr(3)
_WANTED = tl.constexpr(4)
_LIMIT = tl.constexpr(5)
_LAUNCH = tl.constexpr(6)


@triton.jit
def report(words, flag, KIND: tl.constexpr, group, row, wanted, limit, launch, refused):
    """Report the lanes where the block `refused` holds; the four values are blocks like it or scalars."""
    total = tl.sum(refused.to(tl.int32), axis=0)
    if total > 0:
        lane = tl.arange(0, refused.shape[0])
        first = lane == tl.min(tl.where(refused, lane, refused.shape[0]), axis=0)
        _record(
            words,
            flag,
            KIND,
            total,
            _value_at(first, group),
            _value_at(first, row),
            _value_at(first, wanted),
            _value_at(first, limit),
            launch,
        )


@triton.jit
def report_scalar(words, flag, KIND: tl.constexpr, group, row, wanted, limit, launch, refused):
    """Report what the program refuses as a whole; the scalar `refused` is a bool or a number of lanes."""
    total = refused.to(tl.int64)
    if total > 0:
        _record(words, flag, KIND, total, group, row, wanted, limit, launch)


@triton.jit
def _value_at(chosen, values):
    return tl.sum(tl.where(chosen, values, 0).to(tl.int64), axis=0)


@triton.jit
def _record(words, flag, KIND: tl.constexpr, total, group, row, wanted, limit, launch):
    kind = words + KIND * FIELDS
    # Relaxed: nobody reads the words before the launch has ended.
    tl.atomic_add(kind + _TOTAL, total, sem="relaxed")
    if tl.atomic_xchg(kind + _CLAIMED, 1, sem="relaxed") == 0:
        tl.store(kind + _GROUP, group)
        tl.store(kind + _ROW, row)
        tl.store(kind + _WANTED, wanted)
        tl.store(kind + _LIMIT, limit)
        tl.store(kind + _LAUNCH, launch)
    tl.store(flag, 1)
