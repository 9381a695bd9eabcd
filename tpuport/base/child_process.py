"""Python processes of our own, which exchange messages with this one: JSON values, one
a line.

A child bounds what a task can break: it may crash, hang, run out of memory or write
noise to its output, and all of these reach the parent as an exception. The parent uses
`ChildProcess`; the code in the child uses `open_replies` and `exit_with_parent`.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

# A killed process ends at once unless it waits inside a driver, and then nobody should
# wait for it.
_SECONDS_TO_END: Final = 5.0
_LAST_LINES: Final = 12
# How often a child is looked at before it counts as stalled.
_IDLE_WAITS: Final = 10

# Variables for a child that compiles for described TPUs. jax and libtpu read them when
# they are imported.
COMPILER_ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",
    # jax could not load the program of a described TPU from its cache, where there is
    # no TPU.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


class ChildDiedError(Exception):
    """The process ended without answering.

    Attributes:
        exit_code: as `subprocess` returns it, negative for a signal.
        log_lines: what the process wrote to standard error, without blank lines.
        last_lines: the end of it.
    """

    def __init__(self, exit_code: int, log_lines: list[str]) -> None:
        super().__init__(exit_code, log_lines)
        self.exit_code = exit_code
        self.log_lines = log_lines
        self.last_lines = log_lines[-_LAST_LINES:]

    @property
    def cause(self) -> str:
        """How it ended: "killed by SIGKILL" or "exit code 3"."""
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"exit code {self.exit_code}"


class ChildStalledError(Exception):
    """The process has neither answered nor used any processor time for too long.

    Attributes:
        seconds: for how long.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class ChildProcess:
    """A running Python process. A context manager that kills it, and whatever it has
    started, on exit.

    The child imports from where this process does. Its standard error is kept for
    `ChildDiedError`, off the terminal.

    Args:
        code: what the child runs, such as "from package import module; module.main()".
        arguments: its `sys.argv[1:]`.
        environment: variables that replace those of this process.
    """

    def __init__(
        self, code: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the child; `close` closes it
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                f"import sys; sys.path[:] = {sys.path!r}; {code}",
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(environment or {})},
            # Ctrl-C then interrupts only this process, which ends the child in its own
            # time.
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread reads, because reading from a pipe has no timeout.
        threading.Thread(target=self._read_lines, daemon=True).start()

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Any) -> None:
        """Write a message; if the child has died, the next `receive` says so.

        Raises:
            TypeError: JSON cannot represent the message; nothing was sent.
        """
        line = json.dumps(message) + "\n"
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(line)
            stdin.flush()

    def receive(self, timeout: float | None = None) -> Any:
        """The child's next message.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            TimeoutError: nothing came in time. The child runs on; close it unless a
                late answer is welcome.
            ChildDiedError: the child has ended.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no message within {timeout:g} seconds") from None
        return self._message(line)

    def receive_while_busy(self, idle_seconds: float) -> Any:
        """The child's next message, however long that takes while the child computes.

        Args:
            idle_seconds: how long the child may use no processor time. Only Linux
                tells; elsewhere this waits for ever.

        Raises:
            ChildStalledError: it has used none for so long. The child runs on.
            ChildDiedError: the child has ended.
        """
        # Waits are counted, not the clock: while this process is suspended, the child
        # may be too.
        idle_waits = 0
        used = self._processor_time()
        while idle_waits < _IDLE_WAITS:
            with contextlib.suppress(queue.Empty):
                return self._message(
                    self._lines.get(timeout=idle_seconds / _IDLE_WAITS)
                )
            used_before, used = used, self._processor_time()
            is_idle = used is not None and used == used_before
            idle_waits = idle_waits + 1 if is_idle else 0
        raise ChildStalledError(idle_seconds)

    def _processor_time(self) -> tuple[str, ...] | None:
        """What the system says of the child's processor time, which only grows; None
        where it says nothing.
        """
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return None
        # The second field, the name, may hold spaces and brackets. User and system time
        # are fields 14 and 15.
        fields = stat.rpartition(")")[2].split()
        return tuple(fields[11:13])

    def _message(self, line: str) -> Any:
        # The reading thread puts an empty line when the output ends.
        if not line:
            raise ChildDiedError(self.process.wait(), self._log_lines())
        return json.loads(line)

    def close(self) -> None:
        """Kill the child with all processes of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_SECONDS_TO_END)
        # Closing flushes what the child never read, which fails once the pipe is
        # broken.
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _read_lines(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        # `close` may close the pipe while this thread reads from it.
        with contextlib.suppress(ValueError):
            for line in stdout:
                self._lines.put(line)
        self._lines.put("")

    def _log_lines(self) -> list[str]:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()]


@contextlib.contextmanager
def open_replies() -> Iterator[Callable[[Any], None]]:
    """In the child: a function that sends a message to the parent.

    Inside, standard output leads to standard error, so that nothing a library prints
    mixes with the messages.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)

        def reply(message: Any) -> None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        yield reply


def exit_with_parent() -> None:
    """In the child: end this process as soon as its standard input ends, which happens
    when the parent dies.
    """

    def wait() -> None:
        sys.stdin.read()
        os._exit(3)

    threading.Thread(target=wait, daemon=True).start()
