"""What the state selection must do, state by state, in plain torch on any device."""

from __future__ import annotations

import torch

from kernels.state_index.host import PAD_STATE

__all__ = ["select_states_reference"]


def select_states_reference(
    table: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    block_size: int,
    num_states: int = 1,
) -> torch.Tensor:
    """Return int32 [batch, num_states], `PAD_STATE` where a request has no such state."""
    num_rows, width = table.shape
    out = torch.full((len(rows), num_states), PAD_STATE, dtype=torch.int32, device=table.device)
    for batch_row, (row, seq_len) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        if not 0 <= row < num_rows or seq_len < 1:
            continue
        for state in range(num_states):
            column = (seq_len - 1) // block_size + state
            if column < width:
                out[batch_row, state] = table[row, column]
    return out
