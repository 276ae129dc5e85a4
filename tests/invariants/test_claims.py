"""What each claim says of one case, worked out by hand: its numbers, its clash and whom it is made for."""

import pytest

from invariants import (
    COLUMN_FITS,
    ROW_FITS,
    TODAY,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiSparseResidentSpec,
    MambaAlignSpec,
    MLAAttentionSpec,
    Runner,
    SlidingWindowSpec,
    UniformTypeSpec,
    build_case,
    claim,
    release,
)
from invariants.cases import describe_kind
from invariants.readers import local_pages
from invariants.rows import HELD, plural
from tests.invariants.anew import anew, given_names, made_on, told

V1, V2 = Runner
SHIPPED = release("vllm-0.33")
FULL, MLA = FullAttentionSpec(block_size=4), MLAAttentionSpec(block_size=4)
NO_RULE_OF_REQUESTS = frozenset({"request-within-context"})


def case_of(kind="full-attention", parts=(), **values):
    sizes = {"max_model_len": 40, "block_size": 4, "block_table_token_alignment": 1, "num_tokens": 9}
    return build_case(kind, {**sizes, **values}, parts)


def named(claims, label):
    (found,) = [known for known in claims if known.label == label]
    return found


# --- rows -----------------------------------------------------------------------------------------


def test_a_row_that_is_too_narrow_is_told_with_the_tokens_and_the_entries():
    """Mamba on V2 in 0.28 with dcp 2: a context of 18 in blocks of 16 is one column, 17 tokens are two."""
    values = {"max_model_len": 18, "block_size": 16, "decode_context_parallel_size": 2}
    faulty = release("vllm-0.28")
    numbers = {"scheduler: entries": 2, "worker: row width": 1}
    clash = (
        "at 17 tokens the scheduler hands over 2 entries for a row of 1: 1 too many, "
        "written into the next request's row"
    )
    case = case_of("mamba-align", **values, num_tokens=17)
    assert told(ROW_FITS, case, faulty, V2) == (False, numbers, -1, clash)
    holds, numbers, spare, _ = told(ROW_FITS, case_of("mamba-align", **values, num_tokens=16), faulty, V2)
    assert (holds, numbers, spare) == (True, {"scheduler: entries": 1, "worker: row width": 1}, 0)


def test_entries_are_those_of_the_release():
    """In 0.25 blocks of 4 tokens span 8 under pcp 2: 9 tokens take two, and three today."""
    case = case_of(prefill_context_parallel_size=2, block_table_token_alignment=128)
    assert told(ROW_FITS, case, release("vllm-0.25"), V2)[1]["scheduler: entries"] == 2
    assert told(ROW_FITS, case, TODAY, V2)[1]["scheduler: entries"] == 3


@pytest.mark.parametrize(
    ("count", "word", "text"),
    [(1, "token", "1 token"), (2, "token", "2 tokens"), (1, "entry", "1 entry"), (0, "entry", "0 entries")],
)
def test_a_count_and_its_word_agree(count, word, text):
    assert plural(count, word) == text


def test_a_width_below_zero_is_told_as_what_it_is():
    said = "the row's width comes out as -2, and no row is narrower than 0"
    assert ROW_FITS.clash(case_of(), (3, -2)) == said
    assert COLUMN_FITS.clash(case_of(), (0, -2)) == said
    assert anew("lifecycle").LIFECYCLE[0].clash(case_of(), (-2,)) == said
    assert ROW_FITS.clash(case_of(), (3, 0)).startswith(
        "at 9 tokens the scheduler hands over 3 entries for a"
    )


@pytest.mark.parametrize(
    ("position", "holds", "column", "spare"),
    [(0, True, 0, 9), (39, True, 9, 0), (40, False, 10, -1), (-1, False, -1, 10)],
)
def test_a_column_outside_the_row_is_told_with_the_row(position, holds, column, spare):
    clash = {
        40: "column 10 of a row of 10 (columns 0 to 9) belongs to another request",
        -1: "column -1 lies before the row and belongs to another request",
    }
    found = told(COLUMN_FITS, case_of(position=position), TODAY, V2)
    assert found[:3] == (holds, {"kernel: column": column, "worker: row width": 10}, spare)
    assert holds or found[3] == clash[position]
    assert COLUMN_FITS.clash(case_of(), (0, 0)) == "column 0 is read of a row that is not there"
    assert COLUMN_FITS.clash(case_of(), (0, 3)).startswith("column 0 of a row of 3 (columns 0 to 2)")


