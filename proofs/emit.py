"""Counterexamples as a pytest file that needs the `invariants` package alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

from invariants import parameters_for
from proofs.verdicts import Obligation, Outcome

__all__ = ["test_file"]

_HEAD = '''\
"""Cases that break a claim about block-table rows; each test fails for as long as the fault is there."""

from invariants import INVARIANTS, Runner, broken_assumptions, build_case, release

CLAIMS = {invariant.name: invariant for invariant in INVARIANTS}
'''
_TEST = '''

def test_{name}():
    """{sentence}."""
    case = build_case(
        "{kind}",
        {values},
    )
    known = release("{release}")
    assert not broken_assumptions(case, known), "the case is not legal"
    assert CLAIMS["{invariant}"].holds(case, known, Runner.{runner}), "{summary}"
'''


def test_file(decided: Iterable[tuple[Obligation, Outcome]]) -> str:
    """Return the text of the file, with a test for each counterexample."""
    return _HEAD + "".join(_test(o, outcome) for o, outcome in decided if outcome.counterexample)


def _test(obligation: Obligation, outcome: Outcome) -> str:
    found = outcome.counterexample
    if found is None:
        return ""
    title = (
        f"{obligation.release.name}_{obligation.kind}_{obligation.invariant.name}_{obligation.runner.value}"
    )
    values = "".join(
        f'            "{name}": {found.values[name]!r},\n'
        for name in (parameter.name for parameter in parameters_for(obligation.kind))
    )
    return _TEST.format(
        name=re.sub(r"\W", "_", title).lower(),
        sentence=obligation.invariant.sentence.capitalize(),
        kind=obligation.kind,
        values=f"{{\n{values}        }}",
        release=obligation.release.name,
        invariant=obligation.invariant.name,
        runner=obligation.runner.name,
        summary=found.summary,
    )
