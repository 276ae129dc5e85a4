"""What each word in the checker's output means, and what to do about it: `--explain CODE`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from invariants import ASSUMPTIONS, INVARIANTS, RowState
from proofs.verdicts import Verdict

__all__ = ["ENTRIES", "Entry", "explain_text"]

_COLUMNS = 88


@dataclass(frozen=True, slots=True)
class Entry:
    """One word's meaning and what to do about it; `source` is where an engine enforces it."""

    meaning: str
    advice: str
    source: str = ""


_VERDICTS: Mapping[Verdict, Entry] = {
    Verdict.PROVED: Entry(
        "No case within the assumptions breaks the claim, whatever the sizes. The assumptions that the proof "
        "needed are named in its line.",
        "Nothing, if your deployment keeps those assumptions; --list prints each with its sentence. A proof "
        "speaks of the formulas as they were read from the engine's source, so it is worth repeating when "
        "the engine changes.",
    ),
    Verdict.REFUTED: Entry(
        "A legal case breaks the claim. The solver found it, it was made small, and it was computed again in "
        "plain Python before it was shown.",
        "Compare the case with your deployment: pin your own sizes with --at. If it is still refuted, take "
        "a release whose row is wide enough, widen the row, or lower max_model_len until guard.audit is "
        "content. --emit-test FILE turns the case into a test.",
    ),
    Verdict.VACUOUS: Entry(
        "The assumptions of the claim contradict each other: there is no legal case at all, so every claim "
        "would hold and say nothing.",
        "The line names the assumptions that clash. One of them was read from the engine wrongly, or cannot "
        "hold together with a size that the release fixes. Correct it; do not count the claim as proved.",
    ),
    Verdict.UNKNOWN: Entry(
        "The solver gave up, or ran out of its budget (rlimit) or its time. With --installed also: the "
        "engine's code cannot be followed, or its release is not described. The claim may be true or false.",
        "Pin what you know with --at: fewer free sizes are easier. On a loaded machine use fewer --jobs. "
        "Another version of z3-solver may answer. With --installed the line names the place in the engine.",
    ),
    Verdict.ERROR: Entry(
        "The checker contradicted itself or its child process ended: a case did not replay, a formula "
        "branched on a size, or a divisor may be zero. Nothing can be said of the claim.",
        "Read the line's detail. If a formula of your own is at fault (--width), it is named with file and "
        "line; anything else is a fault of the checker and worth a report with the whole output.",
    ),
    Verdict.SKIPPED: Entry(
        "The claim was not asked: the values pinned with --at leave no legal case of it, the function given "
        "with --width makes no row for this type, or no claim is about this spec class (--installed).",
        "If you run this type of spec, look at the assumption that the line names: the pinned values "
        "contradict it. If you do not run it, leave it out with --spec.",
    ),
}

_INVARIANTS: Mapping[str, str] = {
    "row-fits": "Compare the two lines of arithmetic: the scheduler's list grows with one length or divisor, "
    "the worker's row with another. Make the row as wide as the longest list, or refuse the longer request.",
    "column-fits": "The kernel's column must come from the same division as the row's width. Correct the one "
    "that ignores a shard, a draft or a split of blocks; a bound in the kernel keeps the read inside.",
    "consumers-agree": "Let the consumer ask the producer for the number, each time that it uses it, instead "
    "of deriving or remembering its own.",
    "slots-distinct": "Map what lies beyond the row to PAD. A column that is clamped keeps the offset of "
    "another position, so that two positions share a slot.",
    "index-fits": "Widen the operands to int64 before they are multiplied, or refuse at start-up a cache "
    "whose last block ID or row passes the number that is shown.",
    "append-in-step": "Follow the trace: the last step is the one that lacks a check. For session-chunk and "
    "resume that is the length of a resumable session, to be compared with max_model_len when a chunk is "
    "appended.",
}
"""What to do when an invariant is refuted."""

_ASSUMPTIONS: Mapping[str, str] = {
    "sizes": "Nothing: the options' own checks keep it. A pinned value outside its range is refused.",
    "request-within-context": "Resumable (streaming-input) sessions do not keep it: end a session before its "
    "chunks pass max_model_len, or do not rely on a proof that uses it.",
    "encoder-within-budget": "Keep the engine's encoder cache manager; a change that splits an encoder input "
    "or admits a longer one takes the proof away.",
    "kernel-blocks-divide": "Choose a block size that the attention backend's kernel block size divides.",
    "interleave-divides": "Choose cp_kv_cache_interleave_size so that it divides the block size. A connector "
    "that sets it later is not checked by the engine.",
    "cross-attention-not-sharded": "Serve encoder-decoder models with decode_context_parallel_size 1; the "
    "engine does not refuse more.",
    "one-group-under-context-parallelism": "Nothing: vLLM 0.25 refuses several groups under dcp or pcp.",
    "no-prefix-search-under-context-parallelism": "Nothing: vLLM 0.25 asserts it when it looks up a prompt.",
    "window-without-dcp": "Nothing: vLLM 0.29 and 0.30 assert it when they count its memory.",
    "cache-mode": "Let the engine choose the Mamba cache mode from enable_prefix_caching. A pinned value "
    "that contradicts it skips the claims of the other mode.",
    "state-block-covers-context": "Leave mamba_block_size alone without prefix caching: the engine sets it "
    "to max_model_len.",
}
"""What to do about an assumption, beside its own sentence and source."""

