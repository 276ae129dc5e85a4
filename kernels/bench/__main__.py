"""`python -m kernels.bench`: time the guarded block tables beside vLLM's own, on one CUDA device."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels._command import run_command
from kernels.bench import lane_problem

_EPILOG = """\
--peer names a folder with vLLM's own vllm/v1/worker/gpu/block_table.py and buffer_utils.py and what they
import; give it once per release. Each peer is timed in a process of its own, interleaved there with the
guarded tables in every mode. Before a shape is timed, both sides do the same random work and must agree.

exit codes: 0 measured; 1 the sides disagree, nothing of that peer was timed; 2 wrong usage, or no CUDA device
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels.bench",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peer", action="append", type=Path, default=[], metavar="DIR", help="a release of vLLM"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the measurements, machine line first")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the ratios of --csv or --from; an image"
    )
    parser.add_argument("--from", type=Path, metavar="FILE", dest="earlier", help="draw an earlier --csv")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child and options.peer:
        return _child(options.peer[0])
    if options.earlier and (options.peer or options.csv):
        parser.error("--from draws what was measured earlier; --peer and --csv are for a new measurement")
    if options.earlier:
        return _plot(options.earlier, options.plot)
    if not options.peer:
        parser.error("give --peer at least once, or --from with --plot")
    return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    worst, lines = 0, []
    for folder in options.peer:
        if not (folder / "vllm/v1/worker/gpu/block_table.py").is_file():
            print(f"kernels.bench: no vllm/v1/worker/gpu/block_table.py in {folder}", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", "kernels.bench", "--child", "--peer", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - our own
            for line in child.stdout or ():
                found = json.loads(line)
                lines.append(found)
                _show(found)
        worst = max(worst, child.returncode)
    if lines and options.csv:
        _write(options.csv, lines)
    if lines and options.csv and options.plot:
        _plot(options.csv, options.plot)
    return worst


def _child(folder: Path) -> int:
    import torch

    from kernels.bench.measure import Disagreement, measure
    from kernels.bench.peers import load_peer

    problem = lane_problem("cuda")
    if problem:
        print(f"kernels.bench: {problem}", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    try:
        for found in measure(load_peer(folder), folder.name, device):
            print(json.dumps(asdict(found)), flush=True)
    except Disagreement as error:
        print(f"kernels.bench: {folder.name}: {error}", file=sys.stderr)
        return 1
    return 0


def _show(found: dict[str, Any]) -> None:
    shape = f"{found['groups']}x{found['rows']}x{found['new_blocks']} of {found['width']}"
    print(
        f"{found['peer']:<9} {shape:<20} {found['operation']:<9} {found['side']:<15} "
        f"host {found['host_us']:>9,.1f} us {found['ratio_to_peer']:>6.3f}x  "
        f"{found['launches']:>4.1f} launches  device {found['device_us']:>8.2f} us "
        f"{found['device_ratio_to_off']:>6.3f}x of off",
        flush=True,
    )


def _machine() -> str:
    import torch
    import triton

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]  # noqa: S603 - fixed
    except (OSError, subprocess.CalledProcessError, IndexError):
        gpu = torch.cuda.get_device_name()
    model = "unknown CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return (
        f"# {gpu}; {model}, {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"torch {torch.__version__}, Triton {triton.__version__}"
    )


def _write(file: Path, lines: list[dict[str, Any]]) -> None:
    with file.open("w", newline="") as out:
        out.write(f"{_machine()}\n")
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _plot(source: Path, target: Path | None) -> int:
    if target is None:
        print("kernels.bench: --from needs --plot", file=sys.stderr)
        return 2
    try:
        from kernels.bench.plot import draw
    except ModuleNotFoundError as error:
        print(f"kernels.bench: needs {error.name}: install rowbound with its extra `report`", file=sys.stderr)
        return 2
    try:
        draw(source, target)
    except OSError as error:
        print(f"kernels.bench: cannot draw {source} to {target}: {error}", file=sys.stderr)
        return 2
    except (KeyError, StopIteration, ValueError) as error:
        reason = f"it is no file that --csv writes ({error!r})"
        print(f"kernels.bench: cannot draw {source} to {target}: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
