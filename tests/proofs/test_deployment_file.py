"""A file with one deployment is checked in the engine's own words, and a fleet of them loses nothing."""

import json
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from invariants import (
    RELEASES,
    SPEC_KINDS,
    Access,
    Deployment,
    MambaNoneSpec,
    Request,
    Runner,
    UniformTypeSpec,
    column,
    entries,
    kind_of,
    max_num_tokens,
)
from invariants.parameters import parameters_of
from invariants.strategies import cases
from proofs import fleet
from proofs.deployment_file import MOST_BYTES, DeploymentFileError, parse_deployment, read_deployment
from tests.proofs.test_command import COMMAND, refused, run

SCHEMA = json.loads((Path(fleet.__file__).parent / "schemas" / "deployment-1.json").read_text())
PUBLIC = """\
release = "vllm-0.28"
max_num_seqs = 256
max_model_len = 512
decode_context_parallel_size = 2

[[groups]]
type = "FullAttentionSpec"
block_size = 16
page_size_bytes = 65536
layers = 24

[[groups]]
type = "MambaSpec"
mamba_cache_mode = "align"
block_size = 16
"""
FITS = 'max_model_len = 512\n[[groups]]\ntype = "mla"\nblock_size = 16\n'


@pytest.fixture
def write(tmp_path):
    def write(text, name="engine.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def check(groups, **deployment):
    """Check groups, given as (type, fields), without a file."""
    listed = [{"type": kind, **fields} for kind, fields in groups]
    read = parse_deployment({**deployment, "groups": listed})
    return [fleet.check_group(read, group) for group in read.groups]


def only(kind, fields, **deployment):
    (found,) = check([(kind, fields)], **deployment)
    return found


def numbers(found):
    first = found.first_failure
    return found.entries_needed, found.row_width, first and first.tokens


def test_the_public_case_is_printed_with_its_numbers_and_its_arithmetic(write):
    done = run("--deployment", str(write(PUBLIC)))
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    attention = next(line for line in lines if "groups[0]" in line)
    mamba = next(line for line in lines if "groups[1]" in line)
    assert attention.startswith("FITS ")
    assert "vllm-0.28 V2  groups[0]  full-attention  needs 16 of 16 entries, slack 0 (0 bytes)" in attention
    assert mamba.startswith("OVERFLOWS ")
    # 16 entries of 4 bytes in each of 256 rows are missing.
    assert "needs 32 of 16 entries, lacks 16 (16,384 bytes); first fails at 257 tokens" in mamba
    said = " ".join(done.stdout.split())
    assert "entries = cdiv(max_model_len - num_sampled_tokens, block_size) = cdiv(512 - 1, 16) = 32" in said
    assert "decode_context_parallel_size) = cdiv(512, 16 * 2) = 16" in said
    assert "first too many = cdiv(num_tokens, block_size) = cdiv(257, 16) = 17" in said
    assert "largest column = position // block_size = 510 // 16 = 31" in said
    assert lines[-1] == "2 groups of 1 file: 1 FITS, 1 OVERFLOWS; 0 files with a mistake"


@pytest.mark.parametrize(
    ("release", "runner", "expected"),
    [
        ("vllm-0.28", "V2", (32, 16, 257)),
        ("vllm-0.27", "V2", (32, 16, 257)),
        ("vllm-0.26", "V2", (32, 16, 257)),
        ("vllm-0.26", "V1", (32, 32, None)),
        ("today", "V2", (32, 32, None)),
    ],
)
def test_the_release_and_runner_of_the_call_stand_in_place_of_the_files(write, release, runner, expected):
    path = write(PUBLIC)
    known = next(r for r in RELEASES if r.name == release)
    report = fleet.check_file(path, release=known, runner=Runner(runner))
    assert numbers(report.groups[1]) == expected
    done = run("--deployment", str(path), "--release", release, "--runner", runner)
    assert done.returncode == (1 if expected[2] else 0)
    assert f"{release} {runner}" in done.stdout


@pytest.mark.parametrize(
    ("release", "length", "block", "dcp", "expected", "on_v1"),
    [
        ("vllm-0.28", 18, 16, 2, (2, 1, 17), 2),
        ("vllm-0.27", 18, 16, 2, (2, 1, 17), 2),
        ("vllm-0.26", 130, 16, 2, (9, 8, 129), 16),
        ("vllm-0.26", 100, 48, 2, (3, 2, 97), 4),
        ("vllm-0.28", 64, 16, 2, (4, 2, 33), 4),
        ("vllm-0.28", 64, 16, 4, (4, 1, 17), 4),
    ],
)
def test_replicated_states_in_rows_divided_by_dcp_fail_where_the_releases_were_seen_to(
    release, length, block, dcp, expected, on_v1
):
    sizes = {"release": release, "max_model_len": length, "decode_context_parallel_size": dcp}
    assert numbers(only("mamba-align", {"block_size": block}, **sizes)) == expected
    assert only("mamba-align", {"block_size": block}, **sizes, runner="V1").row_width == on_v1


@pytest.mark.parametrize(
    ("release", "widths"),
    [("vllm-0.26", {"V1": 2, "V2": 2}), ("vllm-0.27", {"V1": 1, "V2": 2}), ("vllm-0.28", {"V1": 3, "V2": 2})],
)
def test_a_wrapper_that_forgets_drafts_fails_as_it_was_seen_to(release, widths):
    inner = {"type": "MambaSpec", "mamba_cache_mode": "none", "block_size": 64, "num_speculative_blocks": 2}
    for runner, width in widths.items():
        found = only(
            "UniformTypeKVCacheSpecs", {"inner": inner},
            release=release, runner=runner, max_model_len=64, enable_prefix_caching=False,
        )  # fmt: skip
        assert numbers(found) == (3, width, 1 if width < 3 else None)


def test_a_measured_row_stands_in_place_of_the_formula_and_both_are_shown(write):
    path = write(FITS + "row_width = 31\n")
    report = fleet.check_file(path)
    (found,) = report.groups
    # 511 tokens need 32 blocks of 16; the 32nd begins with token 497, whose position 496 is in column 31.
    assert numbers(found) == (32, 31, 497)
    assert found.outside.tokens == 497
    assert found.width_by_formula == 32
    said = " ".join(run("--deployment", str(path)).stdout.split())
    assert "the formula makes it 32" in said
    assert "worker row width = 31, measured" in said
    assert "from 497 tokens on a kernel reads a column outside the row (the last is 30)" in said


def test_the_columns_of_draft_states_are_checked_too():
    found = only(
        "mamba-none",
        {"mamba_block_size": 64, "num_speculative_blocks": 3, "row_width": 3},
        max_model_len=64,
        enable_prefix_caching=False,
    )
    # The running state and 3 drafts, at every length: columns 0 to 3.
    assert (found.entries_needed, found.largest_column) == (4, 3)
    assert (found.overflow.tokens, found.outside.tokens) == (1, 1)


def test_the_largest_column_may_be_in_the_run_of_another_rank():
    # 17 tokens, runs of 16 on two ranks, blocks of 16 split in two: position 15 is in kernel block 1 of rank
    # 0, the last position is the first of rank 1's block. Column 1 is read once position 8 exists.
    found = only(
        "full-attention",
        {"block_size": 16, "blocks_per_kv_block": 2, "row_width": 1},
        max_model_len=18, decode_context_parallel_size=2, cp_kv_cache_interleave_size=16,
    )  # fmt: skip
    assert (found.entries_needed, found.largest_column) == (2, 1)
    assert (found.overflow.tokens, found.outside.tokens) == (1, 9)


def test_a_cross_attention_row_fails_by_encoder_tokens():
    found = only(
        "cross-attention",
        {"block_size": 16, "row_width": 32},
        max_model_len=512,
        max_num_encoder_input_tokens=1000,
    )
    assert numbers(found) == (63, 32, 513)
    assert found.first_failure.of_encoder


def test_bytes_are_those_of_one_table_and_of_the_largest_requests_blocks():
    mla = {"type": "mla", "block_size": 16, "page_size_bytes": 1000, "layers": 3, "row_width": 40}
    wrapped = {"type": "uniform-mla", **{k: v for k, v in mla.items() if k != "type"}}
    read = parse_deployment({"max_model_len": 512, "max_num_seqs": 10, "groups": [mla, wrapped]})
    plain, in_wrapper = (fleet.check_group(read, group) for group in read.groups)
    assert (plain.slack, plain.slack_bytes) == (8, 320)
    assert (plain.block_bytes, plain.blocks_needed) == (3000, 32)
    assert in_wrapper.block_bytes == 1000  # a wrapper's page is that of all its layers
    split = only(
        "mla", {"block_size": 16, "blocks_per_kv_block": 2, "page_size_bytes": 10}, max_model_len=512
    )
    assert (split.entries_needed, split.blocks_needed) == (64, 32)


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ({"type": "full-attention", "block_size": 16}, "full-attention"),
        ({"type": "SlidingWindowMLASpec", "block_size": 16, "sliding_window": 64}, "sliding-window-mla"),
        ({"type": "MambaSpec", "mamba_cache_mode": "all", "block_size": 16}, "mamba-all"),
        ({"type": "uniform-mamba-align", "block_size": 16}, "uniform-mamba-align"),
        ({"type": "uniform-rswa", "block_size": 16, "rswa_window": 4}, "uniform-rswa"),
        (
            {"type": "UniformTypeKVCacheSpecs", "inner": {"type": "MLAAttentionSpec", "block_size": 16}},
            "uniform-mla",
        ),
    ],
)
def test_a_spec_may_be_named_as_claims_are_or_as_the_engine_does(group, kind):
    (read,) = parse_deployment({"max_model_len": 64, "groups": [group]}).groups
    assert kind_of(read.spec) == kind


