"""Write the staged block IDs of any number of groups into their rows, in one launch."""

from kernels.staged_writer.host import (
    PackedWrites,
    StagedWriter,
    StagingRing,
    Write,
    pack_writes,
    write_staged,
)
from kernels.staged_writer.reference import write_staged_reference

__all__ = [
    "PackedWrites",
    "StagedWriter",
    "StagingRing",
    "Write",
    "pack_writes",
    "write_staged",
    "write_staged_reference",
]
