"""A picture of the fault: the request's row, the rows beside it in memory, and what leaves it.

Rows of one tensor lie one behind the other, so an entry past the end of a row is an entry of the next
request. Both drawings show the same cells: a long row is cut where nothing happens, never at its borders.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from proofs.verdicts import Counterexample, RowPicture

__all__ = ["row_lines", "row_svg"]

_MOST_CELLS = 24


class _Mark(enum.Enum):
    """What a cell is to the request."""

    HELD = "held"
    """Its own, with an entry of its list."""
    FREE = "free"
    """Its own; what it holds does not matter here."""
    FOREIGN = "foreign"
    """Another request's."""
    OVERFLOW = "overflow"
    """Another request's, overwritten with an entry of this one."""
    READ = "read"
    """Another request's, read as if it were this one's."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One row, counted from the request's own; a cell is an offset and its mark, None a cut."""

    number: int
    cells: tuple[tuple[int, _Mark] | None, ...]


def row_lines(found: Counterexample, encoding: str = "utf-8") -> list[str]:
    """Return the drawing as text, in signs that the encoding has; nothing for a claim about no one row."""
    if found.row is None:
        return []
    signs = _UNICODE if _encodes(encoding) else _ASCII
    text, rows = signs.border, _rows(found.row)
    following = rows[0].number
    for row in rows:
        if row.number > following:
            text += signs.cut + signs.border
        following = row.number + 1
        text += "".join(signs.cut if cell is None else signs.of[cell[1]] for cell in row.cells) + signs.border
    return [text, _legend(found.row, signs)]


@dataclass(frozen=True, slots=True)
class _Signs:
    of: dict[_Mark, str]
    border: str
    cut: str


def _signs(text: str, border: str, cut: str) -> _Signs:
    return _Signs(dict(zip(_Mark, text, strict=True)), border, cut)


_UNICODE = _signs("■□·×◆", "│", "…")
_ASCII = _signs("#o-X@", "|", "...")


def _encodes(encoding: str) -> bool:
    try:
        "".join([*_UNICODE.of.values(), _UNICODE.border, _UNICODE.cut]).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _legend(row: RowPicture, signs: _Signs) -> str:
    own = f"row of {row.width}"
    if row.kind == "column":
        return f"{signs.of[_Mark.FREE]} {own}  {signs.of[_Mark.READ]} column {row.wanted}, {_whose(row)}"
    held = f"{signs.of[_Mark.HELD]} {own}, full" if row.width else own
    return f"{held}  {signs.of[_Mark.OVERFLOW]} {_entries(row.wanted - row.width)} {_whose(row)}"


def _whose(row: RowPicture) -> str:
    """Say in whose row it ends up."""
    if row.width == 0:
        return "outside a row that has no entries"
    number = (row.wanted if row.kind == "column" else row.wanted - 1) // row.width
    if number == 1:
        return "in the next request's row"
    if row.kind == "column":
        return f"{abs(number)} row{'s' * (abs(number) != 1)} {'behind' if number > 0 else 'before'} its own"
    return f"in the rows of the next {number} requests"


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _rows(row: RowPicture) -> list[_Row]:
    """Return the rows to draw: the request's own, its neighbour, and the last one that is reached."""
    width = row.width or max(row.wanted, 0) + 1
    reached = row.wanted if row.kind == "column" else row.wanted - 1
    last = reached // width + (row.width == 0)
    numbers = sorted({0, 1, last} if last >= 0 else {last, -1, 0})
    return [_row(row, number, width) for number in numbers]


def _row(row: RowPicture, number: int, width: int) -> _Row:
    if number == 0:
        edge = 0 if row.kind == "column" and row.wanted < 0 else row.width - 1
        offsets, start = _kept(row.width, [edge]), 0
    else:
        start = row.width + (number - 1) * width
        reached = row.wanted - start - (row.kind == "entries")
        offsets = _kept(width, [width - 1 if number < 0 else 0, reached])
    return _Row(number, tuple(None if o is None else (o, _mark(row, start + o)) for o in offsets))


def _mark(row: RowPicture, cell: int) -> _Mark:
    """Return what a cell is, counted from the start of the request's row."""
    if 0 <= cell < row.width:
        return _Mark.HELD if row.kind == "entries" else _Mark.FREE
    if row.kind == "entries":
        return _Mark.OVERFLOW if row.width <= cell < row.wanted else _Mark.FOREIGN
    return _Mark.READ if cell == row.wanted else _Mark.FOREIGN


