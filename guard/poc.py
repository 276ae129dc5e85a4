"""The reference case: a 257-token request overflows its Mamba row into a neighbour's, or is refused.

Two cache groups, full attention and Mamba align, with block size 16, max_model_len 512, decode context
parallel size 2 and 128 blocks. A neighbour of 1 token sits in row 1. Then a request of 257 tokens comes
to row 0: the scheduler hands it 17 Mamba blocks, and vLLM 0.26 gives its row 16 entries.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from guard.errors import BlockTableViolation, GuardError, GuardUsageError
from invariants import (
    TODAY,
    Deployment,
    FullAttentionSpec,
    MambaAlignSpec,
    Request,
    entries,
    release,
    row_width,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

# ruff: noqa: PLC0415 - torch and triton are imported after the device is chosen
# ruff: noqa: T201 - the report is printed

__all__ = ["main"]

BLOCK_SIZE = 16
NUM_BLOCKS = 128
DEPLOYMENT = Deployment(max_model_len=512, decode_context_parallel_size=2)
ATTENTION = FullAttentionSpec(block_size=BLOCK_SIZE)
MAMBA = MambaAlignSpec(block_size=BLOCK_SIZE)
FAULTY = release("vllm-0.26")
ROWS = 2
REQUEST_ROW, NEIGHBOUR_ROW = 0, 1
REQUEST_TOKENS, NEIGHBOUR_TOKENS = 257, 1
MAMBA_GROUP = 1

_EPILOG = """\
Modes: by default the guarded tables refuse the request; --unguarded writes it without bounds;
--fixed-capacity gives the Mamba row today's width.
Exit codes: 0 the mode showed what it should; 1 it did not; 2 usage, something is not installed, or nobody
reads the output.
"""

BlockLists = tuple[list[int], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one mode showed."""

    neighbour_before: int
    neighbour_after: int
    states: str
    as_expected: bool
    message: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one mode and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        device = _prepare_device(options.device)
        if options.select_in_child:
            return _select_past_the_row(device)
        code = _run(options, device)
        sys.stdout.flush()
        return code  # noqa: TRY300 - what cannot be printed ends here as well
    except GuardError as error:
        print(f"guard.poc: {error}", file=sys.stderr)
    except OSError as error:
        # Leave the interpreter nothing to flush into what cannot be written to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"guard.poc: cannot print: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"guard.poc: needs {error.name}: install rowbound with its extra `gpu`", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m guard.poc",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--unguarded", action="store_true", help="write without bounds, as vLLM 0.26 does")
    mode.add_argument("--fixed-capacity", action="store_true", help="give the Mamba row today's width")
    parser.add_argument(
        "--allocator",
        choices=("rowbound", "vllm"),
        default="rowbound",
        help="where block lists come from: counted here, or the installed vLLM's KVCacheManager",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the tables lie"
    )
    parser.add_argument("--select-in-child", action="store_true", help=argparse.SUPPRESS)
    return parser


def _prepare_device(choice: str) -> torch.device:
    """Choose the device and, before triton is imported, how its kernels run there."""
    for name in ("torch", "triton", "numpy"):
        # Asked for and not imported: triton reads its lane on import, and torch may need it for CUDA.
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    import torch

    if choice == "cuda" and not torch.cuda.is_available():
        message = "--device cuda: torch sees no CUDA device"
        raise GuardUsageError(message)
    on_cpu = choice == "cpu" or (choice == "auto" and not torch.cuda.is_available())
    if on_cpu:
        os.environ["TRITON_INTERPRET"] = "1"
        return torch.device("cpu")
    os.environ.pop("TRITON_INTERPRET", None)
    return torch.device("cuda", torch.cuda.current_device())


def _run(options: argparse.Namespace, device: torch.device) -> int:
    mode: Callable[[torch.device, list[int], BlockLists, BlockLists], Outcome]
    name, mode, mamba_release = "guarded", _guarded, FAULTY
    if options.unguarded:
        name, mode = "unguarded", _unguarded
    elif options.fixed_capacity:
        name, mode, mamba_release = "fixed capacity", _fixed_capacity, TODAY
    widths = [
        row_width(DEPLOYMENT, ATTENTION, release=FAULTY),
        row_width(DEPLOYMENT, MAMBA, release=mamba_release),
    ]
    # Before anything is drawn on the pool, so that a missing vLLM leaves no half-printed report.
    neighbour, request = _block_lists(options.allocator)
    outcome = mode(device, widths, neighbour, request)
    _report(name, device, mamba_release.name, widths, [len(ids) for ids in request], outcome)
    return 0 if outcome.as_expected else 1


def _report(  # noqa: PLR0913, PLR0917 - the lines of the report
    mode: str,
    device: torch.device,
    formula: str,
    widths: Sequence[int],
    handed_over: Sequence[int],
    outcome: Outcome,
) -> None:
    lines = [
        ("mode", f"{mode}, on {device}"),
        ("Mamba row capacity", f"{widths[MAMBA_GROUP]} entries ({formula})"),
        ("scheduler's blocks", f"{list(handed_over)} for {REQUEST_TOKENS} tokens"),
        ("neighbour's block", f"{outcome.neighbour_before} -> {outcome.neighbour_after}"),
        ("selected states", outcome.states),
    ]
    if outcome.message is not None:
        lines.append(("refused", outcome.message))
    lines.append(("result", "as expected" if outcome.as_expected else "NOT as expected"))
    for label, text in lines:
        print(f"{label:<20}{text}")
    sys.stdout.flush()


