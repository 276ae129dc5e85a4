"""What each release leaves open is refuted with the numbers that were reported, and nothing beside it."""

import pytest

from invariants import TODAY, Access, Runner, build_case, claim, column, release, row_width
from proofs import decide as decide_module
from proofs.decide import decide
from proofs.verdicts import Obligation, Outcome, Verdict, obligations


def ask(kind, label, runner, name, **pins):
    return decide(Obligation(kind, claim(label), Runner(runner), release(name)), pins)


def values_of(kind, label, runner, name, **pins):
    outcome = ask(kind, label, runner, name, **pins)
    assert outcome.verdict is Verdict.REFUTED, outcome
    assert {name: outcome.counterexample.values[name] for name in pins} == pins
    return outcome.counterexample.values, outcome.counterexample


# --- a drafter that clamps to the max_model_len of its construction -------------------------------


@pytest.mark.parametrize(
    ("length", "block", "at"), [(1024, 16, 64), (40960, 128, 320)], ids=["blocks of 16", "blocks of 128"]
)
def test_a_stale_drafter_writes_the_column_behind_the_row_with_three_drafts(length, block, at):
    pins = {"max_model_len": length, "block_size": block}
    values, found = values_of("full-attention", "column-fits/draft-step", "V2", "vllm-0.32", **pins)
    assert (values["num_speculative_tokens"], values["draft_step"]) == (3, 2)
    assert values["position"] == length
    assert (found.row.wanted, found.row.width) == (at, at)


@pytest.mark.parametrize(
    ("runner", "name", "verdict"),
    [
        ("V2", "vllm-0.32", Verdict.PROVED),
        ("V1", "vllm-0.33", Verdict.PROVED),
    ],
)
def test_two_drafts_do_not_reach_that_column(runner, name, verdict):
    pins = {"max_model_len": 1024, "num_speculative_tokens": 2}
    assert ask("full-attention", "column-fits/draft-step", runner, name, **pins).verdict is verdict


def test_a_length_that_the_padding_covers_does_not_reach_the_next_row():
    pins = {"max_model_len": 1008, "block_size": 16, "num_speculative_tokens": 3}
    assert (
        ask("full-attention", "column-fits/draft-step", "V2", "vllm-0.32", **pins).verdict is Verdict.PROVED
    )


@pytest.mark.parametrize(
    ("runner", "name", "verdict"),
    [
        ("V2", "vllm-0.33", Verdict.PROVED),
        ("V1", "vllm-0.33", Verdict.REFUTED),
        ("V1", "today", Verdict.PROVED),
    ],
)
@pytest.mark.parametrize("label", ["column-fits/draft-step", "consumers-agree/lowered-max-model-len"])
def test_the_limit_that_a_drafter_reads_anew_is_right(label, runner, name, verdict):
    assert ask("full-attention", label, runner, name, max_model_len=1024).verdict is verdict


# --- a ring that is read by position --------------------------------------------------------------


def test_a_ring_group_on_v1_is_read_at_column_16383_of_a_row_of_16():
    pins = {"block_size": 8, "max_model_len": 131072}
    values, found = values_of("circular-buffer", "column-fits", "V1", "vllm-0.33", **pins)
    assert (found.row.wanted, found.row.width, values["position"]) == (16, 16, 128)  # the first that leaves
    case = build_case("circular-buffer", values)
    known = release("vllm-0.33")
    last = column(case.deployment, case.spec, Access(position=131071), runner=Runner.V1, release=known)
    assert last == 16383
    assert row_width(case.deployment, case.spec, runner=Runner.V1, release=known) == 16
    assert row_width(case.deployment, case.spec, runner=Runner.V2, release=known) == 1


@pytest.mark.parametrize(("runner", "name"), [("V2", "vllm-0.33"), ("V1", "today")])
def test_a_ring_group_is_read_in_its_one_block_elsewhere(runner, name):
    pins = {"block_size": 8, "max_model_len": 131072}
    assert ask("circular-buffer", "column-fits", runner, name, **pins).verdict is Verdict.PROVED


# --- integers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "first"), [(16, 134217728), (128, 16777216), (4096, 524288), (262144, 8192), (1048576, 2048)]
)
def test_the_first_block_whose_slot_wraps_is_the_one_that_was_reported(block, first):
    values, found = values_of("full-attention", "index-fits/slot", "V2", "vllm-0.33", block_size=block)
    assert values["block_id"] == first
    assert found.smallest
    assert "2147483648 wraps to -2147483648" in found.summary


def test_the_first_row_whose_tokens_wrap_is_2048_of_a_million_tokens():
    pins = {"max_model_len": 1048576}
    values, found = values_of("full-attention", "index-fits/token-offset", "V2", "vllm-0.27", **pins)
    assert (values["request_row"], values["position"]) == (2048, 0)
    assert found.smallest
    assert (
        ask("full-attention", "index-fits/token-offset", "V2", "vllm-0.28", **pins).verdict is Verdict.PROVED
    )


@pytest.mark.parametrize(
    ("runner", "name", "verdict"),
    [
        ("V2", "vllm-0.31", Verdict.REFUTED),
        ("V2", "vllm-0.32", Verdict.PROVED),
        ("V1", "vllm-0.33", Verdict.REFUTED),
    ],
)
def test_row_offsets_wrap_where_they_are_computed_in_32_bits(runner, name, verdict):
    assert ask("full-attention", "index-fits/row-offset", runner, name).verdict is verdict


