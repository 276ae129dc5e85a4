"""A second route to a proof: linear arithmetic over opaque products and quotients, and instances of lemmas.

What the solver may know of a product or a quotient are instances of `proofs.lemmas`. They are chosen as
they are missed: the linear problem is solved, and where the solver's case gives a product or a quotient a
value that a lemma forbids, that instance is added. Which instances are chosen is not trusted, because each is
true. The result is a chain of links, each with the few constraints that it follows from, which any solver can
check by itself; no chain means "not proved on this route", and is never a refutation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import z3

from proofs.lemmas import lemma
from proofs.linear import Monomial, Number, Opaque, Quotient
from proofs.problem import Problem

__all__ = ["Link", "Proof", "Unproved", "opaque_proof"]

_ROUNDS = 40
"""How often the solver's case may be refuted by lemmas before a claim counts as not proved."""
_STEP_ROUNDS = 12
_MOST_FACTORS = 4
"""The most unknowns of a product that a lemma is used on."""


@dataclass(frozen=True, slots=True)
class Link:
    """One claim and what it follows from by linear arithmetic.

    Attributes:
        name: what the claim is: "divisors", a step or "goal".
        claim: the claim.
        premises: givens, definitions, instances of lemmas and claims of earlier links, by name.
    """

    name: str
    claim: z3.BoolRef
    premises: Mapping[str, z3.BoolRef]

    @property
    def lemmas(self) -> tuple[str, ...]:
        """The lemmas with an instance among the premises."""
        return tuple(sorted({name.split("(")[0] for name in self.premises if "(" in name}))


@dataclass(frozen=True, slots=True)
class Proof:
    """Links that lead to the goal, each resting on earlier ones only."""

    links: tuple[Link, ...]

    @property
    def lemmas(self) -> tuple[str, ...]:
        """The lemmas that the proof uses."""
        return tuple(sorted({name for link in self.links for name in link.lemmas}))


class Unproved(Exception):
    """No chain of links was found; the message says at which claim the search ended."""


def opaque_proof(problem: Problem, *, rlimit: int) -> Proof:
    """Find a chain of linear links from a problem's assumptions to its goal.

    Raises:
        Unproved: there is none on this route, or the budget of one query ran out.
    """
    reader = _Reader(problem)
    distinct = {divisor.get_id(): divisor for divisor in problem.definitions.divisors}
    divisors = [reader.claim(divisor > 0) for divisor in distinct.values()]
    steps = [reader.claim(step) for step in problem.steps]
    goal = reader.claim(problem.goal)
    search = _Search(reader, rlimit)
    links = []
    for number, divisor in enumerate(divisors):
        links.append(search.link(f"divisor {number}", divisor, _ROUNDS))
    givens = [p.claim for p in reader.premises if not p.defines and not p.name.startswith("sizes")]
    spoken = frozenset().union(*(search.inputs(c) for c in (goal, *givens)))
    for number, step in enumerate(steps):
        if not search.inputs(step) <= spoken:
            continue
        with suppress(Unproved):
            links.append(search.link(f"step {number}", step, _STEP_ROUNDS))
    links.append(search.link("goal", goal, _ROUNDS))
    return Proof(_needed(links))


def _needed(links: list[Link]) -> tuple[Link, ...]:
    """Return the links that the last one rests on; that every divisor is positive is always needed."""
    wanted, kept = {links[-1].name}, []
    for link in reversed(links):
        if link.name in wanted or link.name.startswith("divisor"):
            wanted.update(link.premises)
            kept.append(link)
    return tuple(reversed(kept))


@dataclass(frozen=True, slots=True, eq=False)
class _Claim:
    """A truth value with the unknowns that it speaks of."""

    expr: z3.BoolRef
    monomials: frozenset[Monomial]
    compared: tuple[Number, ...] = ()
    orders: tuple[tuple[int, Number, Number], ...] = ()

    @property
    def support(self) -> frozenset[int]:
        return frozenset(itertools.chain.from_iterable(self.monomials))


