"""Mutants: edits of one formula each, applied to the running functions and taken back.

A mutant is a place in the source of `invariants`, a text that stands there once, and what is put in its
stead. The edited module is compiled, and each function whose code came out differently is given the new code
where it lives, so that whoever holds the function, a table of steps or a claim's closure, runs the mutant.
"""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from invariants import TODAY, Runner, claim
from proofs.verdicts import Obligation

__all__ = ["Mutant", "MutantDoesNotApply"]


class MutantDoesNotApply(Exception):
    """The source is no longer what the mutant edits."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit of one formula.

    Attributes:
        place: the function, as `module.name` or `module.class.name`; a module alone for what has no name.
        what: what the edit does to it, in a few words.
        old: the text that it replaces, which stands there once and within a line.
        new: the text in its stead.
        asks: the claims that must refute it, each as "kind runner label"; the cheapest comes first.
    """

    place: str
    what: str
    old: str
    new: str
    asks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The mutant's name, which no other has."""
        return f"{self.place}: {self.what}"

    def obligations(self) -> tuple[Obligation, ...]:
        """Return what must refute it, the cheapest first."""
        return tuple(map(_obligation, self.asks))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run the formulas with the edit, and without it afterwards.

        Raises:
            MutantDoesNotApply: the text is not there, not once, or in no function.
        """
        module, codes = self._codes()
        living = [
            (function, new)
            for function in gc.get_objects()
            if type(function) is FunctionType and function.__module__ == module.__name__
            for old, new in codes
            if function.__code__ == old
        ]
        if not living:
            raise MutantDoesNotApply(f"{self.name}: the edit changes no function")
        with _swapped(living):
            yield

    def _codes(self) -> tuple[ModuleType, list[tuple[CodeType, CodeType]]]:
        """Return the module, and each code object in it that the edit changes with what becomes of it."""
        module, first, lines = _lines(self.place)
        text = "".join(lines)
        if (count := text.count(self.old)) != 1:
            raise MutantDoesNotApply(f"{self.name}: {self.old!r} stands there {count} times, not once")
        if "\n" in self.old + self.new:
            raise MutantDoesNotApply(f"{self.name}: the edit spans lines")
        whole, path = inspect.getsource(module), str(module.__file__)
        every = whole.splitlines(keepends=True)
        edited = text.replace(self.old, self.new).splitlines(keepends=True)
        after = "".join([*every[:first], *edited, *every[first + len(lines) :]])
        pairs = zip(_functions(_compiled(whole, path)), _functions(_compiled(after, path)), strict=True)
        return module, [(old, new) for old, new in pairs if old != new]


def _obligation(ask: str) -> Obligation:
    kind, runner, label = ask.split()
    return Obligation(kind, claim(label), Runner(runner), TODAY)


def _lines(place: str) -> tuple[ModuleType, int, list[str]]:
    """Return a place's module, the number of lines before it, and its lines."""
    name, *rest = place.split(".")
    module = importlib.import_module(f"invariants.{name}")
    found: Any = module
    for part in rest:
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    lines, first = inspect.getsourcelines(found)
    return module, max(first - 1, 0), lines


@cache
def _compiled(source: str, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside another, in the order of the source."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


@contextmanager
def _swapped(living: Sequence[tuple[FunctionType, CodeType]]) -> Iterator[None]:
    """Give each function the code beside it, and its own again afterwards."""
    before = [(function, function.__code__) for function, _ in living]
    try:
        for function, code in living:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code
