"""`python -m kernels.bench.campaign`: staged writes, reads and state selections, a tenth out of their row.

Tables lie between canaries, and every launch is compared with the same work done by tensor indexing, whole
buffers and not samples. Beside that the record must name each kind as often as it occurred, exactly, and
its first entry must be one of those that were made bad.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels._command import run_command
from kernels.bench import lane_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_EPILOG = """\
Faults: a start past the row's end, a length past it, a row that does not exist, a start near 2**31, a block
ID that becomes several entries at the row's end, a count that a refused write would have left behind, a
position past the row, a state past it.

With --unguarded the writer runs without its bound; that it is seen to corrupt other rows is the success.
With --graph the reads are captured in a CUDA graph once and replayed.

exit codes: 0 all as it must be; 1 something is not; 2 wrong usage, or no device for what was asked
"""

CANARY = -0x5A5A5A5B
ROWS, GAP, MARGIN = 500, 3, 4096
WIDTHS = (16, 33, 128, 64)
EXPANSION = (1, 1, 1, 4)
BLOCK_SIZE = 16
_FAR = 2**31 - 8
_MORE = "ask for more --accesses"


@dataclass(frozen=True, slots=True)
class Tally:
    """What one round did: accesses, how many were bad, and what went wrong."""

    accesses: int
    bad: int
    problems: tuple[str, ...]


class Campaign:
    """Tables of four groups between canaries, a record, and a seeded source of work."""

    def __init__(self, device: torch.device, seed: int, *, rows: int = ROWS, graph: bool = False) -> None:
        """Allocate everything; with `graph` the reads are captured on their first round."""
        import numpy as np
        import torch

        from kernels import TableLayout, ViolationRecord

        self.torch, self.np = torch, np
        self.device, self.rows = device, rows
        self.random = np.random.default_rng(seed)
        self.buffers = [
            torch.full((2 * MARGIN + rows * (width + GAP),), CANARY, dtype=torch.int32, device=device)
            for width in WIDTHS
        ]
        self.tables = [self._table(buffer, width) for buffer, width in zip(self.buffers, WIDTHS, strict=True)]
        for table in self.tables:
            table.zero_()
        self.layout = TableLayout.of(self.tables)
        self.counts = torch.zeros((len(WIDTHS), rows), dtype=torch.int32, device=device)
        self.expansion = torch.tensor(EXPANSION, dtype=torch.int32, device=device)
        self.record = ViolationRecord.on(device)
        self.launch = 0
        self.graph = graph
        self._captured: dict[str, Any] = {}
        self._fixed: dict[str, torch.Tensor] = {}

    def _table(self, buffer: torch.Tensor, width: int) -> torch.Tensor:
        return buffer[MARGIN : MARGIN + self.rows * (width + GAP)].view(self.rows, width + GAP)[:, :width]

    def _numbers(self, values: Any) -> torch.Tensor:
        return self.torch.tensor(self.np.asarray(values), device=self.device)

    def write(self, *, bounded: bool = True) -> Tally:
        """Write each row of each group once, a tenth of the writes bad."""
        from kernels import Write, pack_writes, write_staged

        np, writes, bad = self.np, [], 0
        for group, (width, parts) in enumerate(zip(WIDTHS, EXPANSION, strict=True)):
            room = width // parts
            lengths = self.random.integers(0, room + 1, self.rows)
            starts = (self.random.random(self.rows) * (width - lengths * parts + 1)).astype(np.int64)
            faulty = np.flatnonzero(self.random.random(self.rows) < 1 / 10)
            targets = np.arange(self.rows)
            for row in faulty.tolist():
                lengths[row], starts[row], targets[row] = self._bad_write(row, width, parts, bounded)
            bad += len(faulty)
            ids = self.random.integers(1, 1 << 20, int(lengths.sum())).tolist()
            end = 0
            for row, start, length in zip(targets.tolist(), starts.tolist(), lengths.tolist(), strict=True):
                writes.append(Write(group, row, start, ids[end : end + length]))
                end += length
        expected = self._expected(writes)
        packed = pack_writes(writes, len(WIDTHS), self.device, expansion=EXPANSION)
        self._next()
        write_staged(
            self.layout,
            self.counts,
            packed,
            expansion=self.expansion,
            bounded=bounded,
            record=self.record,
            launch=self.launch,
        )
        return self._judged("write", len(writes), bad, expected, [*self.buffers, self.counts])

    def _bad_write(self, row: int, width: int, parts: int, bounded: bool) -> tuple[int, int, int]:
        """Return length, start and row of a write that leaves its row."""
        room = width // parts
        # Without a bound only a write into the next row keeps to the allocation.
        kind = self.random.integers(6) if bounded else self.random.integers(2)
        match kind:
            case 0:  # length past the end
                return room + 1, 0, row
            case 1:  # one ID too many in a row that is full but for a part of it
                return 1, width - parts + 1, row
            case 2:  # start past the end
                return int(self.random.integers(1, 9)), width + int(self.random.integers(0, 9)), row
            case 3:  # a row that does not exist
                return 2, 0, int(self.random.choice([-1 - row, self.rows + row, 2**31 - 1 - row]))
            case 4:  # start + length wraps in 32 bits
                return 9, _FAR, row
            case _:  # a negative start
                return 3, -int(self.random.integers(4, 9)), row

    def _expected(self, writes: list[Any]) -> tuple[list[torch.Tensor], Counter[str]]:
        """Return all buffers after `writes`, by indexing, and what must be refused."""
        np, refused = self.np, Counter[str]()
        counts = self.counts.clone()
        buffers = [buffer.clone() for buffer in self.buffers]
        for group, (buffer, width, parts) in enumerate(zip(buffers, WIDTHS, EXPANSION, strict=True)):
            mine = [write for write in writes if write.group == group]
            rows = np.array([write.row for write in mine], dtype=np.int64)
            lengths = np.array([len(write.ids) for write in mine], dtype=np.int64) * parts
            starts = np.array([write.start for write in mine], dtype=np.int64)
            exists = (rows >= 0) & (rows < self.rows)
            refused["WRITE_ROW"] += int((~exists).sum())
            ids = np.array([block_id for write in mine for block_id in write.ids], dtype=np.int64)
            values = (ids[:, None] * parts + np.arange(parts)).reshape(-1)
            owner = np.repeat(np.arange(len(mine)), lengths)
            columns = (
                np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + starts[owner]
            )
            inside = (columns >= 0) & (columns < width)
            refused["WRITE_PAST_ROW"] += int((exists[owner] & ~inside).sum())
            kept = exists[owner] & inside
            table = self._table(buffer, width)
            table[self._numbers(rows[owner][kept]), self._numbers(columns[kept])] = self._numbers(
                values[kept].astype(np.int32)
            )
            ends = np.clip(starts + lengths, 0, width).astype(np.int32)
            counts[group, self._numbers(rows[exists])] = self._numbers(ends[exists])
        return [*buffers, counts], refused

    def read(self) -> Tally:
        """Gather all rows and map a token of each, a tenth of the rows, counts and positions bad."""
        from kernels import SlotGeometry, TableLayout, gather_rows, map_slots

        torch, np = self.torch, self.np
        good_counts = self.counts.clone()
        stale = self._numbers(self.random.random((len(WIDTHS), self.rows)) < 1 / 10)
        widths = torch.tensor(WIDTHS, dtype=torch.int32, device=self.device)[:, None]
        excess = self._numbers(self.random.integers(1, 40, (len(WIDTHS), self.rows)).astype(np.int32))
        self.counts.copy_(torch.where(stale, widths + excess, good_counts))
        mapping = self.random.permutation(self.rows)
        absent = self.random.random(self.rows) < 1 / 10
        mapping = np.where(absent, self.random.choice([-2, self.rows, 2**31 - 1], self.rows), mapping)
        reach = np.array(WIDTHS).min() * BLOCK_SIZE
        positions = self.random.integers(0, reach, self.rows)
        past = self.random.random(self.rows) < 1 / 10
        positions = np.where(past, max(WIDTHS) * BLOCK_SIZE + positions, positions)
        rows, places = self._fix("mapping", mapping.astype(np.int64)), self._fix("positions", positions)
        starts = self._fix("starts", np.arange(self.rows + 1, dtype=np.int64))
        if "out" not in self._captured:
            outs = [torch.zeros_like(table, memory_format=torch.contiguous_format) for table in self.tables]
            slots = torch.zeros((len(WIDTHS), self.rows), dtype=torch.int64, device=self.device)
            geometry = SlotGeometry.of([BLOCK_SIZE] * len(WIDTHS), self.device)
            self._captured["out"] = (outs, slots, TableLayout.of(outs), geometry)
        outs, slots, target, geometry = self._captured["out"]
        for tensor in [*outs, slots]:
            tensor.fill_(CANARY)

        def launch() -> None:
            gather_rows(
                self.layout, self.counts, rows, target, self.rows, record=self.record, launch=self.launch
            )
            map_slots(
                self.layout, geometry, rows, starts, places, slots, record=self.record, launch=self.launch
            )

        expected = self._expected_reads(rows, places)
        self._next()
        self._run("read", launch)
        bad = len(WIDTHS) * int((absent | past).sum()) + int(stale[:, ~self._numbers(absent)].sum())
        tally = self._judged("read", 2 * len(WIDTHS) * self.rows, bad, expected, [*outs, slots])
        self.counts.copy_(good_counts)
        return tally

    def _expected_reads(
        self, rows: torch.Tensor, places: torch.Tensor
    ) -> tuple[list[torch.Tensor], Counter[str]]:
        torch, refused = self.torch, Counter[str]()
        exists = (rows >= 0) & (rows < self.rows)
        safe = torch.where(exists, rows, 0)
        outs, slots = [], []
        for group, (table, width) in enumerate(zip(self.tables, WIDTHS, strict=True)):
            counts = self.counts[group, safe].long()
            too_many = exists & (counts > width)
            refused["COUNT"] += int(too_many.sum())
            # Once by the gather and once by the slot mapping.
            refused["READ_ROW"] += 2 * int((~exists).sum())
            columns = torch.arange(width, device=self.device)
            outs.append(torch.where(exists[:, None] & (columns < counts[:, None]), table[safe], 0))
            column = places // BLOCK_SIZE
            inside = exists & (column < width)
            refused["READ_PAST_ROW"] += int((exists & ~inside).sum())
            blocks = table[safe, torch.where(inside, column, 0)].long()
            slots.append(torch.where(inside, blocks * BLOCK_SIZE + places % BLOCK_SIZE, -1))
        return [*outs, torch.stack(slots)], refused

    def select(self) -> Tally:
        """Select two states per row of each group, a tenth of the lengths past the row."""
        from kernels import select_states

        torch, np = self.torch, self.np
        expected, refused, found, bad = [], Counter[str](), [], 0
        jobs = []
        for group, (table, width) in enumerate(zip(self.tables, WIDTHS, strict=True)):
            lengths = self.random.integers(1, (width - 1) * BLOCK_SIZE + 1, self.rows)
            past = self.random.random(self.rows) < 1 / 10
            lengths = np.where(past, width * BLOCK_SIZE + lengths, lengths)
            bad += 2 * int(past.sum())
            rows = self._fix(f"rows {group}", np.arange(self.rows))
            tokens = self._fix(f"lengths {group}", lengths)
            columns = (tokens[:, None] - 1) // BLOCK_SIZE + torch.arange(2, device=self.device)
            inside = columns < width
            refused["STATE_PAST_ROW"] += int((~inside).sum())
            picked = table.gather(1, torch.where(inside, columns, 0))
            expected.append(torch.where(inside, picked, -1).to(torch.int32))
            key = f"states {group}"
            if key not in self._fixed:
                self._fixed[key] = torch.zeros((self.rows, 2), dtype=torch.int32, device=self.device)
            found.append(self._fixed[key].fill_(CANARY))
            jobs.append((table, rows, tokens, self._fixed[key], group))

        def launch() -> None:
            for table, rows, tokens, out, group in jobs:
                select_states(
                    table, rows, tokens, block_size=BLOCK_SIZE, num_states=2, out=out,
                    group=group, record=self.record, launch=self.launch,
                )  # fmt: skip

        self._next()
        self._run("select", launch)
        return self._judged("select", 2 * len(WIDTHS) * self.rows, bad, (expected, refused), found)

    def _fix(self, name: str, values: Any) -> torch.Tensor:
        """Return `values` on the device, under the same address in every round."""
        new = self._numbers(values)
        return self._fixed.setdefault(name, new.clone()).copy_(new)

    def _next(self) -> None:
        self.record.reset()
        self.launch += 1

    def _run(self, name: str, launch: Callable[[], None]) -> None:
        if not self.graph:
            launch()
            return
        torch = self.torch
        if name not in self._captured:
            # Compile first: a capture may not load a module.
            launch()
            torch.cuda.synchronize()
            self.record.reset()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                launch()
            self._captured[name] = graph
        self._captured[name].replay()

    def _judged(
        self,
        what: str,
        accesses: int,
        bad: int,
        expected: tuple[list[torch.Tensor], Counter[str]],
        found: list[torch.Tensor],
    ) -> Tally:
        tensors, refused = expected
        problems = [
            f"{what} {self.launch}: tensor {place} differs from the reference in "
            f"{int((one != other).sum())} entries"
            for place, (one, other) in enumerate(zip(found, tensors, strict=True))
            if not self.torch.equal(one, other)
        ]
        reported = {violation.fault.name: violation.total for violation in self.record.read()}
        wanted = {name: total for name, total in refused.items() if total}
        if reported != wanted:
            problems.append(f"{what} {self.launch}: the record says {reported}, {wanted} were refused")
        if wanted and not self.record.pending():
            problems.append(f"{what} {self.launch}: the flag in host memory was not set")
        return Tally(accesses, bad, tuple(problems))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels.bench.campaign",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--accesses", type=int, default=1_000_000, metavar="N", help="of each kind, at least; 1,000,000"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cuda unless told; cpu is the interpreter, with TRITON_INTERPRET=1 in the environment",
    )
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"rows of each table; {ROWS}")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn; 1")
    parser.add_argument("--graph", action="store_true", help="replay the reads from a CUDA graph")
    parser.add_argument("--unguarded", action="store_true", help="the control: the writer without a bound")
    options = parser.parse_args(arguments)
    if options.accesses < 1 or options.rows < 1 or options.seed < 0:
        parser.error("--accesses and --rows must be positive, and --seed not negative")
    if options.graph and options.device == "cpu":
        parser.error("--graph needs --device cuda")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    import torch

    problem = lane_problem(options.device)
    if problem:
        print(f"kernels.bench.campaign: {problem}", file=sys.stderr)
        return 2
    try:
        campaign = Campaign(
            torch.device(options.device), options.seed, rows=options.rows, graph=options.graph
        )
    except (MemoryError, RuntimeError) as error:
        line = str(error).strip().split("\n")[0]
        print(f"kernels.bench.campaign: no room for {options.rows} rows a table: {line}", file=sys.stderr)
        return 2
    if options.unguarded:
        return _control(campaign, options.accesses)
    failed = False
    for name, one in (("writes", campaign.write), ("reads", campaign.read), ("states", campaign.select)):
        done, bad, problems = _rounds(one, options.accesses)
        verdict = "reported, nothing else touched" if not problems else f"{len(problems)} PROBLEMS"
        print(f"{name:<8}{done:>10,} of them {bad:>8,} out of the row: {verdict}", flush=True)
        for problem in problems[:5]:
            print(f"        {problem}")
        if not bad:
            print(f"        none was out of the row, so nothing is shown: {_MORE}")
        failed |= bool(problems) or not bad
    return int(failed)


def _rounds(one: Callable[[], Tally], accesses: int) -> tuple[int, int, list[str]]:
    done = bad = 0
    problems: list[str] = []
    while done < accesses:
        tally = one()
        done, bad = done + tally.accesses, bad + tally.bad
        problems += tally.problems
    return done, bad, problems


def _control(campaign: Campaign, accesses: int) -> int:
    """Show that the same checks notice a writer without a bound."""
    done, bad, problems = _rounds(lambda: campaign.write(bounded=False), accesses)
    corrupted = [problem for problem in problems if "differs from the reference" in problem]
    print(f"unguarded writes {done:,}, of them {bad:,} out of the row: {len(corrupted)} tensors corrupted")
    if not bad:
        print(f"none was out of the row, so nothing is shown: {_MORE}")
    return 0 if corrupted else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
