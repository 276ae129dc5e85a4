"""The reference case's command line, mode by mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.gpu


def run(device, *arguments):
    command = [sys.executable, "-W", "error", "-m", "guard.poc", "--device", device.type, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    lines = {line[:20].strip(): line[20:] for line in done.stdout.splitlines()}
    return done.returncode, lines


def test_guarded_the_request_is_refused_and_the_neighbour_keeps_its_block(device):
    code, lines = run(device)
    assert code == 0
    assert lines["Mamba row capacity"] == "16 entries (vllm-0.26)"
    assert lines["scheduler's blocks"] == "[9, 17] for 257 tokens"
    assert lines["neighbour's block"] == "2 -> 2"
    assert lines["refused"].startswith(
        "Block table write for request 0, group 1 exceeds row capacity (17 > 16)"
    )


@pytest.mark.parametrize("mode", ["off", "count"])
def test_the_environments_mode_is_not_the_cases(device, mode, monkeypatch):
    monkeypatch.setenv("ROWBOUND_MODE", mode)
    code, lines = run(device)
    assert (code, lines["neighbour's block"]) == (0, "2 -> 2")


def test_a_full_disk_behind_the_output_is_one_line(device):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "guard.poc", "--device", device.type],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("guard.poc: cannot print: ")
    assert len(done.stderr.splitlines()) == 1


def test_unguarded_the_neighbours_block_is_overwritten_and_the_selection_fails(device):
    code, lines = run(device, "--unguarded")
    assert code == 0
    assert lines["scheduler's blocks"] == "[9, 17] for 257 tokens"
    assert lines["neighbour's block"] == "2 -> 12"
    telling = "index 16 is out of bounds" if device.type == "cpu" else "assert"
    assert telling in lines["selected states"]


def test_with_todays_row_both_states_are_selected(device):
    code, lines = run(device, "--fixed-capacity")
    assert code == 0
    assert lines["Mamba row capacity"] == "32 entries (today)"
    assert lines["neighbour's block"] == "2 -> 2"
    assert lines["selected states"] == "[[2], [12]]"


def test_two_modes_at_once_are_a_usage_error(device):
    assert run(device, "--unguarded", "--fixed-capacity")[0] == 2


def test_help_documents_the_exit_codes():
    done = subprocess.run(
        [sys.executable, "-m", "guard.poc", "--help"], capture_output=True, text=True, check=True
    )
    assert "Exit codes: 0 the mode showed what it should; 1 it did not; 2 usage" in done.stdout


def test_a_missing_engine_is_one_line():
    blocked = (
        "import sys; sys.modules['vllm'] = None; from guard.poc import main;"
        "sys.exit(main(['--allocator', 'vllm', '--device', 'cpu']))"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "--allocator vllm needs vLLM" in done.stderr