@dataclass(frozen=True, slots=True)
class _Premise:
    """What is known; `defines` are the unknowns whose sake it is known for, none of a given."""

    name: str
    claim: _Claim
    defines: frozenset[int] = frozenset()


class _Reader:
    """Reads a problem's constraints as linear ones over opaque unknowns."""

    def __init__(self, problem: Problem) -> None:
        self.world = Opaque()
        self.compared: list[Number] = []
        self.orders: list[tuple[int, Number, Number]] = []
        self.premises: list[_Premise] = []
        self.inputs: set[int] = set()
        self._inputs = {symbol.expr.get_id() for symbol in problem.symbols.values()}
        self._quotients = {d.result.get_id(): d for d in problem.definitions.quotients}
        self._numbers: dict[int, Number] = {}
        self._kept: list[z3.ExprRef] = []
        for name, given in problem.assumptions.items():
            parts = given.children() if z3.is_and(given) else [given]
            for number, part in enumerate(parts):
                self.premises.append(_Premise(f"{name} {number}", self.claim(part)))
        for division in problem.definitions.quotients:
            self.number(division.result)
        quotients = {d.fact.get_id() for d in problem.definitions.quotients}
        for number, fact in enumerate(problem.definitions.facts):
            if fact.get_id() not in quotients:
                claim = self.claim(fact)
                self.premises.append(_Premise(f"definition {number}", claim, claim.support - self.inputs))

    def claim(self, expr: z3.BoolRef) -> _Claim:
        """Read a truth value."""
        outside, self.world.mentioned = self.world.mentioned, set()
        known, n_orders = len(self.compared), len(self.orders)
        read = self.truth(expr)
        claim = _Claim(read, self.world.take_mentioned(), tuple(self.compared[known:]), tuple(self.orders[n_orders:]))
        self.world.mentioned = outside
        return claim

    def truth(self, expr: z3.BoolRef) -> z3.BoolRef:
        return self._read_truth(expr)

    def number(self, expr: z3.ArithRef) -> Number:
        key = expr.get_id()
        if key not in self._numbers:
            self._kept.append(expr)  # an id is unique only while its expression lives
            self._numbers[key] = self._read_number(expr)
        return self._numbers[key]

    def support(self, *numbers: Number) -> frozenset[int]:
        return frozenset(index for number in numbers for monomial in number.terms for index in monomial)

    def _read_truth(self, expr: z3.BoolRef) -> z3.BoolRef:
        kind, parts = expr.decl().kind(), expr.children()
        if kind in _COMPARISONS and z3.is_int(parts[0]):
            left, right = self.number(parts[0]), self.number(parts[1])
            self.compared.append(left - right)
            self.orders.append((kind, left, right))
            return left.compare(_COMPARISONS[kind], right).expr
        if not parts:
            return expr
        return expr.decl()(*map(self.truth, parts))

    def _read_number(self, expr: z3.ArithRef) -> Number:
        kind, parts = expr.decl().kind(), expr.children()
        match kind:
            case z3.Z3_OP_ANUM:
                return self.world.constant(expr.as_long())
            case z3.Z3_OP_ADD:
                return sum(map(self.number, parts[1:]), self.number(parts[0]))
            case z3.Z3_OP_SUB:
                return self.number(parts[0]) - sum(map(self.number, parts[1:]), self.world.constant(0))
            case z3.Z3_OP_UMINUS:
                return -self.number(parts[0])
            case z3.Z3_OP_MUL:
                product = self.world.constant(1)
                for part in parts:
                    product *= self.number(part)
                return product
            case z3.Z3_OP_ITE:
                return self._choice(parts)
            case z3.Z3_OP_MOD if z3.is_int_value(parts[1]) and parts[1].as_long() > 0:
                return self.world.unknown(self.number(parts[0]).expr() % parts[1])
            case z3.Z3_OP_UNINTERPRETED if not parts:
                return self._named(expr)
        message = f"{expr.decl().name()} is not read on this route"
        raise Unproved(message)

    def _choice(self, parts: list[z3.ExprRef]) -> Number:
        outside, self.world.mentioned = self.world.mentioned, set()
        condition, yes, no = self.truth(parts[0]), self.number(parts[1]), self.number(parts[2])
        chosen = z3.Int(f"choice!{len(self.premises)}")
        made = self.world.unknown(chosen)
        self.compared += [made - yes, made - no]
        fact = z3.If(condition, (made == yes).expr, (made == no).expr)
        claim = _Claim(fact, self.world.take_mentioned())
        self.premises.append(_Premise(str(chosen), claim, self.support(made)))
        self.world.mentioned = outside
        return made

    def _named(self, expr: z3.ArithRef) -> Number:
        division = self._quotients.get(expr.get_id())
        if division is None:
            made = self.world.unknown(expr)
            if expr.get_id() in self._inputs:
                self.inputs |= self.support(made)
            return made
        value, divisor = self.number(division.value), self.number(division.divisor)
        known = len(self.world.quotients)
        made = self.world.quotient(value, divisor, upward=division.upward, expr=expr)
        if len(self.world.quotients) > known:
            name = "cdiv_char" if division.upward else "floor_char"
            outside, self.world.mentioned = self.world.mentioned, set()
            claim = _Claim(lemma(name).holds(value, divisor).expr, self.world.take_mentioned())
            self.premises.append(_Premise(instance_name(name, (value, divisor)), claim, self.support(made)))
            self.world.mentioned = outside
        return made


