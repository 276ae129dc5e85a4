"""The campaign in miniature, its control, and the README's table of costs."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "kernels" / "bench" / "results" / "2026-12-02-h200.csv"


def campaign(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "kernels.bench.campaign", "--device", "cpu", "--rows", "12", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip


def test_a_campaign_reports_every_bad_access_and_touches_nothing_else():
    done = campaign("--accesses", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["writes", "reads", "states"]
    assert all(line.endswith("out of the row: reported, nothing else touched") for line in lines)
    # Bad ones were among them, or the campaign shows nothing.
    assert all(int(re.search(r"of them +([\d,]+) out", line)[1]) > 0 for line in lines)


def test_the_same_checks_notice_a_writer_without_a_bound():
    done = campaign("--accesses", "60", "--unguarded")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"row: ([\d,]+) tensors corrupted", done.stdout)[1]) > 0


def test_a_kernel_that_reports_nothing_fails_the_campaign(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from kernels.bench.campaign import main\n"
        "from kernels import StagedWriter\n"
        "write = StagedWriter.__init__\n"
        "def silent(self, *arguments, record=None, **named):\n"
        "    write(self, *arguments, **named)\n"
        "StagedWriter.__init__ = silent\n"
        "sys.exit(main(['--device', 'cpu', '--rows', '12', '--accesses', '60']))\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    assert "PROBLEMS" in done.stdout
    assert "the record says {}" in done.stdout


@pytest.mark.parametrize("extra", [[], ["--unguarded"]])
def test_a_campaign_without_a_bad_access_shows_nothing_and_says_so(extra):
    done = campaign("--rows", "1", "--accesses", "1", "--seed", "1", *extra)
    assert done.returncode == 1
    assert "none was out of the row, so nothing is shown: ask for more --accesses" in done.stdout


def test_tables_that_do_not_fit_into_memory_are_one_line():
    done = campaign("--rows", "99999999999", "--accesses", "5")
    assert done.returncode == 2
    assert done.stderr.startswith("kernels.bench.campaign: no room for 99999999999 rows a table: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accesses", "0"], "must be positive"),
        (["--seed", "-1"], "--seed not negative"),
        (["--graph"], "--graph needs --device cuda"),
    ],
)
def test_a_campaign_of_nothing_is_wrong_usage(arguments, message):
    done = campaign(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_readmes_costs_are_the_committed_measurements():
    with RESULTS.open() as lines:
        machine = next(lines)
        found = list(csv.DictReader(lines))

    def cell(peer, shape, operation, column, side="rowbound raise"):
        (row,) = [
            row for row in found
            if (row["peer"], row["operation"], row["side"]) == (peer, operation, side)
            and (row["groups"], row["rows"], row["new_blocks"], row["width"]) == shape
        ]  # fmt: skip
        return float(row[column])

    def ratio(peer, shape, operation):
        own, theirs = (cell(peer, shape, operation, "host_us", side) for side in ("rowbound raise", peer))
        return f"{own / theirs:.2f}x"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\d+), (\d+), (\d+), ([\d,]+) \| (.*) \|$", readme, re.MULTILINE)
    assert len(table) == 7
    for *numbers, width, cells in table:
        shape = (*numbers, width.replace(",", ""))
        expected = [
            ratio(peer, shape, operation)
            for operation in ("append", "overwrite")
            for peer in ("v0.26.0", "v0.33.0")
        ]
        kernel = sorted(cell(peer, shape, "kernel", "device_ratio_to_off") for peer in ("v0.26.0", "v0.33.0"))
        assert cells.split(" | ") == [*expected, f"{kernel[0]:.3f}x to {kernel[1]:.3f}x"]
    assert "NVIDIA H200, 580.159.04" in machine
    assert "driver 580.159.04, torch 2.11.0, Triton 3.6.0" in readme


def test_the_committed_plot_can_be_drawn_again(tmp_path):
    pytest.importorskip("matplotlib")
    from kernels.bench.plot import draw

    target = tmp_path / "plot.svg"
    draw(RESULTS, target)
    assert "guarded (raise) beside vLLM 0.33.0" in re.sub(r"<!--|-->", "", target.read_text())
