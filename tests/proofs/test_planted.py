"""What somebody plants to get a false PROVED or a green run does not get it."""

import dataclasses
import json
import subprocess
import sys
import textwrap
import time

import pytest
from test_command import refused, run

from proofs import lemmas, second
from proofs.lemmas import LEMMAS, Lemma

ROW = ("--spec", "mamba-align", "--invariant", "row-fits")
GOOD = "cdiv(d.max_model_len, s.block_size) + s.num_speculative_blocks"


@pytest.fixture
def width(tmp_path):
    def write(body):
        path = tmp_path / "mine.py"
        imports = "import os, sys\nfrom invariants.arithmetic import cdiv, common_divisor, where\n"
        path.write_text(f"{imports}def f(d, s):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
        return f"{path}:f"

    return write


@pytest.mark.parametrize("solver", ["z3", "both"])
@pytest.mark.parametrize("number", ["d.num_speculative_tokens", "s.num_speculative_blocks"])
def test_a_common_divisor_with_zero_takes_no_case_away(width, number, solver):
    body = f"g = common_divisor({number}, s.block_size)\nreturn where({number} == 0, 0, {GOOD}) + g - g"
    done = run("--width", width(body), *ROW, "--solver", solver)
    assert done.returncode == 5
    assert "may not be positive" in done.stdout


def test_a_branch_that_is_swallowed_is_a_mistake_all_the_same(width):
    tried = "if d.max_model_len > 100:\n        return 1"
    body = f"try:\n    {tried}\nexcept Exception:\n    pass\nreturn {GOOD}"
    said = refused("--width", width(body), *ROW)
    assert "branched on a symbolic value and went on, at" in said
    assert "mine.py:5, `d.max_model_len > 100`" in said


def test_a_function_that_says_something_else_of_numbers_is_not_proved(width):
    done = run("--width", width(f"return 0 if isinstance(d.max_model_len, int) else {GOOD}"), *ROW)
    assert done.returncode == 5
    assert "does not hold of its own witness: the claim fails" in done.stdout


@pytest.mark.parametrize("body", ["sys.exit(0)", "raise SystemExit", "raise GeneratorExit"])
def test_a_function_that_ends_the_process_is_a_mistake_of_its_own(width, body):
    assert "mine.py:4" in refused("--width", width(body), *ROW)


def test_a_file_that_ends_the_process_is_a_mistake_of_its_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import sys\nsys.exit(0)\n")
    assert "mine.py:2: SystemExit" in refused("--width", f"{path}:f", *ROW)


@pytest.mark.parametrize("where", ["the file", "the function"])
@pytest.mark.parametrize(
    ("does", "how"), [("os._exit(0)", "before its end"), ("os.kill(os.getpid(), 9)", "by signal 9")]
)
def test_a_process_that_is_ended_without_an_answer_is_no_success(tmp_path, where, does, how):
    path, report = tmp_path / "mine.py", tmp_path / "report.json"
    at_once, when_called = (does, "pass") if where == "the file" else ("pass", does)
    path.write_text(f"import os\n{at_once}\ndef f(d, s):\n    {when_called}\n    return 1\n")
    said = refused("--width", f"{path}:f", *ROW, "--json", str(report))
    assert f"mine.py ended the process {how}; nothing is claimed" in said
    assert not report.exists()


def test_a_process_that_is_ended_while_it_decides_is_an_error_of_the_claim(tmp_path):
    """The report is there once the function was tried: what runs it then is a process that decides."""
    path, report = tmp_path / "mine.py", tmp_path / "report.json"
    late = f"os.path.exists({str(report)!r}) and os._exit(0)"
    path.write_text(f"import os\ndef f(d, s):\n    {late}\n    return 99\n")
    done = run("--width", f"{path}:f", *ROW, "--json", str(report))
    assert done.returncode == json.loads(report.read_text())["exit_code"] == 5
    assert "the solver's process ended with code 0" in done.stdout


@pytest.mark.parametrize("where", ["the file", "the function"])
def test_a_copy_that_is_forked_says_nothing(tmp_path, where):
    path = tmp_path / "mine.py"
    at_once, when_called = ("os.fork()", "pass") if where == "the file" else ("pass", "os.fork()")
    head = f"import os\nfrom invariants.arithmetic import cdiv\n{at_once}\n"
    path.write_text(f"{head}def f(d, s):\n    {when_called}\n    return {GOOD}\n")
    done = run("--width", f"{path}:f", *ROW)
    assert done.returncode == 0
    assert done.stdout.count("PROVED   mamba-align") == done.stdout.count("1 claim of") == 1


def test_a_signal_is_handed_on_to_the_process_that_runs_the_file(tmp_path):
    path, seen = tmp_path / "mine.py", tmp_path / "seen"
    path.write_text(
        f"import pathlib, time\ndef f(d, s):\n    pathlib.Path({str(seen)!r}).touch()\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "proofs.check", "--width", f"{path}:f", *ROW]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not seen.exists():
            time.sleep(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped before everything was decided" in errors


@pytest.mark.parametrize("value", ["3j", "[1]", "d.max_model_len > 1", "10**5000", "(x for x in ())"])
def test_what_is_no_number_of_blocks_is_one_line(width, value):
    assert "mine.py" in refused("--width", width(f"return {value}"), *ROW)


@pytest.mark.parametrize("solver", ["z3", "cvc5"])
def test_a_lemma_that_cites_itself_or_a_later_one_is_not_proved(monkeypatch, solver):
    pytest.importorskip("cvc5")
    false = Lemma(
        "false", "a < a", lambda a: True, lambda a: a < a, lambda a: a > a,
        because=lambda a: (("false", (a,)),),
    )  # fmt: skip
    monkeypatch.setattr(second, "LEMMAS", (*LEMMAS, false))
    monkeypatch.setitem(lemmas._BY_NAME, "false", false)
    assert second.unproved_lemmas(solver) == ("false",)
    early = dataclasses.replace(LEMMAS[0], because=lambda *values: ((LEMMAS[-1].name, values),))
    assert not early.rests_on <= set()


ALL = ("--release", "all", "--spec", "mamba-none", "--invariant", "row-fits")


@pytest.mark.parametrize("option", ["--ceilings", "--store-ceilings", "--save-queries"])
def test_the_table_refuses_what_it_would_ignore(option, tmp_path):
    assert f"{option} goes with one release" in refused(*ALL, option, str(tmp_path / "x"))


def test_the_table_selects_a_family_as_one_release_does():
    done = run("--release", "all", "--spec", "full-attention", "--runner", "V2", "--invariant", "column-fits")
    assert done.returncode == 1
    assert "column-fits/session-chunk" in done.stdout


def test_no_output_is_written_over_another_or_over_what_is_read(tmp_path, width):
    path, mine = str(tmp_path / "one"), width(f"return {GOOD}")
    for arguments in (
        (*ALL, "--json", path, "--emit-test", path),
        (*ROW, "--json", path, "--store-ceilings", path),
        ("--width", mine, *ROW, "--json", mine.rpartition(":")[0]),
    ):
        assert "name one file" in refused(*arguments)
    assert "def f(d, s)" in (tmp_path / "mine.py").read_text()
    engine = tmp_path / "engine.toml"
    engine.write_text('max_model_len = 512\n[[groups]]\ntype = "mla"\nblock_size = 16\n')
    assert "name one file" in refused("--deployment", str(engine), "--json", str(engine))
    assert engine.read_text().startswith("max_model_len")


def test_reports_have_the_exit_code_that_the_run_has(tmp_path):
    low, report = tmp_path / "low.json", tmp_path / "report.json"
    assert run(*ROW, "--store-ceilings", str(low)).returncode == 0
    document = json.loads(low.read_text())
    low.write_text(json.dumps(document | {"ceilings": dict.fromkeys(document["ceilings"], 1)}))
    done = run(*ROW, "--ceilings", str(low), "--json", str(report))
    assert done.returncode == json.loads(report.read_text())["exit_code"] == 6


def test_a_late_failure_to_write_hides_no_refutation(tmp_path):
    report = tmp_path / "report.json"
    asked = ("--release", "vllm-0.28", *ROW, "--json", str(report))
    done = run(*asked, "--emit-test", "/dev/full")
    assert done.returncode in (1, 2)
    if done.returncode == 2:  # told before anything was decided
        assert not report.exists()


def test_nobody_to_print_for_is_no_internal_error(tmp_path):
    command = f"{sys.executable} -m proofs.check {' '.join(ROW)} >&-"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
