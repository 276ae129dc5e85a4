"""Claims about steps: refuted as vLLM ships, with a trace from an empty row; proved with the gap closed."""

import dataclasses
import itertools

import pytest
import z3

from invariants import TODAY, Move, Runner, build_case, claim, release
from invariants.lifecycle import INITIAL, STEPS, RowState, now
from invariants.parameters import parameters_of
from proofs import reach
from proofs.decide import decide
from proofs.verdicts import Obligation, Verdict
from tests.invariants.engine_model import Engine, Given, Impossible, Overrun, Sizes

SHIPPED = release("vllm-0.33")
BY_NAME = {step.name: step for step in STEPS}


def ask(kind, label, runner=Runner.V2, known=SHIPPED, **pins):
    return decide(Obligation(kind, claim(label), runner, known), pins)


def refuted(kind, label, runner=Runner.V2, known=SHIPPED, **pins):
    outcome = ask(kind, label, runner, known, **pins)
    assert outcome.verdict is Verdict.REFUTED, outcome
    return outcome.counterexample


def replay(found, kind, runner=Runner.V2, known=SHIPPED):
    """Take a trace's steps in plain Python, each from where the one before ended."""
    expected = {p.name: getattr(INITIAL, p.name) for p in parameters_of(RowState)}
    for taken in found.trace:
        before = {name: value for name, value in taken.before.items() if name != "resumable"}
        assert before == {name: value for name, value in expected.items() if name != "resumable"}
        scheduled = taken.given.get("scheduled_tokens", 0)
        brought = taken.given.get("hit_tokens", 0) + taken.given.get("external_tokens", 0)
        continues = taken.name not in ("admit", "reuse", "resume")
        start = taken.before["computed_tokens"] if continues else brought
        values = {**found.values, "hit_tokens": 0, "external_tokens": 0, "accepted_tokens": 0}
        values |= {**taken.given, **taken.before}
        values |= {"num_computed_tokens": start, "num_tokens": max(1, start + scheduled)}
        at = now(build_case(kind, values, (RowState, Move)), known, runner)
        assert BY_NAME[taken.name].allowed(at), taken
        assert dataclasses.asdict(BY_NAME[taken.name].after(at)) == taken.after
        assert not BY_NAME[taken.name].runs or scheduled >= 1
        expected = taken.after
    assert len({taken.before["resumable"] for taken in found.trace}) == 1


def test_a_session_at_its_limit_makes_full_attention_read_the_next_row():
    found = refuted("full-attention", "column-fits/session-chunk", max_model_len=128)
    values = found.values
    assert (values["known_tokens"], values["chunk_tokens"], values["position"]) == (128, 2, 128)
    assert (found.row.wanted, found.row.width, found.row.kind) == (8, 8, "column")
    assert found.trace[-1].name == "session-chunk"
    assert found.trace[-1].after["listed_blocks"] == 8  # the list is clipped, the position is not
    assert found.reached == "reached from an empty row in 2 steps, no fewer"
    replay(found, "full-attention")


@pytest.mark.parametrize(("states", "listed", "width"), [(0, 9, 8), (3, 12, 11)])
@pytest.mark.parametrize("runner", Runner)
def test_a_session_at_its_limit_lists_more_states_than_the_row_holds(runner, states, listed, width):
    found = refuted(
        "mamba-align",
        "append-in-step/session-chunk",
        runner,
        max_model_len=128,
        num_speculative_blocks=states,
    )
    values = found.values
    assert (values["known_tokens"], values["chunk_tokens"], values["num_tokens"]) == (128, 2, 129)
    assert (found.row.wanted, found.row.width, found.row.kind) == (listed, width, "entries")
    assert found.trace[-1].after["counted_blocks"] == listed
    assert len(found.trace) == 2
    replay(found, "mamba-align", runner)


def test_a_session_beyond_its_limit_overruns_when_it_comes_back_from_preemption():
    found = refuted("mamba-align", "append-in-step/resume", max_model_len=128)
    assert (found.row.wanted, found.row.width) == (9, 8)
    assert [taken.name for taken in found.trace] == ["admit", "session-chunk", "preempt", "resume"]
    replay(found, "mamba-align")


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("full-attention", "column-fits/session-chunk"),
        ("mamba-align", "append-in-step/session-chunk"),
        ("mamba-align", "append-in-step/resume"),
    ],
)
def test_with_the_length_of_chunks_checked_the_same_claims_are_proved(kind, label):
    assert ask(kind, label, known=TODAY).verdict is Verdict.PROVED


