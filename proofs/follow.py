"""Runs somebody else's integer code on symbols and follows every way through it.

The code is not ours and branches as it likes. A `Followed` number stands in for an int: arithmetic on it
makes solver terms, and where Python asks for a truth value or a plain int, the run takes one of the answers
that the assumptions allow and notes it as a condition of its path. `explore` runs the code once for each
path. An answer is left out only if the solver shows that it is impossible. What cannot be followed ends the
whole exploration with `LostError`, which says where in the code that was; there is then nothing to prove.

A hash of an unknown number is one and the same for all of them, so that sets and dictionaries compare them
with `==`. A set of unknown and plain numbers together would not; the code that is run here makes none.
"""

from __future__ import annotations

import math
import operator
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import z3

from invariants.arithmetic import Symbolic, cdiv, common_divisor, modulo
from proofs.chain import Traced
from proofs.terms import Definitions, Term, Truth

__all__ = [
    "MOST_PATHS",
    "MOST_VALUES",
    "Answers",
    "Explored",
    "Followed",
    "FollowedTruth",
    "LostError",
    "Opaque",
    "Run",
    "explore",
    "followed",
]

MOST_PATHS = 64
"""More ways through one function than this are not followed."""
MOST_VALUES = 16
"""Where a plain int is needed, more values than this are not tried."""
_RLIMIT = 2_000_000

Answer = bool | int
Answers = tuple[Answer, ...]


class LostError(BaseException):
    """The code did something that cannot be followed; the message says what and where.

    No `Exception`: code that swallows those must not swallow this one.
    """


class _ImpossibleError(BaseException):
    """The path that is being run has no case."""


