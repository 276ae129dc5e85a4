"""The comparison and the driver, on a stand-in for the engine; vLLM itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace

import comparison
import conform
import engines
import pytest
from comparison import Mismatch, Tally, Watch
from setups import Setup

from invariants import Deployment, FullAttentionSpec, SlidingWindowSpec
from proofs.mutated import MUTANTS

BLOCK = 16


class FakeManager:
    """Lists one block per 16 started tokens, and nulls the first `nulled` of them."""

    def __init__(self, nulled=0):
        self.lists, self.nulled = {}, nulled

    def allocate_slots(
        self, request, num_new_tokens, num_new_computed_tokens=0, new_computed_blocks=None,
        num_lookahead_tokens=0, num_external_computed_tokens=0, num_encoder_tokens=0,
    ):  # fmt: skip
        held = self.lists.setdefault(request.request_id, [])
        while len(held) * BLOCK < request.num_computed_tokens + num_new_tokens:
            held.append((len(held) + 1, len(held) < self.nulled))
        return "blocks"


@pytest.fixture
def watched(monkeypatch):
    """Return a function that watches a fake manager and takes one step of a request."""
    fake = SimpleNamespace(
        version=lambda: "0.0.0",
        lists_of=lambda manager, name: [manager.lists.get(name, [])],
        allocator_of=lambda manager, group: "FakeManager.allocate_new_blocks",
    )
    monkeypatch.setattr(comparison, "engine", fake)

    def step(tokens, spec=None, computed=0, nulled=0):
        specs = (spec or FullAttentionSpec(block_size=BLOCK),)
        setup = Setup("full-attention", "vllm-0.33", Deployment(max_model_len=64), specs, 64)
        manager, tally = FakeManager(nulled), Tally()
        watch = Watch(setup, manager, tally)
        manager.allocate_slots(
            SimpleNamespace(request_id="r", num_computed_tokens=computed), tokens - computed
        )
        watch.close()
        return tally.record("full-attention")

    return step


def test_a_list_as_long_as_the_formula_says_is_counted_with_its_distance_to_the_bound(watched):
    record = watched(17)
    assert (record.steps, record.largest, record.bound, record.gap, record.reached) == (1, 2, 4, 2, 0)


def test_a_request_that_fills_its_context_reaches_the_bound(watched):
    record = watched(63)
    assert (record.largest, record.gap, record.reached) == (4, 0, 1)


@pytest.mark.parametrize("edit", ["one entry more", "one entry less"])
def test_a_broken_formula_is_told_with_the_engine_s_function_and_the_sizes(watched, edit):
    mutant = next(m for m in MUTANTS if m.name == f"specs.AttentionSpec.entries: {edit}")
    with mutant.applied(), pytest.raises(Mismatch) as told:
        watched(17)
    said = str(told.value)
    assert "FakeManager.allocate_new_blocks holds 2 blocks" in said
    assert f"invariants.AttentionSpec.entries says {3 if edit.endswith('more') else 1}" in said
    assert "num_tokens 17" in said
    assert "max_model_len 64" in said


def test_a_null_block_inside_the_window_is_told(watched):
    window = SlidingWindowSpec(block_size=BLOCK, sliding_window=20)
    assert watched(41, window, computed=40, nulled=1).steps == 1  # positions 21 and up are read
    with pytest.raises(Mismatch, match=r"null block in entry 1 .* has position 21 read"):
        watched(41, window, computed=40, nulled=2)


def test_a_type_whose_bound_is_never_reached_does_not_conform(monkeypatch, capsys):
    monkeypatch.setattr(conform, "run_kind", lambda kind, known, tally, examples: tally.record(kind))
    assert not conform.run(conform.release("vllm-0.33"), ["full-attention"], 1)
    assert "no setup of 0 reached its bound" in capsys.readouterr().out


def test_what_the_engine_raises_is_told_in_one_line(monkeypatch, capsys):
    def raises(*_given):
        raise IndexError("list index out of range")

    monkeypatch.setattr(conform, "run_kind", raises)
    monkeypatch.setattr(conform.engine, "version", lambda: "0.0.0")
    assert not conform.run(conform.release("vllm-0.33"), ["mla"], 1)
    assert "IndexError: list index out of range" in capsys.readouterr().out


def test_pins_are_taken_from_the_constraints_of_the_tools_alone():
    text = "numpy==2.4.6\nrich==15.0.0\ntorch==2.13.0\n"
    assert engines.pins(text) == ["torch==2.13.0", "rich==15.0.0"]


@pytest.mark.parametrize(
    ("code", "said", "good"),
    [
        (1, "REFUTED  mamba-align            V2 row-fits", True),
        (0, "PROVED   mamba-align            V2 row-fits", False),
        (1, "PROVED   mamba-align            V2 row-fits", False),
        (2, "proofs.check: error: no vLLM", False),
    ],
)
def test_proofs_about_0_28_must_end_in_the_refutation_of_align_rows(code, said, good):
    assert engines.installed_check("0.28.0", code, said)[0] is good


def test_an_unknown_release_is_refused_before_anything_is_installed(capsys):
    assert engines.main(["0.1.0"]) == 2
    assert "there are 0.28.0, 0.32.0, 0.33.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--spec", "nothing"], "invalid choice: 'nothing'"),
        (["--examples", "0"], "'0' is no positive number"),
        (["--break", "nothing"], "no edit is named 'nothing'"),
        (
            ["--record", "x", "--break", "specs.AttentionSpec.column: one column further"],
            "--record does not go with --break",
        ),
        (["--record", "no/such/folder/x"], "cannot write no/such/folder/x: No such file or directory"),
    ],
)
def test_a_mistake_in_the_call_is_told_before_anything_is_run(given, told, capsys):
    with pytest.raises(SystemExit) as ended:
        conform.main(given)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_the_table_tells_how_many_of_v2s_rows_and_slots_were_equal():
    record = comparison.Record(rows=5, slots=0, v2_rows=1234, v2_slots=6)
    heading, line = conform.table_of([conform.HEADER, conform.row_of("mla", record)])
    assert heading.endswith("V1 rows  V1 slots  V2 rows  V2 slots")
    assert line.split()[-4:] == ["5", "-", "1,234", "6"]


def test_what_is_known_of_v2s_tables_is_told_and_not_counted_as_equal(capsys):
    tally = Tally()
    record = tally.record("mamba-align")
    record.narrow, record.narrow_first = 2, "5 entries for V2's row of 2"
    conform._print_notes(tally, ["mamba-align"])
    told = capsys.readouterr().out
    assert "too narrow  mamba-align: 5 entries for V2's row of 2; 2 lists kept from their rows" in told
