"""One request's row played out block by block, in plain lists: what a scheduler lists, a worker writes.

Nothing of `invariants` is used here. Facts: vLLM 0.33 `v1/core/sched/scheduler.py` (the clips and what a
session appends), `v1/core/kv_cache_manager.py` (slots asked for) and `v1/worker/gpu/block_table.py`
(append at the row's count, or overwrite from column 0).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


class Impossible(Exception):
    """The engine never takes this step there."""


class Overrun(Exception):
    """A write that leaves the row."""


def require(condition):
    if not condition:
        raise Impossible


@dataclass(frozen=True)
class Sizes:
    """One group of one deployment and one request's options."""

    kind: str
    length: int
    block: int = 16
    ranks: int = 1
    split: int = 1
    lookahead: int = 0
    drafts: int = 0
    sampled: int = 1
    states: int = 0
    alignment: int = 128
    padded: bool = True
    checks_sessions: bool = True

    @property
    def longest(self):
        return self.length - self.sampled

    def width(self):
        """Widen a row one block at a time until everything that it is made for fits."""
        blocks = {"mamba-none": 1, "circular-buffer": 1}.get(self.kind, 0)
        if blocks == 0:
            while blocks * self.block * self.ranks < self.length:
                blocks += 1
        blocks += self.states
        while self.padded and blocks * self.block % self.alignment:
            blocks += 1
        return blocks * self.split


@dataclass(frozen=True)
class Given:
    """What one step is given: tokens computed before and after its pass, and the move."""

    start: int = 0
    end: int = 1
    prompt: int = 1
    hit: int = 0
    external: int = 0
    accepted: int = 0
    chunk: int = 2


@dataclass
class Engine:
    """Scheduler and worker of one row."""

    sizes: Sizes
    resumable: bool = False
    known: int = 0
    computed: int = 0
    running: bool = False
    blocks: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    count: int = 0
    pool: itertools.count = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self):
        self.row = self.row or [0] * self.sizes.width()

    def state(self):
        """Known, computed, listed and counted blocks, running, resumable."""
        counted, rest = divmod(self.count, self.sizes.split)
        assert rest == 0
        return self.known, self.computed, len(self.blocks), counted, self.running, self.resumable

    def copy(self):
        return Engine(
            self.sizes, self.resumable, self.known, self.computed, self.running,
            list(self.blocks), list(self.row), self.count, itertools.count(1 + max(self.blocks, default=0)),
        )  # fmt: skip

    def entries(self):
        """The list as the row holds it: every kernel block of every manager block."""
        split = self.sizes.split
        return [block * split + part for block in self.blocks for part in range(split)]

    def take(self, name, given):
        """Take a step or raise `Impossible`; `Overrun` leaves the engine as it was before the write."""
        getattr(self, name.replace("-", "_"))(given)

    # --- steps ------------------------------------------------------------------------------------

    def admit(self, given):
        require(not self.running)
        require(given.prompt <= self.sizes.longest)  # the front end's check
        require(given.start == given.hit + given.external)
        require(given.start < given.end <= given.prompt)
        self.known, self.blocks, self.running = given.prompt, [], True
        self._hand_over(given.end)
        self._computed_up_to(given.end)

    def reuse(self, given):
        require(self.count > 0)
        self.admit(given)

    def prefill_chunk(self, given):
        self._require_running(given)
        require(given.end <= self.known)
        self._append(given.end)
        self._computed_up_to(given.end)

    def decode(self, given):
        self._require_one_token_left()
        self._require_running(given)
        require(given.end == self.known)
        self._append(given.end)
        self._computed_up_to(given.end)

    def speculate(self, given):
        self._require_one_token_left()
        self._require_running(given)
        proposed = given.end - self.known
        require(1 <= proposed <= self.sizes.drafts)
        require(given.accepted <= proposed)
        self._append(given.end)
        self._accept(given.accepted)

    def preempt(self, given):
        require(self.running)
        self.blocks, self.computed, self.running = [], 0, False

    def resume(self, given):
        require(not self.running and self.known > 0)
        require(self.known <= self.sizes.longest or self._is_unchecked())
        require(given.start == given.hit + given.external)
        require(given.start < given.end)
        if given.end <= self.known:  # the waiting loop does not clip
            require(given.accepted == 0)
            self.running = True
            self._hand_over(given.end)
            self._computed_up_to(given.end)
            return
        require(self.sizes.sampled == 1)
        require(given.start == self.known - 1)  # all but the last token hit: drafts are padded to it
        require(given.end == self.known + self.sizes.drafts <= self.sizes.longest)
        require(given.accepted <= self.sizes.drafts)
        self.running, self.computed = True, given.start
        self._hand_over(given.end)
        self._accept(given.accepted)

    def session_chunk(self, given):
        self._require_one_token_left()
        require(self.resumable)
        require(given.chunk <= self.sizes.longest)  # the front end looks at each chunk alone
        total = self.computed + given.chunk
        require(total <= self.sizes.longest or self._is_unchecked())
        require(given.start == self.computed)
        require(given.start < given.end <= total)
        self.known = total
        self._hand_over(given.end)
        self._computed_up_to(given.end)

    def finish(self, given):
        require(self.running)
        self.blocks, self.known, self.computed, self.running = [], 0, 0, False

    # --- what they are made of --------------------------------------------------------------------

    def _is_unchecked(self):
        return self.resumable and not self.sizes.checks_sessions

    def _require_running(self, given):
        require(self.running)
        require(given.start == self.computed)
        require(given.start < given.end <= self.sizes.longest)  # the running loop clips

    def _require_one_token_left(self):
        require(self.running and self.sizes.sampled == 1 and self.computed == self.known - 1)

    def _computed_up_to(self, end):
        self.computed = end
        if end == self.known:
            self.known += self.sizes.sampled

    def _accept(self, accepted):
        for _ in range(accepted + 1):  # every accepted draft, and the token sampled after them
            self.known += 1
            self.computed += 1

    def _grow(self, end):
        """Take blocks from the pool, one at a time, until the step's tokens have room."""
        sizes, new = self.sizes, []
        slots = min(end + sizes.lookahead, sizes.length)
        tokens = end if sizes.kind == "mamba-align" else slots

        def is_short():
            held = len(self.blocks) + len(new)
            if sizes.kind == "circular-buffer":
                return held < 1
            return (held - sizes.states) * sizes.block * sizes.ranks < tokens

        while is_short():
            new.append(next(self.pool))
        self.blocks += new
        return new

    def _hand_over(self, end):
        self._grow(end)
        self._write(self.blocks, at=0)

    def _append(self, end):
        self._write(self._grow(end), at=self.count)

    def _write(self, blocks, *, at):
        split = self.sizes.split
        entries = [block * split + part for block in blocks for part in range(split)]
        if at + len(entries) > len(self.row):
            raise Overrun
        self.row[at : at + len(entries)] = entries
        self.count = at + len(entries)
