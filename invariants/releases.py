"""The releases whose formulas are described, and the two sides of every claim as each computes them.

A release says where its scheduler or worker differs from the formulas in `specs`, which are those of
vLLM 0.29 to 0.33. The faulty ones stay: they are what the checker must refute.

*runner* below is `v1/worker/gpu/model_runner.py` (V2), *v1* is `v1/worker/gpu_model_runner.py`,
*table* is `v1/worker/gpu/block_table.py`, *v1 table* is `v1/worker/block_table.py`, *manager* is
`v1/core/single_type_kv_cache_manager.py`, *interface* is `v1/kv_cache_interface.py`, each of the release
that is named.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from invariants.arithmetic import cdiv, common_divisor, maximum, round_up, where
from invariants.deployment import Access, Deployment, Request, Runner, shards
from invariants.specs import (
    AttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KpoolTailSpec,
    MambaAlignSpec,
    MambaAllSpec,
    MambaNoneSpec,
    MambaSpec,
    Spec,
    UniformTypeSpec,
)

__all__ = [
    "RELEASES",
    "TODAY",
    "Gap",
    "Release",
    "blocks",
    "column",
    "dealt_spec",
    "entries",
    "kernel_table_width",
    "max_num_tokens",
    "max_request",
    "release",
    "row_spec",
    "row_width",
]

_Width = Callable[[Deployment, Spec, Runner], int]


def _layer(spec: Spec) -> Spec:
    return spec.inner if isinstance(spec, UniformTypeSpec) else spec


def _padded(deployment: Deployment, spec: Spec, width: int) -> int:
    """Round a width up so that the row spans a multiple of the token alignment.

    Source: vLLM 0.33 `v1/worker/block_table.py`:29-42, `get_block_table_width`; since 0.27.
    """
    alignment = deployment.block_table_token_alignment
    return round_up(width, alignment // common_divisor(alignment, spec.tokens_per_block))


def _padded_before_027(deployment: Deployment, spec: Spec, width: int) -> int:
    """Round a width up the older way, which does nothing for blocks above the alignment.

    Source: vLLM 0.26 runner:438-440 and v1 table:275-280.
    """
    alignment = deployment.block_table_token_alignment
    return round_up(width, maximum(alignment // spec.tokens_per_block, 1))


def _width_today(deployment: Deployment, spec: Spec, runner: Runner) -> int:
    """Let the spec say how many blocks, then pad. Source: vLLM 0.33 runner:662-674, v1:6859-6862."""
    width = spec.max_num_blocks_per_req(deployment, deployment.row_length(runner))
    return _padded(deployment, spec, width) if runner in spec.aligned_on else width


def _wrapper_base_width(deployment: Deployment, spec: Spec, runner: Runner) -> int:
    """Return the base formula, which the wrapper inherits before 0.28.

    Neither dcp nor k enters. Source: vLLM 0.27 `v1/kv_cache_interface.py`:139.
    """
    return cdiv(deployment.row_length(runner), spec.tokens_per_block)


def _position_width(deployment: Deployment, spec: Spec) -> int:
    """Divide the length by block size and dcp whatever the spec is: V2 before 0.29.

    Source: vLLM 0.28 runner:515-520, 0.27 runner:455-460, 0.26 runner:430-435.
    """
    return cdiv(
        deployment.row_length(Runner.V2),
        spec.tokens_per_block * deployment.decode_context_parallel_size,
    )


def _with_states(deployment: Deployment, spec: MambaSpec, width: int) -> int:
    """Add the draft states to a Mamba group's width. Source: vLLM 0.28 runner:522-526."""
    return where(deployment.enable_prefix_caching, width, 1) + spec.num_speculative_blocks


def _width_028(deployment: Deployment, spec: Spec, runner: Runner) -> int:
    """0.28: V1 asks the spec; V2 divides every group by dcp. Source: runner:499-530, v1:7375-7407."""
    if runner is Runner.V1 or isinstance(spec, EncoderOnlyAttentionSpec):
        return _width_today(deployment, spec, runner)
    width = _position_width(deployment, spec)
    if isinstance(spec, MambaSpec):
        return _with_states(deployment, spec, width)
    return _padded(deployment, spec, width)


