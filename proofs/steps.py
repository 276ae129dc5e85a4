"""Intermediate claims that make non-linear goals easy for the solver.

A step is never trusted: it is added to what is known only after the solver proved it from the assumptions
and the steps before it, and it is dropped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from invariants import AttentionSpec, Case, UniformTypeSpec
from invariants.arithmetic import all_of, modulo

__all__ = ["steps_for"]


def steps_for(case: Case) -> Iterator[bool]:
    """Yield claims about a case, each easier than the goal, in the order in which they are proved."""
    layer = case.spec.inner if isinstance(case.spec, UniformTypeSpec) else case.spec
    if isinstance(layer, AttentionSpec):
        yield from _place_stays_in_its_block(case, layer)


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
