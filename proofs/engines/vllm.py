"""How the width code of an installed vLLM, from 0.26 on, is run, on plain numbers or on followed ones.

Nothing of it is typed again here. Model Runner V2's `initialize_kv_cache` and V1's
`may_reinitialize_input_batch` are called with a stand-in for the runner, which has the sizes that they read;
the tables' real constructors run up to where they make the first tensor, and its second dimension is the
width. V1's `InputBatch` is not run: which of its arguments it hands to `MultiGroupBlockTable`, and as what,
is read off its source. An earlier table of V1's counts as different from the one that is asked for.

A module of vLLM that lacks one of the functions, or a function with other parameters, is a `LayoutError`.

A vLLM that is newer than those described is run against the scheduler of the newest of them, if its layout is
known: it is then not `is_described`, and may lack V1 as a whole.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from invariants import (
    RELEASES,
    SPEC_KINDS,
    Access,
    AttentionSpec,
    Case,
    Deployment,
    EncoderOnlyAttentionSpec,
    MambaSpec,
    Release,
    Request,
    Runner,
    Spec,
    UniformTypeSpec,
)
from proofs.follow import Opaque, Run
from proofs.verdicts import spec_of_kind

__all__ = ["FIRST", "LAST", "Engine", "Function", "LayoutError", "load"]

FIRST, LAST = (0, 26), (0, 33)
"""The releases whose layout is known and whose scheduler is described."""
_RELEASED = re.compile(r"(\d+)\.(\d+)\.\d+(?:\.post\d+)?(?:\+[a-z0-9.]+)?")
"""The version of a release; a `.dev` or `rc` is on the way to one that nobody can know yet."""

_INTERFACE = "vllm.v1.kv_cache_interface"
_V2_RUNNER, _V2_TABLE = "vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu.block_table"
_V1_RUNNER, _V1_TABLE = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.block_table"
_V1_BATCH = "vllm.v1.worker.gpu_input_batch"
_LAYOUT: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (_INTERFACE, "KVCacheSpec.max_num_blocks_per_req", ("self", "vllm_config", "max_len")),
    (_V2_RUNNER, "GPUModelRunner.initialize_kv_cache", ("self", "kv_cache_config")),
    (_V2_RUNNER, "init_attn_backend", ()),
    (_V2_RUNNER, "BlockTables", ("block_sizes", "max_num_reqs", "max_num_batched_tokens")),
    (_V2_TABLE, "StagedWriteTensor", ("size",)),
)
_LAYOUT_OF_V1: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (_V1_RUNNER, "GPUModelRunner.may_reinitialize_input_batch", ("self", "kv_cache_config")),
    (_V1_RUNNER, "InputBatch", ("max_num_reqs", "max_model_len", "max_num_batched_tokens")),
    (_V1_TABLE, "MultiGroupBlockTable", ("max_num_reqs", "max_num_batched_tokens")),
    (_V1_TABLE, "BlockTable._make_buffer", ("self", "size")),
)
"""Module, function, and the parameters that it starts with."""
_PADDING, _WIDTH = "get_block_table_width", "max_num_blocks_per_req"
_WRAPPER = "UniformTypeKVCacheSpecs"
_ABSTRACT = frozenset({"KVCacheSpec", "AttentionSpec"})
_ONE_ROW = 1
_SHAPE = 2
"""A table is made with rows and columns."""


class LayoutError(Exception):
    """No vLLM is installed, or it is not one whose functions are known; the message is one line."""


class _Captured(BaseException):
    """The table was about to be made, this wide. No `Exception`: the engine must not swallow it."""

    def __init__(self, width: Any) -> None:
        super().__init__()
        self.width = width


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the engine: its name, its file from where the engine lies, and its first line."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Engine:
    """An installed vLLM.

    Attributes:
        version: as it calls itself.
        root: where it lies.
        release: the formulas of its scheduler.
        is_described: whether they are its own; of a newer vLLM they are those of the last one described.
        runners: the model runners that it has.
    """

    version: str
    root: Path
    release: Release
    is_described: bool = True
    runners: tuple[Runner, ...] = tuple(Runner)

    def not_run(self) -> tuple[str, ...]:
        """Return a line for each further place of a release not described that asks a spec for its width."""
        if self.is_described:
            return ()
        run = {_module(name).__file__ for name in (_INTERFACE, _V2_RUNNER)}
        run |= {_module(_V1_RUNNER).__file__} if Runner.V1 in self.runners else set()
        places = [
            f"{path.relative_to(self.root.parent)}:{number}"
            for path in sorted((self.root / "v1").rglob("*.py"))
            if str(path) not in run
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if f".{_WIDTH}(" in line
        ]
        return tuple(f"{place} asks a spec for its width too, and is not run" for place in places)

    def unknown_specs(self) -> tuple[str, ...]:
        """Return the names of its spec classes that no claim is about."""
        known = {_engine_class(spec) for spec in _described_types(self.release)} | _ABSTRACT | {_WRAPPER}
        found = {kind.__name__ for kind in _subclasses(_module(_INTERFACE).KVCacheSpec) if _ships(kind)}
        return tuple(sorted(found - known))

    def missing(self, spec: Spec) -> str:
        """Return the name of a class that a spec type needs and the engine has not; empty if it has all."""
        names = [_WRAPPER] * isinstance(spec, UniformTypeSpec)
        names.append(_engine_class(type(spec.inner if isinstance(spec, UniformTypeSpec) else spec)))
        return next((name for name in names if not hasattr(_module(_INTERFACE), name)), "")

    def require(self, spec: Spec) -> None:
        """See that a spec of the type can be made.

        Raises:
            LayoutError: it cannot, as its class needs what is not known.
        """
        deployment, request = Deployment(max_model_len=1), Request(num_tokens=1)
        _Sizes(Case(deployment, spec, request, Access()), None, 4).spec()

    def pads(self) -> bool:
        """Return whether it has a function that pads widths; 0.26 does it in place."""
        return self._padding() is not None

    def _padding(self) -> Any:
        """Return the function that pads widths: the interface has it from 0.34 on, V1's table before."""
        modules = (_INTERFACE, *(_V1_TABLE,) * (Runner.V1 in self.runners))
        return next(filter(None, (getattr(_module(name), _PADDING, None) for name in modules)), None)

    def functions(self, runner: Runner | None, spec: Spec | None = None) -> tuple[Function, ...]:
        """Return the functions that are run."""
        if runner is Runner.V2:
            entry, table = (
                _module(_V2_RUNNER).GPUModelRunner.initialize_kv_cache,
                _module(_V2_RUNNER).BlockTables,
            )
            return self._named(entry), self._named(table)
        if runner is Runner.V1:
            entry = _module(_V1_RUNNER).GPUModelRunner.may_reinitialize_input_batch
            return self._named(entry), self._named(_module(_V1_TABLE).MultiGroupBlockTable)
        if spec is None:
            return (self._named(self._padding()),)
        name = _WRAPPER if isinstance(spec, UniformTypeSpec) else _engine_class(type(spec))
        return (self._named(getattr(getattr(_module(_INTERFACE), name), _WIDTH)),)

    def _named(self, function: Any) -> Function:
        file = Path(inspect.getsourcefile(function) or "").relative_to(self.root.parent)
        return Function(function.__qualname__, file.as_posix(), inspect.getsourcelines(function)[1])

    def blocks(self, case: Case, length: Any, run: Run | None, page: Any = 4) -> Any:
        """Return what the spec says about how many blocks a request of that length needs."""
        sizes = _Sizes(case, run, page)
        return sizes.spec().max_num_blocks_per_req(sizes.config(), sizes.wrap(length))

    def padded(self, blocks: Any, block_size: Any, run: Run | None) -> Any:
        """Return a width as the engine pads it."""
        wrap = run.wrap if run else _as_it_is
        return self._padding()(wrap(blocks), wrap(block_size))

    def row(self, case: Case, runner: Runner, run: Run | None, page: Any = 4) -> Any:
        """Return the columns of the table that the runner makes; 0 if it makes none for the group."""
        sizes = _Sizes(case, run, page)
        try:
            (_v1_row if runner is Runner.V1 else _v2_row)(sizes)
        except _Captured as captured:
            return captured.width
        return 0


