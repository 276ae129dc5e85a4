"""Every spec type by name, and one case of a claim: deployment, spec, request and access together.

A case is built from a flat mapping of parameter names to values, so that a proof can fill it with
symbols, a person with `--at`, Hypothesis with random numbers, and a replay with a solver's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from invariants import specs
from invariants.deployment import Access, Deployment, Request
from invariants.parameters import Parameter, parameters_of

__all__ = [
    "REPRESENTATIVE_TYPES",
    "SPEC_KINDS",
    "Case",
    "build_case",
    "describe_kind",
    "kind_of",
    "parameters_for",
]

Part = TypeVar("Part")

_LAYER_TYPES: tuple[type[specs.Spec], ...] = (
    specs.FullAttentionSpec,
    specs.MLAAttentionSpec,
    specs.HiddenStateCacheSpec,
    specs.SlidingWindowSpec,
    specs.SlidingWindowMLASpec,
    specs.ChunkedLocalAttentionSpec,
    specs.RSWASpec,
    specs.CrossAttentionSpec,
    specs.EncoderOnlyAttentionSpec,
    specs.SinkFullAttentionSpec,
    specs.MambaNoneSpec,
    specs.MambaAlignSpec,
    specs.MambaAllSpec,
    specs.CircularBufferSpec,
    specs.KpoolTailSpec,
    specs.HiSparseHotSpec,
    specs.HiSparseResidentSpec,
)
_WRAPPED_CLAIMS: tuple[type[specs.Spec], ...] = (
    specs.FullAttentionSpec,
    specs.MambaNoneSpec,
    specs.MambaAlignSpec,
    specs.MambaAllSpec,
)

REPRESENTATIVE_TYPES: tuple[type[specs.Spec], ...] = (
    specs.FullAttentionSpec,
    specs.SlidingWindowSpec,
    specs.ChunkedLocalAttentionSpec,
    specs.CrossAttentionSpec,
    specs.MambaNoneSpec,
    specs.MambaAlignSpec,
    specs.MambaAllSpec,
    specs.CircularBufferSpec,
    specs.KpoolTailSpec,
    specs.HiSparseHotSpec,
    specs.HiSparseResidentSpec,
)
"""One type of every set that shares its formulas; the others, encoder-only aside, have no own method."""


def _wrapped_kind(layer: type[specs.Spec] | specs.Spec) -> str:
    return f"uniform-{layer.kind}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of spec is built: its layer type and whether a uniform wrapper is around it."""

    layer: type[specs.Spec]
    wrapped: bool

    def build(self, values: Mapping[str, Any]) -> specs.Spec:
        layer = _fill(self.layer, values)
        return specs.UniformTypeSpec(inner=layer) if self.wrapped else layer


_KINDS: dict[str, _Kind] = {layer.kind: _Kind(layer, wrapped=False) for layer in _LAYER_TYPES} | {
    _wrapped_kind(layer): _Kind(layer, wrapped=True) for layer in _LAYER_TYPES
}

SPEC_KINDS: tuple[str, ...] = tuple(layer.kind for layer in _LAYER_TYPES) + tuple(
    _wrapped_kind(layer) for layer in _WRAPPED_CLAIMS
)
"""The names of the spec types that claims are made of, wrappers included.

A wrapper around any layer type can be built and checked for legality. Claims are made of those around full
attention, which stand for all attention layers (the wrapper asks them nothing that differs), and Mamba.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that one claim speaks about."""

    deployment: Deployment
    spec: specs.Spec
    request: Request
    access: Access
    parts: tuple[Any, ...] = ()

    def part(self, wanted: type[Part]) -> Part:
        """Return the part of that type that the claim adds to the case."""
        found: Part = next(part for part in self.parts if type(part) is wanted)
        return found

    def parameters(self) -> tuple[Parameter, ...]:
        """Return every parameter that the case has."""
        return parameters_for(kind_of(self.spec), tuple(type(part) for part in self.parts))

    def values(self) -> dict[str, Any]:
        """Return the flat mapping from which `build_case` builds this case again."""
        layer = self.spec.inner if isinstance(self.spec, specs.UniformTypeSpec) else self.spec
        return {
            parameter.name: getattr(part, parameter.name)
            for part in (self.deployment, layer, self.request, self.access, *self.parts)
            for parameter in parameters_of(type(part))
        }


def kind_of(spec: specs.Spec) -> str:
    """Return the name of a spec's type; a wrapper's name says what it wraps."""
    if isinstance(spec, specs.UniformTypeSpec):
        return _wrapped_kind(spec.inner)
    return spec.kind


def describe_kind(kind: str) -> str:
    """Return one sentence about a kind of spec."""
    form = _KINDS[kind]
    sentence = (form.layer.__doc__ or "").split("\n")[0].split(" Source:")[0]
    return f"The uniform wrapper around {form.layer.kind} layers." if form.wrapped else sentence


def parameters_for(kind: str, parts: tuple[type, ...] = ()) -> tuple[Parameter, ...]:
    """Return every parameter that a case of this kind has, deployment first; `parts` are a claim's own."""
    every: tuple[type, ...] = (Deployment, _KINDS[kind].layer, Request, Access, *parts)
    return tuple(parameter for part in every for parameter in parameters_of(part))


def build_case(kind: str, values: Mapping[str, Any], parts: tuple[type, ...] = ()) -> Case:
    """Build a case of a kind from parameter values; a parameter left out takes its default.

    `parts` are the dataclasses that a claim adds to what every case has.

    Raises:
        KeyError: the kind is unknown.
        TypeError: a parameter without a default is missing.
    """
    return Case(
        deployment=_fill(Deployment, values),
        spec=_KINDS[kind].build(values),
        request=_fill(Request, values),
        access=_fill(Access, values),
        parts=tuple(_fill(part, values) for part in parts),
    )


def _fill(part: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a dataclass with those of the values that it declares."""
    names = [parameter.name for parameter in parameters_of(part)] if isinstance(part, type) else []
    return part(**{name: values[name] for name in names if name in values})
