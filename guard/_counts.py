"""How many entries of each row are in use, as the host counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Counts"]


class Counts:
    """Entries in use per row and group, staged ones included.

    `rows` has one element per row: a tuple with one number per group, which is replaced and never changed,
    and for a single group the number itself, because every append reads and replaces it.
    """

    __slots__ = ("_single", "no_entries", "rows")

    def __init__(self, num_rows: int, num_groups: int) -> None:
        """Start with empty rows."""
        self.no_entries = (0,) * num_groups
        self._single = num_groups == 1
        self.rows: list[Any] = [0 if self._single else self.no_entries] * num_rows

    def held(self, row: int) -> tuple[int, ...]:
        """Return the entries in use of each group."""
        found = self.rows[row]
        return (found,) if self._single else found

    def hold(self, row: int, counts: tuple[int, ...]) -> None:
        """Replace the entries in use of each group."""
        self.rows[row] = counts[0] if self._single else counts

    def as_array(self) -> NDArray[np.int32]:
        """Return them as int32 [groups, rows]."""
        counts = np.array(self.rows, dtype=np.int32).reshape(len(self.rows), len(self.no_entries))
        return np.ascontiguousarray(counts.T)
