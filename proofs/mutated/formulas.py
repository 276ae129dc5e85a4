"""Mutants of what scheduler, worker and kernels compute: lists, rows, columns, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterator

from invariants import SPEC_KINDS
from invariants.specs import AttentionSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec
from proofs.mutations import Mutant
from proofs.verdicts import spec_of_kind

__all__ = ["FORMULA_MUTANTS"]

_OTHER_ATTENTION = (CrossAttentionSpec, EncoderOnlyAttentionSpec)
_BY_POSITION = tuple(
    kind
    for kind in SPEC_KINDS
    if isinstance(spec := spec_of_kind(kind), AttentionSpec) and not isinstance(spec, _OTHER_ATTENTION)
)
_STEPS = ("admit", "prefill-chunk", "decode", "speculate", "resume", "session-chunk")


def _on(label: str, *kinds: str, runners: str = "V2") -> tuple[str, ...]:
    """Return a claim about some kinds, on V2 unless said otherwise."""
    return tuple(f"{kind} {runner} {label}" for kind in kinds for runner in runners.split())


_BOTH = "V2 V1"
_ALL_LISTS = (*_on("row-fits", *_BY_POSITION), *_on("row-fits", "cross-attention"))


def _lists() -> Iterator[Mutant]:
    """What the scheduler hands over."""
    more, less, entries = "one entry more", "one entry less", "entries"
    held = _on("column-fits/held", "full-attention", "sliding-window", "chunked-local")
    at = "specs.AttentionSpec.entries"
    yield Mutant(
        at, more, "return cdiv(", "return 1 + cdiv(", (*_ALL_LISTS, *_on("row-fits", "mla", runners="V1"))
    )
    yield Mutant(at, less, "return cdiv(", "return -1 + cdiv(", held)
    unsharded = _on("row-fits", "full-attention", runners=_BOTH)
    yield Mutant(at, "not sharded", "shards(deployment, self.dcp_sharded)", "1", unsharded)
    at = "specs.AttentionSpec.tokens_with_slots"
    yield Mutant(
        at, "lookahead counted twice", "(deployment)", "(deployment) + deployment.num_lookahead_tokens",
        _on("row-fits", "full-attention"),
    )  # fmt: skip
    at = "specs.CrossAttentionSpec.tokens_with_slots"
    both = (*_on("row-fits", "cross-attention"), *_on("column-fits/held", "cross-attention"))
    yield Mutant(at, "one token more", "encoder_tokens", "encoder_tokens + 1", both[:1])
    yield Mutant(at, "one token less", "encoder_tokens", "encoder_tokens - 1", both[1:])
    yield Mutant(at, "decoder tokens", "request.num_encoder_tokens", "request.num_tokens", both[1:])
    for name, kind, old in (
        ("EncoderOnlyAttentionSpec", "encoder-only", "return 0"),
        ("CircularBufferSpec", "circular-buffer", "return 1"),
        ("HiSparseHotSpec", "hisparse-hot", "return where("),
        ("HiSparseResidentSpec", "hisparse-resident", "return cdiv("),
        ("MambaNoneSpec", "mamba-none", "return cdiv("),
        ("MambaAlignSpec", "mamba-align", "return cdiv("),
        ("MambaAllSpec", "mamba-all", "return cdiv("),
    ):
        at = f"specs.{name}.{entries}"
        also = {"circular-buffer": ("kpool-tail",), "mamba-align": ("uniform-mamba-align",)}.get(kind, ())
        value = old.removeprefix("return ")
        yield Mutant(at, more, old, f"return 1 + {value}", _on("row-fits", kind, *also))
        if kind not in ("encoder-only", "hisparse-hot"):
            yield Mutant(at, less, old, f"return -1 + {value}", _on("column-fits/held", kind))
    at = "specs.HiSparseHotSpec.entries"
    yield Mutant(
        at,
        "held without host history too",
        ", 0)",
        ", self.blocks_per_request + 1)",
        _on("row-fits", "hisparse-hot"),
    )
    at = "specs.MambaAlignSpec.entries"
    lost = " + self.num_speculative_blocks"
    yield Mutant(at, "draft states lost", lost, "", _on("column-fits/held", "mamba-align"))
    looks = "request.slot_tokens(deployment) + deployment.num_lookahead_tokens"
    yield Mutant(at, "lookahead counted", "request.num_tokens", looks, _on("row-fits", "mamba-align"))
    at = "specs.MambaAllSpec.entries"
    yield Mutant(
        at, "a block per draft and token", "self.block_size *", "self.block_size * self.block_size *",
        _on("row-fits", "mamba-all"),
    )  # fmt: skip
    at = "specs.MambaNoneSpec.entries"
    lost = " + self.mamba_block_size * self.num_speculative_blocks"
    yield Mutant(at, "draft states lost", lost, "", _on("column-fits/held", "mamba-none"))


def _rows() -> Iterator[Mutant]:
    """What the worker makes room for."""
    less, made = "one entry less of room", "max_num_blocks_per_req"
    at = f"specs.AttentionSpec.{made}"
    read = [f"column-fits/{step}" for step in _STEPS]
    steps = [ask for label in read[:4] for ask in _on(label, "full-attention")]
    drafts = _on("column-fits/draft-step", "full-attention")
    yield Mutant(
        at, less, "return cdiv(", "return -1 + cdiv(",
        (
            *_ALL_LISTS, *_on("row-fits", "full-attention", "uniform-full-attention", runners="V1"),
            *_on("column-fits", *_BY_POSITION, "cross-attention"),
            *_on("column-fits/gather", "full-attention"), *drafts, *steps,
            *_on("append-in-step/decode", "full-attention"),
        ),
    )  # fmt: skip
    down = "length // (self.block_size * shards(deployment, self.dcp_sharded))"
    rounded = "cdiv(length, self.block_size * shards(deployment, self.dcp_sharded))"
    yield Mutant(at, "rounded down", rounded, down, _on("row-fits", "full-attention", "sliding-window"))
    then = "length // self.block_size // shards(deployment, self.dcp_sharded) + 1 - 1"
    yield Mutant(at, "rounded down twice", rounded, then, _on("row-fits", "full-attention"))
    always = "deployment.decode_context_parallel_size"
    yield Mutant(
        at, "sharded whatever the group says", "shards(deployment, self.dcp_sharded)", always,
        (*_on("row-fits", "full-attention"), *_on("column-fits", "full-attention")),
    )  # fmt: skip
    for name, kind, old in (
        ("EncoderOnlyAttentionSpec", "encoder-only", "return 0"),
        ("CircularBufferSpec", "circular-buffer", "return 1"),
        ("HiSparseHotSpec", "hisparse-hot", "return "),
        ("HiSparseResidentSpec", "hisparse-resident", "return cdiv("),
        ("MambaNoneSpec", "mamba-none", "return 1"),
        ("MambaAlignSpec", "mamba-align", "return cdiv("),
        ("MambaAllSpec", "mamba-all", "return cdiv("),
    ):
        value = old.removeprefix("return ")
        new, asks = f"return -1 + {value}", _on("row-fits", kind)
        if kind != "encoder-only":
            asks += (*_on("column-fits", kind), *_on("column-fits/gather", kind))
        if kind in ("mamba-align", "hisparse-resident"):
            asks += tuple(ask for label in read for ask in _on(label, kind))
        place = f"specs.{name}.{made}"
        yield Mutant(place, less, old, new, asks)
    at = f"specs.MambaAlignSpec.{made}"
    align = (*_on("row-fits", "mamba-align", "uniform-mamba-align"), *_on("column-fits", "mamba-align"))
    sharded = "self.block_size * deployment.decode_context_parallel_size"
    states = " + self.num_speculative_blocks"
    yield Mutant(at, "sharded by dcp", "self.block_size", sharded, align)
    yield Mutant(at, "draft states lost", states, "", align)
    yield Mutant(
        at, "draft states taken away", states, " - self.num_speculative_blocks",
        (*align, *_on("append-in-step/start", "mamba-align")),
    )  # fmt: skip
    both, larger = "cdiv(length, self.block_size)", "where({0} < self.num_speculative_blocks, {1}, {0})"
    inside = larger.format(both, "self.num_speculative_blocks")
    yield Mutant(at, "draft states inside a maximum", both + states, inside, align)
    yield Mutant(
        f"specs.MambaAllSpec.{made}",
        "sharded by dcp",
        "self.block_size",
        sharded,
        _on("row-fits", "mamba-all"),
    )
    at = f"specs.MambaNoneSpec.{made}"
    yield Mutant(at, "draft states lost", states, "", _on("row-fits", "mamba-none", "uniform-mamba-none"))
    at = f"specs.UniformTypeSpec.{made}"
    base = "cdiv(length, self.tokens_per_block)"
    inner = "self.inner.max_num_blocks_per_req(deployment, length)"
    wrapped = (*_on("row-fits", "uniform-mamba-align"), *_on("consumers-agree/layers", "uniform-mamba-align"))
    yield Mutant(at, "the base formula", inner, base, wrapped)
    layers = _on("consumers-agree/layers", "uniform-full-attention", runners=_BOTH)
    at = "specs.UniformTypeSpec.aligned_on"
    yield Mutant(at, "never padded", "return self.inner.aligned_on", "return ()", layers)
    at = "specs.UniformTypeSpec.expansion"
    split = (*_on("column-fits", "uniform-full-attention"), *layers)
    yield Mutant(at, "blocks not split", "return self.inner.expansion", "return 1", split)
    at = "specs.UniformTypeSpec.tokens_per_block"
    yield Mutant(at, "a token per block", "return self.inner.tokens_per_block", "return 1", layers)


def _columns() -> Iterator[Mutant]:
    """What kernels compute from a position or a state."""
    further, back = "one column further", "one column back"
    at = "specs.AttentionSpec.column"
    old = "return where("
    steps = [ask for step in _STEPS for ask in _on(f"column-fits/{step}", "full-attention")]
    yield Mutant(
        at, further, old, "return 1 + where(",
        (
            *_on("column-fits", *_BY_POSITION), *_on("column-fits/held", "full-attention"),
            *_on("column-fits/draft-step", "full-attention"), *steps,
        ),
    )  # fmt: skip
    yield Mutant(
        at, back, old, "return -1 + where(",
        (*_on("column-fits", *_BY_POSITION), *_on("column-fits/held", "full-attention"), *steps),
    )  # fmt: skip
    full = _on("column-fits", "full-attention")
    yield Mutant(
        at,
        "the whole position's block",
        "self.block_size + offset)",
        "self.block_size + access.position)",
        full,
    )
    v1 = _on("column-fits", *_BY_POSITION, runners="V1")
    at = "specs.AttentionSpec.column_on_v1"
    yield Mutant(at, further, "return block", "return 1 + block", v1)
    yield Mutant(at, back, "return block", "return -1 + block", v1)
    yield Mutant(
        at,
        "the position's kernel block",
        "offset //",
        "access.position //",
        _on("column-fits", "mla", runners="V1"),
    )
    for name, kind, old in (
        ("CrossAttentionSpec", "cross-attention", "return access.position"),
        ("CircularBufferSpec", "circular-buffer", "return 0"),
        ("HiSparseHotSpec", "hisparse-hot", "return access.state"),
        ("HiSparseResidentSpec", "hisparse-resident", "return access.position"),
        ("MambaNoneSpec", "mamba-none", "return access.state"),
        ("_PositionedMambaSpec", "mamba-align", "return access.position"),
    ):
        at, value = f"specs.{name}.column", old.removeprefix("return ")
        also = {"mamba-align": ("mamba-all", "uniform-mamba-align"), "circular-buffer": ("kpool-tail",)}
        kinds = (kind, *also.get(kind, ()))
        yield Mutant(
            at,
            further,
            old,
            f"return 1 + {value}",
            (*_on("column-fits", *kinds), *_on("column-fits/held", kind)),
        )
        yield Mutant(at, back, old, f"return -1 + {value}", _on("column-fits", *kinds))
    at = "specs._PositionedMambaSpec.column"
    by_length = "(access.position + 1) // self.block_size"
    yield Mutant(
        at, "the sequence length's block", "access.position // self.block_size", by_length,
        _on("column-fits", "mamba-align", "mamba-all"),
    )  # fmt: skip
    at = "specs.AttentionSpec.place_on_rank"
    yield Mutant(at, "not sharded", "position // virtual_size,", "position // self.block_size,", full)
    whole = "self.block_size + modulo("
    spilled = _on("column-fits", "full-attention", "mla")
    yield Mutant(at, "an offset outside its block", "run * interleave + modulo(", whole, spilled)
    yield Mutant(at, "one block further", "return position", "return 1 + position", _on("column-fits", "mla"))


def _reads() -> Iterator[Mutant]:
    """Which positions and states a kernel reads."""
    full = _on("column-fits", "full-attention")
    at = "specs.AttentionSpec.readable"
    slots = "access.position < request.slot_tokens(deployment)"
    upto = "access.position <= request.slot_tokens(deployment)"
    beyond = (*_on("column-fits/held", "full-attention"), *full)
    yield Mutant(at, "one position too far", slots, upto, beyond)
    at = "specs.HiSparseResidentSpec.readable"
    resident = _on("column-fits", "hisparse-resident")
    yield Mutant(at, "one position too far", slots, upto, resident)
    at = "specs.CrossAttentionSpec.readable"
    cross = _on("column-fits/held", "cross-attention", runners=_BOTH)
    yield Mutant(at, "decoder positions", "request.num_encoder_tokens", "request.num_tokens", cross)
    at = "specs.HiSparseHotSpec.readable"
    hot = _on("column-fits", "hisparse-hot")
    yield Mutant(at, "one block too far", "access.state <", "access.state <=", hot)
    at = "specs.MambaNoneSpec.readable"
    far = "access.state <= 1 + self.num"
    yield Mutant(at, "one state too far", "access.state <= self.num", far, _on("column-fits", "mamba-none"))
    at = "specs._PositionedMambaSpec.readable"
    align = _on("column-fits", "mamba-align", "mamba-all")
    yield Mutant(at, "one state too far", "access.state <= self.num", far, align)
    tokens = "access.position < request.num_tokens"
    later = tokens + " + deployment.num_lookahead_tokens"
    yield Mutant(at, "positions of the lookahead", tokens, later, align)


def _both_sides() -> Iterator[Mutant]:
    """What several formulas rest on."""
    at = "deployment.Request.slot_tokens"
    clip, unclipped = "deployment.max_model_len)", "self.num_tokens + deployment.num_lookahead_tokens)"
    kinds = ("full-attention", "mamba-all", "hisparse-resident")
    asks = (*_on("row-fits", *kinds), *_on("column-fits", *kinds[::2]), *_on("append-in-step/decode", *kinds))
    yield Mutant(at, "lookahead not clipped", clip, unclipped, asks)
    yield Mutant(at, "clipped a token late", clip, "deployment.max_model_len + 1)", asks)
    at, cross = "deployment.Deployment.row_length", "cross-attention"
    asks = (*_on("row-fits", cross, runners=_BOTH), *_on("column-fits", cross, runners=_BOTH))
    yield Mutant(at, "the encoder ignored", "maximum(self.max_model_len", "minimum(self.max_model_len", asks)
    asks = _on("row-fits", cross, "full-attention")
    yield Mutant(at, "the smaller of two", "maximum(length", "minimum(length", asks)
    at = "deployment.shards"
    sharded = "where(dcp_sharded, deployment.decode_context_parallel_size, 1)"
    asks = _on("column-fits", "full-attention", "sliding-window")
    yield Mutant(at, "every group is sharded", sharded, "deployment.decode_context_parallel_size", asks)
    at = "releases._width_today"
    asks = _on("row-fits", cross, runners=_BOTH)
    yield Mutant(
        at, "rows for max_model_len", "deployment.row_length(runner)", "deployment.max_model_len", asks
    )
    full = _on("row-fits", "full-attention", runners=_BOTH)
    at = "releases._padded"
    multiple = "alignment // common_divisor(alignment, spec.tokens_per_block)"
    padded, down = f"round_up(width, {multiple})", f"width // ({multiple}) * ({multiple})"
    yield Mutant(at, "rounded down", padded, down, full)
    yield Mutant(at, "one block less", "return round_up(", "return -1 + round_up(", full)
    at = "releases.row_width"
    yield Mutant(at, "kernel blocks forgotten", " * held.expansion", "", full)
    at = "releases.entries"
    whole = " * row_spec(spec, release=release).expansion"
    held = _on("column-fits/held", "full-attention", runners=_BOTH)
    yield Mutant(at, "kernel blocks forgotten", whole, "", held)
    at = "releases._longest_today"
    longest = "deployment.max_model_len - deployment.num_sampled_tokens"
    steps = _on("append-in-step/prefill-chunk", "mamba-align", "full-attention")
    yield Mutant(at, "no room for the sampled token", longest, "deployment.max_model_len", steps)
    late = (*_on("row-fits", "mamba-align"), *_on("column-fits", "mamba-all"))
    yield Mutant(at, "one token too long", longest, "deployment.max_model_len + 1", late)


FORMULA_MUTANTS: tuple[Mutant, ...] = (*_lists(), *_rows(), *_columns(), *_reads(), *_both_sides())
"""Mutants of `specs`, `deployment` and `releases`."""
