"""The steps of a row's life against a scheduler and a worker that are played out block by block."""

import dataclasses

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from invariants import TODAY, Access, Move, RowState, Runner, build_case, column, entries, release, row_width
from invariants.lifecycle import INITIAL, STEPS, now, row_invariant
from tests.invariants.engine_model import Engine, Given, Impossible, Overrun, Sizes

BY_NAME = {step.name: step for step in STEPS}
KINDS = ("full-attention", "mamba-align", "mamba-all", "mamba-none", "circular-buffer")
MAMBA = ("mamba-align", "mamba-all", "mamba-none")
SHIPPED = release("vllm-0.33")


def case_of(engine, step_given, position=0):
    """Describe the engine's row, and what its next step is given, as a case of the formulas."""
    sizes = engine.sizes
    known, computed, listed, counted, running, resumable = engine.state()
    values = {
        "max_model_len": sizes.length, "decode_context_parallel_size": sizes.ranks,
        "num_lookahead_tokens": sizes.lookahead, "num_speculative_tokens": sizes.drafts,
        "num_sampled_tokens": sizes.sampled, "enable_prefix_caching": sizes.kind != "mamba-none",
        "block_table_token_alignment": sizes.alignment, "block_size": sizes.block,
        "mamba_block_size": sizes.block, "blocks_per_kv_block": sizes.split,
        "num_speculative_blocks": sizes.states, "num_tokens": step_given.end,
        "num_computed_tokens": step_given.start, "position": position, "known_tokens": known,
        "computed_tokens": computed, "listed_blocks": listed, "counted_blocks": counted,
        "running": running, "resumable": resumable, "prompt_tokens": step_given.prompt,
        "hit_tokens": step_given.hit, "external_tokens": step_given.external,
        "accepted_tokens": step_given.accepted, "chunk_tokens": step_given.chunk,
    }  # fmt: skip
    return build_case(sizes.kind, values, (RowState, Move))


def state_of(engine):
    return RowState(**dict(zip([f.name for f in dataclasses.fields(RowState)], engine.state(), strict=True)))


def at_of(engine, step_given, runner, known=TODAY):
    return now(case_of(engine, step_given), known, runner)


@st.composite
def groups(draw, kinds=KINDS, longest=80, *, shipped=False, **fixed):
    """Draw a group of a small deployment and the runner that serves it."""
    kind = draw(st.sampled_from(kinds))
    runner = draw(st.sampled_from(Runner))
    length = draw(st.integers(3, longest))
    # mamba-all asks for slots like attention does; a state's block without prefix caching holds everything.
    block = (
        length + draw(st.integers(0, 3)) if kind == "mamba-none" else draw(st.sampled_from([1, 2, 3, 4, 16]))
    )
    split = draw(st.sampled_from([1, 2])) if kind == "full-attention" and not shipped else 1
    values = {
        "kind": kind, "length": length, "block": block * split, "split": split,
        "ranks": draw(st.integers(1, 3)) if kind == "full-attention" else 1,
        "lookahead": draw(st.integers(0, 4)), "drafts": draw(st.integers(0, 4)),
        "sampled": draw(st.sampled_from([1, 1, 1, 0])),
        "states": draw(st.integers(0, 3)) if kind in MAMBA else 0,
        "alignment": 128 if shipped else draw(st.sampled_from([1, 16, 128])),
        "padded": kind == "full-attention" or (kind == "circular-buffer" and runner is Runner.V1),
        "checks_sessions": not shipped,
    }  # fmt: skip
    return Sizes(**{**values, **fixed}), runner


def likely(draw, engine):
    """Draw a step that the engine may well take, and what it is given."""
    sizes = engine.sizes
    if not engine.running:
        names = ["admit", "admit", "reuse"] + ["resume"] * 6 * (engine.known > 0)
    else:
        names = ["prefill-chunk", "decode", "decode", "speculate", "speculate", "preempt", "finish"]
        names += ["session-chunk"] * 3 * engine.resumable
    name = draw(st.sampled_from(names), label="step")
    prompt = draw(st.integers(1, max(1, sizes.longest)), label="prompt")
    known = {"admit": prompt, "reuse": prompt}.get(name, engine.known)
    chunk = draw(st.integers(1, max(1, sizes.longest)), label="chunk")
    total = engine.computed + chunk if name == "session-chunk" else known
    start, hit = engine.computed, 0
    if not engine.running:
        start = draw(
            st.sampled_from([0, max(0, known - 1)]) | st.integers(0, max(0, known - 1)), label="start"
        )
        hit = draw(st.integers(0, start), label="hit")
    end = draw(st.just(total) | st.integers(start + 1, max(start + 1, total)), label="end")
    accepted = 0
    if name == "speculate" or (name == "resume" and draw(st.booleans(), label="padded")):
        proposed = sizes.drafts if name == "resume" else draw(st.integers(0, sizes.drafts), label="drafts")
        end = known + proposed
        accepted = draw(st.integers(0, proposed), label="accepted")
    return name, Given(start, end, prompt, hit, start - hit, accepted, chunk)


