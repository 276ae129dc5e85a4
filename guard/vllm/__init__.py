"""The guard inside vLLM: a plugin that vLLM loads by itself wherever this package is installed.

`install` is the entry point (group `vllm.general_plugins`). From then on, in every process of the engine,
a model runner that makes its block tables has them guarded, its rows audited against the scheduler's
bound, and each step's requests checked before its rows are touched. `uninstall` takes all of it back.

`wrap` guards tables made by hand, `unwrap` releases them, and `snapshot` returns the counters of this
process; those of a worker in another process come through `llm.collective_rpc("rowbound_snapshot")`.
"""

from __future__ import annotations

from typing import Any

from guard.settings import Mode, chosen_mode

__all__ = ["install", "snapshot", "uninstall", "unwrap", "wrap"]

# ruff: noqa: PLC0415 - every process of an engine imports this, and most need none of it


def install() -> None:
    """Guard the engine of this process; a second call changes nothing."""
    from guard.vllm import _hooks

    _hooks.install()


def uninstall() -> None:
    """Put back every class, runner and table that was changed."""
    from guard.vllm import _hooks

    _hooks.uninstall()


def snapshot() -> list[dict[str, Any]]:
    """Return the counters and high-water marks of each guarded model runner of this process."""
    from guard.vllm import _runner

    return _runner.snapshot()


def wrap(tables: Any, mode: Mode | str | None = None) -> Any:
    """Add the refusal to one instance of vLLM's block tables, V1's or V2's, and return it.

    In mode `off` the instance is left as it is. In mode `count` a write that does not fit is counted and
    logged, and what the engine does then is its own: dropping the write would leave the row short.

    Raises:
        GuardUsageError: the instance is laid out as no known vLLM's tables are.
    """
    from guard.vllm._tables import guard_tables, release_tables
    from guard.vllm._watch import Watch

    chosen = chosen_mode(mode)
    if chosen is Mode.OFF:
        release_tables(tables)
        return tables
    watch = Watch(chosen)
    watch.metrics.resize(guard_tables(tables, watch).widths)
    return tables


def unwrap(tables: Any) -> None:
    """Take the refusal away again."""
    from guard.vllm._tables import release_tables

    release_tables(tables)
