"""All releases at once: the table agrees with what was read from and reported of each release."""

import dataclasses
import functools
import importlib
import json
import os
import re
import subprocess
import sys

import pytest

from invariants import COLUMN_FITS, RELEASES, ROW_FITS, SPEC_KINDS, Runner, release

problem_module = importlib.import_module("invariants.claim")
from proofs.decide import decide
from proofs.matrix import MATRIX_SCHEMA, Matrix, fixed_otherwise, shared_claims
from proofs.report import SCHEMA
from proofs.verdicts import Obligation, Verdict, obligations

COMMAND = [sys.executable, "-W", "error", "-m", "proofs.check", "--release", "all"]
NAMES = ["today", *(f"vllm-0.{minor}" for minor in range(33, 24, -1))]
V2_ONLY = {"hisparse-hot", "hisparse-resident"}

ABSENT = {
    "circular-buffer": {"vllm-0.25", "vllm-0.26", "vllm-0.27", "vllm-0.28"},
    "kpool-tail": {*NAMES} - {"today", "vllm-0.30", "vllm-0.31"},
    "hisparse-hot": {"vllm-0.25", "vllm-0.26", "vllm-0.27", "vllm-0.28", "vllm-0.29"},
    "hisparse-resident": {"vllm-0.25", "vllm-0.26", "vllm-0.27", "vllm-0.28", "vllm-0.29"},
    "mamba-all": {"vllm-0.32", "vllm-0.33"},
    "uniform-mamba-all": {"vllm-0.32", "vllm-0.33"},
}
"""Which releases lack a spec type, from the class statements of their own sources."""