def _kept(width: int, points: Iterable[int]) -> list[int | None]:
    """Return the offsets of a row that are drawn: both ends and the nearest to the points; None is a cut."""
    if width <= _MOST_CELLS:
        return list(range(width))
    ends = {0, width - 1}
    inside = [min(max(point, 0), width - 1) for point in points]
    near = {
        offset
        for point in {*inside, *ends}
        for offset in range(max(point - _MOST_CELLS, 0), min(point + _MOST_CELLS, width))
    }
    nearest = sorted(near - ends, key=lambda offset: (min(abs(offset - p) for p in inside), offset))
    kept: list[int | None] = []
    for offset in sorted({*ends, *nearest[: _MOST_CELLS - len(ends)]}):
        if kept and kept[-1] is not None and offset > kept[-1] + 1:
            kept.append(None)
        kept.append(offset)
    return kept


_CELL, _PITCH, _LINE, _MARGIN = 13, 15, 50, 2
_TEXT_WIDTH = 7
"""What one letter of the captions takes at most, in the drawing's units."""
_STYLE = """
.rb-row text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#3d444d}
.rb-row .held{fill:#4c7fb8}.rb-row .free{fill:#dbe7f3;stroke:#4c7fb8}
.rb-row .foreign{fill:none;stroke:#9aa4af}
.rb-row .overflow,.rb-row .read{fill:#cf222e}.rb-row .sign{stroke:#fff;stroke-width:1.6;fill:none}
.rb-row .bad{fill:#b3131f;font-weight:600}
@media screen and (prefers-color-scheme:dark){
.rb-row text{fill:#c3ccd5}.rb-row .held{fill:#5b95d6}.rb-row .free{fill:#1d2f42;stroke:#5b95d6}
.rb-row .foreign{stroke:#69737d}.rb-row .overflow,.rb-row .read{fill:#e5534b}.rb-row .bad{fill:#ff8f87}}
"""


def row_svg(found: Counterexample) -> str:
    """Return the drawing as an SVG image, rows one below the other; "" for a claim about no one row."""
    if found.row is None:
        return ""
    row, rows = found.row, _rows(found.row)
    captions = [_caption(row, drawn.number) for drawn in rows]
    longest = max(map(len, [*captions, _whole_legend(row)]))
    width = max(max(len(drawn.cells) for drawn in rows) * _PITCH, longest * _TEXT_WIDTH) + 2 * _MARGIN
    height = len(rows) * _LINE + 20
    parts = [
        '<svg class="rb-row" xmlns="http://www.w3.org/2000/svg" role="img" ',
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" ',
        f'aria-label="{escape(found.summary)}"><title>{escape(found.summary)}</title>',
        f"<style>{_STYLE}</style>",
    ]
    for line, (drawn, caption) in enumerate(zip(rows, captions, strict=True)):
        top = line * _LINE
        parts.append(f'<text x="{_MARGIN}" y="{top + 13}">{escape(caption)}</text>')
        parts.extend(_svg_cells(drawn.cells, top + 20))
    said = escape(_whole_legend(row))
    return "".join([*parts, f'<text class="bad" x="{_MARGIN}" y="{height - 5}">{said}</text></svg>'])


def _caption(row: RowPicture, number: int) -> str:
    if number == 0:
        return f"this request's row: {_entries(row.width)}"
    if row.width == 0:
        return "other memory"
    if number == 1:
        return "the next request's row"
    return f"the row {abs(number)} {'further on' if number > 0 else 'before'}"


def _whole_legend(row: RowPicture) -> str:
    if row.kind == "column":
        return f"column {row.wanted} is {_whose(row)}"
    over = row.wanted - row.width
    return f"{over} of {_entries(row.wanted)} {'is' if over == 1 else 'are'} {_whose(row)}"


def _svg_cells(cells: Sequence[tuple[int, _Mark] | None], top: int) -> Iterable[str]:
    for place, cell in enumerate(cells):
        left = _MARGIN + place * _PITCH
        if cell is None:
            yield f'<text x="{left + 1}" y="{top + 10}">…</text>'
            continue
        offset, mark = cell
        yield (
            f'<rect class="{mark.value}" x="{left + 0.5}" y="{top + 0.5}" width="{_CELL - 1}" '
            f'height="{_CELL - 1}" rx="2"><title>column {offset}</title></rect>'
        )
        if mark in (_Mark.OVERFLOW, _Mark.READ):  # told apart without colours too
            middle = (left + 4, top + 4, left + 9, top + 9)
            yield '<path class="sign" d="M{0} {1}L{2} {3}M{2} {1}L{0} {3}"/>'.format(*middle)
