"""The route by lemmas proves what holds, never what does not, and each link can be checked by itself."""

import functools

import pytest
import z3
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from invariants import COLUMN_FITS, RELEASES, ROW_FITS, TODAY, Runner, release
from invariants.arithmetic import cdiv, round_up
from invariants.strategies import cases
from proofs.lemmas import LEMMAS
from proofs.linear import Number, Opaque
from proofs.mutated import MUTANTS
from proofs.opaque import Unproved, opaque_proof
from proofs.problem import build_problem
from proofs.verdicts import Obligation, obligations

FAULTY = {"mamba-align", "mamba-all", "uniform-mamba-none", "uniform-mamba-align", "uniform-mamba-all"}


def proof_of(kind, invariant=ROW_FITS, runner=Runner.V2, known=TODAY, **pins):
    return opaque_proof(build_problem(Obligation(kind, invariant, runner, known), pins, with_steps=True))


def follows(link, without=()):
    solver = z3.Solver(ctx=link.claim.ctx)
    solver.add(*(fact for name, fact in link.premises.items() if not name.startswith(tuple(without))))
    solver.add(z3.Not(link.claim))
    return solver.check() == z3.unsat


@pytest.mark.parametrize(
    "obligation", obligations(TODAY)[::9], ids=lambda o: f"{o.kind}-{o.label}-{o.runner.value}"
)
def test_claims_of_today_are_proved_link_by_link(obligation):
    proof = opaque_proof(build_problem(obligation, {}, with_steps=True))
    assert proof.links[-1].name == "goal"
    earlier = set()
    for link in proof.links:
        assert follows(link)
        rests_on = {name for name in link.premises if name.startswith(("step ", "divisor ", "goal"))}
        assert rests_on <= earlier
        earlier.add(link.name)


@pytest.mark.parametrize("known", [r for r in RELEASES if r is not TODAY], ids=lambda r: r.name)
@pytest.mark.parametrize("kind", ["full-attention", "cross-attention", "mamba-none"])
def test_claims_of_older_releases_that_hold_are_proved(known, kind):
    for obligation in obligations(known, kinds=[kind], invariants=(ROW_FITS, COLUMN_FITS)):
        assert opaque_proof(build_problem(obligation, {}, with_steps=True)).links


@pytest.mark.parametrize("name", ["vllm-0.28", "vllm-0.27", "vllm-0.26"])
@pytest.mark.parametrize("kind", sorted(FAULTY))
def test_a_row_that_is_too_narrow_is_not_proved(name, kind):
    for invariant in (ROW_FITS, COLUMN_FITS):
        with pytest.raises(Unproved, match="goal does not follow"):
            proof_of(kind, invariant, known=release(name))


CHANGED = [m for m in MUTANTS if m.asks[0].split()[2] in ("row-fits", "column-fits")][::2]


@pytest.mark.parametrize("mutant", CHANGED, ids=lambda mutant: mutant.name)
def test_a_mutated_formula_is_not_proved(mutant):
    with mutant.applied():
        for asked in mutant.obligations():
            try:
                opaque_proof(build_problem(asked, {}, with_steps=True))
            except Unproved:
                return
    pytest.fail("every claim that must refute the mutant is proved")


def test_at_least_twenty_mutants_are_tried():
    assert len(CHANGED) >= 20


def test_a_divisor_that_may_be_zero_is_not_proved_away(monkeypatch):
    from invariants import specs

    monkeypatch.setattr(
        specs.MambaAlignSpec,
        "max_num_blocks_per_req",
        lambda self, d, length: cdiv(length, self.num_speculative_blocks),
    )
    with pytest.raises(Unproved, match="divisor 0"):
        proof_of("mamba-align")


@functools.cache
def column_proof(kind):
    problem = build_problem(Obligation(kind, COLUMN_FITS, Runner.V2, TODAY), {}, with_steps=True)
    return problem, opaque_proof(problem)


