"""Two Hypothesis state machines: one drives the engine's KVCacheManager, one its Scheduler."""

from __future__ import annotations

import vllm_engine as engine
from comparison import Watch
from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from setups import setups

from invariants import MambaAlignSpec, max_num_tokens, release

_FAMILIES = 2
"""Prompts of one family are prefixes of one another, so that they meet in the prefix cache."""


def _tokens(family, count):
    return [family * 1000 + n for n in range(count)]


class _Machine(RuleBasedStateMachine):
    """What both machines share; `kind`, `release_name` and `tally` are set by `machine_of`."""

    kind = "full-attention"
    release_name = "today"
    tally = None

    def __init__(self):
        super().__init__()
        self.watch = None
        self.names = 0

    def begin(self, setup, make):
        """Make the engine's part of a setup; one that it refuses is counted and given up."""
        self.setup = setup
        note(setup.sizes())
        try:
            return make(setup)
        except engine.Refused as refused:
            record = self.tally.record(self.kind)
            record.refused[str(refused)[:70]] = record.refused.get(str(refused)[:70], 0) + 1
            assume(False)

    def new_name(self):
        self.names += 1
        return f"r{self.names}"

    def teardown(self):
        if self.watch is not None:
            self.watch.close()


class ManagerMachine(_Machine):
    """Admits, chunks, decodes, drafts, preempts, resumes and frees as a scheduler does, on the manager alone."""

    def __init__(self):
        super().__init__()
        self.running = []
        self.waiting = []

    @initialize(data=st.data())
    def begins(self, data):
        setup = data.draw(setups(self.kind, self.release_name), label="setup")
        self.manager, self.hash_block = self.begin(setup, engine.manager)
        self.watch = Watch(setup, self.manager, self.tally)
        self.longest = max_num_tokens(setup.deployment, release=release(setup.release))
        align = [s for s in setup.specs if isinstance(s, MambaAlignSpec)]
        self.stop = align[0].block_size if align else 1
        self.encoder = setup.deployment.max_num_encoder_input_tokens

    def _start(self, request, wish):
        """Look a waiting request up in the cache and schedule its first chunk."""
        found, hits = self.manager.get_computed_blocks(request)[:2]
        new = self._chunk(hits, request.num_tokens, wish)
        encoder = min(self.encoder, request.encoder_tokens)
        result = self.manager.allocate_slots(
            request, new, hits, found, num_lookahead_tokens=self.setup.deployment.num_lookahead_tokens,
            num_encoder_tokens=encoder,
        )  # fmt: skip
        if result is None:
            self.waiting.append(request)
            return
        engine.running(request)
        request.num_computed_tokens = hits + new
        self.running.append(request)
        self._sample(request, 0)

    def _chunk(self, computed, known, wish):
        """How many tokens the step takes: up to the wish, ending where recurrent state can be kept."""
        end = min(known, computed + wish)
        if end < known and end - end % self.stop > computed:
            end -= end % self.stop
        elif end < known:
            end = min(known, computed + self.stop - computed % self.stop)
        return end - computed

    def _sample(self, request, accepted):
        """Sample once all that is known is computed; a request whose context is full is done."""
        if request.num_computed_tokens - accepted >= request.num_tokens:
            for _ in range(accepted + 1):
                request.append_output_token_ids(7)
        if request.num_tokens >= self.setup.deployment.max_model_len:
            self._free(request)

    @rule(family=st.integers(0, _FAMILIES - 1), length=st.integers(1, 64), wish=st.integers(1, 64),
          encoder=st.integers(1, 64))  # fmt: skip
    def admit(self, family, length, wish, encoder):
        assume(len(self.running) + len(self.waiting) < self.setup.max_num_seqs)
        self.manager.new_step_starts()
        request = engine.request(
            self.new_name(), _tokens(family, min(length, self.setup.deployment.max_model_len - 1)), self.hash_block, max_tokens=1000
        )
        request.encoder_tokens = encoder
        self._start(request, wish)

    @precondition(lambda self: self.waiting)
    @rule(wish=st.integers(1, 64))
    def resume(self, wish):
        self.manager.new_step_starts()
        self._start(self.waiting.pop(0), wish)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3), wish=st.integers(1, 64), drafts=st.integers(0, 3), accepted=st.integers(0, 3))
    def goes_on(self, index, wish, drafts, accepted):
        self.manager.new_step_starts()
        self._step(self.running[index % len(self.running)], wish, drafts, accepted)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3))
    def runs_to_the_end(self, index):
        """Decode one request until its context is full, or the pool is."""
        request = self.running[index % len(self.running)]
        while request in self.running and self._step(request, 64, 0, 0):
            self.manager.new_step_starts()

    def _step(self, request, wish, drafts, accepted):
        computed = request.num_computed_tokens
        new = self._chunk(computed, request.num_tokens, wish)
        proposed = 0
        if computed + new == request.num_tokens and computed >= request.num_prompt_tokens:
            proposed = min(drafts, self.setup.deployment.num_speculative_tokens)
        proposed = max(0, min(proposed, self.longest - computed - new))
        result = self.manager.allocate_slots(
            request, new + proposed, num_lookahead_tokens=self.setup.deployment.num_lookahead_tokens,
            num_encoder_tokens=0 if not self.encoder else min(self.encoder, request.encoder_tokens),
        )  # fmt: skip
        if result is None:
            self._preempt(request)
            return False
        kept = min(accepted, proposed)
        request.num_computed_tokens = computed + new + kept
        self._sample(request, kept)
        return True

    def _preempt(self, request):
        self.running.remove(request)
        self.manager.free(request)
        engine.preempted(request)
        self.waiting.append(request)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3))
    def preempt(self, index):
        self._preempt(self.running[index % len(self.running)])

    def _free(self, request):
        self.running.remove(request)
        self.manager.free(request)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3))
    def finish(self, index):
        self._free(self.running[index % len(self.running)])


def machine_of(base, kind, release_name, tally):
    """Return the machine for one spec type of one release, which notes in the tally."""
    return type(f"{base.__name__}_{kind}", (base,), {"kind": kind, "release_name": release_name, "tally": tally})