REFUTED = {
    # V2 divides the row of recurrent state by dcp. Reported: 17 tokens at a context of 18; with the
    # padding of 0.26, 129 at 130.
    ("mamba-align", "V2"): {
        "vllm-0.26": "129 tokens: 9 > 8", "vllm-0.27": "17 tokens: 2 > 1", "vllm-0.28": "17 tokens: 2 > 1"
    },
    ("mamba-all", "V2"): {
        "vllm-0.26": "129 tokens: 9 > 8", "vllm-0.27": "17 tokens: 2 > 1", "vllm-0.28": "17 tokens: 2 > 1"
    },
    # The wrapper has no room for the drafts: one draft and a row that padding leaves at one column.
    ("uniform-mamba-none", "V1"): dict.fromkeys(("vllm-0.25", "vllm-0.26", "vllm-0.27"), "1 token: 2 > 1"),
    ("uniform-mamba-none", "V2"): dict.fromkeys(
        ("vllm-0.25", "vllm-0.26", "vllm-0.27", "vllm-0.28"), "1 token: 2 > 1"
    ),
    # The same with blocks of 16, which padding makes 8 columns: eight drafts where V1 pads or dcp is no way
    # out, else dcp 2 at 129 tokens.
    ("uniform-mamba-align", "V1"): {
        "vllm-0.25": "1 token: 9 > 8", "vllm-0.26": "1 token: 9 > 8", "vllm-0.27": "1 token: 2 > 1"
    },
    ("uniform-mamba-align", "V2"): {
        "vllm-0.25": "1 token: 9 > 8",
        **dict.fromkeys(("vllm-0.26", "vllm-0.27", "vllm-0.28"), "129 tokens: 9 > 8"),
    },
    ("uniform-mamba-all", "V1"): {
        "vllm-0.25": "1 token: 9 > 8", "vllm-0.26": "1 token: 9 > 8", "vllm-0.27": "1 token: 2 > 1"
    },
    ("uniform-mamba-all", "V2"): {
        "vllm-0.25": "1 token: 9 > 8",
        **dict.fromkeys(("vllm-0.26", "vllm-0.27", "vllm-0.28"), "129 tokens: 9 > 8"),
    },
    # Each rank is told every block, the row is divided by dcp: 9 blocks of 16 for a row of 5, padded to 8.
    ("chunked-local", "V1"): dict.fromkeys(("vllm-0.30", "vllm-0.29"), "129 tokens: 9 > 8"),
    ("chunked-local", "V2"): dict.fromkeys(("vllm-0.30", "vllm-0.29"), "129 tokens: 9 > 8"),
    # A row of one block, padded to 8 columns of 16 tokens, read by position.
    ("kpool-tail", "V2"): {"vllm-0.30": "column 8 of 8"},
    ("kpool-tail", "V1"): dict.fromkeys(("vllm-0.31", "vllm-0.30"), "column 8 of 8"),
    ("circular-buffer", "V1"): dict.fromkeys(
        ("vllm-0.33", "vllm-0.32", "vllm-0.31", "vllm-0.30", "vllm-0.29"), "column 8 of 8"
    ),
}  # fmt: skip


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=300, **options
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run everything once: (finished process, JSON document)."""
    path = tmp_path_factory.mktemp("matrix") / "all.json"
    done = run("--json", str(path))
    return done, json.loads(path.read_text())


def table(text):
    """Read the printed table: {(spec type, runner): {release: cell}}."""
    head, *lines = text[: text.index("\n\n")].splitlines()
    starts = [0, head.index("today") - 4, *(re.search(rf"{name}\b", head).start() for name in NAMES)]
    cells = {}
    for line in lines:
        kind, runner, *row = (
            line[a:b].strip() for a, b in zip(starts, [*starts[1:], len(line)], strict=True)
        )
        cells[kind, runner] = dict(zip(NAMES, row, strict=True))
    return cells


def test_the_table_says_of_every_release_what_was_read_from_its_source(whole):
    done, _ = whole
    assert (done.returncode, done.stderr) == (1, "")
    expected = {}
    for kind in SPEC_KINDS:
        for runner in ("V2",) if kind in V2_ONLY else ("V1", "V2"):
            row = expected[kind, runner] = dict.fromkeys(NAMES, "PROVED")
            row |= dict.fromkeys(ABSENT.get(kind, ()), "-")
            row |= REFUTED.get((kind, runner), {})
    assert table(done.stdout) == expected


def test_each_distinct_failure_is_shown_once_with_all_that_fail_in_its_way(whole):
    done, _ = whole
    shown = [block for block in done.stdout.split("\n\n") if block.startswith("REFUTED")]
    assert len({block.split("\n", 1)[1] for block in shown}) == len(shown)
    (reported,) = [block for block in shown if "cdiv(17, 16) = 2" in block]
    assert reported.splitlines()[0] == (
        "REFUTED  row-fits    mamba-align V2 of vllm-0.28, vllm-0.27; mamba-all V2 of vllm-0.28, vllm-0.27"
    )
    assert "max_model_len 18, decode_context_parallel_size 2, block_size 16, num_tokens 17" in reported


def test_the_tally_counts_shared_claims_and_says_how_many_differ(whole):
    done, report = whole
    asked = sum(len(obligations(known, invariants=[ROW_FITS, COLUMN_FITS])) for known in RELEASES)
    counted = re.search(
        r"^(\d+) claims of 10 releases, (\d+) of them different: (.*); ", done.stdout, re.MULTILINE
    )
    assert int(counted[1]) == asked
    assert int(counted[2]) == asked - len(report["shared"])
    assert "shared: of 66 claims of vllm-0.32, 66 as vllm-0.33\n" in done.stdout
    assert counted[3].endswith("0 VACUOUS, 0 UNKNOWN, 0 ERROR, 0 SKIPPED")
    assert done.stdout.count("not asked: encoder-only column-fits on V1") == 1


def test_the_json_file_has_one_document_per_release_in_the_single_releases_layout(whole):
    _, report = whole
    assert (report["schema"], report["complete"], report["exit_code"]) == (MATRIX_SCHEMA, True, 1)
    assert [document["release"] for document in report["releases"]] == NAMES
    for document in report["releases"]:
        name = document["release"]
        assert document["schema"] == SCHEMA
        assert document["complete"] is True
        assert len(document["obligations"]) == len(
            obligations(release(name), invariants=[ROW_FITS, COLUMN_FITS])
        )
        refuted = any(name in row for row in REFUTED.values())
        assert document["exit_code"] == int(refuted)
        assert (document["tally"]["REFUTED"] > 0) is refuted
    assert report["tally"]["REFUTED"] == sum(d["tally"]["REFUTED"] for d in report["releases"])
    assert {
        "claim": {"release": "vllm-0.32", "spec": "mla", "invariant": "row-fits", "runner": "V1"},
        "as": {"release": "vllm-0.33", "spec": "full-attention", "invariant": "row-fits", "runner": "V1"},
    } in report["shared"]


def test_a_release_on_its_own_has_the_layout_and_verdicts_that_it_has_among_all(whole, tmp_path):
    _, report = whole
    path = tmp_path / "one.json"
    arguments = ["--release", "vllm-0.27", "--spec", "mamba-align", "--json", str(path)]
    subprocess.run([*COMMAND[:-2], *arguments], capture_output=True, check=False)
    alone = json.loads(path.read_text())
    (among,) = [d for d in report["releases"] if d["release"] == "vllm-0.27"]
    assert alone.keys() == among.keys()

    def said(document):
        keys = "invariant", "runner", "verdict", "counterexample", "assumptions"
        return [
            {key: entry[key] for key in keys}
            for entry in document["obligations"]
            if entry["spec"] == "mamba-align" and entry["invariant"] in ("row-fits", "column-fits")
        ]

    assert said(alone) == said(among)


@pytest.mark.parametrize("kind", ["full-attention", "mamba-none", "circular-buffer", "uniform-mamba-align"])
def test_what_is_shared_is_decided_alike_on_its_own(kind):
    claims = dict(enumerate(o for known in RELEASES for o in obligations(known, kinds=[kind])))
    shared = shared_claims(claims, {})
    assert shared
    decided = functools.cache(lambda index: decide(claims[index], {}))
    for index, earlier in list(shared.items())[::3]:
        one, other = decided(index), decided(earlier)
        assert one.verdict is other.verdict
        assert one.used == other.used
        if one.counterexample:
            assert one.counterexample.values == other.counterexample.values


def test_the_formulas_and_not_the_functions_names_decide_what_is_shared():
    known = release("vllm-0.33")
    same = dataclasses.replace(known, name="same", width=functools.partial(known.width))
    narrower = dataclasses.replace(known, name="narrower", width=lambda d, s, r: known.width(d, s, r) - 1)
    fixed = dataclasses.replace(known, name="fixed", constants={**known.constants, "dcp_sharded": True})
    for other, alike in ((same, True), (narrower, False), (fixed, False)):
        asked = [Obligation("mla", ROW_FITS, Runner.V2, r) for r in (known, other)]
        assert shared_claims(dict(enumerate(asked)), {}) == ({1: 0} if alike else {})


def test_two_claims_about_the_same_sizes_are_shared_only_if_they_say_the_same():
    known = release("vllm-0.33")
    asked = [
        Obligation(kind, invariant, Runner.V2, known)
        for kind, invariant in (
            ("full-attention", ROW_FITS),
            ("full-attention", COLUMN_FITS),
            ("mla", ROW_FITS),
            ("sliding-window", ROW_FITS),
        )
    ]
    assert shared_claims(dict(enumerate(asked)), {}) == {2: 0}


def test_pins_move_the_failure_in_the_table_and_skip_what_a_release_fixes_otherwise():
    pins = ["max_model_len=512", "block_size=16", "decode_context_parallel_size=2"]
    arguments = [text for pin in pins for text in ("--at", pin)]
    done = run("--spec", "mamba-align", "--invariant", "row-fits", "--runner", "V2", *arguments)
    assert done.returncode == 1
    (row,) = table(done.stdout).values()
    faulty = {"vllm-0.26", "vllm-0.27", "vllm-0.28"}
    assert {name for name, cell in row.items() if cell == "257 tokens: 17 > 16"} == faulty
    # 0.25 looks prompts up in the cache under one rank alone, so that dcp 2 leaves it no legal case.
    assert row["vllm-0.25"] == "SKIPPED"
    assert "no-prefix-search-under-context-parallelism" in done.stdout

    done = run("--spec", "mla", "--runner", "V2", "--at", "dcp_sharded=false")
    assert done.returncode == 0
    (row,) = table(done.stdout).values()
    free = {"today", "vllm-0.31", "vllm-0.32", "vllm-0.33"}
    assert {name for name, cell in row.items() if cell == "PROVED"} == free
    assert {cell for name, cell in row.items() if name not in free} == {"SKIPPED"}
    assert "vllm-0.30 fixes dcp_sharded at true" in done.stdout


def test_a_pin_leaves_alone_the_spec_types_that_do_not_have_it():
    known = release("vllm-0.28")
    asked = obligations(known, kinds=["mla", "mamba-align"], invariants=[ROW_FITS, COLUMN_FITS])
    left_out = fixed_otherwise(asked, {"dcp_sharded": False})
    assert {asked[index].kind for index in left_out} == {"mla"}
    assert not fixed_otherwise(asked, {"dcp_sharded": True})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--list"], "--list goes with one release, not with --release all"),
        (["--width", "a.py:b"], "--width goes with one release, not with --release all"),
        (["--at", "max_modellen=3"], "no parameter is named 'max_modellen'"),
        (["--at", "num_tokens=100", "--at", "max_model_len=50"], "contradict request-within-context"),
        (["--spec", "encoder-only", "--invariant", "column-fits"], "there is no row to read"),
        (["--json", "/nonexistent/report.json"], "cannot write /nonexistent/report.json"),
    ],
)
def test_a_mistake_in_the_call_is_one_clear_line_and_exit_2(arguments, line):
    done = run(*arguments)
    assert done.returncode == 2, done
    assert not done.stdout
    (said,) = done.stderr.splitlines()
    assert line in said


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_terminal_gets_the_same_cells_in_colour_and_loses_none(columns):
    environment = {**os.environ, "COLUMNS": columns, "FORCE_COLOR": "1"}
    arguments = ["--spec", "mamba-align", "--runner", "V2", "--invariant", "row-fits"]
    done = run(*arguments, env=environment)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert plain != done.stdout
    (row,) = [line for line in plain.splitlines() if line.lstrip().startswith("mamba-align")]
    cells = re.split(r"\s{2,}", row.strip())
    assert cells[2:] == ["PROVED"] * 6 + ["17 tokens: 2 > 1"] * 2 + ["129 tokens: 9 > 8", "PROVED"]


def test_every_counterexample_becomes_a_test_of_its_own_release(tmp_path):
    path = tmp_path / "test_found.py"
    done = run("--spec", "mamba-align", "--invariant", "row-fits", "--emit-test", str(path))
    assert done.returncode == 1
    names = re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    assert names == [f"test_vllm_0_{minor}_mamba_align_row_fits_v2" for minor in (28, 27, 26)]
    spaces = {}
    exec(path.read_text(), spaces)
    for name in names:
        with pytest.raises(AssertionError, match="the scheduler hands over"):
            spaces[name]()


@pytest.mark.parametrize(
    ("kind", "dropped"),
    [
        ("mamba-align", "no-prefix-search-under-context-parallelism"),
        ("mamba-all", "no-prefix-search-under-context-parallelism"),
    ],
)
def test_025_is_safe_only_because_it_refuses_context_parallelism(monkeypatch, kind, dropped):
    """Its state columns count every rank's blocks, its rows those of one rank."""
    known = release("vllm-0.25")
    claim = Obligation(kind, COLUMN_FITS, Runner.V2, known)
    assert dropped in decide(claim, {}).used
    real = problem_module.assumptions_for
    monkeypatch.setattr(
        problem_module,
        "assumptions_for",
        lambda spec, r: tuple(a for a in real(spec, r) if a.name != dropped),
    )
    assert decide(claim, {}).verdict is Verdict.REFUTED


