"""Every claim, in the order in which it is printed."""

from __future__ import annotations

from invariants.claim import Invariant
from invariants.consumers import CONSUMERS
from invariants.indices import INDICES
from invariants.lifecycle import LIFECYCLE
from invariants.readers import READERS
from invariants.rows import COLUMN_FITS, HELD, ROW_FITS
from invariants.slots import SLOTS

__all__ = ["INVARIANTS", "claim"]

INVARIANTS: tuple[Invariant, ...] = (
    ROW_FITS,
    COLUMN_FITS,
    HELD,
    *READERS,
    *CONSUMERS,
    *SLOTS,
    *INDICES,
    *LIFECYCLE,
)
"""All of them; several may share a name, none a label."""


def claim(label: str) -> Invariant:
    """Return the claim with that label.

    Raises:
        KeyError: there is none.
    """
    found = next((known for known in INVARIANTS if known.label == label), None)
    if found is None:
        message = f"no claim is labelled {label!r}"
        raise KeyError(message)
    return found