# --- slots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", range(6))
def test_a_block_drafters_queries_overwrite_the_last_block_of_the_context(beyond):
    """Positions 128 to 133 write the slots of positions 112 to 117."""
    pins = {
        "max_model_len": 128, "block_size": 16, "num_speculative_tokens": 7, "other_position": 128 + beyond,
    }  # fmt: skip
    values, found = values_of("full-attention", "slots-distinct/draft-query", "V2", "vllm-0.33", **pins)
    assert values["position"] == 112 + beyond
    assert "column clamped to 7" in found.summary


def test_with_such_queries_masked_no_slot_is_written_twice():
    assert ask("full-attention", "slots-distinct/draft-query", "V2", "today").verdict is Verdict.PROVED


# --- consumers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "pins", "widths"),
    [
        # none, k 2: a layer needs 3, the group's row has 1; align, block 16, length 128, k 2: 10 against 8.
        (
            "uniform-mamba-none",
            {"max_model_len": 128, "mamba_block_size": 128, "num_speculative_blocks": 2},
            (3, 1),
        ),
        (
            "uniform-mamba-align",
            {"max_model_len": 128, "block_size": 16, "num_speculative_blocks": 2},
            (10, 8),
        ),
    ],
)
def test_a_wrapped_groups_row_on_v1_lacks_its_layers_drafts(kind, pins, widths):
    _, found = values_of(kind, "consumers-agree/layers", "V1", "vllm-0.27", **pins)
    assert found.summary == f"the layer's width is {widths[0]}, the group's row is {widths[1]}"
    assert ask(kind, "consumers-agree/layers", "V1", "vllm-0.28", **pins).verdict is Verdict.PROVED


@pytest.mark.parametrize("name", ["vllm-0.33", "vllm-0.32"])
def test_a_kernels_table_is_narrower_than_the_row_of_a_longer_encoder(name):
    """1024 tokens of context and an encoder of 4096 in blocks of 16: 64 columns against 256."""
    pins = {"max_model_len": 1024, "max_num_encoder_input_tokens": 4096, "block_size": 16}
    for runner in Runner:
        _, found = values_of("cross-attention", "consumers-agree/kernel-table", runner, name, **pins)
        assert found.summary == "the kernel's table is 64, the group's row is 256"


@pytest.mark.parametrize("name", ["vllm-0.31", TODAY.name])
def test_a_kernels_table_made_from_the_row_is_as_wide(name):
    assert ask("cross-attention", "consumers-agree/kernel-table", "V2", name).verdict is Verdict.PROVED


# --- what a release as it ships leaves open, and nothing else, is refuted -------------------------

BOTH = ("V1", "V2")
OPEN_IN_033 = {
    # a session's length
    *((kind, runner, f"column-fits/{step}") for step in ("resume", "session-chunk")
      for kind, runners in (("full-attention", BOTH), ("mamba-align", BOTH), ("hisparse-resident", ("V2",)))
      for runner in runners),
    *(("mamba-align", runner, f"append-in-step/{step}") for step in ("resume", "session-chunk")
      for runner in BOTH),
    # V1's slot mapping of rings
    ("circular-buffer", "V1", "column-fits"), ("circular-buffer", "V1", "column-fits/held"),
    # V1's parallel drafter
    ("full-attention", "V1", "column-fits/draft-step"), ("sliding-window", "V1", "column-fits/draft-step"),
    ("full-attention", "V1", "consumers-agree/lowered-max-model-len"),
    # a block drafter's clamped columns
    ("full-attention", "V2", "slots-distinct/draft-query"),
    # the kernel's table and the encoder
    *((kind, runner, "consumers-agree/kernel-table") for kind in ("full-attention", "cross-attention")
      for runner in BOTH),
    # int32
    ("full-attention", "V2", "index-fits/slot"), ("full-attention", "V1", "index-fits/row-offset"),
}  # fmt: skip


def test_vllm_033_is_refuted_exactly_where_it_leaves_something_open(monkeypatch):
    monkeypatch.setattr(decide_module._Session, "_refute", lambda self, found: Outcome(Verdict.REFUTED))
    verdicts = {
        (o.kind, o.runner.value, o.label): decide(o, {}).verdict for o in obligations(release("vllm-0.33"))
    }
    assert {key for key, verdict in verdicts.items() if verdict is Verdict.REFUTED} == OPEN_IN_033
    assert {verdict for key, verdict in verdicts.items() if key not in OPEN_IN_033} == {Verdict.PROVED}


def test_v2_before_029_is_refuted_where_a_run_is_longer_than_a_kernel_block():
    pins = {"decode_context_parallel_size": 2, "block_size": 128, "cp_kv_cache_interleave_size": 128}
    values, found = values_of(
        "full-attention", "slots-distinct", "V2", "vllm-0.28", **pins, blocks_per_kv_block=2
    )
    # The first position of the run's second half, and the first of the next kernel block's.
    assert (values["position"], values["other_position"]) == (64, 128)
    assert "positions 64 and 128 share a slot" in found.summary
    assert ask("full-attention", "slots-distinct", "V2", "vllm-0.29").verdict is Verdict.PROVED
