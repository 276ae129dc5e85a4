"""The machines on an installed vLLM, a few steps each; `make conformance` runs all of it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("conform.py")

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="needs vLLM in this environment; `make conformance` sets one up"
)


def test_the_installed_vllm_lists_what_the_formulas_say():
    done = subprocess.run(
        [sys.executable, DRIVER, "--spec", "mamba-align", "--examples", "3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_formula_is_noticed_on_the_installed_vllm():
    edit = "specs.MambaAlignSpec.entries: one entry less"
    done = subprocess.run(
        [sys.executable, DRIVER, "--spec", "mamba-align", "--examples", "3", "--break", edit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "MambaManager.allocate_new_blocks" in done.stdout
    assert "invariants.MambaAlignSpec.entries" in done.stdout


def test_a_broken_column_of_v2_alone_is_noticed_on_the_installed_vllm():
    edit = "specs.AttentionSpec.column: one column further"
    done = subprocess.run(
        [sys.executable, DRIVER, "--spec", "full-attention", "--examples", "3", "--break", edit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "V2's BlockTables of group 0: slot of position" in done.stdout
