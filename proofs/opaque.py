"""A second route to a proof: linear arithmetic over opaque products and quotients, and instances of lemmas.

What the solver may know of a product or a quotient are instances of `proofs.lemmas`, chosen by
`proofs.instances`. The result is a chain of links, each with the few constraints that it follows from, which
any solver can check by itself. No chain means "not proved on this route", and is never a refutation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import z3

from proofs.instances import Case, Instance, Order, likely_bounds, likely_orders, likely_parts, missed
from proofs.lemmas import lemma
from proofs.linear import Monomial, Number, Opaque
from proofs.problem import SIZES, Problem

__all__ = ["SEARCH_RLIMIT", "Link", "Proof", "Unproved", "opaque_proof"]

SEARCH_RLIMIT = 2_000_000
"""Solver resources that the search for one link may spend."""
_ROUNDS = 40
"""How often the solver's case may be refuted by lemmas before a claim counts as not proved."""
_FIRST_ROUNDS = 1
"""The same for the goal before there are steps: many goals follow from the first guess of instances."""
_STEP_ROUNDS = 12
"""The same for an intermediate claim: one that is not easy is no help."""


@dataclass(frozen=True, slots=True)
class Link:
    """One claim and what it follows from by linear arithmetic.

    Attributes:
        name: what the claim is: a divisor that is positive, a step, or the goal.
        claim: the claim.
        premises: assumptions, definitions, instances of lemmas and claims of earlier links, by name.
    """

    name: str
    claim: z3.BoolRef
    premises: Mapping[str, z3.BoolRef]


@dataclass(frozen=True, slots=True)
class Proof:
    """Links that lead to the goal, each resting on earlier ones only.

    Attributes:
        links: the links, the goal last.
        lemmas: the names of the lemmas with an instance among the premises.
        assumptions: the names of the assumptions among the premises.
        meanings: what each opaque unknown stands for; no link rests on it.
    """

    links: tuple[Link, ...]
    lemmas: tuple[str, ...]
    assumptions: tuple[str, ...]
    meanings: tuple[z3.BoolRef, ...]


class Unproved(Exception):
    """No chain of links was found; the message says at which claim the search ended."""


def opaque_proof(problem: Problem) -> Proof:
    """Find a chain of linear links from a problem's assumptions to its goal.

    Raises:
        Unproved: there is none on this route, or the budget of one search ran out.
    """
    reader = _Reader(problem)
    search = _Search(reader)
    distinct = {divisor.get_id(): divisor for divisor in problem.definitions.divisors}
    links = [
        search.link(f"divisor {number}", reader.claim(divisor > 0), _ROUNDS)
        for number, divisor in enumerate(distinct.values())
    ]
    goal = reader.claim(problem.goal)
    try:
        links.append(search.link("goal", goal, _FIRST_ROUNDS))
    except Unproved:
        links += _by_steps(problem, reader, search, goal)
    needed = _needed(links)
    premises = {name for link in needed for name in link.premises}
    given = {name.split()[0] for name in premises}
    return Proof(
        needed,
        lemmas=tuple(sorted({name.split("(")[0] for name in premises if "(" in name})),
        assumptions=tuple(n for n in problem.assumptions if n in given),
        meanings=tuple(reader.world.meanings()),
    )


def _by_steps(problem: Problem, reader: _Reader, search: _Search, goal: _Claim) -> Iterator[Link]:
    """Yield a link for each intermediate claim that can be proved, and one for the goal.

    A step that speaks of a parameter that the goal and the assumptions do not is no help.
    """
    steps = [reader.claim(step) for step in problem.steps]
    spoken = search.inputs_of(goal, *(p.claim for p in reader.premises if p.is_given and not p.bounds_a_size))
    for number, step in enumerate(steps):
        if search.inputs_of(step) <= spoken:
            with suppress(Unproved):
                yield search.link(f"step {number}", step, _STEP_ROUNDS)
    yield search.goal(goal)


def _needed(links: list[Link]) -> tuple[Link, ...]:
    """Return the links that the last one rests on; that every divisor is positive is always needed."""
    wanted, kept = {links[-1].name}, []
    for link in reversed(links):
        if link.name in wanted or link.name.startswith("divisor"):
            wanted.update(link.premises)
            kept.append(link)
    return tuple(reversed(kept))


