"""Run a module of claims once more, so that what it builds on import is built by the test that asks.

A mutant of a function that runs on import shows in no test otherwise: the module was imported before.
"""

import importlib.util


def anew(name):
    """Return a module of `invariants`, executed again; the one that is imported stays as it is."""
    spec = importlib.util.find_spec(f"invariants.{name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(invariant, case, known, runner):
    """Return what a claim says of a case: whether it holds, its numbers, what is to spare and the clash."""
    sides = invariant.sides(case, known, runner)
    numbers = {f"{side.who}: {side.what}": side.value for side in sides}
    spare = None if invariant.margin is None else invariant.margin(case, known, runner)
    clash = invariant.clash(case, tuple(side.value for side in sides))
    return invariant.holds(case, known, runner), numbers, spare, clash


def given_names(invariant):
    """Return the names of what narrows a claim."""
    return [given.name for given in invariant.givens]


def made_on(invariant, *specs):
    """Return on which runners a claim is made of each spec, in one string such as "V1 V2, -"."""
    return ", ".join(" ".join(r.value for r in invariant.runners(spec)) or "-" for spec in specs)