def test_025s_cross_attention_is_safe_under_prefill_context_parallelism_only_as_it_is_refused(monkeypatch):
    claim = Obligation("cross-attention", COLUMN_FITS, Runner.V1, release("vllm-0.25"))
    dropped = "one-group-under-context-parallelism"
    assert dropped in decide(claim, {}).used
    real = problem_module.assumptions_for
    monkeypatch.setattr(
        problem_module,
        "assumptions_for",
        lambda spec, r: tuple(a for a in real(spec, r) if a.name != dropped),
    )
    found = decide(claim, {})
    assert found.verdict is Verdict.REFUTED
    assert found.counterexample.values["prefill_context_parallel_size"] > 1


def test_nothing_is_printed_of_a_table_before_all_of_it_is_known(capsys):
    from rich.console import Console

    claims = obligations(release("vllm-0.28"), kinds=["mamba-align"], runners=[Runner.V1])
    view = Matrix(Console(width=200), claims, {})
    outcomes = {index: decide(claim, {}) for index, claim in enumerate(claims)}
    view.decided({0: outcomes[0]})
    assert not capsys.readouterr().out
    view.end(outcomes, 0.0)
    assert "PROVED" in capsys.readouterr().out


def test_the_list_of_a_release_names_the_rules_that_it_alone_has():
    listed = {
        name: subprocess.run(
            [*COMMAND[:-1], name, "--list"], capture_output=True, text=True, check=False
        ).stdout
        for name in ("vllm-0.25", "vllm-0.26")
    }
    rule = "no-prefix-search-under-context-parallelism: with prefix caching, sliding-window"
    assert rule in listed["vllm-0.25"]
    assert rule not in listed["vllm-0.26"]