_COMPARISONS = {
    z3.Z3_OP_LE: lambda left, right: left <= right,
    z3.Z3_OP_LT: lambda left, right: left < right,
    z3.Z3_OP_GE: lambda left, right: left >= right,
    z3.Z3_OP_GT: lambda left, right: left > right,
    z3.Z3_OP_EQ: lambda left, right: left == right,
    z3.Z3_OP_DISTINCT: lambda left, right: left != right,
}

_Instance = tuple[str, tuple[Number, ...]]


@dataclass(slots=True)
class _Search:
    """Linear problems that grow by the instances of lemmas that their cases break."""

    reader: _Reader
    rlimit: int
    stats: list = field(default_factory=lambda: [0, 0])
    monomials: set[Monomial] = field(default_factory=set)
    _solver: z3.Solver = field(default_factory=z3.SimpleSolver)
    _premises: dict[str, z3.BoolRef] = field(default_factory=dict)
    _used: set[object] = field(default_factory=set)

    @property
    def world(self) -> Opaque:
        return self.reader.world

    def link(self, name: str, claim: _Claim, rounds: int) -> Link:
        """Prove a claim, which becomes a premise of those to come.

        Raises:
            Unproved: it does not follow.
        """
        scope = self._scope(claim)
        self._solver, self._premises, self._used = z3.SimpleSolver(), {}, set()
        self._solver.set("rlimit", self.rlimit)
        self.monomials = set(claim.monomials)
        for premise in scope:
            self.premise(premise.name, premise.claim)
        self._solver.add(z3.Not(claim.expr))
        for candidate in self._seeds(claim, scope):
            self._use(*candidate)
        core = self._core(rounds)
        self.reader.premises.append(_Premise(name, claim))
        return Link(name, claim.expr, {n: self._premises[n] for n in sorted(core)})

    def _seeds(self, claim, scope):
        """Yield the instances that a claim most likely needs, whatever the solver's case."""
        world = self.world
        before = set(self.monomials)
        inside = [q for q in world.quotients.values() if next(iter(q.result.terms)) in self.monomials]
        for q in inside:
            yield from _bound_instances(q, claim.compared, None)
            zero = world.constant(0 - q.upward)
            yield ("cdiv_le" if q.upward else "floor_lt"), (q.value, q.divisor, zero)
            if len(q.divisor.terms) == 1:
                m = next(iter(q.divisor.terms))
                for n in range(1, len(m)):
                    yield "mul_strict", (Number(world, {}), Number(world, {m[n:n+1]:1}), Number(world, {m[:n]:1}))
        for one, other in itertools.permutations(inside, 2):
            if one.upward and other.upward and one.value.key() == other.value.key():
                yield "anti_den", (one.value, other.divisor, one.divisor)
                for x, y, k in _common(one.divisor, other.divisor):
                    yield "mul_mono", (y, x, k)
                for k in self._multipliers(one.result, self.monomials):
                    yield "mul_mono", (one.result, other.result, k)
        targets = claim.monomials | (self.monomials - before)
        led = (p.claim.monomials for p in scope if p.name.startswith("step"))
        for m in sorted(claim.monomials.union(*led)):
            for n in range(1, len(m)):
                yield "mul_mono", (Number(world, {}), Number(world, {m[n:n+1]:1}), Number(world, {m[:n]:1}))
        for premise in [*scope]:
            if premise.defines: continue
            for kind, left, right in premise.claim.orders:
                for k in self._multipliers(left - right, targets):
                    match kind:
                        case z3.Z3_OP_EQ:
                            yield "mul_equal", (left, right, k)
                        case z3.Z3_OP_LE:
                            yield "mul_mono", (left, right, k)
                        case z3.Z3_OP_LT:
                            yield "mul_mono", (left + 1, right, k)
                        case z3.Z3_OP_GE:
                            yield "mul_mono", (right, left, k)
                        case z3.Z3_OP_GT:
                            yield "mul_mono", (right + 1, left, k)

    def _multipliers(self, difference, targets):
        found = {}
        for m in difference.terms:
            if m == (): continue
            for big in targets:
                if len(big) == len(m) + 1:
                    rest = _without(big, m)
                    if rest is not None: found[rest] = None
        return [Number(self.world, {k: 1}) for k in found]

    def inputs(self, claim):
        reached = set(claim.support)
        while True:
            more = {i for p in self.reader.premises if p.defines & reached for i in p.claim.support} - reached
            if not more:
                return frozenset(reached & self.reader.inputs)
            reached |= more

    def _scope(self, claim, more=frozenset()):
        """Return the premises that speak of nothing but what the claim is made of."""
        reached, kept = set(claim.support) | self.reader.inputs | more, []
        fresh = claim.support - self.reader.inputs
        for p in self.reader.premises:
            if p.name.startswith("choice") and p.defines & fresh:
                fresh |= p.claim.support - self.reader.inputs
        for p in self.reader.premises:
            if p.name.startswith("step") and p.claim.support & fresh:
                reached |= p.claim.support
        waiting = list(self.reader.premises)
        while True:
            taken = [p for p in waiting if p.defines & reached]
            if not taken: break
            for p in taken:
                reached |= p.claim.support
                kept.append(p)
            waiting = [p for p in waiting if not p.defines & reached or p not in taken]
            waiting = [p for p in waiting if p not in taken]
        linear = {i for p in waiting if p.name.startswith("choice") for i in p.defines}
        givens = [p for p in waiting if not p.defines and p.claim.support <= reached | linear]
        more = {i for p in givens for i in p.claim.support}
        if not more <= reached:
            return self._scope(claim, more)
        return kept + givens

    def premise(self, name, claim):
        self._premises[name] = claim.expr
        self.monomials |= claim.monomials
        self.monomials |= {(index,) for index in claim.support}
        self._solver.assert_and_track(claim.expr, name)

    def _core(self, rounds: int) -> set[str]:
        for _ in range(rounds):
            self.stats[0] += 1
            answer = self._solver.check()
            if answer == z3.unsat:
                return {str(c) for c in self._solver.unsat_core()}
            if answer != z3.sat or not self._forbid(self._solver.model()):
                break
        raise Unproved("it does not follow by linear arithmetic")

    def _forbid(self, model: z3.ModelRef) -> bool:
        """Add instances that the case breaks; return whether there were any."""
        values = _Values(self.world, self.monomials, model)
        blamed = self._blamed(values)
        if blamed is None:
            return False
        everything = set(values.known)
        for candidates in (
            itertools.chain(_product_instances(self.world, values, blamed, both=True),
            self._quotient_instances(values, blamed)),
            _product_instances(self.world, values, blamed),
            self._quotient_instances(values, everything),
            _product_instances(self.world, values, everything),
        ):
            added = [self._use(*candidate) for candidate in list(candidates)]
            if any(added):
                return True
        return False

    def _blamed(self, values: _Values) -> set[Monomial]:
        """Return unknowns and products that contradict what is known, once products are what they are."""
        claims = {}
        for monomial, value in values.true().items():
            claims[(self.world.term(monomial) == value)] = monomial
        a = self._solver.check(*claims)
        if a != z3.unsat:
            return None
        return {claims[c] for c in self._solver.unsat_core() if c in claims}

    def _use(self, name: str, taken: tuple[Number, ...]) -> bool:
        key = (name, *(number.key() for number in taken))
        if key in self._used:
            return False
        self._used.add(key)
        self.stats[1] += 1
        self.world.take_mentioned()
        fact = lemma(name).holds(*taken).expr
        self.premise(instance_name(name, taken), _Claim(fact, self.world.take_mentioned()))
        return True

    def _quotient_instances(self, values: _Values, blamed: set[Monomial]) -> Iterator[_Instance]:
        quotients = [q for q in self.world.quotients.values() if not blamed.isdisjoint(q.result.terms)
            and values.knows(q)]
        for quotient in quotients:
            yield from _bound_instances(quotient, self.reader.compared, values)
        for one, other in itertools.permutations(quotients, 2):
            yield from _pair_instances(one, other, values)


