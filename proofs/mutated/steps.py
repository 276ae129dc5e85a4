"""Mutants of the transition system: of when a step may be taken and of what it leaves."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.mutations import Mutant

__all__ = ["STEP_MUTANTS"]


def _on(*labels: str) -> tuple[str, ...]:
    """Return claims about steps, of a type whose arithmetic is easy and of one that dcp shards."""
    return tuple(f"{kind} V2 {label}" for kind in ("mamba-align", "full-attention") for label in labels)


def _in_step(*steps: str) -> tuple[str, ...]:
    return _on(*(f"append-in-step/{step}" for step in steps))


def _handing_over() -> Iterator[Mutant]:
    """What scheduler and worker do with the list."""
    at = "lifecycle._handed_over"
    stale = "at.state.counted_blocks + listed"
    overwriting, appending = ("admit", "resume", "session-chunk"), ("prefill-chunk", "decode", "speculate")
    yield Mutant(
        at, "appended to the old entries", "counted_blocks=listed", f"counted_blocks={stale}",
        _in_step("resume", "session-chunk"),
    )  # fmt: skip
    yield Mutant(
        at, "counts only what it needs", "counted_blocks=listed", "counted_blocks=at.needed",
        _in_step("session-chunk"),
    )  # fmt: skip
    yield Mutant(
        at, "keeps the old count", "counted_blocks=listed", "counted_blocks=at.state.counted_blocks",
        _in_step("resume", "session-chunk"),
    )  # fmt: skip
    yield Mutant(at, "does not run", "running=True", "running=False", _in_step(*overwriting))
    listed = "maximum(at.state.listed_blocks, at.needed)"
    yield Mutant(
        at, "list not extended", listed, "at.state.listed_blocks", _in_step("resume", "session-chunk")
    )
    at = "lifecycle._appended"
    count = "before.counted_blocks + (listed - before.listed_blocks)"
    yield Mutant(at, "count not advanced", count, "before.counted_blocks", _in_step(*appending))
    yield Mutant(
        at, "whole list appended again", count, "before.counted_blocks + listed", _in_step(*appending)
    )
    yield Mutant(
        at, "overwrites with what is new", count, "listed - before.listed_blocks", _in_step(*appending)
    )
    listed = "maximum(before.listed_blocks, at.needed)"
    yield Mutant(at, "list not extended", listed, "before.listed_blocks", _in_step(*appending))
    yield Mutant(
        at,
        "needed blocks added to the list",
        listed,
        "before.listed_blocks + at.needed",
        _in_step(*appending),
    )
    at = "lifecycle._admit"
    count = "counted_blocks=at.needed"
    yield Mutant(
        at,
        "appends to the old row",
        count,
        "counted_blocks=at.state.counted_blocks + at.needed",
        _in_step("reuse", "admit"),
    )
    yield Mutant(
        at, "keeps the old count", count, "counted_blocks=at.state.counted_blocks", _in_step("reuse")
    )
    yield Mutant(
        at,
        "list kept from before",
        "listed_blocks=at.needed",
        "listed_blocks=at.state.listed_blocks",
        _in_step("admit"),
    )
    at = "lifecycle._vacated"
    given_back = "listed_blocks=0"
    yield Mutant(
        at,
        "keeps its list",
        given_back,
        "listed_blocks=at.state.listed_blocks",
        _in_step("preempt", "finish"),
    )
    yield Mutant(at, "runs on", "running=False", "running=True", _in_step("preempt", "finish"))
    yield Mutant(
        at,
        "keeps computed tokens",
        "computed_tokens=0",
        "computed_tokens=at.state.computed_tokens",
        _in_step("finish"),
    )
    preempt = "lambda at: _vacated(at, at.state.known_tokens)"
    yield Mutant(
        "lifecycle",
        "preempt keeps its list",
        preempt,
        f"{preempt[:10]} dataclasses.replace({preempt[11:]}, listed_blocks=at.state.listed_blocks)",
        _in_step("preempt"),
    )
    finish = "lambda at: _vacated(at, 0)"
    yield Mutant(
        "lifecycle",
        "finish leaves blocks listed",
        finish,
        f"{finish[:10]} dataclasses.replace({finish[11:]}, listed_blocks=at.state.listed_blocks)",
        _in_step("finish"),
    )
    chunk = "lambda at: _handed_over(at, at.known_after(_session_tokens(at)), at.end)"
    yield Mutant(
        "lifecycle",
        "session-chunk appends its whole list",
        chunk,
        f"{chunk[:10]} dataclasses.replace({chunk[11:]}, counted_blocks=at.state.counted_blocks + at.needed)",
        _in_step("session-chunk"),
    )


def _allowed() -> Iterator[Mutant]:
    """When a step may be taken."""
    at, longest = "lifecycle._may_admit", "prompt <= at.longest"
    admit = ("append-in-step/admit", "append-in-step/reuse", "column-fits/admit")
    yield Mutant(at, "prompt not checked", longest, "prompt >= 1", _on(*admit))
    yield Mutant(
        at,
        "prompt as long as max_model_len",
        longest,
        "prompt <= at.deployment.max_model_len",
        _on(*admit[:2]),
    )
    yield Mutant(at, "computes beyond the prompt", "at.end <= prompt", "at.end >= 1", _on(*admit))
    at, clip = "lifecycle._continues", "at.end <= at.longest"
    running = (
        "append-in-step/prefill-chunk",
        "append-in-step/decode",
        "append-in-step/speculate",
        "column-fits/speculate",
    )
    yield Mutant(at, "not clipped in the running loop", clip, "at.end >= 1", _on(*running))
    late = "at.end <= at.longest + 1"
    yield Mutant(at, "clipped a token late", clip, late, _on(*running[:3]))
    at = "lifecycle._decodes"
    sampled = "at.deployment.num_sampled_tokens == 1"
    yield Mutant(
        at,
        "pooling decodes too",
        sampled,
        "at.deployment.num_sampled_tokens <= 1",
        _in_step("decode", "speculate"),
    )
    at = "lifecycle._may_speculate"
    yield Mutant(
        at,
        "more accepted than drafted",
        "at.move.accepted_tokens <= drafts",
        "at.move.accepted_tokens >= 0",
        _in_step("speculate"),
    )
    at = "lifecycle._may_resume"
    resume = _on("append-in-step/resume", "column-fits/resume")
    padded = "at.end <= at.longest"
    yield Mutant(at, "padded decode not clipped", padded, "at.end >= 1", resume)
    yield Mutant(
        at, "padded to max_model_len", padded, "at.end <= at.deployment.max_model_len", _in_step("resume")
    )
    yield Mutant(
        at,
        "outputs not bounded",
        "state.known_tokens <= at.longest",
        "state.known_tokens >= 0",
        _in_step("resume"),
    )
    accepted = "at.move.accepted_tokens <= maximum(at.end - state.known_tokens, 0)"
    yield Mutant(
        at, "more accepted than padded", accepted, "at.move.accepted_tokens >= 0", _in_step("resume")
    )
    yield Mutant(
        at,
        "computes what is not known",
        "any_of(at.end <= state.known_tokens, padded)",
        "at.end >= 1",
        resume,
    )
    at = "lifecycle._may_append_chunk"
    session = _on("append-in-step/session-chunk", "column-fits/session-chunk")
    checked = "any_of(known <= at.longest, _unbounded(at))"
    yield Mutant(at, "only the chunk is checked", checked, "known >= 0", session)
    yield Mutant(
        at,
        "checked against max_model_len",
        "(known <= at.longest",
        "(known <= at.deployment.max_model_len",
        _in_step("session-chunk"),
    )
    yield Mutant(at, "computes beyond the chunk", "at.end <= known", "at.end >= 1", session)
    at = "lifecycle._unbounded"
    yield Mutant(
        at,
        "no session is checked",
        "all_of(at.state.resumable, at.release",
        "any_of(at.state.resumable, at.release",
        _on("column-fits/session-chunk")[1:],
    )
    clipped = "at.end <= at.state.known_tokens)"
    yield Mutant(
        "lifecycle",
        "prefill-chunk computes what is not known",
        f"_continues(at), {clipped}",
        "_continues(at))",
        _in_step("prefill-chunk"),
    )
    at = "lifecycle.Now.longest"
    yield Mutant(
        at,
        "max_model_len",
        "max_num_tokens(self.deployment, release=self.release)",
        "self.deployment.max_model_len",
        _in_step("prefill-chunk", "decode"),
    )


def _counting() -> Iterator[Mutant]:
    """What counts as known and as computed."""
    at, computed = "lifecycle._speculate", "at.start + accepted + 1"
    yield Mutant(at, "rejected drafts count as computed", computed, "at.end", _in_step("speculate"))
    yield Mutant(
        at,
        "one token more is known",
        "known_tokens + accepted + 1",
        "known_tokens + accepted + 2",
        _in_step("speculate"),
    )
    at = "lifecycle._resume"
    yield Mutant(
        at,
        "rejected drafts count as computed",
        "at.start + accepted + 1, at.end",
        "at.end, at.end",
        _in_step("resume"),
    )
    yield Mutant(
        at, "one token more is known", "known + accepted + 1,", "known + accepted + 2,", _in_step("resume")
    )
    at = "lifecycle.Now.known_after"
    after = "where(self.end == known, known + self.deployment.num_sampled_tokens, known)"
    yield Mutant(
        at,
        "a token before the end",
        after,
        "known + self.deployment.num_sampled_tokens",
        _in_step("prefill-chunk"),
    )
    yield Mutant(
        at,
        "two tokens sampled",
        "known + self.deployment.num_sampled_tokens",
        "known + 2",
        _in_step("prefill-chunk", "admit", "resume", "session-chunk"),
    )
    yield Mutant(
        "lifecycle",
        "decode samples two tokens",
        "_appended(at, at.state.known_tokens + 1, at.end)",
        "_appended(at, at.state.known_tokens + 2, at.end)",
        _in_step("decode"),
    )
    yield Mutant(
        "lifecycle.Now.needed",
        "one block more",
        "return blocks(",
        "return 1 + blocks(",
        _in_step("decode", "admit"),
    )


STEP_MUTANTS: tuple[Mutant, ...] = (*_handing_over(), *_allowed(), *_counting())
"""Mutants of `lifecycle`."""
