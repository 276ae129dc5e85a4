"""Stored costs tell of a claim that got dearer, and are not compared across solver versions."""

import json

import pytest
from test_command import refused, run

from proofs.files import version
from proofs.verdicts import EXIT_DRIFT

ASKED = ("--spec", "hisparse-hot", "--invariant", "row-fits")


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "ceilings.json"
    assert run(*ASKED, "--store-ceilings", str(path)).returncode == 0
    return path


def changed(path, **values):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | values))


def test_a_run_is_below_the_ceilings_that_it_stored(stored):
    assert json.loads(stored.read_text())["z3-solver"] == version("z3-solver")
    done = run(*ASKED, "--ceilings", str(stored))
    assert done.returncode == 0
    assert "every cost is below its ceiling" in done.stdout


@pytest.mark.parametrize(
    ("ceilings", "told"),
    [
        ({"hisparse-hot V2 row-fits": 1}, "above its ceiling of 1"),
        ({}, "has no ceiling"),
        ({"hisparse-hot V2 row-fits": 10**9, "hisparse-hot V2 gone": 5}, "has a ceiling and is no claim"),
    ],
)
def test_drift_is_told_and_has_an_exit_code_of_its_own(stored, ceilings, told):
    changed(stored, ceilings=ceilings)
    done = run(*ASKED, "--ceilings", str(stored))
    assert done.returncode == EXIT_DRIFT
    assert told in done.stdout


def test_costs_of_another_version_are_not_compared(stored):
    changed(stored, **{"z3-solver": "0.0", "ceilings": {}})
    done = run(*ASKED, "--ceilings", str(stored))
    assert done.returncode == 0
    assert "costs not compared" in done.stdout


def test_a_file_that_is_none_is_one_line(tmp_path):
    path = tmp_path / "ceilings.json"
    for text in ("{", "[]", '{"schema": "other/1"}'):
        path.write_text(text)
        done = run(*ASKED, "--ceilings", str(path))
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
    assert "leave --solver out" in refused(*ASKED, "--solver", "both", "--ceilings", str(path))
