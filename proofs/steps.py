"""Intermediate claims that make non-linear goals easy for the solver.

A step is never trusted: it is added to what is known only after the solver proved it from the assumptions
and the steps before it, and it is dropped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from invariants import (
    AttentionSpec,
    Case,
    ChunkedLocalAttentionSpec,
    Invariant,
    Release,
    Runner,
    UniformTypeSpec,
    row_spec,
)
from invariants.arithmetic import all_of, any_of, cdiv, modulo
from invariants.readers import local_pages
from invariants.rows import HELD
from invariants.slots import OtherPosition

__all__ = ["cut_for", "steps_for"]


def steps_for(claim: Invariant, case: Case, release: Release, runner: Runner) -> Iterator[bool]:
    """Yield claims about a case, each easier than the goal, in the order in which they are proved."""
    whole, case = case, replace(case, spec=row_spec(case.spec, release=release))
    layer = case.spec.inner if isinstance(case.spec, UniformTypeSpec) else case.spec
    if claim.name == "slots-distinct":
        if isinstance(layer, AttentionSpec) and claim.part != "draft-query":
            yield from _place_leads_back(case, layer, case.access.position)
            if claim.parts:
                yield from _place_leads_back(case, layer, case.part(OtherPosition).other_position)
        return
    yield from _padding_only_widens(case, release, runner)
    if claim.name != "column-fits" or not isinstance(layer, AttentionSpec) or claim.part == "gather":
        return
    if isinstance(whole.spec, ChunkedLocalAttentionSpec) and claim.part == "local-attention":
        yield from _chunk_is_in_the_table(whole, whole.spec, release, runner)
        return
    position = case.access.position
    yield from _place_stays_in_its_block(case, layer, position)
    yield from _kernel_block_stays_in_its_block(case, layer, position)
    if claim is HELD:
        yield from _block_is_held(case, layer, position)
    else:
        yield from _block_is_in_the_row(case, layer, position, release, runner)


def cut_for(claim: Invariant, case: Case, runner: Runner) -> bool | None:
    """Return what a claim needs of the request: with it the goal is about the configuration alone."""
    layer = case.spec.inner if isinstance(case.spec, UniformTypeSpec) else case.spec
    if claim.label == "slots-distinct" and isinstance(layer, AttentionSpec):
        return case.access.position < case.part(OtherPosition).other_position
    if (
        claim.name != "column-fits"
        or not isinstance(layer, AttentionSpec)
        or claim.part in ("gather", "local-attention")
    ):
        return None
    if claim is HELD:
        return case.access.position < layer.tokens_with_slots(case.deployment, case.request)
    return case.access.position < case.deployment.row_length(runner)


def _place_leads_back(case: Case, layer: AttentionSpec, position: int) -> Iterator[bool]:
    """Lead from rank, block and offset back to the position, so that no two positions share all three."""
    deployment = case.deployment
    ranks, interleave = deployment.decode_context_parallel_size, deployment.interleave()
    span = interleave * ranks
    block, offset = layer.place_on_rank(deployment, position)
    rank = layer.owner(deployment, position)
    in_virtual = modulo(position, layer.block_size * ranks)
    run, in_span = in_virtual // span, modulo(in_virtual, span)
    yield all_of(in_span // interleave >= 0, in_span // interleave + 1 <= ranks)
    yield in_virtual // interleave == run * ranks + in_span // interleave
    yield in_virtual // interleave // ranks == run
    yield modulo(in_virtual, interleave) == modulo(in_span, interleave)
    yield all_of(offset // interleave == run, modulo(offset, interleave) == modulo(in_span, interleave))
    yield layer.position_at(deployment, rank, block, offset) == position


def _chunk_is_in_the_table(
    case: Case, layer: ChunkedLocalAttentionSpec, release: Release, runner: Runner
) -> Iterator[bool]:
    """Lead to: a chunk's first page and the pages after it that it uses are inside the table."""
    first, pages = local_pages(case)
    width, split = release.width(case.deployment, case.spec, runner), layer.blocks_per_kv_block
    yield case.request.num_tokens <= width * layer.block_size
    yield width * layer.block_size == width * split * layer.kernel_block_size
    yield first + pages <= width * split


