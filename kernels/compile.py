"""Compile every kernel and variant ahead of time, for GPUs that need not be there.

Contract: each `@triton.jit` function called `*_kernel` in a `kernel.py` of this package is compiled for each
target in each variant that its host function can launch. The types of arguments are those of the kernels'
contracts, written down here once per name; an argument or a kernel that is not is an error, so that a new
one cannot go uncompiled.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels._command import run_command
from kernels.launch import warps_for

__all__ = ["TARGETS", "Job", "compile_job", "jobs", "main"]

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Backend, architecture and lanes per warp of each target."""

_INDEX = "index"
"""Marks a pointer to int32 or int64: a variant of its own each, the same for all of a kernel's."""

_ARGUMENTS = {
    "block_sizes": "*i32",
    "counts": "*i32",
    "counts_stride": "i32",
    "cp_rank": "i32",
    "enabled": "*i32",
    "expansion": "*i32",
    "filled": "*i32",
    "filled_stride": "i32",
    "flag": "*i32",
    "group": "i32",
    "idx_mapping": _INDEX,
    "kernel_block_sizes": "*i32",
    "launch": "i32",
    "num_computed_tokens": _INDEX,
    "num_positions": "i32",
    "num_reqs": "i32",
    "num_rows": "i32",
    "num_tokens": "i32",
    "num_writes": "i32",
    "out_pointers": "*u64",
    "out_stride": "i32",
    "out_strides": "*i64",
    "pointers": "*u64",
    "positions": _INDEX,
    "query_start_loc": _INDEX,
    "reach": "*i32",
    "rows": _INDEX,
    "seq_lens": _INDEX,
    "sharded": "*i32",
    "stride": "i32",
    "strides": "*i64",
    "table": "*i32",
    "width": "i32",
    "widths": "*i64",
    "words": "*i64",
    "writes": "*i32",
}
_OUT = {"slot_mapping_kernel": "*i64", "state_index_kernel": "*i32"}

_CONSTANTS: dict[str, tuple[int, ...]] = {
    "BLOCK_SIZE": (16,),
    "BOUNDED": (True, False),
    "COUNTED": (False, True),
    "CP_INTERLEAVE": (4,),
    "CP_SIZE": (1, 2),
    "EXPANDED": (False, True),
    "MASKED": (False, True),
    "NUM_STATES": (3,),
    "PAD": (-1,),
    "PAD_CHUNK": (1024,),
    "RECORD": (False, True),
    "TRACKED": (False, True),
}
"""What the hosts launch with; CHUNK is one of the host's own CHUNKS."""

_NEEDS_BOUND = ("COUNTED", "RECORD")
_OPTIONAL = {
    "counts": "COUNTED",
    "expansion": "EXPANDED",
    "filled": "TRACKED",
    "flag": "RECORD",
    "words": "RECORD",
}
"""Pointers that the host leaves out, as None, where the switch is off and the kernel has it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One variant of one kernel, for one target."""

    module: str
    kernel: str
    index_type: str
    constants: tuple[tuple[str, int], ...]
    target: str

    def __str__(self) -> str:
        values = " ".join(f"{name}={int(value)}" for name, value in self.constants)
        return f"{self.kernel} {self.index_type} {values} for {self.target}"


def jobs(targets: tuple[str, ...] = tuple(TARGETS)) -> list[Job]:
    """List what is to be compiled, from the kernels' own parameters."""
    found = []
    for module, kernel, names in _kernels():
        values_of = {
            **_CONSTANTS,
            "CHUNK": importlib.import_module(module.removesuffix("kernel") + "host").CHUNKS,
        }
        unknown = [n for n in names if n != "out" and n not in _ARGUMENTS and n not in values_of]
        if unknown or ("out" in names and kernel not in _OUT):
            message = f"{kernel}: kernels.compile does not know the type of {', '.join(unknown) or 'out'}"
            raise LookupError(message)
        constants = [name for name in names if name in values_of]
        index_types = ("*i32", "*i64") if any(_ARGUMENTS.get(n) == _INDEX for n in names) else ("-",)
        for index_type, values, target in itertools.product(
            index_types, itertools.product(*(values_of[name] for name in constants)), targets
        ):
            chosen = dict(zip(constants, values, strict=True))
            if chosen.get("BOUNDED", True) or not any(chosen.get(name) for name in _NEEDS_BOUND):
                found.append(Job(module, kernel, index_type, tuple(chosen.items()), target))
    return found


def compile_job(job: Job) -> int:
    """Compile one job and return the size of its binary."""
    import triton  # noqa: PLC0415 - only in a process where TRITON_INTERPRET is unset
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    kernel = getattr(importlib.import_module(job.module), job.kernel)
    constants: dict[str, Any] = dict(job.constants)
    for name, switch in _OPTIONAL.items():
        if name in kernel.arg_names and constants.get(switch) is False:
            constants[name] = None
    signature = {name: _type(job, name, constants) for name in kernel.arg_names}
    target = GPUTarget(*TARGETS[job.target])
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps_for(constants["CHUNK"])} if "CHUNK" in constants else {}
    compiled = triton.compile(source, target=target, options=options)
    return len(compiled.kernel)


def _type(job: Job, name: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    written = _OUT[job.kernel] if name == "out" else _ARGUMENTS[name]
    return job.index_type if written == _INDEX else written


def _kernels() -> list[tuple[str, str, list[str]]]:
    """Find module, name and parameters of every kernel."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*/kernel.py")):
        module = f"kernels.{path.parent.name}.kernel"
        for name, value in vars(importlib.import_module(module)).items():
            function = getattr(value, "fn", None)
            if name.endswith("_kernel") and getattr(function, "__module__", None) == module:
                found.append((module, name, list(value.arg_names)))
    return found


def _start_worker(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    # Triton 3.9 warns of a changing default while this is unset; no kernel here multiplies floats.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def _attempt(job: Job) -> tuple[Job, int, str]:
    try:
        return job, compile_job(job), ""
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the result
        return job, 0, f"{type(error).__name__}: {error}".strip()


def main(arguments: list[str] | None = None) -> int:
    """Compile what the command line selects and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels.compile",
        description="Compile every kernel and variant ahead of time; no GPU is needed.",
        epilog="Exit code: 0 all compiled, 1 at least one did not, 2 usage or a kernel not known here.",
    )
    parser.add_argument(
        "--target", action="append", choices=list(TARGETS), help="may be given more than once; default all"
    )
    parser.add_argument("--kernel", metavar="TEXT", default="", help="only kernels with TEXT in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--list", action="store_true", help="list the variants and compile none")
    options = parser.parse_args(arguments)
    try:
        selected = [job for job in jobs(tuple(options.target or TARGETS)) if options.kernel in job.kernel]
    except LookupError as error:
        parser.error(str(error))
    if not selected:
        parser.error(f"no kernel has {options.kernel!r} in its name")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} is not positive")
    if options.list:
        _say("\n".join(map(str, selected)))
        return 0
    return _compile_all(selected, options.jobs)


def _compile_all(selected: list[Job], processes: int) -> int:
    # The workers import triton anew: a kernel built for the interpreter cannot be compiled.
    os.environ.pop("TRITON_INTERPRET", None)
    failed = 0
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(
            min(processes, len(selected)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(cache,),
        ) as pool,
    ):
        for job, size, problem in pool.map(_attempt, selected):
            failed += bool(problem)
            _say(f"FAILED {job}: {problem}" if problem else f"ok     {job}: {size} bytes")
    _say(f"{len(selected) - failed} compiled, {failed} failed")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run_command(main))
