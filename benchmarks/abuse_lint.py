"""Source files as they must not be: whether the linter answers, how long it takes and how much memory.

    python -m benchmarks.abuse_lint [--only NAME]

Right is a report within 10 seconds of processor time and 1 GB of memory, from a process that ends by itself.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.abuse import run
from benchmarks.abuse_lint_cases import Case, all_cases

CPU_SECONDS = 10
MEMORY = 1_000_000_000
# Reports end with 0, 1 or 2: nothing found, errors, files that cannot be read.
_REPORT_CODES = range(3)


def outcome(case: Case) -> str:
    """What became of a file: "right", or what is wrong."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "model.py")
        file.write_text(case.text)
        command = [
            sys.executable,
            "-m",
            "tpuport",
            "lint",
            "--no-cache",
            "--format",
            "json",
            str(file),
        ]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdout=output, stderr=errors, cwd=directory, preexec_fn=_limit_processor_time
            )
            # The resources of this one process, which `subprocess` does not tell.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            errors.seek(0)
            is_report = output.read(1) in (b"{", b"[")
            error_text = errors.read().decode()
    seconds = usage.ru_utime + usage.ru_stime
    if process.returncode not in _REPORT_CODES or not is_report:
        return f"exit code {process.returncode} after {seconds:.1f} s: {error_text[-200:]}"
    if usage.ru_maxrss * 1024 > MEMORY:
        return f"large: {usage.ru_maxrss >> 10} MiB"
    return "right" if seconds < CPU_SECONDS else f"slow: {seconds:.1f} s"


def _limit_processor_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (3 * CPU_SECONDS, 3 * CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (8 * MEMORY, 8 * MEMORY))


def main() -> None:
    run(__doc__, all_cases(), outcome)


if __name__ == "__main__":
    main()