@dataclass(slots=True)
class Run:
    """One run of the code along one path.

    Attributes:
        root: the directory of the code that is followed: places in it are named in messages.
        definitions: the solver's terms; None where numbers are traced, which have one path.
        answers: the answers of the path, in the order in which they were asked for.
        assumed: what holds on every path, by name.
        used: the names of those that kept a path out.
        is_exploring: whether the run may go on where the answers end.
        conditions: what each answer says, as solver terms.
        more: further answers that were possible, each with those before it.
    """

    root: Path
    definitions: Definitions | None = None
    answers: Answers = ()
    assumed: Mapping[str, z3.BoolRef] = field(default_factory=dict)
    is_exploring: bool = False
    conditions: list[z3.BoolRef] = field(default_factory=list)
    more: list[Answers] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    taken: int = 0
    lost: str = ""

    def wrap(self, value: Any) -> Any:
        """Return a parameter's value as the code gets it."""
        if isinstance(value, Truth) or (isinstance(value, Traced) and isinstance(value.value, bool)):
            return FollowedTruth(value, self)
        if isinstance(value, Term | Traced):
            return Followed(value, self)
        if isinstance(value, bool):
            return FollowedTruth(self._known_truth(value), self)
        return Followed(self._known(value), self) if isinstance(value, int) else value

    def _known(self, value: int) -> Symbolic:
        return Traced(value) if self.definitions is None else self.definitions.lift(value)

    def _known_truth(self, value: bool) -> Symbolic:
        if self.definitions is None:
            return Traced(value)
        return Truth(self.definitions.truth(value), self.definitions)

    def lift(self, value: object) -> Any:
        """Return a number of the code's as a symbolic one, or NotImplemented for something else."""
        if isinstance(value, Followed):
            if value.run is not self:
                raise self.give_up("a size that the code kept from another run")
            return value.inner
        if isinstance(value, int) and not isinstance(value, bool):
            return self._known(value)
        return NotImplemented

    def negated(self, value: object) -> Any:
        """Return the positive number that a number of the code's is known to be the negative of, or None."""
        if type(value) is int and value < 0:
            return self.lift(-value)
        return value.negated.inner if type(value) is Followed and value.negated is not None else None

    def give_up(self, what: str) -> LostError:
        """Remember that the code did what cannot be followed, and return the error to raise for it."""
        self.lost = self.lost or f"{_place(self.root)}: cannot follow {what}"
        return LostError(self.lost)

    def branch(self, truth: Symbolic) -> bool:
        """Take one answer to the question whether something holds."""
        if isinstance(truth, Traced):
            return bool(truth.value)
        condition = z3.simplify(truth.expr)  # type: ignore[attr-defined]  # a Truth
        answer = self._answer(
            lambda: [yes for yes in (True, False) if self._possible(condition if yes else z3.Not(condition))],
        )
        self.conditions.append(condition if answer else z3.Not(condition))
        return bool(answer)

    def rely_on(self, condition: z3.BoolRef) -> None:
        """Take something as given on this path, which is shown when paths are looked for."""
        if self.is_exploring and self._possible(z3.Not(condition)):
            raise self.give_up("a division that may leave something")
        self.conditions.append(condition)

    def value(self, number: Symbolic) -> int:
        """Take one of the few values that a number can have."""
        if isinstance(number, Traced):
            return number.value
        term: Any = number
        answer = int(self._answer(lambda: self._values(term.expr)))
        self.conditions.append(term.expr == answer)
        return answer

    def _answer(self, possible: Callable[[], list[Answer]]) -> Answer:
        """Return the path's next answer: the given one, or one of those that are possible."""
        self.taken += 1
        if self.taken <= len(self.answers):
            return self.answers[self.taken - 1]
        if not self.is_exploring:
            raise self.give_up("a second run, which asked more than the first")
        answers = possible()
        if not answers:
            raise _ImpossibleError
        self.more += [(*self.answers, other) for other in answers[1:]]
        self.answers = (*self.answers, answers[0])
        return answers[0]

    def _possible(self, condition: z3.BoolRef) -> bool:
        """Return whether the solver does not exclude a condition on this path."""
        if z3.is_true(condition) or z3.is_false(condition):
            return z3.is_true(condition)
        solver = self._solver(condition)
        if solver.check() != z3.unsat:
            return True
        self._note(solver)
        return False

    def _solver(self, *conditions: z3.BoolRef) -> z3.Solver:
        """Return a solver that knows what is assumed and the path so far."""
        definitions = cast("Definitions", self.definitions)
        solver = z3.Solver(ctx=definitions.context)
        solver.set("rlimit", _RLIMIT)
        solver.add(*definitions.facts, *self.conditions, *conditions)
        for name, given in self.assumed.items():
            solver.assert_and_track(given, name)
        return solver

    def _note(self, solver: z3.Solver) -> None:
        """Remember what the solver needed to say that there is nothing."""
        self.used |= {str(name) for name in solver.unsat_core()}

    def _values(self, expr: z3.ArithRef) -> list[Answer]:
        """Return every value that a term can have on this path."""
        expr = z3.simplify(expr)
        if z3.is_int_value(expr):
            return [expr.as_long()]
        values: list[Answer] = []
        solver = self._solver()
        while (result := solver.check()) == z3.sat and len(values) < MOST_VALUES:
            values.append(solver.model().eval(expr, model_completion=True).as_long())
            solver.add(expr != values[-1])
        if result == z3.unsat:
            self._note(solver)
        else:
            raise self.give_up(f"what needs a plain number here: it can be one of more than {MOST_VALUES}")
        return sorted(values)


