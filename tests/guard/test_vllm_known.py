"""The table of what the checker found in each release is what the checker says."""

import shlex

import pytest

pytest.importorskip("numpy")
pytest.importorskip("z3")

from guard.vllm._known import KNOWN_BAD
from invariants import RELEASES, claim, release
from proofs.command import main
from proofs.decide import decide
from proofs.verdicts import Verdict, obligations

RUNS_IN = tuple(known.name for known in RELEASES[1:] if float(known.name.rpartition(".")[2]) >= 28)


def found(name):
    """Return what of the table's claims is not proved in a release: invariant, kind and runner of each."""
    known = release(name)
    asked = [
        *obligations(known, invariants=[claim("row-fits")]),
        *obligations(known, kinds=["circular-buffer", "kpool-tail"], invariants=[claim("column-fits")]),
        *obligations(
            known,
            kinds=["full-attention"],
            invariants=[claim("column-fits/session-chunk"), claim("slots-distinct")],
        ),
    ]
    return {
        (one.invariant.label, one.kind, one.runner)
        for one in asked
        if decide(one, {}).verdict is not Verdict.PROVED
    }


def test_there_is_a_line_for_every_release_that_the_guard_runs_in():
    assert set(KNOWN_BAD) == set(RUNS_IN)


@pytest.mark.parametrize("name", RUNS_IN)
def test_what_is_known_bad_is_what_the_checker_does_not_prove(name):
    told = {
        (bad.invariant, kind, runner)
        for bad in KNOWN_BAD[name]
        for kind in bad.kinds
        for runner in bad.runners
    }
    assert told == found(name)


COMMANDS = {
    bad.see.removeprefix("python -m proofs.check ")
    for known in KNOWN_BAD.values()
    for bad in known
    if bad.see.startswith("python -m proofs.check ")
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_where_no_thread_is_named_the_command_shows_the_finding(command, capsys):
    assert main(shlex.split(command)) == 1
    assert "REFUTED" in capsys.readouterr().out
