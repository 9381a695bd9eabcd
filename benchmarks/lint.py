"""How long `tpuport lint` takes over every model of transformers or another tree, beside TorchFix on the same files.

    python benchmarks/lint.py                                    without a rival
    python benchmarks/lint.py --rival .venv-rivals/bin/torchfix  TorchFix takes minutes
    python benchmarks/lint.py --rival ... --rival-sample 50      every tenth file, scaled by lines
    python benchmarks/lint.py DIRECTORY ...                      another tree than transformers' models

All runs use the same two cores, one after another. CPU time is that of all processes of a run; memory is the largest
sum of their proportional set sizes, sampled. The cold run starts with an empty cache, which the warm runs then read.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

CORES = 2
SMALL = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""


class Measured(NamedTuple):
    """One run: seconds, seconds of CPU, bytes at the peak."""

    wall: float
    cpu: float
    peak: int


def run(command: Sequence[str], codes: Sequence[int] = (0, 1)) -> Measured:
    """Run a command; its exit code must be one of those given."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
        watcher.start()
        assert process.stderr is not None
        errors = process.stderr.read()
        code = process.wait()
    wall = time.perf_counter() - started
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code not in codes:
        sys.exit(f"{command[0]} ended with {code}: {errors.decode(errors='replace')[-2000:]}")
    return Measured(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak[0])


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(_memory(pid) for pid in _family(process.pid)))
        time.sleep(0.1)


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def models() -> list[str]:
    """Every modeling file of the installed transformers."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    return sorted(str(path) for path in (Path(spec.origin).parent / "models").glob("*/modeling_*.py"))


def lines(files: Sequence[str]) -> int:
    return sum(Path(file).read_bytes().count(b"\n") for file in files)


def row(name: str, measured: Measured, scale: float = 1.0) -> str:
    times = f"{measured.wall * scale:.2f} s | {measured.cpu * scale:.2f} s"
    return f"| {name} | {times} | {measured.peak / 1e6:.0f} MB |"


def sample(files: Sequence[str], count: int) -> list[str]:
    """So many files, evenly over the sizes."""
    if not 0 < count < len(files):
        return list(files)
    by_size = sorted(files, key=lambda file: Path(file).stat().st_size)
    return [by_size[int((number + 0.5) * len(files) / count)] for number in range(count)]


def median(runs: Sequence[Measured]) -> Measured:
    """The median of each figure."""
    wall, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
    return Measured(wall, cpu, int(peak))


def start_up(command: Sequence[str], rounds: int) -> Measured:
    """Medians on one small file, without a cache."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.py"
        file.write_text(SMALL)
        each = [run([*command, "--no-cache", str(file)]) for _ in range(rounds)]
    return median(each)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="*", type=Path, help="lint all files below these instead")
    parser.add_argument("--rival", help="TorchFix's command")
    parser.add_argument(
        "--rival-sample", type=int, default=0, metavar="N", help="give it N files only, and scale"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of the warm runs and the start-up")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    lint = [str(Path(sys.executable).with_name("tpuport")), "lint"]
    below = [str(path) for directory in options.directories for path in sorted(directory.rglob("*.py"))]
    files = below or models()
    total = lines(files)
    print(f"{len(files)} files, {total:,} lines, {CORES} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| | wall | CPU | peak memory |\n| --- | ---: | ---: | ---: |")
    print(
        row(f"start-up, one small file, median of {options.rounds}", start_up(lint, options.rounds)),
        flush=True,
    )
    with tempfile.TemporaryDirectory() as cache:
        command = [*lint, "--format", "concise", "--cache-dir", cache, *files]
        cold = run(command)
        print(row("tpuport lint, cold cache", cold), flush=True)
        warm = [run(command) for _ in range(options.rounds)]
        counted = subprocess.run([*command, "--format", "json"], capture_output=True, check=False)
    counts = json.loads(counted.stdout)["summary"]["by_severity"]
    print(row(f"tpuport lint, warm cache, median of {options.rounds}", median(warm)), flush=True)
    if options.rival:
        some = sample(files, options.rival_sample)
        scale = total / lines(some)
        rival = run([options.rival, "--jobs", str(CORES), "--select", "ALL", *some])
        note = f", {len(some)} of the files scaled by {scale:.2f}" if scale > 1 else ""
        print(row(f"TorchFix{note}", rival, scale))
        print(
            f"\nwall {rival.wall * scale / cold.wall:.1f} x, CPU {rival.cpu * scale / cold.cpu:.1f} x of tpuport's"
        )
    print("\nfindings: " + ", ".join(f"{count} {severity}" for severity, count in counts.items()))


if __name__ == "__main__":
    main()
