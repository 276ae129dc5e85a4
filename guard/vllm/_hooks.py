"""Changes to the engine's classes: made after an import, each probed first, each taken back exactly.

Four methods are changed: the two that make a runner's tables, the one that takes a session's chunk, and a
worker's constructor. A module that is not imported yet is changed right after its import, so that installing
the guard imports nothing of the engine and costs a process that runs no worker nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from guard.errors import GuardUsageError
from guard.settings import Mode, chosen_mode
from guard.vllm import _config, _layout, _runner
from guard.vllm._sessions import checking_chunks
from guard.vllm._watch import Watch
from invariants import Runner

__all__ = ["install", "uninstall"]

_CHANGED: list[tuple[type, str, Any]] = []
"""Each class, the name, and what stood there."""
_ABSENT = object()


def install() -> None:
    """Guard every engine of this process, now or as soon as its modules are imported. Twice is once."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    wanted = {target.changed.module: key for key, target in _layout.TARGETS.items()}
    sys.meta_path.insert(0, _Finder(wanted))
    for module, key in wanted.items():
        if module in sys.modules:
            _change(key, sys.modules[module])


def uninstall() -> None:
    """Put everything back: classes, runners, tables, the import system."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    _runner.detach_all()
    for owner, name, original in reversed(_CHANGED):
        if original is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _CHANGED.clear()


class _Finder(MetaPathFinder):
    """Finds nothing itself: it has the other finders find a module and changes it after its import."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = wanted

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        key = self._wanted.get(fullname)
        if key is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, key)
                return spec
        return None


class _Loader(Loader):
    """The module's own loader, and the change after it."""

    def __init__(self, loader: Loader, key: str) -> None:
        self._loader = loader
        self._key = key

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _change(self._key, module)


def _change(key: str, module: ModuleType) -> None:
    """Change one target's method, if everything that it needs is as expected."""
    target = _layout.TARGETS[key]
    problems = _layout.problems_in_process(target)
    if problems:
        _unknown_layout(target, problems)
        return
    owner = getattr(module, target.changed.owner)
    if key == "worker":
        _set(owner, "__init__", _worker_constructor(vars(owner)["__init__"]))
        _set(owner, "rowbound_snapshot", lambda _worker: _runner.snapshot())
    elif key == "sessions":
        _set(owner, target.changed.name, checking_chunks(vars(owner)[target.changed.name]))
    else:
        _set(owner, target.changed.name, _table_maker(vars(owner)[target.changed.name], Runner(key)))


def _set(owner: type, name: str, value: Any) -> None:
    _CHANGED.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _table_maker(original: Callable[..., Any], which: Runner) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_tables(self: Any, kv_cache_config: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, kv_cache_config, *arguments, **named)
        _runner.attach(self, kv_cache_config, which, engine_version())
        return result

    return make_tables


def _worker_constructor(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def construct(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        original(self, vllm_config, *arguments, **named)
        require_known_layout(vllm_config)

    return construct


def require_known_layout(vllm_config: Any) -> None:
    """Refuse to start a worker whose runner cannot be guarded, if the mode is `strict`.

    Raises:
        GuardUsageError: the layout is not known, or a setting is wrong.
    """
    if chosen_mode(configuration=_config.settings_of(vllm_config)) is not Mode.STRICT:
        return
    key = Runner.V2 if vllm_config.use_v2_model_runner else Runner.V1
    problems = _layout.problems_in_process(_layout.TARGETS[key.value])
    if problems:
        message = (
            f"vLLM {engine_version()} is not laid out as rowbound expects: {'; '.join(problems)}. "
            f"Mode strict does not start an engine that is not guarded."
        )
        raise GuardUsageError(message)


def engine_version() -> str:
    """Return the version of the imported engine."""
    return str(getattr(sys.modules.get("vllm"), "__version__", "of unknown version"))


def _unknown_layout(target: _layout.Target, problems: Sequence[str]) -> None:
    Watch(Mode.COUNT).warn(
        target.purpose,
        "vLLM %s is not laid out as rowbound expects: %s. %s stays as it is, without the guard.",
        engine_version(),
        "; ".join(problems),
        target.purpose[:1].upper() + target.purpose[1:],
    )
