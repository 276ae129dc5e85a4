"""A saved query is the claim itself, for any solver and any reader."""

import pytest
import z3
from test_command import run

from invariants import COLUMN_FITS, ROW_FITS, TODAY, Runner, release
from proofs import smtlib
from proofs.problem import build_problem
from proofs.smtlib import query, save_query
from proofs.verdicts import Obligation, obligations


def asked(kind, invariant=ROW_FITS, known=TODAY, **pins):
    obligation = Obligation(kind, invariant, Runner.V2, known)
    return obligation, build_problem(obligation, pins)


def cvc5_answer(text):
    cvc5 = pytest.importorskip("cvc5")
    solver = cvc5.Solver()
    solver.setOption("tlimit-per", "2000")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "test")
    answers = []
    while not (command := parser.nextCommand()).isNull():
        answers.append(command.invoke(solver, parser.getSymbolManager()).strip())
    return answers[-1]


@pytest.mark.parametrize(
    ("kind", "name", "answer"), [("mamba-align", "today", "unsat"), ("mamba-align", "vllm-0.28", "sat")]
)
def test_both_solvers_read_a_saved_query_and_agree(tmp_path, kind, name, answer):
    path = save_query(tmp_path, *asked(kind, known=release(name)), budget="rlimit 20,000,000")
    solver = z3.Solver()
    solver.from_file(str(path))
    assert str(solver.check()) == answer
    assert cvc5_answer(path.read_text()) == answer


def test_every_claim_of_today_can_be_read_by_both_solvers():
    for obligation in obligations(TODAY, runners=[Runner.V2]):
        text = query(obligation, build_problem(obligation, {}), budget="none")
        z3.Solver().from_string(text)
        cvc5_answer(text.replace("(check-sat)\n", ""))


def test_a_name_that_is_longer_than_a_line_is_declared():
    names = [z3.Int(letter * 150 + " * b") for letter in "abc"]
    text = smtlib.script([names[0] + names[1] < names[2], names[0] > 5 + names[2], names[1] > 0], "QF_LIA")
    solver = z3.Solver()
    solver.from_string(text)
    assert solver.check() == z3.unsat
    assert cvc5_answer(text) == "unsat"


def test_a_query_says_what_it_asks(tmp_path):
    obligation, problem = asked("full-attention", COLUMN_FITS, max_model_len=512)
    path = save_query(tmp_path / "queries", obligation, problem, budget="rlimit 20,000,000")
    assert path.name == "today-full-attention-column-fits-V2.smt2"
    head = [line for line in path.read_text().splitlines() if line.startswith(";")]
    assert head[0].startswith("; claim    column-fits: every column that a kernel computes")
    assert "; spec     full-attention on V2" in head
    assert "; release  today (vLLM 0.29 to 0.33, gaps closed)" in head
    assert "; pinned   max_model_len=512" in head
    assert "; budget   rlimit 20,000,000" in head
    assert any(z3.get_version_string() in line for line in head)
    assert ":named |read-by-kernel|" in path.read_text()
    assert path.read_text().endswith("(check-sat)\n")


def test_a_query_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def breaks_off(*_args, **_kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(smtlib, "query", breaks_off)
    with pytest.raises(OSError, match="no space"):
        save_query(tmp_path, *asked("mamba-align"), budget="none")
    assert not list(tmp_path.iterdir())


def test_queries_of_an_earlier_run_go_and_nothing_else_does(tmp_path):
    saved = save_query(tmp_path, *asked("mamba-align"), budget="none")
    own = tmp_path / "own.smt2"
    own.write_text("; a query of somebody else's\n(check-sat)\n")
    (tmp_path / "notes.txt").write_text("; claim    ")
    smtlib.clear_queries(tmp_path)
    assert not saved.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"own.smt2", "notes.txt"}


def test_a_run_that_proves_everything_leaves_no_query_of_the_run_before(tmp_path):
    rows = ("--spec", "mamba-align", "--invariant", "row-fits", "--save-queries", str(tmp_path))
    assert run("--release", "vllm-0.28", *rows).returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["vllm-0.28-mamba-align-row-fits-V2.smt2"]
    assert run(*rows).returncode == 0
    assert not list(tmp_path.iterdir())


def test_names_of_users_releases_become_plain_file_names(tmp_path):
    import dataclasses

    own = dataclasses.replace(TODAY, name="../my engine.py:row_width")
    path = save_query(tmp_path, *asked("mamba-align", known=own), budget="none")
    assert path.parent == tmp_path
    assert path.name == "..-my-engine.py-row_width-mamba-align-row-fits-V2.smt2"
