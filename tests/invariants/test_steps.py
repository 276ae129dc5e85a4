"""What the claims about one step say, worked out by hand, and steps at the edge of what is allowed."""

import dataclasses

import pytest

from invariants import (
    TODAY,
    CircularBufferSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiSparseResidentSpec,
    MambaAlignSpec,
    MLAAttentionSpec,
    Runner,
    SlidingWindowSpec,
    build_case,
    release,
)
from tests.invariants.anew import anew, given_names, made_on, told

V1, V2 = Runner
SHIPPED = release("vllm-0.33")
STATE = {"known_tokens": 11, "computed_tokens": 8, "listed_blocks": 2, "counted_blocks": 2}


@pytest.fixture(name="lifecycle")
def _lifecycle():
    return anew("lifecycle")


def case_of(lifecycle, kind="full-attention", **values):
    """A row of four blocks of 4 tokens, each two entries; a step from token 8 to token 9 of 11."""
    sizes = {
        "max_model_len": 16, "block_size": 4, "blocks_per_kv_block": 2, "block_table_token_alignment": 1,
        "num_tokens": 9, "num_computed_tokens": 8, **STATE,
    }  # fmt: skip
    return build_case(kind, {**sizes, **values}, (lifecycle.RowState, lifecycle.Move))


def at_of(lifecycle, *, known=TODAY, runner=V2, **values):
    return lifecycle.now(case_of(lifecycle, **values), known, runner)


def claimed(lifecycle, label):
    family, _, part = label.partition("/")
    (found,) = [c for c in lifecycle.LIFECYCLE if (c.name, c.part) == (family, part)]
    return found


def step_of(lifecycle, name):
    return next(step for step in lifecycle.STEPS if step.name == name)


# --- what a step leaves ---------------------------------------------------------------------------


def test_the_numbers_of_a_step_are_in_entries_and_tokens(lifecycle):
    """The pass computes token 9: three blocks of two entries for a row of eight."""
    chunk = claimed(lifecycle, "append-in-step/prefill-chunk")
    numbers = {
        "scheduler: entries after": 6, "worker: count after": 6, "worker: row width": 8,
        "scheduler: tokens after": 11, "worker: computed after": 9, "scheduler: entries needed": 6,
    }  # fmt: skip
    assert told(chunk, case_of(lifecycle), TODAY, V2)[:3] == (True, numbers, 2)


def test_a_count_that_left_the_list_is_told(lifecycle):
    chunk = claimed(lifecycle, "append-in-step/prefill-chunk")
    found = told(chunk, case_of(lifecycle, counted_blocks=3), TODAY, V2)
    assert list(found[1].values()) == [6, 8, 8, 11, 9, 6]
    said = "prefill-chunk leaves 8 entries in the row for a list of 6"
    assert (found[0], found[2], found[3]) == (False, 0, said)


def test_a_step_without_a_pass_needs_nothing(lifecycle):
    found = told(claimed(lifecycle, "append-in-step/preempt"), case_of(lifecycle), TODAY, V2)
    assert found[:2] == (True, {
        "scheduler: entries after": 0, "worker: count after": 4, "worker: row width": 8,
        "scheduler: tokens after": 11, "worker: computed after": 0,
    })  # fmt: skip


def test_widths_and_needs_are_those_of_the_runner_and_the_release(lifecycle):
    """0.33 holds manager blocks and pads to 128 tokens; V2 makes the row for the source length too."""
    chunk = claimed(lifecycle, "append-in-step/prefill-chunk")
    shipped = case_of(lifecycle, block_table_token_alignment=128, max_source_positions=200)
    assert list(told(chunk, shipped, SHIPPED, V1)[1].values()) == [3, 3, 32, 11, 9, 3]
    assert list(told(chunk, shipped, SHIPPED, V2)[1].values()) == [3, 3, 64, 11, 9, 3]
    assert told(chunk, shipped, SHIPPED, V1)[2] == 29


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((9, 9, 8, 20, 30, 12), "leaves 9 entries in a row of 8: 1 in the next request's row"),
        ((8, 8, 8, 20, 30, 12), "leaves a list of 8 where the step's tokens need 12"),
        ((12, 8, 8, 20, 21, 12), "leaves 21 computed tokens of 20, 9 of them run"),
        ((12, 8, 8, 20, 10, 12), "leaves 10 computed tokens of 20, 9 of them run"),
        ((12, 8, 8, 8, 9, 12), "leaves 9 computed tokens of 8, 9 of them run"),
        ((12, 8, 8, 17, 9, 12), "leaves 17 tokens where max_model_len is 16"),
        ((12, 8, 8, 16, 9, 12), "leaves 8 entries in the row for a list of 12"),
        ((12, 8, 8, 9, 9), "leaves 8 entries in the row for a list of 12"),
        ((0, 8, 8, 16, 0), "leaves 8 entries in the row for a list of 0"),
    ],
)
def test_the_first_thing_that_is_wrong_with_a_row_is_told(lifecycle, values, said):
    """Entries listed, counted, of the row; tokens known, computed; entries needed if there is a pass."""
    chunk = claimed(lifecycle, "append-in-step/prefill-chunk")
    assert chunk.clash(case_of(lifecycle), values) == f"prefill-chunk {said}"