def _width_027(deployment: Deployment, spec: Spec, runner: Runner) -> int:
    """0.27: as 0.28, but V1's wrapper has the base formula. Source: runner:439-470, v1:7240-7272."""
    if runner is Runner.V1 and isinstance(spec, UniformTypeSpec):
        width = _wrapper_base_width(deployment, spec, runner)
        return _padded(deployment, spec, width) if runner in spec.aligned_on else width
    return _width_028(deployment, spec, runner)


def _width_026(deployment: Deployment, spec: Spec, runner: Runner) -> int:
    """0.26: older padding, of Mamba rows too. Source: runner:415-446, v1:7167-7199, v1 table:275-280."""
    if isinstance(spec, EncoderOnlyAttentionSpec):
        return _width_today(deployment, spec, runner)
    if runner is Runner.V1:
        width = (
            _wrapper_base_width(deployment, spec, runner)
            if isinstance(spec, UniformTypeSpec)
            else spec.max_num_blocks_per_req(deployment, deployment.row_length(runner))
        )
        return _padded_before_027(deployment, spec, width)
    width = _padded_before_027(deployment, spec, _position_width(deployment, spec))
    return _with_states(deployment, spec, width) if isinstance(spec, MambaSpec) else width


def _ranks_025(deployment: Deployment) -> int:
    """Return over how many ranks 0.25's scheduler and V1 spread every group, recurrent state included.

    Source: vLLM 0.25 manager:67-71, `v1/worker/cp_utils.py`:47-58.
    """
    return deployment.decode_context_parallel_size * deployment.prefill_context_parallel_size


def _width_025(deployment: Deployment, spec: Spec, runner: Runner) -> int:
    """0.25: V2 as 0.26, V1 divides every group by dcp * pcp.

    Source: runner:403-434, v1:7017-7048, v1 table:260-265. V2 refuses pcp (`config/vllm.py`:2048).
    V1 keeps the table of its constructor when the only group has `cache_config.block_size` (v1:7050-7053);
    that one lacks a Mamba group's draft states and is not modelled.
    """
    if runner is Runner.V2 or isinstance(spec, EncoderOnlyAttentionSpec):
        return _width_026(deployment, spec, runner)
    width = cdiv(deployment.row_length(runner), spec.tokens_per_block * _ranks_025(deployment))
    if isinstance(spec, MambaSpec):
        width = _with_states(deployment, spec, width)
    return _padded_before_027(deployment, spec, width)


def _entries_today(deployment: Deployment, spec: Spec, request: Request) -> int:
    """Return the spec's own entries."""
    return spec.entries(deployment, request)


def _entries_025(deployment: Deployment, spec: Spec, request: Request) -> int:
    """0.25: every manager multiplies its block size by dcp * pcp. Source: manager:67-71."""
    layer = _layer(spec)
    tokens = layer.tokens_per_block * _ranks_025(deployment)
    match layer:
        case AttentionSpec():
            layer = replace(layer, block_size=tokens, dcp_sharded=False)
        case MambaNoneSpec():
            layer = replace(layer, mamba_block_size=tokens)
        case MambaAlignSpec() | MambaAllSpec():
            layer = replace(layer, block_size=tokens)
    return layer.entries(deployment, request)


def _entries_before_031(deployment: Deployment, spec: Spec, request: Request) -> int:
    """0.29 and 0.30: only full attention's managers divide by dcp, while every attention row is divided.

    Source: vLLM 0.29 `v1/core/kv_cache_utils.py`:678-697 (0.30:695-714), interface:432-435 (0.30:532-535).
    """
    layer = _layer(spec)
    if isinstance(layer, AttentionSpec) and not isinstance(layer, FullAttentionSpec):
        layer = replace(layer, dcp_sharded=False)
    return layer.entries(deployment, request)


