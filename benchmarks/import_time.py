"""What `import tpuport.auto` takes beyond the imports of torch and jax.

    python benchmarks/import_time.py               # medians of eleven fresh processes each, in turn
    python benchmarks/import_time.py --rounds 3

The import brings torchax, which completes itself with its operators and a random key. CPU time is that of user and
system, which other programs on the machine change less than the time by the clock.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

LIBRARIES = "import torch, jax"
OURS = f"{LIBRARIES}, tpuport.auto"


def measure(statement: str) -> tuple[float, float]:
    """Seconds by the clock, and of CPU, of a fresh Python that runs a statement."""
    before, start = _child_seconds(), time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], capture_output=True, check=True)
    return time.perf_counter() - start, _child_seconds() - before


def _child_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    measure(OURS)  # writes bytecode
    libraries, ours = [], []
    for _ in range(rounds):
        libraries.append(measure(LIBRARIES))
        ours.append(measure(OURS))
    for name, before, after in zip(
        ("clock", "CPU"), zip(*libraries, strict=True), zip(*ours, strict=True), strict=True
    ):
        first, second = statistics.median(before), statistics.median(after)
        print(f"{name}: {first:.2f} s, with tpuport.auto {second:.2f} s, {second - first:.2f} s more")


if __name__ == "__main__":
    main()
