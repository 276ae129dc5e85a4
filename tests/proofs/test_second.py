"""A second solver proves the claims by itself, and stays silent where it cannot."""

import time

import pytest

from invariants import COLUMN_FITS, ROW_FITS, TODAY, Runner, release, specs
from proofs import second
from proofs.opaque import Unproved
from proofs.problem import build_problem
from proofs.second import SolverMissing, Stance, require_solver, second_opinion, unproved_lemmas
from proofs.verdicts import Obligation, obligations


def problem_of(kind, invariant=ROW_FITS, runner=Runner.V2, known=TODAY):
    return build_problem(Obligation(kind, invariant, runner, known), {}, with_steps=True)


def no_chain(problem):
    raise Unproved("no chain")


@pytest.mark.parametrize(
    "obligation", obligations(TODAY)[::7], ids=lambda o: f"{o.kind}-{o.label}-{o.runner.value}"
)
def test_cvc5_proves_claims_of_today(obligation):
    pytest.importorskip("cvc5")
    opinion = second_opinion(build_problem(obligation, {}, with_steps=True), "cvc5")
    assert opinion.stance is Stance.PROVED
    assert "link" in opinion.detail


def test_z3_goes_the_same_way():
    opinion = second_opinion(problem_of("full-attention", COLUMN_FITS), "z3")
    assert (opinion.solver, opinion.stance) == ("z3", Stance.PROVED)
    assert {"floor_lt", "mul_mono"} <= set(opinion.lemmas)
    assert {"sizes", "read-by-kernel", "kernel-blocks-divide", "interleave-divides"} <= set(
        opinion.assumptions
    )


@pytest.mark.parametrize("solver", ["z3", "cvc5"])
def test_a_link_that_the_solver_does_not_follow_proves_nothing(monkeypatch, solver):
    pytest.importorskip(solver)
    monkeypatch.setattr(second, "_ask", lambda *asked: "unknown")
    opinion = second_opinion(problem_of("mamba-align"), solver)
    assert opinion.stance is Stance.NOT_PROVED
    assert f"{solver} does not follow goal (unknown)" in opinion.detail
    assert unproved_lemmas(solver)


@pytest.mark.parametrize("solver", ["z3", "cvc5"])
def test_an_exhausted_budget_proves_nothing(monkeypatch, solver):
    pytest.importorskip(solver)
    monkeypatch.setattr(second, "LINK_RLIMIT", 1)
    assert second_opinion(problem_of("full-attention", COLUMN_FITS), solver).stance is Stance.NOT_PROVED


@pytest.mark.parametrize("kind", ["mamba-none", "mamba-align"])
def test_without_a_chain_cvc5_is_asked_the_claim_itself(monkeypatch, kind):
    pytest.importorskip("cvc5")
    monkeypatch.setattr(second, "opaque_proof", no_chain)
    opinion = second_opinion(problem_of(kind), "cvc5")
    assert (opinion.stance, opinion.detail) == (Stance.PROVED, "directly")
    assert second_opinion(problem_of(kind), "z3").stance is Stance.NOT_PROVED


@pytest.mark.parametrize("kind", ["mamba-align", "mamba-all", "uniform-mamba-none"])
def test_cvc5_refutes_a_fault_that_was_published(kind):
    pytest.importorskip("cvc5")
    opinion = second_opinion(problem_of(kind, known=release("vllm-0.28")), "cvc5")
    assert opinion.stance is Stance.REFUTES


def test_z3_by_lemmas_never_refutes():
    opinion = second_opinion(problem_of("mamba-align", known=release("vllm-0.28")), "z3")
    assert opinion.stance is Stance.NOT_PROVED
    assert "goal does not follow" in opinion.detail


def test_a_case_that_the_definitions_only_approximate_does_not_speak_against_a_claim(monkeypatch):
    pytest.importorskip("cvc5")
    entries = specs.MambaAlignSpec.entries
    monkeypatch.setattr(specs.MambaAlignSpec, "entries", lambda *args: entries(*args) + 1)
    problem = problem_of("mamba-align")
    assert second_opinion(problem).stance is Stance.REFUTES
    problem.definitions.over_approximated = True
    assert second_opinion(problem).stance is Stance.NOT_PROVED


def test_a_claim_as_it_stands_is_given_up_in_time(monkeypatch):
    pytest.importorskip("cvc5")
    monkeypatch.setattr(second, "opaque_proof", no_chain)
    monkeypatch.setattr(second, "_DIRECT_MILLISECONDS", 200)
    started = time.monotonic()
    assert second_opinion(problem_of("full-attention", COLUMN_FITS)).stance is not Stance.REFUTES
    assert time.monotonic() - started < 10


def test_text_that_cvc5_cannot_read_proves_nothing(monkeypatch):
    pytest.importorskip("cvc5")
    monkeypatch.setattr(second, "script", lambda constraints, logic: "(assert (nonsense 1))")
    opinion = second_opinion(problem_of("mamba-align"))
    assert opinion.stance is Stance.NOT_PROVED
    assert "cvc5 does not follow goal (error: " in opinion.detail


def test_a_missing_solver_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(second, "find_spec", lambda name: None)
    with pytest.raises(SolverMissing, match=r"cvc5 is not installed: pip install 'rowbound\[cvc5\]'"):
        second_opinion(problem_of("mamba-align"), "cvc5")
    with pytest.raises(SolverMissing, match="there is no solver 'yices'; there are z3, cvc5"):
        require_solver("yices")
