"""Timings of the guarded tables beside vLLM's own, and a campaign of faults against the kernels."""

from __future__ import annotations

import os

__all__ = ["lane_problem"]


def lane_problem(device: str) -> str | None:
    """Say what keeps kernels from running on `device`, "cuda" or "cpu", in this process."""
    import torch

    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in {"", "0"}
    if device == "cpu":
        return None if interpreted else "a CPU needs TRITON_INTERPRET=1 in the environment"
    if interpreted:
        return "a CUDA device needs TRITON_INTERPRET unset in the environment"
    return None if torch.cuda.is_available() else "torch sees no CUDA device"
