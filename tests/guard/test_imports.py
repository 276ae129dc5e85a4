"""What importing the guard needs, and what it never imports."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Blocked())
"""


def run(script, *blocked):
    code = BLOCK.replace("{blocked!r}", repr(set(blocked) or {"no such module"})) + script
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_audit_and_errors_work_without_torch_triton_and_numpy():
    done = run(
        "from guard import audit\nfrom invariants import Deployment, FullAttentionSpec\n"
        "print(audit(Deployment(max_model_len=64), [FullAttentionSpec(block_size=16)]).ok)",
        "torch",
        "triton",
        "numpy",
    )
    assert (done.stdout.strip(), done.stderr) == ("True", "")


@pytest.mark.parametrize("missing", ["torch", "triton", "numpy"])
def test_tables_without_what_they_need_give_one_clear_line(missing):
    done = run(
        "import guard\ntry:\n    guard.BlockTables\nexcept ImportError as error:\n    print(error)", missing
    )
    assert done.stdout.strip() == f"guard.BlockTables needs {missing}: install rowbound with its extra `gpu`"


def test_the_adapter_needs_numpy_alone_and_says_so():
    assert run("import guard.adapter", "torch", "triton").returncode == 0
    done = run("try:\n    import guard.adapter\nexcept ImportError as error:\n    print(error)", "numpy")
    assert done.stdout.strip() == "guard.adapter needs numpy: install rowbound with its extra `gpu`"


def test_the_doctor_needs_nothing_but_the_standard_library():
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("an engine is installed here")
    done = run("from guard.doctor import main\nmain([])", "torch", "triton", "numpy")
    assert done.stderr == "guard.doctor: no engine: vLLM is not installed for this Python\n"


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_the_reference_case_without_what_it_needs_gives_one_clear_line(missing):
    done = run("from guard.poc import main\nsys.exit(main(['--device', 'auto']))", missing)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"guard.poc: needs {missing}: install rowbound with its extra `gpu`\n"


def test_the_guard_imports_neither_z3_nor_the_proofs():
    pytest.importorskip("triton")
    done = run(
        "import guard, guard.poc\nguard.BlockTables\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in {'z3', 'proofs', 'cvc5'}))"
    )
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    import guard

    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        guard.Nothing  # noqa: B018
