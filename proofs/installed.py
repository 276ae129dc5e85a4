"""The claim that rows are wide enough, about the code of an engine that is installed.

The scheduler's side is the formula of the release in `invariants`; the worker's side is what the engine's own
code does on symbols (`proofs.follow`). Each path through that code is a claim of its own, which takes the
path's condition as given. A spec type is proved if all its paths are.

The same runs show that the width formula of the release, on which every other claim rests, is what the
engine's code does (`row-width`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from invariants import (
    ASSUMPTIONS,
    ROW_FITS,
    SPEC_KINDS,
    Case,
    EncoderOnlyAttentionSpec,
    Given,
    Invariant,
    MambaSpec,
    Parameter,
    Release,
    Runner,
    Side,
    Spec,
    UniformTypeSpec,
    build_case,
    entries,
    row_width,
)
from invariants.arithmetic import all_of, any_of
from invariants.parameters import size
from invariants.releases import blocks
from proofs.chain import Traced
from proofs.decide import decide
from proofs.engines.vllm import Engine, Function
from proofs.follow import Answers, Explored, Followed, LostError, Run, explore, followed
from proofs.problem import assumed, symbolic_case
from proofs.terms import Definitions, Term, Truth
from proofs.verdicts import Counterexample, Obligation, Outcome, Verdict, spec_of_kind

__all__ = ["FORMULA", "PADDING", "SPEC", "Question", "Report", "answer", "claim_of", "questions"]

SPEC = "max_num_blocks_per_req"
"""What the spec says of itself, without padding and without a runner."""
PADDING = "get_block_table_width"
"""Padding alone, whatever the spec."""
FORMULA = "row-width"
"""Whether the formula in `invariants`, on which all other claims rest, is what the engine's code does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """What a recurrent state takes: the engine divides bytes by bytes."""

    page_size_bytes: int = size("bytes of one recurrent state", minimum=4, usual=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Length:
    """The length that a spec is asked about, as a runner would."""

    row_length: int = size("the length in tokens that the row is made for", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unpadded:
    """A width before it is padded."""

    unpadded_width: int = size("blocks per row before padding")


@dataclass(frozen=True, slots=True)
class Question:
    """One claim about the engine: a spec type, and which of its functions makes the width."""

    kind: str
    runner: Runner | None
    label: str


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a question; `paths` were followed, through these functions of the engine.

    `replay` are the two sides of a counterexample, as the engine's code made them of plain ints.
    """

    question: Question
    outcome: Outcome
    paths: int
    functions: tuple[Function, ...]
    obligation: Obligation
    replay: tuple[Side, ...] = ()


def questions(
    engine: Engine, kinds: Iterable[str] = SPEC_KINDS, runners: Iterable[Runner] = tuple(Runner)
) -> Iterator[Question]:
    """Yield what is asked of an engine, spec by spec."""
    wanted, asked = set(kinds), set(runners) & set(engine.runners)
    if engine.pads():
        yield Question("any", None, PADDING)
    for kind in SPEC_KINDS:
        spec = spec_of_kind(kind)
        if kind not in wanted or kind in engine.release.absent:
            continue
        if not engine.missing(spec):
            engine.require(spec)
        yield Question(kind, None, SPEC)
        for runner in spec.runners:
            if runner in asked:
                yield Question(kind, runner, ROW_FITS.name)
                # Encoder-only attention has a row in no claim; how 0.26 pads is too hard to compare.
                if engine.pads() and not isinstance(spec, EncoderOnlyAttentionSpec):
                    yield Question(kind, runner, FORMULA)


def answer(engine: Engine, question: Question, pulse: Callable[[], None] = lambda: None) -> Report:
    """Follow every path of a question and decide each; `pulse` is called before each."""
    started = time.perf_counter()
    subject = _Subject(engine, question)
    if name := "" if question.label == PADDING else engine.missing(subject.spec()):
        outcome = Outcome(Verdict.SKIPPED, f"the engine has no class {name}")
        return Report(question, outcome, 0, (), subject.obligation(()))
    functions = engine.functions(question.runner, None if question.label == PADDING else subject.spec())
    try:
        explored = explore(subject.start)
    except LostError as lost:
        outcome, explored = Outcome(Verdict.UNKNOWN, str(lost)), Explored((), frozenset())
    else:
        outcomes = []
        for path in explored.paths:
            pulse()
            outcomes.append(subject.decide(path))
        outcome = _together(subject.obligation(()), outcomes)
        if outcome.verdict is Verdict.PROVED:
            names = [a.name for a in ASSUMPTIONS] + [_COVERS.name, _NO_STRAY_ENCODER.name]
            used = {*outcome.used, *explored.used}
            outcome = dataclasses.replace(
                outcome,
                used=tuple(name for name in names if name in used),
                unused=tuple(name for name in names if name in outcome.unused and name not in used),
            )
    outcome = _of_its_release(engine, dataclasses.replace(outcome, seconds=time.perf_counter() - started))
    found = outcome.counterexample
    return Report(
        question,
        outcome,
        len(explored.paths),
        functions,
        subject.obligation(()),
        subject.replay(found) if found else (),
    )


def claim_of(engine: Engine, question: Question) -> Obligation:
    """Return the claim that a question asks, whatever the paths."""
    return _Subject(engine, question).obligation(())


def _of_its_release(engine: Engine, outcome: Outcome) -> Outcome:
    """Take a proof that rests on another release's scheduler for none of this engine's."""
    if engine.is_described or outcome.verdict is not Verdict.PROVED:
        return outcome
    detail = (
        f"holds with the scheduler of {engine.release.name}; that of vLLM {engine.version} is not described"
    )
    return Outcome(Verdict.UNKNOWN, detail, seconds=outcome.seconds, rlimit=outcome.rlimit)


@dataclass(slots=True)
class _Subject:
    """The engine's code behind a question, as a claim per path."""

    engine: Engine
    question: Question
    last: tuple[Any, Answers, Any] = field(default=(None, (), None))

    def spec(self) -> Spec:
        return spec_of_kind(self._kind)

    @property
    def _kind(self) -> str:
        return SPEC_KINDS[0] if self.question.label == PADDING else self.question.kind

    def obligation(self, path: Answers) -> Obligation:
        return Obligation(
            self._kind, self._claim(path), self.question.runner or Runner.V2, self.engine.release
        )

    def decide(self, path: Answers) -> Outcome:
        try:
            return decide(self.obligation(path), {})
        except LostError as lost:
            return Outcome(Verdict.UNKNOWN, str(lost))

    def replay(self, found: Counterexample) -> tuple[Side, ...]:
        """Run the engine's code on a counterexample's plain ints, and return both sides of the claim."""
        obligation = self.obligation(())
        claim = obligation.invariant
        case = build_case(obligation.kind, found.values, claim.parts)
        return claim.sides(case, obligation.release, obligation.runner)

    def start(self, begun: Answers) -> tuple[Run, Callable[[], Any]]:
        """Return a run of the engine's code on a case of which nothing is known but what is assumed."""
        definitions, obligation = Definitions(), self.obligation(begun)
        case, _ = symbolic_case(obligation, obligation.release.constants, definitions)
        known = assumed(obligation, case, definitions)
        for given in self._givens():
            known[given.name] = definitions.truth(given.holds(case, obligation.release, obligation.runner))
        run = Run(self.engine.root, definitions, begun, known, is_exploring=True)
        return run, lambda: _number(self._width(case, run), run)

    def _parts(self) -> tuple[type, ...]:
        if self.question.label == PADDING:
            return (_Unpadded,)
        spec = self.spec()
        layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
        return (_Length,) * (self.question.label == SPEC) + (_Page,) * isinstance(layer, MambaSpec)

    def _givens(self) -> tuple[Given, ...]:
        return {SPEC: (_COVERS,), FORMULA: (_NO_STRAY_ENCODER,)}.get(self.question.label, ())

    def _width(self, case: Case, run: Run | None) -> Any:
        """Return the width that the engine's code makes, on numbers that are plain or followed."""
        page = next((part.page_size_bytes for part in case.parts if isinstance(part, _Page)), 4)
        match self.question.label:
            case "get_block_table_width":
                return self.engine.padded(
                    case.part(_Unpadded).unpadded_width, case.spec.tokens_per_block, run
                )
            case "max_num_blocks_per_req":
                return self.engine.blocks(case, case.part(_Length).row_length, run, page)
        return self.engine.row(case, Runner(self.question.runner), run, page)

    def _wanted(self, case: Case) -> int:
        """Return what the row has to hold."""
        if self.question.label == PADDING:
            return case.part(_Unpadded).unpadded_width
        count = blocks if self.question.label == SPEC else entries
        return count(case.deployment, case.spec, case.request, release=self.engine.release)

    def _claim(self, path: Answers) -> Invariant:
        def width(case: Case) -> Any:
            return self._followed(case, path)[0]

        given = Given(
            "path", "the engine's code goes this way", lambda case, _r, _n: self._followed(case, path)[1]
        )
        if self.question.label == FORMULA:
            return self._agreement(width, given)
        who, what = ("padding", "blocks") if self.question.label == PADDING else ("scheduler", "entries")
        return dataclasses.replace(
            ROW_FITS,
            holds=lambda case, _release, _runner: self._wanted(case) <= width(case),
            sides=lambda case, _release, _runner: (
                Side(who, what, self._wanted(case)),
                Side("engine", "row width", width(case)),
            ),
            margin=lambda case, _release, _runner: width(case) - self._wanted(case),
            parts=self._parts(),
            givens=(*self._givens(), given),
            part="" if self.question.label == ROW_FITS.name else self.question.label,
        )

    def _agreement(self, width: Callable[[Case], Any], given: Given) -> Invariant:
        """Return the claim that the formula in `invariants` is what the engine's code does."""

        def formula(case: Case, release: Release, runner: Runner) -> int:
            return row_width(case.deployment, case.spec, runner=runner, release=release)

        return Invariant(
            FORMULA,
            "the formula in `invariants` gives the width that the engine's own code makes",
            lambda case, release, runner: formula(case, release, runner) == width(case),
            lambda spec: spec.runners,
            lambda case, release, runner: (
                Side("invariants", "formula", formula(case, release, runner)),
                Side("engine", "row width", width(case)),
            ),
            lambda _case, values: f"the formula says {values[0]}, and the engine makes {values[1]}",
            parts=self._parts(),
            givens=(*self._givens(), given),
        )

    def _followed(self, case: Case, path: Answers) -> tuple[Any, Any]:
        """Return the width of a case and the condition of the path, from one run of the engine's code."""
        if self.last[0] is not case or self.last[1] != path:
            self.last = (case, path, self._run(case, path))
        found: tuple[Any, Any] = self.last[2]
        return found

    def _run(self, case: Case, path: Answers) -> tuple[Any, Any]:
        values = case.values().values()
        definitions = next((v.definitions for v in values if isinstance(v, Term | Truth)), None)
        if definitions is None and not any(isinstance(v, Traced) for v in values):
            return _number(self._width(case, None), None), True
        run = Run(self.engine.root, definitions, path)
        width = followed(run, lambda: _number(self._width(case, run), run))
        if definitions is None:
            return width, True
        return width, Truth(z3.And(True, *run.conditions), definitions) if run.conditions else True


_NO_STRAY_ENCODER = Given(
    "no-encoder-no-length",
    "a model without an encoder has no encoder length in its configuration",
    lambda case, _release, _runner: any_of(
        case.deployment.max_num_encoder_input_tokens > 0, case.deployment.max_source_positions == 0
    ),
)
_COVERS = Given(
    "length-covers-request",
    "the length that the spec is asked about is that of the context, and of the encoder's input",
    lambda case, _release, _runner: all_of(
        case.part(_Length).row_length >= case.deployment.max_model_len,
        case.part(_Length).row_length >= case.deployment.max_num_encoder_input_tokens,
    ),
)


def _number(width: Any, run: Run | None) -> Any:
    """Return the symbolic number inside a width that the engine returned."""
    if isinstance(width, Followed):
        return width.inner
    if isinstance(width, int) and not isinstance(width, bool):
        return width
    message = f"the engine made a row of {width!r} entries, which is no number"
    if run is None:
        raise TypeError(message)
    raise LostError(message)


_WORST_FIRST = (Verdict.ERROR, Verdict.REFUTED, Verdict.UNKNOWN, Verdict.VACUOUS)


def _together(obligation: Obligation, outcomes: Sequence[Outcome]) -> Outcome:
    """Return what the outcomes of all paths come to, the worst first; a path that was found has a case."""
    parameters = obligation.parameters()
    cost = sum(outcome.rlimit for outcome in outcomes)
    for verdict in _WORST_FIRST:
        found = [outcome for outcome in outcomes if outcome.verdict is verdict]
        if found:
            return dataclasses.replace(min(found, key=lambda o: _size(o, parameters)), rlimit=cost)
    if not outcomes:
        return Outcome(Verdict.VACUOUS, "no path has a case that meets the assumptions", rlimit=cost)
    used = dict.fromkeys(name for outcome in outcomes for name in outcome.used)
    asked = dict.fromkeys(name for outcome in outcomes for name in (*outcome.used, *outcome.unused))
    unused = tuple(name for name in asked if name not in used)
    slacks = [outcome.slack for outcome in outcomes if outcome.slack is not None]
    slack = min(slacks) if len(slacks) == len(outcomes) else None
    return dataclasses.replace(outcomes[0], used=tuple(used), unused=unused, slack=slack, rlimit=cost)


def _size(outcome: Outcome, parameters: Sequence[Parameter]) -> tuple[Any, ...]:
    """Order counterexamples: those with most usual values first, then by the values in their order."""
    found = outcome.counterexample
    if found is None:
        return ()
    unusual = sum(found.values[p.name] != p.usual for p in parameters if p.usual is not None)
    return unusual, [int(found.values[p.name]) for p in parameters]
