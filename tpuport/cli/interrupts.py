"""Ctrl-C ends a command, whatever it is doing.

Python raises KeyboardInterrupt where the main thread happens to be. Extension modules
that are being imported turn it into an ImportError, callbacks of the garbage collector
drop it, and compilers do not return for minutes. So it is also noted, and a thread ends
the process if the command has not ended by itself soon after.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from tpuport.base.waiting_threads import start_waiting_thread

EXIT_CODE: Final = 130
# For a command to put away what it has begun.
_SECONDS_TO_END: Final = 2.0

_received = threading.Event()


def received() -> bool:
    """Whether somebody has pressed Ctrl-C since `install`."""
    return _received.is_set()


def install(end: Callable[[], Any]) -> None:
    """Take up Ctrl-C from now on, in a process that runs one command.

    Args:
        end: called before the process is ended because the command does not end; says
            what is left.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    # Written to by the signal itself, while the main thread may be in code that is not
    # Python's.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _without_interrupts(sys.unraisablehook)
    start_waiting_thread(_end_after_signal, read, end)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.set()
    raise KeyboardInterrupt


def _end_after_signal(pipe: int, end: Callable[[], Any]) -> None:
    while signal.SIGINT not in os.read(pipe, 1):
        continue
    _received.set()
    threading.Event().wait(_SECONDS_TO_END)
    end()
    os._exit(EXIT_CODE)


def _without_interrupts(show: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Python's own hook for errors that nobody can catch, which shows no interrupt:
    `_received` has it.
    """

    def show_others(error: Any) -> None:
        if not isinstance(error.exc_value, KeyboardInterrupt):
            show(error)

    return show_others