def test_the_column_is_that_of_the_runner_and_the_release():
    """A group that is not sharded: V1 shards it all the same, and in 0.30 a pooled tail goes by position."""
    case = case_of(decode_context_parallel_size=2, dcp_sharded=False, position=39)
    assert [told(COLUMN_FITS, case, TODAY, r)[1]["kernel: column"] for r in Runner] == [4, 9]
    tail = case_of("kpool-tail", position=39, block_table_token_alignment=128)
    names = ("vllm-0.30", "vllm-0.31")
    assert [told(COLUMN_FITS, tail, release(n), V2)[1]["kernel: column"] for n in names] == [9, 0]


def test_a_column_that_the_request_does_not_hold_is_stale():
    found = told(HELD, case_of(position=12), TODAY, V2)
    numbers = {"kernel: column": 3, "scheduler: entries held": 3}
    stale = "column 3 is read of a request that holds 3 entries: it is stale"
    assert found == (False, numbers, -1, stale)
    assert told(HELD, case_of(position=11), TODAY, V2)[::2] == (True, 0)


# --- readers --------------------------------------------------------------------------------------


def test_the_gather_reads_the_column_that_is_selected():
    gather = named(anew("readers").READERS, "column-fits/gather")
    assert (gather.name, gather.part, gather.parts) == ("column-fits", "gather", ())
    assert gather.sentence.startswith("every column that the gather copies, from 0 to the recorded count")
    assert given_names(gather) == ["below-recorded-count"]
    assert made_on(gather, FULL, MLA) == "V2, -"
    numbers = {"kernel: column": 10, "worker: row width": 10}
    clash = "column 10 of a row of 10 (columns 0 to 9) belongs to another request"
    assert told(gather, case_of(state=10), TODAY, V2) == (False, numbers, -1, clash)
    assert told(gather, case_of(state=9), TODAY, V2)[::2] == (True, 0)
    assert [told(gather, case_of(state=column), TODAY, V2)[0] for column in (-1, 0)] == [False, True]


def test_a_draft_step_writes_the_column_of_its_position():
    readers = anew("readers")
    draft = named(readers.READERS, "column-fits/draft-step")
    assert draft.parts == (readers.Drafting,)
    assert given_names(draft) == ["lowered-by-auto-fit", "draft-steps"]
    assert made_on(draft, FULL, SlidingWindowSpec(block_size=4, sliding_window=8), MLA) == "V1 V2, V1 V2, -"
    case = case_of(parts=(readers.Drafting,), position=40)
    numbers = {"kernel: column": 10, "worker: row width": 10}
    assert told(draft, case, TODAY, V1)[:3] == (False, numbers, -1)


def test_local_attention_reads_pages_of_the_table_that_is_made_from_the_row():
    """Blocks of 8 in two kernel blocks of 4: the row of 0.33 has 16 blocks, its table 32 pages."""
    local = named(anew("readers").READERS, "column-fits/local-attention")
    assert given_names(local) == ["local-chunk"]
    assert made_on(local, ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=8), FULL) == "V1 V2, -"
    values = {"block_size": 8, "blocks_per_kv_block": 2, "attention_chunk_size": 8, "num_tokens": 39}
    case = case_of("chunked-local", **values, block_table_token_alignment=128, position=38, state=1)
    numbers = {"kernel: column": 9, "worker: row width": 32}
    assert told(local, case, SHIPPED, V2)[:3] == (True, numbers, 22)


def test_the_table_is_made_for_the_length_that_the_runner_looks_at():
    local = claim("column-fits/local-attention")
    case = case_of("chunked-local", attention_chunk_size=8, max_source_positions=80)
    assert [told(local, case, TODAY, r)[1]["worker: row width"] for r in Runner] == [10, 20]


