"""What the checker found in each release that the guard runs in: the verdicts that are not PROVED.

The guard never imports the checker. A test holds this table against `python -m proofs.check --release NAME`,
so that neither can change alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from invariants import Runner

__all__ = ["KNOWN_BAD", "KnownBad"]

_BOTH = (Runner.V1, Runner.V2)


@dataclass(frozen=True, slots=True)
class KnownBad:
    """One refuted invariant of a release, for these cache groups on these runners.

    `see` is the public thread, or the command that shows it where there is none.
    """

    invariant: str
    kinds: tuple[str, ...]
    runners: tuple[Runner, ...]
    what: str
    guarded: str
    see: str


_REPLICATED_STATE = KnownBad(
    "row-fits",
    ("mamba-align", "mamba-all", "uniform-mamba-none", "uniform-mamba-align", "uniform-mamba-all"),
    (Runner.V2,),
    "rows of recurrent state are divided by the decode-context-parallel size, the lists are not",
    "refused at start-up",
    "https://github.com/vllm-project/vllm/pull/50287",
)
_REPLICATED_CHUNKS = KnownBad(
    "row-fits",
    ("chunked-local",),
    _BOTH,
    "rows of chunked-local attention are divided by the decode-context-parallel size, the lists are not",
    "refused at start-up",
    "python -m proofs.check --release vllm-0.29 --spec chunked-local --invariant row-fits",
)
_SESSIONS = KnownBad(
    "column-fits/session-chunk",
    ("full-attention",),
    _BOTH,
    "a resumable session grows beyond max_model_len by its next chunk",
    "refused when the chunk enters the worker",
    "https://github.com/vllm-project/vllm/pull/42502",
)

_KERNEL_BLOCKS = KnownBad(
    "slots-distinct",
    ("full-attention",),
    (Runner.V2,),
    "tokens are dealt out within kernel blocks, which a run of cp_kv_cache_interleave_size need not fit",
    "not guarded: the slots are the kernel's; guard.BlockTables refuses such sizes",
    "python -m proofs.check --release vllm-0.28 --spec full-attention --runner V2 --invariant slots-distinct",
)


def _rings(release: str, *kinds: str, runners: tuple[Runner, ...] = (Runner.V1,)) -> KnownBad:
    return KnownBad(
        "column-fits",
        kinds,
        runners,
        "the slot mapping reads a ring's row of one block by token position",
        "not guarded: the read is the kernel's",
        f"python -m proofs.check --release {release} --spec {kinds[0]} --invariant column-fits",
    )


KNOWN_BAD: Mapping[str, tuple[KnownBad, ...]] = MappingProxyType(
    {
        "vllm-0.28": (_REPLICATED_STATE, _SESSIONS, _KERNEL_BLOCKS),
        "vllm-0.29": (_rings("vllm-0.29", "circular-buffer"), _REPLICATED_CHUNKS, _SESSIONS),
        "vllm-0.30": (
            _rings("vllm-0.30", "circular-buffer"),
            _rings("vllm-0.30", "kpool-tail", runners=_BOTH),
            _REPLICATED_CHUNKS,
            _SESSIONS,
        ),
        "vllm-0.31": (_rings("vllm-0.31", "circular-buffer", "kpool-tail"), _SESSIONS),
        "vllm-0.32": (_rings("vllm-0.32", "circular-buffer"), _SESSIONS),
        "vllm-0.33": (_rings("vllm-0.33", "circular-buffer"), _SESSIONS),
    }
)
"""By release. The claims about drafts, resumed requests and further readers are left to the checker."""
