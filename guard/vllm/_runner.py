"""The guard of one model runner: its mode, its tables, the audit of its rows, and the check of each step.

Everything is set on the runner's own instances, never on their classes, so that a runner whose mode is
`off` is the engine's own in every part.
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from guard import _refusals as refuse
from guard.errors import GuardUsageError, UnsafeDeployment
from guard.settings import Mode, chosen_mode
from guard.vllm import _config, _tables
from guard.vllm._watch import Watch
from invariants import TODAY, Runner

__all__ = ["attach", "detach", "snapshot"]


@dataclass(slots=True)
class _Attached:
    """What the guard has set on one runner."""

    watch: Watch
    which: Runner
    tables: Any
    view: _tables.TableView
    audit: _config.EngineAudit | None


_WARM_UPS = frozenset({"vllm.v1.worker.gpu.warmup", "vllm.model_executor.warmup.kernel_warmup"})

_ATTACHED: weakref.WeakKeyDictionary[Any, _Attached] = weakref.WeakKeyDictionary()


def attach(runner: Any, kv_cache_config: Any, which: Runner, version: str) -> None:
    """Guard a runner that has just made its tables; once more when it makes them anew.

    Raises:
        UnsafeDeployment: a row is too narrow, and the mode raises.
        GuardUsageError: a setting is wrong; in mode `strict` also a layout that is not known.
    """
    mode = chosen_mode(configuration=_config.settings_of(runner.vllm_config))
    detach(runner, forget=mode is Mode.OFF)
    if mode is Mode.OFF:
        return
    known = _ATTACHED.get(runner)
    watch = Watch(mode) if known is None else known.watch
    watch.mode = mode
    try:
        attached = _attach(runner, which, watch)
        _ATTACHED[runner] = attached
        attached.audit = _audit(runner, kv_cache_config, attached, version)
    except UnsafeDeployment:
        raise
    except Exception as error:
        # An engine that is not laid out as expected must go on as if the guard were not there.
        detach(runner)
        unknown = f"vLLM {version} is not laid out as rowbound expects ({type(error).__name__}: {error})"
        if mode is Mode.STRICT:
            message = f"{unknown}. Mode strict does not start an engine that is not guarded."
            raise GuardUsageError(message) from error
        watch.warn("layout", "%s. Model Runner %s runs without the guard.", unknown, which.value)


def detach(runner: Any, *, forget: bool = True) -> None:
    """Take away everything that `attach` set on a runner."""
    attached = _ATTACHED.pop(runner, None) if forget else _ATTACHED.get(runner)
    if attached is None:
        return
    _tables.release_tables(attached.tables)
    for name in ("_update_states", "add_requests", "update_requests"):
        if getattr(vars(runner).get(name), "rowbound", False):
            delattr(runner, name)


def detach_all() -> None:
    """Do so for every runner of the process."""
    for runner in list(_ATTACHED):
        detach(runner)


def snapshot() -> list[dict[str, Any]]:
    """Return the counters of every guarded runner of this process."""
    result = []
    for attached in _ATTACHED.values():
        attached.watch.publish(at_once=True)
        rows = () if attached.audit is None else attached.audit.report.groups
        result.append(
            {
                "runner": attached.which.value,
                "mode": attached.watch.mode.value,
                "rows": [str(row) for row in rows],
                **attached.watch.metrics.snapshot(),
            }
        )
    return result


def _attach(runner: Any, which: Runner, watch: Watch) -> _Attached:
    if which is Runner.V2:
        tables = runner.block_tables
        names = runner.req_states.index_to_req_id
        view = _tables.guard_tables(tables, watch, names.get)
        step = _StepV2(runner, watch, view)
        guarded = {"add_requests": step.add_requests, "update_requests": step.update_requests}
    else:
        batch = runner.input_batch
        tables = batch.block_table

        def name_of(row: int) -> object:
            return batch.req_ids[row] if row < len(batch.req_ids) else None

        view = _tables.guard_tables(tables, watch, name_of)
        guarded = {"_update_states": _StepV1(runner, watch, view).update_states}
    watch.metrics.resize(view.widths)
    for name, function in guarded.items():
        setattr(runner, name, _marked(function))
    return _Attached(watch, which, tables, view, None)


def _marked(function: Any) -> Any:
    def step(scheduler_output: Any) -> Any:
        return function(scheduler_output)

    step.rowbound = True  # type: ignore[attr-defined]
    return step


def _audit(runner: Any, kv_cache_config: Any, attached: _Attached, version: str) -> _config.EngineAudit:
    watch, view = attached.watch, attached.view
    result = _config.audit_engine(
        runner.vllm_config,
        kv_cache_config.kv_cache_groups,
        view.widths,
        view.factors,
        runner=attached.which,
        max_model_len=runner.max_model_len,
        version=version,
    )
    for number, reason in result.unaudited.items():
        watch.warn(("unaudited", number), "not audited: %s", reason)
    if result.unaudited and watch.mode is Mode.STRICT:
        reasons = "; ".join(result.unaudited.values())
        raise UnsafeDeployment(f"Mode strict starts no engine with rows that were not audited: {reasons}")
    if result.report.ok:
        formulas = "today, as this release is not known" if result.release is TODAY else result.release.name
        rows = "; ".join(str(group) for group in result.report.groups)
        watch.info(
            "Model Runner %s guarded, mode %s, formulas of %s. %s",
            attached.which.value,
            watch.mode.value,
            formulas,
            rows,
        )
    elif watch.raises:
        result.report.require_ok()
    else:
        watch.warn("audit", "%s", result.report)
    return result


@dataclass(slots=True)
class _Step(ABC):
    """The checks of one scheduler step, made before the runner's own code sees it."""

    runner: Any
    watch: Watch
    view: _tables.TableView

    def check_tokens(self, name: str, known: int, scheduled: int) -> None:
        """Refuse a request that has, or computes, more tokens than max_model_len or the token row allow."""
        row = self.token_row()
        limit = self.runner.max_model_len
        too_long = max(known, scheduled) > min(limit, row)
        # The engine's own warm-up may send one prompt of max_num_batched_tokens, before anything is served.
        if too_long and not _is_warming_up():
            self.watch.refuse(refuse.token_count(name, known, scheduled, limit, row))

    def check_blocks(self, name: str, starts: Iterable[int], block_ids: Iterable[Any]) -> None:
        """Refuse a block list that will not fit, in the modes that raise.

        The tables refuse it as well, but only after the runner has begun to take the request in.
        """
        if not self.watch.raises:
            return
        rows = zip(starts, block_ids, self.view.widths, self.view.factors, strict=False)
        for group, (start, ids, width, factor) in enumerate(rows):
            if start + len(ids) * factor > width:
                self.watch.refuse(refuse.row_capacity(name, group, start, len(ids) * factor, width))

    def check_new(self, scheduler_output: Any) -> None:
        """Check the requests, and session chunks, that enter the worker with this step."""
        scheduled = scheduler_output.num_scheduled_tokens
        empty = [0] * len(self.view.widths)
        for request in scheduler_output.scheduled_new_reqs:
            name = request.req_id
            self.check_tokens(
                name, _num_tokens(request), request.num_computed_tokens + scheduled.get(name, 0)
            )
            self.check_blocks(name, empty, request.block_ids)
        self.watch.metrics.appends += len(scheduler_output.scheduled_new_reqs)

    def check_running(self, scheduler_output: Any) -> None:
        """Check the requests that the worker knows already."""
        scheduled = scheduler_output.num_scheduled_tokens
        requests = scheduler_output.scheduled_cached_reqs
        replaced: Mapping[str, Any] = getattr(scheduler_output, "block_table_updates", None) or {}
        for name, computed, block_ids in zip(
            requests.req_ids, requests.num_computed_tokens, requests.new_block_ids, strict=False
        ):
            self.check_tokens(name, 0, computed + scheduled.get(name, 0))
            if block_ids is None or name in replaced:
                continue
            self.watch.metrics.appends += 1
            starts = self.starts(name, resumed=name in requests.resumed_req_ids)
            if starts is not None:
                self.check_blocks(name, starts, block_ids)

    def close(self) -> None:
        """Take note of the longest rows and export the numbers."""
        metrics = self.watch.metrics
        metrics.steps += 1
        metrics.most_used = [*map(max, metrics.most_used, self.view.most_used())]
        self.watch.publish()

    @abstractmethod
    def token_row(self) -> int:
        """Return how many tokens the worker's row for a request's tokens holds."""

    @abstractmethod
    def starts(self, name: str, *, resumed: bool) -> list[int] | None:
        """Return the entries of the request's rows that are in use; None if they are not known."""


