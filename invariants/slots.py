"""No two live positions of a request share a slot, and under dcp exactly one rank owns each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from invariants.arithmetic import all_of, any_of, minimum, modulo, negation, where
from invariants.cases import Case
from invariants.claim import Given, Invariant, Side
from invariants.deployment import Runner
from invariants.parameters import size
from invariants.releases import Gap, Release, dealt_spec
from invariants.rows import width_of
from invariants.specs import (
    AttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    HiSparseResidentSpec,
)

__all__ = ["SLOTS", "OtherPosition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPosition:
    """A second position of the same request."""

    other_position: int = size("a second token position, from 0", default=0)


def _is_sharded(spec: AttentionSpec, runner: Runner) -> bool:
    """Return whether dcp spreads the group's positions; V1 spreads every group's."""
    return spec.dcp_sharded if runner is Runner.V2 else True


def _dealt(case: Case, release: Release, runner: Runner) -> AttentionSpec:
    return dealt_spec(cast("AttentionSpec", case.spec), runner=runner, release=release)


def _place_on_rank(case: Case, position: int, release: Release, runner: Runner) -> tuple[int, int, int]:
    """Return rank, manager block and offset of a position of a sharded group."""
    spec, dealt = cast("AttentionSpec", case.spec), _dealt(case, release, runner)
    block, offset = dealt.place_on_rank(case.deployment, position)
    if dealt is not spec:  # a manager block's kernel blocks lie side by side
        offset += modulo(block, spec.blocks_per_kv_block) * dealt.block_size
        block //= spec.blocks_per_kv_block
    return dealt.owner(case.deployment, position), block, offset


def _place(case: Case, position: int, release: Release, runner: Runner) -> tuple[int, int, int]:
    """Return rank, block and offset of a position's slot; different columns hold different blocks."""
    spec = case.spec
    if isinstance(spec, CircularBufferSpec):
        return 0, 0, modulo(position, spec.block_size)
    tokens = cast("AttentionSpec | HiSparseResidentSpec", spec).block_size
    plain = position // tokens, modulo(position, tokens)
    if not isinstance(spec, AttentionSpec):
        return 0, *plain
    sharded = _is_sharded(spec, runner)
    rank, block, offset = _place_on_rank(case, position, release, runner)
    return where(sharded, rank, 0), where(sharded, block, plain[0]), where(sharded, offset, plain[1])


def _differ(here: tuple[int, ...], there: tuple[int, ...]) -> bool:
    return any_of(*(a != b for a, b in zip(here, there, strict=True)))


def _positions(case: Case) -> tuple[int, int]:
    return case.access.position, case.part(OtherPosition).other_position


def _way_back(case: Case, position: int, release: Release, runner: Runner) -> int:
    """Return the position that the place of a position leads back to."""
    place = _place_on_rank(case, position, release, runner)
    return cast("AttentionSpec", case.spec).position_at(case.deployment, *place)


def _distinct(case: Case, release: Release, runner: Runner) -> bool:
    """Compare the places; under dcp the positions that they lead back to, which equal places would share."""
    one, other = _positions(case)
    places = _differ(_place(case, one, release, runner), _place(case, other, release, runner))
    if not isinstance(case.spec, AttentionSpec) or _dealt(case, release, runner) is not case.spec:
        return places
    back = tuple(_way_back(case, position, release, runner) for position in (one, other))
    return where(_is_sharded(case.spec, runner), _differ(back[:1], back[1:]), places)


def _both_live(case: Case, _release: Release, _runner: Runner) -> bool:
    one, other = _positions(case)
    tokens = case.request.slot_tokens(case.deployment)
    live = all_of(one < other, other < tokens)
    if isinstance(case.spec, CircularBufferSpec):
        return all_of(live, other < one + case.spec.block_size)
    return live


def _place_sides(case: Case, position: int, release: Release, runner: Runner, name: str) -> tuple[Side, ...]:
    rank, block, offset = _place(case, position, release, runner)
    return (
        Side("kernel", f"rank of {name}", rank),
        Side("kernel", f"block of {name}", block),
        Side("kernel", f"offset of {name}", offset),
    )


