"""The files that the command writes, called as people call it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from junitparser import JUnitXml

from proofs.files import OutputFile

COMMAND = [sys.executable, "-W", "error", "-m", "proofs.check"]
FORMATS = ("json", "junit", "sarif", "html")
SARIF = json.loads((Path(__file__).parent / "sarif-2.1.0-rtm.5.json").read_text())


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120, **options
    )


def outputs(folder):
    paths = {name: folder / f"report.{name}" for name in FORMATS}
    return paths, [part for name, path in paths.items() for part in (f"--{name}", str(path))]


def is_complete(name, text):
    """Return whether a file of a run says of itself that the run ended."""
    match name:
        case "json":
            return json.loads(text)["complete"]
        case "junit":
            (suite,) = JUnitXml.fromfile(io.StringIO(text))
            return {item.name: item.value for item in suite.properties()}["complete"] == "true"
        case "sarif":
            jsonschema.Draft4Validator(SARIF).validate(json.loads(text))
            return json.loads(text)["runs"][0]["invocations"][0]["executionSuccessful"]
    return "This run did not end" not in text


def test_one_run_writes_them_all_and_they_agree(tmp_path):
    paths, options = outputs(tmp_path)
    done = run("--release", "vllm-0.28", "--spec", "mamba-align", "--invariant", "row-fits", *options)
    assert (done.returncode, done.stderr) == (1, "")
    texts = {name: path.read_text() for name, path in paths.items()}
    assert all(is_complete(name, text) for name, text in texts.items())
    (suite,) = JUnitXml.fromfile(io.StringIO(texts["junit"]))
    assert (suite.tests, suite.failures, suite.errors) == (2, 1, 0)
    assert len(json.loads(texts["sarif"])["runs"][0]["results"]) == 1
    assert "1 of 2 claims is refuted" in texts["html"]
    assert sorted(tmp_path.iterdir()) == sorted(paths.values())


def test_an_interrupted_run_leaves_no_file_that_looks_green(tmp_path):
    paths, options = outputs(tmp_path)
    for path in paths.values():
        path.write_text("an earlier run's, and all was proved")
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline().startswith("PROVED")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not any(is_complete(name, path.read_text()) for name, path in paths.items())
    assert sorted(tmp_path.iterdir()) == sorted(paths.values())


def test_a_killed_run_leaves_no_file_that_looks_green(tmp_path):
    paths, options = outputs(tmp_path)
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.kill()
    assert not any(is_complete(name, path.read_text()) for name, path in paths.items())


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_cannot_be_written_is_one_line_and_exit_2(name):
    for target, said in (
        ("/nonexistent/report", "cannot write /nonexistent/report: No such file or directory"),
        ("/", "cannot write /"),
        ("-", f"--{name} takes a file; /dev/stdout is one"),
    ):
        done = run("--spec", "mla", f"--{name}", target)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert said in line


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_cannot_be_written_at_the_end_does_not_pass(name, tmp_path):
    done = run("--spec", "mla", f"--{name}", "/dev/full", "--emit-test", tmp_path / "test_it.py")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(r"the \w+ (report|page) was not written: .*No space left", line)


def test_two_outputs_never_share_a_file(tmp_path):
    (tmp_path / "link").symlink_to("report")
    done = run("--spec", "mla", "--json", tmp_path / "report", "--junit", tmp_path / "link")
    assert done.returncode == 2
    assert "--json and --junit name one file" in done.stderr
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_missing_optional_package_is_named_with_the_extra_that_brings_it(missing, tmp_path):
    path = str(tmp_path / "page.html")
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from proofs.command import main;"
        f"sys.exit(main(['--spec', 'mla', '--html', {path!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"--html needs {missing}: pip install 'rowbound[report]'" in line
    assert not list(tmp_path.iterdir())


def test_no_output_but_the_page_needs_an_optional_package(tmp_path):
    blocked = "jinja2", "markupsafe", "matplotlib", "numpy", "junitparser", "jsonschema", "yaml"
    files = [part for name in FORMATS[:3] for part in (f"--{name}", str(tmp_path / name))]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); from proofs.command import main;"
        f"sys.exit(main(['--spec', 'mla', *{files!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    OutputFile(path).write("old", complete=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        OutputFile(path).write("new", complete=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_picture_is_printed_below_the_counterexample_in_signs_that_the_output_has():
    pins = [part for pin in ("max_model_len=512", "block_size=16", "decode_context_parallel_size=2")
            for part in ("--at", pin)]  # fmt: skip
    asked = ["--release", "vllm-0.28", "--spec", "mamba-align", "--invariant", "row-fits", *pins]
    for encoding, picture in (
        ("utf-8", "│■■■■■■■■■■■■■■■■│×···············│"),
        ("ascii", "|################|X----"),
    ):
        done = run(*asked, env={**os.environ, "PYTHONIOENCODING": encoding}, encoding=encoding)
        assert done.returncode == 1
        assert f"next request's row\n         memory     {picture}" in done.stdout


@pytest.mark.parametrize("code", ["VACUOUS", "vacuous", "cache-mode", "read-by-kernel"])
def test_a_word_is_explained_and_nothing_is_decided(code):
    done = run("--explain", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lower().startswith(f"{code.lower()}\n  what it means")
    assert "PROVED   " not in done.stdout


@pytest.mark.parametrize(
    ("code", "hint"),
    [("VACOUS", "did you mean VACUOUS?"), ("row-fit", "did you mean row-fits?"), ("zzz", "there are")],
)
def test_an_unknown_word_is_one_line_with_the_closest_one(code, hint):
    done = run("--explain", code)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert hint in line
