"""The checker proves what holds, refutes what does not, and says so when it cannot tell."""

import dataclasses
import importlib

import pytest
import z3

from invariants import (
    COLUMN_FITS,
    RELEASES,
    ROW_FITS,
    SPEC_KINDS,
    TODAY,
    Runner,
    assumptions_for,
    build_case,
    deployment,
    entries,
    parameters_for,
    release,
    row_width,
    specs,
)
from proofs import decide as decide_module
from proofs.decide import decide, exclusion
from proofs.verdicts import Obligation, Verdict, obligations, spec_of_kind

claim_module = importlib.import_module("invariants.claim")  # the package has a function of that name
ONE_OF_EACH = ["full-attention", "cross-attention", "mamba-align", "hisparse-hot", "uniform-mamba-none"]
ATTENTION = [k for k in SPEC_KINDS if isinstance(spec_of_kind(k), specs.AttentionSpec)]


def ask(kind, invariant=ROW_FITS, runner=Runner.V2, known=TODAY, **pins):
    return decide(Obligation(kind, invariant, runner, known), pins)


def added(method, amount):
    return lambda self, *args: method(self, *args) + amount


def test_a_case_is_found_at_usual_sizes_where_the_solver_gives_up_on_all(monkeypatch):
    monkeypatch.setattr(specs.FullAttentionSpec, "entries", added(specs.FullAttentionSpec.entries, 1))
    asked = decide_module._Session._check
    gave_up = []

    def gives_up_on_the_goal(session, solver):
        answer = asked(session, solver)
        if answer == z3.sat and len(gave_up) == 1:
            answer = z3.unknown
        gave_up.extend([answer] if answer != z3.unsat else [])
        return answer

    monkeypatch.setattr(decide_module._Session, "_check", gives_up_on_the_goal)
    outcome = ask("full-attention")
    assert z3.unknown in gave_up
    assert outcome.verdict is Verdict.REFUTED


# --- assumptions: each is needed, none is vacuous -------------------------------------------------


@pytest.mark.parametrize(
    ("dropped", "kind", "invariant", "verdict"),
    [
        ("request-within-context", "mamba-align", ROW_FITS, Verdict.REFUTED),
        ("request-within-context", "mamba-all", COLUMN_FITS, Verdict.REFUTED),
        ("encoder-within-budget", "cross-attention", ROW_FITS, Verdict.REFUTED),
        ("state-block-covers-context", "mamba-none", ROW_FITS, Verdict.REFUTED),
        ("interleave-divides", "full-attention", COLUMN_FITS, Verdict.REFUTED),
        ("cross-attention-not-sharded", "cross-attention", COLUMN_FITS, Verdict.REFUTED),
        # A kernel block of no tokens is no longer excluded, and positions are divided by its size.
        ("kernel-blocks-divide", "full-attention", COLUMN_FITS, Verdict.ERROR),
    ],
)
def test_without_an_assumption_that_a_proof_uses_the_claim_fails(
    monkeypatch, dropped, kind, invariant, verdict
):
    assert dropped in ask(kind, invariant).used

    def others(spec, known):
        return tuple(
            dataclasses.replace(a, holds=lambda _case, _release: True) if a.name == dropped else a
            for a in assumptions_for(spec, known)
        )

    monkeypatch.setattr(claim_module, "assumptions_for", others)
    assert ask(kind, invariant).verdict is verdict


def test_a_small_state_block_without_prefix_caching_fails_as_a_port_of_the_engine_reported(monkeypatch):
    """Context 128, state blocks of 32 tokens, three drafts: the row holds 4, the list 7."""
    monkeypatch.setattr(
        claim_module,
        "assumptions_for",
        lambda spec, known: tuple(
            a for a in assumptions_for(spec, known) if a.name != "state-block-covers-context"
        ),
    )
    outcome = ask(
        "mamba-none", max_model_len=128, mamba_block_size=32, num_speculative_blocks=3, num_tokens=127
    )
    assert outcome.verdict is Verdict.REFUTED
    case = build_case("mamba-none", outcome.counterexample.values)
    assert (entries(case.deployment, case.spec, case.request), row_width(case.deployment, case.spec)) == (
        7,
        4,
    )


