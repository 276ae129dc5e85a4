"""The scheduler's own count of blocks or tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from invariants import TODAY, Case, FullAttentionSpec, MambaAlignSpec, entries
from invariants.arithmetic import all_of, cdiv, where
from invariants.parameters import size
from proofs.faults.model import Claim, Fault, Kind, Report, at_most, below, engine, equal, sizes_of

__all__ = ["FAULTS"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """A request that grows, and for which blocks are allocated again."""

    block_size: int = size("tokens per block", minimum=1, usual=16)
    num_computed_tokens: int = size("tokens that the request holds blocks for")
    num_tokens: int = size("tokens that it needs blocks for", minimum=1)


def _held_is_needed(sizes: _Growth, taken: int) -> Claim:
    held = cdiv(sizes.num_computed_tokens, sizes.block_size)
    return equal(held=held + taken, needed=cdiv(sizes.num_tokens, sizes.block_size), taken=taken)


def _by_delta(sizes: _Growth) -> int:
    return cdiv(sizes.num_tokens, sizes.block_size) - cdiv(sizes.num_computed_tokens, sizes.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    """A request with encoder tokens, served under an encoder budget."""

    encoder_budget: int = size("most encoder tokens of a step", minimum=1)
    num_encoder_tokens: int = size("encoder tokens of the request", minimum=1)
    block_size: int = size("tokens per block", minimum=1, usual=16)


def _cross_blocks(sizes: _Encoded, tokens: int) -> Claim:
    """Claim that the blocks handed over fit a row made for the request's own encoder tokens."""
    return at_most(
        entries=cdiv(tokens, sizes.block_size),
        row_width=cdiv(sizes.num_encoder_tokens, sizes.block_size),
        tokens=tokens,
    )


def _state_plan(case: Case, planned: int) -> Claim:
    """Claim that a connector plans as many state blocks as the scheduler hands over."""
    return equal(
        planned=planned,
        state_blocks=entries(case.deployment, case.spec, case.request),
        attention_blocks=_attention_blocks(case),
    )


def _attention_blocks(case: Case) -> int:
    spec = case.spec
    if not isinstance(spec, MambaAlignSpec):
        raise TypeError("the domain is of aligned recurrent groups")
    return FullAttentionSpec(block_size=spec.block_size).entries(case.deployment, case.request)