def test_a_chunk_that_is_no_whole_pages_begins_in_the_page_of_its_first_token():
    assert local_pages(case_of("chunked-local", attention_chunk_size=6, position=7)) == (1, 1)


# --- consumers ------------------------------------------------------------------------------------


def test_a_consumer_that_derives_another_number_is_told_with_both():
    """130 tokens in blocks of 16 are 9, with two draft states 11; the wrapper of 0.27 forgets the states."""
    layers = named(anew("consumers").CONSUMERS, "consumers-agree/layers")
    assert (layers.name, layers.part, layers.margin) == ("consumers-agree", "layers", None)
    assert layers.sentence.startswith("a wrapped group's row is as wide as what each of its layers derives")
    assert (layers.parts, layers.givens, layers.waives) == ((), (), NO_RULE_OF_REQUESTS)
    assert made_on(layers, UniformTypeSpec(inner=FULL), FULL) == "V1 V2, -"
    values = {"max_model_len": 130, "block_size": 16, "num_speculative_blocks": 2}
    case = case_of("uniform-mamba-align", **values)
    numbers = {"consumer: the layer's width": 11, "worker: the group's row": 9}
    clash = "the layer's width is 11, the group's row is 9"
    assert told(layers, case, release("vllm-0.27"), V1) == (False, numbers, None, clash)
    assert told(layers, case, TODAY, V1)[0] is True


def test_a_layer_derives_its_width_on_the_groups_runner_and_release():
    layers = claim("consumers-agree/layers")
    ring = case_of("uniform-circular-buffer", block_size=8, block_table_token_alignment=128)
    assert told(layers, ring, TODAY, V1)[1]["consumer: the layer's width"] == 16
    split = {"block_size": 16, "blocks_per_kv_block": 2, "block_table_token_alignment": 128}
    case = case_of("uniform-full-attention", **split)
    assert told(layers, case, SHIPPED, V2)[1]["consumer: the layer's width"] == 8
    assert told(layers, case, release("vllm-0.31"), V2)[1]["consumer: the layer's width"] == 16


def test_the_kernels_table_is_made_by_the_formulas_of_the_release():
    table = named(anew("consumers").CONSUMERS, "consumers-agree/kernel-table")
    assert made_on(table, FULL, CrossAttentionSpec(block_size=4), MLA) == "V1 V2, V1 V2, -"
    split = {"block_size": 16, "blocks_per_kv_block": 2, "block_table_token_alignment": 128}
    numbers = {"consumer: the kernel's table": 8, "worker: the group's row": 8}
    assert told(table, case_of(**split), SHIPPED, V2)[:2] == (True, numbers)


def test_a_drafters_limit_is_held_against_the_length_of_the_rows():
    consumers = anew("consumers")
    lowered = named(consumers.CONSUMERS, "consumers-agree/lowered-max-model-len")
    assert lowered.parts == (consumers.Drafting,)
    assert given_names(lowered) == ["lowered-by-auto-fit"]
    case = case_of(parts=(consumers.Drafting,), configured_max_model_len=64)
    clash = "the drafter's limit is 64, max_model_len of the rows is 40"
    assert told(lowered, case, SHIPPED, V1)[::3] == (False, clash)


# --- slots ----------------------------------------------------------------------------------------


def slots_case(kind="full-attention", slots=None, **values):
    return case_of(kind, parts=((slots or anew("slots")).OtherPosition,), **values)


def places(invariant, case, runner):
    numbers = told(invariant, case, TODAY, runner)[1]
    assert [name for name in numbers if not name.endswith("other_position")] == [
        "kernel: rank of position", "kernel: block of position", "kernel: offset of position"
    ]  # fmt: skip
    return list(numbers.values())


