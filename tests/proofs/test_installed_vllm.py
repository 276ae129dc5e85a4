"""The engine lane: the vLLM that is installed here gets the verdicts that its release is known for."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("### The engine that you have installed")[2].partition("\n### ")[0]
SESSIONS = re.findall(r"^```text\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
SHOWN = dict(zip(("0.28", "0.32"), SESSIONS, strict=True))

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"),
]

MAMBA = "mamba-none", "mamba-align", "mamba-all"
# V2 divided the rows of replicated state by dcp (fixed in 0.29), and the wrapper's width lacked the draft
# states (on V1 fixed in 0.28).
TOO_NARROW = {
    "0.26": {
        *((kind, "V2") for kind in MAMBA[1:]),
        *((f"uniform-{kind}", how) for kind in MAMBA for how in ("-", "V1", "V2")),
    },
    "0.28": {
        *((kind, "V2") for kind in MAMBA[1:]),
        *((f"uniform-{kind}", "V2") for kind in MAMBA),
    },
    # Chunked-local lists are replicated over dcp's ranks in these two, their rows divided.
    "0.29": {("chunked-local", how) for how in ("-", "V1", "V2")},
    "0.31": set(),
}
TOO_NARROW |= {"0.27": TOO_NARROW["0.26"], "0.30": TOO_NARROW["0.29"]}
TOO_NARROW |= dict.fromkeys(("0.32", "0.33"), TOO_NARROW["0.31"])
# Their scheduler is not described: nothing is proved. Model Runner V1 is gone from 0.34 on.
NOT_DESCRIBED = ("0.34",)


@pytest.fixture(scope="module")
def version():
    code = "import vllm; print(vllm.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ".".join(done.stdout.split()[-1].split(".")[:2])


def check(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "proofs.check", "--installed", "vllm", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={"VLLM_LOGGING_LEVEL": "ERROR", **os.environ},
    )


@pytest.fixture(scope="module")
def whole():
    return check()


def test_nothing_of_a_release_that_is_not_described_is_proved(whole, version):
    if version not in NOT_DESCRIBED:
        pytest.skip(f"vLLM {version} is described")
    assert whole.returncode == 3, whole
    assert "not asked: V1: this vLLM has no Model Runner V1" in whole.stdout
    assert re.search(r": 0 PROVED, 0 REFUTED, 0 VACUOUS, [1-9]\d* UNKNOWN, 0 ERROR", whole.stdout)
    unknown = [line for line in whole.stdout.splitlines() if line.startswith("UNKNOWN ")]
    assert all("holds with the scheduler of vllm-0.33" in line for line in unknown), whole


def test_every_row_gets_the_verdict_that_its_release_is_known_for(whole, version):
    if version in NOT_DESCRIBED:
        pytest.skip(f"the scheduler of vLLM {version} is not described")
    refuted = {tuple(line.split()[1:3]) for line in whole.stdout.splitlines() if line.startswith("REFUTED")}
    assert refuted == TOO_NARROW[version], whole
    assert whole.returncode == (1 if refuted else 0), whole
    assert "0 VACUOUS, 0 UNKNOWN, 0 ERROR" in whole.stdout


def test_the_formulas_that_all_claims_rest_on_are_what_the_engine_does(whole, version):
    if version == "0.26" or version in NOT_DESCRIBED:
        pytest.skip("how vLLM 0.26 pads is not compared, and of a release not described nothing is proved")
    lines = [line for line in whole.stdout.splitlines() if " row-width " in line]
    assert len(lines) > 20
    assert all(line.startswith("PROVED ") for line in lines), whole


def test_both_runners_own_functions_were_run(whole, version):
    if version in NOT_DESCRIBED:
        pytest.skip(f"vLLM {version} has one runner")
    for function in (
        "GPUModelRunner.initialize_kv_cache (vllm/v1/worker/gpu/model_runner.py:",
        "BlockTables (vllm/v1/worker/gpu/block_table.py:",
        "GPUModelRunner.may_reinitialize_input_batch (vllm/v1/worker/gpu_model_runner.py:",
        "MultiGroupBlockTable (vllm/v1/worker/block_table.py:",
        "MambaSpec.max_num_blocks_per_req (vllm/v1/kv_cache_interface.py:",
    ):
        assert function in whole.stdout


# By hand: 2 ranks and 16 tokens a block, so that a row of 17 or 18 tokens has one entry; 0.26 pads to 8.
SMALLEST = {
    "0.26": "at 129 tokens the scheduler hands over 9 entries for a row of 8: 1 too many",
    "0.27": "at 17 tokens the scheduler hands over 2 entries for a row of 1: 1 too many",
    "0.28": "at 17 tokens the scheduler hands over 2 entries for a row of 1: 1 too many",
}


def test_the_smallest_overflow_of_a_faulty_release_comes_from_its_own_code(version):
    if version not in SMALLEST:
        pytest.skip(f"vLLM {version} has no such fault")
    done = check("--spec", "mamba-align", "--runner", "V2")
    assert done.returncode == 1, done
    assert SMALLEST[version] in done.stdout


def same_on_every_run(line):
    """Leave out times and where the engine lies."""
    return re.sub(r" +\d+ ms|; [\d.]+ s$|(?<= in )\S+(?=, its own code)", "", line)


def test_the_readme_shows_what_this_release_prints(version):
    if version not in SHOWN:
        pytest.skip(f"the README shows nothing of vLLM {version}")
    printed = {same_on_every_run(line) for line in check("--spec", "mamba-align").stdout.splitlines()}
    lines = [line for line in SHOWN[version].splitlines() if not line.startswith("$ ")]
    assert lines
    assert not [line for line in lines if same_on_every_run(line) not in printed]
