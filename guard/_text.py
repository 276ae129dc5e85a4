"""How values that were refused are shown in messages."""

from __future__ import annotations

from typing import Any

__all__ = ["shown"]

_LONGEST = 60
_MOST_BITS = 128


def shown(value: Any) -> str:
    """Show a value of any kind and size in one short line."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        # Python itself refuses to print integers of many thousand digits.
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