@pytest.mark.parametrize(
    ("after", "sound"),
    [
        ({}, True),
        ({"listed_blocks": 2, "counted_blocks": 2}, False),  # nine tokens take three
        ({"listed_blocks": 4, "counted_blocks": 4}, True),
        ({"listed_blocks": 5, "counted_blocks": 5}, False),  # ten entries for a row of eight
        ({"listed_blocks": 4}, False),
        ({"computed_tokens": 10}, False),  # the pass ended at 9
        ({"known_tokens": 16}, True),
        ({"known_tokens": 17}, False),
        ({"computed_tokens": 9, "known_tokens": 9}, True),
        ({"known_tokens": 8, "computed_tokens": 9}, False),
    ],
)
def test_a_pass_leaves_a_sound_row_and_a_list_that_holds_its_tokens(lifecycle, after, sound):
    left = lifecycle.RowState(known_tokens=11, computed_tokens=9, listed_blocks=3, counted_blocks=3)
    left = dataclasses.replace(left, **after)
    step = dataclasses.replace(step_of(lifecycle, "prefill-chunk"), after=lambda at: left)
    assert lifecycle._keeps(step, at_of(lifecycle)) is sound


def test_a_step_without_a_pass_leaves_a_sound_row_and_no_more_is_asked(lifecycle):
    left = lifecycle.RowState(known_tokens=11, computed_tokens=11)
    step = dataclasses.replace(step_of(lifecycle, "preempt"), after=lambda at: left)
    assert lifecycle._keeps(step, at_of(lifecycle)) is True
    unsound = dataclasses.replace(left, known_tokens=17)
    step = dataclasses.replace(step, after=lambda at: unsound)
    assert lifecycle._keeps(step, at_of(lifecycle)) is False


@pytest.mark.parametrize(
    ("values", "starts"),
    [
        ({"num_computed_tokens": 8}, True),
        ({"num_computed_tokens": 9}, False),
        ({"running": False, "hit_tokens": 5, "external_tokens": 3}, True),
        ({"running": False, "hit_tokens": 5, "external_tokens": 2}, False),
        ({"running": False, "hit_tokens": 9}, True),
    ],
)
def test_a_pass_starts_no_further_than_tokens_are_there(lifecycle, values, starts):
    left = lifecycle.RowState(known_tokens=11, computed_tokens=9, listed_blocks=3, counted_blocks=3)
    step = dataclasses.replace(step_of(lifecycle, "prefill-chunk"), after=lambda at: left)
    assert lifecycle._keeps(step, at_of(lifecycle, **values)) is starts


def test_a_list_is_held_against_what_the_release_needs(lifecycle):
    """0.25 spreads a block of 4 over two prefill ranks: nine tokens take two, and three today."""
    left = lifecycle.RowState(known_tokens=11, computed_tokens=9, listed_blocks=2, counted_blocks=2)
    step = dataclasses.replace(step_of(lifecycle, "prefill-chunk"), after=lambda at: left)
    values = {"prefill_context_parallel_size": 2}
    assert lifecycle._keeps(step, at_of(lifecycle, known=release("vllm-0.25"), **values)) is True
    assert lifecycle._keeps(step, at_of(lifecycle, **values)) is False


# --- the claims as such ---------------------------------------------------------------------------

