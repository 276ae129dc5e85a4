"""Write the staged block IDs of any number of groups into their rows, in one launch."""

from kernels.staged_writer.host import PackedWrites, Write, pack_writes, upload_writes, write_staged
from kernels.staged_writer.reference import write_staged_reference

__all__ = [
    "PackedWrites",
    "Write",
    "pack_writes",
    "upload_writes",
    "write_staged",
    "write_staged_reference",
]
