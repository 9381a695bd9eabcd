"""Counting a kernel's scheduled bundles, in a child process: libtpu reads the
compiler's flags when it is loaded.

A compiler that crashes, hangs or refuses is a result as well: a search over block sizes
meets all three.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpuport.attention.tuning.bundle_schedule import KernelBundles, dump_flags
from tpuport.base.child_process import (
    COMPILER_ENVIRONMENT,
    ChildDiedError,
    ChildProcess,
)
from tpuport.errors import PortError
from tpuport.hardware import LIBTPU_ENVIRONMENT, parse_slice

_START_SECONDS: Final = 120.0
_WORKER: Final = (
    "from tpuport.attention.tuning import compiler_process; compiler_process.main()"
)


@dataclass(frozen=True)
class Compilation:
    """The result of compiling one program.

    Attributes:
        kernels: each Pallas kernel of the program; empty if it did not compile.
        failure: the first line of the compiler's error, None if it compiled.
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
    """Compile one program for a described TPU and count the bundles of its kernels; as
    `Compiler.count`.
    """
    with Compiler(topology, timeout=timeout) as compiler:
        return compiler.count(function, arguments)


class Compiler:
    """A process that compiles one program after another for a described TPU. A context
    manager.

    Args:
        topology: its name, as for `described`.
        timeout: seconds that one program may take.

    Raises:
        PortError: no such topology; on entering: libtpu is missing or cannot be used.
    """

    def __init__(self, topology: str, *, timeout: float = 600.0) -> None:
        self.topology = parse_slice(topology).name
        self.timeout = timeout
        self._child: ChildProcess | None = None

    def __enter__(self) -> "Compiler":
        self._schedules = tempfile.TemporaryDirectory(prefix="tpuport-")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._stop()
        self._schedules.cleanup()

    def count(self, function: str, arguments: dict[str, Any]) -> Compilation:
        """Compile one program.

        Args:
            function: "package.module:name" of a function that takes `arguments` by
                name, and returns what to compile: a function and a tuple of its
                abstract arguments (jax.ShapeDtypeStruct).
            arguments: values that JSON can represent.

        Raises:
            PortError: the function cannot be found, or raises itself.
        """
        child = self._child or self._start()
        started = time.monotonic()
        child.send({"function": function, "arguments": arguments})
        reply = self._receive(child, self.timeout)
        seconds = time.monotonic() - started
        kernels = tuple(map(KernelBundles.from_json, reply["kernels"]))
        return Compilation(kernels, reply["failure"], reply.get("died", False), seconds)

    def _start(self) -> ChildProcess:
        flags = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dump_flags(Path(self._schedules.name))}"
        self._child = ChildProcess(
            _WORKER,
            self.topology,
            self._schedules.name,
            environment={
                **LIBTPU_ENVIRONMENT,
                **COMPILER_ENVIRONMENT,
                "LIBTPU_INIT_ARGS": flags.strip(),
            },
        )
        failure = self._receive(self._child, _START_SECONDS)["failure"]
        if failure:
            raise PortError(
                f"the TPU compiler cannot be started: {failure}",
                where=f"topology {self.topology}",
                fix="run tpuport doctor to see what is installed",
            )
        return self._child

    def _receive(self, child: ChildProcess, timeout: float) -> dict[str, Any]:
        """The reply. If none comes in time the process is ended, and the next program
        starts another.
        """
        try:
            reply = child.receive(timeout)
        except TimeoutError:
            self._stop()
            return _failed_reply(f"the compiler took more than {timeout:g} seconds")
        except ChildDiedError as error:
            self._stop()
            return _failed_reply(_explain_death(error))
        except BaseException:
            # Interrupted: the reply that is still to come would be taken for that of
            # the next program.
            self._stop()
            raise
        if "problem" in reply:
            raise PortError(**reply["problem"])
        return reply

    def _stop(self) -> None:
        # Forgotten first: whatever ending it meets, the next program starts another.
        child, self._child = self._child, None
        if child is not None:
            child.close()


def _failed_reply(failure: str) -> dict[str, Any]:
    return {"kernels": [], "failure": failure, "died": True}


def _explain_death(error: ChildDiedError) -> str:
    # A failed check of the compiler is logged on a line that starts with F and the
    # month, before a long stack trace.
    fatal_lines = [line for line in error.log_lines if line.startswith("F0")]
    message = (fatal_lines or error.log_lines[-1:] or [""])[0]
    return f"the compiler died ({error.cause}): {message}".removesuffix(": ")
