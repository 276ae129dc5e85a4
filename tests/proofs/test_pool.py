"""Several obligations share a child process; what happens to one of them happens to no other."""

import dataclasses
import time

import pytest

from invariants import ROW_FITS, TODAY, Runner
from proofs import pool
from proofs.own_width import load_width
from proofs.pool import decide_all
from proofs.verdicts import Verdict, obligations

BODY = """
import os, signal, time
from invariants import Runner


def row_width(deployment, spec):
    if type(spec).__name__ == "{victim}":
        {harm}
    return spec.max_num_blocks_per_req(deployment, deployment.row_length(Runner.V2))
"""


@pytest.fixture
def engine(tmp_path):
    """Write a row-width function that does harm when it is asked about one type of spec."""

    def write(harm, victim="MambaAlignSpec"):
        path = tmp_path / "engine.py"
        path.write_text(BODY.format(harm=harm, victim=victim))
        return obligations(load_width(f"{path}:row_width"), invariants=[ROW_FITS], runners=[Runner.V2])[::-1]

    return write


@pytest.fixture
def started(monkeypatch):
    """Collect the batch of every child process that is started."""
    batches, start = [], pool._start

    def collect(context, batch, questions, wall_seconds):
        batches.append(tuple(batch))
        return start(context, batch, questions, wall_seconds)

    monkeypatch.setattr(pool, "_start", collect)
    return batches


@pytest.mark.parametrize(
    ("harm", "verdict", "detail"),
    [
        ("os._exit(7)", Verdict.ERROR, "the solver's process ended with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", Verdict.ERROR, "the solver's process ended with code -9"),
        ("time.sleep(600)", Verdict.UNKNOWN, "killed after 2 s of wall-clock time"),
        ("raise OSError('no disk')", Verdict.ERROR, "OSError: no disk"),
    ],
    ids=["exits", "is killed", "hangs", "raises"],
)
def test_a_child_that_fails_amid_its_batch_loses_one_obligation(engine, started, harm, verdict, detail):
    others = [o for o in engine(harm) if o.kind != "mamba-align"]
    harmed = next(o for o in engine(harm) if o.kind == "mamba-align")
    victim, asked = 2, [*others[:2], harmed, *others[2:]]
    outcomes = dict(decide_all(asked, {}, jobs=1, wall_seconds=2))
    assert set(outcomes) == set(range(len(asked)))
    for index, outcome in outcomes.items():
        if index == victim:
            assert outcome.verdict is verdict
            assert outcome.detail.endswith(detail)
        else:
            assert outcome.verdict is Verdict.PROVED, asked[index].kind
    batch = next(batch for batch in started if victim in batch)
    assert batch[0] < victim < batch[-1]  # it was amid others
    assert len({index for batch in started for index in batch}) == len(asked)


def test_a_child_that_dies_at_its_first_obligation_loses_no_other_obligation(engine, started):
    asked = engine("os._exit(1)", "UniformTypeSpec")
    outcomes = dict(decide_all(asked, {}, jobs=1))
    lost = {asked[index].kind for index, o in outcomes.items() if o.verdict is Verdict.ERROR}
    assert lost == {o.kind for o in asked[:4]}
    assert all(kind.startswith("uniform-") for kind in lost)
    assert {o.verdict for o in outcomes.values()} == {Verdict.ERROR, Verdict.PROVED}


def test_answers_that_a_finished_child_left_behind_are_not_asked_for_again(started):
    asked = obligations(TODAY, invariants=[ROW_FITS])
    slow = decide_all(asked, {}, jobs=1)
    seen = [next(slow)]
    time.sleep(2)  # the child answers its whole batch and ends meanwhile
    seen += slow
    assert sorted(index for index, _ in seen) == list(range(len(asked)))
    assert sorted(index for batch in started for index in batch) == list(range(len(asked)))


def test_the_cost_of_an_obligation_is_the_same_in_every_company(monkeypatch):
    asked = [
        o
        for o in obligations(TODAY, kinds=["full-attention", "mamba-align"], runners=[Runner.V2])
        if o.label in ("row-fits", "column-fits/gather", "append-in-step/admit", "append-in-step/decode")
    ]
    alone = [next(decide_all([o], {}))[1].rlimit for o in asked]
    assert all(cost > 0 for cost in alone)
    for jobs, most, order in ((1, 8, 1), (2, 2, -1)):
        monkeypatch.setattr(pool, "_MOST_PER_CHILD", most)
        # Asked four times over, so that the batches are as large as the limit lets them be.
        many = (asked * 4)[::order]
        outcomes = dict(decide_all(many, {}, jobs=jobs))
        costs = [outcomes[index].rlimit for index in range(len(many))]
        assert costs == (alone * 4)[::order], (jobs, most, order)


def test_outcomes_cross_the_process_border_whole():
    asked = obligations(TODAY, kinds=["mamba-align"], invariants=[ROW_FITS], runners=[Runner.V2])
    [(index, outcome)] = decide_all(asked, {"max_model_len": 512})
    assert index == 0
    assert (outcome.verdict, outcome.slack) == (Verdict.PROVED, 0)
    assert outcome.witness["max_model_len"] == 512
    assert dataclasses.replace(outcome, detail="") == outcome