def test_the_engines_mamba_class_without_prefix_caching_takes_its_own_block_size():
    group = {"type": "MambaSpec", "mamba_cache_mode": "none", "block_size": 64}
    content = {"max_model_len": 64, "enable_prefix_caching": False, "groups": [group]}
    assert parse_deployment(content).groups[0].spec == MambaNoneSpec(mamba_block_size=64)


MLA = {"type": "mla", "block_size": 16}


def content(*groups, **top):
    return {"max_model_len": 512, **top, "groups": list(groups)}


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ([], "the file", "is []; it must be a table"),
        (3, "the file", "is 3; it must be a table"),
        ({}, "max_model_len", "is missing: longest sequence"),
        ({"max_model_len": 9}, "groups", "is missing: a deployment has at least one cache group"),
        (content(), "groups", "is empty: a deployment has at least one cache group"),
        ({"groups": [MLA]}, "max_model_len", "is missing: longest sequence"),
        (content(MLA, max_model_len="512"), "max_model_len", "must be a whole number, not '512'"),
        (content(MLA, max_model_len=512.0), "max_model_len", "must be a whole number, not 512.0"),
        (content(MLA, max_model_len=None), "max_model_len", "must be a whole number, not null"),
        (content(MLA, max_model_len=True), "max_model_len", "must be a whole number, not True"),
        (content(MLA, max_model_len=0), "max_model_len", "must be at least 1, not 0"),
        (content(MLA, max_model_len=1), "max_model_len", "1 admits no request"),
        (content(MLA, max_model_len=2**63), "max_model_len", "a whole number, not one of 64 bits"),
        (content(MLA, max_model_len=[1] * 999), "max_model_len", "not [1, 1, 1, 1, 1, 1, ...]"),
        (content(MLA, max_model_len="x" * 999), "max_model_len", "..."),
        (content(MLA, enable_prefix_caching=1), "enable_prefix_caching", "must be true or false, not 1"),
        (content(MLA, num_sampled_tokens=2), "num_sampled_tokens", "must be at most 1, not 2"),
        (content(MLA, max_num_seqs=0), "max_num_seqs", "must be at least 1, not 0"),
        (content(MLA, max_modellen=3), "max_modellen", "no such key here; did you mean max_model_len?"),
        (content(MLA, dcp=2), "dcp", "did you mean decode_context_parallel_size?"),
        (content(MLA, **{"a\nb": 2}), "'a\\nb'", "; it is not read, so leave it out; what is read: "),
        (content(MLA, release="vllm-028"), "release", "did you mean vllm-0.28?"),
        (content(MLA, release=0.28), "release", "must be one of today, "),
        (content(MLA, runner=2), "runner", "must be one of V1, V2, not 2"),
        (content(MLA, runner="v2"), "runner", "cannot be 'v2'; did you mean V2?"),
        ({**content(), "groups": MLA}, "groups", "must be a list of tables"),
        (content(MLA, 3), "groups[1]", "is 3; it must be a table"),
        (content({}), "groups[0].type", "is missing; it is one of full-attention, "),
        (content({"type": "mamba"}), "groups[0].type", "cannot be 'mamba'; did you mean mamba-all?"),
        (content({"type": 3}), "groups[0].type", "not 3"),
        (content({"type": ["mla"]}), "groups[0].type", "not ['mla']"),
        (content({"type": "FullAttention"}), "groups[0].type", "did you mean FullAttentionSpec?"),
        (content({"type": "mla"}), "groups[0].block_size", "is missing: tokens per manager block"),
        (content(MLA, {**MLA, "block_size": 0}), "groups[1].block_size", "must be at least 1, not 0"),
        (content({**MLA, "block_sise": 1}), "groups[0].block_sise", "did you mean block_size?"),
        (content({**MLA, "row_width": -1}), "groups[0].row_width", "must be at least 0, not -1"),
        (content({**MLA, "layers": 0}), "groups[0].layers", "must be at least 1, not 0"),
        (
            content({"type": "MambaSpec"}),
            "groups[0].mamba_cache_mode",
            "is missing; it is one of none, align, all",
        ),
        (
            content({"type": "MambaSpec", "mamba_cache_mode": "aligned", "block_size": 1}),
            "groups[0].mamba_cache_mode",
            "did you mean align?",
        ),
        (content({"type": "UniformTypeKVCacheSpecs"}), "groups[0].inner", "is missing; it must be a table"),
        (
            content({"type": "UniformTypeKVCacheSpecs", "inner": {**MLA, "block_size": "a"}}),
            "groups[0].inner.block_size",
            "must be a whole number, not 'a'",
        ),
        (
            content({"type": "UniformTypeKVCacheSpecs", "inner": {"type": "uniform-mla"}}),
            "groups[0].inner.type",
            "must be one of",
        ),
        (
            content({"type": "UniformTypeKVCacheSpecs", "inner": {**MLA, "row_width": 1}}),
            "groups[0].inner.row_width",
            "there is no such key here",
        ),
        (
            content({"type": "mamba-align", "block_size": 16}, enable_prefix_caching=False),
            "groups[0]",
            "breaks cache-mode: mamba-align: Mamba keeps states by position exactly when",
        ),
        (
            content({**MLA, "blocks_per_kv_block": 3}),
            "groups[0]",
            "breaks kernel-blocks-divide: mla: a manager block is split into whole kernel blocks",
        ),
        (
            content({"type": "circular-buffer", "block_size": 8}, release="vllm-0.28"),
            "groups[0]",
            "breaks release: vllm-0.28 (vLLM 0.28.0) has no circular-buffer groups",
        ),
        (
            content(MLA, release="vllm-0.28", block_table_token_alignment=64),
            "groups[0]",
            "breaks release: vllm-0.28 fixes block_table_token_alignment at 128, not 64",
        ),
        (
            content({"type": "hisparse-hot", "blocks_per_request": 2}, runner="V1"),
            "groups[0]",
            "V1 has no hisparse-hot groups",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_key_and_what_is_allowed(given, key, message):
    with pytest.raises(DeploymentFileError) as caught:
        parse_deployment(given)
    assert caught.value.key == key
    assert message in caught.value.message
    assert "\n" not in str(caught.value)
    assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "max_model_len = 3\nmax_model_len = 4\n", "line 2: bad TOML: Cannot overwrite a value"),
        ("a.toml", "max_model_len = \n", "line 1: bad TOML: Invalid value: 'max_model_len ='"),
        ("a.toml", "x = [1,\n2", "line 2: bad TOML: Unclosed array"),
        ("a.toml", "", "max_model_len: is missing"),
        ("a.toml", "x = " + "9" * 5000, "bad number"),
        ("a.toml", "x = " + "[" * 100_000, "is nested too deep for a deployment"),
        ("a.json", '{"a": 1,\n "b" 2}', "line 2: bad JSON: Expecting ':' delimiter"),
        ("a.json", "", "line 1: bad JSON: Expecting value"),
        ("a.json", "[" * 100_000, "is nested too deep for a deployment"),
        ("a.json", '{"x": ' + "9" * 5000 + "}", "bad number"),
        ("a.json", '{"max_model_len": 1, "max_model_len": 1, "groups": []}', "max_model_len: stands twice"),
        (
            "a.json",
            '{"max_model_len": 8, "groups": [{"type": "mla", "block_size": 1, "block_size": 2}]}',
            "groups[0].block_size: stands twice",
        ),
        (
            "a.json",
            '{"max_model_len": NaN, "groups": [{}]}',
            "max_model_len: must be a whole number, not nan",
        ),
        ("a.toml", b"# fine\nx = '\xff'\n", "line 2: is not UTF-8 text: byte 0xff"),
        ("a.toml", b"\xff\xfe" + FITS.encode("utf-16-le"), "line 1: is not UTF-8 text: byte 0xff"),
        ("a.toml", b"#" * 2**20 + b"\n", "is larger than 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_with_its_place(write, name, text, message):
    path = write(text, name)
    report = fleet.check_file(path)
    said = str(report.mistake)
    assert message in said
    assert "\n" not in said
    done = run("--deployment", str(path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == f"python -m proofs.check: {path}: {said}"


def test_paths_that_are_no_files_are_one_line_each(tmp_path):
    done = run("--deployment", str(tmp_path), str(tmp_path / "nowhere.toml"), str(tmp_path / "two\nlines"))
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == [
        "Is a directory",
        *["No such file or directory"] * 2,
    ]
    assert "two\\nlines" in said[2]
    assert "0 groups of 3 files: 0 FITS, 0 OVERFLOWS; 3 files with a mistake" in done.stdout


def test_a_mistake_in_one_file_loses_nothing_of_the_others(write, tmp_path):
    bad = write("max_model_len = 0\n" + FITS.partition("\n")[2], "bad.toml")
    good, faulty = write(FITS, "good.toml"), write(PUBLIC, "faulty.toml")
    report = tmp_path / "report.json"
    arguments = ["--deployment", str(bad), str(good), "--deployment", str(faulty), "--json", str(report)]
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"python -m proofs.check: {bad}: max_model_len: must be at least 1, not 0"
    ]
    groups = done.stdout.splitlines()[:-2]
    assert [line.split()[0] for line in groups] == ["FITS", "FITS", "OVERFLOWS"]  # a line per group
    assert "3 groups of 3 files: 2 FITS, 1 OVERFLOWS; 1 file with a mistake" in done.stdout
    document = json.loads(report.read_text())
    jsonschema.validate(document, SCHEMA)
    assert (document["complete"], document["exit_code"]) == (True, 2)
    assert document["tally"] == {"FITS": 2, "OVERFLOWS": 1, "files": 3, "mistakes": 1}
    assert document["files"][0]["mistake"] == {"key": "max_model_len", "message": "must be at least 1, not 0"}
    mamba = document["files"][2]["groups"][1]
    expected = {
        "spec": "mamba-align", "verdict": "OVERFLOWS", "entries_needed": 32, "row_width": 16,
        "slack_entries": -16, "slack_bytes": -16384, "largest_column": 31,
        "first_failure": {"tokens": 257, "counts_encoder_tokens": False},
    }  # fmt: skip
    assert {key: mamba[key] for key in expected} == expected
    assert document["files"][2]["groups"][0]["kv_bytes_at_most"] == 16 * 24 * 65536
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bad.toml",
        "faulty.toml",
        "good.toml",
        "report.json",
    ]


@pytest.mark.parametrize(("texts", "code"), [([FITS], 0), ([FITS, PUBLIC], 1), ([PUBLIC, "x"], 2)])
def test_exit_codes_say_whether_all_fit_one_does_not_or_a_file_has_a_mistake(write, texts, code):
    paths = [str(write(text, f"{index}.toml")) for index, text in enumerate(texts)]
    assert run("--deployment", *paths).returncode == code


def test_the_json_report_is_marked_incomplete_until_the_run_ends(tmp_path):
    path = tmp_path / "report.json"
    report = fleet.fleet_json(path)
    begun = json.loads(path.read_text())
    jsonschema.validate(begun, SCHEMA)
    assert (begun["complete"], begun["exit_code"], begun["schema"]) == (False, None, fleet.SCHEMA)
    report.write([], exit_code=0)
    assert json.loads(path.read_text())["complete"] is True


def test_the_json_schema_refuses_what_no_run_writes(write):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = json.loads(run("--deployment", str(write(PUBLIC)), "--json", "/dev/stderr").stderr)
    jsonschema.validate(document, SCHEMA)
    group = document["files"][0]["groups"][1]
    for change in ({"verdict": "FITS"}, {"row_width": -1}, {"verdict": "PROVED"}, {"extra": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {**document, "files": [{**document["files"][0], "groups": [{**group, **change}]}]}, SCHEMA
            )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "complete": False}, SCHEMA)


