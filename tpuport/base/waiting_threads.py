"""Threads that wait for a signal and do nothing else.

They hold no lock, so a process that has no other threads may be forked.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

_NAME: Final = "tpuport waits"


def start_waiting_thread(target: Callable[..., Any], *arguments: Any) -> None:
    """Run a function that waits in a thread that ends with the process."""
    threading.Thread(target=target, args=arguments, name=_NAME, daemon=True).start()


def may_fork() -> bool:
    """Whether all threads but the main one only wait."""
    names = {thread.name for thread in threading.enumerate()}
    return names <= {threading.main_thread().name, _NAME}
