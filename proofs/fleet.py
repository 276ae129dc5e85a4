"""Whether the rows of given deployments are wide enough: the report on one file, or on a fleet of them.

Every number is computed by the formulas of `invariants`, once as integers and once as numbers that remember
their arithmetic; no solver takes part.

What the bytes mean. A row's slack costs `4 * slack` bytes for each of the table's `max_num_seqs` rows, as
entries are int32; it costs no cache, because blocks come from a pool and only when a request needs them. The
cache that the largest request needs is its blocks times `page_size_bytes` times `layers`, on each rank. That
is an upper bound: entries whose block has left a window, or whose state is no longer kept, hold none.
"""

from __future__ import annotations

import enum
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from invariants import (
    Access,
    Case,
    FirstFailure,
    Release,
    Runner,
    UniformTypeSpec,
    column,
    entries,
    entries_needed,
    first_outside,
    first_overflow,
    kind_of,
    largest_access,
    max_request,
    row_width,
)
from invariants.parameters import parameters_of
from proofs.chain import arithmetic, traced_case
from proofs.deployment_file import DeploymentFile, DeploymentFileError, Group, read_deployment, shown_path
from proofs.files import JsonFile, version

__all__ = [
    "SCHEMA",
    "FileReport",
    "Fit",
    "GroupReport",
    "check_file",
    "check_group",
    "fleet_exit_code",
    "fleet_json",
    "print_fleet",
    "tally",
]

SCHEMA = "rowbound.deployment/1"
"""The name and version of the JSON layout; `schemas/deployment-1.json` describes it."""
_ENTRY_BYTES = 4
"""Block tables are int32."""
_INDENT = " " * 11


class Fit(enum.Enum):
    """What was found of one group's rows."""

    FITS = "FITS"
    """The largest request's entries fit the row, and so does every column that a kernel reads."""
    OVERFLOWS = "OVERFLOWS"
    """They do not: some request writes or reads outside its row."""


_STYLES = {Fit.FITS: "green", Fit.OVERFLOWS: "bold red"}


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One group's row against what the largest request needs, in entries.

    Attributes:
        kind: the spec type's name.
        entries_needed: entries of the largest request.
        row_width: entries that the row holds.
        width_by_formula: what the release's formula makes of it, where `row_width` was measured instead.
        largest_column: the largest column that a kernel reads; None if none is read, or it is not known.
        unread: why the columns were not checked; empty if they were.
        overflow: the first token count whose entries do not fit.
        outside: the first token count at which a column outside the row is read.
        slack_bytes: bytes of one block table that no request can use, or that it lacks; None without
            `max_num_seqs`.
        block_bytes: cache bytes of one block in all layers of the group; None without `page_size_bytes`.
        blocks_needed: blocks of the largest request, as the scheduler counts them.
        arithmetic: (side, quantity, arithmetic) lines.
    """

    kind: str
    entries_needed: int
    row_width: int
    width_by_formula: int | None
    largest_column: int | None
    unread: str
    overflow: FirstFailure | None
    outside: FirstFailure | None
    slack_bytes: int | None
    block_bytes: int | None
    blocks_needed: int
    arithmetic: tuple[tuple[str, str, str], ...]

    @property
    def slack(self) -> int:
        """Entries of the row that no request can use; below zero, how many it lacks."""
        return self.row_width - self.entries_needed

    @property
    def first_failure(self) -> FirstFailure | None:
        """The smallest token count that fails, by its entries or by a column."""
        failures = [failure for failure in (self.overflow, self.outside) if failure is not None]
        return min(failures, key=lambda failure: failure.tokens, default=None)

    @property
    def fit(self) -> Fit:
        """The verdict."""
        return Fit.FITS if self.first_failure is None else Fit.OVERFLOWS


@dataclass(frozen=True, slots=True)
class FileReport:
    """What was found of one file: either its groups, or the mistake that it has."""

    name: str
    read: DeploymentFile | None
    groups: tuple[GroupReport, ...] = ()
    mistake: DeploymentFileError | None = None


def check_file(path: Path, *, release: Release | None = None, runner: Runner | None = None) -> FileReport:
    """Read a file and check every group; a mistake in it is part of the report."""
    try:
        read = read_deployment(path, release=release, runner=runner)
    except DeploymentFileError as mistake:
        return FileReport(shown_path(path), None, mistake=mistake)
    return FileReport(shown_path(path), read, tuple(check_group(read, group) for group in read.groups))


def check_group(read: DeploymentFile, group: Group) -> GroupReport:
    """Compare one group's row with what the largest request needs."""
    deployment, release, runner, spec = read.deployment, read.release, read.runner, group.spec
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    largest = max_request(deployment, release=release)
    needed = entries_needed(deployment, spec, release=release)
    by_formula = row_width(deployment, spec, runner=runner, release=release)
    measured = group.measured.row_width
    width = by_formula if measured is None else measured
    access = largest_access(deployment, spec, largest, runner=runner, release=release)
    furthest = None if access is None else column(deployment, spec, access, runner=runner, release=release)
    overflow = first_overflow(deployment, spec, width, release=release)
    seqs, page = read.engine.max_num_seqs, group.measured.page_size_bytes
    # A wrapper's page is that of all its layers already.
    layers = 1 if isinstance(spec, UniformTypeSpec) else group.measured.layers
    return GroupReport(
        kind=kind_of(spec),
        entries_needed=needed,
        row_width=width,
        width_by_formula=None if measured is None else by_formula,
        largest_column=furthest,
        unread="" if runner in layer.column_runners else layer.unread,
        overflow=overflow,
        outside=first_outside(deployment, spec, width, runner=runner, release=release),
        slack_bytes=None if seqs is None else _ENTRY_BYTES * (width - needed) * seqs,
        block_bytes=None if page is None else page * layers,
        blocks_needed=spec.entries(deployment, largest),
        arithmetic=tuple(_arithmetic(read, group, access, overflow)),
    )


