"""What the state selection must do, state by state, in plain torch on any device."""

from __future__ import annotations

import torch

from kernels.record import DeviceFault, Refusal
from kernels.state_index.host import PAD_STATE

__all__ = ["select_states_reference"]


def select_states_reference(  # noqa: PLR0913 - the host function's arguments
    table: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    block_size: int,
    num_states: int = 1,
    group: int = 0,
    refusals: list[Refusal] | None = None,
) -> torch.Tensor:
    """Return int32 [batch, num_states], `PAD_STATE` where a request has no such state.

    What is refused is appended to `refusals`.
    """
    refused = [] if refusals is None else refusals
    num_rows, width = table.shape
    out = torch.full((len(rows), num_states), PAD_STATE, dtype=torch.int32, device=table.device)
    for batch_row, (row, seq_len) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        if row == -1 or seq_len == 0:
            continue
        if not 0 <= row < num_rows:
            refused.append(Refusal(DeviceFault.READ_ROW, group, row, row, num_rows))
            continue
        if seq_len < 0:
            refused.append(Refusal(DeviceFault.POSITION, group, row, seq_len - 1, width * block_size))
            continue
        for state in range(num_states):
            column = (seq_len - 1) // block_size + state
            if column < width:
                out[batch_row, state] = table[row, column]
            else:
                refused.append(Refusal(DeviceFault.STATE_PAST_ROW, group, row, column, width))
    return out
