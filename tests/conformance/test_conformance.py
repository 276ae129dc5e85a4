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


@pytest.mark.parametrize(
    ("kind", "edit", "told"),
    [
        (
            "mamba-align",
            "specs.MambaAlignSpec.entries: one entry less",
            ("MambaManager.allocate_new_blocks", "invariants.MambaAlignSpec.entries"),
        ),
        (
            "full-attention",
            "specs.AttentionSpec.column: one column further",  # which V1 does not read
            ("V2's BlockTables of group 0: slot of position", "invariants.column leads to"),
        ),
    ],
)
def test_a_broken_formula_is_noticed_on_the_installed_vllm(kind, edit, told):
    done = subprocess.run(
        [sys.executable, DRIVER, "--spec", kind, "--examples", "3", "--break", edit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert all(text in done.stdout for text in told), done.stdout