def test_contradictory_assumptions_are_vacuous_and_not_proved(monkeypatch):
    impossible = dataclasses.replace(
        assumptions_for(spec_of_kind("mla"))[1],
        name="impossible",
        holds=lambda c, _r: c.request.num_tokens < 1,
    )
    monkeypatch.setattr(
        claim_module, "assumptions_for", lambda spec, known: (*assumptions_for(spec, known), impossible)
    )
    outcome = ask("mla")
    assert outcome.verdict is Verdict.VACUOUS
    assert "impossible" in outcome.detail


# --- verdicts that are neither proof nor refutation -----------------------------------------------


def test_an_exhausted_budget_is_unknown(monkeypatch):
    for name in ("RLIMIT", "_FIRST_RLIMIT", "_STEP_RLIMIT"):
        monkeypatch.setattr(decide_module, name, 1000)
    outcome = ask("full-attention", COLUMN_FITS)
    assert outcome.verdict is Verdict.UNKNOWN
    assert "budget of 1,000" in outcome.detail


def test_a_case_that_does_not_replay_is_an_error(monkeypatch):
    monkeypatch.setattr(decide_module._Session, "_replay", lambda self, values: "the claim holds")
    outcome = ask("mamba-align", known=release("vllm-0.28"))
    assert outcome.verdict is Verdict.ERROR
    assert "does not replay" in outcome.detail
    assert outcome.counterexample is None


def test_a_division_by_what_may_be_zero_is_an_error(monkeypatch):
    monkeypatch.setattr(
        specs.MambaAlignSpec,
        "max_num_blocks_per_req",
        lambda self, d, length: specs.cdiv(length, self.num_speculative_blocks),
    )
    outcome = ask("mamba-align")
    assert outcome.verdict is Verdict.ERROR
    assert "may not be positive" in outcome.detail


def test_a_formula_that_branches_is_an_error_with_its_reason(monkeypatch):
    monkeypatch.setattr(
        specs.MambaAlignSpec,
        "max_num_blocks_per_req",
        lambda self, d, length: length if self.num_speculative_blocks else 1,
    )
    outcome = ask("mamba-align")
    assert outcome.verdict is Verdict.ERROR
    assert "branched on a symbolic value at" in outcome.detail
    assert "test_decide.py:" in outcome.detail
    assert "self.num_speculative_blocks" in outcome.detail


@pytest.fixture
def _any_case_will_do(monkeypatch):
    """Leave out the search for the smallest case, where a test asks only whether there is one."""
    monkeypatch.setattr(decide_module._Session, "_shrink", lambda self, found: (found, False))


@pytest.mark.usefixtures("_any_case_will_do")
def test_a_claim_that_cannot_fail_is_not_what_is_proved():
    """The negation of every claim is refuted too: the goal says something about each kind."""
    for obligation in obligations(TODAY, kinds=ONE_OF_EACH, runners=[Runner.V2]):
        claim = obligation.invariant
        negated = dataclasses.replace(
            claim,
            holds=lambda c, k, r, holds=claim.holds: specs.where(holds(c, k, r), False, True),
            margin=None,
        )
        outcome = decide(dataclasses.replace(obligation, invariant=negated), {})
        assert outcome.verdict is Verdict.REFUTED, obligation.kind


# --- what each release's verdicts are ------------------------------------------------------------

REFUTED_BEFORE_029 = {
    ("mamba-align", "V2"), ("mamba-all", "V2"),
    ("uniform-mamba-none", "V2"), ("uniform-mamba-align", "V2"), ("uniform-mamba-all", "V2"),
}  # fmt: skip
WRAPPERS_ON_V1 = {("uniform-mamba-none", "V1"), ("uniform-mamba-align", "V1"), ("uniform-mamba-all", "V1")}


@pytest.mark.parametrize(
    ("name", "refuted"),
    [
        ("today", set()),
        ("vllm-0.28", REFUTED_BEFORE_029),
        ("vllm-0.27", REFUTED_BEFORE_029 | WRAPPERS_ON_V1),
        ("vllm-0.26", REFUTED_BEFORE_029 | WRAPPERS_ON_V1),
    ],
)
@pytest.mark.parametrize("invariant", [ROW_FITS, COLUMN_FITS], ids=lambda i: i.name)
def test_a_release_is_refuted_exactly_where_its_rows_are_too_narrow(name, refuted, invariant):
    verdicts = {
        (o.kind, o.runner.value): decide(o, {}).verdict
        for o in obligations(release(name), invariants=[invariant])
    }
    assert {key for key, verdict in verdicts.items() if verdict is Verdict.REFUTED} == refuted
    assert {v for key, v in verdicts.items() if key not in refuted} == {Verdict.PROVED}


