"""Test lanes: everything on the CPU through Triton's interpreter, or `-m gpu` on a CUDA device.

A test marked `gpu` also runs on a GPU: the same test, with the compiled kernel in place of the interpreted
one. The lane is chosen before triton is imported, because triton reads TRITON_INTERPRET on import.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    import torch  # else imported only by what needs it

GPU_LANE = pytest.StashKey[bool]()

settings.register_profile("rowbound", derandomize=True, deadline=None, print_blob=True)
# mutmut asks whether a test fails, not by which smallest example: shrinking is what took hours.
settings.register_profile("mutmut", settings.get_profile("rowbound"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutmut" if "MUTANT_UNDER_TEST" in os.environ else "rowbound")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the lane from the marker expression."""
    gpu = re.search(r"(?<!not )\bgpu\b", config.getoption("markexpr") or "") is not None
    config.stash[GPU_LANE] = gpu
    if gpu:
        import torch

        if not torch.cuda.is_available():
            message = "the gpu lane needs a CUDA device, and torch sees none"
            raise pytest.UsageError(message)
        os.environ.pop("TRITON_INTERPRET", None)
        # Triton 3.9 warns of a changing default while this is unset; no kernel here multiplies floats.
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    else:
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where this lane's tables lie."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if not request.config.stash[GPU_LANE]:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
