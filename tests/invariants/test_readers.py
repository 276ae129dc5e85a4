"""The further readers of a row, position by position."""

import itertools

import pytest

from invariants import Runner, build_case, claim, release
from invariants.readers import Drafting, drafter_limit

TODAY = release("today")
GATHER, DRAFT, LOCAL = (claim(f"column-fits/{part}") for part in ("gather", "draft-step", "local-attention"))


def spoken_of(invariant, case, runner=Runner.V2, known=TODAY):
    return all(given.holds(case, known, runner) for given in invariant.givens)


@pytest.mark.parametrize("kind", ["full-attention", "mamba-align"])
def test_the_gather_copies_every_column_up_to_the_count_and_none_behind_it(kind):
    for tokens, states, column in itertools.product(range(1, 40), (0, 2), range(14)):
        values = {
            "max_model_len": 40, "num_tokens": tokens, "block_size": 4, "state": column,
            "num_speculative_blocks": states, "block_table_token_alignment": 1,
        }  # fmt: skip
        case = build_case(kind, values)
        count = len(range(0, tokens, 4)) + (states if kind == "mamba-align" else 0)
        assert spoken_of(GATHER, case) == (column < count)
        width = 10 + (states if kind == "mamba-align" else 0)
        assert GATHER.holds(case, TODAY, Runner.V2) == (column < width)


def local_pages(length, computed, chunk, page):
    """Enumerate, query by query, the pages that a step's queries touch, as the chunks of a sequence."""
    pages = set()
    for query in range(computed, length):
        first = query
        while first % chunk:
            first -= 1
        pages |= {position // page for position in range(first, min(first + chunk, length))}
    return pages


@pytest.mark.parametrize(("chunk", "page"), [(4, 2), (4, 4), (8, 2), (8, 4), (16, 4)])
def test_the_pages_of_local_attention_are_those_of_its_chunks_one_by_one(chunk, page):
    for length, computed in itertools.product(range(1, 25), range(0, 24, 3)):
        if computed >= length:
            continue
        said = set()
        for position, state in itertools.product(range(computed, length), range(chunk // page + 1)):
            values = {
                "max_model_len": 40, "num_tokens": length, "num_computed_tokens": computed,
                "block_size": page, "attention_chunk_size": chunk, "position": position, "state": state,
            }  # fmt: skip
            case = build_case("chunked-local", values)
            if spoken_of(LOCAL, case):
                said.add(LOCAL.sides(case, TODAY, Runner.V2)[0].value)
        assert said == local_pages(length, computed, chunk, page)


def test_chunks_that_are_no_whole_pages_are_not_spoken_of():
    values = {"max_model_len": 40, "num_tokens": 9, "block_size": 4, "attention_chunk_size": 6}
    assert not spoken_of(LOCAL, build_case("chunked-local", values))


@pytest.mark.parametrize(
    ("runner", "name", "limit"),
    [
        ("V2", "vllm-0.32", 64), ("V2", "vllm-0.33", 32), ("V2", "today", 32),
        ("V1", "vllm-0.32", 64), ("V1", "vllm-0.33", 64), ("V1", "today", 32),
    ],
)  # fmt: skip
def test_a_drafter_writes_the_positions_after_the_last_clamped_to_its_limit(runner, name, limit):
    """max_model_len was 64 when the drafter was made and is 32 now."""
    for drafts, tokens in itertools.product((0, 2, 3, 4), (1, 20, 29, 30, 31)):
        written = {min(tokens - 1 + step, limit - 1) for step in range(1, drafts)}
        said = set()
        for step, position in itertools.product(range(1, 6), range(40)):
            values = {
                "max_model_len": 32, "configured_max_model_len": 64, "num_speculative_tokens": drafts,
                "num_tokens": tokens, "draft_step": step, "position": position, "block_size": 4,
            }  # fmt: skip
            case = build_case("full-attention", values, (Drafting,))
            assert drafter_limit(case, release(name), Runner(runner)) == limit
            if spoken_of(DRAFT, case, Runner(runner), release(name)):
                said.add(position)
        assert said == written