class Opaque:
    """Something of the engine that a run needs not look into: attributes and calls give more of it.

    Whatever a number could depend on, such as a comparison, a loop or an index, cannot be followed.
    """

    def __init__(self, name: str, run: Run | None, **known: Any) -> None:
        """Take the attributes that are known."""
        self.__dict__.update(known)
        self.__dict__["_opaque"] = (name, run)

    def __getattr__(self, name: str) -> Any:
        """Return something as little known."""
        if name.startswith("__"):
            raise AttributeError(name)
        own, run = self.__dict__["_opaque"]
        return Opaque(f"{own}.{name}", run)

    def __call__(self, *_arguments: object, **_named: object) -> Opaque:
        """Return something as little known."""
        name, run = self.__dict__["_opaque"]
        return Opaque(f"{name}()", run)

    def __deepcopy__(self, _memo: object) -> Opaque:
        """Return itself: nothing here is changed."""
        return self

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing."""

    @property  # type: ignore[misc]  # as mocks do
    def __class__(self) -> type:
        """Refuse to say what this is: the code would go one way or the other."""
        name, run = self.__dict__["_opaque"]
        raise (run or Run(Path())).give_up(f"a look at what {name} is")

    __hash__ = object.__hash__


def _unknown(self: Any, *_arguments: object) -> NoReturn:
    name, run = self.__dict__["_opaque"]
    raise (run or Run(Path())).give_up(f"a use of {name}, which is not modelled")


def _give(owner: type, names: str, method: Callable[[str], Any]) -> None:
    """Give a class a special method for each name."""
    for name in names.split():
        setattr(owner, f"__{name}__", method(name))


_UNKNOWN = "add radd sub rsub mul rmul floordiv rfloordiv truediv rtruediv mod rmod neg"
_give(
    Opaque,
    f"{_UNKNOWN} lt le gt ge eq ne bool len iter getitem contains index int float",
    lambda _name: _unknown,
)


def _infix(operation: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two methods of an operator; numbers that are known are computed at once."""

    def apply(run: Run, left: Any, right: Any) -> Any:
        if isinstance(left, Term) and z3.is_int_value(left.expr) and z3.is_int_value(right.expr):
            return run.wrap(operation(left.expr.as_long(), right.expr.as_long()))
        factors = (left, right) if operation is operator.mul else ()
        return Followed(operation(left, right), run, factors=factors)

    def forward(self: Followed, other: object) -> Any:
        that = self.run.lift(other)
        return that if that is NotImplemented else apply(self.run, self.inner, that)

    def backward(self: Followed, other: object) -> Any:
        that = self.run.lift(other)
        return that if that is NotImplemented else apply(self.run, that, self.inner)

    return forward, backward


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def method(self: Followed, other: object) -> Any:
        that = self.run.lift(other)
        if that is NotImplemented:
            return that
        if isinstance(that, Traced):
            return FollowedTruth(Traced(compare(self.inner.value, that.value)), self.run)
        return FollowedTruth(compare(self.inner, that), self.run)

    return method


