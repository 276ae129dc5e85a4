"""The one error that the kernels' host functions raise."""

__all__ = ["KernelError"]


class KernelError(ValueError):
    """An argument that a kernel's contract does not allow; nothing was launched."""
