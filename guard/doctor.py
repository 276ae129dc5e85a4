"""What the guard would do in this environment: `python -m guard.doctor`.

It reads the installed engine's files and the environment, imports nothing of the engine and starts nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guard.errors import GuardUsageError
from guard.settings import ENVIRONMENT_VARIABLE, Mode, chosen_mode
from guard.vllm._config import release_of
from guard.vllm._known import KNOWN_BAD
from guard.vllm._layout import TARGETS, problems_in_files

# ruff: noqa: T201 - the report is printed

__all__ = ["main"]

ENTRY_POINT_GROUP = "vllm.general_plugins"
_GUARDED, _NOT_GUARDED, _USAGE, _NO_ENGINE = 0, 1, 2, 3
_EPILOG = """\
exit codes:
  0  an engine is installed and will be guarded
  1  it will not: the mode is off, the plugin is left out, or a layout is not known
  2  wrong usage, a setting that does not exist, or nobody reads the output
  3  no engine is installed
"""


@dataclass(frozen=True, slots=True)
class _Engine:
    """An installed vLLM."""

    distribution: str
    version: str
    package: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m guard.doctor",
        description="Report which engine is installed and what the guard would do in it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    try:
        mode = chosen_mode()
    except GuardUsageError as error:
        print(f"guard.doctor: {error}", file=sys.stderr)
        return _USAGE
    engine = _find_engine()
    if engine is None:
        print("guard.doctor: no engine: vLLM is not installed for this Python", file=sys.stderr)
        return _NO_ENGINE
    return _report(engine, mode)


def _report(engine: _Engine, mode: Mode) -> int:
    _say("engine", f"vLLM {engine.version} (distribution {engine.distribution}) in {engine.package}")
    _say("runner", _runner())
    source = f"from {ENVIRONMENT_VARIABLE}" if os.environ.get(ENVIRONMENT_VARIABLE) else "the default"
    _say("mode", f'{mode.value}, {source}; additional_config={{"rowbound": {{"mode": ...}}}} goes before it')
    left_out = _why_left_out()
    _say("plugin", "loaded by the engine in each of its processes" if left_out is None else left_out)
    unknown = False
    for target in TARGETS.values():
        problems = problems_in_files(target, engine.package)
        unknown = unknown or bool(problems)
        _say(
            "probe",
            f"{target.purpose}: "
            + ("; ".join(problems) if problems else f"as expected; {target.changed} is changed"),
        )
    for line in _findings(engine.version):
        _say("release", line)
    guarded = left_out is None and not unknown and mode is not Mode.OFF
    unguarded = "off, as the mode says" if mode is Mode.OFF else "not guarded, or not in every part"
    _say("result", "guarded" if guarded else unguarded)
    return _GUARDED if guarded else _NOT_GUARDED


def _say(label: str, text: str) -> None:
    print(textwrap.fill(text, 110, initial_indent=f"{label:<9}", subsequent_indent=" " * 9))


def _find_engine() -> _Engine | None:
    # A top-level package is found without importing it.
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    names = importlib.metadata.packages_distributions().get("vllm", [])
    if not names:
        return None
    return _Engine(names[0], importlib.metadata.version(names[0]), package)


def _runner() -> str:
    chosen = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    if chosen in {"0", "1"}:
        return f"Model Runner {'V2' if chosen == '1' else 'V1'}, from VLLM_USE_V2_MODEL_RUNNER"
    return "Model Runner V1 or V2, as the engine decides at start-up; it logs which one is guarded"


def _why_left_out(environment: Mapping[str, str] = os.environ) -> str | None:
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    if not any(point.value == "guard.vllm:install" for point in entry_points):
        return "not registered: install rowbound into this environment with pip"
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is not None and "rowbound" not in allowed.split(","):
        return f"left out: VLLM_PLUGINS is {allowed!r}; add rowbound to it"
    return None


def _findings(version: str) -> Iterator[str]:
    release = release_of(version)
    if release is None or release.name not in KNOWN_BAD:
        known = ", ".join(name.removeprefix("vllm-") for name in KNOWN_BAD)
        yield f"{version} is not one that the guard was made for ({known}); nothing is known about it"
        return
    for bad in KNOWN_BAD[release.name]:
        runners = " and ".join(runner.value for runner in bad.runners)
        yield (
            f"{release.name} is known bad: {bad.invariant} is refuted for {', '.join(bad.kinds)} "
            f"on {runners}: {bad.what}; {bad.guarded}. {bad.see}"
        )
    yield f"every verdict: python -m proofs.check --release {release.name}"


if __name__ == "__main__":
    if sys.stdout is None:
        sys.exit(_USAGE)
    try:
        code = main()
        sys.stdout.flush()
    except OSError:
        # Python flushes once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _USAGE
    sys.exit(code)