@pytest.mark.parametrize(
    ("kind", "runner", "values", "numbers"),
    [
        # Two ranks, runs of one: position 13 is the seventh of rank 1, position 6 the fourth of rank 0.
        ("full-attention", V2, {"decode_context_parallel_size": 2}, [1, 1, 2, 0, 0, 3]),
        ("full-attention", V2, {"decode_context_parallel_size": 2, "dcp_sharded": False}, [0, 3, 1, 0, 1, 2]),
        ("full-attention", V1, {"decode_context_parallel_size": 2, "dcp_sharded": False}, [1, 1, 2, 0, 0, 3]),
        ("full-attention", V2, {}, [0, 3, 1, 0, 1, 2]),
        ("hisparse-resident", V2, {"decode_context_parallel_size": 2}, [0, 3, 1, 0, 1, 2]),
        ("circular-buffer", V2, {}, [0, 0, 1, 0, 0, 2]),
    ],
)
def test_a_position_has_a_rank_a_block_and_an_offset(kind, runner, values, numbers):
    slots = anew("slots")
    distinct = named(slots.SLOTS, "slots-distinct")
    case = slots_case(kind, slots, position=13, other_position=6, **values)
    assert places(distinct, case, runner) == numbers


def test_two_positions_of_one_slot_are_told():
    distinct = claim("slots-distinct")
    clash = "positions 3 and 5 share a slot: the later one overwrites the other's keys and values"
    assert distinct.clash(build_case("full-attention", {
        "max_model_len": 40, "block_size": 4, "num_tokens": 9, "position": 3, "other_position": 5,
    }, distinct.parts), ()) == clash  # fmt: skip


@pytest.mark.parametrize(("one", "other"), [(2, 1), (1, 2)])
def test_positions_of_a_group_that_is_not_sharded_are_held_against_each_other_on_one_rank(one, other):
    """Under dcp 2 position 2 of a sharded group would lie where position 1 of this one does."""
    distinct, values = claim("slots-distinct"), {"decode_context_parallel_size": 2, "dcp_sharded": False}
    case = build_case("full-attention", {
        "max_model_len": 40, "block_size": 4, "num_tokens": 9, "position": one, "other_position": other,
        **values,
    }, distinct.parts)  # fmt: skip
    assert distinct.holds(case, TODAY, V2) is True


def test_the_way_back_tells_two_positions_of_a_sharded_group_apart_and_of_no_other(monkeypatch):
    distinct, values = claim("slots-distinct"), {"decode_context_parallel_size": 2}
    monkeypatch.setattr(FullAttentionSpec, "position_at", lambda *_: 0)
    for sharded, found in ((True, False), (False, True)):
        case = build_case("full-attention", {
            "max_model_len": 40, "block_size": 4, "num_tokens": 9, "position": 0, "other_position": 5,
            "dcp_sharded": sharded, **values,
        }, distinct.parts)  # fmt: skip
        assert distinct.holds(case, TODAY, V2) is found


@pytest.mark.parametrize(
    ("kind", "one", "other", "live"),
    [
        # Nine tokens and one of lookahead have slots; a ring of 4 keeps the last four.
        ("full-attention", 2, 5, True), ("full-attention", 2, 2, False), ("full-attention", 3, 2, False),
        ("full-attention", 2, 9, True), ("full-attention", 2, 10, False),
        ("circular-buffer", 2, 5, True), ("circular-buffer", 2, 6, False), ("circular-buffer", 3, 2, False),
        ("circular-buffer", 8, 10, False),
    ],
)  # fmt: skip
def test_both_positions_have_slots_and_in_a_ring_neither_is_overwritten(kind, one, other, live):
    distinct = claim("slots-distinct")
    case = build_case(kind, {
        "max_model_len": 40, "block_size": 4, "num_tokens": 9, "num_lookahead_tokens": 1,
        "position": one, "other_position": other,
    }, distinct.parts)  # fmt: skip
    assert distinct.givens[0].holds(case, TODAY, V2) is live


@pytest.mark.parametrize(("owner", "holds"), [(-1, False), (0, True), (1, True), (2, False)])
def test_an_owner_is_one_of_the_ranks(monkeypatch, owner, holds):
    monkeypatch.setattr(FullAttentionSpec, "owner", lambda *_: owner)
    monkeypatch.setattr(FullAttentionSpec, "position_at", lambda *_: 13)
    owned = claim("slots-distinct/one-owner")
    case = case_of(decode_context_parallel_size=2, position=13)
    assert owned.holds(case, TODAY, V2) is holds
    numbers = told(owned, case, TODAY, V2)[1]
    assert list(numbers.values()) == [owner, 1, 2, 13]


