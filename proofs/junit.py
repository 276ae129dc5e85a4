"""The outcome of a run as JUnit XML, for the test page of a CI service.

A claim that is refuted is a failure; one that is unknown, vacuous or the checker's own error is an error; a
skipped one is skipped. In a run that did not end, every claim without an outcome is an error, and one more
error says that the run is incomplete, so that no such file is green.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from proofs.files import Run, versions
from proofs.report import details
from proofs.verdicts import Obligation, Outcome, Verdict

__all__ = ["claim_case", "junit_text", "skipped_case", "suite_text"]

_ELEMENTS: Mapping[Verdict, str] = {
    Verdict.REFUTED: "failure",
    Verdict.VACUOUS: "error",
    Verdict.UNKNOWN: "error",
    Verdict.ERROR: "error",
    Verdict.SKIPPED: "skipped",
}
"""What each verdict becomes; PROVED has no element, which is how a passed test is written."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(run: Run, outcomes: Mapping[int, Outcome], exit_code: int | None) -> str:
    """Return the file's text; without an exit code the run is incomplete."""
    cases = [
        claim_case(
            f"{run.release.name}.{asked.runner.value}.{asked.kind}",
            f"{asked.kind} {asked.runner.value} {asked.label}",
            asked,
            outcomes.get(index),
        )
        for index, asked in enumerate(run.asked)
    ]
    stated = {
        "release": f"{run.release.name} ({run.release.description})",
        **{f"at.{name}": str(value).lower() for name, value in run.pins.items()},
        **{f"not_asked.{index}": line for index, line in enumerate(run.not_asked, 1)},
    }
    told = f"{len(outcomes)} of {len(run.asked)} claims decided; nothing is claimed of the rest"
    return suite_text(run.release.name, stated, cases, exit_code, told)


def suite_text(
    name: str, stated: Mapping[str, str], cases: Sequence[ET.Element], exit_code: int | None, told: str
) -> str:
    """Return a file of one suite; without an exit code it has one more error, which says what is `told`."""
    cases = [*cases, *([_incomplete(told)] if exit_code is None else [])]
    seconds = sum(float(case.get("time", 0)) for case in cases)
    counted = Counter(element.tag for case in cases for element in case)
    counts = {
        "tests": str(len(cases)),
        "failures": str(counted["failure"]),
        "errors": str(counted["error"]),
        "skipped": str(counted["skipped"]),
        "time": f"{seconds:.3f}",
    }
    root = ET.Element("testsuites", {"name": "rowbound", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": _text(f"rowbound {name}"), **counts})
    _properties(suite, stated, exit_code)
    suite.extend(cases)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _properties(suite: ET.Element, stated: Mapping[str, str], exit_code: int | None) -> None:
    stated = {
        "complete": str(exit_code is not None).lower(),
        "exit_code": "" if exit_code is None else str(exit_code),
        **{f"version.{name}": version or "not installed" for name, version in versions().items()},
        **stated,
    }
    properties = ET.SubElement(suite, "properties")
    for name, value in stated.items():
        ET.SubElement(properties, "property", {"name": name, "value": _text(value)})


def claim_case(whose: str, name: str, obligation: Obligation, outcome: Outcome | None) -> ET.Element:
    """Return what a file says about one claim; without an outcome that it is not decided."""
    case = _case(whose, name, outcome.seconds if outcome else 0.0)
    if outcome is None:
        missing = {"type": "INCOMPLETE", "message": "not decided: the run did not end"}
        ET.SubElement(case, "error", missing)
        return case
    if tag := _ELEMENTS.get(outcome.verdict):
        found = outcome.counterexample
        message = found.summary if found else outcome.detail or outcome.verdict.value
        element = ET.SubElement(case, tag, {"type": outcome.verdict.value, "message": _text(message)})
        element.text = _text("\n".join(details(obligation, outcome) or [message]))
    return case


def skipped_case(whose: str, name: str, why: str) -> ET.Element:
    """Return what a file says about something that no claim is about."""
    case = _case(whose, name, 0.0)
    ET.SubElement(case, "skipped", {"type": Verdict.SKIPPED.value, "message": _text(why)}).text = _text(why)
    return case


def _incomplete(told: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": "rowbound", "name": "the run ends", "time": "0.000"})
    ET.SubElement(case, "error", {"type": "INCOMPLETE", "message": _text(f"incomplete: {told}")})
    return case


def _case(whose: str, name: str, seconds: float) -> ET.Element:
    named = {"classname": _text(f"rowbound.{whose}"), "name": _text(name)}
    return ET.Element("testcase", {**named, "time": f"{seconds:.3f}"})


def _text(text: str) -> str:
    """Replace what XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
