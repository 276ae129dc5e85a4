"""The layout of vLLM that the guard expects: which classes, which methods, with which parameters.

The same expectations are held against the running engine's classes before one of them is changed, and
against its files by `python -m guard.doctor`, which imports nothing of the engine.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from invariants import Runner

__all__ = ["TARGETS", "Method", "Target", "problems_in_files", "problems_in_process"]


@dataclass(frozen=True, slots=True)
class Method:
    """One method and the names of its first parameters, `self` left out."""

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        """Return the method as a traceback would name it, with its parameters."""
        return f"{self.module}.{self.owner}.{self.name}({', '.join(self.parameters)})"


@dataclass(frozen=True, slots=True)
class Target:
    """What is changed for one purpose, and what else has to be there for it."""

    purpose: str
    changed: Method
    needed: tuple[Method, ...] = ()

    @property
    def methods(self) -> tuple[Method, ...]:
        """Every method that has to be as expected."""
        return (self.changed, *self.needed)


_V1, _V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
_V1_TABLES, _V2_TABLES = "vllm.v1.worker.block_table", "vllm.v1.worker.gpu.block_table"

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        Runner.V1.value: Target(
            "Model Runner V1",
            Method(_V1, "GPUModelRunner", "may_reinitialize_input_batch", ("kv_cache_config",)),
            (
                Method(_V1, "GPUModelRunner", "_update_states", ("scheduler_output",)),
                Method(_V1_TABLES, "MultiGroupBlockTable", "append_row", ("block_ids", "row_idx")),
                Method(_V1_TABLES, "MultiGroupBlockTable", "add_row", ("block_ids", "row_idx")),
            ),
        ),
        Runner.V2.value: Target(
            "Model Runner V2",
            Method(_V2, "GPUModelRunner", "initialize_kv_cache", ("kv_cache_config",)),
            (
                Method(_V2, "GPUModelRunner", "add_requests", ("scheduler_output",)),
                Method(_V2, "GPUModelRunner", "update_requests", ("scheduler_output",)),
                Method(
                    _V2_TABLES,
                    "BlockTables",
                    "append_block_ids",
                    ("req_index", "new_block_ids", "overwrite"),
                ),
            ),
        ),
        "sessions": Target(
            "length of a session's chunks",
            Method("vllm.v1.engine.async_llm", "AsyncLLM", "_add_request", ("request",)),
        ),
        "worker": Target(
            "settings and counters of a worker",
            Method("vllm.v1.worker.worker_base", "WorkerBase", "__init__", ("vllm_config",)),
        ),
    }
)


def problems_in_process(target: Target) -> list[str]:
    """Return what of a target is not as expected in the imported engine; its modules are imported."""
    return _problems(target, _parameters_in_process)


def problems_in_files(target: Target, package: Path) -> list[str]:
    """Return what of a target is not as expected in the engine's files, without importing any."""
    return _problems(target, lambda method: _parameters_in_file(method, package))


def _problems(target: Target, parameters_of: Callable[[Method], tuple[str, ...]]) -> list[str]:
    problems = []
    for method in target.methods:
        try:
            found = parameters_of(method)
        except (ImportError, AttributeError, OSError, SyntaxError, TypeError, ValueError) as error:
            problems.append(f"{method} is missing ({type(error).__name__}: {error})")
            continue
        if found[: len(method.parameters)] != method.parameters:
            problems.append(f"{method} takes ({', '.join(found)})")
    return problems


def _parameters_in_process(method: Method) -> tuple[str, ...]:
    owner = getattr(importlib.import_module(method.module), method.owner)
    # Not inherited: what is changed is put back in the class's own place.
    function = vars(owner).get(method.name)
    if not inspect.isfunction(function):
        message = f"{method.owner} defines no function {method.name}"
        raise AttributeError(message)
    return tuple(inspect.signature(function).parameters)[1:]


def _parameters_in_file(method: Method, package: Path) -> tuple[str, ...]:
    path = package.joinpath(*method.module.split(".")[1:]).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == method.owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == method.name:
                    arguments = [*item.args.posonlyargs, *item.args.args]
                    return tuple(argument.arg for argument in arguments)[1:]
    message = f"{method.owner} defines no function {method.name}"
    raise AttributeError(message)