def _column_today(deployment: Deployment, spec: Spec, access: Access, runner: Runner) -> int:
    """Return the spec's own column on V2, and for attention groups V1's on V1."""
    layer = _layer(spec)
    if runner is Runner.V1 and isinstance(layer, AttentionSpec):
        return layer.column_on_v1(deployment, access)
    return spec.column(deployment, access)


def _column_030(deployment: Deployment, spec: Spec, access: Access, runner: Runner) -> int:
    """0.30: V2 maps a pooled tail by position like any attention group, although its row is one block.

    0.31 switches that mapping off. The tail's own builder computes the slots anew and does not use what was
    read (`v1/attention/backends/mla/indexer.py`:637-710). Source: interface:267-274, 971-989; table:326-347.
    """
    layer = _layer(spec)
    if isinstance(layer, KpoolTailSpec):
        return access.position // (layer.block_size * deployment.decode_context_parallel_size)
    return _column_today(deployment, spec, access, runner)


def _column_before_029(deployment: Deployment, spec: Spec, access: Access, runner: Runner) -> int:
    """Divide the position by block size and dcp at once, for attention groups on V2.

    Source: vLLM 0.28 `v1/worker/gpu/block_table.py`:305 (0.26:293, 0.27:299).
    """
    layer = _layer(spec)
    if runner is Runner.V1 or not isinstance(layer, AttentionSpec) or isinstance(layer, CrossAttentionSpec):
        return _column_today(deployment, spec, access, runner)
    return access.position // (layer.kernel_block_size * shards(deployment, layer.dcp_sharded))


def _column_025(deployment: Deployment, spec: Spec, access: Access, runner: Runner) -> int:
    """0.25: V1 divides as V2 does, by pcp too. Source: table:283 (V2), v1 table:148, 355-366 (V1)."""
    layer = _layer(spec)
    if runner is Runner.V2 or not isinstance(layer, AttentionSpec) or isinstance(layer, CrossAttentionSpec):
        return _column_before_029(deployment, spec, access, runner)
    return access.position // (layer.kernel_block_size * _ranks_025(deployment))


def _longest_today(deployment: Deployment) -> int:
    """Leave room for the token that the step samples. Source: vLLM 0.33 scheduler:854, :1318-1330."""
    return deployment.max_model_len - deployment.num_sampled_tokens


def _longest_before_029(deployment: Deployment) -> int:
    """Let a padded speculative decode land on max_model_len itself. Source: vLLM 0.28 scheduler:943-950."""
    return where(
        deployment.num_speculative_tokens > 0,
        deployment.max_model_len,
        _longest_today(deployment),
    )


