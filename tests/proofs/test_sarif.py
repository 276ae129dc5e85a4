"""The findings as SARIF, against the format's own schema."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from samples import FOUND, GATHER, OUTCOMES, RUN, claim

from invariants import Release
from proofs.files import Run
from proofs.sarif import sarif_text
from proofs.verdicts import Outcome, Verdict

SCHEMA = json.loads((Path(__file__).parent / "sarif-2.1.0-rtm.5.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)


def document(run=RUN, outcomes=OUTCOMES, exit_code=5):
    read = json.loads(sarif_text(run, outcomes, exit_code))
    VALIDATOR.validate(read)
    (only,) = read["runs"]
    return only


def own_width(path):
    known = Release(f"{path}:row_width", "rows as it makes them", lambda *_: 1)
    return Run(known, {}, [claim(known=known)], width=f"{path}:row_width")


def test_the_schema_refuses_what_is_not_sarif():
    read = json.loads(sarif_text(RUN, OUTCOMES, 5))
    read["runs"][0]["results"][0]["level"] = "catastrophe"
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(read)


def test_findings_are_the_claims_that_are_neither_proved_nor_skipped():
    results = document()["results"]
    assert [(r["ruleId"], r["level"], r["properties"]["verdict"]) for r in results] == [
        ("row-fits", "error", "REFUTED"),
        ("column-fits", "error", "REFUTED"),
        ("row-fits", "error", "VACUOUS"),
        ("row-fits", "warning", "UNKNOWN"),
        ("column-fits", "error", "ERROR"),
    ]


def test_every_result_points_at_its_rule_and_each_rule_says_what_to_do():
    run = document()
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(dict.fromkeys(o.invariant.name for o in RUN.asked))
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert all("What to do" in rule["help"]["markdown"] for rule in rules)


def test_a_finding_has_its_numbers_its_place_and_a_fingerprint_of_the_claim_alone():
    first = document()["results"][0]
    assert "at 257 tokens the scheduler hands over 17 entries" in first["message"]["text"]
    assert first["properties"]["values"]["num_tokens"] == 257
    (place,) = first["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "vllm/v1/worker/gpu/model_runner.py"
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "vllm-0.28/V2/mamba-align/row-fits"
    changed = {0: dataclasses.replace(OUTCOMES[0], counterexample=dataclasses.replace(FOUND, summary="x"))}
    assert document(outcomes=changed)["results"][0]["partialFingerprints"] == first["partialFingerprints"]
    prints = [r["partialFingerprints"]["claim/v1"] for r in document()["results"]]
    assert len(set(prints)) == len(prints)


def test_a_function_of_the_users_own_is_the_place():
    for path, uri in (("my engine.py", "my%20engine.py"), ("/src/e.py", "file:///src/e.py")):
        (result,) = document(own_width(path), {0: OUTCOMES[0]}, 1)["results"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place["uri"] == uri


@pytest.mark.parametrize(("code", "successful"), [(0, True), (1, True), (3, True), (4, True), (5, False)])
def test_execution_is_successful_when_the_checker_did_its_work(code, successful):
    (invocation,) = document(exit_code=code)["invocations"]
    assert invocation == {"executionSuccessful": successful, "exitCode": code}


def test_an_incomplete_run_is_no_successful_execution():
    (invocation,) = document(outcomes={2: Outcome(Verdict.PROVED)}, exit_code=None)["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert "1 of 7 claims decided" in notification["message"]["text"]


def test_a_finer_claim_belongs_to_its_invariants_rule():
    finer = GATHER
    run = document(Run(RUN.release, {}, [finer]), {0: OUTCOMES[1]}, 1)
    (result,) = run["results"]
    assert result["ruleId"] == "column-fits/gather"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "column-fits"
