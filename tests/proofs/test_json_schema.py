"""The JSON report keeps the schema that is shipped with it."""

import copy
import json
from importlib.resources import files

import jsonschema
import pytest
from samples import ASKED, OUTCOMES

from proofs.report import SCHEMA, JsonReport

SHIPPED = json.loads((files("proofs") / "schemas" / "check-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)


@pytest.fixture
def report(tmp_path):
    def written(outcomes, exit_code):
        path = tmp_path / "report.json"
        JsonReport(path, "vllm-0.28", {"max_model_len": 512}, ASKED).write(outcomes, exit_code=exit_code)
        return json.loads(path.read_text())

    return written


def test_the_schema_is_one_and_names_the_layout_that_is_written():
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    assert SHIPPED["properties"]["schema"]["const"] == SCHEMA


def test_complete_and_incomplete_reports_keep_it(report):
    VALIDATOR.validate(report(OUTCOMES, 5))
    VALIDATOR.validate(report({}, None))
    VALIDATOR.validate(report({0: OUTCOMES[0]}, None))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("complete",), False),
        (("exit_code",), None),
        (("exit_code",), 7),
        (("schema",), "rowbound.check/2"),
        (("news",), 1),
        (("tally", "MAYBE"), 1),
        (("obligations",), []),
        (("obligations", 0, "verdict"), "MAYBE"),
        (("obligations", 0, "verdict"), None),
        (("obligations", 0, "verdict"), "PROVED"),
        (("obligations", 0, "counterexample"), None),
        (("obligations", 0, "counterexample", "values", "block_size"), "16"),
        (("obligations", 2, "counterexample"), {}),
        (("obligations", 2, "seconds"), -1),
    ],
)
def test_a_report_that_contradicts_itself_breaks_it(report, path, value):
    document = copy.deepcopy(report(OUTCOMES, 5))
    *way, last = path
    place = document
    for step in way:
        place = place[step]
    place[last] = value
    assert not VALIDATOR.is_valid(document)
