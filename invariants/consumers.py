"""Every place that derives a width, or a length to clamp to, derives the one that the row was made for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

from invariants.cases import Case
from invariants.claim import Given, Invariant, Side
from invariants.deployment import Runner
from invariants.readers import LOWERED, Drafting, drafter_limit
from invariants.releases import Gap, Release, row_width
from invariants.rows import width_of
from invariants.specs import CrossAttentionSpec, FullAttentionSpec, Spec, UniformTypeSpec

__all__ = ["CONSUMERS"]

_Number = Callable[[Case, Release, Runner], int]


def _agreement(  # noqa: PLR0913, PLR0917  # what an agreement is made of
    part: str,
    sentence: str,
    runners: Callable[[Spec], tuple[Runner, ...]],
    names: tuple[str, str],
    consumer: _Number,
    producer: _Number,
    parts: tuple[type, ...] = (),
    givens: tuple[Given, ...] = (),
) -> Invariant:
    """Make a claim that a consumer's number is the producer's."""
    return Invariant(
        "consumers-agree",
        sentence,
        lambda case, release, runner: consumer(case, release, runner) == producer(case, release, runner),
        runners,
        sides=lambda case, release, runner: (
            Side("consumer", names[0], consumer(case, release, runner)),
            Side("worker", names[1], producer(case, release, runner)),
        ),
        clash=lambda _case, values: f"{names[0]} is {values[0]}, {names[1]} is {values[1]}",
        part=part,
        parts=parts,
        givens=givens,
        waives=frozenset({"request-within-context"}),
    )


def _layer_width(case: Case, release: Release, runner: Runner) -> int:
    inner = cast("UniformTypeSpec", case.spec).inner
    return row_width(case.deployment, inner, runner=runner, release=release)


def _kernel_table(case: Case, release: Release, runner: Runner) -> int:
    """Return the columns of the table that an attention backend makes for its own block size.

    Source: vLLM 0.33 `v1/worker/utils.py`:303-320.
    """
    deployment = case.deployment
    if release.leaves_open(Gap.KERNEL_TABLE_IGNORES_ENCODER, runner):
        deployment = dataclasses.replace(deployment, max_num_encoder_input_tokens=0, max_source_positions=0)
    return row_width(deployment, case.spec, runner=runner, release=release)


CONSUMERS: tuple[Invariant, ...] = (
    _agreement(
        "layers",
        "a wrapped group's row is as wide as what each of its layers derives for its own metadata",
        lambda spec: spec.runners if isinstance(spec, UniformTypeSpec) else (),
        ("the layer's width", "the group's row"),
        _layer_width,
        width_of,
    ),
    _agreement(
        "kernel-table",
        "the table for the kernel's block size is as wide as the group's row",
        lambda spec: spec.runners if type(spec) in (FullAttentionSpec, CrossAttentionSpec) else (),
        ("the kernel's table", "the group's row"),
        _kernel_table,
        width_of,
    ),
    _agreement(
        "lowered-max-model-len",
        "a drafter clamps to the max_model_len that the rows were made for, after auto-fit has lowered it",
        lambda spec: spec.runners if type(spec) is FullAttentionSpec else (),
        ("the drafter's limit", "max_model_len of the rows"),
        drafter_limit,
        lambda case, _release, _runner: case.deployment.max_model_len,
        parts=(Drafting,),
        givens=(LOWERED,),
    ),
)
"""The claims about consumers."""
