"""What the guard has seen so far, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guard.settings import Mode

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counters of one set of block tables since it was made.

    Attributes:
        mode: what the guard does about a refusal.
        launches: kernel launches on the tables.
        refused: how many writes and reads were refused, by `guard.Violation`'s values.
        most_entries: per group, the most entries that a row has held.
        row_widths: per group, how many a row holds.
    """

    mode: Mode
    launches: int
    refused: Mapping[str, int]
    most_entries: tuple[int, ...]
    row_widths: tuple[int, ...]

    @property
    def largest_share(self) -> tuple[float, ...]:
        """Per group, the largest share of a row that was in use, from 0 to 1."""
        return tuple(most / width for most, width in zip(self.most_entries, self.row_widths, strict=True))
