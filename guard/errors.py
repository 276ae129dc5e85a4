"""What the guard raises: refused writes and reads, unsafe deployments, and misuse of its own interface.

A `BlockTableViolation` is a record of one refusal. Whatever raised it has changed nothing: no table, no
count and no staged write. Violations of the host's checks depend only on what the scheduler handed over,
so all ranks of a deployment raise alike; those whose kind begins with `kernel-` are what a kernel of this
rank left out, reported by a later call.
"""

from __future__ import annotations

import enum

__all__ = ["BlockTableViolation", "GuardError", "GuardUsageError", "UnsafeDeployment", "Violation"]


class GuardError(Exception):
    """Base of every error that the guard raises."""


class GuardUsageError(GuardError, ValueError):
    """An argument that the guard's own interface does not allow."""


class UnsafeDeployment(GuardError, RuntimeError):
    """A deployment in which some legal request would overflow its row."""


class Violation(enum.StrEnum):
    """What a refused write or read would have broken."""

    ROW_CAPACITY = "row-capacity"
    """More entries than the row holds."""
    ROW_INDEX = "row-index"
    """A request index that is not a row of the tables."""
    GROUP_COUNT = "group-count"
    """Not one list of block IDs per cache group."""
    BLOCK_ID = "block-id"
    """A block ID that is not a block of the pool."""
    BATCH_ROWS = "batch-rows"
    """More batch rows than the forward-pass tables have."""
    TOKEN_COUNT = "token-count"  # noqa: S105 - tokens of text
    """More tokens than max_model_len or the worker's row of tokens allow."""
    KERNEL_WRITE_PAST_ROW = "kernel-write-past-row"
    """A kernel's store outside its row."""
    KERNEL_WRITE_ROW = "kernel-write-row"
    """A kernel's store to a row that does not exist."""
    KERNEL_READ_PAST_ROW = "kernel-read-past-row"
    """A kernel's load outside its row."""
    KERNEL_READ_ROW = "kernel-read-row"
    """A kernel's load from a row that does not exist."""
    KERNEL_STATE_PAST_ROW = "kernel-state-past-row"
    """A recurrent state's column outside its row."""
    KERNEL_POSITION = "kernel-position"
    """A position or a token index that no table reaches."""
    KERNEL_READ_PAST_COUNT = "kernel-read-past-count"
    """A kernel's load of an entry that its row does not have yet."""
    KERNEL_TOKEN = "kernel-token"  # noqa: S105 - a token of text
    """A token of the batch that no buffer holds."""
    KERNEL_COUNT = "kernel-count"
    """A count on the device that is more than its row holds."""


class BlockTableViolation(GuardError, RuntimeError):
    """One refused write or read.

    Attributes:
        kind: what would have been broken.
        request: the request index or name that the caller gave, None if the refusal is about no single
            request.
        group: the cache group, None if the refusal is about none.
        wanted: the offending number: entries, row index, group count, block ID or batch rows.
        limit: what it had to stay within: entries at most for a row; for the others the count of what
            there is, so that valid indices and IDs lie below it. None if there is no such number.
        launch: for what a kernel refused, the number of its launch on these tables; else None.
        total: how many writes or reads of this kind were refused; 1 for a write that was refused whole.
    """

    def __init__(  # noqa: PLR0913 - the fields of the record
        self,
        message: str,
        *,
        kind: Violation,
        request: object = None,
        group: int | None = None,
        wanted: object = None,
        limit: int | None = None,
        launch: int | None = None,
        total: int = 1,
    ) -> None:
        """Keep the record beside its message."""
        super().__init__(message)
        self.kind = kind
        self.request = request
        self.group = group
        self.wanted = wanted
        self.limit = limit
        self.launch = launch
        self.total = total