def load() -> Engine:
    """Return the vLLM of this environment.

    Raises:
        LayoutError: there is none, or it is not one whose functions are known.
    """
    if importlib.util.find_spec("vllm") is None:
        raise LayoutError("vllm is not installed in this environment: install it, or leave --installed out")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    engine = _module("vllm")
    if engine.__file__ is None:
        raise LayoutError(
            f"vllm is no package but the folder {next(iter(engine.__path__), '')}: run elsewhere"
        )
    version = str(getattr(engine, "__version__", ""))
    release, is_described = _release_of(version)
    for module, name, parameters in _LAYOUT:
        _require(version, module, name, parameters)
    runners: tuple[Runner, ...] = (Runner.V2,)
    if is_described or importlib.util.find_spec(_V1_RUNNER) is not None:
        for module, name, parameters in _LAYOUT_OF_V1:
            _require(version, module, name, parameters)
        _handed_on({})
        runners = tuple(Runner)
    return Engine(version, Path(engine.__file__).parent, release, is_described, runners)


def _release_of(version: str) -> tuple[Release, bool]:
    """Return whose scheduler a version's rows are held against, and whether that is its own.

    Raises:
        LayoutError: the version is older than those described, or none.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number < FIRST:
        oldest = ".".join(map(str, FIRST))
        raise LayoutError(
            f"vLLM {version or 'without a version'} is installed; only {oldest} or newer, by its version, "
            "can be run; --release checks the formulas of a release that is not"
        )
    major, minor = min(number, LAST)
    release = next(r for r in RELEASES if r.name == f"vllm-{major}.{minor}")
    return release, number <= LAST and _RELEASED.fullmatch(version) is not None


def _module(name: str) -> ModuleType:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it says on the way is no part of our output
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        told = " ".join(str(error).split())
        raise LayoutError(f"{name} cannot be imported: {type(error).__name__}: {told}") from error


def _require(version: str, module: str, name: str, parameters: tuple[str, ...]) -> None:
    """See that a function is there and starts with these parameters.

    Raises:
        LayoutError: it is not, or does not.
    """
    found: Any = _module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise LayoutError(f"vLLM {version}: {module} has no {name}; this layout is not known")
    has = tuple(inspect.signature(found).parameters)
    if has[: len(parameters)] != parameters:
        shown = ", ".join(parameters)
        raise LayoutError(
            f"vLLM {version}: {module}.{name} takes ({', '.join(has)}), not ({shown}, ...); "
            "this layout is not known"
        )


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A case's sizes under the engine's names, plain or followed; `page` is a state's size in bytes."""

    case: Case
    run: Run | None
    page: Any

    def wrap(self, value: Any) -> Any:
        return self.run.wrap(value) if self.run else value

    def stand_in(self, name: str, **known: Any) -> Opaque:
        return Opaque(name, self.run, **known)

    def layer(self) -> Spec:
        spec = self.case.spec
        return spec.inner if isinstance(spec, UniformTypeSpec) else spec

    def mode(self) -> str:
        layer = self.layer()
        return layer.kind.removeprefix("mamba-") if isinstance(layer, MambaSpec) else "none"

    def config(self) -> Opaque:
        """Return a stand-in for the engine's configuration."""
        deployment = self.case.deployment
        return self.stand_in(
            "vllm_config",
            parallel_config=self.stand_in(
                "parallel_config",
                decode_context_parallel_size=self.wrap(deployment.decode_context_parallel_size),
                prefill_context_parallel_size=self.wrap(deployment.prefill_context_parallel_size),
                cp_kv_cache_interleave_size=self.wrap(deployment.cp_kv_cache_interleave_size),
            ),
            model_config=self.stand_in(
                "model_config",
                max_model_len=self.wrap(deployment.max_model_len),
                hf_config=self.stand_in(
                    "hf_config", max_source_positions=self.wrap(deployment.max_source_positions)
                ),
            ),
            scheduler_config=self.stand_in(
                "scheduler_config",
                max_num_encoder_input_tokens=self.wrap(deployment.max_num_encoder_input_tokens),
            ),
            cache_config=self.stand_in(
                "cache_config",
                mamba_cache_mode=self.mode(),
                enable_prefix_caching=self.wrap(deployment.enable_prefix_caching),
            ),
        )

    def spec(self) -> Any:
        """Return the group's spec, as the engine's own class makes it."""
        if not isinstance(self.case.spec, UniformTypeSpec):
            return self._layer_spec()
        specs = {"first layer": self._layer_spec(), "second layer": self._layer_spec()}
        wrapper = getattr(_module(_INTERFACE), _WRAPPER)
        return wrapper(block_size=specs["first layer"].block_size, kv_cache_specs=specs)

    def _layer_spec(self) -> Any:
        layer = self.layer()
        interface = _module(_INTERFACE)
        kind = getattr(interface, _engine_class(type(layer)))
        own = {f.name: getattr(layer, f.name) for f in dataclasses.fields(layer)}  # type: ignore[arg-type]
        values = _placeholders(interface, self.wrap(self.page)) | {
            name: self.wrap(value) for name, value in own.items()
        }
        values |= {"block_size": self.wrap(layer.tokens_per_block), "mamba_cache_mode": self.mode()}
        if "dcp_sharded" in own:
            # A tensor is made of it, which takes no followed value: take a way now.
            values["dcp_sharded"] = bool(values["dcp_sharded"])
        fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
        for name, field in fields.items():
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and name not in values:
                raise LayoutError(
                    f"{kind.__name__} needs {name}, which is not known; this layout is not known"
                )
        return kind(**{name: value for name, value in values.items() if name in fields})

    def group(self) -> Opaque:
        """Return a stand-in for a KV cache configuration with one group."""
        group = self.stand_in("kv_cache_group", kv_cache_spec=self.spec(), layer_names=["layer"])
        return self.stand_in("kv_cache_config", kv_cache_groups=[group])

    def kernel_block_size(self) -> Any:
        layer = self.layer()
        held = layer.kernel_block_size if isinstance(layer, AttentionSpec) else layer.tokens_per_block
        return self.wrap(held)

    def runner(self, **known: Any) -> Opaque:
        """Return a stand-in for a model runner, with the sizes that one has."""
        config = self.config()
        parts = ("parallel_config", "model_config", "scheduler_config", "cache_config")
        encoder = config.scheduler_config.max_num_encoder_input_tokens
        return self.stand_in(
            "self",
            vllm_config=config,
            **{part: getattr(config, part) for part in parts},
            max_model_len=config.model_config.max_model_len,
            max_encoder_len=encoder,
            is_encoder_decoder=encoder > 0,
            dcp_size=config.parallel_config.decode_context_parallel_size,
            dcp_rank=0,
            cp_interleave=config.parallel_config.cp_kv_cache_interleave_size,
            max_num_reqs=_ONE_ROW,
            max_num_tokens=1,
            vocab_size=1,
            device="cpu",
            speculator=None,
            **known,
        )


