"""Host side of the state selection: check the arguments, then launch once for the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.launch import Launcher
from kernels.layout import MATRIX, require, require_indices, require_lane, require_record
from kernels.state_index.kernel import state_index_kernel

if TYPE_CHECKING:
    from kernels.record import ViolationRecord

__all__ = ["CHUNKS", "PAD_STATE", "select_states"]

CHUNKS = (256,)
_LAUNCH = Launcher(state_index_kernel)
PAD_STATE = -1


def select_states(  # noqa: PLR0913 - one argument per array that the launch reads, and its guard
    table: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    block_size: int,
    num_states: int = 1,
    out: torch.Tensor | None = None,
    bounded: bool = True,
    record: ViolationRecord | None = None,
    group: int = 0,
    launch: int = 0,
) -> torch.Tensor:
    """Return int32 [batch, num_states]: the states of each request, `PAD_STATE` where it has none.

    What a bounded selection refuses goes to `record` with the numbers `group` and `launch`; the record
    lies on the device of the table.
    """
    num_reqs = rows.shape[0]
    _check(table, rows, seq_lens)
    require(block_size >= 1, "block size {} is not positive", block_size)
    require(num_states >= 1, "number of states {} is not positive", num_states)
    if out is None:
        out = torch.empty((num_reqs, num_states), dtype=torch.int32, device=table.device)
    require(out.dtype == torch.int32, "out is {}, not torch.int32", out.dtype)
    require(out.shape == (num_reqs, num_states), "out is not [batch, num_states]")
    require(out.is_contiguous(), "out is not contiguous")
    require(out.get_device() == table.get_device(), "out lies on another device than the table")
    require_lane(state_index_kernel, table.device)
    if num_reqs == 0:
        return out
    record = record if bounded else None
    require_record(record, table.get_device())
    _LAUNCH(
        (-(-num_reqs * num_states // CHUNKS[0]), 1, 1),
        (
            table,
            table.stride(0),
            table.shape[1],
            table.shape[0],
            rows,
            seq_lens,
            num_reqs,
            out,
            None if record is None else record.words,
            None if record is None else record.flag,
            group,
            launch,
        ),
        (bounded, record is not None, block_size, num_states, PAD_STATE, *CHUNKS),
        device=table.get_device(),
        types=(rows.dtype, seq_lens.dtype),
    )
    return out


def _check(table: torch.Tensor, rows: torch.Tensor, seq_lens: torch.Tensor) -> None:
    require(table.dtype == torch.int32, "the table is {}, not torch.int32", table.dtype)
    require(table.dim() == MATRIX, "the table has {} dimensions, not 2", table.dim())
    require(table.stride(1) == 1, "entries of a row are not adjacent")
    require(rows.shape == seq_lens.shape, "rows and seq_lens have different lengths")
    for name, tensor in (("rows", rows), ("seq_lens", seq_lens)):
        require_indices(name, tensor, table.get_device())
