"""The two first claims: what the scheduler hands over fits the row, and so does every column that is read."""

from __future__ import annotations

from invariants.arithmetic import all_of
from invariants.cases import REPRESENTATIVE_TYPES, Case
from invariants.claim import Given, Invariant, Side
from invariants.deployment import Runner
from invariants.releases import Release, column, entries, row_width

__all__ = ["COLUMN_FITS", "HELD", "READ_BY_KERNEL", "ROW_FITS", "negative", "outside", "plural", "width_of"]


def width_of(case: Case, release: Release, runner: Runner) -> int:
    """Return the width of the case's row, in entries."""
    return row_width(case.deployment, case.spec, runner=runner, release=release)


def plural(count: int, word: str) -> str:
    """Return a count and its word."""
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{count} {word if count == 1 else many}"


def negative(width: int) -> str:
    """Say that a width below 0 is none."""
    return f"the row's width comes out as {width}, and no row is narrower than 0"


def outside(read: int, width: int) -> str:
    """Say whose column was read."""
    if width < 0:
        return negative(width)
    if width == 0:
        return f"column {read} is read of a row that is not there"
    if read < 0:
        return f"column {read} lies before the row and belongs to another request"
    return f"column {read} of a row of {width} (columns 0 to {width - 1}) belongs to another request"


def _entries(case: Case, release: Release) -> int:
    return entries(case.deployment, case.spec, case.request, release=release)


def _too_many(case: Case, values: tuple[int, ...]) -> str:
    count, width = values
    if width < 0:
        return negative(width)
    return (
        f"at {plural(case.request.num_tokens, 'token')} the scheduler hands over "
        f"{plural(count, 'entry')} for a row of {width}: {count - width} too many, "
        "written into the next request's row"
    )


ROW_FITS = Invariant(
    "row-fits",
    "the entries that the scheduler hands over fit the worker's row",
    lambda case, release, runner: _entries(case, release) <= width_of(case, release, runner),
    lambda spec: spec.runners,
    sides=lambda case, release, runner: (
        Side("scheduler", "entries", _entries(case, release)),
        Side("worker", "row width", width_of(case, release, runner)),
    ),
    clash=_too_many,
    margin=lambda case, release, runner: width_of(case, release, runner) - _entries(case, release),
)


def _column(case: Case, release: Release, runner: Runner) -> int:
    return column(case.deployment, case.spec, case.access, runner=runner, release=release)


def _inside(case: Case, release: Release, runner: Runner) -> bool:
    read = _column(case, release, runner)
    return all_of(read >= 0, read < width_of(case, release, runner))


READ_BY_KERNEL = Given(
    "read-by-kernel",
    "the position or state is one that a kernel reads for the request (a position with a slot that the step "
    "can attend to; one of the running states)",
    lambda case, _release, _runner: case.spec.readable(case.deployment, case.request, case.access),
)

COLUMN_FITS = Invariant(
    "column-fits",
    "every column that a kernel computes from a position or a state lies inside the row",
    _inside,
    lambda spec: tuple(r for r in spec.runners if r in spec.column_runners),
    sides=lambda case, release, runner: (
        Side("kernel", "column", _column(case, release, runner)),
        Side("worker", "row width", width_of(case, release, runner)),
    ),
    clash=lambda _case, values: outside(*values),
    givens=(READ_BY_KERNEL,),
    margin=lambda case, release, runner: width_of(case, release, runner) - _column(case, release, runner) - 1,
)


HELD = Invariant(
    "column-fits",
    "every column that a kernel computes from a position or a state is one of the request's own entries",
    lambda case, release, runner: all_of(
        _column(case, release, runner) >= 0, _column(case, release, runner) < _entries(case, release)
    ),
    lambda spec: COLUMN_FITS.runners(spec) if type(spec) in REPRESENTATIVE_TYPES else (),
    sides=lambda case, release, runner: (
        Side("kernel", "column", _column(case, release, runner)),
        Side("scheduler", "entries held", _entries(case, release)),
    ),
    clash=lambda _case, values: (
        f"column {values[0]} is read of a request that holds {plural(values[1], 'entry')}: it is stale"
    ),
    part="held",
    givens=(READ_BY_KERNEL,),
    margin=lambda case, release, runner: _entries(case, release) - _column(case, release, runner) - 1,
)