TYPES = (
    FullAttentionSpec(block_size=4), MLAAttentionSpec(block_size=4), HiSparseResidentSpec(block_size=4),
    CircularBufferSpec(block_size=4), EncoderOnlyAttentionSpec(block_size=4),
    SlidingWindowSpec(block_size=4, sliding_window=8), MambaAlignSpec(block_size=4),
)  # fmt: skip


def test_each_step_is_a_claim_with_its_sentence_and_its_source(lifecycle):
    chunk = claimed(lifecycle, "append-in-step/prefill-chunk")
    assert chunk.sentence == "a running request computes a further chunk of what it knows [scheduler:840-858]"
    assert (chunk.parts, chunk.waives) == (
        (lifecycle.RowState, lifecycle.Move),
        frozenset({"request-within-context"}),
    )
    assert given_names(chunk) == ["row-invariant", "step-allowed"]
    assert chunk.givens[1].sentence == "the engine may take the step there"
    assert made_on(chunk, *TYPES) == "V1 V2, -, V2, V1 V2, -, V1 V2, V1 V2"


def test_each_step_that_writes_is_a_claim_about_columns_too(lifecycle):
    chunk = claimed(lifecycle, "column-fits/prefill-chunk")
    assert chunk.sentence == (
        "a running request computes a further chunk of what it knows: every position that it computes lies "
        "inside the row"
    )
    assert (chunk.parts, chunk.waives) == (
        (lifecycle.RowState, lifecycle.Move),
        frozenset({"request-within-context"}),
    )
    assert given_names(chunk) == ["row-invariant", "step-allowed", "written-by-step"]
    assert chunk.givens[2].sentence.startswith("the step computes the position (for recurrent state: in one")
    assert made_on(chunk, *TYPES) == "V1 V2, -, V2, -, -, -, V1 V2"
    names = {c.part for c in lifecycle.LIFECYCLE if c.name == "column-fits"}
    assert names == {"admit", "prefill-chunk", "decode", "speculate", "resume", "session-chunk"}


@pytest.mark.parametrize(
    ("position", "holds", "column", "spare"),
    [(0, True, 0, 7), (15, True, 7, 0), (16, False, 8, -1), (-1, False, -1, 8)],
)
def test_a_position_beyond_the_row_is_told(lifecycle, position, holds, column, spare):
    found = told(
        claimed(lifecycle, "column-fits/prefill-chunk"), case_of(lifecycle, position=position), TODAY, V2
    )
    assert found[:3] == (holds, {"kernel: column": column, "worker: row width": 8}, spare)
    if position == 16:
        assert found[3] == ("position 16: column 8 of a row of 8 (columns 0 to 7) belongs to another request")


def test_what_a_step_writes_is_read_by_the_formulas_of_the_runner_and_the_release(lifecycle):
    chunk = claimed(lifecycle, "column-fits/prefill-chunk")
    sharded = case_of(lifecycle, decode_context_parallel_size=2, dcp_sharded=False, position=12)
    assert list(told(chunk, sharded, TODAY, V1)[1].values()) == [3, 8]
    assert list(told(chunk, sharded, TODAY, V2)[1].values()) == [6, 8]
    shipped = case_of(lifecycle, block_table_token_alignment=128, max_source_positions=200, position=12)
    assert list(told(chunk, shipped, SHIPPED, V1)[1].values()) == [3, 32]
    assert list(told(chunk, shipped, SHIPPED, V2)[1].values()) == [3, 64]
    assert told(chunk, shipped, SHIPPED, V2)[2] == 60