def test_no_solver_is_needed_and_neither_are_torch_and_the_guard(write):
    blocked = "z3", "torch", "triton", "numpy", "guard", "hypothesis"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}));"
        "import proofs.command; sys.exit(proofs.command.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "--deployment", str(write(PUBLIC))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "first fails at 257 tokens" in done.stdout


def test_json_and_toml_say_the_same_whatever_the_file_is_called(write):
    group = {"type": "mla", "block_size": 16}
    text = json.dumps({"max_model_len": 512, "groups": [group]})
    expected = read_deployment(write(FITS))
    assert read_deployment(write(text, "engine.json")) == expected
    assert read_deployment(write(text, "engine")) == expected
    assert read_deployment(write(FITS, "engine")) == expected
    assert read_deployment(write(b"\xef\xbb\xbf" + FITS.encode())) == expected


def test_a_deployment_can_come_through_a_pipe():
    done = subprocess.run(
        [*COMMAND, "--deployment", "/dev/stdin"], input=FITS, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "needs 32 of 32 entries" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--at", "max_model_len=3"], "--at does not go with --deployment"),
        (["--spec", "mla"], "--spec does not go with --deployment"),
        (["--list"], "--list does not go with --deployment"),
        (["--emit-test", "x"], "--emit-test does not go with --deployment"),
        (["--width", "x.py:f"], "--width does not go with --deployment"),
        (["--runner", "V1", "--runner", "V2"], "--deployment takes one --runner"),
        (["--json", "-"], "--json takes a file"),
        (["--json", "/"], "cannot write /"),
        (["--json", "/dev"], "cannot write /dev"),
    ],
)
def test_options_that_do_not_go_with_a_deployment_are_refused(write, arguments, line):
    assert line in refused("--deployment", str(write(FITS)), *arguments)