_NARROWED = "Nothing: it is no rule of the engine but says which cases the claim speaks of."

_WORDS: Mapping[str, Entry] = {
    "not-asked": Entry(
        "A claim of the selected specs is left out on some runner, with the reason, such as that there is no "
        "row to read.",
        "Do not count it as proved.",
    ),
    "perhaps-not-the-smallest": Entry(
        "The case breaks the claim and was replayed, but on the way to a smaller one the solver gave no "
        "answer, so a smaller one may exist.",
        "The fault is real all the same. Pin sizes with --at to get a smaller case.",
    ),
    "incomplete": Entry(
        "A signal, a closed pipe or a full disk ended the run before everything was decided. A report of "
        "such a run says that it is incomplete, and its undecided claims count as errors.",
        "Run again. Nothing is claimed of what was not decided.",
    ),
    "killed": Entry(
        "A claim's process took longer than the wall-clock limit, whatever the solver's own limits made of "
        "it; its verdict is UNKNOWN.",
        "Run with fewer --jobs or on a machine that is less loaded.",
    ),
    "uses": Entry(
        "The names after it are the assumptions that the proof needed, from the solver's unsatisfiable core. "
        "Another proof may need others.",
        "Check that your deployment keeps each; --explain NAME says where the engine enforces it.",
    ),
    "tight": Entry(
        "A legal case fills the row to its last entry, so that a row which is one entry narrower would not "
        "do. Where there is none, the line says how many entries are to spare.",
        "Nothing. What is to spare is memory of the block table, four bytes an entry and row.",
    ),
    "row-width": Entry(
        "Of --installed: the formula in `invariants`, on which all other claims rest, gives the width that "
        "the engine's own code makes.",
        "If it is refuted, compare the two numbers: the engine's code is not that of the release whose "
        "formulas are used, such as a fork's. Believe the claims about the installed code alone.",
    ),
    "FITS": Entry(
        "Of --deployment: the largest request's entries fit the row of this configuration, and so does every "
        "column that its slot mapping or state pick reads.",
        "Look at the release's own claims too: draft steps, sessions, consumers and integer width are not "
        "part of it.",
    ),
    "OVERFLOWS": Entry(
        "Of --deployment: the largest request's entries, or a column that is read, leave the row.",
        "Widen the row, or lower max_model_len below the token count that the line names.",
    ),
    "rlimit": Entry(
        "The solver's own count of its work. Unlike the time it is the same on every run of one version.",
        "Compare it between versions: a claim that suddenly costs far more is about to become UNKNOWN.",
    ),
}


def _entries() -> dict[str, Entry]:
    told: dict[str, Entry] = {verdict.value: entry for verdict, entry in _VERDICTS.items()}
    for invariant in INVARIANTS:
        of_a_step = "append-in-step" if RowState in invariant.parts else invariant.name
        told[invariant.label] = Entry(f"The claim that {invariant.sentence}.", _INVARIANTS.get(of_a_step, ""))
        for given in invariant.givens:
            told[given.name] = Entry(f"What narrows a claim: {given.sentence}.", _NARROWED)
    for name in [n for n in dict.fromkeys(i.name for i in INVARIANTS) if n not in told]:
        parts = [i.label for i in INVARIANTS if i.name == name]
        told[name] = Entry(f"A family of claims: {', '.join(parts)}.", _INVARIANTS.get(name, ""))
    for assumption in ASSUMPTIONS:
        meaning = f"An assumption: {assumption.sentence}."
        told[assumption.name] = Entry(meaning, _ASSUMPTIONS.get(assumption.name, ""), assumption.source)
    return {**told, **_WORDS}


ENTRIES: Mapping[str, Entry] = MappingProxyType(_entries())
"""Every word that is explained: verdicts, invariants, assumptions, and what else a line may say."""


def explain_text(code: str) -> str:
    """Return the entry of a word as text.

    Raises:
        KeyError: there is none.
    """
    entry = ENTRIES[code]
    paragraphs = {
        "what it means": _sentence(entry.meaning),
        "what to do": entry.advice,
        "source": entry.source,
    }
    return "\n".join([code, *(_paragraph(title, text) for title, text in paragraphs.items() if text)])


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _paragraph(title: str, text: str) -> str:
    return textwrap.fill(
        text,
        _COLUMNS,
        initial_indent=f"  {title:13}  ",
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,
    )