class Gap(enum.Enum):
    """What a release as it ships leaves open, beside the widths of its rows.

    The formulas of `TODAY` are those of a system in which all of them are closed. No release is one, and
    nothing in this project closes them around an engine yet. A gap of one runner alone names it.
    """

    def __init__(self, label: str, runner: Runner | None = None) -> None:
        self.label = label
        self.runner = runner

    SESSION_LENGTH = "session-length"
    """A resumable session appends a chunk without a length check. Source: vLLM 0.33 scheduler:1879-1919
    (0.25:1213, 0.26:1286, 0.27:1367, 0.28:1429, 0.29:1498, 0.30:1570, 0.31:1617, 0.32:1650)."""
    RING_SLOTS_ON_V1 = "ring-slots", Runner.V1
    """V1 maps ring groups by position. Source: vLLM 0.33 `v1/worker/block_table.py`:351-376."""
    STALE_DRAFTER_ON_V1 = "stale-drafter", Runner.V1
    """V1's parallel drafter clamps to the max_model_len of its construction, which auto-fit lowers later.
    Source: vLLM 0.33 `v1/spec_decode/utils.py`:363-392."""
    STALE_DRAFTER_ON_V2 = "stale-drafter", Runner.V2
    """The same on V2, up to 0.32. Source: vLLM 0.32 `v1/worker/gpu/spec_decode/speculator.py`:119."""
    CLAMPED_DRAFT_COLUMNS = "clamped-draft-columns"
    """DFlash clamps a query's column to the row and keeps its offset, so that slots alias.
    Source: vLLM 0.33 `v1/worker/gpu/spec_decode/dflash/speculator.py`:714-770."""
    KERNEL_TABLE_IGNORES_ENCODER = "kernel-table-ignores-encoder"
    """The kernel's table is made for max_model_len alone. Source: vLLM 0.33 `v1/worker/utils.py`:309-312."""
    SLOT_INT32_ON_V2 = "slot-int32", Runner.V2
    """block ID * block_size is computed in int32. Source: vLLM 0.33 `v1/worker/gpu/block_table.py`:409."""
    ROW_OFFSET_INT32_ON_V2 = "row-offset-int32", Runner.V2
    """The single-group writer computes row * stride in int32, up to 0.31.
    Source: vLLM 0.31 `v1/worker/gpu/buffer_utils.py`, `_apply_write_kernel`."""
    ROW_OFFSET_INT32_ON_V1 = "row-offset-int32", Runner.V1
    """The same in V1's slot mapping. Source: vLLM 0.33 `v1/worker/block_table.py`:351-376."""
    TOKEN_OFFSET_INT32_ON_V2 = "token-offset-int32", Runner.V2
    """row * max_model_len is computed in int32, up to 0.27."""
    KERNEL_BLOCK_DEALS_ON_V2 = "kernel-block-deals", Runner.V2
    """dcp deals positions out within kernel blocks, which an interleave need not divide, up to 0.28.
    Source: vLLM 0.28 `v1/worker/gpu/block_table.py`:305-320."""


@dataclass(frozen=True, slots=True)
class Release:
    """A published version of an engine and where its formulas differ from today's.

    Attributes:
        width: the manager blocks that a worker's row has room for.
        entries: the manager blocks that the scheduler hands over.
        column: the column that a kernel addresses.
        longest: the most tokens that a request can have computed and scheduled.
        constants: parameters that the release's source fixes.
        absent: names of the spec kinds that it does not have.
        gaps: what it leaves open as it ships.
        rows_hold_kernel_blocks: whether a split manager block takes one entry per kernel block in the row.
            If not, the row holds manager blocks, and a table made from it repeats each column for its kernel
            blocks. That table is narrower where an encoder is longer than `max_model_len`; the claim
            `consumers-agree/kernel-table` is about that.
    """

    name: str
    description: str
    width: _Width
    entries: Callable[[Deployment, Spec, Request], int] = _entries_today
    column: Callable[[Deployment, Spec, Access, Runner], int] = _column_today
    longest: Callable[[Deployment], int] = _longest_today
    constants: Mapping[str, int | bool] = field(default_factory=lambda: MappingProxyType({}))
    absent: frozenset[str] = frozenset()
    gaps: frozenset[Gap] = frozenset()
    rows_hold_kernel_blocks: bool = True

    def leaves_open(self, gap: Gap, runner: Runner) -> bool:
        """Return whether the release has this gap and, if it is one runner's, on that runner."""
        return gap in self.gaps and gap.runner in (None, runner)


TODAY = Release("today", "vLLM 0.29 to 0.33, gaps closed", _width_today)
"""The formulas of `specs` without any `Gap`; sizes that releases fix, such as the alignment, are free."""

_ALIGNED: Mapping[str, int | bool] = MappingProxyType({"block_table_token_alignment": 128})
_ALIGNED_AND_SHARDED: Mapping[str, int | bool] = MappingProxyType({**_ALIGNED, "dcp_sharded": True})
"""Before 0.31 no attention group is left out of dcp. Source: vLLM 0.31 interface:161, :488."""


