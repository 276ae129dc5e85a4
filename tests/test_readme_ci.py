"""The README's examples for CI: they parse, their commands run, and what is uploaded is what was written."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def example(name):
    """Return the one YAML example whose first line is this file's name."""
    (text,) = (text for kind, text in BLOCKS if kind == "yaml" and text.startswith(f"# {name}\n"))
    return yaml.safe_load(text)


@pytest.fixture
def engine(tmp_path):
    """Where the README's `my_engine.py` lies."""
    (source,) = (text for kind, text in BLOCKS if kind == "python" and "# my_engine.py" in text)
    (tmp_path / "my_engine.py").write_text(source)
    return tmp_path


def call(command, folder):
    program, *arguments = shlex.split(command)
    assert program == "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_there_is_no_other_yaml_in_the_readme():
    names = [text.partition("\n")[0] for kind, text in BLOCKS if kind == "yaml"]
    assert names == ["# .github/workflows/rowbound.yml", "# .pre-commit-config.yaml"]


def test_the_workflow_passes_and_uploads_what_it_wrote(engine):
    (job,) = example(".github/workflows/rowbound.yml")["jobs"].values()
    install, check = (step["run"] for step in job["steps"] if "run" in step)
    done = call(check, engine)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert " PROVED, 0 REFUTED" in done.stdout
    given = [step["with"] for step in job["steps"] if step.get("if") == "always()"]
    uploaded = {
        name for way in given for name in f"{way.get('sarif_file', '')} {way.get('path', '')}".split()
    }
    assert {path.name for path in engine.iterdir()} == {*uploaded, "my_engine.py"}
    (extra,) = re.findall(r"^pip install '\S+\[(\w+)\]'$", install)
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_hook_passes_and_fails_when_the_row_loses_an_entry(engine):
    (source,) = example(".pre-commit-config.yaml")["repos"]
    (hook,) = source["hooks"]
    assert (source["repo"], hook["language"], hook["pass_filenames"]) == ("local", "system", False)
    assert re.search(hook["files"], "my_engine.py")
    assert call(hook["entry"], engine).returncode == 0
    code = (engine / "my_engine.py").read_text()
    narrow = code.replace(
        "deployment.decode_context_parallel_size)", "deployment.decode_context_parallel_size) - 1"
    )
    assert narrow != code
    (engine / "my_engine.py").write_text(narrow)
    assert call(hook["entry"], engine).returncode == 1