def _warm_up(case: Case, lookahead: int) -> Claim:
    """Claim that warm-up reserves what the scheduler would allocate."""
    reserved = replace(case.deployment, num_lookahead_tokens=lookahead)
    return equal(
        reserved=entries(reserved, case.spec, case.request),
        allocated=entries(case.deployment, case.spec, case.request),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressed:
    """A compressed group whose admission is predicted from the prompt."""

    compress_ratio: int = size("tokens per compressed entry", minimum=1, usual=4)
    block_size: int = size("tokens per block", minimum=1, usual=128)
    num_tokens: int = size("tokens of the prompt", minimum=1)


def _predicted(sizes: _Compressed, tokens_per_block: int) -> Claim:
    return equal(
        predicted=cdiv(sizes.num_tokens, tokens_per_block),
        pulled=cdiv(sizes.num_tokens, sizes.block_size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TwoPools:
    """A request that needs blocks of one pool and states of another."""

    free_blocks: int = size("free blocks")
    free_states: int = size("free states")
    blocks: int = size("blocks that the request needs", minimum=1)
    states: int = size("states that the request needs", minimum=1)


def _states_found(sizes: _TwoPools, admitted: bool) -> Claim:
    return at_most(states_taken=where(admitted, sizes.states, 0), free_states=sizes.free_states)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharded:
    """A position under prefill and decode context parallelism."""

    block_size: int = size("tokens per block and rank", minimum=1, usual=16)
    decode_ranks: int = size("ranks of decode context parallelism", minimum=1, usual=1)
    prefill_ranks: int = size("ranks of prefill context parallelism", minimum=1)
    num_tokens: int = size("tokens of the request", minimum=1)
    position: int = size("token position, from 0")


def _sharded_column(sizes: _Sharded, ranks: int) -> Claim:
    """Claim that the worker's column is one that the scheduler's list has."""
    everyone = sizes.block_size * (sizes.decode_ranks * sizes.prefill_ranks)
    return below(
        column=sizes.position // (sizes.block_size * ranks), entries=cdiv(sizes.num_tokens, everyone)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dummies:
    """State slots when a batch is padded with dummies, one per draft length."""

    max_batch: int = size("requests that can run at a time", minimum=1)
    max_draft_len: int = size("most draft tokens per step")
    live: int = size("requests that hold a state")
    dummies: int = size("dummies that hold a state")


def _dummies_have_slots(sizes: _Dummies, slots: int) -> Claim:
    return at_most(states=sizes.live + sizes.dummies, slots=slots)


FAULTS: tuple[Fault, ...] = (
    Fault(
        thread="gittensor-ai-lab/sparkinfer#135",
        also=(
            "gittensor-ai-lab/sparkinfer#387",
            "gittensor-ai-lab/sparkinfer#413",
            "gittensor-ai-lab/sparkinfer#196",
        ),
        kind=Kind.ACCOUNTING,
        title="allocating again takes the whole length anew instead of what is missing",
        seen="growing from 100 to 200 tokens takes 13 blocks instead of 6",
        domain=sizes_of(_Growth),
        assumes=lambda sizes: sizes.num_computed_tokens <= sizes.num_tokens,
        faulty=lambda sizes: _held_is_needed(sizes, cdiv(sizes.num_tokens, sizes.block_size)),
        repaired=lambda sizes: _held_is_needed(sizes, _by_delta(sizes)),
        reports=(
            Report(
                sizes={"num_computed_tokens": 100, "num_tokens": 200},
                faulty={"taken": 13, "held": 20, "needed": 13},
                repaired={"taken": 6, "held": 13},
            ),
        ),
    ),
    Fault(
        thread="vllm#30772",
        kind=Kind.ACCOUNTING,
        title="cross-attention blocks are allocated for the encoder budget, not for the request",
        seen="over-allocation: 8,192 tokens' worth instead of 1,500",
        domain=sizes_of(_Encoded),
        assumes=lambda sizes: sizes.num_encoder_tokens <= sizes.encoder_budget,
        faulty=lambda sizes: _cross_blocks(sizes, sizes.encoder_budget),
        repaired=lambda sizes: _cross_blocks(sizes, sizes.num_encoder_tokens),
        reports=(
            Report(
                sizes={"encoder_budget": 8_192, "num_encoder_tokens": 1_500},
                faulty={"tokens": 8_192, "entries": 512, "row width": 94},
                repaired={"tokens": 1_500, "entries": 94},
            ),
        ),
    ),
    Fault(
        thread="vllm#49962",
        kind=Kind.ACCOUNTING,
        title="a connector plans state blocks with the attention group's divided block count",
        seen="a wrong plan of what to store and load",
        domain=engine("mamba-align", TODAY),
        assumes=lambda case: all_of(
            case.spec.num_speculative_blocks == 0, case.deployment.num_lookahead_tokens == 0
        ),
        faulty=lambda case: _state_plan(case, _attention_blocks(case)),
        repaired=lambda case: _state_plan(case, entries(case.deployment, case.spec, case.request)),
        reports=(
            Report(
                sizes={"max_model_len": 128, "decode_context_parallel_size": 2, "num_tokens": 64},
                faulty={"planned": 2, "state blocks": 4, "attention blocks": 2},
                repaired={"planned": 4},
            ),
        ),
    ),
    Fault(
        thread="vllm#50531",
        also=("vllm#51438",),
        kind=Kind.ACCOUNTING,
        title="warm-up reserves blocks without the slots for drafts",
        seen="warm-up reads the null block and never exercises the real layout",
        domain=engine("full-attention", TODAY),
        faulty=lambda case: _warm_up(case, 0),
        repaired=lambda case: _warm_up(case, case.deployment.num_lookahead_tokens),
        reports=(
            Report(
                sizes={"max_model_len": 512, "num_tokens": 16, "num_lookahead_tokens": 1},
                faulty={"reserved": 1, "allocated": 2},
                repaired={"reserved": 2},
                first="num_lookahead_tokens",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm-ascend#15984",
        kind=Kind.ACCOUNTING,
        title="the compression ratio is taken for the block size when blocks are predicted",
        seen="a ceiling of about 155K tokens, then the engine hangs",
        domain=sizes_of(_Compressed),
        faulty=lambda sizes: _predicted(sizes, sizes.compress_ratio),
        repaired=lambda sizes: _predicted(sizes, sizes.block_size),
        reports=(
            Report(
                sizes={"num_tokens": 155_000},
                faulty={"predicted": 38_750, "pulled": 1_211},
                repaired={"predicted": 1_211},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="NVIDIA/TensorRT-LLM#13274",
        kind=Kind.ACCOUNTING,
        title="a request is admitted by its cache blocks alone, though it needs a state as well",
        seen="the scheduler does not know how many states are free; worked around",
        domain=sizes_of(_TwoPools),
        faulty=lambda sizes: _states_found(sizes, sizes.blocks <= sizes.free_blocks),
        repaired=lambda sizes: _states_found(
            sizes, all_of(sizes.blocks <= sizes.free_blocks, sizes.states <= sizes.free_states)
        ),
        reports=(
            Report(
                sizes={"free_blocks": 100, "free_states": 0, "blocks": 4, "states": 1},
                faulty={"states taken": 1, "free states": 0},
                repaired={"states taken": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#29094",
        kind=Kind.ACCOUNTING,
        title="the block size that a group's table is given lacks the factor of prefill context parallelism",
        seen="found by reading",
        domain=sizes_of(_Sharded),
        assumes=lambda sizes: sizes.position < sizes.num_tokens,
        faulty=lambda sizes: _sharded_column(sizes, sizes.decode_ranks),
        repaired=lambda sizes: _sharded_column(sizes, sizes.decode_ranks * sizes.prefill_ranks),
        reports=(
            Report(
                sizes={"prefill_ranks": 2, "num_tokens": 17, "position": 16},
                faulty={"column": 1, "entries": 1},
                repaired={"column": 0},
                first="position",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="NVIDIA/TensorRT-LLM#13151",
        also=("NVIDIA/TensorRT-LLM#13278",),
        kind=Kind.ACCOUNTING,
        title="the dummies of a padded batch have no state slots of their own, one per draft length",
        seen="run out of state blocks; padding aliases the states of live requests",
        domain=sizes_of(_Dummies),
        assumes=lambda sizes: all_of(sizes.live <= sizes.max_batch, sizes.dummies <= sizes.max_draft_len + 1),
        faulty=lambda sizes: _dummies_have_slots(sizes, sizes.max_batch),
        repaired=lambda sizes: _dummies_have_slots(sizes, sizes.max_batch + sizes.max_draft_len + 1),
        reports=(
            Report(
                sizes={"max_batch": 8, "max_draft_len": 3, "live": 8, "dummies": 4},
                faulty={"states": 12, "slots": 8},
                repaired={"slots": 12},
                by_hand=True,
            ),
        ),
    ),
)
