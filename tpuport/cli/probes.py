"""Questions that only torch, torchax and jax can answer, each asked in a process of its own.

A library that does not import, crashes or hangs (a TPU held by another process does) is then an answer too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

_TAIL_LINES = 5


def ask(probe: str, timeout: float) -> dict[str, Any]:
    """What the probe found, or a `problem` (what, where, fix) when it found nothing in `timeout` seconds."""
    # The import path is handed over: the probe finds what this process would.
    code = f"import sys; sys.path[:] = {sys.path!r}; from tpuport.cli import probes; probes.answer({probe!r})"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=_environment(probe),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        return {"problem": _hung(probe, timeout)}
    except BaseException:
        _kill(process)
        raise
    try:
        return json.loads(out)
    except ValueError:
        return {"problem": _died(probe, process.returncode, err)}


def answer(probe: str) -> None:
    """In the probe's process: the answer goes to standard output as JSON, all else to standard error."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            found = {"compat": _compat, "devices": _devices}[probe]()
        except Exception as error:  # noqa: BLE001  whatever a broken installation raises is what was asked for
            found = {"problem": _problem(probe, error)}
        json.dump(found, out)


def _compat() -> dict[str, Any]:
    import jax

    from tpuport import compat, compilation
    from tpuport.compat import versions

    compat.environment()
    known = versions.verdict(compat.checked_versions())
    compilation.use_persistent_cache()
    directory = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "tested": known is not None,
        "note": known.note if known else f"tested is: {versions.pip_line(versions.RECOMMENDED)}",
        "shims": compat.active_shims(),
        "operators": replaced_operators(),
        "cache_directory": directory or None,
    }


def replaced_operators() -> list[dict[str, str]]:
    """Each operator of torchax that tpuport replaces, and the reason. Imports torch, torchax and jax."""
    from tpuport.compat import replacements

    targets = [(_operator_name(lowering.target), lowering.reason) for lowering in replacements.lowerings()]
    methods = [(f"torchax {method.owner}.{method.name}", method.reason) for method in replacements.methods()]
    return [{"operator": name, "reason": reason} for name, reason in (*targets, *methods)]


def _operator_name(target: Any) -> str:
    """aten.copy_.default for an overload, TensorBase.__getitem__ for a method, its name for a function."""
    name = str(target)
    return name if name.startswith("aten.") else getattr(target, "__qualname__", name)


def _devices() -> dict[str, Any]:
    import jax

    return {
        "devices": [
            {
                "index": device.id,
                "platform": device.platform,
                "kind": device.device_kind,
                "process": device.process_index,
                "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
            }
            for device in jax.devices()
        ]
    }


def _environment(probe: str) -> dict[str, str]:
    # The first probe is about versions: it must not wait for, or take, the TPU.
    return {**os.environ, "JAX_PLATFORMS": "cpu"} if probe == "compat" else dict(os.environ)


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that waits inside a driver does not die; it is not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)


_ABOUT = {"compat": "torch and torchax", "devices": "the devices of jax"}
_SLOW_FIX = {
    "compat": "try again with a longer --timeout; a first import from a cold disk is slow",
    "devices": "look for another process that holds the TPU; on several hosts, run it on all of them",
}


def _hung(probe: str, timeout: float) -> dict[str, str]:
    what = f"{_ABOUT[probe]} did not answer within {timeout:g} seconds"
    return {"what": what, "where": probe, "fix": _SLOW_FIX[probe]}


def _died(probe: str, code: int, err: str) -> dict[str, str]:
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    tail = " | ".join(line.strip() for line in err.splitlines()[-_TAIL_LINES:])
    return {
        "what": f"asking {_ABOUT[probe]} ended the process ({how})",
        "where": tail or probe,
        "fix": _REINSTALL,
    }


_REINSTALL = (
    "install the versions that belong together: pip install --force-reinstall . in a clone of tpuport"
)


def _problem(probe: str, error: Exception) -> dict[str, str | None]:
    from tpuport.errors import PortError

    if isinstance(error, PortError):
        return {"what": error.what, "where": error.where, "fix": error.fix}
    lines = str(error).strip().splitlines() or [""]
    what = f"{_ABOUT[probe]} cannot be used: {type(error).__name__}: {lines[0]}"
    return {"what": what, "where": probe, "fix": _REINSTALL}