class _Claim:
    """A linear truth value, the unknowns and products that it speaks of, and its comparisons."""

    __slots__ = ("expr", "monomials", "orders", "support")

    def __init__(self, expr: z3.BoolRef, monomials: Iterable[Monomial], orders: Iterable[Order]) -> None:
        self.expr = expr
        self.monomials = frozenset(monomials)
        self.orders = tuple(orders)
        self.support = frozenset(itertools.chain.from_iterable(self.monomials))


@dataclass(frozen=True, slots=True)
class _Premise:
    """What is known. A definition defines unknowns; a given and the claim of a link define none."""

    name: str
    claim: _Claim
    defines: frozenset[int] = frozenset()
    is_given: bool = False
    is_choice: bool = False

    @property
    def is_link(self) -> bool:
        return not self.is_given and not self.defines

    @property
    def bounds_a_size(self) -> bool:
        return self.name.split()[0] == SIZES


_RELATIONS = {
    z3.Z3_OP_LE: "<=",
    z3.Z3_OP_LT: "<",
    z3.Z3_OP_GE: ">=",
    z3.Z3_OP_GT: ">",
    z3.Z3_OP_EQ: "==",
    z3.Z3_OP_DISTINCT: "!=",
}


class _Reader:
    """Reads a problem's constraints as linear ones over opaque unknowns."""

    def __init__(self, problem: Problem) -> None:
        self.world = Opaque(problem.definitions.context)
        self.premises: list[_Premise] = []
        self.inputs: set[int] = set()
        self._symbols = {symbol.expr.get_id() for symbol in problem.symbols.values()}
        self._divisions = {d.result.get_id(): d for d in problem.definitions.quotients}
        self._numbers: dict[int, Number] = {}
        self._kept: list[z3.ExprRef] = []
        self._orders: list[Order] = []
        self._instances: dict[str, _Claim] = {}
        for name, given in problem.assumptions.items():
            for number, part in enumerate(given.children() if z3.is_and(given) else [given]):
                self.premises.append(_Premise(f"{name} {number}", self.claim(part), is_given=True))
        defined_by_lemma = {d.fact.get_id() for d in problem.definitions.quotients}
        for number, fact in enumerate(problem.definitions.facts):
            if fact.get_id() not in defined_by_lemma:
                claim = self.claim(fact)
                self.premises.append(_Premise(f"definition {number}", claim, claim.support - self.inputs))

    def claim(self, expr: z3.BoolRef) -> _Claim:
        """Read a truth value."""
        with self._reading() as finished:
            return finished(self._truth(expr))

    def instance(self, name: str, taken: tuple[Number, ...]) -> tuple[str, _Claim]:
        """Return a lemma about these numbers, and how it is written."""
        shown = f"{name}({', '.join(map(str, taken))})"
        if shown not in self._instances:
            with self._reading() as finished:
                holds: Any = lemma(name).holds(*taken)
                self._instances[shown] = finished(holds.expr)
        return shown, self._instances[shown]

    @contextmanager
    def _reading(self) -> Iterator[Callable[[z3.BoolRef], _Claim]]:
        """Keep apart what one claim speaks of, also where reading it leads to a definition."""
        outside, orders = self.world.mentioned, self._orders
        self.world.mentioned, self._orders = set(), []
        yield lambda expr: _Claim(expr, self.world.mentioned - {()}, self._orders)
        self.world.mentioned, self._orders = outside, orders

    def _truth(self, expr: z3.BoolRef) -> z3.BoolRef:
        relation, parts = _RELATIONS.get(expr.decl().kind()), expr.children()
        if not z3.is_bool(expr) or (relation and len(parts) != 2):  # noqa: PLR2004  # two sides
            raise Unproved(f"{expr.decl().name()} is not read on this route")
        if relation and z3.is_int(parts[0]):
            return self._compare(relation, self._number(parts[0]), self._number(parts[1]))
        return expr.decl()(*map(self._truth, parts)) if parts else expr

    def _compare(self, relation: str, left: Number, right: Number) -> z3.BoolRef:
        if relation in (">", ">="):
            relation, left, right = relation.replace(">", "<"), right, left
        self._orders.append(Order(relation, left, right))
        match relation:
            case "<":
                return (left < right).expr
            case "<=":
                return (left <= right).expr
            case "==":
                return (left == right).expr
        return (left != right).expr

    def _number(self, expr: z3.ArithRef) -> Number:
        key = expr.get_id()
        if key not in self._numbers:
            self._kept.append(expr)  # an id is unique only while its expression lives
            self._numbers[key] = self._read(expr, expr.children())
        return self._numbers[key]

    def _read(self, expr: z3.ArithRef, parts: list[Any]) -> Number:  # noqa: PLR0911  # one for each kind
        match expr.decl().kind():
            case z3.Z3_OP_ANUM:
                return self.world.constant(expr.as_long())
            case z3.Z3_OP_ADD:
                return sum(map(self._number, parts), self.world.constant(0))
            case z3.Z3_OP_SUB:
                return self._number(parts[0]) - sum(map(self._number, parts[1:]), self.world.constant(0))
            case z3.Z3_OP_UMINUS:
                return -self._number(parts[0])
            case z3.Z3_OP_MUL:
                product = self.world.constant(1)
                for part in parts:
                    product *= self._number(part)
                return product
            case z3.Z3_OP_ITE:
                return self._choice(parts)
            case z3.Z3_OP_MOD if z3.is_int_value(parts[1]) and parts[1].as_long() > 0:
                return self.world.unknown(self._number(parts[0]).expr() % parts[1])
            case z3.Z3_OP_UNINTERPRETED if not parts:
                return self._named(expr)
        raise Unproved(f"{expr.decl().name()} is not read on this route")

    def _choice(self, parts: list[Any]) -> Number:
        with self._reading() as finished:
            condition, yes, no = self._truth(parts[0]), self._number(parts[1]), self._number(parts[2])
            name = f"choice!{len(self.world.unknowns)}"
            made = self.world.unknown(z3.Int(name, self.world.context))
            taken = z3.If(condition, self._compare("==", made, yes), self._compare("==", made, no))
            claim = finished(taken)
        self.premises.append(_Premise(name, claim, _unknowns(made), is_choice=True))
        return made

    def _named(self, expr: z3.ArithRef) -> Number:
        division = self._divisions.get(expr.get_id())
        if division is None:
            made = self.world.unknown(expr)
            if expr.get_id() in self._symbols:
                self.inputs |= _unknowns(made)
            return made
        operands = self._number(division.value), self._number(division.divisor)
        known = len(self.world.quotients)
        made = self.world.quotient(*operands, upward=division.upward, expr=expr)
        if len(self.world.quotients) > known:
            name = "cdiv_char" if division.upward else "floor_char"
            self.premises.append(_Premise(*self.instance(name, operands), defines=_unknowns(made)))
        return made


