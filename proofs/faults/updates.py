"""Steps that end halfway and leave two sides with different state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from invariants import TODAY, Case, Deployment, Release, entries, max_num_tokens, release, row_width
from invariants.arithmetic import all_of, minimum, where
from invariants.parameters import size
from proofs.faults.model import Claim, Fault, Kind, Report, at_most, engine, equal, sizes_of

__all__ = ["FAULTS"]

_028 = release("vllm-0.28")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TwoGroups:
    """One append to the rows of two groups, of which the second may not fit."""

    row_width: int = size("columns of both rows", minimum=1)
    held: int = size("entries that both rows hold before")
    first_new: int = size("entries appended to group 0", minimum=1)
    second_new: int = size("entries appended to group 1", minimum=1)


def _fits(sizes: _TwoGroups, new: int) -> bool:
    return sizes.held + new <= sizes.row_width


def _refused_changes_nothing(sizes: _TwoGroups, staged: bool) -> Claim:
    return equal(
        group_0_count=where(staged, sizes.held + sizes.first_new, sizes.held), count_before=sizes.held
    )


def _second_is_refused(sizes: _TwoGroups) -> bool:
    return all_of(sizes.held <= sizes.row_width, sizes.held + sizes.second_new > sizes.row_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneRow:
    """One append to one row."""

    row_width: int = size("columns of the row", minimum=1)
    held: int = size("entries that the row holds before")
    new: int = size("entries appended", minimum=1)


def _accepted(sizes: _OneRow, fits: bool) -> int:
    return where(fits, sizes.held + sizes.new, sizes.held)


def _count_fits(sizes: _OneRow, count: int) -> Claim:
    return at_most(count=count, row_width=sizes.row_width)


def _held_fits(sizes: _OneRow) -> bool:
    return sizes.held <= sizes.row_width


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preempted:
    """A request that is scheduled, preempted and admitted again within one step."""

    held: int = size("blocks before the step", minimum=1)
    new: int = size("blocks that the step added before the preemption", minimum=1)
    readmitted: int = size("blocks that it is admitted with again", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What scheduler and worker know of one request during a step.

    Attributes:
        owned: blocks that the scheduler has given the request.
        record: blocks that the step will tell the worker to append.
        row: blocks in the worker's row.
    """

    owned: int
    record: int
    row: int


def _schedule(step: _Step, new: int) -> _Step:
    return replace(step, owned=step.owned + new, record=step.record + new)


def _preempt(step: _Step, *, clear: bool) -> _Step:
    """Free the request's blocks; the repair also drops what was recorded for it."""
    return replace(step, owned=0, record=0 if clear else step.record)


def _readmit(step: _Step, blocks: int) -> _Step:
    """Give the request a new list, which replaces the worker's row."""
    return replace(step, owned=blocks, row=blocks)


def _emit(step: _Step) -> _Step:
    """Let the worker append what was recorded."""
    return replace(step, row=step.row + step.record, record=0)


def _scheduled_then_preempted(sizes: _Preempted, *, clear: bool) -> _Step:
    before = _Step(owned=sizes.held, record=0, row=sizes.held)
    return _preempt(_schedule(before, sizes.new), clear=clear)


def _row_is_list(sizes: _Preempted, *, clear: bool) -> Claim:
    after = _emit(_readmit(_scheduled_then_preempted(sizes, clear=clear), sizes.readmitted))
    return equal(worker_row=after.row, scheduler_list=after.owned)


def _emitted_is_owned(sizes: _Preempted, *, clear: bool) -> Claim:
    after = _scheduled_then_preempted(sizes, clear=clear)
    return at_most(emitted=after.record, owned=after.owned)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """The blocks that an encoder-decoder request holds in its two tables."""

    self_blocks: int = size("blocks of self attention", minimum=1)
    cross_blocks: int = size("blocks of cross attention", minimum=1)


def _free_self(tables: _Tables) -> _Tables:
    return replace(tables, self_blocks=0)


def _free_all(tables: _Tables) -> _Tables:
    return replace(tables, self_blocks=0, cross_blocks=0)