def _published(
    version: str,
    width: _Width = _width_today,
    *,
    without: tuple[str, ...] = (),
    constants: Mapping[str, int | bool] = _ALIGNED_AND_SHARDED,
    **differences: Any,
) -> Release:
    """Describe a release by where it differs from today; wrappers of absent types are absent too."""
    return Release(
        "vllm-" + ".".join(version.split(".")[:2]),
        f"vLLM {version}",
        width,
        constants=constants,
        absent=frozenset(without) | {f"uniform-{kind}" for kind in without},
        **differences,
    )


_ALWAYS_OPEN = frozenset(
    {
        Gap.SESSION_LENGTH,
        Gap.STALE_DRAFTER_ON_V1,
        Gap.CLAMPED_DRAFT_COLUMNS,
        Gap.SLOT_INT32_ON_V2,
        Gap.ROW_OFFSET_INT32_ON_V1,
    }
)
_OPEN_033 = _ALWAYS_OPEN | {Gap.RING_SLOTS_ON_V1, Gap.KERNEL_TABLE_IGNORES_ENCODER}
_OPEN_032 = _OPEN_033 | {Gap.STALE_DRAFTER_ON_V2}
_OPEN_031 = _OPEN_032 - {Gap.KERNEL_TABLE_IGNORES_ENCODER} | {Gap.ROW_OFFSET_INT32_ON_V2}
_OPEN_028 = _OPEN_031 - {Gap.RING_SLOTS_ON_V1} | {Gap.KERNEL_BLOCK_DEALS_ON_V2}
_OPEN_027 = _OPEN_028 | {Gap.TOKEN_OFFSET_INT32_ON_V2}

_HISPARSE = ("hisparse-hot", "hisparse-resident")
_FROM_029 = ("circular-buffer", "kpool-tail", *_HISPARSE)
_UNTIL_031 = ("kpool-tail", "mamba-all")

RELEASES: tuple[Release, ...] = (
    TODAY,
    # Rows hold manager blocks: `v1/worker/utils.py`:306-326, 380-395 makes the table of kernel blocks.
    _published(
        "0.33.0",
        without=_UNTIL_031,
        constants=_ALIGNED,
        rows_hold_kernel_blocks=False,
        gaps=_OPEN_033,
    ),
    _published(
        "0.32.0",
        without=_UNTIL_031,
        constants=_ALIGNED,
        rows_hold_kernel_blocks=False,
        gaps=_OPEN_032,
    ),
    _published("0.31.0", constants=_ALIGNED, gaps=_OPEN_031),
    # HiSparse refuses dcp (`config/vllm.py`:1645), so that its managers' factor dcp is 1 as today.
    _published("0.30.0", entries=_entries_before_031, column=_column_030, gaps=_OPEN_031),
    _published("0.29.0", entries=_entries_before_031, without=("kpool-tail", *_HISPARSE), gaps=_OPEN_031),
    _published(
        "0.28.0",
        _width_028,
        without=_FROM_029,
        column=_column_before_029,
        longest=_longest_before_029,
        gaps=_OPEN_028,
    ),
    _published(
        "0.27.1",
        _width_027,
        without=_FROM_029,
        column=_column_before_029,
        longest=_longest_before_029,
        gaps=_OPEN_027,
    ),
    _published(
        "0.26.0",
        _width_026,
        without=_FROM_029,
        column=_column_before_029,
        longest=_longest_before_029,
        gaps=_OPEN_027,
    ),
    _published(
        "0.25.1",
        _width_025,
        without=_FROM_029,
        entries=_entries_025,
        column=_column_025,
        longest=_longest_before_029,
        gaps=_OPEN_027,
    ),
)
"""Every release described, today's formulas first and then the newest first."""


def release(name: str) -> Release:
    """Return the release of that name.

    Raises:
        KeyError: no release has that name; the message lists those that there are.
    """
    for known in RELEASES:
        if known.name == name:
            return known
    message = f"no release is named {name!r}; there are {', '.join(r.name for r in RELEASES)}"
    raise KeyError(message)


def _known(chosen: Release | str) -> Release:
    return release(chosen) if isinstance(chosen, str) else chosen


