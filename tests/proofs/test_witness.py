"""A proof shows a case that meets what it assumes, and how close the claim comes to failing there."""

import dataclasses

import pytest

from invariants import (
    COLUMN_FITS,
    ROW_FITS,
    SPEC_KINDS,
    TODAY,
    Given,
    Runner,
    build_case,
    claim,
    releases,
    row_width,
    specs,
)
from invariants.cases import REPRESENTATIVE_TYPES
from proofs import decide as decide_module
from proofs.decide import decide
from proofs.pool import decide_all
from proofs.verdicts import Obligation, Verdict, obligations, spec_of_kind

OBLIGATIONS = obligations(TODAY)


@pytest.fixture(scope="module")
def outcomes():
    """Every claim of today, decided as the command does."""
    return dict(decide_all(OBLIGATIONS, {}))


def ask(kind, invariant=ROW_FITS, runner=Runner.V2, **pins):
    return decide(Obligation(kind, invariant, runner, TODAY), pins)


def case_of(obligation, values):
    return build_case(obligation.kind, values, obligation.invariant.parts)


def test_every_claim_of_today_is_proved(outcomes):
    assert {outcome.verdict for outcome in outcomes.values()} == {Verdict.PROVED}
    assert set(outcomes) == set(range(len(OBLIGATIONS)))


def test_a_witness_meets_every_assumption_and_is_as_close_as_is_said(outcomes):
    for index, obligation in enumerate(OBLIGATIONS):
        outcome, invariant, runner = outcomes[index], obligation.invariant, obligation.runner
        named = f"{obligation.kind} {obligation.label} {runner.value}"
        if outcome.witness is None:
            assert outcome.slack is None, named
            continue
        case = case_of(obligation, outcome.witness)
        for assumption in invariant.assumptions(case.spec, TODAY):
            assert assumption.holds(case, TODAY), (named, assumption.name)
        for given in invariant.givens:
            assert given.holds(case, TODAY, runner), (named, given.name)
        assert invariant.holds(case, TODAY, runner), named
        if outcome.slack is not None:
            assert invariant.margin(case, TODAY, runner) == outcome.slack, named


def test_nearly_every_claim_that_counts_something_is_tight_or_says_how_much_is_to_spare(outcomes):
    counted = [i for i, o in enumerate(OBLIGATIONS) if o.invariant.margin is not None]
    told = [i for i in counted if outcomes[i].slack is not None]
    assert len(told) >= 0.95 * len(counted)


@pytest.mark.parametrize("kind", ["full-attention", "mamba-align", "mamba-none", "hisparse-hot"])
@pytest.mark.parametrize("label", ["row-fits", "column-fits"])
def test_the_rows_of_today_are_not_an_entry_wider_than_needed(kind, label):
    outcome = ask(kind, claim(label))
    assert outcome.slack == 0


def test_a_claims_margin_is_negative_exactly_where_it_fails():
    """Deployments of up to 39 tokens of context, in a release whose rows are too narrow and in today's."""
    for known in (TODAY, releases.release("vllm-0.28")):
        failed = 0
        for length in range(2, 40):
            for ranks in (1, 2):
                for tokens in range(1, length):
                    values = {
                        "max_model_len": length, "decode_context_parallel_size": ranks, "block_size": 4,
                        "num_tokens": tokens, "position": tokens - 1, "state": 0,
                    }  # fmt: skip
                    case = build_case("mamba-align", values)
                    for invariant in (ROW_FITS, COLUMN_FITS):
                        holds = invariant.holds(case, known, Runner.V2)
                        assert holds == (invariant.margin(case, known, Runner.V2) >= 0)
                        failed += not holds
        assert (failed > 0) == (known is not TODAY)


@pytest.mark.parametrize("kind", ["mamba-align", "mamba-none", "hisparse-hot"])
@pytest.mark.parametrize("extra", [1, 2, 5])
def test_a_row_planted_wider_has_that_much_to_spare(monkeypatch, kind, extra):
    """These rows are not padded, so what is added stays as it is."""
    owner = type(spec_of_kind(kind))
    made = owner.max_num_blocks_per_req
    monkeypatch.setattr(owner, "max_num_blocks_per_req", lambda *args: made(*args) + extra)
    for label in ("row-fits", "column-fits"):
        outcome = ask(kind, claim(label))
        assert (outcome.verdict, outcome.slack) == (Verdict.PROVED, extra)
        case = build_case(kind, outcome.witness)
        assert claim(label).margin(case, TODAY, Runner.V2) == extra


@pytest.mark.parametrize(("alignment", "slack"), [(1, 2), (16, 2), (128, 8)])
def test_what_is_added_to_a_padded_row_is_rounded_up_to_the_padding(monkeypatch, alignment, slack):
    """Blocks of 16: whole multiples of 128 tokens are 8 entries, and 2 more of a full 8 become 8 more."""
    made = specs.FullAttentionSpec.max_num_blocks_per_req
    monkeypatch.setattr(specs.FullAttentionSpec, "max_num_blocks_per_req", lambda *args: made(*args) + 2)
    pins = {
        "block_table_token_alignment": alignment, "block_size": 16, "max_model_len": 1024,
        "decode_context_parallel_size": 1, "blocks_per_kv_block": 1, "max_num_encoder_input_tokens": 0,
        "max_source_positions": 0,
    }  # fmt: skip
    outcome = ask("full-attention", **pins)
    assert (outcome.verdict, outcome.slack) == (Verdict.PROVED, slack)