def _block_lists(allocator: str) -> list[BlockLists]:
    """Return the block IDs that neighbour and request own, per group."""
    token_counts = (NEIGHBOUR_TOKENS, REQUEST_TOKENS)
    if allocator == "vllm":
        from guard._vllm_allocator import allocate_with_vllm

        return allocate_with_vllm(DEPLOYMENT, BLOCK_SIZE, NUM_BLOCKS, token_counts)
    free = count(1)
    return [_new_request(tokens, free) for tokens in token_counts]


def _new_request(num_tokens: int, free: Iterator[int]) -> BlockLists:
    request = Request(num_tokens=num_tokens)
    attention = [next(free) for _ in range(entries(DEPLOYMENT, ATTENTION, request))]
    # A Mamba group in align mode keeps only the running state; the columns before it hold the null block.
    states = 1 + MAMBA.num_speculative_blocks
    nulls = entries(DEPLOYMENT, MAMBA, request) - states
    return attention, [0] * nulls + [next(free) for _ in range(states)]


def _guarded(device: torch.device, widths: list[int], neighbour: BlockLists, request: BlockLists) -> Outcome:
    before, after, states, message = _write_guarded(device, widths, neighbour, request)
    refused = message is not None and "(17 > 16)" in message
    expected = refused and before == after and states == [[before], [-1]]
    return Outcome(before, after, f"{states}, -1 for the refused request", expected, message)


def _fixed_capacity(
    device: torch.device, widths: list[int], neighbour: BlockLists, request: BlockLists
) -> Outcome:
    before, after, states, message = _write_guarded(device, widths, neighbour, request)
    expected = before == after and states == [[neighbour[1][-1]], [request[1][-1]]]
    return Outcome(before, after, str(states), expected, message)


def _write_guarded(
    device: torch.device, widths: list[int], neighbour: BlockLists, request: BlockLists
) -> tuple[int, int, list[list[int]], str | None]:
    """Return the neighbour's block before and after, the selected states, and a refusal's message."""
    import torch

    from guard.block_tables import BlockTables
    from guard.settings import Mode
    from kernels import select_states

    tables = BlockTables(
        [BLOCK_SIZE] * len(widths),
        ROWS,
        DEPLOYMENT.max_model_len,
        widths,
        device,
        cp_size=DEPLOYMENT.decode_context_parallel_size,
        num_pool_blocks=NUM_BLOCKS,
        # Whatever the environment says.
        mode=Mode.RAISE,
    )
    mamba = tables.block_tables[MAMBA_GROUP].gpu
    tables.append_block_ids(NEIGHBOUR_ROW, neighbour, overwrite=True)
    tables.apply_staged_writes()
    before = int(mamba[NEIGHBOUR_ROW, 0])
    message = None
    try:
        tables.append_block_ids(REQUEST_ROW, request, overwrite=True)
    except BlockTableViolation as violation:
        message = str(violation)
    tables.apply_staged_writes()
    states = select_states(
        mamba,
        torch.tensor([NEIGHBOUR_ROW, REQUEST_ROW], device=device),
        torch.tensor([NEIGHBOUR_TOKENS, REQUEST_TOKENS], device=device),
        block_size=BLOCK_SIZE,
    )
    return before, int(mamba[NEIGHBOUR_ROW, 0]), states.tolist(), message


def _unguarded(
    device: torch.device, widths: list[int], neighbour: BlockLists, request: BlockLists
) -> Outcome:
    """Write both requests with the plain writer, then select states without a bound in a child."""
    import torch

    from kernels import TableLayout, Write, pack_writes, write_staged

    tables = [torch.zeros((ROWS, width), dtype=torch.int32, device=device) for width in widths]
    layout = TableLayout.of(tables)
    counts = torch.zeros((len(widths), ROWS), dtype=torch.int32, device=device)

    def write(row: int, block_lists: BlockLists) -> int:
        writes = [Write(group, row, 0, ids) for group, ids in enumerate(block_lists)]
        write_staged(layout, counts, pack_writes(writes, len(widths), device), bounded=False)
        return int(tables[MAMBA_GROUP][NEIGHBOUR_ROW, 0])

    before = write(NEIGHBOUR_ROW, neighbour)
    after = write(REQUEST_ROW, request)
    failure = _selection_failure(device)
    expected = (before, after) == (neighbour[1][-1], request[1][-1]) and failure is not None
    return Outcome(before, after, failure or "selected, although column 16 is not in the row", expected)


def _selection_failure(device: torch.device) -> str | None:
    """Select states in a child process, which a device-side assert would end; return its error."""
    command = [sys.executable, "-m", "guard.poc", "--select-in-child", "--device", device.type]
    child = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if child.returncode == 0:
        return None
    lines = [line.strip() for line in (child.stdout + child.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if "assert" in line or "out of bounds" in line]
    return (telling or lines or [f"the child process ended with {child.returncode}"])[0]


def _select_past_the_row(device: torch.device) -> int:
    """Read each row's state column as a kernel without bounds does: index a 16-wide row at column 16."""
    import torch

    width = row_width(DEPLOYMENT, MAMBA, release=FAULTY)
    table = torch.zeros((ROWS, width), dtype=torch.int32, device=device)
    tokens = torch.tensor([[NEIGHBOUR_TOKENS], [REQUEST_TOKENS]], device=device)
    try:
        table.gather(1, (tokens - 1) // BLOCK_SIZE).tolist()
    except RuntimeError as error:
        print(str(error).split("\n")[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