def test_the_same_file_twice_is_refused(write):
    path = str(write(FITS))
    assert "is given twice" in refused("--deployment", path, "--deployment", path)


@settings(max_examples=150)
@given(st.data(), st.sampled_from(RELEASES))
def test_the_verdict_agrees_with_every_request_and_every_access_tried(data, release):
    """Try every token count, and for each every position and state that a kernel reads."""
    kinds = [kind for kind in SPEC_KINDS if kind not in release.absent]
    case = data.draw(cases(kinds=kinds, max_model_len=20, release=release))
    spec = case.spec
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    runner = data.draw(st.sampled_from(layer.runners))
    given = {p.name: getattr(case.deployment, p.name) for p in parameters_of(Deployment)}
    group = {"type": kind_of(spec), **{p.name: getattr(layer, p.name) for p in parameters_of(type(layer))}}
    if data.draw(st.booleans(), label="measured"):
        group["row_width"] = data.draw(st.integers(0, 24), label="row_width")
    read = parse_deployment({**given, "release": release.name, "runner": runner.value, "groups": [group]})
    assert (read.deployment, read.groups[0].spec) == (case.deployment, spec)
    found = fleet.check_group(read, read.groups[0])

    by_encoder = kind_of(layer) == "cross-attention"
    longest = max_num_tokens(case.deployment, release=release)
    most_encoder = case.deployment.max_num_encoder_input_tokens
    requests = (
        {n: Request(num_tokens=longest, num_encoder_tokens=n) for n in range(most_encoder + 1)}
        if by_encoder
        else {n: Request(num_tokens=n) for n in range(1, longest + 1)}
    )
    held = {n: entries(case.deployment, spec, request, release=release) for n, request in requests.items()}
    states = getattr(layer, "num_speculative_blocks", getattr(layer, "blocks_per_request", 0))
    rules = {"runner": runner, "release": release}
    columns = {
        n: [
            column(case.deployment, spec, access, **rules)
            for access in (Access(position=p, state=s) for p in range(45) for s in range(states + 1))
            if runner in layer.column_runners
            and access.position < max(request.slot_tokens(case.deployment), request.num_encoder_tokens)
            and spec.readable(case.deployment, request, access)
        ]
        for n, request in requests.items()
    }
    too_long = [n for n in requests if held[n] > found.row_width]
    left = [n for n in requests if any(c >= found.row_width for c in columns[n])]
    assert found.entries_needed == max(held.values(), default=0)
    assert found.largest_column == max((c for read in columns.values() for c in read), default=None)
    assert (found.overflow and found.overflow.tokens) == min(too_long, default=None)
    assert (found.outside and found.outside.tokens) == min(left, default=None)
    assert (found.fit is fleet.Fit.FITS) == (not too_long and not left)


