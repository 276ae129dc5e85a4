"""The refusal added to block tables that an engine made, in place and without replacing them.

An append is checked for all groups before the engine's own code stages any: what does not fit leaves block
lists, counts and staged writes as they were. The check is a closure that is set on the instance, so that
the class stays as it is and taking the attribute away restores the original.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard import _refusals as refuse
from guard.errors import BlockTableViolation, GuardUsageError
from guard.vllm._watch import Watch

_KNOWN_APPENDS = frozenset({"0d98a423f2ab0c6f", "9610e6e7492a2ace", "70fb59aee4729c4f"})
"""Digests of `BlockTables.append_block_ids` without comments and blanks: vLLM 0.26 to 0.28, 0.29 to 0.31,
0.32 and 0.33."""

__all__ = ["TableView", "guard_tables", "release_tables", "view_of"]


@dataclass(frozen=True, slots=True)
class TableView:
    """What the checks need of an instance. Tuples have one element per group.

    Attributes:
        methods: the methods that make rows longer.
        counts: how many entries of each row are in use, as the engine counts them, not copied.
        widths: entries per row, read off the tables themselves.
        factors: entries that one block ID takes; more than 1 where rows hold kernel blocks.
    """

    methods: tuple[str, ...]
    counts: tuple[NDArray[np.int32], ...]
    widths: tuple[int, ...]
    factors: tuple[int, ...]

    def most_used(self) -> list[int]:
        """Return the longest row of each group."""
        return [int(counts.max(initial=0)) for counts in self.counts]


def view_of(tables: Any) -> TableView:
    """Look at an engine's tables.

    Raises:
        GuardUsageError: they are neither Model Runner V1's nor V2's.
    """
    try:
        if hasattr(tables, "append_block_ids"):
            return _view_v2(tables)
        if hasattr(tables, "append_row") and hasattr(tables, "add_row"):
            return _view_v1(tables)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        message = f"{type(tables).__name__} is laid out as no known vLLM's block tables are: {error}"
        raise GuardUsageError(message) from error
    message = f"{type(tables).__name__} has neither append_block_ids nor append_row and add_row"
    raise GuardUsageError(message)


def _view_v2(tables: Any) -> TableView:
    counts = tables.num_blocks.np
    widths = tuple(int(table.gpu.shape[1]) for table in tables.block_tables)
    factors = tuple(getattr(tables, "blocks_per_kv_block", None) or (1,) * len(widths))
    if counts.shape != (len(widths), tables.max_num_reqs) or len(factors) != len(widths):
        message = f"counts of shape {counts.shape} for {len(widths)} groups"
        raise ValueError(message)
    return TableView(("append_block_ids",), tuple(counts), widths, factors)


def _view_v1(tables: Any) -> TableView:
    groups = getattr(tables, "block_tables", None)
    groups = [tables] if groups is None else list(groups)
    widths = tuple(int(group.block_table.np.shape[1]) for group in groups)
    factors = tuple(
        group.blocks_per_kv_block if getattr(group, "use_hybrid_blocks", False) else 1 for group in groups
    )
    counts = tuple(group.num_blocks_per_row for group in groups)
    if any(row_counts.ndim != 1 for row_counts in counts):
        message = "counts are not one number per row"
        raise ValueError(message)
    return TableView(("append_row", "add_row"), counts, widths, factors)


def guard_tables(tables: Any, watch: Watch, name_of: Callable[[int], object] | None = None) -> TableView:
    """Add the refusal to `tables`, once; `name_of` tells which request a row belongs to."""
    release_tables(tables)
    view = view_of(tables)
    if hasattr(tables, "append_block_ids"):
        guarded = {"append_block_ids": _guarded_append_block_ids(tables, view, watch, name_of)}
    elif hasattr(tables, "block_tables"):
        guarded = _guarded_rows(tables, view, watch, name_of)
    else:
        guarded = _guarded_single(tables, view, watch, name_of)
    for name, function in guarded.items():
        function.rowbound = True
        setattr(tables, name, function)
    return view


def release_tables(tables: Any) -> bool:
    """Take the refusal away again; return whether there was one."""
    guarded = [
        name for name, value in getattr(tables, "__dict__", {}).items() if getattr(value, "rowbound", False)
    ]
    for name in guarded:
        delattr(tables, name)
    return bool(guarded)


def _is_known_append(append: Any) -> bool:
    """Return whether the engine's method reads as in a release that was looked at."""
    try:
        lines = inspect.getsource(append).splitlines()
    except (OSError, TypeError):
        return False
    text = "".join("".join(line.partition("#")[0].split()) for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16] in _KNOWN_APPENDS


