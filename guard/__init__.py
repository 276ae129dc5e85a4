"""The run-time guard of block-table rows: an audit at start-up and tables that refuse what does not fit.

`BlockTables` needs torch and triton and is imported when it is first used; the rest needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guard.audit import AuditReport, Finding, GroupAudit, Side, audit
from guard.errors import (
    BlockTableViolation,
    GuardError,
    GuardUsageError,
    UnsafeDeployment,
    Violation,
)

if TYPE_CHECKING:
    from guard.block_tables import BlockTables

__all__ = [
    "AuditReport",
    "BlockTableViolation",
    "BlockTables",
    "Finding",
    "GroupAudit",
    "GuardError",
    "GuardUsageError",
    "Side",
    "UnsafeDeployment",
    "Violation",
    "audit",
]


def __getattr__(name: str) -> Any:
    if name != "BlockTables":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        from guard.block_tables import BlockTables  # noqa: PLC0415 - only this name needs torch
    except ImportError as error:
        if error.name == "kernels":
            message = (
                "guard.BlockTables needs rowbound's own package `kernels`, but another distribution's stands "
                "in its place in this environment; keep the two in separate environments"
            )
            raise ImportError(message, name="kernels") from error
        if error.name not in {"torch", "triton", "numpy"}:
            raise
        message = f"guard.BlockTables needs {error.name}: install rowbound with its extra `gpu`"
        raise ImportError(message, name=error.name) from None
    return BlockTables
