"""What is timed: the guarded tables in each mode, and vLLM's own `BlockTables` of one release.

A peer's folder holds `vllm/v1/worker/gpu/block_table.py` and `buffer_utils.py` of that release, unchanged,
with what they import. Two releases cannot share a process, so each has a process of its own.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = ["SHAPES", "Shape", "load_peer", "peer_tables"]


@dataclass(frozen=True, slots=True)
class Shape:
    """One step: every row of every group gains `new_blocks` entries of a row of `width`."""

    groups: int
    rows: int
    new_blocks: int
    width: int

    def __str__(self) -> str:
        """Show the shape as the tables do."""
        return f"{self.groups}x{self.rows}x{self.new_blocks} of {self.width}"


SHAPES = (
    Shape(2, 256, 1, 8192),
    Shape(4, 256, 1, 8192),
    Shape(4, 1024, 1, 8192),
    Shape(2, 256, 512, 8192),
    Shape(1, 256, 1, 8192),
    # Rows of a million tokens in blocks of 16.
    Shape(2, 256, 1, 65536),
    Shape(2, 256, 512, 65536),
)


def load_peer(folder: Path) -> Any:
    """Return the peer's `BlockTables` class."""
    sys.path.insert(0, str(folder))
    return importlib.import_module("vllm.v1.worker.gpu.block_table").BlockTables


def peer_tables(peer: Any, shape: Shape, device: torch.device) -> Any:
    """Build the peer's tables for `shape`, by the constructor's form of its release."""
    sizes = [16] * shape.groups
    names = peer.__init__.__code__.co_varnames
    extra = {"kernel_block_sizes": sizes} if "kernel_block_sizes" in names else {}
    return peer(sizes, shape.rows, 8192, [shape.width] * shape.groups, device, **extra)