def _padding_only_widens(case: Case, release: Release, runner: Runner) -> Iterator[bool]:
    """Lead from the scheduler's list to the blocks that the row is made for, and on to the padded row."""
    length = case.deployment.row_length(runner)
    made = case.spec.max_num_blocks_per_req(case.deployment, length)
    listed = release.entries(case.deployment, case.spec, case.request)
    yield listed <= made
    width, split = release.width(case.deployment, case.spec, runner), case.spec.expansion
    yield made <= width
    yield listed <= width
    yield listed * split <= width * split


def _place_stays_in_its_block(case: Case, layer: AttentionSpec, position: int) -> Iterator[bool]:
    """Lead to: the offset on the rank is inside the manager block."""
    ranks, interleave = case.deployment.decode_context_parallel_size, case.deployment.interleave()
    tokens = layer.block_size
    runs = tokens // interleave
    in_virtual = modulo(position, tokens * ranks)
    _, offset = layer.place_on_rank(case.deployment, position)
    yield all_of(tokens == interleave * runs, tokens * ranks == (interleave * ranks) * runs)
    yield in_virtual // (interleave * ranks) + 1 <= runs
    yield all_of(offset >= 0, offset < tokens)


def _kernel_block_stays_in_its_block(case: Case, layer: AttentionSpec, position: int) -> Iterator[bool]:
    """Lead to: the kernel block is inside the position's manager block."""
    split = layer.blocks_per_kv_block
    block, offset = layer.place_on_rank(case.deployment, position)
    inside = offset // layer.kernel_block_size
    yield inside + 1 <= split
    yield (block * layer.block_size + offset) // layer.kernel_block_size == block * split + inside
    yield position // layer.kernel_block_size + 1 <= (position // layer.block_size + 1) * split


def _block_is_in_the_row(
    case: Case, layer: AttentionSpec, position: int, release: Release, runner: Runner
) -> Iterator[bool]:
    """Lead to: the position's manager block is inside the row, and so are its kernel blocks."""
    deployment, split = case.deployment, layer.blocks_per_kv_block
    length = deployment.row_length(runner)
    block, _ = layer.place_on_rank(deployment, position)
    made = case.spec.max_num_blocks_per_req(deployment, length)
    width = release.width(deployment, case.spec, runner)
    if release.name == "vllm-0.25":  # which divides by both kinds of ranks at once
        ranks = deployment.decode_context_parallel_size * deployment.prefill_context_parallel_size
        yield cdiv(length, layer.block_size * ranks) <= width
        yield length <= width * layer.block_size * ranks
        yield width * layer.block_size * ranks == width * split * layer.kernel_block_size * ranks
    yield block + 1 <= cdiv(length, layer.block_size * deployment.decode_context_parallel_size)
    yield block + 1 <= made
    yield all_of(block + 1 <= width, (block + 1) * split <= width * split)
    whole = position // layer.block_size
    yield whole + 1 <= cdiv(length, layer.block_size)
    yield all_of((whole + 1) * split <= cdiv(length, layer.block_size) * split, made * split <= width * split)


def _block_is_held(case: Case, layer: AttentionSpec, position: int) -> Iterator[bool]:
    """Lead to: the position's manager block is one of the request's list, and so are its kernel blocks."""
    deployment, split = case.deployment, layer.blocks_per_kv_block
    tokens = layer.tokens_with_slots(deployment, case.request)
    block, _ = layer.place_on_rank(deployment, position)
    whole = position // layer.block_size
    held = case.spec.entries(deployment, case.request)
    sharded = any_of(layer.dcp_sharded)
    yield block + 1 <= cdiv(tokens, layer.block_size * deployment.decode_context_parallel_size)
    yield block + 1 <= held
    yield (block + 1) * split <= held * split
    yield whole + 1 <= cdiv(tokens, layer.block_size)
    yield any_of(sharded, whole + 1 <= held)
    yield any_of(sharded, (whole + 1) * split <= held * split)