class _Values:
    """What a case of the linear problem says each unknown and product is."""

    def __init__(self, world: Opaque, monomials: Iterable[Monomial], model: z3.ModelRef) -> None:
        self.known = {
            monomial: model.eval(world.term(monomial), model_completion=True).as_long()
            for monomial in monomials
        }
        self.known[()] = 1

    def monomial(self, monomial: Monomial) -> int:
        """Return a product's value in the case, or the true one if the case says nothing."""
        if monomial not in self.known:
            return math.prod(self.known[index,] for index in monomial)
        return self.known[monomial]

    def knows(self, quotient):
        return all((i,) in self.known for n in (quotient.value, quotient.divisor, quotient.result) for m in n.terms for i in m)

    def true(self) -> dict[Monomial, int]:
        """Return the values of the single unknowns, and what the products of those values are."""
        return {m: math.prod(self.known[index,] for index in m) for m in self.known if m}

    def of(self, number: Number) -> int:
        return sum(c * self.monomial(m) for m, c in number.terms.items())


def _bound_instances(
    quotient: Quotient, compared: Iterable[Number], values: _Values
) -> Iterator[_Instance]:
    """Yield bounds of a quotient by what the problem compares it with."""
    (name,) = quotient.result.terms
    if values is not None:
        q, a = values.of(quotient.result), values.of(quotient.value)
    for difference in compared:
        coefficient = difference.terms.get(name, 0)
        if abs(coefficient) != 1 or (values is not None and any((i,) not in values.known for m in difference.terms for i in m)):
            continue
        other = quotient.result - difference * coefficient
        if values is None:
            name_ = "cdiv_le" if quotient.upward else "floor_lt"
            for bound in (other, other - 1 if quotient.upward else other + 1):
                yield name_, (quotient.value, quotient.divisor, bound)
            continue
        for bound in (other, other + 1, other - 1):
            m, covered = values.of(bound), values.of(bound * quotient.divisor)
            if quotient.upward and (q <= m) != (a <= covered):
                yield "cdiv_le", (quotient.value, quotient.divisor, bound)
            elif not quotient.upward and (q < m) != (a < covered):
                yield "floor_lt", (quotient.value, quotient.divisor, bound)