@pytest.mark.parametrize("part", ["append-in-step/prefill-chunk", "column-fits/prefill-chunk"])
def test_a_claim_speaks_of_sound_rows_from_which_the_step_may_be_taken(lifecycle, part):
    chunk = claimed(lifecycle, part)
    sound, allowed = chunk.givens[:2]
    assert sound.holds(case_of(lifecycle), TODAY, V2) is True
    assert sound.holds(case_of(lifecycle, counted_blocks=3), TODAY, V2) is False
    assert allowed.holds(case_of(lifecycle), TODAY, V2) is True
    assert allowed.holds(case_of(lifecycle, num_tokens=12), TODAY, V2) is False
    beyond = {"resumable": True, "known_tokens": 30, "block_table_token_alignment": 128}
    assert [sound.holds(case_of(lifecycle, **beyond), known, V2) for known in (TODAY, SHIPPED)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("part", ["append-in-step/resume", "column-fits/resume"])
def test_cases_close_to_the_context_are_shown_first(lifecycle, part):
    """16 tokens are the context, 17 one more."""
    nearest = claimed(lifecycle, part).nearest
    kept = [
        [near(case_of(lifecycle, known_tokens=known), TODAY, V2) for near in nearest]
        for known in (15, 16, 17, 18)
    ]
    assert kept == [[True, True], [True, True], [False, True], [False, False]]


@pytest.mark.parametrize(
    ("kind", "position", "state", "written"),
    [
        ("full-attention", 8, 0, True), ("full-attention", 7, 0, False), ("full-attention", 9, 0, False),
        ("full-attention", 8, 1, False), ("mamba-align", 8, 2, True), ("mamba-align", 8, 3, False),
    ],
)  # fmt: skip
def test_a_step_writes_the_positions_that_it_computes(lifecycle, kind, position, state, written):
    given = claimed(lifecycle, "column-fits/prefill-chunk").givens[2]
    case = case_of(lifecycle, kind, position=position, state=state, num_speculative_blocks=2)
    assert given.holds(case, TODAY, V2) is written


def test_the_start_is_sound_where_the_row_is_no_less_than_empty(lifecycle):
    start = claimed(lifecycle, "append-in-step/start")
    assert told(start, case_of(lifecycle), TODAY, V2)[:3] == (True, {"worker: row width": 8}, None)
    assert made_on(start, *TYPES) == "V1 V2, -, V2, V1 V2, -, V1 V2, V1 V2"


# --- steps at the edge of what is allowed ---------------------------------------------------------

SESSION = {"known_tokens": 9, "resumable": True, "num_tokens": 10, "chunk_tokens": 2}
"""One token is left to compute; the chunk takes its place, so that two of ten are."""
WAITING = {"running": False, "listed_blocks": 0, "computed_tokens": 0, "hit_tokens": 8}


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        # Two drafts behind the last token, of at most three; so many may be accepted.
        ("speculate", {"known_tokens": 9, "num_tokens": 11, "accepted_tokens": 2}, True),
        ("speculate", {"known_tokens": 9, "num_tokens": 11, "accepted_tokens": 3}, False),
        # All but the last token is a hit: the pass is padded to three drafts, and ends at 12 or at 15.
        ("resume", {**WAITING, "known_tokens": 9, "num_tokens": 12}, True),
        ("resume", {**WAITING, "known_tokens": 9, "num_tokens": 12, "num_sampled_tokens": 0}, False),
        ("resume", {**WAITING, "known_tokens": 12, "num_computed_tokens": 11, "hit_tokens": 11,
                    "num_tokens": 15}, True),
        ("resume", {**WAITING, "known_tokens": 13, "num_computed_tokens": 12, "hit_tokens": 12,
                    "num_tokens": 16}, False),
        ("resume", {**WAITING, "known_tokens": 0, "num_computed_tokens": 0, "hit_tokens": 0,
                    "num_tokens": 0}, False),
        ("session-chunk", SESSION, True),
        ("session-chunk", {**SESSION, "running": False}, False),
        ("session-chunk", {**SESSION, "chunk_tokens": 7}, True),  # 15 tokens
        ("session-chunk", {**SESSION, "chunk_tokens": 8}, False),
    ],
)  # fmt: skip
def test_a_step_is_allowed_up_to_its_edge(lifecycle, name, values, allowed):
    at = at_of(lifecycle, num_speculative_tokens=3, **values)
    assert step_of(lifecycle, name).allowed(at) is allowed


@pytest.mark.parametrize(("chunk", "allowed"), [(15, True), (16, False)])
def test_a_session_whose_length_nobody_checks_is_still_held_to_the_length_of_each_chunk(
    lifecycle, chunk, allowed
):
    at = at_of(lifecycle, known=SHIPPED, **{**SESSION, "chunk_tokens": chunk})
    assert step_of(lifecycle, "session-chunk").allowed(at) is allowed


def test_a_request_that_is_admitted_lists_what_it_needs_whatever_stood_there(lifecycle):
    at = at_of(lifecycle, running=False, listed_blocks=5, counted_blocks=7, prompt_tokens=9)
    after = step_of(lifecycle, "reuse").after(at)
    assert (after.listed_blocks, after.counted_blocks) == (3, 3)
