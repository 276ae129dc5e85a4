"""A kernel that no target can build: its loop changes the type of what it carries."""

import triton
import triton.language as tl


@triton.jit
def unbuildable_kernel(out):
    carried = 0
    for _ in range(4):
        carried = tl.arange(0, 16)
    tl.store(out + tl.arange(0, 16), carried)
