"""What a CI service reads: no run that is not proved, or did not end, is green there."""

import io

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from samples import ASKED, GATHER, HOSTILE, OUTCOMES, RUN

from proofs.files import Run
from proofs.junit import junit_text
from proofs.verdicts import Outcome, Verdict


def suite(run, outcomes, exit_code):
    text = junit_text(run, outcomes, exit_code)
    (only,) = JUnitXml.fromfile(io.BytesIO(text.encode()))
    return only


def kinds(of):
    return {case.name: [type(result) for result in case.result] for case in of}


def test_each_verdict_is_what_a_ci_service_makes_of_it():
    assert kinds(suite(RUN, OUTCOMES, 5)) == {
        "mamba-align V2 row-fits": [Failure],
        "mamba-align V2 column-fits": [Failure],
        "mamba-align V1 row-fits": [],
        "mla V2 row-fits": [Error],
        "mla V1 row-fits": [Error],
        "mla V2 column-fits": [Error],
        "mla V1 column-fits": [Skipped],
    }


def test_counts_times_and_classes_are_those_of_the_claims():
    of = suite(RUN, OUTCOMES, 5)
    assert (of.tests, of.failures, of.errors, of.skipped) == (7, 2, 3, 1)
    assert of.time == pytest.approx(0.875)
    assert [case.time for case in of][:3] == [0.25, 0.5, 0.125]
    assert {case.classname for case in of} >= {"rowbound.vllm-0.28.V2.mamba-align"}
    assert sum(1 for case in of) == of.tests


def test_a_failure_has_the_sentence_and_the_arithmetic():
    (failure,) = next(iter(suite(RUN, OUTCOMES, 5))).result
    assert failure.type == "REFUTED"
    assert failure.message == "at 257 tokens the scheduler hands over 17 entries for a row of 16: 1 too many"
    assert "cdiv(257, 16) = 17" in failure.text
    assert "│■■■■■■■■■■■■■■■■│×" in failure.text


def test_properties_say_what_was_asked_and_with_which_versions():
    stated = {item.name: item.value for item in suite(RUN, OUTCOMES, 5).properties()}
    assert stated["complete"] == "true"
    assert stated["exit_code"] == "5"
    assert stated["release"] == "vllm-0.28 (vLLM 0.28.0)"
    assert stated["at.max_model_len"] == "512"
    assert stated["version.z3-solver"][0].isdigit()
    assert stated["not_asked.1"].startswith("encoder-only: <script>")


def test_a_run_that_did_not_end_is_red_whatever_it_had_decided():
    proved = {index: Outcome(Verdict.PROVED) for index in range(len(ASKED))}
    for outcomes in ({}, {2: OUTCOMES[2]}, proved):
        of = suite(RUN, outcomes, None)
        assert of.errors == len(ASKED) - len(outcomes) + 1
        assert kinds(of)["the run ends"] == [Error]
        assert {item.name: item.value for item in of.properties()}["complete"] == "false"
    assert suite(RUN, proved, 0).errors == 0


def test_what_xml_cannot_hold_is_replaced_and_the_rest_is_kept():
    (error,) = list(suite(RUN, OUTCOMES, 5))[5].result
    kept = HOSTILE.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")
    assert error.message == kept


def test_a_finer_claim_has_its_own_name():
    finer = GATHER
    assert next(iter(kinds(suite(Run(RUN.release, {}, [finer]), {}, 0)))).endswith("V2 column-fits/gather")