def _placeholders(interface: ModuleType, page: Any) -> dict[str, Any]:
    """Return values of fields that no row depends on: one head of one element, one state of one number."""
    dtype = interface.torch.float32
    return {
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": dtype,
        "shapes": ((1,),),
        "dtypes": (dtype,),
        "page_size": 1,
        "page_size_padded": page,
        "sliding_window": 1,
    }


def _v2_row(sizes: _Sizes) -> None:
    """Make the table as Model Runner V2 does.

    Raises:
        _Captured: with the columns of the table.
    """
    runner, table = _module(_V2_RUNNER), _module(_V2_TABLE)
    unused = sizes.stand_in("attention backends")
    with (
        _replaced(
            runner,
            init_attn_backend=lambda *_, **__: (unused, unused, [sizes.kernel_block_size()]),
            maybe_create_adaptive_verification_manager=lambda *_, **__: None,
        ),
        _replaced(table, StagedWriteTensor=lambda size, *_, **__: _capture(size)),
    ):
        state = sizes.stand_in("model_state", get_additional_cg_support=lambda: ())
        runner.GPUModelRunner.initialize_kv_cache(sizes.runner(model_state=state), sizes.group())


def _v1_row(sizes: _Sizes) -> None:
    """Make the table as Model Runner V1 does.

    Raises:
        _Captured: with the columns of the table.
    """
    runner, table = _module(_V1_RUNNER), _module(_V1_TABLE)
    reinitialize = runner.GPUModelRunner.may_reinitialize_input_batch
    has_row = not isinstance(sizes.layer(), EncoderOnlyAttentionSpec)
    kernel = {"kernel_block_sizes": [sizes.kernel_block_size()] * has_row}
    has = inspect.signature(reinitialize).parameters
    asked: dict[str, Any] = {}
    earlier = dict.fromkeys(
        ("_init_block_sizes", "_init_kernel_block_sizes", "_init_max_num_blocks", "_init_slot_mapping_modes")
    )
    with _replaced(runner, InputBatch=lambda **named: asked.update(named)):
        reinitialize(
            sizes.runner(**earlier), sizes.group(), **{name: kernel[name] for name in kernel if name in has}
        )
    with _replaced(table.BlockTable, _make_buffer=lambda _self, *size, **__: _capture(size)):
        table.MultiGroupBlockTable(**_handed_on(asked))


