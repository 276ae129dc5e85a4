"""What happens when something leaves its row: it is counted and said, and raised unless told not to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from guard.errors import BlockTableViolation
from guard.metrics import GuardMetrics, PrometheusExport
from guard.settings import Mode

__all__ = ["Watch", "engine_logger"]

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_EXPORTS = 1.0


def engine_logger() -> logging.Logger:
    """Return the engine's own logger under rowbound's name, or Python's where there is no engine."""
    try:
        from vllm.logger import init_logger  # noqa: PLC0415 - the engine is optional
    except ImportError:
        return logging.getLogger("rowbound")
    logger: logging.Logger = init_logger("vllm.rowbound")
    return logger


class Watch:
    """The mode, the counters and the log of one runner's guard."""

    __slots__ = (
        "_clock",
        "_export",
        "_exported",
        "_logged",
        "_logger",
        "_published",
        "_silenced",
        "metrics",
        "mode",
    )

    def __init__(
        self,
        mode: Mode,
        *,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with counters at zero."""
        self.mode = mode
        self.metrics = GuardMetrics()
        self._published = GuardMetrics()
        self._logger = engine_logger() if logger is None else logger
        self._clock = clock
        self._logged: dict[Any, float] = {}
        self._silenced: dict[Any, int] = {}
        self._export: PrometheusExport | None = None
        self._exported = clock()

    @property
    def raises(self) -> bool:
        """Whether a violation stops the engine."""
        return self.mode in {Mode.RAISE, Mode.STRICT}

    def refuse(self, violation: BlockTableViolation) -> None:
        """Count and log a violation; raise it in the modes that raise."""
        self.metrics.refusals[violation.kind.value] += 1
        self.publish(at_once=True)
        if self.raises:
            raise violation
        self.warn((violation.kind, violation.group), "%s The mode is count: the engine goes on.", violation)

    def warn(self, about: Any, message: str, *values: Any) -> None:
        """Log a warning, at most one a minute about the same thing, with the number left out between."""
        now = self._clock()
        last = self._logged.get(about)
        if last is not None and now - last < _SECONDS_BETWEEN_LINES:
            self._silenced[about] = self._silenced.get(about, 0) + 1
            return
        self._logged[about] = now
        silenced = self._silenced.pop(about, 0)
        suffix = f" ({silenced} more like it since the last line)" if silenced else ""
        self._logger.warning(f"rowbound: {message}{suffix}", *values)  # noqa: G004 - the values are not in it

    def info(self, message: str, *values: Any) -> None:
        """Log what is normal."""
        self._logger.info(f"rowbound: {message}", *values)  # noqa: G004 - the values are not in it

    def publish(self, *, at_once: bool = False) -> None:
        """Bring Prometheus up to date, at most once a second unless `at_once`."""
        now = self._clock()
        if not at_once and now - self._exported < _SECONDS_BETWEEN_EXPORTS:
            return
        self._exported = now
        if self._export is None and PrometheusExport.is_wanted():
            self._export = _process_export()
        if self._export is not None:
            self._export.publish(self.metrics, self._published)


_EXPORTS: list[PrometheusExport] = []


def _process_export() -> PrometheusExport | None:
    """Return the process's one export: a name can be registered once."""
    if not _EXPORTS:
        try:
            _EXPORTS.append(PrometheusExport())
        except (ImportError, ValueError):
            return None
    return _EXPORTS[0]