def test_a_place_that_leads_elsewhere_is_told(monkeypatch):
    monkeypatch.setattr(FullAttentionSpec, "position_at", lambda *_: 12)
    found = told(claim("slots-distinct/one-owner"), case_of(position=13), TODAY, V2)
    assert found[::3] == (False, "position 13 is stored by rank 0 where position 12 belongs")


def test_a_drafters_query_behind_the_row_is_clamped_to_its_last_column():
    """A row of 8 blocks of 16: position 100 is column 6, position 132 would be column 8."""
    query, values = claim("slots-distinct/draft-query"), {"max_model_len": 128, "block_size": 16}
    case = build_case(
        "full-attention", {**values, "num_tokens": 126, "position": 100, "other_position": 132}, query.parts
    )
    assert list(told(query, case, SHIPPED, V2)[1].values()) == [6, 4, 7, 4]


# --- integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "index", "what", "values"),
    [
        ("slot", 2**32 + 16, "a slot (block ID * block_size)", {"block_id": 2**28 + 1}),
        ("row-offset", 2**31 + 7, "a row offset (row * stride + column)", {"request_row": 2**28, "state": 7}),
        ("token-offset", 2**31 + 5, "a token offset (row * max_model_len + position)",
         {"request_row": 2**24, "position": 5}),
    ],
)  # fmt: skip
def test_an_index_that_wraps_is_told_with_what_it_wraps_to(label, index, what, values):
    indices = anew("indices")
    fits = named(indices.INDICES, f"index-fits/{label}")
    assert (fits.name, fits.part) == ("index-fits", label)
    assert fits.sentence == f"{what} fits the integer that the kernel computes it in"
    assert (fits.parts, fits.waives) == ((indices.Indices,), NO_RULE_OF_REQUESTS)
    assert given_names(fits) == ["stored-as-int32", "inside"]
    assert made_on(fits, FULL, MLA) == "V1 V2, -"
    sizes = {"max_model_len": 128, "block_size": 16, "block_table_token_alignment": 128}
    case = case_of(parts=(indices.Indices,), max_num_reqs=2**31 - 1, **sizes, **values)
    largest = {"kernel: largest integer": 2**31 - 1}
    runner = V1 if label == "row-offset" else V2
    found = told(fits, case, release("vllm-0.27"), runner)
    clash = f"{what} {index} wraps to {index - 2**32}"
    assert found == (False, {f"kernel: {what}": index, **largest}, 2**31 - 1 - index, clash)
    assert told(fits, case, TODAY, runner)[0] is True
    assert told(fits, case, TODAY, runner)[2] == 2**63 - 1 - index


def test_the_largest_integer_itself_fits():
    """Row 2**24 - 1 of rows of 128 tokens ends at 2**31 - 1."""
    indices = anew("indices")
    fits = named(indices.INDICES, "index-fits/token-offset")
    sizes = {"max_model_len": 128, "max_num_reqs": 2**31 - 1, "request_row": 2**24 - 1, "position": 127}
    case = case_of(parts=(indices.Indices,), **sizes)
    assert told(fits, case, release("vllm-0.27"), V2)[::2] == (True, 0)


@pytest.mark.parametrize(
    "name", ["max_num_reqs", "num_gpu_blocks", "block_size", "max_model_len", "a row in columns"]
)
def test_nothing_that_is_stored_as_int32_is_beyond_it(name):
    """A length of 2**31 - 1 in blocks of one is as many columns, padded to 128 one more."""
    indices = anew("indices")
    stored = indices.INDICES[0].givens[0]
    most = 2**31 - 1

    def holds(**values):
        return stored.holds(case_of(parts=(indices.Indices,), **values), TODAY, V2)

    if name == "a row in columns":
        assert holds(max_model_len=most, block_size=1) is True
        assert holds(max_model_len=most, block_size=1, block_table_token_alignment=128) is False
        return
    wide = {"block_size": 2**20} if name == "max_model_len" else {}
    assert holds(**{**wide, name: most}) is True
    assert holds(**{**wide, name: most + 1}) is False