def play(data, sizes, runner, known, steps, after_step):
    """Let the engine take likely steps, and call back after each with what it was and is."""
    engine = Engine(sizes, resumable=data.draw(st.booleans(), label="resumable"))
    taken = 0
    for _ in range(steps):
        name, step_given = likely(data.draw, engine)
        before = engine.copy()
        try:
            engine.take(name, step_given)
        except Impossible:
            engine = before
            continue
        event(name)
        taken += 1
        after_step(BY_NAME[name], step_given, before, engine)
    assume(taken > 2)


@settings(max_examples=200)
@given(groups(), st.data())
def test_every_step_leaves_what_an_engine_played_out_block_by_block_has(group, data):
    sizes, runner = group

    def same(step, step_given, before, engine):
        at = at_of(before, step_given, runner)
        assert step.allowed(at), step.name
        assert row_invariant(at, state_of(before))
        assert step.after(at) == state_of(engine)
        assert row_invariant(at, step.after(at))
        # What the count stands for: the row begins with the request's own list, entry by entry.
        if engine.running:
            assert engine.row[: engine.count] == engine.entries()
        if step.runs:
            assert len(engine.blocks) >= at.needed == len(engine.blocks) - surplus(at, engine)
            assert entries(at.deployment, at.case.spec, at.case.request) == at.needed * sizes.split

    def surplus(at, engine):
        """Blocks that earlier drafts left behind; the step itself asks for no more than it needs."""
        return max(0, len(engine.blocks) - at.needed)

    play(data, sizes, runner, TODAY, 12, same)


@given(groups(longest=200))
def test_the_row_is_as_wide_as_one_that_is_widened_block_by_block(group):
    sizes, runner = group
    case = case_of(Engine(sizes), Given())
    assert row_width(case.deployment, case.spec, runner=runner) == sizes.width()


@settings(max_examples=100)
@given(groups(("full-attention", "mamba-align"), 6, shipped=True), st.booleans(), st.data())
def test_a_step_is_allowed_exactly_where_the_engine_takes_it(group, checks_sessions, data):
    """Walk by likely steps, change what they are given by one, and ask every step of it on the way."""
    sizes, runner = group
    known = TODAY if checks_sessions else SHIPPED
    engine = Engine(
        dataclasses.replace(sizes, checks_sessions=checks_sessions), resumable=data.draw(st.booleans())
    )
    for _ in range(10):
        _, step_given = likely(data.draw, engine)
        changed = data.draw(st.sampled_from([f.name for f in dataclasses.fields(Given)] * 2 + [""]))
        if changed:
            by = data.draw(st.sampled_from([-1, 1, 2]))
            low = 1 if changed in ("prompt", "chunk") else 0
            value = max(low, getattr(step_given, changed) + by)
            step_given = dataclasses.replace(step_given, **{changed: value})
        possible = []
        for step in STEPS:
            attempt, taken = engine.copy(), True
            try:
                attempt.take(step.name, step_given)
                possible.append(attempt)
            except Impossible:
                taken = False
            except Overrun:
                event("an overrun")
            allowed = step.allowed(at_of(engine, step_given, runner, known))
            # A pass computes at least one token; the formulas leave that to whoever gives the step.
            assert taken == (allowed and (not step.runs or step_given.start < step_given.end)), step.name
            event(f"{step.name} {taken}")
        if possible:
            engine = data.draw(st.sampled_from(possible), label="goes on")


def test_a_row_begins_empty_and_sound():
    engine = Engine(Sizes("full-attention", 64))
    assert state_of(engine) == INITIAL
    assert row_invariant(at_of(engine, Given(), Runner.V2), INITIAL)


