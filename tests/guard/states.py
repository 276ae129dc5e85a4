"""What a refusal must leave as it was: tables, counts and staging, byte for byte."""

from __future__ import annotations

from typing import Any

from guard import BlockTables


def make(
    block_tables: type[BlockTables], device: Any, widths: list[int], rows: int = 4, **extra: Any
) -> BlockTables:
    """Build tables of block size 16 with the given row widths."""
    return block_tables([16] * len(widths), rows, 2048, widths, device, **extra)


def state_of(tables: BlockTables) -> dict[str, Any]:
    """Copy everything that an append or an apply may change."""
    return {
        "tables": [table.gpu.tolist() for table in tables.block_tables],
        "inputs": [table.tolist() for table in tables.input_block_tables],
        "host counts": tables.num_blocks.np.tolist(),
        "device counts": tables.num_blocks.gpu.tolist(),
        "staged": [
            list(part)
            for part in (tables._log.rows, tables._log.starts, tables._log.ends, tables._log.contents)
        ],
        "batches": len(tables._batches),
        "dirty rows": tables._dirty_rows,
    }
