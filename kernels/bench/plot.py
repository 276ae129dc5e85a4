"""The plot of a benchmark's ratios: one panel per peer, one bar per shape, the target as a line."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import matplotlib as mpl

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TARGETS", "draw"]

TARGETS = {"v0.26.0": 0.5, "v0.33.0": 0.35}
"""At most this share of the peer's host time per step."""


def draw(source: Path, target: Path) -> None:
    """Draw `source`, a CSV with its machine line, to `target`."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with source.open() as lines:
        machine = next(lines).removeprefix("#").strip()
        found = [
            line
            for line in csv.DictReader(lines)
            if line["operation"] in {"append", "overwrite"} and line["side"] == "rowbound raise"
        ]
    peers = list(dict.fromkeys(line["peer"] for line in found))
    figure, axes = plt.subplots(1, len(peers), figsize=(5.5 * len(peers), 4.2), sharey=True, squeeze=False)
    for panel, peer in zip(axes[0], peers, strict=True):
        bars = [line for line in found if line["peer"] == peer]
        labels = [
            f"{line['groups']}x{line['rows']}x{line['new_blocks']}, row {line['width']}\n{line['operation']}"
            for line in bars
        ]
        panel.barh(labels, [float(line["ratio_to_peer"]) for line in bars], color="#4878a8")
        if peer in TARGETS:
            panel.axvline(TARGETS[peer], color="#b03030", label=f"target {TARGETS[peer]}")
            panel.legend(loc="lower right", fontsize=7)
        panel.invert_yaxis()
        panel.set_title(f"guarded (raise) beside vLLM {peer.removeprefix('v')}", fontsize=9)
        panel.set_xlabel("share of the peer's host time per step", fontsize=8)
        panel.tick_params(labelsize=6)
    figure.text(0.01, 0.01, machine, fontsize=6)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(target)
    plt.close(figure)
