"""What `mutmut run` left alive, held against the list of mutants that nobody can tell from the original.

`python tests/invariants/survivors.py` exits 1 if a mutant was noticed by no test, and is not listed in
`equivalent_mutants.txt`, or was not tried; and if a listed one is none any more. A mutant is listed by its
function and the lines that it changes, since its number changes with every edit.
"""

from __future__ import annotations

import ast
import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

LISTED = Path(__file__).with_name("equivalent_mutants.txt")
KILLED, TIMED_OUT = {1, 3}, {36, 24, -24, 152, 255}
STATUS: Mapping[int | None, str] = {
    0: "survived",
    5: "no test",
    33: "no test",
    None: "not tried",
}


def read_listed(text: str) -> dict[str, str]:
    """Return each listed mutant with its reason: the comment above it."""
    listed, reason = {}, ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("# "):
            reason = line[2:]
        else:
            listed[line] = reason
    return listed


class _CastsToNothing(ast.NodeTransformer):
    """Take the type out of every `cast`, which looks at it in no way."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_cast = isinstance(node.func, ast.Name) and node.func.id == "cast" and len(node.args) > 1
        return node.args[1] if is_cast else node


def _lines(function: ast.FunctionDef) -> list[str]:
    plain = ast.parse(ast.unparse(function)).body[0]
    plain.name = "f"
    return [line.strip() for line in ast.unparse(_CastsToNothing().visit(plain)).splitlines()]


def change(original: ast.FunctionDef, mutant: ast.FunctionDef) -> str:
    """Return the lines that a mutant has in place of the original's; empty if they do the same by `cast`."""
    before, after = _lines(original), _lines(mutant)
    if before == after:
        return ""
    added = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    return " ".join(added) or "(a part is left out)"


def unnoticed(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each mutant under mutmut's folder that no test noticed: function and change, and status."""
    for meta in sorted(root.glob("**/*.py.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        alive = {name: code for name, code in codes.items() if code not in KILLED | TIMED_OUT}
        tree = ast.parse(meta.with_suffix("").read_text()) if alive else ast.Module([], [])
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for name, code in alive.items():
            module, _, mutant = name.rpartition(".")
            function = mutant.rpartition("__mutmut_")[0]
            edit = change(functions[f"{function}__mutmut_orig"], functions[mutant])
            if edit:
                yield f"{module}.{function}: {edit}", STATUS.get(code, f"ended with {code}")


def main(root: Path = Path("mutants")) -> int:
    """Print what is not as the list says, and return the exit code."""
    listed, found = read_listed(LISTED.read_text()), dict(unnoticed(root))
    for mutant, status in found.items():
        if mutant not in listed:
            print(f"{status}: {mutant}")  # noqa: T201
    for mutant in listed.keys() - found.keys():
        print(f"listed as equivalent, but noticed or gone: {mutant}")  # noqa: T201
    if not any(root.glob("**/*.py.meta")):
        print(f"nothing was tried: {root} has no results of mutmut")  # noqa: T201
        return 1
    print(f"{len(found)} mutants that no test can notice")  # noqa: T201
    return int(found.keys() != listed.keys())


if __name__ == "__main__":
    sys.exit(main())