class Followed:
    """An int of the code that is followed; `inner` is a solver's term, or a number that is traced.

    `negated` is the number that this one is the negative of: `-(a // -b)` is how Python code rounds up.
    `factors` are those of a product: one that is divided by again leaves the other.
    """

    __slots__ = ("factors", "inner", "negated", "run")

    def __init__(
        self,
        inner: Any,
        run: Run,
        *,
        negated: Followed | None = None,
        factors: tuple[Any, ...] = (),
    ) -> None:
        """Wrap a symbolic number."""
        self.inner = inner
        self.run = run
        self.negated = negated
        self.factors = factors

    __add__, __radd__ = _infix(operator.add)
    __sub__, __rsub__ = _infix(operator.sub)
    __mul__, __rmul__ = _infix(operator.mul)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)

    def __neg__(self) -> Any:
        """Negate, and remember what."""
        if self.negated is not None:
            return self.negated
        if isinstance(self.inner, Term) and z3.is_int_value(self.inner.expr):
            return Followed(self.run.lift(-self.inner.expr.as_long()), self.run, negated=self)
        return Followed(-self.inner, self.run, negated=self)

    def __pos__(self) -> Followed:
        """Return the same number."""
        return self

    def __abs__(self) -> Any:
        """Return the number or its negative."""
        return self if self >= 0 else -self

    def _apply(self, operation: str, left: Any, right: Any) -> Any:
        return self.run.wrap(_applied(operation, left, right))

    def __floordiv__(self, other: object) -> Any:
        """Divide, rounding down; by a negative number or of one, by way of rounding up."""
        that = self.run.lift(other)
        if that is NotImplemented:
            return that
        if (positive := self.run.negated(other)) is not None:
            return -self._apply("cdiv", self.inner, positive)
        if self.negated is not None:
            return -self._apply("cdiv", self.negated.inner, that)
        exact = self._other_factor(that)
        if exact is None:
            exact = self._cofactor(that)
        return self._apply("floor", self.inner, that) if exact is None else exact

    def __rfloordiv__(self, other: object) -> Any:
        """Divide, rounding down."""
        that = self.run.lift(other)
        return that if that is NotImplemented else Followed(that, self.run) // self

    def __mod__(self, other: object) -> Any:
        """Return what whole divisors leave."""
        that = self.run.lift(other)
        if that is NotImplemented:
            return that
        exact = self._cofactor(that)
        return self._apply("modulo", self.inner, that) if exact is None else self.run.wrap(0)

    def _other_factor(self, divisor: Any) -> Followed | None:
        """Return a where this is a * b and the divisor is b, which is positive."""
        for factor, other in (self.factors, self.factors[::-1]) if self.factors else ():
            if _same_positive(factor, divisor):
                return Followed(other, self.run)
        return None

    def _cofactor(self, divisor: Any) -> Followed | None:
        """Return b where this is a, the divisor is a // b, and b divides a, which is then relied on.

        A solver finds it hard that the division leaves nothing; that b divides a is an assumption.
        """
        value = self.inner
        if not isinstance(value, Term) or not isinstance(divisor, Term) or value.low is None or value.low < 1:
            return None
        for known in value.definitions.quotients:
            if known.result.eq(divisor.expr) and known.value.eq(value.expr) and not known.upward:
                cofactor = Term(known.divisor, 1, value.definitions)
                self.run.rely_on(z3.And(known.divisor >= 1, divisor.expr * known.divisor == value.expr))
                return Followed(cofactor, self.run)
        return None

    def __rmod__(self, other: object) -> Any:
        """Return what whole divisors leave."""
        that = self.run.lift(other)
        return that if that is NotImplemented else self._apply("modulo", that, self.inner)

    def __divmod__(self, other: object) -> Any:
        """Divide and return what is left."""
        return self // other, self % other

    def common_divisor(self, other: object) -> Any:
        """Return the greatest common divisor with another number."""
        return self._apply("common_divisor", self.inner, self.run.lift(other))

    def __bool__(self) -> bool:
        """Take a way."""
        return bool(self != 0)

    def __index__(self) -> int:
        """Take one of the values, where there are few."""
        return self.run.value(self.inner)

    __int__ = __index__

    @property  # type: ignore[misc]  # as mocks do
    def __class__(self) -> type:
        """Pass for an int where the code asks whether this is one."""
        return int

    def __hash__(self) -> int:
        """Return the same for all that are unknown."""
        if isinstance(self.inner, Term) and z3.is_int_value(z3.simplify(self.inner.expr)):
            return hash(z3.simplify(self.inner.expr).as_long())
        return hash(self.inner.value) if isinstance(self.inner, Traced) else hash(Followed)

    def __copy__(self) -> Followed:
        """Return itself, as ints do."""
        return self

    def __deepcopy__(self, _memo: object) -> Followed:
        """Return itself, as ints do."""
        return self

    def __repr__(self) -> str:
        """Name the number in a message of the engine's."""
        return getattr(self.inner, "text", None) or str(self.inner.expr)

    def __format__(self, _how: str) -> str:
        """Name the number in a message of the engine's."""
        return repr(self)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what an int has and this has not."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.run.give_up(f"the attribute {name} of a size")


class FollowedTruth:
    """A bool of the code that is followed."""

    __slots__ = ("inner", "run")

    def __init__(self, inner: Any, run: Run) -> None:
        """Wrap a symbolic truth value."""
        self.inner = inner
        self.run = run

    def __bool__(self) -> bool:
        """Take a way."""
        return self.run.branch(self.inner)

    def __eq__(self, other: object) -> bool:
        """Compare, by taking a way."""
        return bool(self) == other

    def __ne__(self, other: object) -> bool:
        """Compare, by taking a way."""
        return bool(self) != other

    @property  # type: ignore[misc]  # as mocks do
    def __class__(self) -> type:
        """Pass for a bool where the code asks whether this is one."""
        return bool

    def __hash__(self) -> int:
        """Take a way."""
        return hash(bool(self))

    def __deepcopy__(self, _memo: object) -> FollowedTruth:
        """Return itself, as bools do."""
        return self

    def __repr__(self) -> str:
        """Name the value in a message of the engine's."""
        return getattr(self.inner, "text", None) or str(self.inner.expr)


def _refused(name: str) -> Callable[..., NoReturn]:
    def method(self: Any, *_arguments: object) -> NoReturn:
        raise self.run.give_up(f"the operation {name} on a size")

    return method


_NEVER = "truediv rtruediv pow rpow lshift rlshift rshift rrshift and rand or ror xor rxor invert float"
_give(Followed, f"{_NEVER} complex round trunc floor ceil matmul rmatmul", _refused)
_give(FollowedTruth, f"{_UNKNOWN} {_NEVER} lt le gt ge index int", _refused)


