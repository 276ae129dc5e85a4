"""Mutants of further readers, of consumers, slots and integer widths, and of the gaps that today closes."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.mutations import Mutant

__all__ = ["CLAIM_MUTANTS"]

_FULL, _V1 = "full-attention V2", "full-attention V1"


def _readers() -> Iterator[Mutant]:
    gather, draft = f"{_FULL} column-fits/gather", f"{_FULL} column-fits/draft-step"
    yield Mutant(
        "readers", "the gather copies one column more", "case.access.state < entries(",
        "case.access.state <= entries(", (gather, "mamba-align V2 column-fits/gather"),
    )  # fmt: skip
    yield Mutant(
        "readers", "the gather begins at column 1", "lambda case, _release, _runner: case.access.state,",
        "lambda case, _release, _runner: case.access.state + 1,", (gather,),
    )  # fmt: skip
    at, both = "readers._is_draft_position", (draft, f"{_V1} column-fits/draft-step")
    clamp = "drafter_limit(case, release, runner) - 1"
    yield Mutant(at, "not clamped", clamp, "last + case.part(Drafting).draft_step", both)
    yield Mutant(
        at, "clamped a position late", "(case, release, runner) - 1", "(case, release, runner)", both
    )
    at, agree = "readers.drafter_limit", f"{_FULL} consumers-agree/lowered-max-model-len"
    today, older = "case.deployment.max_model_len", "case.part(Drafting).configured_max_model_len"
    yield Mutant(at, "as constructed, before auto-fit", today, older, (agree, *both))
    yield Mutant(at, "one token more", today, f"{today} + 1", (agree, draft))
    yield Mutant(at, "one token less", today, f"{today} - 1", (agree,))
    at, local = (
        "readers.local_pages",
        tuple(f"chunked-local {r} column-fits/local-attention" for r in ("V1", "V2")),
    )
    whole = "minimum(spec.attention_chunk_size, request.num_tokens - first)"
    yield Mutant(at, "keys beyond the sequence", whole, "spec.attention_chunk_size", local)
    page = "return first // spec.kernel_block_size"
    yield Mutant(at, "from the position's page", page, page.replace("first", "case.access.position"), local)
    yield Mutant(at, "one page more", "cdiv(keys", "1 + cdiv(keys", local)
    yield Mutant(
        "readers", "local attention under dcp", "case.deployment.decode_context_parallel_size == 1",
        "case.deployment.decode_context_parallel_size >= 1", local,
    )  # fmt: skip


def _consumers() -> Iterator[Mutant]:
    layers = tuple(f"uniform-{kind} V2 consumers-agree/layers" for kind in ("full-attention", "mamba-align"))
    at, width = "consumers._layer_width", "return row_width("
    yield Mutant(at, "one entry less", width, "return -1 + row_width(", layers)
    other = "runner=Runner.V1 if runner is Runner.V2 else Runner.V2"
    yield Mutant(at, "as the other runner has it", "runner=runner", other, layers)
    at, tables = (
        "consumers._kernel_table",
        (f"{_FULL} consumers-agree/kernel-table", "cross-attention V2 consumers-agree/kernel-table"),
    )
    yield Mutant(at, "one column less", width, "return -1 + row_width(", tables)
    yield Mutant(at, "as the other runner has it", "runner=runner", other, tables)
    yield Mutant(at, "the encoder ignored", "if release", "if not release", tables)


def _slots() -> Iterator[Mutant]:
    distinct, owner = f"{_FULL} slots-distinct", f"{_FULL} slots-distinct/one-owner"
    v1 = f"{_V1} slots-distinct"
    at, offset = "specs.AttentionSpec.place_on_rank", "run * interleave + modulo(in_virtual, interleave)"
    yield Mutant(
        at, "runs of a rank share slots", offset, "modulo(in_virtual, interleave)", (owner, distinct, v1)
    )
    at = "specs.AttentionSpec.owner"
    yield Mutant(at, "one rank owns all", "return modulo(", "return 0 * modulo(", (owner, distinct))
    yield Mutant(at, "the next rank", "return modulo(", "return 1 + modulo(", (owner,))
    yield Mutant(at, "runs of one token", " // interleave, ranks)", ", ranks)", (owner,))
    yield Mutant(
        at, "a rank that is not there", "// interleave, ranks)", "// interleave, ranks + 1)", (owner,)
    )
    at = "slots._place"
    resident = "hisparse-resident V2 slots-distinct"
    plain = "position // tokens, modulo(position, tokens)"
    yield Mutant(at, "one block holds all", plain, "0, modulo(position, tokens)", (resident,))
    yield Mutant(at, "a block is one slot", plain, "position // tokens, 0", (resident,))
    ring = "circular-buffer V2 slots-distinct"
    yield Mutant(at, "a ring of one slot", "modulo(position, spec.block_size)", "0", (ring,))
    at = "slots._both_live"
    within = "other < one + case.spec.block_size"
    yield Mutant(at, "a ring holds one more", within, within.replace("<", "<="), (ring,))
    query = f"{_FULL} slots-distinct/draft-query"
    yield Mutant("slots._query_place", "one column clamps all", "- 1), modulo", "- 2), modulo", (query,))
    yield Mutant("slots._query_place", "a block is one slot", "modulo(position, tokens)", "0", (query,))
    at = "slots._queries_distinct"
    yield Mutant(at, "PAD one column late", ">= width_of", "> width_of", (query,))


def _indices() -> Iterator[Mutant]:
    slot, row, token = (f"index-fits/{part}" for part in ("slot", "row-offset", "token-offset"))
    at = "indices._stored_as_int32"
    for old, what, label in (
        ("at.max_num_reqs,", "rows", row),
        ("at.num_gpu_blocks,", "block IDs", slot),
        ("spec.block_size,", "block sizes", slot),
        ("case.deployment.max_model_len,", "lengths", token),
        ("width_of(case, release, runner),", "strides", row),
    ):
        yield Mutant(at, f"{what} of any size", old, "0,", (f"{_V1} {label}", f"{_FULL} {label}"))
    product = "case.part(Indices).block_id * cast"
    yield Mutant(
        "indices", "a slot counts its block's tokens twice", product,
        "case.part(Indices).block_id * case.part(Indices).block_id * cast", (f"{_V1} {slot}",),
    )  # fmt: skip
    offset = "case.part(Indices).request_row * case.deployment.max_model_len"
    yield Mutant(
        "indices", "a length counts its rows twice", offset, f"case.part(Indices).request_row * {offset}",
        (f"{_V1} {token}",),
    )  # fmt: skip


def _gaps() -> Iterator[Mutant]:
    """Today leaves one of the gaps open that releases as they ship leave open."""
    at, held = "releases.Release.leaves_open", "return gap in self.gaps and"
    drafter = "column-fits/draft-step", "consumers-agree/lowered-max-model-len"
    for gap, asks in (
        (
            "SESSION_LENGTH",
            ("mamba-align V2 append-in-step/session-chunk", f"{_FULL} column-fits/session-chunk"),
        ),
        ("RING_SLOTS_ON_V1", ("circular-buffer V1 column-fits",)),
        ("STALE_DRAFTER_ON_V1", tuple(f"{_V1} {label}" for label in drafter)),
        ("STALE_DRAFTER_ON_V2", tuple(f"{_FULL} {label}" for label in drafter)),
        ("CLAMPED_DRAFT_COLUMNS", (f"{_FULL} slots-distinct/draft-query",)),
        ("KERNEL_TABLE_IGNORES_ENCODER", ("cross-attention V2 consumers-agree/kernel-table",)),
        ("SLOT_INT32_ON_V2", (f"{_FULL} index-fits/slot",)),
        ("ROW_OFFSET_INT32_ON_V2", (f"{_FULL} index-fits/row-offset",)),
        ("ROW_OFFSET_INT32_ON_V1", (f"{_V1} index-fits/row-offset",)),
        ("TOKEN_OFFSET_INT32_ON_V2", (f"{_FULL} index-fits/token-offset",)),
        ("KERNEL_BLOCK_DEALS_ON_V2", (f"{_FULL} slots-distinct", f"{_FULL} slots-distinct/one-owner")),
    ):
        opened = f"return (gap in self.gaps or gap is Gap.{gap}) and"
        yield Mutant(at, f"{gap.lower().replace('_', '-')} is open", held, opened, asks)


CLAIM_MUTANTS: tuple[Mutant, ...] = (*_readers(), *_consumers(), *_slots(), *_indices(), *_gaps())
"""Mutants of `readers`, `consumers`, `slots` and `indices`."""