def test_no_slack_is_claimed_where_the_solver_gave_up_on_it(monkeypatch):
    """Neither the near miss nor the twin is answered; the proof itself is."""
    monkeypatch.setattr(decide_module._Session, "_near_miss", lambda self, problem: (None, None))
    monkeypatch.setattr(decide_module._Session, "_slack", lambda self, problem, witness: (witness, None))
    outcome = ask("mamba-align")
    assert (outcome.verdict, outcome.slack) == (Verdict.PROVED, None)


# --- nothing is proved of nothing -----------------------------------------------------------------


@pytest.mark.parametrize("label", ["row-fits", "column-fits/gather", "append-in-step/decode"])
def test_givens_that_contradict_the_assumptions_are_vacuous(label):
    invariant = claim(label)
    impossible = Given("impossible", "never", lambda case, _known, _runner: case.deployment.max_model_len < 1)
    planted = dataclasses.replace(invariant, givens=(*invariant.givens, impossible))
    outcome = ask("mamba-align", planted)
    assert outcome.verdict is Verdict.VACUOUS
    assert "impossible" in outcome.detail
    assert outcome.witness is None


@pytest.mark.parametrize("label", ["row-fits", "column-fits", "slots-distinct", "append-in-step/admit"])
def test_a_budget_that_runs_out_is_unknown_and_not_proved(monkeypatch, label):
    for budget in ("RLIMIT", "_FIRST_RLIMIT", "_STEP_RLIMIT"):
        monkeypatch.setattr(decide_module, budget, 500)
    outcome = ask("full-attention", claim(label))
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.used == ()


def test_a_near_miss_alone_proves_nothing(monkeypatch):
    """A claim that fails is refuted although a witness with nothing to spare was found first."""
    made = specs.MambaAlignSpec.max_num_blocks_per_req
    monkeypatch.setattr(specs.MambaAlignSpec, "max_num_blocks_per_req", lambda *args: made(*args) - 1)
    assert ask("mamba-align").verdict is Verdict.REFUTED


# --- what stands for what --------------------------------------------------------------------------

FORMULAS = (
    "aligned_on", "expansion", "tokens_per_block", "entries", "max_num_blocks_per_req", "readable", "column",
    "column_on_v1", "column_by_position", "place_on_rank", "owner", "position_at", "first_readable",
    "tokens_with_slots", "kernel_block_size", "runners", "column_runners",
)  # fmt: skip


def formulas(owner):
    return {name: getattr(owner, name, None) for name in FORMULAS}


@pytest.mark.parametrize("kind", [kind for kind in SPEC_KINDS if not kind.startswith("uniform-")])
def test_every_type_shares_its_formulas_with_one_that_stands_for_it(kind):
    owner = type(spec_of_kind(kind))
    if owner is specs.EncoderOnlyAttentionSpec:
        assert owner not in REPRESENTATIVE_TYPES  # it has neither list nor row
        return
    alike = [stands for stands in REPRESENTATIVE_TYPES if formulas(stands) == formulas(owner)]
    assert owner in alike if owner in REPRESENTATIVE_TYPES else len(alike) == 1


def test_the_formulas_that_are_compared_are_all_that_a_type_has():
    public = {
        name
        for owner in (*map(type, map(spec_of_kind, SPEC_KINDS)), specs.AttentionSpec)
        for base in owner.__mro__
        if base.__module__ == specs.__name__ and base is not specs.UniformTypeSpec
        for name, member in vars(base).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }
    assert public <= set(FORMULAS)


@pytest.mark.parametrize("kind", [kind for kind in SPEC_KINDS if kind.startswith("uniform-")])
def test_the_wrapper_delegates_every_formula(kind):
    wrapped = spec_of_kind(kind)
    assert isinstance(wrapped, specs.UniformTypeSpec)
    for name in ("aligned_on", "expansion", "tokens_per_block"):
        assert getattr(wrapped, name) == getattr(wrapped.inner, name)
    values = {"max_model_len": 100, "num_tokens": 77, "position": 40, "state": 1, "block_size": 8}
    values |= {"mamba_block_size": 100, "num_speculative_blocks": 2, "num_lookahead_tokens": 3}
    case = build_case(kind, values)
    d, r, a, inner = case.deployment, case.request, case.access, case.spec.inner
    assert case.spec.entries(d, r) == inner.entries(d, r)
    assert case.spec.max_num_blocks_per_req(d, 90) == inner.max_num_blocks_per_req(d, 90)
    assert case.spec.readable(d, r, a) == inner.readable(d, r, a)
    assert case.spec.column(d, a) == inner.column(d, a)
    for runner in Runner:
        assert row_width(d, case.spec, runner=runner) == row_width(d, inner, runner=runner)


@pytest.mark.parametrize("solver", ["z3", "cvc5", "both"])
def test_a_claim_of_no_case_is_vacuous_whoever_is_to_prove_it(solver):
    pytest.importorskip("cvc5")
    impossible = Given("impossible", "never", lambda case, _known, _runner: case.deployment.max_model_len < 1)
    planted = dataclasses.replace(ROW_FITS, givens=(impossible,))
    outcome = decide(Obligation("mamba-align", planted, Runner.V2, TODAY), {}, solver=solver)
    assert outcome.verdict is Verdict.VACUOUS
    assert "impossible" in outcome.detail


@pytest.mark.parametrize("solver", ["z3", "cvc5", "both"])
def test_every_solver_tells_what_it_assumed_and_how_tight_the_row_is(solver):
    pytest.importorskip("cvc5")
    outcome = decide(Obligation("mamba-align", ROW_FITS, Runner.V2, TODAY), {}, solver=solver)
    assert (outcome.verdict, outcome.slack) == (Verdict.PROVED, 0)
    assert "request-within-context" in outcome.used
    assert outcome.witness is not None
    assert bool(outcome.second) is (solver != "z3")