@pytest.mark.parametrize(
    "text",
    [
        f"{'.'.join('a' * 100_000)} = 1",
        f"x = {{{'.'.join('a' * 100_000)} = 1}}",
        f"# a comment\n[{' . '.join('a' * 60_000)}]",
        ".".join(['"a=b"'] * 60_000) + " = 1",
    ],
    ids=["key", "inline", "header", "quoted"],
)
def test_a_key_of_very_many_parts_is_refused_at_once(tmp_path, text):
    path = tmp_path / "engine.toml"
    path.write_text(text)
    assert path.stat().st_size < MOST_BYTES
    started = time.perf_counter()
    with pytest.raises(DeploymentFileError, match="nested too deep for a deployment: a key has 8 dots"):
        read_deployment(path)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "key",
    ["tensor_parallel_size", "max_num_batched_tokens", "pipeline_parallel_size", "max_num_scheduled_tokens",
     "enable_expert_parallel", "spec_target_max_model_len"],
)  # fmt: skip
def test_an_option_of_the_engine_that_is_not_read_is_not_taken_for_another(key):
    with pytest.raises(DeploymentFileError) as refused:
        parse_deployment(content(MLA, **{key: 2}))
    assert f"{key}: there is no such key here; it is not read, so leave it out" in str(refused.value)
    assert "did you mean" not in str(refused.value)
