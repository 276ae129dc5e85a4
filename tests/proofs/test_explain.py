"""Every word of the output is explained."""

import ast
import re
from pathlib import Path

import pytest

from invariants import ASSUMPTIONS, INVARIANTS
from proofs import explain
from proofs.explain import ENTRIES, explain_text
from proofs.problem import SIZES
from proofs.verdicts import Verdict

WORDS = [
    *(verdict.value for verdict in Verdict),
    *(name for i in INVARIANTS for name in (i.name, i.label)),
    *(assumption.name for assumption in ASSUMPTIONS),
    *(given.name for invariant in INVARIANTS for given in invariant.givens),
    SIZES,
    "not-asked",
    "perhaps-not-the-smallest",
    "incomplete",
]


@pytest.mark.parametrize("word", WORDS)
def test_each_has_a_meaning_and_an_advice(word):
    entry = ENTRIES[word]
    assert len(entry.meaning) > 20
    assert len(entry.advice) > 20
    assert entry.advice.endswith(".")


def test_an_assumption_is_told_in_its_own_sentence_with_its_source():
    for assumption in ASSUMPTIONS:
        assert assumption.sentence in ENTRIES[assumption.name].meaning
        assert ENTRIES[assumption.name].source == assumption.source


def test_no_advice_is_left_behind_for_what_is_gone():
    names = {assumption.name for assumption in ASSUMPTIONS}
    assert set(explain._ASSUMPTIONS) == names
    assert set(explain._INVARIANTS) == {invariant.name for invariant in INVARIANTS}


def test_options_that_an_entry_names_exist():
    source = (Path(explain.__file__).parent / "command.py").read_text()
    options = {
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
    }
    named = set(re.findall(r"--[a-z-]+", "".join(map(explain_text, ENTRIES))))
    assert named
    assert named <= options


def test_the_text_is_wrapped_and_begins_with_the_word():
    for word in ENTRIES:
        lines = explain_text(word).splitlines()
        assert lines[0] == word
        assert lines[1].startswith("  what it means")
        assert max(map(len, lines)) <= 88
