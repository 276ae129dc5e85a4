"""The command as a person and as a CI job call it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from invariants import SPEC_KINDS, TODAY, assumptions_for, build_case
from proofs.pool import decide_all
from proofs.report import SCHEMA
from proofs.verdicts import EXIT_CODES, Verdict, exit_code, obligations, spec_of_kind

ENOSPC = "[Errno 28] No space left on device; nothing is claimed"
COMMAND = [sys.executable, "-W", "error", "-m", "proofs.check"]


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, **options
    )


def refused(*arguments):
    """Run a call that must be refused and return the one line that says why."""
    done = run(*arguments)
    assert done.returncode == 2, done
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """The default target, decided once for all tests that look at it."""
    path = tmp_path_factory.mktemp("default") / "report.json"
    done = run("--json", str(path))
    return done, json.loads(path.read_text())


def test_every_spec_type_is_proved_by_default_and_the_tally_names_every_verdict(default):
    done, _ = default
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    proved = {line.split()[1] for line in lines if line.startswith("PROVED ")}
    assert proved == set(SPEC_KINDS)
    claims = len(obligations(TODAY))
    assert f"{claims} PROVED, 0 REFUTED, 0 VACUOUS, 0 UNKNOWN, 0 ERROR, 0 SKIPPED" in done.stdout
    assert sum(line.startswith("PROVED ") for line in lines) == claims
    assert "not asked: encoder-only column-fits on V1 and V2" in done.stdout


def test_a_second_run_prints_the_same_costs_whatever_else_is_asked(default):
    def costs(text):
        return set(re.findall(r"^\w+ +(\S+ +V\d +\S+).*rlimit +([\d,]+)", text, re.MULTILINE))

    again = costs(run("--spec", "mamba-align", "--spec", "chunked-local", "--jobs", "1").stdout)
    assert len(again) == len(obligations(TODAY, kinds=["mamba-align", "chunked-local"]))
    assert again <= costs(default[0].stdout)


def test_the_assumptions_of_every_proof_are_split_into_used_and_unused(default):
    for entry, obligation in zip(default[1]["obligations"], obligations(TODAY), strict=True):
        rules = assumptions_for(spec_of_kind(obligation.kind))
        names = [a.name for a in rules if a.name not in obligation.invariant.waives]
        names += [given.name for given in obligation.invariant.givens]
        told = entry["assumptions"]
        assert sorted((*told["used"], *told["unused"])) == sorted(names)
        assert "sizes" in told["used"]


def test_every_proof_has_a_case_that_meets_its_assumptions(default):
    for entry, obligation in zip(default[1]["obligations"], obligations(TODAY), strict=True):
        claim = obligation.invariant
        case = build_case(obligation.kind, entry["witness"], claim.parts)
        assert not claim.broken(case, TODAY, obligation.runner)
        if entry["slack"] is not None:
            assert claim.margin(case, TODAY, obligation.runner) == entry["slack"]


@pytest.mark.parametrize(
    ("name", "numbers", "clash"),
    [
        (
            "vllm-0.28",
            "max_model_len 18, decode_context_parallel_size 2, block_size 16, num_tokens 17",
            "(17, 16) = 2",
        ),
        (
            "vllm-0.27",
            "max_model_len 18, decode_context_parallel_size 2, block_size 16, num_tokens 17",
            "(17, 16) = 2",
        ),
        (
            "vllm-0.26",
            "max_model_len 130, decode_context_parallel_size 2, block_size 16, num_tokens 129",
            "(129, 16) = 9",
        ),
    ],
)
def test_a_faulty_release_is_refuted_in_the_engines_own_words(name, numbers, clash):
    done = run("--release", name, "--spec", "mamba-align", "--spec", "mla", "--invariant", "row-fits")
    assert done.returncode == 1
    assert done.stdout.count("REFUTED  mamba-align            V2") == 1
    assert f"smallest case that fails: {numbers}\n" in done.stdout
    assert f"entries   = cdiv(num_tokens, block_size) = cdiv{clash}" in done.stdout
    assert "3 PROVED, 1 REFUTED, 0 VACUOUS" in done.stdout


def test_pinned_sizes_move_the_first_failure_and_leave_today_proved():
    pins = ["max_model_len=512", "block_size=16", "decode_context_parallel_size=2"]
    arguments = [text for pin in pins for text in ("--at", pin)]
    faulty = run("--release", "vllm-0.28", "--spec", "mamba-align", *arguments)
    assert faulty.returncode == 1
    assert "at 257 tokens the scheduler hands over 17 entries for a row of 16: 1 too many" in faulty.stdout
    assert run(*arguments).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--at", "max_model_len"], "--at takes NAME=VALUE, not 'max_model_len'"),
        (["--at", "max_modellen=3"], "no parameter is named 'max_modellen'; did you mean max_model_len?"),
        (["--at", "=3"], "no parameter is named ''"),
        (["--at", "max_model_len="], "max_model_len must be a whole number of at most 40 digits, not ''"),
        (["--at", "max_model_len=0"], "max_model_len must be at least 1, not 0"),
        (["--at", "max_model_len=-1"], "max_model_len must be at least 1, not -1"),
        (["--at", "max_model_len=1e3"], "must be a whole number of at most 40 digits, not '1e3'"),
        (["--at", "max_model_len=5_12"], "must be a whole number of at most 40 digits, not '5_12'"),
        (["--at", "max_model_len= 512"], "must be a whole number of at most 40 digits"),
        (["--at", "max_model_len=\u0665\u0661"], "must be a whole number of at most 40 digits"),
        (["--at", f"max_model_len={'9' * 5000}"], "must be a whole number of at most 40 digits, not '999"),
        (["--at", "num_sampled_tokens=2"], "num_sampled_tokens must be at most 1, not 2"),
        (["--at", "enable_prefix_caching=1"], "enable_prefix_caching must be true or false, not '1'"),
        (["--at", "block_size=16", "--at", "block_size=32"], "block_size is pinned to both 16 and 32"),
        (
            ["--at", "num_tokens=100", "--at", "max_model_len=50", "--invariant", "row-fits"],
            "contradict request-within-context",
        ),
        (["--at", "sliding_window=5", "--spec", "mla"], "none of the selected claims has a parameter"),
        (["--release", "vllm-0.28", "--at", "block_table_token_alignment=64"], "fixes block_table_token"),
        (["--release", "vllm-0.28", "--spec", "hisparse-hot"], "nothing is selected"),
        (["--release", "vllm-9.9"], "no release is named 'vllm-9.9'"),
        (["--at", "dcp=4"], "no parameter is named 'dcp'; did you mean decode_context_parallel_size?"),
        (["--spec", "encoder-only", "--invariant", "column-fits"], "there is no row to read"),
        (["--json", "-"], "--json takes a file; /dev/stdout is one"),
        (["--release", "0.28"], "no release is named '0.28'; did you mean vllm-0.28?"),
        (["--spec", "mamba"], "no spec type is named 'mamba'; did you mean mamba-all?"),
        (["--invariant", "row"], "no invariant is named 'row'; there are row-fits"),
        (["--json", "/nonexistent/report.json"], "cannot write /nonexistent/report.json"),
        (["--json", "/"], "cannot write /"),
        (["--jsn", "x"], "unrecognized arguments: --jsn x"),
        (["--json"], "expected one argument"),
    ],
)
def test_a_mistake_in_the_call_is_one_clear_line_and_exit_2(arguments, line):
    said = refused(*arguments)
    assert line in said
    assert len(said) < 700


def test_pins_that_leave_some_specs_without_a_case_skip_them_and_say_why():
    done = run("--at", "enable_prefix_caching=false", "--spec", "mamba-align", "--spec", "mla",
               "--invariant", "row-fits", "--invariant", "index-fits")  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.count("SKIPPED  mamba-align") == 2
    assert "the pinned values contradict cache-mode" in done.stdout
    assert "2 PROVED, 0 REFUTED, 0 VACUOUS, 0 UNKNOWN, 0 ERROR, 2 SKIPPED" in done.stdout


def test_sizes_of_any_magnitude_can_be_pinned():
    done = run("--at", f"max_model_len={10**18}", "--spec", "full-attention", "--spec", "mamba-align")
    assert done.returncode == 0


def test_help_lists_every_exit_code():
    done = run("--help")
    assert done.returncode == 0
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"^ +{code} +{re.escape(meaning)}$", done.stdout, re.MULTILINE)


def test_the_list_names_claims_parameters_and_assumptions_and_decides_nothing():
    done = run("--list", "--spec", "mamba-align")
    assert done.returncode == 0
    assert "mamba-align            V2 row-fits" in done.stdout
    assert (
        "num_speculative_blocks: extra state blocks per request, one per draft token where the model keeps "
        "a state for each (0 to any size, usually 0)" in done.stdout
    )
    assert "request-within-context: " in done.stdout
    assert "PROVED" not in done.stdout


def test_the_json_report_has_an_entry_for_every_claim(tmp_path):
    path = tmp_path / "report.json"
    asked = ("--release", "vllm-0.28", "--spec", "mamba-align", "--invariant", "row-fits")
    assert run(*asked, "--json", str(path)).returncode == 1
    report = json.loads(path.read_text())
    assert report["schema"] == SCHEMA
    assert report["complete"] is True
    assert report["exit_code"] == 1
    assert report["tally"] == {
        "PROVED": 1, "REFUTED": 1, "VACUOUS": 0, "UNKNOWN": 0, "ERROR": 0, "SKIPPED": 0
    }  # fmt: skip
    entries = {(e["runner"], e["invariant"]): e for e in report["obligations"]}
    assert len(entries) == 2
    found = entries["V2", "row-fits"]["counterexample"]
    assert found["smallest"] is True
    assert {k: found["values"][k] for k in ("max_model_len", "num_tokens")} == {
        "max_model_len": 18,
        "num_tokens": 17,
    }
    assert entries["V1", "row-fits"]["assumptions"]["used"] == ["sizes", "request-within-context"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_json_report_can_go_to_a_pipe():
    done = run("--spec", "mla", "--json", "/dev/stderr")
    assert done.returncode == 0
    assert json.loads(done.stderr)["complete"] is True


def test_a_report_that_cannot_be_written_at_the_end_does_not_pass():
    done = run("--spec", "mla", "--json", "/dev/full")
    assert done.returncode == 2
    assert "the JSON report was not written" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_far_it_came_and_leaves_no_complete_report(tmp_path, number, code):
    path = tmp_path / "report.json"
    path.write_text('{"complete": true, "of": "an earlier run"}')
    process = subprocess.Popen(
        [*COMMAND, "--json", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline().startswith("PROVED")
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    (line,) = errors.splitlines()
    assert re.search(r"interrupted with \d+ of \d+ decided; nothing is claimed of the rest", line)
    report = json.loads(path.read_text())
    assert report["complete"] is False
    assert report["exit_code"] is None
    assert any(entry["verdict"] is None for entry in report["obligations"])
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_that_goes_away_ends_the_run_quietly():
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=30) == 141
    assert not errors


def test_the_checker_works_without_asserts():
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "proofs.check", "--release", "vllm-0.28", "--spec", "mamba-all"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "at 17 tokens the scheduler hands over 2 entries for a row of 1" in done.stdout


def test_the_checker_needs_nothing_but_its_two_dependencies():
    blocked = "torch", "triton", "numpy", "hypothesis", "pytest"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}));"
        "import proofs.command, proofs.decide; sys.exit(proofs.command.main(['--spec', 'mla']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 2),
        (["SKIPPED"], 2),
        (["PROVED"], 0),
        (["PROVED", "SKIPPED"], 0),
        (["PROVED", "UNKNOWN"], 3),
        (["UNKNOWN", "VACUOUS"], 4),
        (["VACUOUS", "REFUTED", "UNKNOWN"], 1),
        (["REFUTED", "ERROR", "PROVED"], 5),
    ],
)
def test_the_worst_verdict_decides_the_exit_code(verdicts, code):
    assert exit_code(Verdict(name) for name in verdicts) == code


def test_a_child_that_takes_too_long_is_killed_and_unknown():
    claims = obligations(TODAY, kinds=["mla"])
    started = time.monotonic()
    outcomes = dict(decide_all(claims, {}, wall_seconds=0.0))
    assert time.monotonic() - started < 10
    assert {o.verdict for o in outcomes.values()} == {Verdict.UNKNOWN}
    assert len(outcomes) == len(claims)
    assert "killed after 0 s" in outcomes[0].detail


def test_a_child_that_dies_is_an_error(tmp_path):
    """Ask for a spec that the child cannot build: it ends without an answer."""
    import dataclasses

    (claim, *_) = obligations(TODAY, kinds=["mla"])
    lost = dataclasses.replace(claim.release, name="no such release")
    broken = dataclasses.replace(claim, release=lost)
    outcomes = dict(decide_all([broken, claim], {}))
    assert outcomes[0].verdict is Verdict.ERROR
    assert "ended with code" in outcomes[0].detail
    assert outcomes[1].verdict is Verdict.PROVED


@pytest.mark.parametrize("columns", ["0", "1", "20", "abc", "-5"])
def test_the_terminals_width_folds_and_swallows_nothing(columns):
    done = run("--spec", "mla", "--runner", "V2", env={**os.environ, "COLUMNS": columns})
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert "column-fits" in done.stdout


def test_an_output_that_is_full_is_an_error_and_no_refutation():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "--spec", "mla"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 5
    assert done.stderr.splitlines() == ["python -m proofs.check: cannot go on: " + ENOSPC]


def test_a_mistake_is_exit_2_without_a_standard_error_too():
    command = shlex.join([*COMMAND, "--at", "x=1"])
    assert subprocess.run(["/bin/sh", "-c", f"{command} 2>&-"], check=False).returncode == 2
    assert subprocess.run(["/bin/sh", "-c", f"{command} 2>/dev/full"], check=False).returncode == 2


@pytest.mark.parametrize("missing", ["z3", "rich"])
def test_a_missing_dependency_is_named_in_one_line(missing):
    code = (
        f"import sys, runpy; sys.modules[{missing!r}] = None; sys.argv = ['check', '--spec', 'mla'];"
        "runpy.run_module('proofs.check', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"needs {missing}" in line


def test_a_report_follows_a_link_and_leaves_it_a_link(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    assert run("--spec", "mla", "--json", str(link)).returncode == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["complete"] is True


def test_an_interrupt_at_any_moment_is_one_line_and_no_verdict():
    """Later moments hit the start of a child, its work, or the reading of its answer."""
    for delay in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        with subprocess.Popen(
            COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            process.stdout.readline()
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert len(errors.splitlines()) == 1, errors