def _arithmetic(
    read: DeploymentFile, group: Group, access: Access | None, overflow: FirstFailure | None
) -> Iterable[tuple[str, str, str]]:
    """Yield both sides, and the first request that fails, as the formulas computed them."""
    largest = max_request(read.deployment, release=read.release)
    shown = largest if overflow is None else overflow.request(largest)
    case = Case(read.deployment, group.spec, shown, access or Access())
    traced = traced_case(kind_of(group.spec), case.values())
    release, runner = read.release, read.runner
    longest = max_request(traced.deployment, release=release)
    yield "scheduler", "entries", arithmetic(entries(traced.deployment, traced.spec, longest))
    if group.measured.row_width is not None:
        yield "worker", "row width", f"{group.measured.row_width}, measured"
    width = arithmetic(row_width(traced.deployment, traced.spec, runner=runner, release=release))
    yield "worker", "row width" if group.measured.row_width is None else "by formula", width
    if access is not None:
        reads = column(traced.deployment, traced.spec, traced.access, runner=runner, release=release)
        yield "kernel", "largest column", arithmetic(reads)
    if overflow is not None:
        first = entries(traced.deployment, traced.spec, traced.request)
        yield "scheduler", "first too many", arithmetic(first)


def tally(reports: Sequence[FileReport]) -> dict[str, int]:
    """Return how many groups got each verdict, how many files there are, and how many have a mistake."""
    counts = Counter(group.fit for report in reports for group in report.groups)
    mistakes = sum(report.mistake is not None for report in reports)
    return {fit.value: counts[fit] for fit in Fit} | {"files": len(reports), "mistakes": mistakes}


def fleet_exit_code(reports: Sequence[FileReport]) -> int:
    """Return 2 if any file has a mistake, else 1 if any group overflows, else 0."""
    counts = tally(reports)
    return 2 if counts["mistakes"] else int(counts[Fit.OVERFLOWS.value] > 0)


def print_fleet(console: Console, reports: Sequence[FileReport]) -> None:
    """Print a line for each group, for a single file with its arithmetic, and the tally."""
    names = max((len(report.name) for report in reports if report.groups), default=0)
    rules = max((len(_rules(report)) for report in reports), default=0)
    kinds = max((len(group.kind) for report in reports for group in report.groups), default=0)
    for report in reports:
        for index, group in enumerate(report.groups):
            place = f"{report.name:{names}}  {_rules(report):{rules}}  {f'groups[{index}]':9}"
            line = Text(f"{group.fit.value:9}  {place}  {group.kind:{kinds}}  {_sentence(group)}")
            line.stylize(_STYLES[group.fit], 0, len(group.fit.value))
            details = map(Text, _details(group)) if len(reports) == 1 else ()
            console.print(line, *details, sep="\n", soft_wrap=True)
    console.print(_closing(reports), soft_wrap=True)


def _sentence(group: GroupReport) -> str:
    size = f"{abs(_ENTRY_BYTES * group.slack):,} bytes a row"
    if group.slack_bytes is not None:
        size = f"{abs(group.slack_bytes):,} bytes"
    slack = f"{'lacks' if group.slack < 0 else 'slack'} {abs(group.slack)} ({size})"
    parts = [f"needs {group.entries_needed} of {_counted(group.row_width, 'entry', 'entries')}, {slack}"]
    if group.block_bytes is not None:
        total = group.block_bytes * group.blocks_needed
        parts.append(f"KV at most {total:,} bytes, {group.block_bytes:,} a block")
    if first := group.first_failure:
        parts.append(f"first fails at {_tokens(first)}")
    if group.width_by_formula not in (None, group.row_width):
        parts.append(f"the formula makes it {group.width_by_formula}")
    if group.unread:
        parts.append("columns not checked")
    return "; ".join(parts)


