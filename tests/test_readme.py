"""What the README shows is what the commands print and what its examples do."""

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from invariants import ROW_FITS, Runner, release
from proofs.decide import decide
from proofs.drawing import row_svg
from proofs.verdicts import Obligation

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(language, containing):
    return [text for kind, text in BLOCKS if kind == language and containing in text]


def same_on_every_run(text):
    """Leave out times, and costs where the solver is not the version that the README was made with."""
    text = re.sub(r" +\d+ ms", " TIME", text)
    if f"z3-solver=={metadata.version('z3-solver')}\n" not in CONSTRAINTS:
        text = re.sub(r"rlimit +[\d,]+", "COST", text)
    return re.sub(r"; [\d.]+ s$", "; TIME", text, flags=re.MULTILINE)


SESSIONS = [
    (command.replace("\\\n", " "), output)
    for text in blocks("console", "-m proofs.check")
    for command, output in re.findall(r"^\$ (.*?[^\\])\n(.*?)(?=^\$ |\Z)", text, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("command", "output"), SESSIONS)
def test_a_session_of_the_checker_prints_what_the_readme_shows(command, output, tmp_path):
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/python"
    (engine,) = blocks("python", "# my_engine.py")
    (tmp_path / "my_engine.py").write_text(engine)
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    printed = done.stdout[: done.stdout.index("\n\n")] if "\n\n" not in output else done.stdout
    assert same_on_every_run(printed).strip() == same_on_every_run(output).strip()
    assert done.returncode == (1 if "REFUTED  " in output else 0)


def test_the_readmes_picture_is_what_the_report_draws_of_the_reference_case():
    pins = {"max_model_len": 512, "block_size": 16, "decode_context_parallel_size": 2}
    found = decide(Obligation("mamba-align", ROW_FITS, Runner.V2, release("vllm-0.28")), pins)
    assert "](.github/fault.svg)" in README
    assert (ROOT / ".github" / "fault.svg").read_text(encoding="utf-8") == row_svg(found.counterexample)


def test_the_readme_has_sessions_of_both_verdicts():
    shown = "".join(output for _, output in SESSIONS)
    assert len(SESSIONS) == 5
    assert "REFUTED  mamba-align" in shown
    assert "2 PROVED, 0 REFUTED" in shown
    assert "reached from an empty row in" in shown


def test_the_audit_example_prints_what_the_readme_shows(capsys):
    (example,) = blocks("python", "print(audit(")
    exec(compile(example, "<example>", "exec"), {})
    (expected,) = blocks("text", "too narrow")
    assert capsys.readouterr().out == expected


def test_the_guard_example_prints_what_the_readme_shows():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    (example,) = blocks("python", "BlockTableViolation as violation")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    (expected,) = blocks("text", "row-capacity 0 1 17 16")
    assert (done.stdout, done.stderr) == (expected, "")


def test_the_property_test_example_passes_and_notices_a_scheduler_that_hands_over_too_much():
    (example,) = blocks("python", "from invariants.strategies import cases")
    namespace = {}
    exec(compile(example, "<example>", "exec"), namespace)
    namespace["test_my_scheduler_stays_inside_the_row"]()
    namespace["my_scheduler"] = lambda tokens, size, drafts: list(range(tokens // size + 2 + drafts))
    with pytest.raises(AssertionError):
        namespace["test_my_scheduler_stays_inside_the_row"]()


def test_the_three_lines_put_the_guard_into_a_runner():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from guard import UnsafeDeployment
    from invariants import Deployment, FullAttentionSpec, MambaAlignSpec

    (example,) = blocks("python", "require_ok()")
    runner = {
        "deployment": Deployment(max_model_len=512, decode_context_parallel_size=2),
        "specs": [FullAttentionSpec(block_size=16), MambaAlignSpec(block_size=16)],
        "block_sizes": [16, 16],
        "max_num_reqs": 4,
        "max_num_batched_tokens": 512,
        "device": torch.device("cpu"),
    }
    with pytest.raises(UnsafeDeployment):
        exec(compile(example, "<example>", "exec"), {**runner, "max_num_blocks_per_group": [16, 16]})
    exec(compile(example, "<example>", "exec"), {**runner, "max_num_blocks_per_group": [16, 32]})
