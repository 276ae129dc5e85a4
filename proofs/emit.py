"""Counterexamples as a pytest file that needs the `invariants` package alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

from invariants import parameters_for
from proofs.verdicts import Obligation, Outcome

__all__ = ["test_file"]

_HEAD = '''\
"""Cases that break a claim about block-table rows; each test fails for as long as the fault is there."""

from invariants import Runner, build_case, claim, release
'''
_TEST = '''

def test_{name}():
    """{sentence}."""
    asked, known = claim("{label}"), release("{release}")
    case = build_case(
        "{kind}",
        {values},
        asked.parts,
    )
    assert not asked.broken(case, known, Runner.{runner}), "the case is not legal"
    assert asked.holds(case, known, Runner.{runner}), "{summary}"
'''


def test_file(decided: Iterable[tuple[Obligation, Outcome]]) -> str:
    """Return the text of the file, with a test for each counterexample."""
    return _HEAD + "".join(_test(o, outcome) for o, outcome in decided if outcome.counterexample)


def _test(obligation: Obligation, outcome: Outcome) -> str:
    found = outcome.counterexample
    if found is None:
        return ""
    title = f"{obligation.release.name}_{obligation.kind}_{obligation.label}_{obligation.runner.value}"
    values = "".join(
        f'            "{name}": {found.values[name]!r},\n'
        for name in (
            parameter.name for parameter in parameters_for(obligation.kind, obligation.invariant.parts)
        )
    )
    return _TEST.format(
        name=re.sub(r"\W", "_", title).lower(),
        sentence=obligation.invariant.sentence.capitalize(),
        kind=obligation.kind,
        values=f"{{\n{values}        }}",
        release=obligation.release.name,
        label=obligation.label,
        runner=obligation.runner.name,
        summary=found.summary,
    )
