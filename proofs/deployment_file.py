"""One deployment and its cache groups, read from a TOML or JSON file.

Keys are the engine's own option names: the fields of `invariants.Deployment` at the top, and under each of
`groups` a `type` and the fields of that spec. Names, ranges and defaults are those that the dataclasses
declare with `size` and `switch`; nothing is listed here a second time. A mistake is one line with the dotted
path of the key at fault.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from invariants import (
    RELEASES,
    SPEC_KINDS,
    TODAY,
    Deployment,
    IllegalDeployment,
    MambaNoneSpec,
    MambaSpec,
    Release,
    Runner,
    Spec,
    UniformTypeSpec,
    kind_of,
    max_num_tokens,
    require_legal,
)
from invariants.parameters import parameters_of, size
from proofs.console import closest
from proofs.verdicts import spec_of_kind

__all__ = [
    "MOST_BYTES",
    "DeploymentFile",
    "DeploymentFileError",
    "Engine",
    "Group",
    "Measured",
    "parse_deployment",
    "read_deployment",
    "shown_path",
]

MOST_BYTES = 2**20
"""A larger file is refused: it is no deployment."""
_MOST = 2**63 - 1
"""The largest number, as TOML's own."""
_LONGEST_ECHO = 60
_ALIKE = 0.85
"""How alike an unknown key must be for a slip of the pen: the engine has many options, not all read here."""
_DEEPEST = 8
_TOO_DEEP = "is nested too deep for a deployment"
_KEY_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}\.[ \t]*){{{_DEEPEST}}}")
"""A dotted key of that many parts: what reads it takes time that grows with the square of their number."""
_WRAPPER = "UniformTypeKVCacheSpecs"
_MODED = MambaSpec.__name__
"""vLLM's names of the two classes that this project splits by what they hold."""

T = TypeVar("T")


class DeploymentFileError(Exception):
    """A mistake in a file: the dotted path of the key at fault, and what is wrong there."""

    def __init__(self, key: str, message: str) -> None:
        """Keep the key beside the message; it is empty for a mistake that no key stands for."""
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What a file may say of the running engine as a whole."""

    max_num_seqs: int | None = size("rows of each block table", minimum=1, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a file may say of a group as the running engine has it."""

    row_width: int | None = size("entries per row, in place of the release's formula", default=None)
    page_size_bytes: int | None = size(
        "bytes of one block in one layer; in a uniform wrapper, in all of its layers", minimum=1, default=None
    )
    layers: int = size("layers in the group", minimum=1, default=1)


@dataclass(frozen=True, slots=True)
class Group:
    """One cache group."""

    spec: Spec
    measured: Measured


@dataclass(frozen=True, slots=True)
class DeploymentFile:
    """What a file says, checked: every group is legal in the deployment."""

    deployment: Deployment
    release: Release
    runner: Runner
    engine: Engine
    groups: tuple[Group, ...]


def read_deployment(
    path: Path, *, release: Release | None = None, runner: Runner | None = None
) -> DeploymentFile:
    """Read a file. A release or runner that is given stands in place of the file's.

    Raises:
        DeploymentFileError: the file cannot be read, is not TOML or JSON, or has a mistake.
    """
    return parse_deployment(_content(path), release=release, runner=runner)


def parse_deployment(
    content: object, *, release: Release | None = None, runner: Runner | None = None
) -> DeploymentFile:
    """Check what a file holds and build the deployment.

    Raises:
        DeploymentFileError: it has a mistake.
    """
    table = _table("", content)
    table.refuse_unknown([*_names(Deployment), *_names(Engine), "release", "runner", "groups"])
    named = table.choice("release", {known.name: known for known in RELEASES}, TODAY)
    chosen = table.choice("runner", {known.value: known for known in Runner}, Runner.V2)
    deployment, engine = table.fill(Deployment), table.fill(Engine)
    read = DeploymentFile(
        deployment, release or named, runner or chosen, engine, tuple(_group(t) for t in _groups(table))
    )
    _require_legal(read)
    return read


