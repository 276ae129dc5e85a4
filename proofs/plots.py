"""A plot of a counterexample: what is wanted of the row against its width, over tokens or positions.

Every number comes from the formulas of `invariants`, run on plain integers. The image is SVG whose colours
are CSS variables of the page around it, so that it follows light and dark. Needs matplotlib.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from invariants import COLUMN_FITS, ROW_FITS, build_case, column, entries, max_num_tokens, row_width
from proofs.verdicts import Counterexample, Obligation, RowPicture

__all__ = ["Sweep", "describe", "plot_svg", "sweep"]

_MOST_POINTS = 400
_VIEW = 2
"""How many times the crossing's distance is shown; what lies beyond repeats it."""
_SHORTEST_VIEW = 16
_AXES: Mapping[str, Mapping[str, str]] = {
    "entries": {"num_tokens": "tokens of the request", "num_encoder_tokens": "encoder tokens of the request"},
    "column": {"position": "position of the token", "state": "number of the state"},
}
"""What may be drawn along x, by what is wanted of the row, and how the axis is named."""
_COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--rule)",
    "#040404": "var(--wanted)",
    "#050505": "var(--limit)",
    "#060606": "var(--bad)",
}
_INK, _MUTED, _RULE, _WANTED, _LIMIT, _BAD = _COLOURS
"""Colours that nobody would choose, to be replaced in the file."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is wanted of a row while one parameter runs and everything else stays as in the counterexample.

    Attributes:
        axis: the name of what runs along x.
        points: (x, wanted) pairs in ascending order.
        row: the row of the counterexample.
        crossing: the first point at which the row is left.
        found: the counterexample's own x.
    """

    axis: str
    points: tuple[tuple[int, int], ...]
    row: RowPicture
    crossing: tuple[int, int] | None
    found: int


