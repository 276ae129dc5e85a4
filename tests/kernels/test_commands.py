"""How the commands of `kernels` end when something is missing, nobody reads, or a file is none of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("matplotlib")

WITHOUT_TORCH = """
import importlib.util, runpy, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
sys.argv = ["-m"]
runpy.run_module("kernels.{}", run_name="__main__", alter_sys=False)
"""


@pytest.mark.parametrize("command", ["compile", "bench", "bench.campaign"])
def test_without_torch_a_command_says_so_in_one_line(command):
    script = WITHOUT_TORCH.format(command)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "needs torch: install rowbound with its extra `gpu`\n")


def test_a_full_disk_behind_standard_output_is_told_in_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kernels.compile", "--list"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("cannot print: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", [None, "", "no numbers\n", "# machine\na,b\n1,2\n"])
def test_what_is_no_benchmark_cannot_be_drawn_and_is_no_traceback(tmp_path, content):
    source = tmp_path / "bench.csv"
    if content is not None:
        source.write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bench", "--from", source, "--plot", tmp_path / "plot.svg"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("kernels.bench: cannot draw ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("extra", [["--csv", "new.csv"], ["--peer", "folder"]])
def test_an_earlier_measurement_is_not_mixed_with_a_new_one(extra):
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bench", "--from", "old.csv", "--plot", "plot.svg", *extra],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--peer and --csv are for a new measurement" in done.stderr