_DISTINCT = Invariant(
    "slots-distinct",
    "two live positions of a request never map to one slot of one rank",
    _distinct,
    lambda spec: (
        spec.runners if type(spec) in (FullAttentionSpec, CircularBufferSpec, HiSparseResidentSpec) else ()
    ),
    sides=lambda case, release, runner: (
        *_place_sides(case, case.access.position, release, runner, "position"),
        *_place_sides(case, case.part(OtherPosition).other_position, release, runner, "other_position"),
    ),
    clash=lambda case, _values: (
        f"positions {case.access.position} and {case.part(OtherPosition).other_position} share a slot: "
        "the later one overwrites the other's keys and values"
    ),
    parts=(OtherPosition,),
    givens=(
        Given(
            "both-live",
            "both positions have slots, and in a ring fewer than block_size lie between them",
            _both_live,
        ),
    ),
)


def _owned_once(case: Case, release: Release, runner: Runner) -> bool:
    owner = _dealt(case, release, runner).owner(case.deployment, case.access.position)
    return all_of(
        owner >= 0,
        owner < case.deployment.decode_context_parallel_size,
        _way_back(case, case.access.position, release, runner) == case.access.position,
    )


_OWNER = Invariant(
    "slots-distinct",
    "under dcp exactly one rank owns a position, and its place on that rank leads back to it",
    _owned_once,
    lambda spec: spec.runners if type(spec) is FullAttentionSpec else (),
    sides=lambda case, release, runner: (
        *_place_sides(case, case.access.position, release, runner, "position"),
        Side("kernel", "the way back", _way_back(case, case.access.position, release, runner)),
    ),
    clash=lambda case, values: (
        f"position {case.access.position} is stored by rank {values[0]} where position {values[-1]} belongs"
    ),
    part="one-owner",
)


def _query_place(case: Case, position: int, release: Release, runner: Runner) -> tuple[int, int]:
    tokens = cast("AttentionSpec", case.spec).block_size
    return minimum(position // tokens, width_of(case, release, runner) - 1), modulo(position, tokens)


def _queries_distinct(case: Case, release: Release, runner: Runner) -> bool:
    one, other = _positions(case)
    distinct = _differ(_query_place(case, one, release, runner), _query_place(case, other, release, runner))
    if release.leaves_open(Gap.CLAMPED_DRAFT_COLUMNS, runner):
        return distinct
    beyond = other // cast("AttentionSpec", case.spec).block_size >= width_of(case, release, runner)
    return any_of(beyond, distinct)  # a position beyond the row maps to PAD, which is no slot


_QUERY = Invariant(
    "slots-distinct",
    "the slots of a block drafter's queries are distinct, at the end of the context too",
    _queries_distinct,
    lambda spec: (Runner.V2,) if type(spec) is FullAttentionSpec else (),
    sides=lambda case, release, runner: tuple(
        Side("kernel", f"{what} of {name}", value)
        for name, position in zip(("position", "other_position"), _positions(case), strict=True)
        for what, value in zip(
            ("column", "offset"), _query_place(case, position, release, runner), strict=True
        )
    ),
    clash=lambda case, values: (
        f"column clamped to {values[0]}: the query at {case.part(OtherPosition).other_position} overwrites "
        f"the slot of position {case.access.position}"
    ),
    part="draft-query",
    parts=(OtherPosition,),
    givens=(
        Given(
            "draft-queries",
            "the queries of a block drafter are the num_speculative_tokens + 1 positions after the last "
            "token; no dcp [vLLM 0.33 v1/worker/gpu/spec_decode/dflash/speculator.py:700-800]",
            lambda case, _release, _runner: all_of(
                case.access.position < case.part(OtherPosition).other_position,
                case.part(OtherPosition).other_position
                <= case.request.num_tokens + case.deployment.num_speculative_tokens,
                case.deployment.num_speculative_tokens >= 1,
                case.deployment.decode_context_parallel_size == 1,
                negation(case.request.num_tokens > case.deployment.max_model_len),
            ),
        ),
    ),
)

SLOTS: tuple[Invariant, ...] = (_DISTINCT, _OWNER, _QUERY)
"""The claims about slots."""
