"""The findings of a run as SARIF 2.1.0, for code scanning and editors.

Rules are the invariants; a result is a claim that is not proved: refuted, vacuous, unknown or an error. Its
place is the worker's source file whose row is too narrow, or the user's own with `--width`. A run that did
not end says so: `executionSuccessful` is false.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from invariants import INVARIANTS, Runner
from proofs.explain import ENTRIES
from proofs.files import Run, versions
from proofs.report import details
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = ["FINDINGS", "ROOT", "claim_result", "rule", "sarif_text", "text_of_run"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""What relative places are relative to: the root of the source."""
FINDINGS: Mapping[Verdict, str] = {
    Verdict.REFUTED: "error",
    Verdict.VACUOUS: "error",
    Verdict.ERROR: "error",
    Verdict.UNKNOWN: "warning",
}
"""The verdicts that are findings; PROVED and SKIPPED are none."""
_WHOLE_FILE = 1
"""The line at which code scanning shows what concerns a whole file."""
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
    invariants = [i for n, i in reversed(first.items()) if any(o.invariant.name == n for o in run.asked)]
    rules = [rule(i.name, i.sentence) for i in invariants]
    results = []
    for index, outcome in sorted(outcomes.items()):
        if outcome.verdict in FINDINGS:
            asked = run.asked[index]
            name = f"{run.release.name}/{asked.runner.value}/{asked.kind}/{asked.label}"
            where = f"{asked.kind} on {asked.runner.value} of {run.release.name}"
            place = (_place(run, asked), _WHOLE_FILE)
            results.append(claim_result(name, where, asked, outcome, rules, place))
    told = f"{len(outcomes)} of {len(run.asked)} claims decided; nothing is claimed of the rest"
    about = {"release": run.release.description, "pins": dict(run.pins)}
    return text_of_run(run.release.name, rules, results, about, exit_code, told)


def text_of_run(  # noqa: PLR0913, PLR0917  # what a run is made of
    name: str,
    rules: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    exit_code: int | None,
    told: str,
) -> str:
    """Return a file of one run; without an exit code it is incomplete, and says what is `told`."""
    driver: dict[str, Any] = {
        "name": "rowbound",
        "rules": rules,
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
                "invocations": [_invocation(told, exit_code)],
                "automationDetails": {"id": f"rowbound/{quote(name, safe='')}/"},
                "columnKind": "unicodeCodePoints",
                "results": results,
                "properties": about,
            }
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def rule(name: str, sentence: str) -> dict[str, Any]:
    """Return the rule that findings of a family of claims point at."""
    entry = ENTRIES[name]
    return {
        "id": name,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": f"{_sentence(sentence)}."},
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


def _invocation(told: str, exit_code: int | None) -> dict[str, Any]:
    invocation: dict[str, Any] = {"executionSuccessful": exit_code in _NO_ERROR_EXITS}
    if exit_code is not None:
        return {**invocation, "exitCode": exit_code}
    notification = {
        "level": "error",
        "descriptor": {"id": "incomplete"},
        "message": {"text": f"incomplete: {told}"},
    }
    return {**invocation, "toolExecutionNotifications": [notification]}


def claim_result(  # noqa: PLR0913, PLR0917  # what a finding is made of
    claim: str,
    where: str,
    obligation: Obligation,
    outcome: Outcome,
    rules: Sequence[Mapping[str, Any]],
    place: tuple[Mapping[str, Any], int],
) -> dict[str, Any]:
    """Return a finding about a claim, whose place is a file and a line in it."""
    found = outcome.counterexample
    said = found.summary if found else outcome.detail or outcome.verdict.value
    file, line = place
    properties: dict[str, Any] = {"verdict": outcome.verdict.value, "rlimit": outcome.rlimit}
    if found:
        properties["values"] = dict(found.values)
    return {
        "ruleId": obligation.label,
        "ruleIndex": [known["id"] for known in rules].index(obligation.invariant.name),
        "level": FINDINGS[outcome.verdict],
        "message": {
            "text": "\n".join([f"{outcome.verdict.value}: {where}: {said}", *details(obligation, outcome)])
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": file,
                    "region": {"startLine": line},
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
        return {"uri": _WORKERS[obligation.runner], "uriBaseId": ROOT}
    path = PurePath(run.width.rpartition(":")[0])
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": ROOT}
