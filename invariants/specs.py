"""The cache spec types: for each, the scheduler's entries, the worker's row and the columns read.

The formulas are those of vLLM 0.29 to 0.33; what earlier releases do differently is in `releases`.
Three pages of vLLM 0.33 are cited over and over: *interface* is `v1/kv_cache_interface.py`,
*manager* is `v1/core/single_type_kv_cache_manager.py`, *table* is `v1/worker/gpu/block_table.py`.

Every method is plain arithmetic over `invariants.arithmetic`, so that it runs on symbolic sizes too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from invariants.arithmetic import all_of, cdiv, modulo, where
from invariants.deployment import Access, Deployment, Request, Runner, shards
from invariants.parameters import size, switch

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CircularBufferSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HiSparseHotSpec",
    "HiSparseResidentSpec",
    "HiddenStateCacheSpec",
    "KpoolTailSpec",
    "MLAAttentionSpec",
    "MambaAlignSpec",
    "MambaAllSpec",
    "MambaNoneSpec",
    "MambaSpec",
    "RSWASpec",
    "SinkFullAttentionSpec",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "Spec",
    "UniformTypeSpec",
]

_BOTH_RUNNERS = (Runner.V1, Runner.V2)


class Spec(ABC):
    """What one cache group stores.

    Subclasses are frozen dataclasses whose fields are declared with `size` and `switch`.
    """

    __slots__ = ()

    kind: ClassVar[str]
    """The name in messages and in `--spec`; `kind_of` gives a wrapper's, which names its layers too."""
    runners: ClassVar[tuple[Runner, ...]] = _BOTH_RUNNERS
    """The runners that serve this type."""
    column_runners: ClassVar[tuple[Runner, ...]] = _BOTH_RUNNERS
    """The runners whose column reads are modelled; `unread` says why others are not."""
    unread: ClassVar[str] = ""

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """Runners that pad this type's row to `block_table_token_alignment` tokens.

        Source: interface:278 (128 unless overridden; V2); V1 pads all but Mamba groups,
        `v1/worker/block_table.py`:236-245.
        """
        return _BOTH_RUNNERS

    @property
    def expansion(self) -> int:
        """How many entries a row spends on one manager block: its kernel blocks (1 unless split)."""
        return 1

    @property
    @abstractmethod
    def tokens_per_block(self) -> int:
        """The block size that the row's padding is computed with, in tokens."""

    @abstractmethod
    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return how many manager blocks the scheduler's list holds for a request."""

    @abstractmethod
    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return how many manager blocks the worker makes room for, before padding, for `length` tokens."""

    @abstractmethod
    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether a kernel makes this access for this request."""

    @abstractmethod
    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the column that the access addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(Spec, ABC):
    """A group whose rows are indexed by token position: keys and values of attention layers."""

    block_size: int = size("tokens per manager block", minimum=1, usual=16)
    blocks_per_kv_block: int = size(
        "kernel blocks that one manager block is split into", minimum=1, usual=1, default=1
    )
    dcp_sharded: bool = switch("whether dcp spreads this group's tokens over the ranks", default=True)

    @property
    def expansion(self) -> int:
        """Kernel blocks per manager block. Source: vLLM 0.31 `v1/worker/gpu/block_table.py`:60."""
        return self.blocks_per_kv_block

    @property
    def tokens_per_block(self) -> int:
        """The manager block size."""
        return self.block_size

    @property
    def kernel_block_size(self) -> int:
        """Tokens per kernel block."""
        return self.block_size // self.blocks_per_kv_block

    def tokens_with_slots(self, deployment: Deployment, request: Request) -> int:
        """Return for how many tokens of a request the group has slots. Source: manager:401."""
        return request.slot_tokens(deployment)

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return one entry per started block of the tokens that get slots. Source: manager:401."""
        return cdiv(
            self.tokens_with_slots(deployment, request),
            self.block_size * shards(deployment, self.dcp_sharded),
        )

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return the blocks of the whole length, spread over the ranks. Source: interface:610."""
        return cdiv(length, self.block_size * shards(deployment, self.dcp_sharded))

    def first_readable(self, request: Request) -> int:
        """Return the first position that this step's queries can attend to."""
        return 0

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the position has a slot and this step's queries can reach it."""
        return all_of(
            self.first_readable(request) <= access.position,
            access.position < request.slot_tokens(deployment),
        )

    def place_on_rank(self, deployment: Deployment, position: int) -> tuple[int, int]:
        """Return the manager block, and the offset inside it, that hold a position on its own rank.

        dcp hands out the positions of one virtual block (a manager block on every rank) in runs of
        `cp_kv_cache_interleave_size`. Source: table:386-399; vLLM 0.31
        `v1/worker/gpu/block_table.py`:341-348.
        """
        ranks = deployment.decode_context_parallel_size
        interleave = deployment.interleave()
        virtual_size = self.block_size * ranks
        in_virtual = modulo(position, virtual_size)
        run = in_virtual // (interleave * ranks)
        return position // virtual_size, run * interleave + modulo(in_virtual, interleave)

    def owner(self, deployment: Deployment, position: int) -> int:
        """Return the rank that stores a position. Source: table:391-395."""
        ranks, interleave = deployment.decode_context_parallel_size, deployment.interleave()
        return modulo(modulo(position, self.block_size * ranks) // interleave, ranks)

    def position_at(self, deployment: Deployment, rank: int, block: int, offset: int) -> int:
        """Return the position that a rank stores at an offset of a block: the way back of the two above."""
        ranks, interleave = deployment.decode_context_parallel_size, deployment.interleave()
        run, within = offset // interleave, modulo(offset, interleave)
        return block * (self.block_size * ranks) + run * (interleave * ranks) + rank * interleave + within

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the kernel block of the position's place on its own rank.

        Source: table:380-402; with split blocks vLLM 0.31 `v1/worker/gpu/block_table.py`:335-355.
        """
        tokens = self.kernel_block_size
        block, offset = self.place_on_rank(deployment, access.position)
        sharded = all_of(self.dcp_sharded, deployment.decode_context_parallel_size > 1)
        return where(sharded, (block * self.block_size + offset) // tokens, access.position // tokens)

    def column_on_v1(self, deployment: Deployment, access: Access) -> int:
        """Return V1's column: the manager block's first one, and the kernel block inside it.

        V1 shards every group, whatever its `dcp_sharded` says. Source: vLLM 0.28
        `v1/worker/block_table.py`:413-433; 0.33 :351-372, where blocks are not split.
        """
        block, offset = self.place_on_rank(deployment, access.position)
        return block * self.blocks_per_kv_block + offset // self.kernel_block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Full attention: every position stays readable."""

    kind: ClassVar[str] = "full-attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    """Multi-head latent attention; rows as full attention's. Source: interface:729."""

    kind: ClassVar[str] = "mla"


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStateCacheSpec(MLAAttentionSpec):
    """Hidden states kept for extraction; rows as MLA's. Source: interface:809."""

    kind: ClassVar[str] = "hidden-state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RSWASpec(FullAttentionSpec):
    """Reference sliding window: the prompt and the last generated tokens stay readable.

    Blocks of the gap between them are nulled in place, so the list is as long as full attention's.
    The row does not depend on the window. Source: interface:816, manager:900-945.
    """

    kind: ClassVar[str] = "rswa"
    rswa_window: int = size("generated tokens that stay readable", minimum=1, usual=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """Full attention with sink tokens; rows as full attention's. Source: interface:1232.

    No release from 0.25 to 0.33 can construct its manager, so this is the formula, not a served model.
    """

    kind: ClassVar[str] = "sink-full-attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Sliding window attention: blocks that left the window become null entries, the list stays long.

    Source: interface:901, manager:946-1183.
    """

    kind: ClassVar[str] = "sliding-window"
    sliding_window: int = size("tokens that a query attends to, itself included", minimum=1, usual=128)

    def first_readable(self, request: Request) -> int:
        """Return the window's start for the step's first query."""
        return request.num_computed_tokens - self.sliding_window + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    """Sliding window over latent attention; rows as sliding window's. Source: interface:1008."""

    kind: ClassVar[str] = "sliding-window-mla"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """Chunked local attention: a query attends within its own chunk; leading entries become null.

    Source: interface:861, manager:1276-1425.
    """

    kind: ClassVar[str] = "chunked-local"
    attention_chunk_size: int = size("tokens per attention chunk", minimum=1, usual=128)

    def first_readable(self, request: Request) -> int:
        """Return the start of the chunk that the step's first query lies in."""
        return request.num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Cross attention: rows hold the encoder's tokens, allocated once. Source: interface:1221."""

    kind: ClassVar[str] = "cross-attention"

    def tokens_with_slots(self, deployment: Deployment, request: Request) -> int:
        """Return the encoder's tokens, which are allocated once. Source: manager:2138."""
        return request.num_encoder_tokens

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the position is one of the request's encoder tokens."""
        return access.position < request.num_encoder_tokens

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the encoder position's block; dcp does not enter, on either runner.

        Source: vLLM 0.33 `model_executor/layers/attention/cross_attention.py`:57-61.
        """
        return access.position // self.kernel_block_size

    def column_on_v1(self, deployment: Deployment, access: Access) -> int:
        """Return the same column: the mapping is the layer's own, not the runner's."""
        return self.column(deployment, access)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Encoder-only attention: nothing is cached, so there is neither list nor row.

    Source: interface:1214 (no memory); V1 skips such groups, `v1/worker/gpu_model_runner.py`:6854.
    """

    kind: ClassVar[str] = "encoder-only"
    column_runners: ClassVar[tuple[Runner, ...]] = ()
    unread: ClassVar[str] = "there is no row to read"

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """No row, no padding."""
        return ()

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return 0: the scheduler hands over no list."""
        return 0

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return 0: the worker makes no row."""
        return 0

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return False: no kernel reads a row."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CircularBufferSpec(Spec):
    """A ring of one block per request; its slots are computed inside the block. Source: interface:968.

    V2 leaves such a group out of the position-indexed slot mapping (interface:1003); V1 as it ships does not.
    """

    kind: ClassVar[str] = "circular-buffer"
    block_size: int = size("tokens in the ring", minimum=1, usual=16)

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """V1 alone pads the row. Source: interface:979, `v1/worker/block_table.py`:236-245."""
        return (Runner.V1,)

    @property
    def tokens_per_block(self) -> int:
        """The ring's capacity."""
        return self.block_size

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return 1: the ring is claimed once. Source: manager:1191-1199."""
        return 1

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return 1. Source: interface:987."""
        return 1

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the position has had a slot in the ring."""
        return access.position < request.slot_tokens(deployment)

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return 0, the ring's block. Source: table:402 (mapping disabled: column 0)."""
        return 0

    def column_by_position(self, access: Access) -> int:
        """Return the column as V1's slot mapping has it. Source: `v1/worker/block_table.py`:351-376."""
        return access.position // self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class KpoolTailSpec(CircularBufferSpec):
    """The raw tail of a pooled indexer: a ring of one block, whose row is padded. vLLM 0.30 and 0.31.

    Source: vLLM 0.31 `v1/kv_cache_interface.py`:1016-1038; the alignment of :213 is not overridden.
    """

    kind: ClassVar[str] = "kpool-tail"

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """Both runners pad the row."""
        return _BOTH_RUNNERS

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the position is one of this step's tokens or of those before."""
        return access.position < request.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HiSparseHotSpec(Spec):
    """HiSparse's hot region: a fixed number of blocks once a request reads host history.

    Model Runner V2 only. Source: interface:486, manager:2387-2465.
    """

    kind: ClassVar[str] = "hisparse-hot"
    runners: ClassVar[tuple[Runner, ...]] = (Runner.V2,)
    column_runners: ClassVar[tuple[Runner, ...]] = (Runner.V2,)
    blocks_per_request: int = size("blocks of the hot region", minimum=1)

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """The row is not padded. Source: interface:501."""
        return ()

    @property
    def tokens_per_block(self) -> int:
        """Not used: the row is not padded."""
        return 1

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return the whole region or nothing. Source: manager:2452-2465."""
        return where(request.reads_host_history, self.blocks_per_request, 0)

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return the region. Source: interface:507."""
        return self.blocks_per_request

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the selected block is one that the request holds."""
        return access.state < self.entries(deployment, request)

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the selected block's place in the region."""
        return access.state


@dataclass(frozen=True, slots=True, kw_only=True)
class HiSparseResidentSpec(Spec):
    """HiSparse's pages resident on the GPU, indexed by position and never sharded by dcp.

    Model Runner V2 only. Source: interface:520, manager:2472-2550.
    """

    kind: ClassVar[str] = "hisparse-resident"
    runners: ClassVar[tuple[Runner, ...]] = (Runner.V2,)
    column_runners: ClassVar[tuple[Runner, ...]] = (Runner.V2,)
    block_size: int = size("tokens per page", minimum=1, usual=16)

    @property
    def tokens_per_block(self) -> int:
        """The page size in tokens."""
        return self.block_size

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return one entry per started page of the tokens that get slots. Source: manager:2548."""
        return cdiv(request.slot_tokens(deployment), self.block_size)

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return the pages of the whole length. Source: interface:290 (the base formula)."""
        return cdiv(length, self.block_size)

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the position has a slot."""
        return access.position < request.slot_tokens(deployment)

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the position's page. Source: table:399-402 (a group that is not sharded)."""
        return access.position // self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec(Spec, ABC):
    """Recurrent state, replicated on every dcp rank. Source: interface:1094."""

    num_speculative_blocks: int = size(
        "extra state blocks per request, one per draft token where the model keeps a state for each",
        usual=0,
        default=0,
    )

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """The row is not padded. Source: interface:1132, `v1/worker/block_table.py`:238."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaNoneSpec(MambaSpec):
    """Recurrent state without prefix caching: the running state and k drafts, nothing by position."""

    kind: ClassVar[str] = "mamba-none"
    mamba_block_size: int = size(
        "tokens per state block: max_model_len at start-up when prefix caching is off", minimum=1
    )

    @property
    def tokens_per_block(self) -> int:
        """The state's block size. Source: `model_executor/models/config.py`:786-787."""
        return self.mamba_block_size

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return the blocks of the tokens and k more. Source: manager:1801-1808."""
        return cdiv(
            request.slot_tokens(deployment) + self.mamba_block_size * self.num_speculative_blocks,
            self.mamba_block_size,
        )

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return 1 + k. Source: interface:1136-1154 (memory of 1 + k pages over the page size)."""
        return 1 + self.num_speculative_blocks

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the state is the running one or one of the k drafts."""
        return access.state <= self.num_speculative_blocks

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the state's own number."""
        return access.state


@dataclass(frozen=True, slots=True, kw_only=True)
class _PositionedMambaSpec(MambaSpec, ABC):
    """Recurrent state saved per block of tokens: rows are indexed by position, then by state."""

    block_size: int = size("tokens between two saved states", minimum=1, usual=16)

    @property
    def tokens_per_block(self) -> int:
        """Tokens between two saved states."""
        return self.block_size

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether position + 1 is a sequence length up to this step's and the state exists."""
        return all_of(
            access.position < request.num_tokens,
            access.state <= self.num_speculative_blocks,
        )

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return (sequence length - 1) // block_size + state.

        Source: vLLM 0.33 `v1/attention/backends/utils.py`:1283-1357, `v1/worker/mamba_utils.py`:39.
        """
        return access.position // self.block_size + access.state


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaAlignSpec(_PositionedMambaSpec):
    """Recurrent state with prefix caching at block boundaries; only the last blocks are resident."""

    kind: ClassVar[str] = "mamba-align"

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return the blocks of the scheduled tokens and k more; lookahead does not count.

        Source: manager:1815-1821.
        """
        return cdiv(request.num_tokens, self.block_size) + self.num_speculative_blocks

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return the blocks of the whole length and k more. Source: interface:1146-1152."""
        return cdiv(length, self.block_size) + self.num_speculative_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaAllSpec(_PositionedMambaSpec):
    """Recurrent state with every block's state kept. The mode exists up to vLLM 0.31."""

    kind: ClassVar[str] = "mamba-all"

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return the blocks of the tokens that get slots and k more.

        Source: vLLM 0.31 `v1/core/single_type_kv_cache_manager.py`:1822-1829.
        """
        return cdiv(
            request.slot_tokens(deployment) + self.block_size * self.num_speculative_blocks,
            self.block_size,
        )

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return the blocks of max_model_len (not of `length`) and k more.

        Source: vLLM 0.31 `v1/kv_cache_interface.py`:1083-1108.
        """
        return cdiv(deployment.max_model_len, self.block_size) + self.num_speculative_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformTypeSpec(Spec):
    """The wrapper around layers of one type whose memory layouts differ.

    The scheduler manages the group by its first layer, `inner`; the worker asks the wrapper.
    Source: interface:1291, `v1/core/kv_cache_utils.py`:1096-1117.
    """

    inner: Spec

    @property
    def aligned_on(self) -> tuple[Runner, ...]:
        """As the inner type's. Source: interface:1323."""
        return self.inner.aligned_on

    @property
    def expansion(self) -> int:
        """As the inner type's."""
        return self.inner.expansion

    @property
    def tokens_per_block(self) -> int:
        """The block size shared by all layers."""
        return self.inner.tokens_per_block

    def entries(self, deployment: Deployment, request: Request) -> int:
        """Return the inner type's entries."""
        return self.inner.entries(deployment, request)

    def max_num_blocks_per_req(self, deployment: Deployment, length: int) -> int:
        """Return the one width that all layers need. Source: interface:1333-1345."""
        return self.inner.max_num_blocks_per_req(deployment, length)

    def readable(self, deployment: Deployment, request: Request, access: Access) -> bool:
        """Return whether the inner type is read there."""
        return self.inner.readable(deployment, request, access)

    def column(self, deployment: Deployment, access: Access) -> int:
        """Return the inner type's column."""
        return self.inner.column(deployment, access)