@pytest.mark.parametrize("step", ["admit", "prefill-chunk", "decode", "speculate", "preempt", "finish"])
def test_the_other_steps_keep_the_row_sound_even_without_the_check(step):
    assert ask("mamba-align", f"append-in-step/{step}").verdict is Verdict.PROVED


# --- how short a trace can be ---------------------------------------------------------------------


def every_given(most):
    """Every input of a step, up to a few tokens."""
    for start, end, size in itertools.product(range(most), range(1, most + 1), range(1, most + 1)):
        if start < end:
            yield Given(start, end, prompt=size, hit=start, chunk=size)


def fewest_steps(last, most=4):
    """Walk breadth first through every state of an engine with rows of two blocks of two tokens."""
    sizes = Sizes("mamba-align", 4, block=2, padded=False, checks_sessions=False)
    states = {engine.state(): engine for engine in (Engine(sizes, resumable=flag) for flag in (True, False))}
    seen = set(states)
    for length in range(1, most + 1):
        reached = {}
        for engine, step, given in itertools.product(states.values(), STEPS, every_given(6)):
            attempt = engine.copy()
            try:
                attempt.take(step.name, given)
            except Impossible:
                continue
            except Overrun:
                if step.name == last:
                    return length
                continue
            if attempt.state() not in seen:
                reached[attempt.state()] = attempt
        seen |= set(reached)
        states = reached
    return None


@pytest.mark.parametrize("step", ["session-chunk", "resume"])
def test_no_shorter_trace_leads_there(step):
    found = refuted("mamba-align", f"append-in-step/{step}", max_model_len=4, block_size=2)
    shortest = fewest_steps(step)
    assert len(found.trace) == shortest
    assert found.reached == f"reached from an empty row in {shortest} steps, no fewer"
    replay(found, "mamba-align")


def test_a_state_that_no_row_comes_to_is_said_not_to_be_reached(monkeypatch):
    """Where no session is ever admitted, the fault is one of the induction alone."""
    admitted = {"admit", "reuse"}

    def without_sessions(step):
        if step.name not in admitted:
            return step
        allowed = step.allowed
        return dataclasses.replace(
            step, allowed=lambda at: reach.all_of(reach.negation(at.state.resumable), allowed(at))
        )

    monkeypatch.setattr(reach, "STEPS", tuple(map(without_sessions, STEPS)))
    found = refuted("mamba-align", "append-in-step/session-chunk", max_model_len=4, block_size=2)
    assert found.trace == ()
    assert found.reached == "not reached from an empty row within 5 steps; it fails as an induction"


def test_a_trace_that_plain_python_does_not_allow_is_an_error(monkeypatch):
    asked = reach._Unrolled._value
    monkeypatch.setattr(
        reach._Unrolled, "_value", lambda self, symbol: 1 if (v := asked(self, symbol)) == 127 else v
    )
    outcome = ask("mamba-align", "append-in-step/session-chunk", max_model_len=128)
    assert outcome.verdict is Verdict.ERROR
    assert "is not allowed in plain Python" in outcome.detail


@pytest.mark.parametrize("lengths", [1, 5])
def test_a_length_for_which_the_solver_gives_up_is_not_taken_for_one_without_a_trace(monkeypatch, lengths):
    asked, solved = reach._Unrolled.solve, []

    def gives_up_at_first(self):
        solved.append(self)
        return z3.unknown if len(solved) <= lengths else asked(self)

    monkeypatch.setattr(reach._Unrolled, "solve", gives_up_at_first)
    found = refuted("mamba-align", "append-in-step/session-chunk", max_model_len=4, block_size=2)
    if lengths == 1:
        assert found.reached == "reached from an empty row in 2 steps, perhaps in fewer"
    else:
        assert found.trace == ()
        assert found.reached.startswith("whether it is reached from an empty row is not known")


def test_a_trace_whose_last_step_breaks_nothing_is_an_error(monkeypatch):
    """A row that only the solver takes for too narrow."""
    trace = reach._Unrolled.trace

    def in_another_deployment(self):
        self.values = {**self.values, "max_model_len": 1 << 20}
        return trace(self)

    monkeypatch.setattr(reach._Unrolled, "trace", in_another_deployment)
    outcome = ask("mamba-align", "append-in-step/session-chunk", max_model_len=128)
    assert outcome.verdict is Verdict.ERROR
    assert "breaks nothing in plain Python" in outcome.detail
