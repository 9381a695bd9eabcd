"""`tpuport.enable()` and `tpuport.disable()`: every change to the process, made and taken back in one place."""

import logging
import threading

from tpuport.compat import runtime

logger = logging.getLogger("tpuport")

_lock = threading.RLock()
_enabled = False


def enable() -> None:
    """Make the installed torch, torchax and jax work together in this process; does nothing the second time."""
    global _enabled
    with _lock:
        if _enabled:
            return
        runtime.environment()
        from tpuport import pytrees

        pytrees.register()
        _enabled = True


def disable() -> None:
    """Take back what `enable` changed; does nothing when it is not enabled."""
    global _enabled
    with _lock:
        if not _enabled:
            return
        runtime.retract()
        _enabled = False
