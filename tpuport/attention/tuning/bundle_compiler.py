"""Counting a kernel's scheduled bundles, in a process of its own: the compiler's flags are read when it is loaded.

A compiler that crashes, hangs or refuses is a result as well: a search over block sizes meets all three.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpuport.attention.tuning import bundle_schedule
from tpuport.attention.tuning.bundle_schedule import KernelBundles
from tpuport.errors import PortError
from tpuport.hardware import LIBTPU_ENVIRONMENT, parse_slice

_START_SECONDS: Final = 120.0
_WORKER: Final = "from tpuport.attention.tuning import compiler_process; compiler_process.main()"


@dataclass(frozen=True)
class Compilation:
    """What compiling gave.

    Attributes:
        kernels: each Pallas kernel of the program; empty where it did not compile.
        failure: the first line of what the compiler said where it did not, else None.
        died: whether the failure is that the compiler crashed or took too long.
        seconds: that it took.
    """

    kernels: tuple[KernelBundles, ...]
    failure: str | None
    died: bool
    seconds: float


def kernel_bundles(
    function: str, arguments: dict[str, Any], topology: str, *, timeout: float = 600.0
) -> Compilation:
    """Compile one program for a described TPU and count what its kernels take; as `Compiler.count`."""
    with Compiler(topology, timeout=timeout) as compiler:
        return compiler.count(function, arguments)


class Compiler:
    """A process that compiles one program after another for a described TPU. A context manager.

    Args:
        topology: its name, as for `described`.
        timeout: seconds that one program may take.

    Raises:
        PortError: no such topology; entering: libtpu is missing or cannot be used.
    """

    def __init__(self, topology: str, *, timeout: float = 600.0) -> None:
        self.topology = parse_slice(topology).name
        self.timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> "Compiler":
        with contextlib.ExitStack() as stack:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpuport-")))
            self._log = self._directory / "log"
            self._dumps = self._directory / "schedules"
            self._dumps.mkdir()
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def count(self, function: str, arguments: dict[str, Any]) -> Compilation:
        """Compile one program.

        Args:
            function: "package.module:name" of a function that takes `arguments` by name, and returns what is to be
                compiled: a function and a tuple of its abstract arguments (jax.ShapeDtypeStruct).
            arguments: what JSON can carry.

        Raises:
            PortError: the function cannot be found, or raises itself.
        """
        if self._process is None:
            self._start()
        started = time.monotonic()
        reply = self._ask({"function": function, "arguments": arguments}, self.timeout)
        seconds = time.monotonic() - started
        kernels = tuple(
            KernelBundles(**{**kernel, "sections": tuple(kernel["sections"])}) for kernel in reply["kernels"]
        )
        return Compilation(kernels, reply["failure"], reply.get("died", False), seconds)

    def _start(self) -> None:
        # The import path is handed over: the worker finds what this process would.
        code = f"import sys; sys.path[:] = {sys.path!r}; {_WORKER}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, self.topology, str(self._dumps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
                env=_environment(self._dumps),
                start_new_session=True,
            )
        self._replies = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process, self._replies), daemon=True).start()
        failure = self._receive(_START_SECONDS)["failure"]
        if failure:
            raise PortError(
                f"the TPU compiler cannot be started: {failure}",
                where=f"topology {self.topology}",
                fix="tpuport doctor says what is installed here",
            )

    def _ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        line = (
            json.dumps(request) + "\n"
        )  # before anything is sent: what JSON cannot carry is the caller's mistake
        with contextlib.suppress(BrokenPipeError):  # it has died; the answer says how
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return self._receive(timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        """The next answer. Without one in time the process is ended, and the next program gets a fresh one."""
        try:
            line = self._replies.get(timeout=timeout)
        except queue.Empty:
            self._stop()
            return _failed(f"the compiler took more than {timeout:g} seconds")
        except BaseException:  # interrupted: the answer to come belongs to no later question
            self._stop()
            raise
        if not line:
            return _failed(self._obituary())
        reply = json.loads(line)
        if "problem" in reply:
            raise PortError(**reply["problem"])
        return reply

    def _obituary(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._stop()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("F0")), lines[-1] if lines else "")
        return f"the compiler died ({how}): {said}".removesuffix(": ")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def _failed(why: str) -> dict[str, Any]:
    return {"kernels": [], "failure": why, "died": True}


def _read(process: subprocess.Popen[str], replies: "queue.SimpleQueue[str]") -> None:
    """Lines of a process as they come; the last is empty."""
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed while it was read
        for line in process.stdout:
            replies.put(line)
    replies.put("")


def _environment(dumps: Path) -> dict[str, str]:
    wanted = {
        **LIBTPU_ENVIRONMENT,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # a program that is not compiled leaves no schedule
        "LIBTPU_INIT_ARGS": f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {bundle_schedule.flags(dumps)}".strip(),
        "TPU_LOG_DIR": "disabled",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }
    return {**os.environ, **wanted}
