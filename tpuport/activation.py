"""`tpuport.enable()` and `tpuport.disable()`: every change to the process, made and
unmade in one place.
"""

import logging
import sys
import threading
from typing import Literal

from tpuport.compat import versions, warnings

logger = logging.getLogger("tpuport")

_lock = threading.RLock()
_enabled = False


def enable(*, patches: Literal["error", "warn", "off"] | None = None) -> None:
    """Make the installed torch, torchax and jax work together in this process.

    Checks the versions; imports torchax, through a shim where it needs one; installs
    the operators that torchax lacks or gets wrong; filters the warnings that are known
    to be harmless; lets optimizers run as programs; registers caches and outputs of
    transformers and diffusers as pytrees; applies patches to known models, now or when
    they are imported. Each change is logged to the logger "tpuport". Tensors on the CPU
    behave as before: torchax takes part only inside `with compat.environment()`.

    Calls do not nest: a second one changes nothing but `patches`, and one `disable`
    undoes any number of them.

    Args:
        patches: what happens where a patch finds another source than it was written
            for. "warn": the patch is not applied, which is a logged warning when such a
            model is ported. "error": a PortError, from here if the model's module has
            been imported, else from `port` or `load`. "off": no patches. None leaves it
            as it is, at first as the environment's TPUPORT_PATCHES says, else "warn".

    Raises:
        PortError: the installed versions cannot work together, or a patch does not fit;
            nothing is changed then.
    """
    global _enabled
    with _lock:
        if _enabled:
            if patches is not None:
                _patch(patches)
            return
        versions.check()
        from tpuport.compat import runtime

        runtime.environment()
        warnings.install()
        from tpuport.objects import pytrees

        pytrees.register()
        from tpuport import training

        training.install()
        _enabled = True
        try:
            _patch(patches)
        except BaseException:
            disable()
            raise
        logger.info("enabled")


def _patch(strictness: Literal["error", "warn", "off"] | None) -> None:
    from tpuport.patches import registry

    registry.apply_all(strictness)


def disable() -> None:
    """Take back what `enable` changed, and what other calls put in place for
    themselves: `port`, or a compiled call.

    Does nothing when there is nothing. Two things stay, because jax and Python cannot
    unlearn them: imported modules, and registered pytrees. A compiled function that is
    called afterwards puts its operators back.
    """
    global _enabled
    with _lock:
        if "tpuport.patches.registry" in sys.modules:
            sys.modules["tpuport.patches.registry"].revert_all()
        if not _enabled and "tpuport.compat.runtime" not in sys.modules:
            return  # nothing has been imported that changes anything; importing it now would take seconds
        from tpuport.compat import runtime
        from tpuport.objects import pytrees

        if "tpuport.training" in sys.modules:
            sys.modules["tpuport.training"].uninstall()
        if "tpuport.attention" in sys.modules:
            sys.modules["tpuport.attention"].unregister()
        pytrees.retract()
        warnings.uninstall()
        runtime.retract()
        if _enabled:
            logger.info("disabled")
        _enabled = False


def enabled() -> bool:
    """Whether `enable` is in force."""
    return _enabled
