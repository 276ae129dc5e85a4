"""The append of one row, written out for the number of groups at hand.

A runner appends request by request, hundreds of times per step, so this is the guard's hot path. A loop
over groups costs as much as the check itself; `make_append` therefore compiles a function in which every
group has its own variables and its width is a constant. What it leaves to `unusual` is decided there:
refusals, and legal writes that are not lists of ints.

Nothing of a write is known outside before all of it is accepted. Only the IDs are copied earlier, behind
those of the writes before; `log.mend()` takes them off again when a later group is refused, or when an
interrupt arrives in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guard._counts import Counts
    from guard._geometry import Geometry
    from guard._staging import StagedLog

__all__ = ["LONG", "Append", "make_append"]

LONG = 48
"""From how many IDs on numpy checks them quicker than a loop does."""


class Append(Protocol):
    """The signature of vLLM's `BlockTables.append_block_ids`."""

    def __call__(self, req_index: int, new_block_ids: Sequence[Sequence[int]], overwrite: bool) -> None:
        """Stage one list of block IDs per group for row `req_index`."""


def make_append(
    geometry: Geometry, log: StagedLog, counts: Counts, id_limit: int | None, unusual: Append
) -> Append:
    """Compile the append for `geometry`; with `id_limit` None it checks no length and no upper end of IDs."""
    contents = log.contents

    def refuse_long(added: int) -> None:
        # No view of the IDs may outlive this line: they could not be taken off again.
        highest = int(np.asarray(contents)[-added:].max())
        if highest >= cast("int", id_limit):
            raise LookupError

    names = {
        "host_counts": counts,
        "counts": counts.rows,
        "no_entries": counts.no_entries,
        "log_row": log.rows.append,
        "log_starts": log.starts.extend,
        "log_ends": log.ends.extend,
        "log_start": log.starts.append,
        "log_end": log.ends.append,
        "copy_ids": contents.fromlist,
        "refuse_long": refuse_long,
        "mend": log.mend,
        "unusual": unusual,
    }
    exec(_source(geometry, id_limit), names)  # noqa: S102 - our own text, of numbers alone
    return cast("Append", names["append_block_ids"])


def _source(geometry: Geometry, id_limit: int | None) -> str:
    groups = range(len(geometry.row_widths))
    fits = [f"end_{g} <= {width}" for g, width in enumerate(geometry.row_widths)]
    # That there is such a row is checked in every mode: without one there is nothing to write to.
    condition = " and ".join([f"0 <= req_index < {geometry.max_num_reqs}", *(fits if id_limit else [])])
    single = len(groups) == 1
    lines = [
        f"{_targets('ids', groups)} = new_block_ids",
        # Also looked up for an overwrite: only an index finds a row.
        f"{'start_0' if single else 'before'} = counts[req_index]",
        "if overwrite:",
        f"    {'start_0 = 0' if single else 'before = no_entries'}",
        *([] if single else [f"{_targets('start', groups)} = before"]),
        *(f"added_{g} = len(ids_{g})" for g in groups),
        *(
            f"end_{g} = start_{g} + added_{g}" + (f" * {parts}" if parts > 1 else "")
            for g, parts in enumerate(geometry.blocks_per_kv_block)
        ),
        f"if {condition}:",
        *(f"    {line}" for g in groups for line in _copied(g, id_limit)),
        "    log_row(req_index)",
        # One number costs half of what a tuple of one does.
        *(
            ["    log_start(start_0)", "    log_end(end_0)", "    counts[req_index] = end_0"]
            if single
            else [
                f"    after = ({''.join(f'end_{g}, ' for g in groups)})",
                "    log_starts(before)",
                "    log_ends(after)",
                "    counts[req_index] = after",
            ]
        ),
        "    return",
    ]
    body = "\n".join(f"        {line}" for line in lines)
    return (
        "def append_block_ids(req_index, new_block_ids, overwrite):\n"
        "    try:\n"
        f"{body}\n"
        "    except Exception:\n"
        "        mend(host_counts)\n"
        "    except BaseException:\n"
        "        mend(host_counts)\n"
        "        raise\n"
        "    unusual(req_index, new_block_ids, overwrite)\n"
    )


def _targets(name: str, groups: range) -> str:
    return f"({''.join(f'{name}_{g}, ' for g in groups)})" if groups else "()"


def _copied(group: int, id_limit: int | None) -> list[str]:
    """Copy one group's IDs, which refuses what is no int from 0 to 2**32 - 1, and check the upper end."""
    copied = f"copy_ids(ids_{group})"
    if id_limit is None:
        return [copied]
    return [
        copied,
        f"if added_{group} < {LONG}:",
        f"    for block_id in ids_{group}:",
        f"        if block_id >= {id_limit}:",
        "            raise LookupError",
        "else:",
        f"    refuse_long(added_{group})",
    ]
