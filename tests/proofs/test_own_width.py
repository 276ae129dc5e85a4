"""A fork's own row-width function is proved or refuted, and its mistakes are told with file and line."""

import subprocess
import sys

import pytest

from tests.proofs.test_command import refused, run

HEAD = "from invariants import *\nfrom invariants.arithmetic import *\n\n\n"


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "engine.py"

    def write(body, head=HEAD):
        path.write_text(f"{head}def row_width(deployment, spec):\n    {body}\n")
        return f"{path}:row_width"

    return write


def test_a_right_function_is_proved(engine):
    reference = engine("return spec.max_num_blocks_per_req(deployment, deployment.row_length(Runner.V2))")
    done = run("--width", reference, "--spec", "mamba-align", "--spec", "mla")
    assert done.returncode == 0, done
    assert "22 PROVED, 0 REFUTED, 0 VACUOUS, 0 UNKNOWN, 0 ERROR, 0 SKIPPED" in done.stdout


def test_plain_python_arithmetic_will_do(engine):
    reference = engine(
        "return -(-deployment.max_model_len // spec.block_size) + spec.num_speculative_blocks", ""
    )
    assert run("--width", reference, "--spec", "mamba-align").returncode == 0


def test_a_function_that_forgets_a_term_is_refuted_with_its_own_arithmetic(engine):
    reference = engine("return -(-deployment.max_model_len // spec.block_size)")
    done = run("--width", reference, "--spec", "mamba-align", "--invariant", "row-fits")
    assert done.returncode == 1
    assert "row width = -(-max_model_len // block_size) = -(-2 // 16) = 1" in done.stdout
    assert "num_speculative_blocks 1" in done.stdout


def test_a_width_below_zero_is_said_to_be_none(engine):
    asked = ("--spec", "full-attention", "--invariant", "row-fits", "--invariant", "column-fits/gather")
    asked += ("--invariant", "append-in-step/start")
    for body, line in (
        ("return -1", "the row's width comes out as -1, and no row is narrower than 0"),
        ("return deployment.max_model_len // spec.block_size - 3", "the row's width comes out as -3, and no"),
    ):
        done = run("--width", engine(body), *asked)
        assert done.returncode == 1
        assert done.stdout.count(line) == 3
        assert "a row of -" not in done.stdout
        assert "memory" not in done.stdout


def test_a_type_without_rows_is_skipped_and_said_so(engine):
    reference = engine(
        "if isinstance(spec, MambaSpec): raise NotImplementedError('no Mamba here')\n"
        "    return spec.max_num_blocks_per_req(deployment, deployment.row_length(Runner.V2))"
    )
    done = run("--width", reference, "--spec", "mamba-align", "--spec", "mla", "--invariant", "row-fits")
    assert done.returncode == 0
    assert done.stdout.count("SKIPPED  mamba-align") == 1
    assert "engine.py:6: NotImplementedError: no Mamba here" in done.stdout


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("return (", "engine.py:6: '(' was never closed"),
        (
            "return deployment.max_len",
            "engine.py:6: AttributeError: 'Deployment' object has no attribute 'max_len'",
        ),
        (
            "return max(1, deployment.max_model_len)",
            "engine.py:6, `max(1, deployment.max_model_len)`; write it with where, minimum or maximum",
        ),
        ("return deployment.max_model_len / 16", "engine.py:6: TypeError: unsupported operand"),
        ("return None", "engine.py:5: row_width returned None, not a number of blocks"),
        ("return 2.5", "engine.py:5: row_width returned 2.5, not a number of blocks"),
        ("if spec.block_size > 16: return 1", "branched on a symbolic value at"),
        ("if spec.block_size > 16: return 1", "engine.py:6, `spec.block_size > 16`"),
        (
            "return 'ä' and max(spec.block_size, 2)",
            "engine.py:6, `max(spec.block_size, 2)`",
        ),
        ("raise NotImplementedError", "makes rows for none of the selected spec types"),
        ("return spec.block_size % 2", "engine.py:6: TypeError: unsupported operand"),
    ],
)
def test_a_mistake_in_the_function_is_one_line_with_its_place(engine, body, line):
    assert line in refused("--width", engine(body), "--spec", "mla")


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("engine.py", "--width takes FILE:FUNCTION, not 'engine.py'"),
        ("nowhere.py:row_width", "there is no file nowhere.py"),
        (":row_width", "--width takes FILE:FUNCTION"),
        ("engine.py:", "--width takes FILE:FUNCTION"),
    ],
)
def test_a_reference_that_names_nothing_is_refused(reference, line):
    assert line in refused("--width", reference)


def test_a_file_that_does_not_run_or_lacks_the_function_is_refused(tmp_path):
    path = tmp_path / "engine.py"
    path.write_text("x = 1\nraise RuntimeError('boom')\n")
    assert "engine.py:2: RuntimeError: boom" in refused("--width", f"{path}:row_width")
    path.write_text("x = 1\n")
    assert "engine.py has no function row_width" in refused("--width", f"{path}:row_width")


def test_an_emitted_test_fails_for_as_long_as_the_fault_is_there(tmp_path):
    path = tmp_path / "test_found.py"
    asked = ("--invariant", "row-fits", "--invariant", "column-fits/session-chunk")
    found = run("--release", "vllm-0.28", "--spec", "mamba-align", *asked, "--emit-test", str(path))
    assert found.returncode == 1
    text = path.read_text()
    assert "def test_vllm_0_28_mamba_align_row_fits_v2():" in text
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "3 failed" in outcome.stdout
    assert "at 17 tokens the scheduler hands over 2 entries for a row of 1" in outcome.stdout
    path.write_text(text.replace('release("vllm-0.28")', 'release("today")'))
    fixed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 passed" in fixed.stdout


def test_options_that_do_not_go_together_are_refused(engine):
    reference = engine("return 1")
    assert "does not go with --width" in refused("--width", reference, "--emit-test", "x")
    assert "cannot write /nonexistent/t.py" in refused("--spec", "mla", "--emit-test", "/nonexistent/t.py")
    for jobs in ("0", "-1", "two", "1.5", "99999", ""):
        assert "must be a whole number from 1 to 1024" in refused("--jobs", jobs)
