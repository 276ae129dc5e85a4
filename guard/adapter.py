"""The guard for an engine of your own: hand over its rows, and ask before each of its writes.

A `RowGuard` knows how wide the rows of each cache group are and how many entries of each are in use. It has
no tables: the engine asks `append` or `replace` before it writes block IDs, `check_tokens` before it takes a
request or a longer prompt, and tells it of rows that are emptied or moved.

    rows = RowGuard.audited(deployment, specs, row_widths, max_num_rows)
    if rows.append(row, block_ids):
        ...  # write them

What to hand over: the deployment and one spec per cache group, in `invariants`' terms; the width of each
group's rows, read off the tables; the number of rows. What to wrap: every call that makes a row longer,
replaces it, empties it or moves it to another place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard.audit import audit
from guard.errors import BlockTableViolation
from guard.metrics import GuardMetrics
from guard.settings import Mode, chosen_mode
from invariants import TODAY, Deployment, Release, Runner, Spec

try:
    from guard import _refusals as refuse
except ImportError as error:
    if error.name != "numpy":
        raise
    missing = "guard.adapter needs numpy: install rowbound with its extra `gpu`"
    raise ImportError(missing, name="numpy") from None

__all__ = ["RowGuard"]


class RowGuard:
    """The rows of one worker, as numbers.

    In mode `raise` a write that does not fit raises `BlockTableViolation`. In mode `count` it is counted and
    the answer is False: the engine has to leave the write out or refuse the request. In mode `off` every
    answer is True. After a refusal nothing has changed.
    """

    def __init__(
        self,
        row_widths: Sequence[int],
        max_num_rows: int,
        *,
        max_model_len: int | None = None,
        mode: Mode | str | None = None,
    ) -> None:
        """Start with empty rows; `row_widths` are entries, one number per cache group."""
        self.mode = chosen_mode(mode)
        self.max_num_rows = max_num_rows
        self.max_model_len = max_model_len
        self.metrics = GuardMetrics()
        self.metrics.resize(row_widths)
        self._widths = tuple(row_widths)
        self._rows = [[0] * len(self._widths) for _ in range(max_num_rows)]

    @classmethod
    def audited(  # noqa: PLR0913 - what the audit takes, and the rows
        cls,
        deployment: Deployment,
        specs: Sequence[Spec],
        row_widths: Sequence[int],
        max_num_rows: int,
        *,
        mode: Mode | str | None = None,
        runner: Runner = Runner.V2,
        release: Release | str = TODAY,
    ) -> RowGuard:
        """Audit the rows first.

        Raises:
            UnsafeDeployment: a row is too narrow for some legal request, and the mode raises.
        """
        rows = cls(row_widths, max_num_rows, max_model_len=deployment.max_model_len, mode=mode)
        if rows.mode in {Mode.RAISE, Mode.STRICT}:
            audit(deployment, specs, row_widths, runner=runner, release=release).require_ok()
        return rows

    def counts(self, row: int) -> tuple[int, ...]:
        """Return how many entries of a row are in use in each group."""
        return tuple(self._rows[refuse.row_of(row, self.max_num_rows)])

    def append(self, row: int, block_ids: Sequence[Sequence[int]]) -> bool:
        """Return whether one list of block IDs per group fits after the row's, and count it as in use."""
        return self._write(row, block_ids, empty=False)

    def replace(self, row: int, block_ids: Sequence[Sequence[int]]) -> bool:
        """Return whether the lists fit in place of the row's, and count them as in use."""
        return self._write(row, block_ids, empty=True)

    def clear(self, row: int) -> None:
        """Count the row as empty."""
        self._rows[refuse.row_of(row, self.max_num_rows)] = [0] * len(self._widths)

    def move(self, source: int, target: int) -> None:
        """Count what `source` holds as held by `target`."""
        moved = self._rows[refuse.row_of(source, self.max_num_rows)]
        self._rows[refuse.row_of(target, self.max_num_rows)] = moved
        self._rows[source] = [0] * len(self._widths)

    def check_tokens(self, request: object, tokens: int) -> bool:
        """Return whether a request of this many tokens, a session's chunks included, may enter at all."""
        limit = self.max_model_len
        if self.mode is Mode.OFF or limit is None or tokens <= limit:
            return True
        return self._refuse(refuse.token_count(request, tokens, tokens, limit, limit))

    def snapshot(self) -> dict[str, Any]:
        """Return the counters and high-water marks."""
        return self.metrics.snapshot()

    def _write(self, row: int, block_ids: Sequence[Sequence[int]], *, empty: bool) -> bool:
        if self.mode is Mode.OFF:
            return True
        try:
            place = refuse.row_of(row, self.max_num_rows)
        except BlockTableViolation as violation:
            return self._refuse(violation)
        if len(block_ids) != len(self._widths):
            return self._refuse(refuse.group_count(place, block_ids, len(self._widths)))
        starts = [0] * len(self._widths) if empty else self._rows[place]
        ends = [start + len(ids) for start, ids in zip(starts, block_ids, strict=True)]
        for group, (start, end, width) in enumerate(zip(starts, ends, self._widths, strict=True)):
            if end > width:
                return self._refuse(refuse.row_capacity(place, group, start, end - start, width))
        self._rows[place] = ends
        self.metrics.appends += 1
        self.metrics.most_used = [*map(max, self.metrics.most_used, ends)]
        return True

    def _refuse(self, violation: BlockTableViolation) -> bool:
        self.metrics.refusals[violation.kind.value] += 1
        if self.mode is Mode.COUNT:
            return False
        raise violation
