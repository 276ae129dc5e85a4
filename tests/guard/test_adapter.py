"""The adapter for engines of one's own, and the README's runner that is written with it."""

import re
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from guard import BlockTableViolation, UnsafeDeployment, Violation
from guard.adapter import RowGuard
from invariants import Deployment, FullAttentionSpec, MambaAlignSpec

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("ROWBOUND_MODE", raising=False)


def test_rows_that_are_too_narrow_are_refused_at_start_up():
    deployment = Deployment(max_model_len=512, decode_context_parallel_size=2)
    specs = [FullAttentionSpec(block_size=16), MambaAlignSpec(block_size=16)]
    with pytest.raises(UnsafeDeployment, match="group 1 to 32 entries"):
        RowGuard.audited(deployment, specs, [16, 16], 8)
    assert RowGuard.audited(deployment, specs, [16, 32], 8).counts(7) == (0, 0)


def test_an_append_that_does_not_fit_one_group_changes_none():
    rows = RowGuard([4, 2], 2)
    assert rows.append(0, ([1, 2], [3]))
    with pytest.raises(BlockTableViolation, match=r"group 1 exceeds row capacity \(3 > 2\)"):
        rows.append(0, ([4], [5, 6]))
    assert rows.counts(0) == (2, 1)
    assert rows.append(0, ([4], [5]))


def test_rows_are_replaced_cleared_and_moved():
    rows = RowGuard([4], 2)
    rows.append(0, ([1, 2, 3],))
    rows.replace(0, ([4, 5],))
    rows.move(0, 1)
    assert (rows.counts(0), rows.counts(1)) == ((0,), (2,))
    rows.clear(1)
    assert rows.counts(1) == (0,)


def test_counting_answers_no_and_keeps_count():
    rows = RowGuard([4], 2, max_model_len=64, mode="count")
    assert not rows.append(0, ([1] * 5,))
    assert not rows.append(2, ([1],))
    assert not rows.append(0, ([1], [2]))
    assert not rows.check_tokens("long", 65)
    assert rows.check_tokens("short", 64)
    assert rows.counts(0) == (0,)
    assert rows.snapshot()["refusals"] == {
        Violation.ROW_CAPACITY: 1,
        Violation.ROW_INDEX: 1,
        Violation.GROUP_COUNT: 1,
        Violation.TOKEN_COUNT: 1,
    }


def test_off_says_yes_to_everything():
    rows = RowGuard([1], 1, max_model_len=1, mode="off")
    assert rows.append(5, ([1] * 9,))
    assert rows.check_tokens("long", 99)


def test_the_readmes_runner_refuses_what_does_not_fit_and_serves_the_rest(capsys):
    (example,) = [
        text
        for text in re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
        if "class Runner" in text
    ]
    exec(compile(example, "<example>", "exec"), {})
    printed = capsys.readouterr().out
    assert f"```text\n{printed}```" in README
    assert len(example.splitlines()) < 75
