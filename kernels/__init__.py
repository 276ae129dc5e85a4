"""Triton kernels over block tables, each beside the plain-torch reference that says what it must do.

Every table is a `TableLayout`: one int32 matrix per cache group, one row per request. A kernel that is
handed a write or a read outside a row leaves it out; it never touches the neighbouring row, block 0 or
the last column in its place, and describes it in a `ViolationRecord` if it was given one. All launches go to
the current stream and none of them synchronises.
"""

import kernels._requirements  # noqa: F401 - first: it ends a command that could not run
from kernels.errors import KernelError
from kernels.gather import RowGatherer, SlidingWindow, gather_rows, gather_rows_reference
from kernels.layout import TableLayout
from kernels.record import DeviceFault, DeviceViolation, ViolationRecord
from kernels.slot_mapping import PAD_SLOT, SlotGeometry, SlotMapper, map_slots, map_slots_reference
from kernels.staged_writer import (
    PackedWrites,
    StagedWriter,
    StagingRing,
    Write,
    pack_writes,
    write_staged,
    write_staged_reference,
)
from kernels.state_index import PAD_STATE, select_states, select_states_reference

__all__ = [
    "PAD_SLOT",
    "PAD_STATE",
    "DeviceFault",
    "DeviceViolation",
    "KernelError",
    "PackedWrites",
    "RowGatherer",
    "SlidingWindow",
    "SlotGeometry",
    "SlotMapper",
    "StagedWriter",
    "StagingRing",
    "TableLayout",
    "ViolationRecord",
    "Write",
    "gather_rows",
    "gather_rows_reference",
    "map_slots",
    "map_slots_reference",
    "pack_writes",
    "select_states",
    "select_states_reference",
    "write_staged",
    "write_staged_reference",
]
