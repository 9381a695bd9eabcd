"""The torchax environment that everything here runs in: imported once, checked, completed."""

import logging
import threading
from typing import Any

from tpuport.compat import operators, shim, versions

logger = logging.getLogger("tpuport")

_lock = threading.RLock()
_environment: Any = None


def environment() -> Any:
    """torchax's default environment, ready for use: `with compat.environment(): ...`.

    The first call checks the installed versions, imports torchax and installs the operators it lacks; later calls
    return the same object, and put the operators back if `tpuport.disable()` had taken them out.

    Raises:
        PortError: the installed versions cannot work together.
    """
    global _environment
    with _lock:
        if _environment is None:
            versions.check()
            _environment = _build()
        operators.install(_environment)
        return _environment


def _build() -> Any:
    with shim.removed_overloads():
        import torchax

        built = torchax.default_env()
    for name, reason in shim.active_shims().items():
        logger.info("import shim %s: %s", name, reason)
    return built


def retract() -> None:
    """Take the operators out of the environment again; does nothing when torchax was never imported here."""
    with _lock:
        if _environment is not None:
            operators.uninstall(_environment)
