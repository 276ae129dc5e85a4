"""Every claim notices a formula that is off by one edit, and the command says so of each."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from invariants import INVARIANTS, SPEC_KINDS, TODAY, Deployment, MambaAlignSpec, Request, entries
from proofs import mutants_command
from proofs.decide import decide
from proofs.mutant_pool import Fate, Finding, Question, check_mutant
from proofs.mutants_command import finding_lines, main
from proofs.mutated import MUTANTS
from proofs.mutations import Mutant, MutantDoesNotApply
from proofs.verdicts import Verdict, obligations

ALIGN = "mamba-align V2 row-fits"
WIDER = Mutant(
    "specs.MambaAlignSpec.max_num_blocks_per_req", "one entry of room more",
    "return cdiv(", "return 1 + cdiv(", (ALIGN,),
)  # fmt: skip
MORE = Mutant("specs.MambaAlignSpec.entries", "one entry more", "return cdiv(", "return 1 + cdiv(", (ALIGN,))
SLOW = {"full-attention", "cross-attention", "uniform-full-attention"}


def ask_of(obligation):
    return f"{obligation.kind} {obligation.runner.value} {obligation.label}"


def label_of(ask):
    return ask.split()[2]


def quickest_for(label):
    """Return a mutant that the claim must refute and which of its types is asked: not a sharded one."""
    pairs = [(m, ask) for m in MUTANTS for ask in m.asks if label_of(ask) == label]
    return min(pairs, key=lambda pair: (pair[1].split()[0] in SLOW, pair[0].asks.index(pair[1])))


def held(num_tokens):
    return entries(
        Deployment(max_model_len=64), MambaAlignSpec(block_size=16), Request(num_tokens=num_tokens)
    )


# --- the mutants ----------------------------------------------------------------------------------


def test_no_two_mutants_have_one_name_or_make_one_edit():
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({(m.place, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_fits_the_source_and_asks_claims_that_are_made_today(mutant):
    made = {ask_of(obligation) for obligation in obligations(TODAY)}
    assert mutant.asks
    assert set(mutant.asks) <= made
    with mutant.applied():
        pass


@pytest.mark.parametrize("family", sorted({i.name for i in INVARIANTS}))
def test_each_family_must_refute_three_mutants_or_more(family):
    assert len([m for m in MUTANTS if label_of(m.asks[0]).split("/")[0] == family]) >= 3


def test_the_transition_system_has_twenty_mutants_or_more():
    assert len([m for m in MUTANTS if m.place.split(".")[0] == "lifecycle"]) >= 20


@pytest.mark.parametrize("kind", SPEC_KINDS)
def test_of_each_type_of_spec_or_of_what_it_wraps_a_row_that_is_too_narrow_is_refuted(kind):
    layer = kind.removeprefix("uniform-")
    kinds = {ask.split()[0] for m in MUTANTS for ask in m.asks if label_of(ask) == "row-fits"}
    shares = {"kpool-tail": "circular-buffer", "hidden-state": "mla"}
    assert {kind, layer, shares.get(kind, kind)} & kinds


@pytest.mark.parametrize("label", [i.label for i in INVARIANTS])
def test_each_claim_refutes_a_mutant(label):
    mutant, ask = quickest_for(label)
    obligation = next(o for o in obligations(TODAY) if ask_of(o) == ask)
    with mutant.applied():
        assert decide(obligation, {}).verdict is Verdict.REFUTED


ROW_FITS = [(m, ask) for m in MUTANTS for ask in m.asks if label_of(ask) == "row-fits"]


@pytest.mark.parametrize(("mutant", "ask"), ROW_FITS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_mutant_is_refuted_for_every_type_of_spec_whose_rows_it_breaks(mutant, ask):
    obligation = next(o for o in obligations(TODAY) if ask_of(o) == ask)
    with mutant.applied():
        assert decide(obligation, {}).verdict is Verdict.REFUTED


# --- an edit --------------------------------------------------------------------------------------


def test_an_edit_holds_within_and_is_taken_back_whatever_happens():
    assert held(33) == 3
    with MORE.applied():
        assert held(33) == 4
    assert held(33) == 3
    with pytest.raises(ValueError, match="within"), MORE.applied():
        raise ValueError("within")
    assert held(33) == 3


def test_an_edit_reaches_functions_that_a_claim_or_a_step_holds():
    """The step's `after` is a lambda that only its dataclass holds."""
    mutant = next(m for m in MUTANTS if m.what == "preempt keeps its list")
    obligation = next(o for o in obligations(TODAY) if ask_of(o) == mutant.asks[0])
    assert decide(obligation, {}).verdict is Verdict.PROVED
    with mutant.applied():
        assert decide(obligation, {}).verdict is Verdict.REFUTED
    assert decide(obligation, {}).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("place", "old", "new", "reason"),
    [
        ("specs.MambaAlignSpec.entries", "no such text", "x", "stands there 0 times"),
        ("specs.MambaAlignSpec.entries", "self", "other", "times, not once"),
        ("lifecycle", "INITIAL = RowState(running=False)", "INITIAL = RowState()", "changes no function"),
        ("specs.MambaAlignSpec.entries", "return cdiv(", "return 1 + \\\n cdiv(", "spans lines"),
    ],
)  # fmt: skip
def test_an_edit_that_would_change_nothing_or_too_much_is_refused(place, old, new, reason):
    with pytest.raises(MutantDoesNotApply, match=reason), Mutant(place, "x", old, new, (ALIGN,)).applied():
        pass


# --- what becomes of a mutant ---------------------------------------------------------------------


