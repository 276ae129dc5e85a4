"""Somebody's integer code is followed along every path, and what cannot be followed is never passed over."""

import math
from pathlib import Path

import pytest
import z3

from proofs import follow
from proofs.follow import LostError, Opaque, Run, explore, followed
from proofs.terms import Definitions

HERE = Path(__file__).parent


def ways(code, **bounds):
    """Return what some code returns on each path, for sizes between these bounds."""
    found = []

    def start(begun):
        definitions = Definitions()
        sizes = {name: definitions.symbol(name, low) for name, (low, _) in bounds.items()}
        assumed = {
            f"{name} is in its range": z3.And(low <= sizes[name].expr, sizes[name].expr <= high)
            for name, (low, high) in bounds.items()
        }
        run = Run(HERE, definitions, begun, assumed, is_exploring=True)

        def body():
            result = code(*map(run.wrap, sizes.values()))
            found.append((run, sizes, result))

        return run, body

    return explore(start), found


def holds_on_all(found, size, expected):
    """Return whether the result of each path is the expected one wherever its conditions hold."""
    for run, sizes, result in found:
        solver = z3.Solver(ctx=run.definitions.context)
        term = run.definitions.lift(getattr(result, "inner", result))
        solver.add(*run.definitions.facts, *run.conditions, sizes["n"].expr == size, term.expr != expected)
        if solver.check() != z3.unsat:
            return False
    return True


@pytest.mark.parametrize(
    ("code", "paths"),
    [
        (lambda n: n if n > 5 else 7, 2),
        (lambda n: max(n, 5), 2),
        (lambda n: min(max(n, 3), 7), 3),
        (lambda n: -(n // -4), 1),
        (lambda n: -(-n // 4), 1),
        (lambda n: n % 4 + divmod(n, 3)[0], 1),
        (lambda n: 128 // math.gcd(128, n), 1),
        (lambda n: abs(n - 6), 2),
        (lambda n: sum(1 for _ in range(n)), 10),
        (lambda n: [7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10][n], 10),
        (lambda n: len({n, n + 0, n * 1}), 1),
        (lambda n: int(isinstance(n, int)), 1),
        (lambda n: 1 if n else 0, 1),
        (lambda n: n * 12 // 12, 1),
    ],
)
def test_code_is_followed_along_every_path_and_means_what_it_means_on_plain_numbers(code, paths):
    explored, found = ways(code, n=(1, 10))
    assert len(explored.paths) == paths
    assert all(holds_on_all(found, size, code(size)) for size in range(1, 11))


def test_a_path_that_the_assumptions_exclude_is_left_out_and_they_are_named():
    explored, _ = ways(lambda n: n if n < 11 else 0, n=(1, 10))
    assert len(explored.paths) == 1
    assert explored.used == {"n is in its range"}


def test_a_quotient_of_a_quotient_is_exact_where_that_is_assumed():
    definitions = Definitions()
    total, part = (definitions.symbol(name, 1) for name in ("total", "part"))
    each = total // part
    exact = {"exact": (each * part == total).expr}
    run = Run(HERE, definitions, (), exact, is_exploring=True)
    assert followed(run, lambda: run.wrap(total) // run.wrap(each)).inner.expr.eq(part.expr)
    run = Run(HERE, definitions, (), {}, is_exploring=True)
    with pytest.raises(LostError, match="a division that may leave something"):
        followed(run, lambda: run.wrap(total) // run.wrap(each))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (lambda n: n**2, "the operation pow on a size"),
        (lambda n: n / 2, "the operation truediv on a size"),
        (lambda n: n << 1, "the operation lshift on a size"),
        (math.ceil, "the operation ceil on a size"),
        (float, "the operation float on a size"),
        (lambda n: n.bit_length(), "the attribute bit_length of a size"),
        (lambda n: range(n)[0], "it can be one of more than 16"),
        (lambda n: (n > 3) + 1, "the operation add on a size"),
    ],
)
def test_what_cannot_be_followed_is_told_with_its_place(code, told):
    with pytest.raises(LostError, match=r"proofs/test_follow\.py:\d+: cannot follow ") as lost:
        ways(code, n=(1, 1000))
    assert told in str(lost.value)


def test_code_that_swallows_the_refusal_is_not_believed():
    def swallowing(n):
        try:
            return n**2
        except BaseException:  # noqa: BLE001  # what an engine may do
            return n

    with pytest.raises(LostError, match="the operation pow"):
        ways(swallowing, n=(1, 9))


def test_an_exception_of_the_code_ends_it_where_it_was_raised():
    def refusing(n):
        if n > 5:
            message = "too long"
            raise ValueError(message)
        return n

    with pytest.raises(LostError, match=r"proofs/test_follow\.py:\d+: ValueError: too long"):
        ways(refusing, n=(1, 9))
    assert len(ways(refusing, n=(1, 5))[0].paths) == 1


def test_too_many_paths_are_not_followed(monkeypatch):
    monkeypatch.setattr(follow, "MOST_PATHS", 4)
    with pytest.raises(LostError, match="more than 4 paths"):
        ways(lambda n: sum(1 for _ in range(n)), n=(1, 9))


def test_a_second_run_that_goes_another_way_is_an_error():
    definitions = Definitions()
    size = definitions.symbol("n", 1)
    for answers in ((), (True, True)):
        run = Run(HERE, definitions, answers)
        with pytest.raises(LostError, match="a second run"):
            followed(run, lambda run=run: run.wrap(size) > 3 and 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda it: it + 1,
        lambda it: it > 1,
        lambda it: it == 3,
        bool,
        lambda it: list(it.things),
        lambda it: it.call()[0],
        lambda it: isinstance(it.part, int),
        len,
        range,
    ],
)
def test_what_is_not_modelled_may_be_handed_on_and_not_looked_at(use):
    run = Run(HERE)
    with Opaque("config", run).context() as handed_on:
        assert handed_on.attribute.method(1, key=2) is not None
    with pytest.raises(LostError, match="config"):
        use(Opaque("config", run))


def test_gcd_is_pythons_own_again_afterwards():
    plain = math.gcd
    ways(lambda n: math.gcd(n, 4), n=(1, 9))
    assert math.gcd is plain
