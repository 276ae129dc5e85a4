"""The lemmas are true, say what their neighbours do not, and both solvers prove them."""

import itertools

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from proofs.lemmas import LEMMAS, lemma
from proofs.second import unproved_lemmas

every_lemma = pytest.mark.parametrize("fact", LEMMAS, ids=lambda fact: fact.name)


@every_lemma
def test_z3_proves_a_lemma(fact):
    solver = z3.Solver()
    solver.add(*fact.denied())
    assert solver.check() == z3.unsat


def test_cvc5_proves_every_lemma():
    pytest.importorskip("cvc5")
    assert unproved_lemmas("cvc5") == ()


@every_lemma
@given(data=st.data())
@settings(max_examples=150)
def test_a_lemma_holds_of_pythons_integers(fact, data):
    numbers = st.one_of(st.integers(-5, 9), st.integers(-(10**9), 10**9))
    values = [data.draw(numbers, label=name) for name in fact.parameters]
    assert not fact.givens(*values) or fact.claim(*values)


@every_lemma
def test_a_lemma_holds_of_all_numbers_from_1_to_6(fact):
    met = 0
    for values in itertools.product(range(1, 7), repeat=len(fact.parameters)):
        if fact.givens(*values):
            met += 1
            assert fact.claim(*values), values
    assert met


@every_lemma
def test_a_claim_close_to_a_lemma_is_false(fact):
    """The solver's case is replayed on Python's integers."""
    solver = z3.Solver()
    names = [z3.Int(name) for name in fact.parameters]
    solver.add(*fact.denied(fact.mutant), *(z3.And(name >= -9, name <= 9) for name in names))
    assert solver.check() == z3.sat
    values = [solver.model().eval(name, model_completion=True).as_long() for name in names]
    assert fact.givens(*values)
    assert not fact.mutant(*values)
    assert fact.claim(*values)


NEEDED = {
    "mul_equal": (0, 1, 1),
    "mul_mono": (1, 0, 1),
    "mul_strict": (0, 0, 1),
    "floor_char": (0, -1),
    "cdiv_char": (0, -1),
    "cdiv_unique": (0, 1, 1),
    "cdiv_le": (0, -1, 1),
    "floor_lt": (0, -1, 1),
    "mono_num": (1, 0, 1),
    "floor_mono": (1, 0, 1),
    "anti_den": (2, 2, 1),
    "nest": (1, 2, -1),
    "floor_nest": (1, 2, -1),
    "round_up": (0, -1),
    "scale": (1, -2, 1),
    "index": (0, 0, 1),
    "index_nest": (0, 0, 1, 1),
    "remainder": (0, -1),
    "digits": (1, 2, -1),
    "split": (0, 1, -1),
    "place": (0, 1, 1, 0),
}
"""Values that break claim and givens; shifts and `subadd` have none, they only fail to divide by 0."""


@pytest.mark.parametrize("name", NEEDED)
def test_without_its_givens_a_lemma_is_false(name):
    fact, values = lemma(name), NEEDED[name]
    assert not fact.givens(*values)
    assert not fact.claim(*values)


def test_a_lemma_rests_on_earlier_ones_only():
    earlier = set()
    for fact in LEMMAS:
        if fact.because is not None:
            names = [name for name, _ in fact.because(*range(2, 2 + len(fact.parameters)))]
            assert names
            assert set(names) <= earlier
        earlier.add(fact.name)


@pytest.mark.parametrize("name", [fact.name for fact in LEMMAS if fact.because])
def test_without_those_instances_a_lemma_does_not_follow_by_linear_arithmetic(name):
    supposed, denied, *_ = lemma(name).denied()
    solver = z3.Solver()
    solver.add(supposed, denied)
    assert solver.check() == z3.sat
