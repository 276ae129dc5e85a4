"""Indices fit the integers in which a release's kernels compute them; a refutation shows what wraps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from invariants.arithmetic import all_of
from invariants.cases import Case
from invariants.claim import Given, Invariant, Side
from invariants.deployment import Runner
from invariants.parameters import size
from invariants.releases import Gap, Release
from invariants.rows import width_of
from invariants.specs import AttentionSpec, FullAttentionSpec

__all__ = ["INDICES", "Indices"]

_INT32, _INT64 = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Indices:
    """Where a kernel points: into the table, into the cache, into the tokens."""

    max_num_reqs: int = size("rows of the tables", minimum=1, default=1)
    request_row: int = size("a row, from 0", default=0)
    num_gpu_blocks: int = size("blocks of the cache", minimum=1, default=1)
    block_id: int = size("a block ID, from 0", default=0)


def _stored_as_int32(case: Case, release: Release, runner: Runner) -> bool:
    at, spec = case.part(Indices), cast("AttentionSpec", case.spec)
    sizes = (
        at.max_num_reqs,
        at.num_gpu_blocks,
        spec.block_size,
        case.deployment.max_model_len,
        width_of(case, release, runner),
    )
    return all_of(*(value <= _INT32 for value in sizes))


_GIVENS = (
    Given("stored-as-int32", "block IDs, rows, lengths and strides are stored as int32", _stored_as_int32),
    Given(
        "inside",
        "the row, block, column and position are ones that there are",
        lambda case, release, runner: all_of(
            case.part(Indices).request_row < case.part(Indices).max_num_reqs,
            case.part(Indices).block_id < case.part(Indices).num_gpu_blocks,
            case.access.state < width_of(case, release, runner),
            case.access.position < case.deployment.max_model_len,
        ),
    ),
)


def _fits(
    part: str,
    what: str,
    gaps: tuple[Gap, ...],
    index: Callable[[Case, Release, Runner], int],
) -> Invariant:
    """Make a claim that an index fits its integer type: int64, or int32 in releases with one of the gaps."""

    def largest(release: Release, runner: Runner) -> int:
        return _INT32 if any(release.leaves_open(gap, runner) for gap in gaps) else _INT64

    return Invariant(
        "index-fits",
        f"{what} fits the integer that the kernel computes it in",
        lambda case, release, runner: index(case, release, runner) <= largest(release, runner),
        lambda spec: spec.runners if type(spec) is FullAttentionSpec else (),
        sides=lambda case, release, runner: (
            Side("kernel", what, index(case, release, runner)),
            Side("kernel", "largest integer", largest(release, runner)),
        ),
        clash=lambda _case, values: f"{what} {values[0]} wraps to {values[0] - 2 * (values[1] + 1)}",
        part=part,
        parts=(Indices,),
        givens=_GIVENS,
        margin=lambda case, release, runner: largest(release, runner) - index(case, release, runner),
        waives=frozenset({"request-within-context"}),
    )


INDICES: tuple[Invariant, ...] = (
    _fits(
        "slot",
        "a slot (block ID * block_size)",
        (Gap.SLOT_INT32_ON_V2,),
        lambda case, _release, _runner: (
            case.part(Indices).block_id * cast("AttentionSpec", case.spec).block_size
        ),
    ),
    _fits(
        "row-offset",
        "a row offset (row * stride + column)",
        (Gap.ROW_OFFSET_INT32_ON_V1, Gap.ROW_OFFSET_INT32_ON_V2),
        lambda case, release, runner: (
            case.part(Indices).request_row * width_of(case, release, runner) + case.access.state
        ),
    ),
    _fits(
        "token-offset",
        "a token offset (row * max_model_len + position)",
        (Gap.TOKEN_OFFSET_INT32_ON_V2,),
        lambda case, _release, _runner: (
            case.part(Indices).request_row * case.deployment.max_model_len + case.access.position
        ),
    ),
)
"""The claims about integer width."""
