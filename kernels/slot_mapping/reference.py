"""What the slot mapping must do, token by token, in plain torch on any device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kernels.record import DeviceFault, Refusal
from kernels.slot_mapping.host import PAD_SLOT, SlotGeometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["map_slots_reference"]


def map_slots_reference(  # noqa: PLR0913, PLR0917 - the host function's arguments
    tables: Sequence[torch.Tensor],
    geometry: SlotGeometry,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    *,
    counts: torch.Tensor | None = None,
) -> list[Refusal]:
    """Fill `out` and return what was refused."""
    refusals: list[Refusal] = []
    rows, starts, places = idx_mapping.tolist(), query_start_loc.tolist(), positions.tolist()
    held = min(out.shape[1], len(places))
    out.fill_(PAD_SLOT)
    for group, table in enumerate(tables):
        for batch_row, row in enumerate(rows):
            for token in range(starts[batch_row], starts[batch_row + 1]):
                if not 0 <= token < held:
                    refusals.append(Refusal(DeviceFault.TOKEN, group, batch_row, token, held))
                elif geometry.enabled[group] and row != -1:
                    count = None if counts is None or not 0 <= row < len(table) else int(counts[group, row])
                    found = _slot(table, geometry, group, row, places[token], count)
                    if isinstance(found, Refusal):
                        refusals.append(found)
                    else:
                        out[group, token] = found
    return refusals


def _slot(  # noqa: PLR0913, PLR0917 - a token in its row
    table: torch.Tensor, geometry: SlotGeometry, group: int, row: int, position: int, count: int | None
) -> int | Refusal:
    num_rows, width = table.shape
    kernel_block_size = geometry.kernel_block_sizes[group]
    ranks = geometry.cp_size if geometry.sharded[group] else 1
    if not 0 <= row < num_rows:
        return Refusal(DeviceFault.READ_ROW, group, row, row, num_rows)
    if position < 0:
        return Refusal(DeviceFault.POSITION, group, row, position, width * kernel_block_size * ranks)
    owner, local = _place(geometry, group, position)
    column, offset = divmod(local, kernel_block_size)
    if column >= width:
        return Refusal(DeviceFault.READ_PAST_ROW, group, row, column, width)
    if count is not None and column >= count:
        return Refusal(DeviceFault.READ_PAST_COUNT, group, row, column, count)
    if owner not in (None, geometry.cp_rank):
        return PAD_SLOT
    return int(table[row, column]) * kernel_block_size + offset


def _place(geometry: SlotGeometry, group: int, position: int) -> tuple[int | None, int]:
    """Return which rank owns a position, None for each of them, and the position's place there."""
    if not geometry.sharded[group] or geometry.cp_size == 1:
        return None, position
    block_size = geometry.block_sizes[group]
    stretch, offset = divmod(position, block_size * geometry.cp_size)
    rank, place = _dealt(block_size, geometry.cp_size, geometry.cp_interleave)[offset]
    return rank, stretch * block_size + place


@cache
def _dealt(block_size: int, cp_size: int, cp_interleave: int) -> list[tuple[int, int]]:
    """Deal the tokens of one stretch out to the ranks, in runs, and note where each one lands."""
    hands = [0] * cp_size
    landed: list[tuple[int, int]] = []
    rank = 0
    while len(landed) < block_size * cp_size:
        for _ in range(min(cp_interleave, block_size * cp_size - len(landed))):
            landed.append((rank, hands[rank]))
            hands[rank] += 1
        rank = (rank + 1) % cp_size
    return landed
