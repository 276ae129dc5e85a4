"""Hypothesis state machines: one drives the engine's KVCacheManager, one for each runner its Scheduler."""

from __future__ import annotations

from dataclasses import replace

import vllm_engine as engine
from comparison import Watch
from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from setups import setups
from worker_rows import V1Rows, V2Rows

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
    """Admits, chunks, decodes, drafts, preempts, resumes and frees, on the manager alone."""

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
            self.new_name(),
            _tokens(family, min(length, self.setup.deployment.max_model_len - 1)),
            self.hash_block,
            max_tokens=1000,
        )
        request.encoder_tokens = encoder
        self._start(request, wish)

    @precondition(lambda self: self.waiting)
    @rule(wish=st.integers(1, 64))
    def resume(self, wish):
        self.manager.new_step_starts()
        self._start(self.waiting.pop(0), wish)

    @precondition(lambda self: self.running)
    @rule(
        index=st.integers(0, 3), wish=st.integers(1, 64), drafts=st.integers(0, 3), accepted=st.integers(0, 3)
    )
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


class SchedulerMachine(_Machine):
    """Hands requests to the engine's Scheduler, answers its steps, and feeds the worker's rows with them.

    All token counts are the engine's own: chunks, clips, drafts that fit, preemption, resumption, sessions.
    """

    sessions = True

    def setup_for_rows(self, setup):
        """Return the setup as it is: V1 knows what a scheduler tells that was made for V2."""
        return setup

    def make_rows(self, setup):
        return V1Rows(setup, self.tally)

    @initialize(data=st.data())
    def begins(self, data):
        setup = self.setup_for_rows(data.draw(setups(self.kind, self.release_name), label="setup"))
        self.scheduler, self.hash_block = self.begin(setup, engine.scheduler)
        self.watch = Watch(setup, self.scheduler.kv_cache_manager, self.tally)
        self.rows = self.make_rows(setup)
        self.limit = setup.deployment.max_model_len

    @rule(
        family=st.integers(0, _FAMILIES - 1), length=st.integers(1, 64), output=st.integers(1, 64),
        session=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def arrives(self, family, length, output, session):
        session = session and self.sessions
        request = engine.request(
            self.new_name(), _tokens(family, min(length, self.limit - 1)), self.hash_block,
            max_tokens=2 if session else output, resumable=session,
        )  # fmt: skip
        if session:
            self.watch.sessions.add(request.request_id)
        self.scheduler.add_request(request)

    @precondition(lambda self: self.watch and self.watch.sessions)
    @rule(index=st.integers(0, 3), length=st.integers(1, 64))
    def session_goes_on(self, index, length):
        """Append a chunk to a session that waits for one; each chunk alone keeps the front end's limit."""
        waiting = sorted(name for name in self.watch.sessions if name in self.scheduler.requests)
        assume(waiting)
        name = waiting[index % len(waiting)]
        chunk = engine.request(
            name, _tokens(0, min(length, self.limit - 1)), self.hash_block, max_tokens=2, resumable=True
        )
        self.scheduler.add_request(chunk)

    @precondition(lambda self: self.watch and self.scheduler.requests)
    @rule(index=st.integers(0, 3))
    def aborts(self, index):
        names = sorted(self.scheduler.requests)
        name = names[index % len(names)]
        self.watch.sessions.discard(name)
        self.scheduler.finish_requests(name, engine.aborted())

    @precondition(lambda self: self.watch and self.scheduler.requests)
    @rule(count=st.integers(1, 12), drafts=st.integers(0, 3), accepted=st.integers(0, 3))
    def steps(self, count, drafts, accepted):
        for _ in range(count):
            self._step(drafts, accepted)

    def _step(self, drafts, accepted):
        out = self.scheduler.schedule()
        self.rows.take(out, self.scheduler)
        names = list(out.num_scheduled_tokens)
        if not names:
            return
        self._give_up_outgrown(names)
        sampled = [self._sampled(out, name, accepted) for name in names]
        self.scheduler.update_from_output(out, engine.runner_output(names, sampled))
        if most := min(drafts, self.setup.deployment.num_speculative_tokens):
            left = [name for name in names if name in self.scheduler.requests]
            self.scheduler.update_draft_token_ids(engine.draft_tokens(left, [[7] * most for _ in left]))

    def _give_up_outgrown(self, names):
        """End sessions whose step went past the context: the engine itself goes wrong with them later on."""
        for name in self.watch.sessions.intersection(names):
            if self.scheduler.requests[name].num_computed_tokens > self.limit:
                self.scheduler.finish_requests(name, engine.aborted())

    def _sampled(self, out, name, accepted):
        """Sample once all known tokens are computed; of the drafts, the first few are accepted."""
        request = self.scheduler.requests.get(name)
        if request is None:
            return []
        proposed = len(out.scheduled_spec_decode_tokens.get(name, ()))
        if request.num_computed_tokens - proposed < request.num_tokens:
            return []
        if name in self.watch.sessions:
            # Before 0.33 a draft accepted beyond max_tokens breaks the session: FINDINGS.md, finding 4.
            accepted = min(accepted, max(0, request.max_tokens - request.num_output_tokens - 1))
        return [7] * (1 + min(accepted, proposed))


class V2SchedulerMachine(SchedulerMachine):
    """The same with a scheduler that was made for Model Runner V2, and V2's rows."""

    recorder = None

    def setup_for_rows(self, setup):
        return replace(setup, on_v2=True)

    def make_rows(self, setup):
        return V2Rows(setup, self.tally, self.recorder)


def machine_of(base, kind, release_name, tally):
    """Return the machine for one spec type of one release, which notes in the tally."""
    return type(
        f"{base.__name__}_{kind}", (base,), {"kind": kind, "release_name": release_name, "tally": tally}
    )
