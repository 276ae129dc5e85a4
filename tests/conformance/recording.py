"""Records what a scheduler hands to V2's tables, one JSON line per run, to be replayed where no scheduler is.

A run is {"kind", "release", "deployment", "specs", "tables", "steps"}; `tables` holds the arguments that the
runner makes its tables with. A step is {"appends": [[row, lists, overwrite, fits], ...], "rows": [[row, lists
of the scheduler (null where it nulled a block), first position, number of tokens], ...]}.
"""

from __future__ import annotations

import dataclasses
import gzip
import json

import invariants
from invariants import Deployment, UniformTypeSpec


class Recorder:
    """Collects the runs of one spec type; `kept` picks the few that show most."""

    def __init__(self):
        self.runs = []

    def begins(self, setup, arguments):
        """Begin a run."""
        self.runs.append({
            "kind": setup.kind,
            "release": setup.release,
            "deployment": dataclasses.asdict(setup.deployment),
            "specs": [_spec_as_json(spec) for spec in setup.specs],
            "tables": {name: value for name, value in arguments.items() if name not in {"device", "cp_rank"}},
            "steps": [],
        })  # fmt: skip
        self._appends = []

    def appends(self, row, lists, *, overwrite, fits):
        """Note an append, and whether its row takes it."""
        self._appends.append([row, [list(group) for group in lists], overwrite, fits])

    def step(self, rows):
        """End a step; `rows` has (row, the scheduler's lists, positions of the step's tokens)."""
        if self._appends or rows:
            told = [[row, lists, span.start, len(span)] for row, lists, span in rows]
            self.runs[-1]["steps"].append({"appends": self._appends, "rows": told})
        self._appends = []

    def kept(self, count):
        """Return the runs with the most appends: of all, of those with dcp, of those with a refused list."""
        groups = (
            lambda run: True,
            lambda run: run["deployment"]["decode_context_parallel_size"] > 1,
            lambda run: not all(fits for step in run["steps"] for *_, fits in step["appends"]),
        )
        picked = []
        for belongs in groups:
            of_group = [run for run in self.runs if belongs(run) and run not in picked]
            picked.extend(sorted(of_group, key=_appended, reverse=True)[:count])
        return [run for run in picked if _appended(run)]


def _appended(run):
    return sum(len(step["appends"]) for step in run["steps"])


def _spec_as_json(spec):
    if isinstance(spec, UniformTypeSpec):
        return {"class": type(spec).__name__, "inner": _spec_as_json(spec.inner)}
    return {"class": type(spec).__name__, **dataclasses.asdict(spec)}


def spec_of(written):
    """Return the spec that was written as JSON."""
    values = dict(written)
    made = getattr(invariants, values.pop("class"))
    return made(inner=spec_of(values["inner"])) if "inner" in values else made(**values)


def deployment_of(run):
    """Return a run's deployment."""
    return Deployment(**run["deployment"])


def write(path, runs):
    """Write runs as JSON lines; the same runs give the same file."""
    lines = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in runs)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read(path):
    """Read the runs of a file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