@pytest.mark.parametrize("kind", ["full-attention", "sliding-window", "mamba-align"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_a_proof_rests_on_is_true_of_every_legal_case(kind, data):
    """With products and quotients what they mean, no premise and no claim excludes a case that there is."""
    case = data.draw(cases(kinds=[kind]))
    assume(case.spec.readable(case.deployment, case.request, case.access))
    problem, proof = column_proof(kind)
    solver = z3.Solver(ctx=problem.definitions.context)
    values = case.values()
    solver.add(*(symbol.expr == values[name] for name, symbol in problem.symbols.items()))
    solver.add(*proof.meanings, *problem.definitions.facts)
    for link in proof.links:
        solver.add(link.claim, *link.premises.values())
    assert solver.check() == z3.sat


def test_a_goal_needs_its_lemmas():
    goal = proof_of("mamba-align", COLUMN_FITS).links[-1]
    lemmas = [fact.name for fact in LEMMAS]
    assert follows(goal)
    assert not follows(goal, without=lemmas)


def test_a_proof_names_its_lemmas_and_assumptions():
    proof = proof_of("mamba-align")
    assert "cdiv_le" in proof.lemmas
    assert set(proof.lemmas) <= {fact.name for fact in LEMMAS}
    assert proof.assumptions == ("sizes", "request-within-context")


def test_pinned_sizes_are_proved_too():
    pins = {"max_model_len": 512, "block_size": 16, "decode_context_parallel_size": 2}
    assert proof_of("full-attention", COLUMN_FITS, **pins).links


def test_a_problem_of_any_solver_context_is_proved():
    obligation = Obligation("full-attention", COLUMN_FITS, Runner.V2, TODAY)
    for context in (None, z3.Context(), z3.main_ctx()):
        assert opaque_proof(build_problem(obligation, {}, context, with_steps=True)).links


def test_the_search_is_the_same_on_every_run():
    first, again = (proof_of("full-attention", COLUMN_FITS) for _ in range(2))
    assert [(link.name, list(link.premises)) for link in first.links] == [
        (link.name, list(link.premises)) for link in again.links
    ]


# --- opaque numbers -------------------------------------------------------------------------------

small = st.integers(-9, 9)
FORMULAS = {
    "ring": lambda a, b, c: (a + b) * (a - c) - 2 * (b * a - 3) + -c * c,
    "quotients": lambda a, b, c: (a * b) // 7 + cdiv(a - c, 3) * b - 5 // (c * c + 1),
    "nested": lambda a, b, c: cdiv(cdiv(a, 2) * c, b * b + 1) + (1 - a) * (b + 1) // 4,
}


@pytest.mark.parametrize("name", FORMULAS)
@given(numbers=st.tuples(small, small, small))
@settings(max_examples=25)
def test_an_opaque_number_means_what_python_computes(name, numbers):
    world = Opaque()
    symbols = z3.Ints("a b c")
    opaque = FORMULAS[name](*map(world.unknown, symbols))
    solver = z3.Solver()
    solver.add(*(s == n for s, n in zip(symbols, numbers, strict=True)), opaque.expr() == z3.Int("result"))
    solver.add(*world.meanings())
    assert solver.check() == z3.sat
    assert solver.model()[z3.Int("result")].as_long() == FORMULAS[name](*numbers)


def test_equal_polynomials_and_quotients_are_the_same_unknown():
    world = Opaque()
    a, b, c = map(world.unknown, z3.Ints("a b c"))
    assert ((a + b) * c - c * a).key() == (b * c).key()
    assert ((a * b) // c).key() == ((b * a) // c).key()
    assert (a // c).key() != cdiv(a, c).key()
    assert (a * b - b * a).constant() == 0


def test_a_product_says_nothing_by_itself():
    world = Opaque()
    a, b = map(world.unknown, z3.Ints("a b"))
    solver = z3.Solver()
    solver.add((a == 2).expr, (b == 3).expr, (a * b == 7).expr)
    assert solver.check() == z3.sat
    solver.add(*world.meanings())
    assert solver.check() == z3.unsat


def test_opaque_numbers_and_facts_refuse_to_be_branched_on():
    number = Opaque().unknown(z3.Int("n"))
    with pytest.raises(TypeError, match="branched"):
        assert number < 3
    with pytest.raises(TypeError, match="as a size"):
        number + True
    with pytest.raises(TypeError, match="round_up is not an operation"):
        round_up(number, 2)
    assert isinstance(number * 2, Number)