def _same_positive(factor: Any, divisor: Any) -> bool:
    """Return whether a factor is a divisor, and known to be positive, so that it can be taken out."""
    if isinstance(factor, Traced) and isinstance(divisor, Traced):
        return factor.text == divisor.text and divisor.value > 0
    if not isinstance(factor, Term) or not isinstance(divisor, Term):
        return False
    expr: Any = factor.expr
    return divisor.low is not None and divisor.low >= 1 and bool(expr.eq(divisor.expr))


_ON_INTS: Mapping[str, Callable[[int, int], int]] = {
    "cdiv": cdiv,
    "floor": operator.floordiv,
    "modulo": modulo,
    "common_divisor": common_divisor,
}


def _applied(operation: str, left: Any, right: Any) -> Any:
    """Apply an operation of `invariants.arithmetic` to two symbolic numbers; to known ones at once."""
    if isinstance(left, Term) and z3.is_int_value(left.expr) and z3.is_int_value(right.expr):
        return _ON_INTS[operation](left.expr.as_long(), right.expr.as_long())
    return left // right if operation == "floor" else type(left).apply(operation, left, right)


@contextmanager
def _plain_library() -> Iterator[None]:
    """Let `math.gcd` take followed numbers: there is no other way to see them in a C function."""
    plain = math.gcd

    def gcd(*numbers: Any) -> Any:
        if len(numbers) == 2 and any(isinstance(number, Followed) for number in numbers):  # noqa: PLR2004
            left, right = numbers
            return left.common_divisor(right) if isinstance(left, Followed) else right.common_divisor(left)
        return plain(*numbers)

    math.gcd = gcd
    try:
        yield
    finally:
        math.gcd = plain


def _place(root: Path) -> str:
    """Return the file and line of the followed code that is running."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  # there is no other way to see who called
    while frame is not None:
        if (place := _shown(frame.f_code.co_filename, frame.f_lineno, root)) is not None:
            return place
        frame = frame.f_back
    return str(root)


def _shown(file: str, line: int, root: Path) -> str | None:
    path = Path(file)
    return f"{path.relative_to(root.parent)}:{line}" if path.is_relative_to(root) else None


def raised_at(error: BaseException, root: Path) -> str:
    """Return where in the followed code an exception was raised, and what it says."""
    places = [_shown(f.filename, f.lineno or 0, root) for f in traceback.extract_tb(error.__traceback__)]
    known = [place for place in places if place]
    return f"{known[-1] if known else root}: {type(error).__name__}: {str(error) or 'no message'}"


def followed(run: Run, body: Callable[[], Any]) -> Any:
    """Run the code along one path and return what it returns.

    Raises:
        LostError: it raised, or did what cannot be followed, even if it went on after that.
    """
    try:
        with _plain_library():
            result = body()
    except (Exception, SystemExit) as error:
        raise LostError(run.lost or raised_at(error, run.root)) from error
    if run.lost:
        raise LostError(run.lost)
    if run.definitions is not None and run.taken != len(run.answers):
        raise LostError(f"{run.root.name}: a second run went another way than the first")
    return result


@dataclass(frozen=True, slots=True)
class Explored:
    """Every path through some code, by its answers, and the assumptions that keep other paths out."""

    paths: tuple[Answers, ...]
    used: frozenset[str]


def explore(start: Callable[[Answers], tuple[Run, Callable[[], Any]]]) -> Explored:
    """Follow every path.

    Args:
        start: makes a run with the answers that it begins with, and what is to be run.

    Raises:
        LostError: one cannot be followed, or there are too many.
    """
    paths: list[Answers] = []
    waiting: list[Answers] = [()]
    used: set[str] = set()
    while waiting:
        run, body = start(waiting.pop())
        try:
            followed(run, body)
            paths.append(run.answers)
        except _ImpossibleError:
            pass
        waiting += reversed(run.more)
        used |= run.used
        if len(paths) + len(waiting) > MOST_PATHS:
            raise LostError(f"{run.root.name}: there are more than {MOST_PATHS} paths")
    return Explored(tuple(paths), frozenset(used))