def _details(group: GroupReport) -> Iterable[str]:
    """Yield the arithmetic, and in words what happens to a row that is too narrow."""
    width = max(len(quantity) for _, quantity, _ in group.arithmetic)
    for side, quantity, line in group.arithmetic:
        yield f"{_INDENT}{side:9}  {quantity:{width}} = {line}"
    if group.overflow is not None:
        yield (
            f"{_INDENT}from {_tokens(group.overflow)} on the scheduler hands over more than the row's "
            f"{_counted(group.row_width, 'entry', 'entries')}"
        )
    if group.outside is not None:
        last = f"the last is {group.row_width - 1}" if group.row_width else "it has none"
        yield f"{_INDENT}from {_tokens(group.outside)} on a kernel reads a column outside the row ({last})"
    if group.unread:
        yield f"{_INDENT}columns not checked: {group.unread}"


def _closing(reports: Sequence[FileReport]) -> str:
    counts = tally(reports)
    verdicts = ", ".join(f"{counts[fit.value]} {fit.value}" for fit in Fit)
    groups = _counted(sum(len(report.groups) for report in reports), "group", "groups")
    files = _counted(counts["files"], "file", "files")
    mistakes = f"{_counted(counts['mistakes'], 'file', 'files')} with a mistake"
    return f"\n{groups} of {files}: {verdicts}; {mistakes}"


def _rules(report: FileReport) -> str:
    """Return whose formulas a file was checked by."""
    return f"{report.read.release.name} {report.read.runner.value}" if report.read else ""


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _tokens(first: FirstFailure) -> str:
    unit = "encoder token" if first.of_encoder else "token"
    return _counted(first.tokens, unit, f"{unit}s")


def fleet_json(path: Path) -> JsonFile:
    """Start the JSON file of a run over some files.

    Raises:
        OSError: it cannot be written.
    """
    return JsonFile(path, SCHEMA, (), _document)


def _document(reports: Sequence[FileReport]) -> dict[str, Any]:
    named = {name: version(name) for name in ("rowbound", "rich")}
    return {
        "versions": named | {"python": platform.python_version()},
        "tally": tally(reports),
        "files": [_file_entry(report) for report in reports],
    }


def _file_entry(report: FileReport) -> dict[str, Any]:
    entry: dict[str, Any] = {"file": report.name, "mistake": None, "configuration": None, "groups": []}
    if report.mistake is not None:
        entry["mistake"] = {"key": report.mistake.key or None, "message": report.mistake.message}
    if (read := report.read) is not None:
        largest = max_request(read.deployment, release=read.release)
        entry["configuration"] = {
            "release": read.release.name,
            "runner": read.runner.value,
            "max_num_seqs": read.engine.max_num_seqs,
            "deployment": _fields(read.deployment),
            "largest_request": {
                "num_tokens": largest.num_tokens,
                "num_encoder_tokens": largest.num_encoder_tokens,
            },
        }
        pairs = zip(read.groups, report.groups, strict=True)
        entry["groups"] = [_group_entry(group, found) for group, found in pairs]
    return entry


def _group_entry(group: Group, found: GroupReport) -> dict[str, Any]:
    layer = group.spec.inner if isinstance(group.spec, UniformTypeSpec) else group.spec
    needs = None if found.block_bytes is None else found.block_bytes * found.blocks_needed
    return {
        "spec": found.kind,
        "fields": _fields(layer),
        "verdict": found.fit.value,
        "entries_needed": found.entries_needed,
        "row_width": found.row_width,
        "row_width_by_formula": found.row_width if found.width_by_formula is None else found.width_by_formula,
        "row_width_measured": found.width_by_formula is not None,
        "slack_entries": found.slack,
        "slack_bytes_per_row": _ENTRY_BYTES * found.slack,
        "slack_bytes": found.slack_bytes,
        "kv_bytes_per_block": found.block_bytes,
        "kv_bytes_at_most": needs,
        "largest_column": found.largest_column,
        "columns_not_checked": found.unread or None,
        "first_failure": _failure_entry(found.first_failure),
        "first_overflow": _failure_entry(found.overflow),
        "first_column_outside": _failure_entry(found.outside),
        "arithmetic": [
            {"side": side, "quantity": quantity, "arithmetic": line}
            for side, quantity, line in found.arithmetic
        ],
    }


def _fields(part: object) -> dict[str, int | bool]:
    return {p.name: getattr(part, p.name) for p in parameters_of(type(part))}


def _failure_entry(first: FirstFailure | None) -> dict[str, Any] | None:
    return None if first is None else {"tokens": first.tokens, "counts_encoder_tokens": first.of_encoder}