def _capture(size: tuple[Any, ...]) -> None:
    if len(size) != _SHAPE:
        raise LayoutError(f"a table of {len(size)} dimensions is made first; this layout is not known")
    raise _Captured(size[1])


def _handed_on(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `InputBatch` hands to its table, of what it is itself given.

    Raises:
        LayoutError: its source has no call that makes the table.
    """
    batch = _module(_V1_BATCH).InputBatch
    source = textwrap.dedent(inspect.getsource(batch.__init__))
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "MultiGroupBlockTable"
        and not node.args
    ]
    if len(calls) != 1:
        raise LayoutError("InputBatch makes its table in no known way; this layout is not known")
    unread = {"pin_memory": False}
    return {
        word.arg: asked.get(word.value.id) if isinstance(word.value, ast.Name) else unread.get(word.arg)
        for word in calls[0].keywords
        if word.arg is not None
    }


@contextlib.contextmanager
def _replaced(owner: Any, **replacements: Callable[..., Any]) -> Iterator[None]:
    """Put other functions in the place of an engine's, of those that it has."""
    before = {name: getattr(owner, name) for name in replacements if hasattr(owner, name)}
    for name in before:
        setattr(owner, name, replacements[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _engine_class(spec: type[Spec]) -> str:
    """Return the engine's name of a spec type; of its Mamba types the mode is a field."""
    return MambaSpec.__name__ if issubclass(spec, MambaSpec) else spec.__name__


def _described_types(release: Release) -> set[type[Spec]]:
    """Return the spec types that a release is described to have, without the wrapper."""
    specs = [spec_of_kind(kind) for kind in SPEC_KINDS if kind not in release.absent]
    return {type(spec) for spec in specs if not isinstance(spec, UniformTypeSpec)}


def _subclasses(owner: type) -> set[type]:
    found: set[type] = set(owner.__subclasses__())
    return found.union(*(_subclasses(kind) for kind in found))


def _ships(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "vllm"
