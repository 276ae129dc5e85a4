"""A kernel refuses tables that its build cannot reach."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

SCRIPT = """
import torch
from kernels import KernelError, TableLayout, Write, pack_writes, write_staged
layout = TableLayout.of([torch.zeros((1, 1), dtype=torch.int32)])
counts = torch.zeros((1, 1), dtype=torch.int32)
try:
    write_staged(layout, counts, pack_writes([Write(0, 0, 0, [1])], 1, layout.device))
except KernelError as error:
    print(error)
"""


def test_compiled_kernels_refuse_tables_on_the_cpu_in_one_line(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("tables on the CPU need TRITON_INTERPRET=1, set before triton is imported")