def shown_path(path: Path) -> str:
    """Return a file's name as it is printed: on one line, whatever its bytes are."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(text)


def _groups(table: _Table) -> list[_Table]:
    listed = table.content.get("groups")
    if listed is None or listed == []:
        what = "is missing" if listed is None else "is empty"
        raise DeploymentFileError("groups", f"{what}: a deployment has at least one cache group, [[groups]]")
    if not isinstance(listed, list):
        raise DeploymentFileError("groups", f"must be a list of tables, not {_shown(listed)}")
    return [_table(f"groups[{index}]", item) for index, item in enumerate(listed)]


def _group(table: _Table) -> Group:
    measured = _names(Measured)
    if table.content.get("type") == _WRAPPER:
        table.refuse_unknown(["type", "inner", *measured])
        inner = _table(table.path("inner"), table.content.get("inner"))
        spec: Spec = UniformTypeSpec(inner=_layer(inner, _LAYERS, allowed=()))
    else:
        spec = _layer(table, _LAYERS | _WRAPPED, allowed=measured)
        spec = UniformTypeSpec(inner=spec) if table.content["type"] in _WRAPPED else spec
    return Group(spec, table.fill(Measured))


def _layer(table: _Table, types: Mapping[str, type[Spec]], *, allowed: Collection[str]) -> Spec:
    """Build the spec that a table describes, the wrapper around it left out."""
    known = {**types, **{layer.__name__: layer for layer in _LAYERS.values()}}
    if table.content.get("type") != _MODED:
        classes = [_MODED, _WRAPPER] if allowed else [_MODED]
        owner = table.choice("type", known, None, offered=[*types, *classes])
        table.refuse_unknown(["type", *_names(owner), *allowed])
        return table.fill(owner)
    keys = {name for layer in _MODES.values() for name in _names(layer)}
    own = set(_names(MambaNoneSpec)) - set(_names(MambaSpec))
    table.refuse_unknown(["type", "mamba_cache_mode", *sorted(keys - own), *allowed])
    owner = table.choice("mamba_cache_mode", _MODES, None)
    return table.fill(owner, dict.fromkeys(own, "block_size"))


def _require_legal(read: DeploymentFile) -> None:
    longest = max_num_tokens(read.deployment, release=read.release)
    if longest < 1:
        raise DeploymentFileError(
            "max_model_len",
            f"{read.deployment.max_model_len} admits no request: beside the token that a step samples there "
            "is room for none",
        )
    for index, group in enumerate(read.groups):
        key = f"groups[{index}]"
        layer = group.spec.inner if isinstance(group.spec, UniformTypeSpec) else group.spec
        if read.runner not in layer.runners:
            raise DeploymentFileError(key, f"{read.runner.value} has no {kind_of(group.spec)} groups")
        try:
            require_legal(read.deployment, group.spec, release=read.release)
        except IllegalDeployment as illegal:
            raise DeploymentFileError(key, f"breaks {illegal.assumption}: {illegal}") from illegal


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of a file and the dotted path that leads to it."""

    where: str
    content: Mapping[str, Any]

    def path(self, key: str) -> str:
        """Return a key's dotted path."""
        plain = key if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) else _shown(key)
        return f"{self.where}.{plain}" if self.where else plain

    def refuse_unknown(self, allowed: Sequence[str]) -> None:
        """Refuse a key that stands twice or means nothing here."""
        for key in getattr(self.content, "repeated", ()):
            raise DeploymentFileError(self.path(key), "stands twice")
        for key in self.content:
            if key not in allowed:
                short = next((name for name in allowed if f"({key})" in _HELP.get(name, "")), None)
                hint = f"did you mean {short}?" if short else closest(key, allowed, cutoff=_ALIKE)
                unread = f"it is not read, so leave it out; what is read: {', '.join(allowed)}"
                raise DeploymentFileError(self.path(key), f"there is no such key here; {hint or unread}")

    def choice(
        self, key: str, known: Mapping[str, T], default: T | None, *, offered: Sequence[str] = ()
    ) -> T:
        """Return what a name stands for."""
        there_are = f"one of {', '.join(offered or known)}"
        name = self.content.get(key)
        if key not in self.content:
            if default is None:
                raise DeploymentFileError(self.path(key), f"is missing; it is {there_are}")
            return default
        if not isinstance(name, str) or name not in known:
            hint = _closest(name, known, otherwise="") if isinstance(name, str) else ""
            raise DeploymentFileError(
                self.path(key),
                f"cannot be {_shown(name)}; {hint}" if hint else f"must be {there_are}, not {_shown(name)}",
            )
        return known[name]

    def fill(self, owner: type[T], spelled: Mapping[str, str] | None = None) -> T:
        """Build a dataclass from the keys that it declares; `spelled` maps fields to other keys."""
        values: dict[str, Any] = {}
        required = {f.name for f in dataclasses.fields(owner) if f.default is dataclasses.MISSING}  # type: ignore[arg-type]
        for parameter in parameters_of(owner):
            key = (spelled or {}).get(parameter.name, parameter.name)
            if key not in self.content:
                if parameter.name in required:
                    raise DeploymentFileError(self.path(key), f"is missing: {parameter.help}")
                continue
            value = self.content[key]
            plain = isinstance(value, int) and abs(value) <= _MOST
            if problem := parameter.problem(value if plain else _Echo(value)):
                raise DeploymentFileError(self.path(key), problem.removeprefix(f"{parameter.name} "))
            values[parameter.name] = value
        return owner(**values)


