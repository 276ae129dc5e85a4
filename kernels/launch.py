"""Launch a kernel again without the work that its first launch has done.

Triton looks at every argument of every launch to choose among compiled variants. For kernels whose
arguments are not specialised the choice depends on the constants and on the arguments' types alone, so it
is made once and remembered: a launch then costs the host about half.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

__all__ = ["SHORT_CHUNK", "Launcher", "addresses", "warps_for"]

SHORT_CHUNK = 32
"""Lanes per program where no program has more to do: one warp."""


def warps_for(chunk: int) -> int:
    """Return how many warps a program of `chunk` lanes is launched with."""
    return 1 if chunk <= SHORT_CHUNK else 4


def addresses(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `arguments` with each tensor's address in its place."""
    return tuple([value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments])


class Launcher:
    """One kernel, none of whose arguments is specialised.

    Arguments are ints below 2**31, None where a constant says that the kernel does not read them, and
    tensors whose element type is fixed or named in `types`.
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
        device: int,
        types: tuple[Any, ...] = (),
    ) -> None:
        """Launch on the current stream of device number `device`, which is the current device.

        The last constant is how many lanes a program has.
        """
        compiled = self.compiled(constants, device, types)
        if compiled is not None:
            compiled[grid](*arguments, *constants)
            return
        found = self.compile(grid, arguments, constants)
        if found is not None:
            self._compiled[constants, types, device] = found

    def compiled(self, constants: tuple[Any, ...], device: int, types: tuple[Any, ...] = ()) -> Any | None:
        """Return the variant that an earlier call has compiled, None if there was none.

        `variant[grid](*arguments, *constants)` launches it. It takes an address, as an int, in place of
        each tensor, which spares Triton from asking the driver what the address belongs to.
        """
        return self._compiled.get((constants, types, device))

    def compile(
        self, grid: tuple[int, int, int], arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> Any | None:
        """Launch for the first time and return the compiled variant, None where the kernel is interpreted."""
        found = self._kernel[grid](*arguments, *constants, num_warps=warps_for(constants[-1]))
        return found if isinstance(found, triton.compiler.CompiledKernel) else None