def sweep(obligation: Obligation, found: Counterexample) -> Sweep | None:
    """Compute the numbers of a plot, or None where nothing runs that the fault depends on."""
    row = found.row
    if row is None or obligation.invariant not in (ROW_FITS, COLUMN_FITS):
        return None
    name = next((name for name in _AXES[row.kind] if name in found.shown), None)
    if name is None:
        return None
    low, high = _range(obligation, found, name)
    at = int(found.values[name])
    view = range(low, min(high, max(at * _VIEW, low + _SHORTEST_VIEW)) + 1)
    every = max(1, -(-len(view) // _MOST_POINTS))
    tried = sorted({*view[::every], *range(max(low, at - 1), min(high, at + 1) + 1)})
    points = [(x, wanted) for x in tried if (wanted := _wanted(obligation, found, name, x)) is not None]
    if len(points) <= 1:
        return None
    crossing = _crossing(obligation, found, name, points)
    if crossing and crossing not in points:
        points = sorted([*points, crossing])
    return Sweep(_AXES[row.kind][name], tuple(points), row, crossing, at)


def _range(obligation: Obligation, found: Counterexample, name: str) -> tuple[int, int]:
    """Return the least and the greatest value that a legal request can have."""
    case = build_case(obligation.kind, found.values)
    longest = max_num_tokens(case.deployment, release=obligation.release)
    encoder = case.deployment.max_num_encoder_input_tokens
    greatest = {
        "num_tokens": longest,
        "num_encoder_tokens": encoder,
        "position": max(longest, encoder) - 1,
        "state": int(found.values.get("num_speculative_blocks", 0)),
    }[name]
    return (1 if name == "num_tokens" else 0), max(greatest, int(found.values[name]))


def _wanted(obligation: Obligation, found: Counterexample, name: str, value: int) -> int | None:
    """Return the entries or the column for one value, or None where no kernel reads."""
    values = {**found.values, name: value}
    if name == "position":
        values["num_tokens"] = max(value + 1, int(found.values["num_tokens"]))
    case = build_case(obligation.kind, values)
    if name in _AXES["entries"]:
        return entries(case.deployment, case.spec, case.request, release=obligation.release)
    claim, release, runner = obligation.invariant, obligation.release, obligation.runner
    if not all(given.holds(case, release, runner) for given in claim.givens):
        return None
    return column(
        case.deployment, case.spec, case.access, runner=obligation.runner, release=obligation.release
    )


def _crossing(
    obligation: Obligation, found: Counterexample, name: str, points: list[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the first point outside the row; between two points it is looked for one by one, by halves."""
    case = build_case(obligation.kind, found.values)
    width = row_width(case.deployment, case.spec, runner=obligation.runner, release=obligation.release)
    limit = width + (name in _AXES["entries"])

    def outside(wanted: int | None) -> bool:
        return wanted is not None and (wanted >= limit or wanted < 0)

    first = next((i for i, (_, wanted) in enumerate(points) if outside(wanted)), None)
    if first is None:
        return None
    low, (high, wanted) = (points[first - 1][0] if first else points[first][0]), points[first]
    while low + 1 < high:
        middle = (low + high) // 2
        there = _wanted(obligation, found, name, middle)
        if there is not None and outside(there):
            high, wanted = middle, there
        else:
            low = middle
    return high, wanted


def plot_svg(drawn: Sweep, identity: str) -> str:
    """Return the plot as inline SVG; `identity` keeps its identifiers apart from other plots of the page."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # a missing font cache is nobody's concern
    text = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": identity, "font.size": 11.5})
        figure = Figure(figsize=(5.6, 2.7), layout="constrained")
        figure.patch.set_visible(False)
        _fill(figure.add_subplot(), drawn)
        FigureCanvasSVG(figure)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None})
    return _inline(text.getvalue(), identity, describe(drawn))


def describe(drawn: Sweep) -> str:
    """Return the plot's text alternative."""
    over = f"{drawn.row.kind} over the {drawn.axis}, against a row of {drawn.row.width}"
    if drawn.crossing is None:
        return f"Plot: {over}."
    x, wanted = drawn.crossing
    return f"Plot: {over}. The row is left at {x}, with {_said(drawn.row, wanted)}."


def _said(row: RowPicture, wanted: int) -> str:
    if row.kind == "column":
        return f"column {wanted}"
    return f"{wanted} {'entry' if wanted == 1 else 'entries'}"


def _fill(axes: Axes, drawn: Sweep) -> None:
    row = drawn.row
    steps = [drawn.points[0], *(after for before, after in pairwise(drawn.points) if after[1] != before[1])]
    xs = [*(x for x, _ in steps), drawn.points[-1][0] + 1]
    wanted = [*(y for _, y in steps), drawn.points[-1][1]]
    limit = row.width if row.kind == "entries" else row.width - 1
    axes.patch.set_visible(False)
    axes.fill_between(
        xs, wanted, limit, where=[y > limit for y in wanted], step="post", color=_BAD, alpha=0.22, linewidth=0
    )
    axes.plot([xs[0], xs[-1]], [limit, limit], color=_LIMIT, linewidth=1.8, linestyle=(0, (5, 2)))
    axes.plot(xs, wanted, drawstyle="steps-post", color=_WANTED, linewidth=1.8)
    axes.set_xlim(xs[0], xs[-1])
    axes.set_ylim(min(0, *wanted) - 0.15, max(*wanted, limit, 1) * 1.45 + 0.2)
    if drawn.crossing is not None:
        _mark_crossing(axes, drawn.crossing, row)
    held = f"row width {row.width}" if row.kind == "entries" else f"last column {limit}"
    axes.annotate(
        held, (xs[0], limit), xytext=(5, 4), textcoords="offset points", color=_LIMIT, fontweight="bold"
    )
    axes.set_xlabel(drawn.axis, color=_INK)
    axes.set_ylabel("entries handed over" if row.kind == "entries" else "column read", color=_WANTED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.ticklabel_format(style="plain", useOffset=False)
    axes.tick_params(colors=_MUTED, labelcolor=_MUTED)
    axes.grid(visible=True, color=_RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_color(_MUTED)
        spine.set_visible(name in ("left", "bottom"))


def _mark_crossing(axes: Axes, crossing: tuple[int, int], row: RowPicture) -> None:
    x, wanted = crossing
    axes.plot([x], [wanted], marker="o", markersize=6, color=_BAD, clip_on=False, zorder=5)
    left, right = axes.get_xlim()
    is_right = x - left > (right - left) * 0.4
    axes.annotate(
        f"at {x}: {_said(row, wanted)}",
        (x, wanted),
        xytext=(-12 if is_right else 12, 24),
        textcoords="offset points",
        ha="right" if is_right else "left",
        color=_BAD,
        fontweight="bold",
        arrowprops={"arrowstyle": "-", "color": _BAD, "linewidth": 0.9, "shrinkB": 3},
    )


def _inline(text: str, identity: str, description: str) -> str:
    """Make the file part of a page: no prologue, its own identifiers, the page's colours, an alternative."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{identity}-", svg)
    svg = re.sub("|".join(_COLOURS), lambda found: _COLOURS[found[0]], svg)
    svg = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    return re.sub(
        r"<svg\b", f'<svg class="plot" role="img" aria-label="{escape(description)}"', svg, count=1
    ).strip()
