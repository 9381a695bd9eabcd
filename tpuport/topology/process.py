"""A process of its own for each topology: memory is bounded, the compiler may die, and its noise is kept apart."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.hardware import LIBTPU_ENVIRONMENT

_JOB: Final = "from tpuport.topology import job; job.main()"
_LAST: Final = 12


def events(request: dict[str, Any], code: str = _JOB) -> Iterator[dict[str, Any]]:
    """What a new process says while it works on a request, as `job` describes both. It ends with the iteration.

    Args:
        request: plain values.
        code: what the process runs.

    Raises:
        PortError: the process has died, or it has told a problem.
    """
    with tempfile.TemporaryDirectory(prefix="tpuport-") as scratch:
        log = Path(scratch) / "log"
        process = _started(code, log)
        try:
            yield from _heard(process, request, log)
        finally:
            _stop(process)


def _started(code: str, log: Path) -> "subprocess.Popen[str]":
    # The import path is handed over: the process finds what this one would.
    code = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    with log.open("wb") as noise:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment(),
            start_new_session=True,  # an interrupt from the keyboard reaches this process only, which stops that one
        )


def environment() -> dict[str, str]:
    """Of the process: read by jax and libtpu when they are imported."""
    wanted = {
        "JAX_PLATFORMS": "cpu",
        # Programs for a TPU that is not there cannot be kept by jax; `store` keeps their reports.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TPU_LOG_DIR": "disabled",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }
    return {**LIBTPU_ENVIRONMENT, **os.environ, **wanted}


def _heard(process: "subprocess.Popen[str]", request: dict[str, Any], log: Path) -> Iterator[dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has died; the end of its output says so
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    for line in process.stdout:
        event = json.loads(line)
        match event.pop("event"):
            case "done":
                return
            case "problem":
                raise PortError(**event)
            case "crash":
                raise PortError(
                    f"tpuport failed: {event['traceback'].strip().splitlines()[-1]}",
                    where=f"\n{event['traceback'].rstrip()}",
                    fix="this is a bug of tpuport; please report it",
                )
            case kind:
                yield {"event": kind, **event}
    raise _obituary(process, log)


def _obituary(process: "subprocess.Popen[str]", log: Path) -> PortError:
    code = process.wait()
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-_LAST:]
    fix = "tpuport doctor says what is installed here"
    if code == -signal.SIGKILL:
        fix = "the system most likely ran out of memory: close other programs, or try --scan-layers or --effort -1"
    return PortError(
        f"the process that compiles has died ({how})",
        where="\n    ".join(["its last words:", *lines]) if lines else None,
        fix=fix,
    )


def _stop(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert pipe is not None
            pipe.close()
