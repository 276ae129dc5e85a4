"""Tables laid inside larger buffers whose remaining entries must never change."""

from __future__ import annotations

from dataclasses import dataclass

import torch

CANARY = -0x5A5A5A5B


@dataclass(frozen=True, slots=True)
class CanaryTable:
    """A [rows, width] table with `margin` guarded entries on each side and `gap` between its rows."""

    buffer: torch.Tensor
    table: torch.Tensor

    @classmethod
    def of(
        cls, rows: int, width: int, device: torch.device, *, gap: int = 3, margin: int = 64
    ) -> CanaryTable:
        """Lay out a table of zeros in a buffer of canaries."""
        stride = width + gap
        buffer = torch.full((2 * margin + rows * stride,), CANARY, dtype=torch.int32, device=device)
        table = torch.as_strided(buffer, (rows, width), (stride, 1), margin)
        table.zero_()
        return cls(buffer, table)

    def clone(self) -> CanaryTable:
        """Copy buffer and table to another address."""
        buffer = self.buffer.clone()
        table = torch.as_strided(buffer, self.table.shape, self.table.stride(), self.table.storage_offset())
        return CanaryTable(buffer, table)

    def outside(self) -> torch.Tensor:
        """Every entry of the buffer that is not in the table."""
        inside = torch.zeros_like(self.buffer, dtype=torch.bool)
        torch.as_strided(inside, self.table.shape, self.table.stride(), self.table.storage_offset()).fill_(
            True
        )
        return self.buffer[~inside]

    def is_intact(self) -> bool:
        """Whether no entry outside the table has changed."""
        return bool((self.outside() == CANARY).all())