def _pair_instances(one: Quotient, other: Quotient, values: _Values) -> Iterator[_Instance]:
    """Yield what two quotients have to do with each other."""
    q, r = values.of(one.result), values.of(other.result)
    a, b = values.of(one.value), values.of(other.value)
    if one.divisor.key() == other.divisor.key():
        match one.upward, other.upward:
            case True, True if a <= b and q > r:
                yield "mono_num", (one.value, other.value, one.divisor)
            case False, False if a <= b and q > r:
                yield "floor_mono", (one.value, other.value, one.divisor)
            case False, True if a < b and q >= r:
                yield "index", (one.value, other.value, one.divisor)
    elif one.upward and other.upward and one.value.key() == other.value.key():
        if a >= 0 and values.of(one.divisor) >= values.of(other.divisor) and q > r:
            yield "anti_den", (one.value, other.divisor, one.divisor)


def _product_instances(world: Opaque, values: _Values, blamed: set[Monomial], both=False) -> Iterator[_Instance]:
    """Yield orders between products with a common factor that the case breaks, nearest ones first."""
    for factor, cofactors in _cofactors(values).items():
        k = values.monomial(factor)
        rows = [(c, values.monomial(c), values.monomial(_times(c, factor))) for c in cofactors]
        rows += [((), 1, k), (None, 0, 0)]
        for row in rows:
            left, x, xk = row
            if left is None or _times(left, factor) not in blamed:
                continue
            if both:
                for o in rows:
                    if o is not row and (o[0] is None or _times(o[0], factor) in blamed):
                        for p, q in ((row, o), (o, row)):
                            name = _broken_order(p, q, k)
                            if name: yield name, tuple(Number(world, {} if m is None else {m: 1}) for m in (p[0], q[0], factor))
                continue
            nearest = sorted((r for r in rows if r is not row), key=lambda r: abs(r[1] - x))
            for other in nearest:
                name = _broken_order(row, other, k)
                if name: yield name, tuple(Number(world, {} if m is None else {m: 1}) for m in (left, other[0], factor)); break
            for other in nearest:
                name = _broken_order(other, row, k)
                if name: yield name, tuple(Number(world, {} if m is None else {m: 1}) for m in (other[0], left, factor)); break