class _Echo:
    """A value of any size that shows itself in one short line."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return _shown(self._value)


def _shown(value: object) -> str:
    """Show a value of any kind and size in one short line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST:
        return f"one of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = ascii(value[:_LONGEST_ECHO]) if isinstance(value, str) else reprlib.repr(value)
    text = " ".join(text.encode("ascii", "backslashreplace").decode().split())
    cut = len(text) > _LONGEST_ECHO or (isinstance(value, str) and len(value) > _LONGEST_ECHO)
    return f"{text[: _LONGEST_ECHO - 3]}..." if cut else text


def _closest(name: str, known: Iterable[str], *, otherwise: str = "allowed: {}") -> str:
    names = list(known)
    return closest(name, names) or otherwise.format(", ".join(names))


def _table(where: str, content: object) -> _Table:
    if not isinstance(content, dict):
        what = "is missing; it" if content is None else f"is {_shown(content)}; it"
        raise DeploymentFileError(where or "the file", f"{what} must be a table of names and values")
    return _Table(where, content)


def _names(owner: type) -> list[str]:
    return [parameter.name for parameter in parameters_of(owner)]


_LAYERS: dict[str, type[Spec]] = {
    kind: type(spec_of_kind(kind))
    for kind in SPEC_KINDS
    if not isinstance(spec_of_kind(kind), UniformTypeSpec)
}
"""The layer types, by the names that claims have."""
_WRAPPED: dict[str, type[Spec]] = {
    kind_of(UniformTypeSpec(inner=spec_of_kind(kind))): layer for kind, layer in _LAYERS.items()
}
"""The same in the uniform wrapper."""
_MODES: dict[str, type[Spec]] = {
    kind.partition("-")[2]: layer for kind, layer in _LAYERS.items() if issubclass(layer, MambaSpec)
}
"""What vLLM's one Mamba class is under each of its cache modes."""
_HELP: dict[str, str] = {p.name: p.help for p in parameters_of(Deployment)}


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys stood twice."""

    repeated: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, Any]]) -> _Object:
        """Build it from the pairs as they stand in the file."""
        built = cls(pairs)
        if len(built) < len(pairs):
            counted = Counter(key for key, _ in pairs)
            built.repeated = tuple(key for key in built if counted[key] > 1)
        return built


def _content(path: Path) -> object:
    text = _text(path)
    is_json = path.suffix.lower() == ".json" or (
        path.suffix.lower() != ".toml" and text.lstrip()[:1] in ("{", "[")
    )
    if not is_json and (deep := _DEEP_KEY.search(text)):
        line = text.count("\n", 0, deep.start()) + 1
        raise DeploymentFileError("", f"line {line}: {_TOO_DEEP}: a key has {_DEEPEST} dots or more")
    try:
        return json.loads(text, object_pairs_hook=_Object.of) if is_json else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise DeploymentFileError("", f"line {error.lineno}: bad JSON: {_one_line(error.msg)}") from error
    except tomllib.TOMLDecodeError as error:
        raise DeploymentFileError("", _bad_toml(str(error), text)) from error
    except ValueError as error:  # Python itself refuses to read integers of many thousand digits
        raise DeploymentFileError("", f"bad number: {_one_line(str(error))}") from error
    except RecursionError as error:
        raise DeploymentFileError("", _TOO_DEEP) from error


def _bad_toml(message: str, text: str) -> str:
    """Put the line that tomllib names first, and what stands there last."""
    lines = text.splitlines() or [""]
    place = re.search(r" \(at line (\d+), column \d+\)$| \(at end of document\)$", message)
    number = min(int(place[1]), len(lines)) if place and place[1] else len(lines)
    said = message[: place.start()] if place else message
    return f"line {number}: bad TOML: {_one_line(said)}: {_shown(lines[number - 1].strip())}"


def _one_line(message: str) -> str:
    """Return a parser's message on one line and in ASCII."""
    return " ".join(message.encode("ascii", "backslashreplace").decode().split())


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DeploymentFileError("", f"cannot be read: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise DeploymentFileError("", f"is larger than {MOST_BYTES:,} bytes, so it is no deployment")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DeploymentFileError(
            "", f"line {line}: is not UTF-8 text: byte 0x{content[error.start]:02x}"
        ) from error