def test_the_width_of_a_row_is_that_of_its_runner_and_release():
    """V2 sizes rows for the model's source length too; 0.33 holds manager blocks where 0.31 splits them."""
    indices = anew("indices")
    stored, long = indices.INDICES[0].givens[0], 2**31
    case = case_of(parts=(indices.Indices,), block_size=1, max_source_positions=long)
    assert [stored.holds(case, TODAY, runner) for runner in Runner] == [True, False]
    split = case_of(
        parts=(indices.Indices,), block_size=2, blocks_per_kv_block=2, max_model_len=2**31 - 1,
        block_table_token_alignment=128,
    )  # fmt: skip
    assert [stored.holds(split, release(n), V2) for n in ("vllm-0.31", "vllm-0.33")] == [False, True]


# --- claims as such -------------------------------------------------------------------------------


def test_no_claim_has_a_label_that_nobody_gave_it():
    with pytest.raises(KeyError, match="no claim is labelled 'row-fit'"):
        claim("row-fit")


def test_a_claim_takes_the_rules_of_the_type_and_the_release_as_given_but_those_it_waives():
    names = {
        (label, kind, name): [a.name for a in claim(label).assumptions(case_of(kind).spec, release(name))]
        for label, kind, name in (
            ("row-fits", "circular-buffer", "today"),
            ("append-in-step/admit", "circular-buffer", "today"),
            ("row-fits", "mamba-align", "vllm-0.25"),
        )
    }
    assert list(names.values()) == [
        ["sizes", "request-within-context"],
        ["sizes"],
        ["sizes", "request-within-context", "no-prefix-search-under-context-parallelism", "cache-mode"],
    ]


def test_what_a_case_breaks_is_named_rules_first():
    gather = claim("column-fits/gather")
    assert gather.broken(case_of(state=2), TODAY, V2) == ()
    assert gather.broken(case_of(state=3), TODAY, V2) == ("below-recorded-count",)
    broken = gather.broken(case_of(state=3, blocks_per_kv_block=3), TODAY, V2)
    assert broken == ("kernel-blocks-divide",)  # nine tokens are nine kernel blocks then: 3 is one of them
    assert gather.broken(case_of(state=40, num_tokens=40), TODAY, V2) == (
        "request-within-context", "below-recorded-count"
    )  # fmt: skip
    drafting = claim("column-fits/draft-step")
    values = {"num_speculative_tokens": 3, "num_tokens": 39, "draft_step": 2, "configured_max_model_len": 64}
    case = case_of(parts=drafting.parts, position=39, **values)
    assert drafting.broken(case, TODAY, V2) == ()
    assert drafting.broken(case, SHIPPED, V1) == ("draft-steps",)  # V1's drafter goes on to position 40


@pytest.mark.parametrize("wrong", [{"num_sampled_tokens": 2}, {"num_lookahead_tokens": -1}])
def test_a_size_outside_its_range_breaks_the_sizes(wrong):
    assert ROW_FITS.broken(case_of("circular-buffer", **wrong), TODAY, V2) == ("sizes",)


def test_a_part_of_a_claim_brings_its_parameters():
    gather, drafting = claim("column-fits/gather"), claim("column-fits/draft-step")
    names = [p.name for p in case_of(parts=drafting.parts).parameters()]
    assert names[-2:] == ["configured_max_model_len", "draft_step"]
    assert "draft_step" not in [p.name for p in case_of(parts=gather.parts).parameters()]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("mla", "Multi-head latent attention; rows as full attention's."),
        ("hisparse-hot",
         "HiSparse's hot region: a fixed number of blocks once a request reads host history."),
        ("uniform-mamba-align", "The uniform wrapper around mamba-align layers."),
    ],
)  # fmt: skip
def test_a_kind_is_described_in_one_sentence_without_its_source(kind, sentence):
    assert describe_kind(kind) == sentence


def test_claims_about_rows_are_made_of_the_types_that_have_them():
    resident, ring = HiSparseResidentSpec(block_size=4), CircularBufferSpec(block_size=4)
    assert made_on(HELD, FULL, MLA, resident, ring) == "V1 V2, -, V2, V1 V2"
    assert made_on(ROW_FITS, FULL, MLA, resident, MambaAlignSpec(block_size=4)) == "V1 V2, V1 V2, V2, V1 V2"
