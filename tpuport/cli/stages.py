"""What `tpuport compile` says on standard error while it works: which stage, and for how long."""

import sys
import time
from typing import Any, Final

_WHAT: Final = {
    "starting": "starting the compiler",
    "building": "reading the target",
    "tracing": "tracing and lowering",
    "compiling": "compiling",
}


class Stages:
    """One line that changes on a terminal; a line for each stage elsewhere. A context manager.

    Args:
        topology: that is compiled for.
    """

    def __init__(self, topology: str) -> None:
        self.topology = topology
        self._status: Any = None
        self._task: Any = None
        self._started = time.monotonic()

    def __enter__(self) -> "Stages":
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._status = Progress(*columns, console=Console(stderr=True), transient=True)
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def show(self, stage: str, target: str, mesh: str) -> None:
        """A stage begins."""
        what = " ".join(part for part in (_WHAT.get(stage, stage), target, mesh) if part)
        text = f"{self.topology}: {what}"
        if self._status is None:
            say(f"[{time.monotonic() - self._started:5.1f} s] {text}")
            return
        if self._task is not None:
            self._status.remove_task(self._task)
        self._task = self._status.add_task(text)

    def stop(self) -> None:
        """Take the line away."""
        status, self._status = self._status, None
        if status is not None:
            status.stop()


def say(text: str, style: str | None = None) -> None:
    """Write a line to standard error."""
    from rich.console import Console

    if sys.stderr is not None:
        Console(stderr=True, highlight=False).print(text, style=style, markup=False, soft_wrap=True)
