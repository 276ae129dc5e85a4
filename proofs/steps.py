"""Intermediate claims that make non-linear goals easy for the solver.

A step is never trusted: it is added to what is known only after the solver proved it from the assumptions
and the steps before it, and it is dropped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from invariants import AttentionSpec, Case, Release, Runner, UniformTypeSpec
from invariants.arithmetic import all_of, modulo

__all__ = ["steps_for"]


def steps_for(case: Case, release: Release, runner: Runner) -> Iterator[bool]:
    """Yield claims about a case, each easier than the goal, in the order in which they are proved."""
    yield from _padding_only_widens(case, release, runner)
    layer = case.spec.inner if isinstance(case.spec, UniformTypeSpec) else case.spec
    if isinstance(layer, AttentionSpec):
        yield from _place_stays_in_its_block(case, layer)


def _padding_only_widens(case: Case, release: Release, runner: Runner) -> Iterator[bool]:
    """Lead from the scheduler's list to the blocks that the row is made for, and on to the padded row."""
    length = case.deployment.row_length(runner)
    made = case.spec.max_num_blocks_per_req(case.deployment, length)
    yield case.spec.entries(case.deployment, case.request) <= made
    yield made <= release.width(case.deployment, case.spec, runner)


def _place_stays_in_its_block(case: Case, layer: AttentionSpec) -> Iterator[bool]:
    """Lead to: the offset on the rank is inside the kernel block, so the block is the virtual block."""
    ranks = case.deployment.decode_context_parallel_size
    interleave = case.deployment.cp_kv_cache_interleave_size
    tokens = layer.kernel_block_size
    runs = tokens // interleave
    in_virtual = modulo(case.access.position, tokens * ranks)
    block, offset = layer.place_on_rank(case.deployment, case.access.position)
    yield all_of(tokens == interleave * runs, tokens * ranks == (interleave * ranks) * runs)
    yield in_virtual // (interleave * ranks) + 1 <= runs
    yield all_of(offset >= 0, offset < tokens)
    yield (block * tokens + offset) // tokens == block