def row_spec(spec: Spec, *, release: Release | str = TODAY) -> Spec:
    """Return the spec as the release's row holds it: split into kernel blocks only if the row is."""
    if _known(release).rows_hold_kernel_blocks:
        return spec
    if isinstance(spec, UniformTypeSpec):
        return UniformTypeSpec(inner=row_spec(spec.inner, release=release))
    return replace(spec, blocks_per_kv_block=1) if isinstance(spec, AttentionSpec) else spec


def dealt_spec(
    spec: AttentionSpec, *, runner: Runner = Runner.V2, release: Release | str = TODAY
) -> AttentionSpec:
    """Return the spec in whose blocks dcp deals positions out: its own, or one of its kernel blocks.

    Of kernel blocks, `place_on_rank` is a kernel block and an offset that may pass its end
    (`Gap.KERNEL_BLOCK_DEALS_ON_V2`). Source: vLLM 0.28 `v1/worker/gpu/block_table.py`:305-320, 0.29 :330-337.
    """
    # One kernel block is the whole block; where that is pinned, a solver is spared the detour.
    is_split = not isinstance(spec.blocks_per_kv_block, int) or spec.blocks_per_kv_block > 1
    if is_split and _known(release).leaves_open(Gap.KERNEL_BLOCK_DEALS_ON_V2, Runner(runner)):
        return replace(spec, block_size=spec.kernel_block_size, blocks_per_kv_block=1)
    return spec


def blocks(deployment: Deployment, spec: Spec, request: Request, *, release: Release | str = TODAY) -> int:
    """Return how many manager blocks the scheduler's list holds for one request in one group."""
    return _known(release).entries(deployment, row_spec(spec, release=release), request)


def entries(deployment: Deployment, spec: Spec, request: Request, *, release: Release | str = TODAY) -> int:
    """Return how many block-table entries the scheduler hands over for one request in one group.

    A manager block that the row holds as kernel blocks counts as that many entries.
    """
    return blocks(deployment, spec, request, release=release) * row_spec(spec, release=release).expansion


def row_width(
    deployment: Deployment, spec: Spec, *, runner: Runner = Runner.V2, release: Release | str = TODAY
) -> int:
    """Return how many entries the worker's row holds for one group; 0 if it makes no row.

    `release` is one of `RELEASES` or its name. Entries are kernel blocks where the row holds those.
    """
    held = row_spec(spec, release=release)
    return _known(release).width(deployment, held, Runner(runner)) * held.expansion


def kernel_table_width(
    deployment: Deployment, spec: Spec, *, runner: Runner = Runner.V2, release: Release | str = TODAY
) -> int:
    """Return how many kernel blocks one request has in the table that attention reads.

    That table is the row itself where rows hold kernel blocks; elsewhere it is made from the row, with each
    manager block's kernel blocks side by side. Source: vLLM 0.33 `v1/worker/utils.py`:303-326, :380-395.
    """
    return _known(release).width(deployment, spec, Runner(runner)) * spec.expansion


def column(
    deployment: Deployment,
    spec: Spec,
    access: Access,
    *,
    runner: Runner = Runner.V2,
    release: Release | str = TODAY,
) -> int:
    """Return the column of a row that a kernel addresses for one access."""
    known, held = _known(release), row_spec(spec, release=release)
    if isinstance(spec, CircularBufferSpec) and known.leaves_open(Gap.RING_SLOTS_ON_V1, Runner(runner)):
        return spec.column_by_position(access)
    return known.column(deployment, held, access, Runner(runner))


def max_num_tokens(deployment: Deployment, *, release: Release | str = TODAY) -> int:
    """Return the most tokens that a request can have computed and scheduled, in tokens."""
    return _known(release).longest(deployment)


def max_request(deployment: Deployment, *, release: Release | str = TODAY) -> Request:
    """Return the request that needs the most entries of all that the deployment admits."""
    return Request(
        num_tokens=max_num_tokens(deployment, release=release),
        num_encoder_tokens=deployment.max_num_encoder_input_tokens,
    )
