"""The block tables of all cache groups, described so that one launch can reach every one of them.

Contract of `TableLayout`:

* `tables`: per group an int32 tensor [rows, width], all with the same number of rows and on one device.
  Entries of a row are adjacent (`stride(1) == 1`); rows may be further apart than `width`.
* `pointers`: uint64 [groups], each table's address. uint64 because an address may use the top bit.
* `strides`: int64 [groups], entries from one row to the next.
* `widths`: int64 [groups], entries that a row holds; `row_widths` has the same numbers on the host.

The addresses are read once. A table that is moved or reallocated needs a new layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import triton

from kernels.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.record import ViolationRecord

__all__ = [
    "MATRIX",
    "TableLayout",
    "require",
    "require_counts",
    "require_indices",
    "require_lane",
    "require_record",
    "to_device",
]

MATRIX = 2
"""How many dimensions a table has."""

INDEX_TYPES = (torch.int32, torch.int64)
"""What rows, positions and lengths may be."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Addresses, strides and widths of one int32 table per cache group."""

    tables: tuple[torch.Tensor, ...]
    pointers: torch.Tensor
    strides: torch.Tensor
    widths: torch.Tensor
    num_rows: int
    row_widths: tuple[int, ...] = field(init=False)
    device_index: int = field(init=False)
    """What `get_device` says of the tables; far cheaper to compare than `device`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "device_index", self.tables[0].get_device())
        object.__setattr__(self, "row_widths", tuple(table.shape[1] for table in self.tables))

    @classmethod
    def of(cls, tables: Sequence[torch.Tensor]) -> TableLayout:
        """Describe `tables`, one per group, after checking that they fit the contract."""
        tables = tuple(tables)
        require(bool(tables), "a table layout needs at least one group")
        first = tables[0]
        for group, table in enumerate(tables):
            _check_table(group, table, first)
        return cls(
            tables=tables,
            pointers=to_device([t.data_ptr() for t in tables], torch.uint64, first.device),
            strides=to_device([t.stride(0) for t in tables], torch.int64, first.device),
            widths=to_device([t.shape[1] for t in tables], torch.int64, first.device),
            num_rows=first.shape[0],
        )

    @property
    def num_groups(self) -> int:
        """How many cache groups there are."""
        return len(self.tables)

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        return self.tables[0].device


def _check_table(group: int, table: torch.Tensor, first: torch.Tensor) -> None:
    require(table.dtype == torch.int32, f"table of group {group} is {table.dtype}, not torch.int32")
    require(table.dim() == MATRIX, f"table of group {group} has {table.dim()} dimensions, not 2")
    require(table.shape[0] == first.shape[0], f"table of group {group} has another number of rows")
    require(table.shape[1] > 0, f"table of group {group} has rows of no entries")
    require(table.stride(1) == 1, f"entries of group {group} are not adjacent")
    require(table.device == first.device, f"table of group {group} lies on another device")


def require(condition: bool, otherwise: str, *values: object) -> None:
    """Raise `KernelError(otherwise)` unless `condition` holds.

    With `values`, `otherwise` is a format for them, so that a call that passes pays for no text.
    """
    if not condition:
        raise KernelError(otherwise.format(*values) if values else otherwise)


def require_lane(kernel: object, device: torch.device) -> None:
    """Refuse a launch whose kernel was not built for `device`.

    The interpreter follows addresses on the host and a compiled kernel follows them on the GPU; the
    wrong pairing would read memory that is not there.
    """
    compiled = isinstance(kernel, triton.runtime.JITFunction)
    if compiled and device.type == "cpu":
        raise KernelError("tables on the CPU need TRITON_INTERPRET=1, set before triton is imported")
    if not compiled and device.type != "cpu":
        raise KernelError(f"tables on {device} need TRITON_INTERPRET unset: the interpreter runs on the CPU")


def require_counts(counts: torch.Tensor, layout: TableLayout) -> None:
    """Refuse counts that are not int32 [groups, num_rows] beside the tables."""
    require(counts.dtype == torch.int32, "counts are {}, not torch.int32", counts.dtype)
    require(counts.shape == (layout.num_groups, layout.num_rows), "counts are not [groups, num_rows]")
    require(counts.stride(1) == 1, "counts of one group are not adjacent")
    require(counts.get_device() == layout.device_index, "counts lie on another device than the tables")


def require_indices(name: str, tensor: torch.Tensor, device_index: int) -> None:
    """Refuse rows, positions or lengths that are not adjacent int32 or int64 numbers beside the tables."""
    if tensor.dtype not in INDEX_TYPES:
        raise KernelError(f"{name} is {tensor.dtype}, not int32 or int64")
    if tensor.dim() != 1:
        raise KernelError(f"{name} has {tensor.dim()} dimensions, not 1")
    if not tensor.is_contiguous():
        raise KernelError(f"entries of {name} are not adjacent")
    if tensor.get_device() != device_index:
        raise KernelError(f"{name} lies on another device than the tables")


def require_record(record: ViolationRecord | None, device_index: int) -> None:
    """Refuse a record that lies on another device than the tables."""
    if record is not None:
        require(
            record.words.get_device() == device_index, "the record lies on another device than the tables"
        )


def to_device(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Copy host values to `device` without waiting for the copy."""
    host = torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return host
    # The host allocator keeps a pinned block until the copy that reads it has run.
    return host.pin_memory().to(device, non_blocking=True)
