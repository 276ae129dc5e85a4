"""Ahead-of-time builds of every kernel, in child processes that have no interpreter set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import compile as aot

FAILURE = """
from kernels import compile as aot
aot._OUT["unbuildable_kernel"] = "*i32"
job = aot.Job("tests.kernels.unbuildable", "unbuildable_kernel", "-", (), "sm_90")
if __name__ == "__main__":
    raise SystemExit(aot._compile_all([job], 1))
"""


def compile_command(*arguments):
    command = [sys.executable, "-m", "kernels.compile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_selection_builds_for_nvidia_and_amd():
    # All of them are `make compile`, which CI runs.
    done = compile_command("--kernel", "state", "--target", "sm_90", "--target", "gfx942")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([line for line in lines if line.startswith("ok     state_index_kernel")]) == 12
    assert lines[-1] == "12 compiled, 0 failed"


def test_every_kernel_and_target_is_among_the_jobs():
    listed = {(job.kernel, job.target) for job in aot.jobs()}
    kernels = ("gather_kernel", "slot_mapping_kernel", "staged_writer_kernel", "state_index_kernel")
    assert listed == {
        (kernel, target) for kernel in kernels for target in ("sm_80", "sm_90", "sm_100", "gfx942")
    }


def test_a_kernel_that_does_not_build_fails_the_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FAILURE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("FAILED unbuildable_kernel")
    assert done.stdout.splitlines()[-1] == "0 compiled, 1 failed"


def test_guarded_and_unguarded_variants_are_listed_and_no_unguarded_one_records():
    for kernel in ("gather_kernel", "slot_mapping_kernel", "state_index_kernel"):
        variants = [dict(job.constants) for job in aot.jobs(("sm_90",)) if job.kernel == kernel]
        switches = {(v["BOUNDED"], v["RECORD"]) for v in variants}
        assert switches == {(True, False), (True, True), (False, False)}


def test_a_kernel_with_an_argument_of_unknown_type_is_refused(monkeypatch, capsys):
    monkeypatch.delitem(aot._ARGUMENTS, "idx_mapping")
    with pytest.raises(SystemExit) as stopped:
        aot.main(["--list"])
    assert stopped.value.code == 2
    assert "kernels.compile does not know the type of idx_mapping" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "nothing"], "no kernel has 'nothing' in its name"),
        (["--jobs", "0"], "--jobs 0 is not positive"),
        (["--target", "sm_1"], "invalid choice: 'sm_1'"),
    ],
)
def test_a_selection_of_nothing_is_a_usage_error(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        aot.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_variants_can_be_listed_without_compiling(capsys):
    assert aot.main(["--list", "--kernel", "state", "--target", "gfx942"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all("state_index_kernel" in line and "CHUNK=256" in line for line in lines)
