"""The findings of a run as SARIF 2.1.0, for code scanning and editors.

Rules are the invariants; a result is a claim that is not proved: refuted, vacuous, unknown or an error. Its
place is the worker's source file whose row is too narrow, or the user's own with `--width`. A run that did
not end says so: `executionSuccessful` is false.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from invariants import INVARIANTS, Invariant, Runner
from proofs.explain import ENTRIES
from proofs.files import Run, versions
from proofs.report import details
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = ["sarif_text"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_LEVELS: Mapping[Verdict, str] = {
    Verdict.REFUTED: "error",
    Verdict.VACUOUS: "error",
    Verdict.ERROR: "error",
    Verdict.UNKNOWN: "warning",
}
"""The verdicts that are findings; PROVED and SKIPPED are none."""
_WORKERS: Mapping[Runner, str] = {
    Runner.V1: "vllm/v1/worker/gpu_model_runner.py",
    Runner.V2: "vllm/v1/worker/gpu/model_runner.py",
}
"""Where vLLM's runners size their rows, from the root of its source."""
_NO_ERROR_EXITS = frozenset({0, 1, 3, 4})
"""Exit codes of runs that did what they were asked, whatever the verdicts."""


def sarif_text(run: Run, outcomes: Mapping[int, Outcome], exit_code: int | None) -> str:
    """Return the file's text; without an exit code the run is incomplete."""
    first = {i.name: i for i in reversed(INVARIANTS)}
    rules = [i for n, i in reversed(first.items()) if any(o.invariant.name == n for o in run.asked)]
    places = {rule.name: index for index, rule in enumerate(rules)}
    results = [
        _result(run, run.asked[index], outcome, places)
        for index, outcome in sorted(outcomes.items())
        if outcome.verdict in _LEVELS
    ]
    driver: dict[str, Any] = {
        "name": "rowbound",
        "rules": [_rule(rule) for rule in rules],
        "properties": {"versions": versions()},
    }
    if version := versions()["rowbound"]:
        driver["version"] = driver["semanticVersion"] = version
    document = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [_invocation(run, len(outcomes), exit_code)],
                "automationDetails": {"id": f"rowbound/{quote(run.release.name, safe='')}/"},
                "columnKind": "unicodeCodePoints",
                "results": results,
                "properties": {"release": run.release.description, "pins": dict(run.pins)},
            }
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _rule(invariant: Invariant) -> dict[str, Any]:
    entry = ENTRIES[invariant.name]
    return {
        "id": invariant.name,
        "name": "".join(word.capitalize() for word in invariant.name.split("-")),
        "shortDescription": {"text": f"{_sentence(invariant.sentence)}."},
        "fullDescription": {"text": entry.meaning},
        "help": {
            "text": f"{entry.meaning}\n\n{entry.advice}",
            "markdown": f"{entry.meaning}\n\n**What to do.** {entry.advice}",
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["correctness", "memory-safety"], "precision": "very-high"},
    }


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _invocation(run: Run, decided: int, exit_code: int | None) -> dict[str, Any]:
    invocation: dict[str, Any] = {"executionSuccessful": exit_code in _NO_ERROR_EXITS}
    if exit_code is not None:
        return {**invocation, "exitCode": exit_code}
    text = f"incomplete: {decided} of {len(run.asked)} claims decided; nothing is claimed of the rest"
    return {
        **invocation,
        "toolExecutionNotifications": [
            {"level": "error", "descriptor": {"id": "incomplete"}, "message": {"text": text}}
        ],
    }


def _result(run: Run, obligation: Obligation, outcome: Outcome, places: Mapping[str, int]) -> dict[str, Any]:
    claim = f"{run.release.name}/{obligation.runner.value}/{obligation.kind}/{obligation.label}"
    found = outcome.counterexample
    said = found.summary if found else outcome.detail or outcome.verdict.value
    where = f"{obligation.kind} on {obligation.runner.value} of {run.release.name}"
    properties: dict[str, Any] = {"verdict": outcome.verdict.value, "rlimit": outcome.rlimit}
    if found:
        properties["values"] = dict(found.values)
    return {
        "ruleId": obligation.label,
        "ruleIndex": places[obligation.invariant.name],
        "level": _LEVELS[outcome.verdict],
        "message": {
            "text": "\n".join([f"{outcome.verdict.value}: {where}: {said}", *details(obligation, outcome)])
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _place(run, obligation),
                    "region": {"startLine": 1},  # code scanning shows what concerns a whole file there
                },
                "logicalLocations": [{"fullyQualifiedName": claim, "kind": "claim"}],
            }
        ],
        "partialFingerprints": {"claim/v1": hashlib.sha256(claim.encode()).hexdigest()},
        "properties": properties,
    }


def _place(run: Run, obligation: Obligation) -> dict[str, Any]:
    """Return the file whose row it is: one with the user's function, or the engine's worker."""
    if run.width is None:
        return {"uri": _WORKERS[obligation.runner], "uriBaseId": _ROOT}
    path = PurePath(run.width.rpartition(":")[0])
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": _ROOT}