def _unknowns(number: Number) -> frozenset[int]:
    return frozenset(itertools.chain.from_iterable(number.terms))


@dataclass(slots=True)
class _Search:
    """Proves claims one by one, each as a linear problem that grows by instances of lemmas."""

    reader: _Reader
    _solver: z3.Solver = field(init=False)
    _premises: dict[str, z3.BoolRef] = field(default_factory=dict)
    _known: set[Monomial] = field(default_factory=set)

    def goal(self, claim: _Claim) -> Link:
        """Prove the goal, from what speaks of the same things or else from everything."""
        with suppress(Unproved):
            return self.link("goal", claim, _ROUNDS)
        return self.link("goal", claim, _ROUNDS, self.reader.premises)

    def link(self, name: str, claim: _Claim, rounds: int, scope: Sequence[_Premise] | None = None) -> Link:
        """Prove a claim, which becomes a premise of those to come; its scope is what it may rest on.

        Raises:
            Unproved: it does not follow.
        """
        self._solver, self._premises, self._known = z3.SimpleSolver(ctx=self.reader.world.context), {}, set()
        self._solver.set("rlimit", SEARCH_RLIMIT)
        scope = self._scope(claim) if scope is None else list(scope)
        for premise in scope:
            self._suppose(premise.name, premise.claim)
        self._solver.add(z3.Not(claim.expr))
        self._guess(claim, scope)
        orders = [order for c in (claim, *(p.claim for p in scope)) for order in c.orders]
        core = self._core(orders, rounds)
        if core is None:
            raise Unproved(f"{name} does not follow by linear arithmetic from instances of the lemmas")
        self.reader.premises.append(_Premise(name, claim))
        return Link(name, claim.expr, {n: self._premises[n] for n in sorted(core)})

    def inputs_of(self, *claims: _Claim) -> set[int]:
        """Return the parameters that claims speak of, also by way of definitions."""
        reached = {index for claim in claims for index in claim.support}
        return self._grown(reached, lambda p: bool(p.defines & reached)) & self.reader.inputs

    def _scope(self, claim: _Claim) -> list[_Premise]:
        """Return the premises that may matter: what speaks of nothing but what the claim is made of."""
        inputs, premises = self.reader.inputs, self.reader.premises
        fresh = set(claim.support)
        self._grown(fresh, lambda p: p.is_choice and bool(p.defines & fresh))
        reached = inputs | claim.support
        for premise in premises:
            if premise.is_link and premise.claim.support & (fresh - inputs):
                reached |= premise.claim.support
        chosen = {index for p in premises if p.is_choice for index in p.defines}

        def matters(p: _Premise) -> bool:
            return bool(p.defines & reached) or (p.is_given and p.claim.support <= reached | chosen)

        self._grown(reached, matters)
        return [p for p in premises if (p.defines & reached if p.defines else p.claim.support <= reached)]

    def _grown(self, reached: set[int], matters: Callable[[_Premise], bool]) -> set[int]:
        """Add what the premises that matter speak of, until nothing is new."""
        while True:
            before = len(reached)
            reached.update(*(p.claim.support for p in self.reader.premises if matters(p)))
            if len(reached) == before:
                return reached

    def _suppose(self, name: str, claim: _Claim) -> None:
        self._premises[name] = claim.expr
        self._known |= claim.monomials
        self._known.update((index,) for index in claim.support)
        self._solver.assert_and_track(claim.expr, name)

    def _use(self, instances: Iterable[Instance]) -> bool:
        """Add instances of lemmas; return whether one was new."""
        before = len(self._premises)
        for name, taken in list(instances):
            shown, claim = self.reader.instance(name, taken)
            if shown not in self._premises:
                self._suppose(shown, claim)
        return len(self._premises) > before

    def _guess(self, claim: _Claim, scope: list[_Premise]) -> None:
        before = set(self._known)
        world, links = self.reader.world, [p.claim for p in scope if p.is_link]
        self._use(likely_parts(world, before))
        self._use(likely_bounds(world, claim.orders, [order for link in links for order in link.orders]))
        self._use(
            likely_orders(
                world,
                [order for p in scope if p.is_choice or not p.defines for order in p.claim.orders],
                known=frozenset(self._known),
                wanted=claim.monomials | (self._known - before),
                signs=sorted(claim.monomials.union(*(link.monomials for link in links))),
            )
        )

    def _core(self, orders: list[Order], rounds: int) -> set[str] | None:
        """Return the premises that contradict the claim's denial, or None if they are not found."""
        for left in reversed(range(rounds)):
            answer = self._solver.check()
            if answer == z3.unsat:
                return {str(name) for name in self._solver.unsat_core()}
            if answer != z3.sat or not left:
                return None
            case = Case(self.reader.world, self._known, self._solver.model())
            blamed = self._blamed(case)
            if blamed is None or not any(self._use(choice) for choice in missed(case, orders, blamed)):
                return None
        return None

    def _blamed(self, case: Case) -> set[Monomial] | None:
        """Return which products, set to their true values, contradict what is known; None if none do."""
        world = self.reader.world
        truths = {world.term(m) == case.truth(m): m for m in sorted(case.values) if m}
        if self._solver.check(*truths) != z3.unsat:
            return None
        return {truths[fact] for fact in self._solver.unsat_core() if fact in truths}
