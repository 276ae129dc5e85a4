"""A quirk of Triton's interpreter that the engine's own slot mapping meets, and a compiler does not."""

from __future__ import annotations

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def accept_wide_masks(set_attribute=setattr):
    """The interpreter widens `block & scalar` to int32 and then refuses it as a mask; a compiler does not."""
    load = InterpreterBuilder.create_masked_load

    def load_with_bool_mask(self, pointers, mask, *rest):
        return load(self, pointers, TensorHandle(mask.data.astype(bool), mask.dtype), *rest)

    set_attribute(InterpreterBuilder, "create_masked_load", load_with_bool_mask)