def _broken_order(row, other, k):
    (_, x, xk), (_, y, yk) = row, other
    if x == y and xk != yk:
        return "mul_equal"
    if x < y and k > 0 and xk + k > yk:
        return "mul_strict"
    if x <= y and k >= 0 and xk > yk:
        return "mul_mono"
    return None


def _cofactors(values: _Values) -> dict[Monomial, list[Monomial]]:
    """Return each factor of a known product, with what it is multiplied with."""
    found: dict[Monomial, dict[Monomial, None]] = {}
    for product in values.known:
        if len(product) > _MOST_FACTORS:
            continue
        for size in range(1, len(product)):
            for chosen in itertools.combinations(range(len(product)), size):
                factor = tuple(product[i] for i in chosen)
                if len(factor) > 1 and factor not in values.known:
                    continue
                rest = tuple(product[i] for i in range(len(product)) if i not in chosen)
                found.setdefault(factor, {})[rest] = None
    return {factor: list(rests) for factor, rests in found.items()}


def _times(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted(left + right))


def instance_name(name: str, taken) -> str:
    """Return a lemma's name with what it is used on."""
    shown = ", ".join(str(number.expr()).replace("\n", "") for number in taken)
    return f"{name}({shown})"


def _without(monomial, part):
    left = list(monomial)
    for index in part:
        if index not in left:
            return None
        left.remove(index)
    return tuple(left)


def _common(one, other):
    """Yield x, y, k with one = x * k and other = y * k."""
    if len(one.terms) != 1 or len(other.terms) != 1: return
    (m,), (n,) = one.terms, other.terms
    k = []
    rest = list(n)
    for i in m:
        if i in rest:
            rest.remove(i); k.append(i)
    if k:
        k = tuple(k)
        w = one.world
        yield Number(w, {_without(m, k): one.terms[m]}), Number(w, {_without(n, k): other.terms[n]}), Number(w, {k: 1})
