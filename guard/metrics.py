"""What the guard counted: steps, appends, refusals of each kind, and the fullest row of each group.

`GuardMetrics` is plain numbers; `snapshot` gives them as one dictionary. With prometheus-client in use in
the process, `PrometheusExport` keeps the same numbers as metrics of the engine's own page.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GuardMetrics", "PrometheusExport"]


@dataclass(slots=True)
class GuardMetrics:
    """The numbers of one worker; lists have one element per cache group."""

    row_widths: list[int] = field(default_factory=list)
    most_used: list[int] = field(default_factory=list)
    """The most entries that any row has held."""
    steps: int = 0
    appends: int = 0
    """Requests whose block lists a step changed."""
    refusals: Counter[str] = field(default_factory=Counter)

    def resize(self, row_widths: Sequence[int]) -> None:
        """Start anew for rows of these widths, and keep what was counted."""
        self.row_widths = list(row_widths)
        self.most_used = [0] * len(self.row_widths)

    def row_shares(self) -> list[float]:
        """Return the largest share of a row that was in use."""
        return [
            used / width if width else 0.0
            for used, width in zip(self.most_used, self.row_widths, strict=True)
        ]

    def snapshot(self) -> dict[str, Any]:
        """Return all numbers by name."""
        return {
            "steps": self.steps,
            "appends": self.appends,
            "refusals": dict(self.refusals),
            "row_widths": list(self.row_widths),
            "most_used": list(self.most_used),
            "row_shares": self.row_shares(),
        }


class PrometheusExport:
    """The numbers of a `GuardMetrics` as Prometheus metrics named `rowbound_...`.

    In a worker process of its own they reach the engine's metrics page through prometheus-client's
    multiprocess mode, that is with PROMETHEUS_MULTIPROC_DIR set for the engine.
    """

    __slots__ = ("_appends", "_refusals", "_shares", "_steps")

    def __init__(self) -> None:
        """Register the metrics in the process's registry."""
        from prometheus_client import Counter as Total  # noqa: PLC0415 - optional, the engine brings it
        from prometheus_client import Gauge  # noqa: PLC0415 - as above

        self._steps = Total("rowbound_steps", "Scheduler steps whose block lists were checked.")
        self._appends = Total("rowbound_appends", "Block lists that were checked.")
        self._refusals = Total("rowbound_refusals", "Writes that did not fit their row.", ["kind"])
        self._shares = Gauge(
            "rowbound_row_share_max",
            "Largest share of a block-table row that any request has used.",
            ["group"],
            multiprocess_mode="livemax",
        )

    @staticmethod
    def is_wanted() -> bool:
        """Return whether this process serves metrics, or leaves them for one that does."""
        return "prometheus_client" in sys.modules or "PROMETHEUS_MULTIPROC_DIR" in os.environ

    def publish(self, metrics: GuardMetrics, published: GuardMetrics) -> None:
        """Bring the exported numbers up to date; `published` remembers what they have of `metrics`."""
        self._steps.inc(metrics.steps - published.steps)
        self._appends.inc(metrics.appends - published.appends)
        for kind, number in metrics.refusals.items():
            self._refusals.labels(kind).inc(number - published.refusals[kind])
        for group, share in enumerate(metrics.row_shares()):
            self._shares.labels(str(group)).set(share)
        published.steps, published.appends = metrics.steps, metrics.appends
        published.refusals = Counter(metrics.refusals)
