"""Launch a kernel again without the work that its first launch has done.

Triton looks at every argument of every launch to choose among compiled variants. For kernels whose
arguments are not specialised the choice depends on the constants and on the arguments' types alone, so it
is made once and remembered: a launch then costs the host about half.
"""

from __future__ import annotations

from typing import Any

import triton

__all__ = ["Launcher"]


class Launcher:
    """One kernel, none of whose arguments is specialised.

    `arguments` must have the types that `types` stands for, whatever tells them apart: ints below 2**31,
    and tensors whose element type is fixed or named in `types`.
    """

    __slots__ = ("_compiled", "_kernel")

    def __init__(self, kernel: Any) -> None:
        """Keep `kernel`, a `triton.jit` function or, in the interpreter, what stands for one."""
        self._kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

    @property
    def kernel(self) -> Any:
        """The kernel itself."""
        return self._kernel

    def __call__(
        self,
        grid: tuple[int, int, int],
        arguments: tuple[Any, ...],
        constants: tuple[Any, ...],
        *,
        device: Any,
        types: tuple[Any, ...] = (),
        num_warps: int = 4,
    ) -> None:
        """Launch on the current stream of `device`, which is the current device."""
        key = (constants, types, num_warps, device)
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*arguments, *constants)
            return
        found = self._kernel[grid](*arguments, *constants, num_warps=num_warps)
        if isinstance(found, triton.compiler.CompiledKernel):
            self._compiled[key] = found
