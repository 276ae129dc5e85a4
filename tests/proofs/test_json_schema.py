"""The JSON reports keep the schemas that are shipped with them."""

import copy
import json
from importlib.resources import files

import jsonschema
import pytest
from referencing import Registry, Resource
from samples import ASKED, OUTCOMES

from proofs.files import JsonFile
from proofs.installed_report import INSTALLED_SCHEMA
from proofs.matrix import MATRIX_SCHEMA, MatrixReport
from proofs.mutant_pool import Fate, Finding
from proofs.mutants_command import SCHEMA as MUTANTS_SCHEMA
from proofs.mutants_command import _document
from proofs.mutations import Mutant
from proofs.report import SCHEMA, JsonReport


def shipped(name):
    return json.loads((files("proofs") / "schemas" / name).read_text())


SHIPPED, MATRIX, MUTANTS = map(shipped, ("check-1.json", "check-matrix-1.json", "mutants-1.json"))
REGISTRY = Registry().with_resource(SHIPPED["$id"], Resource.from_contents(SHIPPED))
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)
MATRIX_VALIDATOR = jsonschema.Draft202012Validator(MATRIX, registry=REGISTRY)
MUTANTS_VALIDATOR = jsonschema.Draft202012Validator(MUTANTS)


def broken_at(document, path, value):
    """Return a copy of a document with another value at one place."""
    changed = copy.deepcopy(document)
    *way, last = path
    place = changed
    for step in way:
        place = place[step]
    place[last] = value
    return changed


@pytest.fixture
def report(tmp_path):
    def written(outcomes, exit_code):
        path = tmp_path / "report.json"
        JsonReport(path, "vllm-0.28", {"max_model_len": 512}, ASKED).write(outcomes, exit_code=exit_code)
        return json.loads(path.read_text())

    return written


@pytest.mark.parametrize(
    ("schema", "layout"),
    [
        (SHIPPED, SCHEMA),
        (MATRIX, MATRIX_SCHEMA),
        (MUTANTS, MUTANTS_SCHEMA),
        (shipped("installed-1.json"), INSTALLED_SCHEMA),
    ],
)
def test_the_schema_is_one_and_names_the_layout_that_is_written(schema, layout):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]["const"] == layout
    assert schema["$id"] == f"urn:{layout.replace('.', ':').replace('/', ':')}"


def test_complete_and_incomplete_reports_keep_it(report):
    VALIDATOR.validate(report(OUTCOMES, 5))
    VALIDATOR.validate(report({}, None))
    VALIDATOR.validate(report({0: OUTCOMES[0]}, None))
    VALIDATOR.validate(report(OUTCOMES, 6))  # every claim proved, and one dearer than its ceiling


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
    assert not VALIDATOR.is_valid(broken_at(report(OUTCOMES, 5), path, value))


# --- all releases ---------------------------------------------------------------------------------


@pytest.fixture
def matrix(tmp_path):
    def written(outcomes, exit_code):
        path = tmp_path / "matrix.json"
        MatrixReport(path, {"block_size": 16}, ASKED, {1: 0}).write(outcomes, exit_code=exit_code)
        return json.loads(path.read_text())

    return written


def test_complete_and_incomplete_reports_of_all_releases_keep_theirs(matrix):
    MATRIX_VALIDATOR.validate(matrix(OUTCOMES, 5))
    MATRIX_VALIDATOR.validate(matrix({}, None))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("complete",), False),
        (("exit_code",), None),
        (("exit_code",), 6),  # ceilings are of one release
        (("schema",), "rowbound.check/1"),
        (("news",), 1),
        (("tally", "PROVED"), -1),
        (("releases",), []),
        (("releases", 0, "verdict"), "PROVED"),
        (("releases", 0, "complete"), False),
        (("releases", 0, "obligations", 0, "verdict"), "MAYBE"),
        (("shared", 0, "as"), None),
        (("shared", 0, "as", "runner"), "V3"),
    ],
)
def test_a_report_of_all_releases_that_contradicts_itself_breaks_theirs(matrix, path, value):
    assert not MATRIX_VALIDATOR.is_valid(broken_at(matrix(OUTCOMES, 5), path, value))


# --- mutants --------------------------------------------------------------------------------------

MUTANT = Mutant(
    "specs.MambaAlignSpec.max_num_blocks_per_req", "one more", "a", "b", ("mamba-align V2 row-fits",)
)
REFUTING = next(outcome.counterexample for outcome in OUTCOMES.values() if outcome.counterexample)
FINDINGS = (
    Finding(MUTANT, Fate.CAUGHT, 1, "mamba-align V2 row-fits", REFUTING, seconds=0.5),
    Finding(MUTANT, Fate.SURVIVED, 2),
    Finding(MUTANT, Fate.UNDECIDED, 2, undecided=("mamba-align V2 row-fits: UNKNOWN",)),
    Finding(MUTANT, Fate.ERROR, detail="the text stands there 0 times, not once"),
)


@pytest.fixture
def mutants(tmp_path):
    def written(findings, exit_code):
        path = tmp_path / "mutants.json"
        JsonFile(path, MUTANTS_SCHEMA, (), _document).write(findings, exit_code=exit_code)
        return json.loads(path.read_text())

    return written


def test_complete_and_incomplete_reports_of_mutants_keep_theirs(mutants):
    MUTANTS_VALIDATOR.validate(mutants(FINDINGS, 5))
    MUTANTS_VALIDATOR.validate(mutants((), None))
    MUTANTS_VALIDATOR.validate(mutants(FINDINGS[:1], None))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("complete",), False),
        (("exit_code",), None),
        (("exit_code",), 4),
        (("mutants",), []),
        (("mutants", 0, "fate"), "SURVIVED"),
        (("mutants", 0, "caught_by"), None),
        (("mutants", 0, "case"), None),
        (("mutants", 0, "case", "values", "block_size"), "16"),
        (("mutants", 1, "fate"), "CAUGHT"),
        (("mutants", 1, "fate"), "KILLED"),
        (("mutants", 2, "undecided"), None),
        (("mutants", 3, "seconds"), -1),
        (("mutants", 3, "news"), 1),
    ],
)
def test_a_report_of_mutants_that_contradicts_itself_breaks_theirs(mutants, path, value):
    assert not MUTANTS_VALIDATOR.is_valid(broken_at(mutants(FINDINGS, 5), path, value))