def test_the_invariant_tells_each_way_in_which_a_row_is_unsound():
    at = at_of(Engine(Sizes("mamba-align", 64)), Given(), Runner.V2)  # a row of 4
    sound = RowState(known_tokens=40, computed_tokens=39, listed_blocks=3, counted_blocks=3)
    assert row_invariant(at, sound)
    for wrong in (
        {"counted_blocks": 2},
        {"counted_blocks": 4},
        {"listed_blocks": 5, "counted_blocks": 5},
        {"computed_tokens": 41},
        {"known_tokens": 65},
        {"running": False},
        {"running": False, "listed_blocks": 0, "counted_blocks": 5},
    ):
        assert not row_invariant(at, dataclasses.replace(sound, **wrong)), wrong
    assert row_invariant(at, dataclasses.replace(sound, running=False, listed_blocks=0))  # stale entries


# --- sessions that nobody stops at max_model_len: vLLM as it ships ---------------------------------


@settings(max_examples=100)
@given(groups(("mamba-align", "full-attention"), 40, shipped=True, sampled=1), st.data())
def test_without_a_length_check_the_invariant_breaks_exactly_where_the_worker_overruns(group, data):
    sizes, runner = group
    engine = Engine(sizes, resumable=True)
    for _ in range(14):
        name, step_given = likely(data.draw, engine)
        before = engine.copy()
        at = at_of(before, step_given, runner, SHIPPED)
        try:
            engine.take(name, step_given)
        except Impossible:
            engine = before
            continue
        except Overrun:
            event(f"{sizes.kind} overruns in {name}")
            assert sizes.kind == "mamba-align"  # attention lists are clipped, positions are not
            assert name in ("session-chunk", "resume")
            assert BY_NAME[name].allowed(at)
            assert not row_invariant(at, BY_NAME[name].after(at))
            return
        assert BY_NAME[name].allowed(at)
        assert BY_NAME[name].after(at) == state_of(engine)
        assert row_invariant(at, state_of(engine))


def session_at_128(kind, states=0, chunk=2):
    """A session of max_model_len 128 that has 128 known tokens, and its next chunk."""
    sizes = Sizes(kind, 128, states=states, checks_sessions=False, padded=kind == "full-attention")
    engine = Engine(sizes, resumable=True)
    engine.take("admit", Given(0, 127, prompt=127))
    assert (engine.known, engine.computed) == (128, 127)
    return engine, Given(127, 127 + chunk, chunk=chunk)


@pytest.mark.parametrize("runner", Runner)
def test_a_full_session_given_a_chunk_of_two_reads_the_column_behind_its_row(runner):
    engine, step_given = session_at_128("full-attention")
    at = at_of(engine, step_given, runner, SHIPPED)
    step = BY_NAME["session-chunk"]
    assert step.allowed(at)
    assert not step.allowed(at_of(engine, step_given, runner))  # with the length checked
    engine.take("session-chunk", step_given)
    assert step.after(at) == state_of(engine)
    assert (engine.computed, len(engine.blocks), engine.count, engine.sizes.width()) == (129, 8, 8, 8)
    assert row_width(at.deployment, at.case.spec, runner=runner, release=SHIPPED) == 8
    read = column(at.deployment, at.case.spec, Access(position=128), runner=runner, release=SHIPPED)
    assert read == 8


@pytest.mark.parametrize(("states", "listed", "width"), [(0, 9, 8), (3, 12, 11)])
@pytest.mark.parametrize("runner", Runner)
def test_a_full_session_given_a_chunk_of_two_lists_one_state_more_than_its_row(runner, states, listed, width):
    engine, step_given = session_at_128("mamba-align", states)
    at = at_of(engine, step_given, runner, SHIPPED)
    after = BY_NAME["session-chunk"].after(at)
    assert (after.listed_blocks, after.counted_blocks) == (listed, listed)
    assert row_width(at.deployment, at.case.spec, runner=runner, release=SHIPPED) == width
    with pytest.raises(Overrun):
        engine.take("session-chunk", step_given)


def test_a_longer_chunk_has_167_tokens_computed_up_to_position_166():
    engine, step_given = session_at_128("full-attention", chunk=40)
    engine.take("session-chunk", step_given)
    at = at_of(session_at_128("full-attention")[0], step_given, Runner.V2, SHIPPED)
    assert BY_NAME["session-chunk"].after(at).computed_tokens == engine.computed == 167
    read = column(at.deployment, at.case.spec, Access(position=166), release=SHIPPED)
    assert read == 10  # positions 160 to 175 of blocks of 16