def _guarded_append_block_ids(
    tables: Any, view: TableView, watch: Watch, name_of: Callable[[int], object] | None
) -> Any:
    append = tables.append_block_ids
    # A memoryview gives plain integers, at half the price of a numpy scalar.
    counts = tuple(row.data for row in view.counts)
    num_groups, num_rows = len(counts), len(counts[0]) if counts else 0
    no_entries = (0,) * num_groups

    def check(row: int, block_ids: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        if not 0 <= row < num_rows:
            watch.refuse(refuse.row_index(row, num_rows))
        _check_groups(view, watch, row, starts, block_ids, name_of)

    def append_block_ids(req_index: int, new_block_ids: tuple[list[int], ...], overwrite: bool) -> None:
        inside = not overwrite and 0 <= req_index < num_rows
        check(req_index, new_block_ids, [row[req_index] for row in counts] if inside else no_entries)
        append(req_index, new_block_ids, overwrite)

    if not _is_known_append(append) or any(factor > 1 for factor in view.factors):
        return append_block_ids
    return _lean_append(tables, view, append_block_ids)


def _lean_append(tables: Any, view: TableView, checked: Callable[..., None]) -> Any:
    """Return the engine's append with its look-ups done beforehand and all groups checked first.

    What the engine's method does to the tables is two statements per group, the same in every release whose
    text is known; done here they pay for the check. Anything unusual is left to `checked` and the engine.
    """
    counts = tuple(row.data for row in view.counts)
    stages = tuple(table.stage_write for table in tables.block_tables)
    widths = view.widths
    num_groups, num_rows = len(counts), len(counts[0]) if counts else 0
    no_entries = (0,) * num_groups
    # Up to 0.31 nothing is redirected.
    flags = tables if hasattr(tables, "redirect_writes_to_null_block") else _NotRedirected
    if num_groups == 1:
        return _lean_single(flags, counts[0], widths[0], stages[0], checked)

    def append_block_ids(req_index: int, new_block_ids: tuple[list[int], ...], overwrite: bool) -> None:
        if (
            len(new_block_ids) != num_groups
            or not 0 <= req_index < num_rows
            or flags.redirect_writes_to_null_block
        ):
            checked(req_index, new_block_ids, overwrite)
            return
        starts = no_entries if overwrite else [count[req_index] for count in counts]
        # All have one element per group, and naming `strict` would cost a fifth of the loops.
        for ids, start, width in zip(new_block_ids, starts, widths):  # noqa: B905
            if start + len(ids) > width:
                checked(req_index, new_block_ids, overwrite)
                return
        for ids, start, stage, count in zip(new_block_ids, starts, stages, counts):  # noqa: B905
            stage(req_index, start, ids)
            count[req_index] = start + len(ids)

    return append_block_ids


class _NotRedirected:
    redirect_writes_to_null_block = False


def _lean_single(flags: Any, count: memoryview, width: int, stage: Any, checked: Any) -> Any:
    """Return the same for tables of one group, without loops."""
    num_rows = len(count)

    def append_block_ids(req_index: int, new_block_ids: tuple[list[int], ...], overwrite: bool) -> None:
        if len(new_block_ids) == 1 and 0 <= req_index < num_rows and not flags.redirect_writes_to_null_block:
            ids = new_block_ids[0]
            start = 0 if overwrite else count[req_index]
            end = start + len(ids)
            if end <= width:
                stage(req_index, start, ids)
                count[req_index] = end
                return
        checked(req_index, new_block_ids, overwrite)

    return append_block_ids


def _guarded_rows(
    tables: Any, view: TableView, watch: Watch, name_of: Callable[[int], object] | None
) -> dict[str, Any]:
    append, add = tables.append_row, tables.add_row
    counts = tuple(row.data for row in view.counts)
    num_groups = len(counts)
    no_entries = [0] * num_groups

    def check(block_ids: Sequence[Sequence[int]], row: int, starts: Sequence[int]) -> None:
        _check_groups(view, watch, row, starts, block_ids, name_of)

    def append_row(block_ids: tuple[list[int], ...], row_idx: int) -> None:
        check(block_ids, row_idx, [row[row_idx] for row in counts])
        append(block_ids, row_idx)

    def add_row(block_ids: tuple[list[int], ...], row_idx: int) -> None:
        check(block_ids, row_idx, no_entries)
        add(block_ids, row_idx)

    return {"append_row": append_row, "add_row": add_row}


def _guarded_single(
    tables: Any, view: TableView, watch: Watch, name_of: Callable[[int], object] | None
) -> dict[str, Any]:
    append, add = tables.append_row, tables.add_row

    def check(block_ids: list[int], row: int, start: int) -> None:
        if start + len(block_ids) * view.factors[0] > view.widths[0]:
            watch.refuse(_overflow(view, row, [start], [block_ids], name_of))

    def append_row(block_ids: list[int], row_idx: int) -> None:
        check(block_ids, row_idx, int(view.counts[0][row_idx]))
        append(block_ids, row_idx)

    def add_row(block_ids: list[int], row_idx: int) -> None:
        # The engine's add_row empties the row before it appends: check first, or a refusal would lose it.
        check(block_ids, row_idx, 0)
        add(block_ids, row_idx)

    return {"append_row": append_row, "add_row": add_row}


def _check_groups(  # noqa: PLR0913, PLR0917 - an append, and whom to tell of it
    view: TableView,
    watch: Watch,
    row: int,
    starts: Sequence[int],
    block_ids: Sequence[Sequence[int]],
    name_of: Callable[[int], object] | None,
) -> None:
    """Refuse an append that has not one list per group, or leaves the row in any of them."""
    if len(block_ids) != len(view.widths):
        watch.refuse(refuse.group_count(row, block_ids, len(view.widths)))
        return
    for ids, start, width, factor in zip(block_ids, starts, view.widths, view.factors, strict=True):
        if start + len(ids) * factor > width:
            watch.refuse(_overflow(view, row, starts, block_ids, name_of))
            return


def _overflow(
    view: TableView,
    row: int,
    starts: Sequence[int],
    block_ids: Sequence[Sequence[int]],
    name_of: Callable[[int], object] | None,
) -> BlockTableViolation:
    """Describe the first group that the append overflows."""
    group, start, added, width = next(
        (group, start, len(ids) * factor, width)
        for group, (start, ids, width, factor) in enumerate(
            zip(starts, block_ids, view.widths, view.factors, strict=True)
        )
        if start + len(ids) * factor > width
    )
    violation = refuse.row_capacity(row, group, start, added, width)
    name = None if name_of is None else name_of(row)
    if name is None:
        return violation
    return BlockTableViolation(
        f"{violation} The row belongs to request {name!r}.",
        kind=violation.kind,
        request=name,
        group=group,
        wanted=violation.wanted,
        limit=width,
    )
