"""Readers of a row beside the slot mapping and the state pick: gather, draft steps, local attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from invariants.arithmetic import all_of, cdiv, minimum, modulo
from invariants.cases import REPRESENTATIVE_TYPES, Case
from invariants.claim import Given, Invariant, Side
from invariants.deployment import Runner
from invariants.parameters import size
from invariants.releases import Gap, Release, column, entries, kernel_table_width
from invariants.rows import outside, width_of
from invariants.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec, Spec

__all__ = ["LOWERED", "READERS", "Drafting", "drafter_limit", "local_pages"]

_Column = Callable[[Case, Release, Runner], int]


def _reader(  # noqa: PLR0913, PLR0917  # what a reader is made of
    part: str,
    sentence: str,
    read: _Column,
    runners: Callable[[Spec], tuple[Runner, ...]],
    givens: tuple[Given, ...],
    parts: tuple[type, ...] = (),
    width: _Column = width_of,
) -> Invariant:
    """Make a claim of one reader: its column lies inside the row, or the table that is made from it."""

    def inside(case: Case, release: Release, runner: Runner) -> bool:
        at = read(case, release, runner)
        return all_of(at >= 0, at < width(case, release, runner))

    return Invariant(
        "column-fits",
        sentence,
        inside,
        runners,
        sides=lambda case, release, runner: (
            Side("kernel", "column", read(case, release, runner)),
            Side("worker", "row width", width(case, release, runner)),
        ),
        clash=lambda _case, values: outside(*values),
        part=part,
        parts=parts,
        givens=givens,
        margin=lambda case, release, runner: width(case, release, runner) - read(case, release, runner) - 1,
    )


_GATHER = _reader(
    "gather",
    "every column that the gather copies, from 0 to the recorded count, lies inside the row",
    lambda case, _release, _runner: case.access.state,
    lambda spec: (Runner.V2,) if type(spec) in REPRESENTATIVE_TYPES else (),
    (
        Given(
            "below-recorded-count",
            "the column is below the count that the worker recorded for the row "
            "[vLLM 0.33 v1/worker/gpu/block_table.py:300-330, which loops to the count, not to the width]",
            lambda case, release, _runner: (
                case.access.state < entries(case.deployment, case.spec, case.request, release=release)
            ),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A drafter's step after the target's, and what it captured at its construction."""

    configured_max_model_len: int = size(
        "max_model_len before the engine lowered it to what fits the cache (auto-fit)", minimum=1, default=1
    )
    draft_step: int = size("which further draft token the step writes, from 1", minimum=1, usual=1, default=1)


def drafter_limit(case: Case, release: Release, runner: Runner) -> int:
    """Return the length to which a drafter clamps its positions, in tokens.

    Source: vLLM 0.33 `v1/worker/gpu/spec_decode/speculator.py`:215-217, where it is read anew; up to 0.32
    (V2) and in V1's parallel drafting it is what the drafter was constructed with.
    """
    stale = (Gap.STALE_DRAFTER_ON_V1, Gap.STALE_DRAFTER_ON_V2)
    if any(release.leaves_open(gap, runner) for gap in stale):
        return case.part(Drafting).configured_max_model_len
    return case.deployment.max_model_len


LOWERED = Given(
    "lowered-by-auto-fit",
    "auto-fit only lowers max_model_len [vLLM 0.33 v1/engine/core.py:318-332]",
    lambda case, _release, _runner: (
        case.part(Drafting).configured_max_model_len >= case.deployment.max_model_len
    ),
)


def _is_draft_position(case: Case, release: Release, runner: Runner) -> bool:
    """A draft step writes so many positions after the last one, clamped to the drafter's limit."""
    last = case.request.num_tokens - 1
    written = minimum(last + case.part(Drafting).draft_step, drafter_limit(case, release, runner) - 1)
    return case.access.position == written


_DRAFT = _reader(
    "draft-step",
    "every column that a drafter writes after the target's step lies inside the row",
    lambda case, release, runner: column(
        case.deployment, case.spec, case.access, runner=runner, release=release
    ),
    lambda spec: spec.runners if type(spec) in (FullAttentionSpec, SlidingWindowSpec) else (),
    (
        LOWERED,
        Given(
            "draft-steps",
            "a drafter writes num_speculative_tokens - 1 further positions after a generating step's last "
            "one [vLLM 0.33 v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py:850-860]",
            lambda case, release, runner: all_of(
                case.part(Drafting).draft_step < case.deployment.num_speculative_tokens,
                case.request.num_tokens < case.deployment.max_model_len,
                _is_draft_position(case, release, runner),
            ),
        ),
    ),
    parts=(Drafting,),
)


def local_pages(case: Case) -> tuple[int, int]:
    """Return the first page of the position's chunk and how many its keys take, in kernel blocks."""
    spec, request = cast("ChunkedLocalAttentionSpec", case.spec), case.request
    first = case.access.position // spec.attention_chunk_size * spec.attention_chunk_size
    keys = minimum(spec.attention_chunk_size, request.num_tokens - first)
    return first // spec.kernel_block_size, cdiv(keys, spec.kernel_block_size)


_LOCAL = _reader(
    "local-attention",
    "every page that a local-attention chunk uses lies inside the row, before the index is clipped to it",
    lambda case, _release, _runner: local_pages(case)[0] + case.access.state,
    lambda spec: spec.runners if type(spec) is ChunkedLocalAttentionSpec else (),
    (
        Given(
            "local-chunk",
            "the chunk begins inside the sequence and is made of whole pages; the page is one that it uses; "
            "no dcp [vLLM 0.33 v1/attention/backends/utils.py:543-640]",
            lambda case, _release, _runner: all_of(
                case.access.position < case.request.num_tokens,
                modulo(
                    cast("ChunkedLocalAttentionSpec", case.spec).attention_chunk_size,
                    cast("ChunkedLocalAttentionSpec", case.spec).kernel_block_size,
                )
                == 0,
                case.access.state < local_pages(case)[1],
                case.deployment.decode_context_parallel_size == 1,
            ),
        ),
    ),
    width=lambda case, release, runner: kernel_table_width(
        case.deployment, case.spec, runner=runner, release=release
    ),
)

READERS: tuple[Invariant, ...] = (_GATHER, _DRAFT, _LOCAL)
"""The further readers of `column-fits`."""
