"""What mutmut leaves alive is told, unless it is listed as what nobody can tell from the original."""

import json

import pytest

from tests.invariants import survivors

SOURCE = """
def x_half__mutmut_orig(count):
    spec = cast("Spec", count)
    return zip(spec, strict=True)

def x_half__mutmut_1(count):
    spec = cast("Spec", count)
    return zip(spec, strict=False)

def x_half__mutmut_2(count):
    spec = cast(None, count)
    return zip(spec, strict=True)

def x_half__mutmut_3(count):
    spec = None
    return zip(spec, strict=True)
"""
LOOSE, GONE = "sizes.x_half: return zip(spec, strict=False)", "sizes.x_half: spec = None"
REASONED = f"# both are as long\n{LOOSE}\n"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Write what mutmut leaves behind of three mutants with these exit codes, and list some as equivalent."""

    def write(codes, listed=""):
        (tmp_path / "sizes.py").write_text(SOURCE)
        names = {f"sizes.x_half__mutmut_{number}": code for number, code in enumerate(codes, 1)}
        (tmp_path / "sizes.py.meta").write_text(json.dumps({"exit_code_by_key": names}))
        (tmp_path / "listed.txt").write_text(listed)
        monkeypatch.setattr(survivors, "LISTED", tmp_path / "listed.txt")
        return survivors.main(tmp_path)

    return write


@pytest.mark.parametrize(
    ("codes", "listed", "code", "line"),
    [
        ((1, 1, 3), "", 0, "0 mutants that no test can notice"),
        ((1, 0, 36), "", 0, "0 mutants"),  # a cast looks at no type; one that runs on for ever is noticed
        ((0, 1, 1), "", 1, f"survived: {LOOSE}"),
        ((0, 1, 1), REASONED, 0, "1 mutants that no test can notice"),
        ((0, 1, 33), REASONED, 1, f"no test: {GONE}"),
        ((1, 1, None), "", 1, f"not tried: {GONE}"),
        ((1, 1, -11), "", 1, f"ended with -11: {GONE}"),
        ((1, 1, 1), REASONED, 1, f"listed as equivalent, but noticed or gone: {LOOSE}"),
    ],
)
def test_a_survivor_is_told_unless_it_is_listed(ran, capsys, codes, listed, code, line):
    assert ran(codes, listed) == code
    assert line in capsys.readouterr().out


def test_no_results_are_no_success(tmp_path, monkeypatch):
    monkeypatch.setattr(survivors, "LISTED", tmp_path / "listed.txt")
    (tmp_path / "listed.txt").write_text("")
    assert survivors.main(tmp_path) == 1


def test_every_listed_mutant_has_a_reason():
    text = survivors.LISTED.read_text()
    listed = survivors.read_listed(text)
    assert len(listed) == len([line for line in text.splitlines() if line and not line.startswith("# ")])
    assert all(len(reason) > 20 for reason in listed.values())