def test_a_caught_mutant_names_the_claim_and_the_smallest_case():
    """One token, no drafts, blocks of 16: two entries for a row of one."""
    finding = check_mutant(Question(MORE))
    assert (finding.fate, finding.caught_by, finding.asked) == (Fate.CAUGHT, ALIGN, 1)
    line = finding_lines(finding)[1]
    assert "by mamba-align V2 row-fits" in line
    assert "at 1 token the scheduler hands over 2 entries for a row of 1" in line
    assert "max_model_len 2" in line


def test_a_mutant_that_its_claims_do_not_refute_is_asked_of_the_others():
    """A wider row is no danger to row-fits, and no other claim is about its width being exact."""
    finding = check_mutant(Question(WIDER, ("mamba-align V2 column-fits",)))
    assert (finding.fate, finding.asked) == (Fate.SURVIVED, 2)
    elsewhere = Mutant(MORE.place, MORE.what, MORE.old, MORE.new, ("mla V2 row-fits",))
    finding = check_mutant(Question(elsewhere, (ALIGN,)))
    assert (finding.fate, finding.caught_by, finding.asked) == (Fate.CAUGHT, ALIGN, 2)


def test_a_mutant_of_which_the_solver_cannot_tell_is_undecided_unless_a_claim_catches_it(monkeypatch):
    monkeypatch.setattr("proofs.decide.RLIMIT", 10)
    monkeypatch.setattr("proofs.decide._FIRST_RLIMIT", 10)
    finding = check_mutant(Question(WIDER))
    assert finding.fate is Fate.UNDECIDED
    assert "UNKNOWN" in finding.undecided[0]


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def planted(monkeypatch):
    def plant(*mutants, others=()):
        monkeypatch.setattr(mutants_command, "MUTANTS", mutants)
        monkeypatch.setattr(mutants_command, "others", lambda mutant: others)

    return plant


def test_a_planted_survivor_is_told_with_its_edit_and_exits_1(planted, capsys):
    planted(MORE, WIDER)
    assert main(["--jobs", "2"]) == 1
    out = capsys.readouterr().out
    assert f"CAUGHT     {MORE.name}" in out
    assert f"SURVIVED   {WIDER.name}" in out
    assert "+ return 1 + cdiv(" in out
    assert "1 claims asked, none is refuted" in out
    assert "2 mutants of today's formulas: 1 caught (1 by row-fits), 1 survived, 0 undecided" in out


def test_a_mutant_that_no_longer_fits_the_source_exits_5_before_a_survivor(planted, capsys):
    planted(WIDER, Mutant(MORE.place, "gone", "no such text", "x", (ALIGN,)))
    assert main([]) == 5
    assert "stands there 0 times, not once" in capsys.readouterr().out


@pytest.mark.parametrize(("fate", "code"), [(Fate.UNDECIDED, 3), (Fate.SURVIVED, 1), (Fate.ERROR, 5)])
def test_each_fate_has_its_exit_code(planted, monkeypatch, capsys, fate, code):
    planted(MORE)
    monkeypatch.setattr(
        mutants_command, "check_all", lambda questions, jobs: (x for x in [(0, Finding(MORE, fate, 1))])
    )
    assert main([]) == code


def test_findings_are_printed_in_the_mutants_order(planted, monkeypatch, capsys):
    planted(MORE, WIDER)
    late = [(1, Finding(WIDER, Fate.SURVIVED)), (0, Finding(MORE, Fate.SURVIVED))]
    monkeypatch.setattr(mutants_command, "check_all", lambda questions, jobs: (x for x in late))
    main([])
    out = capsys.readouterr().out
    assert out.index(MORE.name) < out.index(WIDER.name)


def test_the_json_file_has_each_mutant_and_is_marked_complete_at_the_end(planted, tmp_path):
    planted(MORE, WIDER)
    path = tmp_path / "mutants.json"
    assert main(["--json", str(path)]) == 1
    document = json.loads(path.read_text())
    assert next(iter(document)) == "complete"
    assert (document["schema"], document["complete"], document["exit_code"]) == (
        "rowbound.mutants/1",
        True,
        1,
    )
    caught, survived = document["mutants"]
    assert caught["caught_by"] == {"spec": "mamba-align", "runner": "V2", "claim": "row-fits"}
    assert (caught["case"]["values"]["max_model_len"], caught["case"]["values"]["num_tokens"]) == (2, 1)
    assert (survived["fate"], survived["caught_by"], survived["case"]) == ("SURVIVED", None, None)
    assert [entry["old"] for entry in document["mutants"]] == [MORE.old, WIDER.old]


def test_a_selection_takes_the_mutants_with_the_text_in_their_name_or_claims(capsys):
    assert main(["--list", "--only", "draft-query"]) == 0
    out = capsys.readouterr().out
    assert "slots._query_place: one column clamps all" in out
    assert "+ - 2), modulo" in out
    assert "lifecycle" not in out
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.count("must be refuted by") == len(MUTANTS)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--only", "no-such"], "no mutant has 'no-such' in its name or claims"),
        (["--jobs", "0"], "must be a whole number from 1 to 1024, not '0'"),
        (["--jobs", "²"], "must be a whole number from 1 to 1024, not '²'"),
        (["--json", "/no/such/directory/x.json"], "cannot write /no/such/directory/x.json"),
        (["--json", "-"], "--json takes a file"),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_a_mistake_in_the_call_is_one_line_and_exits_2(arguments, line, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_an_interrupted_run_says_how_far_it_came_and_leaves_an_incomplete_file(tmp_path):
    path = tmp_path / "mutants.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "proofs.mutants", "--jobs", "1", "--json", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert "CAUGHT" in process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"of {len(MUTANTS)} checked; nothing is claimed of the rest" in said
    document = json.loads(path.read_text())
    assert (document["complete"], document["exit_code"]) == (False, None)
    assert document["mutants"][0]["fate"] == "CAUGHT"
