"""What the staged writer must do, entry by entry, in plain torch on any device.

Bounded, an entry lands only in the row it is for. Unbounded, a table is what it is to a kernel without
bounds: an address in flat memory, where entry (row, column) lies `row * stride + column` further on. The
storage behind the table is that memory here, and an address outside it raises IndexError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernels.staged_writer.host import Write

__all__ = ["write_staged_reference"]


def write_staged_reference(
    tables: Sequence[torch.Tensor],
    counts: torch.Tensor,
    writes: Iterable[Write],
    *,
    expansion: Sequence[int] | None = None,
    bounded: bool = True,
) -> None:
    """Store `writes` into `tables` and their ends into `counts` [groups, num_rows]."""
    for asked in writes:
        parts = 1 if expansion is None else expansion[asked.group]
        write = asked._replace(
            ids=[block_id * parts + part for block_id in asked.ids for part in range(parts)]
        )
        if bounded:
            _write_within_row(tables[write.group], counts, write)
        else:
            _write_flat(tables[write.group], counts, write)


def _write_within_row(table: torch.Tensor, counts: torch.Tensor, write: Write) -> None:
    num_rows, width = table.shape
    if not 0 <= write.row < num_rows:
        return
    for column, block_id in enumerate(write.ids, start=write.start):
        if 0 <= column < width:
            table[write.row, column] = block_id
    end = write.start + len(write.ids)
    counts[write.group, write.row] = min(max(end, 0), width)


def _write_flat(table: torch.Tensor, counts: torch.Tensor, write: Write) -> None:
    memory = _flat(table)
    for column, block_id in enumerate(write.ids, start=write.start):
        memory[_address(memory, int(table.storage_offset()) + write.row * table.stride(0) + column)] = (
            block_id
        )
    flat_counts = _flat(counts)
    count_at = int(counts.storage_offset()) + write.group * counts.stride(0) + write.row
    flat_counts[_address(flat_counts, count_at)] = write.start + len(write.ids)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def _address(memory: torch.Tensor, index: int) -> int:
    if not 0 <= index < memory.numel():
        raise IndexError(f"entry {index} lies outside the {memory.numel()} entries of the storage")
    return index
