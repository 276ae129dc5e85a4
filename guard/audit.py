"""Check at start-up, before the first request, that every group's row is wide enough.

The widths that a worker is about to use are compared with what the largest legal request needs. Every
number comes from `invariants`; this module has no formula of its own. The result names each row that is
too narrow, the first token count that will overflow it, and the side whose numbers are off.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from guard._text import shown
from guard.errors import GuardUsageError, UnsafeDeployment
from invariants import (
    TODAY,
    Deployment,
    Release,
    Runner,
    Spec,
    entries_needed,
    first_overflow,
    kind_of,
    require_legal,
    row_spec,
    row_width,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AuditReport", "Finding", "GroupAudit", "Side", "audit"]


class Side(enum.StrEnum):
    """Whose numbers differ from today's formulas in a group whose row is too narrow."""

    WORKER = "worker"
    """The row is narrower than today's formula makes it."""
    SCHEDULER = "scheduler"
    """The scheduler hands over more entries than today's formula says."""
    BOTH = "worker and scheduler"
    """Both of these."""
    NEITHER = "neither"
    """Both sides follow today's formulas, and these disagree with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAudit:
    """The row of one cache group against what its largest request needs, in entries."""

    group: int
    kind: str
    row_width: int
    entries_needed: int

    @property
    def waste(self) -> int:
        """How many entries of the row no request can use."""
        return max(self.row_width - self.entries_needed, 0)

    def __str__(self) -> str:
        """Return the line of this group in a report."""
        text = (
            f"group {self.group} ({self.kind}): row of {self.row_width} entries, needs {self.entries_needed}"
        )
        return f"{text}, {self.waste} unused" if self.waste else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(GroupAudit):
    """A row that is too narrow.

    `first_tokens` is the smallest token count that overflows it, counted in encoder tokens if
    `counts_encoder_tokens`; None if only the scheduler's own number overflows it.
    """

    first_tokens: int | None
    counts_encoder_tokens: bool = False
    side: Side

    def __str__(self) -> str:
        """Return the line of this finding in a report."""
        text = (
            f"group {self.group} ({self.kind}): row of {self.row_width} entries, needs {self.entries_needed}"
        )
        if self.first_tokens is not None:
            unit = "encoder tokens" if self.counts_encoder_tokens else "tokens"
            text += f"; overflows from {self.first_tokens} {unit} on"
        return f"{text}; {_EXPLANATIONS[self.side]}"


_EXPLANATIONS = {
    Side.WORKER: "the worker's row width is off",
    Side.SCHEDULER: "the scheduler's entry count is off",
    Side.BOTH: "the worker's row width and the scheduler's entry count are off",
    Side.NEITHER: "today's formulas of worker and scheduler disagree",
}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Every group of a deployment, and a finding for each row that is too narrow."""

    deployment: Deployment
    groups: tuple[GroupAudit, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every row is wide enough."""
        return not self.findings

    def require_ok(self) -> None:
        """Raise unless every row is wide enough.

        Raises:
            UnsafeDeployment: lists every finding and the remedy.
        """
        if not self.ok:
            raise UnsafeDeployment(str(self))

    def __str__(self) -> str:
        """Return the findings and the remedy, or one line per group when all is well."""
        if self.ok:
            lines = ["Every block-table row is wide enough."]
            return "\n".join([*lines, *(f"  {group}" for group in self.groups)])
        number = len(self.findings)
        rows = "1 block-table row is" if number == 1 else f"{number} block-table rows are"
        remedies = ", ".join(
            f"group {finding.group} to {finding.entries_needed} entries" for finding in self.findings
        )
        return "\n".join(
            [
                f"{rows} too narrow for max_model_len {self.deployment.max_model_len}:",
                *(f"  {finding}" for finding in self.findings),
                f"Remedy: widen the row of {remedies}, or lower max_model_len until every request fits.",
            ]
        )


def audit(  # noqa: PLR0913 - the overrides are independent of each other
    deployment: Deployment,
    specs: Sequence[Spec],
    row_widths: Sequence[int] | None = None,
    *,
    runner: Runner = Runner.V2,
    release: Release | str = TODAY,
    scheduler_entries: Sequence[int] | None = None,
) -> AuditReport:
    """Compare each group's row with what the largest legal request needs.

    Args:
        deployment: the configuration that scheduler and worker both read.
        specs: one spec per cache group.
        row_widths: entries per row as the worker has them; `release`'s formula for `runner` if omitted.
        runner: which worker implementation makes the rows.
        release: whose formulas stand in for a number that is not given, and whether entries are kernel
            blocks; a name will do.
        scheduler_entries: the most entries that the scheduler hands over per group; `release`'s formula if
            omitted.

    Raises:
        invariants.IllegalDeployment: the deployment or a spec breaks an assumption, by name.
        GuardUsageError: specs are none or not specs, or a list has not one number per group.
    """
    _check_specs(specs)
    runner = _runner(runner)
    for group, spec in enumerate(specs):
        if runner not in spec.runners:
            message = f"group {group}: {runner.value} has no {kind_of(spec)} groups"
            raise GuardUsageError(message)
    for spec in specs:
        require_legal(deployment, spec, release=release)
    specs = [row_spec(spec, release=release) for spec in specs]
    if row_widths is None:
        row_widths = [row_width(deployment, s, runner=runner, release=release) for s in specs]
    if scheduler_entries is None:
        scheduler_entries = [entries_needed(deployment, spec, release=release) for spec in specs]
    _check_numbers("row_widths", row_widths, specs)
    _check_numbers("scheduler_entries", scheduler_entries, specs)
    row_widths, scheduler_entries = [*map(index, row_widths)], [*map(index, scheduler_entries)]

    groups = [
        _audit_group(deployment, release, runner, group, spec, width, handed_over)
        for group, (spec, width, handed_over) in enumerate(
            zip(specs, row_widths, scheduler_entries, strict=True)
        )
    ]
    findings = tuple(group for group in groups if isinstance(group, Finding))
    return AuditReport(deployment, tuple(groups), findings)


def _runner(chosen: object) -> Runner:
    try:
        return Runner(chosen)
    except ValueError:
        names = ", ".join(runner.value for runner in Runner)
        message = f"runner must be one of {names}, not {shown(chosen)}"
        raise GuardUsageError(message) from None


def _check_specs(specs: Sequence[Spec]) -> None:
    if not isinstance(specs, list | tuple):
        message = f"specs must be a list with one spec per cache group, not {shown(specs)}"
        raise GuardUsageError(message)
    if not specs:
        message = "specs is empty, so there is no row to audit; give one spec per cache group"
        raise GuardUsageError(message)
    for group, spec in enumerate(specs):
        if not isinstance(spec, Spec):
            message = f"the spec of group {group} must be one of invariants' spec types, not {shown(spec)}"
            raise GuardUsageError(message)


def _check_numbers(name: str, numbers: Sequence[int], specs: Sequence[Spec]) -> None:
    if not isinstance(numbers, list | tuple):
        message = f"{name} must be a list with one number per cache group, not {shown(numbers)}"
        raise GuardUsageError(message)
    if len(numbers) != len(specs):
        message = f"{name} has {len(numbers)} numbers for {len(specs)} groups"
        raise GuardUsageError(message)
    for group, number in enumerate(numbers):
        if isinstance(number, bool) or not hasattr(number, "__index__") or number < 0:
            message = f"{name} of group {group} must be a whole number of at least 0, not {shown(number)}"
            raise GuardUsageError(message)


def _audit_group(  # noqa: PLR0913, PLR0917 - one row of the three lists, with what they share
    deployment: Deployment,
    release: Release | str,
    runner: Runner,
    group: int,
    spec: Spec,
    width: int,
    handed_over: int,
) -> GroupAudit:
    formula = entries_needed(deployment, spec, release=release)
    needed = max(formula, handed_over)
    kind = kind_of(spec)
    if needed <= width:
        return GroupAudit(group=group, kind=kind, row_width=width, entries_needed=needed)
    first = first_overflow(deployment, spec, width, release=release)
    return Finding(
        group=group,
        kind=kind,
        row_width=width,
        entries_needed=needed,
        first_tokens=None if first is None else first.tokens,
        counts_encoder_tokens=first is not None and first.of_encoder,
        side=_side(
            worker=width < row_width(deployment, spec, runner=runner),
            scheduler=handed_over > formula,
        ),
    )


def _side(*, worker: bool, scheduler: bool) -> Side:
    if worker:
        return Side.BOTH if scheduler else Side.WORKER
    return Side.SCHEDULER if scheduler else Side.NEITHER
