"""Intermediate claims that make non-linear goals easy for the solver.

A step is never trusted: it is added to what is known only after the solver proved it from the assumptions
and the steps before it, and it is dropped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from invariants import AttentionSpec, Case, Release, Runner, UniformTypeSpec, row_spec
from invariants.arithmetic import all_of, cdiv, modulo

__all__ = ["steps_for"]


def steps_for(case: Case, release: Release, runner: Runner) -> Iterator[bool]:
    """Yield claims about a case, each easier than the goal, in the order in which they are proved."""
    case = replace(case, spec=row_spec(case.spec, release=release))
    yield from _padding_only_widens(case, release, runner)
    layer = case.spec.inner if isinstance(case.spec, UniformTypeSpec) else case.spec
    if isinstance(layer, AttentionSpec):
        yield from _place_stays_in_its_block(case, layer)
        yield from _split_blocks_stay_in_the_row(case, layer, release, runner)


def _padding_only_widens(case: Case, release: Release, runner: Runner) -> Iterator[bool]:
    """Lead from the scheduler's list to the blocks that the row is made for, and on to the padded row."""
    length = case.deployment.row_length(runner)
    made = case.spec.max_num_blocks_per_req(case.deployment, length)
    yield case.spec.entries(case.deployment, case.request) <= made
    yield made <= release.width(case.deployment, case.spec, runner)


def _place_stays_in_its_block(case: Case, layer: AttentionSpec) -> Iterator[bool]:
    """Lead to: the offset on the rank is inside the manager block."""
    ranks, interleave = case.deployment.decode_context_parallel_size, case.deployment.interleave()
    tokens = layer.block_size
    runs = tokens // interleave
    in_virtual = modulo(case.access.position, tokens * ranks)
    _, offset = layer.place_on_rank(case.deployment, case.access.position)
    yield all_of(tokens == interleave * runs, tokens * ranks == (interleave * ranks) * runs)
    yield in_virtual // (interleave * ranks) + 1 <= runs
    yield all_of(offset >= 0, offset < tokens)


def _split_blocks_stay_in_the_row(
    case: Case, layer: AttentionSpec, release: Release, runner: Runner
) -> Iterator[bool]:
    """Lead to: the kernel block is inside the position's manager block, and that one inside the row."""
    deployment, split, position = case.deployment, layer.blocks_per_kv_block, case.access.position
    length = deployment.row_length(runner)
    block, offset = layer.place_on_rank(deployment, position)
    made = case.spec.max_num_blocks_per_req(deployment, length)
    width = release.width(deployment, case.spec, runner)
    inside = offset // layer.kernel_block_size
    yield inside + 1 <= split
    yield (block * layer.block_size + offset) // layer.kernel_block_size == block * split + inside
    yield block + 1 <= cdiv(length, layer.block_size * deployment.decode_context_parallel_size)
    yield block + 1 <= made
    yield all_of(block + 1 <= width, (block + 1) * split <= width * split)
    whole = position // layer.block_size
    yield position // layer.kernel_block_size + 1 <= (whole + 1) * split
    yield whole + 1 <= cdiv(length, layer.block_size)
    yield all_of((whole + 1) * split <= cdiv(length, layer.block_size) * split, made * split <= width * split)