def _nothing_left(tables: _Tables) -> Claim:
    return equal(blocks_left=tables.self_blocks + tables.cross_blocks, expected=0)


def _sampled_within(deployment: Deployment, worker: Release) -> Claim:
    """Claim that the longest padded step leaves room for the token that it samples."""
    longest = max_num_tokens(deployment, release=worker)
    return at_most(tokens=longest + deployment.num_sampled_tokens, max_model_len=deployment.max_model_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A resumable session that is given its next chunk."""

    max_model_len: int = size("longest sequence, in tokens", minimum=1)
    held: int = size("tokens of the session before the chunk")
    chunk: int = size("tokens of the chunk", minimum=1)


def _session_fits(sizes: _Session, admitted: bool) -> Claim:
    tokens = where(admitted, sizes.held + sizes.chunk, sizes.held)
    return at_most(tokens=tokens, row_width=sizes.max_model_len)


def _session_row_fits(case: Case, tokens: int) -> Claim:
    """Claim row-fits for a session of that many tokens."""
    request = replace(case.request, num_tokens=tokens)
    return at_most(
        entries=entries(case.deployment, case.spec, request),
        row_width=row_width(case.deployment, case.spec, release=TODAY),
    )


def _session_row_fits_if_refused(case: Case) -> Claim:
    tokens = minimum(case.request.num_tokens, max_num_tokens(case.deployment))
    return _session_row_fits(case, tokens)


FAULTS: tuple[Fault, ...] = (
    Fault(
        thread="vllm-0.29:append-group-by-group",
        also=("vllm#51171",),
        kind=Kind.UPDATE,
        title="an append that group 1 refuses has already been staged and counted for group 0",
        seen="nothing reported; the exception ends the engine before anyone reads the counts",
        domain=sizes_of(_TwoGroups),
        assumes=_second_is_refused,
        faulty=lambda sizes: _refused_changes_nothing(sizes, _fits(sizes, sizes.first_new)),
        repaired=lambda sizes: _refused_changes_nothing(
            sizes, all_of(_fits(sizes, sizes.first_new), _fits(sizes, sizes.second_new))
        ),
        reports=(
            Report(
                sizes={"row_width": 16, "held": 0, "first_new": 9, "second_new": 17},
                faulty={"group 0 count": 9, "count before": 0},
                repaired={"group 0 count": 0},
                first="second_new",
            ),
        ),
    ),
    Fault(
        thread="vllm-0.33:count-before-write",
        kind=Kind.UPDATE,
        title="V1 advances a row's count before the write that does not fit",
        seen="could not broadcast input array; for one block at a full row nothing at all",
        domain=sizes_of(_OneRow),
        assumes=_held_fits,
        faulty=lambda sizes: _count_fits(sizes, sizes.held + sizes.new),
        repaired=lambda sizes: _count_fits(
            sizes, _accepted(sizes, sizes.held + sizes.new <= sizes.row_width)
        ),
        reports=(
            Report(
                sizes={"row_width": 16, "held": 16, "new": 1},
                faulty={"count": 17, "row width": 16},
                repaired={"count": 16},
                first="new",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="gittensor-ai-lab/sparkinfer#33",
        also=(
            "gittensor-ai-lab/sparkinfer#34",
            "gittensor-ai-lab/sparkinfer#110",
            "gittensor-ai-lab/sparkinfer#111",
        ),
        kind=Kind.UPDATE,
        title="an allocation bounds what it adds, not what the row holds afterwards",
        seen="latent: callers freed first",
        domain=sizes_of(_OneRow),
        assumes=_held_fits,
        faulty=lambda sizes: _count_fits(sizes, _accepted(sizes, sizes.new <= sizes.row_width)),
        repaired=lambda sizes: _count_fits(
            sizes, _accepted(sizes, sizes.held + sizes.new <= sizes.row_width)
        ),
        reports=(
            Report(
                sizes={"row_width": 4_096, "held": 4_000, "new": 97},
                faulty={"count": 4_097, "row width": 4_096},
                repaired={"count": 4_000},
                first="new",
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#23316",
        also=("vllm#26661", "vllm#28558"),
        kind=Kind.UPDATE,
        title="a request preempted in the step that scheduled it keeps its record of new blocks",
        seen="a broadcast error in append_row under a nearly full cache",
        domain=sizes_of(_Preempted),
        faulty=lambda sizes: _row_is_list(sizes, clear=False),
        repaired=lambda sizes: _row_is_list(sizes, clear=True),
        reports=(
            Report(
                sizes={"held": 255, "new": 1, "readmitted": 256},
                faulty={"worker row": 257, "scheduler list": 256},
                repaired={"worker row": 256},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="RBLN-SW/vllm-rbln#676",
        kind=Kind.UPDATE,
        title="a stashed delta survives a preemption and is emitted after its blocks were freed",
        seen="block IDs are emitted that the request no longer owns",
        domain=sizes_of(_Preempted),
        faulty=lambda sizes: _emitted_is_owned(sizes, clear=False),
        repaired=lambda sizes: _emitted_is_owned(sizes, clear=True),
        reports=(
            Report(
                sizes={"new": 2},
                faulty={"emitted": 2, "owned": 0},
                repaired={"emitted": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#10013",
        also=("tenstorrent/vllm#55",),
        kind=Kind.UPDATE,
        title="preemption frees the table of self attention and forgets that of cross attention",
        seen="block table already exists",
        domain=sizes_of(_Tables),
        faulty=lambda tables: _nothing_left(_free_self(tables)),
        repaired=lambda tables: _nothing_left(_free_all(tables)),
        reports=(
            Report(
                sizes={"self_blocks": 4, "cross_blocks": 94},
                faulty={"blocks left": 94, "expected": 0},
                repaired={"blocks left": 0},
                by_hand=True,
            ),
        ),
    ),
    Fault(
        thread="vllm#53812",
        also=("vllm#53962",),
        kind=Kind.UPDATE,
        title="a resumed decode is padded with drafts up to the context, and the sampled token has no room",
        seen="an assertion ends the engine: 262,145 tokens for 262,144",
        domain=engine("full-attention", _028),
        faulty=lambda case: _sampled_within(case.deployment, _028),
        repaired=lambda case: _sampled_within(case.deployment, TODAY),
        reports=(
            Report(
                sizes={"max_model_len": 262_144, "num_speculative_tokens": 1},
                faulty={"tokens": 262_145, "max model len": 262_144},
                repaired={"tokens": 262_144},
                first="num_speculative_tokens",
            ),
        ),
    ),
    Fault(
        thread="vllm#42489",
        also=("vllm#42502", "vllm#40072"),
        kind=Kind.UPDATE,
        title="a resumable session appends a chunk without looking at its length",
        seen="could not broadcast input array from shape (302,) into shape (256,), and the engine is down",
        domain=sizes_of(_Session),
        assumes=lambda sizes: sizes.held <= sizes.max_model_len,
        faulty=lambda sizes: at_most(tokens=sizes.held + sizes.chunk, row_width=sizes.max_model_len),
        repaired=lambda sizes: _session_fits(sizes, sizes.held + sizes.chunk <= sizes.max_model_len),
        reports=(
            Report(
                sizes={"max_model_len": 256, "held": 202, "chunk": 100},
                faulty={"tokens": 302, "row width": 256},
                repaired={"tokens": 202},
            ),
        ),
    ),
    Fault(
        thread="vllm-0.33:session-rows",
        kind=Kind.UPDATE,
        title="recurrent lists of a resumable session grow with its tokens, past the row",
        seen="the engine ends; up to 0.28 a silent write into the next request's row",
        domain=engine("mamba-align", TODAY, without="request-within-context"),
        faulty=lambda case: _session_row_fits(case, case.request.num_tokens),
        repaired=_session_row_fits_if_refused,
        reports=tuple(
            Report(
                sizes={"max_model_len": 128, "num_speculative_blocks": drafts, "num_tokens": 129},
                faulty={"entries": 9 + drafts, "row width": 8 + drafts},
                repaired={"entries": 8 + drafts},
                first="num_tokens",
            )
            for drafts in (0, 3)
        ),
    ),
)