@dataclass(slots=True)
class _StepV1(_Step):
    """Model Runner V1 takes a whole step in one method."""

    original: Any = None

    def __post_init__(self) -> None:
        self.original = self.runner._update_states  # noqa: SLF001 - the engine has no public name for it

    def update_states(self, scheduler_output: Any) -> Any:
        self.check_new(scheduler_output)
        self.check_running(scheduler_output)
        result = self.original(scheduler_output)
        self.close()
        return result

    def token_row(self) -> int:
        return int(self.runner.input_batch.token_ids_cpu.shape[1])

    def starts(self, name: str, *, resumed: bool) -> list[int] | None:
        if resumed:
            return [0] * len(self.view.widths)
        row = self.runner.input_batch.req_id_to_index.get(name)
        if row is not None:
            return [int(counts[row]) for counts in self.view.counts]
        lists = self.runner.requests[name].block_ids
        return [len(ids) * factor for ids, factor in zip(lists, self.view.factors, strict=False)]


@dataclass(slots=True)
class _StepV2(_Step):
    """Model Runner V2 takes new requests and known ones in two methods."""

    original_add: Any = None
    original_update: Any = None

    def __post_init__(self) -> None:
        self.original_add = self.runner.add_requests
        self.original_update = self.runner.update_requests

    def add_requests(self, scheduler_output: Any) -> Any:
        self.check_new(scheduler_output)
        return self.original_add(scheduler_output)

    def update_requests(self, scheduler_output: Any) -> Any:
        self.check_running(scheduler_output)
        result = self.original_update(scheduler_output)
        self.close()
        return result

    def token_row(self) -> int:
        return int(self.runner.req_states.all_token_ids.gpu.shape[1])

    def starts(self, name: str, *, resumed: bool) -> list[int] | None:
        row = None if resumed else self.runner.req_states.req_id_to_index.get(name)
        return None if row is None else [int(counts[row]) for counts in self.view.counts]


def _is_warming_up() -> bool:
    """Return whether the engine's warm-up made this step; a request's name could be anybody's."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in _WARM_UPS:
            return True
        frame = frame.f_back
    return False


def _num_tokens(request: Any) -> int:
    """Return how many tokens a new request brings: those to prefill where they are given apart."""
    tokens = getattr(request, "prefill_token_ids", None) or request.prompt_token_ids
    if tokens is not None:
        return len(tokens)
    embeds = request.prompt_embeds
    return 0 if embeds is None else int(embeds.shape[0])