@pytest.mark.parametrize(
    ("name", "pins", "found", "numbers"),
    [
        ("vllm-0.28", {}, {"max_model_len": 18, "decode_context_parallel_size": 2, "num_tokens": 17}, (2, 1)),
        ("vllm-0.27", {}, {"max_model_len": 18, "decode_context_parallel_size": 2, "num_tokens": 17}, (2, 1)),
        (
            "vllm-0.26",
            {},
            {"max_model_len": 130, "decode_context_parallel_size": 2, "num_tokens": 129},
            (9, 8),
        ),
        (
            "vllm-0.28",
            {"max_model_len": 512, "decode_context_parallel_size": 2},
            {"num_tokens": 257},
            (17, 16),
        ),
        (
            "vllm-0.26",
            {"max_model_len": 512, "decode_context_parallel_size": 2},
            {"num_tokens": 257},
            (17, 16),
        ),
        ("vllm-0.26", {"block_size": 48, "max_model_len": 100}, {"decode_context_parallel_size": 2}, (3, 2)),
        ("vllm-0.28", {"max_model_len": 64, "decode_context_parallel_size": 4}, {"num_tokens": 17}, (2, 1)),
        ("vllm-0.28", {"max_model_len": 10**18, "decode_context_parallel_size": 8}, {}, None),
    ],
)
@pytest.mark.parametrize("kind", ["mamba-align", "mamba-all"])
def test_the_smallest_failing_deployment_is_the_one_that_was_reported(kind, name, pins, found, numbers):
    outcome = ask(kind, known=release(name), **pins)
    assert outcome.verdict is Verdict.REFUTED
    assert outcome.counterexample.smallest
    values = outcome.counterexample.values
    assert {k: values[k] for k in found} == found
    assert {k: values[k] for k in pins} == pins
    case = build_case(kind, values)
    held = entries(case.deployment, case.spec, case.request)
    width = row_width(case.deployment, case.spec, release=release(name))
    assert held > width
    if numbers:
        assert (held, width) == numbers


def test_nothing_smaller_than_the_smallest_case_fails():
    """Search the whole box below the reported case by brute force."""
    known = release("vllm-0.28")
    for length in range(2, 19):
        for dcp in range(1, 9):
            d = deployment.Deployment(max_model_len=length, decode_context_parallel_size=dcp)
            spec = specs.MambaAlignSpec(block_size=16)
            for tokens in range(1, length):
                fails = entries(d, spec, deployment.Request(num_tokens=tokens)) > row_width(
                    d, spec, release=known
                )
                assert not fails or (length, tokens) == (18, 17)


def test_today_is_proved_at_the_pinned_sizes_of_the_reference_case():
    pins = {"max_model_len": 512, "block_size": 16, "decode_context_parallel_size": 2}
    for asked in obligations(TODAY, kinds=["mamba-align"], runners=[Runner.V2]):
        assert decide(asked, pins).verdict is Verdict.PROVED


def test_pinned_values_that_contradict_a_rule_name_it():
    obligation = Obligation("mamba-align", ROW_FITS, Runner.V2, TODAY)
    assert "cache-mode" in exclusion(obligation, {"enable_prefix_caching": False})
    assert exclusion(obligation, {"max_model_len": 7, "block_size": 3}) is None


@pytest.mark.parametrize("known", RELEASES, ids=lambda r: r.name)
def test_every_parameter_can_be_pinned(known):
    for kind in SPEC_KINDS:
        if kind in known.absent:
            continue
        for parameter in parameters_for(kind):
            value = known.constants.get(parameter.name, parameter.usual)
            if value is None:
                value = max(parameter.minimum, 2)
            on_one_rank = (
                kind == "cross-attention"
                or (known.name == "vllm-0.25" and "mamba" in kind)
                or (known.name in {"vllm-0.29", "vllm-0.30"} and kind.startswith("sliding-window"))
            )
            if parameter.name == "decode_context_parallel_size" and on_one_rank:
                value = 1
            if parameter.name == "enable_prefix_caching":
                value = "mamba-none" not in kind
            assert exclusion(Obligation(kind, ROW_FITS, Runner.V2, known), {parameter.name: value}) is None


def test_the_cost_of_a_proof_is_counted_over_all_of_its_queries():
    outcome = ask("full-attention", COLUMN_FITS)
    assert ask("mamba-none", COLUMN_FITS).rlimit < outcome.rlimit < decide_module.RLIMIT
