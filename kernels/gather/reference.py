"""What the gather must do, row by row, in plain torch on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.record import DeviceFault, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kernels.gather.host import SlidingWindow

__all__ = ["gather_rows_reference"]


def gather_rows_reference(  # noqa: PLR0913 - the host function's arguments
    tables: Sequence[torch.Tensor],
    counts: torch.Tensor,
    idx_mapping: torch.Tensor,
    out: Sequence[torch.Tensor],
    num_reqs_padded: int,
    *,
    window: SlidingWindow | None = None,
) -> list[Refusal]:
    """Fill the first `num_reqs_padded` rows of each table in `out` and return what was refused."""
    refusals = []
    rows = idx_mapping.tolist()
    for group, (table, target) in enumerate(zip(tables, out, strict=True)):
        num_rows, width = table.shape
        for batch_row in range(num_reqs_padded):
            target[batch_row] = 0
            row = rows[batch_row] if batch_row < len(rows) else -1
            if not 0 <= row < num_rows:
                if row != -1:
                    refusals.append(Refusal(DeviceFault.READ_ROW, group, row, row, num_rows))
                continue
            first = 0 if window is None else _entries_below(window, group, row)
            count = int(counts[group, row])
            if not 0 <= count <= width:
                refusals.append(Refusal(DeviceFault.COUNT, group, row, count, width))
                count = min(count, width)
            if first < count:
                target[batch_row, first:count] = table[row, first:count]
    return refusals


def _entries_below(window: SlidingWindow, group: int, row: int) -> int:
    reach = int(window.reach[group])
    if reach <= 0:
        return 0
    below = max(int(window.num_computed_tokens[row]) - reach, 0)
    return below // int(window.block_sizes[group])
