"""The torchax environment that everything here runs in: imported once, checked,
completed.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat import replacements, shim, versions, warnings
from tpuport.errors import PortError
from tpuport.hardware import start_backends

logger = logging.getLogger("tpuport")

_lock = threading.RLock()
_environment: Any = None
# .properties: that the environment has made for this thread.
_thread = threading.local()
# That built the environment.
_process: int | None = None
# Importing torchax switches this off for the whole process; None while it is as the
# user left it.
_fastpath: bool | None = None


def environment() -> Any:
    """The default environment of torchax, ready for use:
    `with compat.environment(): ...`.

    The first call checks the installed versions, imports torchax and installs the
    operators it lacks; later calls return the same object, and put the operators back
    if `tpuport.disable()` had taken them out.

    Raises:
        PortError: the installed versions cannot work together.
    """
    global _environment, _process
    check_process()
    with _lock:
        if _environment is None:
            versions.check()
            try:
                _environment = _build()
                _process = os.getpid()
            except BaseException:
                _restore_fastpath()
                raise
        _switch_fastpath_off()
        replacements.install(_environment)
        warnings.refresh()
        if not hasattr(_thread, "properties"):
            _thread.properties = _properties_of_thread(_environment)
        return _environment


def _properties_of_thread(built: Any) -> Any:
    """What an environment has for each thread, which it makes on first use."""
    # That may be inside a trace, and the random key must not be of that trace.
    with jax.ensure_compile_time_eval():
        return built.param


def check_process() -> None:
    """Raise in a process that was forked from the one with the device, where jax would
    wait for ever.
    """
    if _process is not None and _process != os.getpid():
        raise PortError(
            "a process that was forked, such as a worker of a DataLoader, cannot use the device",
            fix='keep data sets on the host and move each batch, batch.to("jax"), or use num_workers=0',
        )


def on_device(function: Callable, args: tuple, kwargs: dict) -> Any:
    """Call a function of torch in torchax's environment; its tensors are on the device,
    or not concerned.
    """
    with environment():
        return function(*args, **kwargs)


def retract() -> None:
    """Take the operators out of the environment again; does nothing when torchax was
    never imported here.
    """
    with _lock:
        if _environment is not None:
            replacements.uninstall(_environment)
        _restore_fastpath()


def _switch_fastpath_off() -> None:
    """torch's fused encoder layers bypass the operators that torchax knows."""
    global _fastpath
    if _fastpath is None:
        _fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)


def _restore_fastpath() -> None:
    global _fastpath
    if _fastpath is not None:
        torch.backends.mha.set_fastpath_enabled(_fastpath)
        _fastpath = None


def _build() -> Any:
    _switch_fastpath_off()  # before the import does, so that what the user had is known
    with shim.removed_operators():
        try:
            import torchax

            start_backends()
            with jax.ensure_compile_time_eval():
                built = torchax.default_env()
        except (AttributeError, ImportError) as error:
            raise PortError(
                f"torchax cannot be imported: {error}",
                where=", ".join(
                    f"{name} {version}"
                    for name, version in versions.checked_versions().items()
                ),
                fix=versions.pip_line(versions.RECOMMENDED),
            ) from error
    _add_dtypes()
    for name, reason in shim.active_shims().items():
        logger.info("import shim %s: %s", name, reason)
    return built


def _add_dtypes() -> None:
    """Let torchax wrap arrays of powers of two in eight bits, the scales of MXFP4, and
    make integers of 64 bits as jax has them, which it warns of otherwise.
    """
    from torchax.ops import mappings

    find_dtype = mappings.t2j_dtype

    def existing_dtype(dtype: Any) -> Any:
        if dtype is torch.int64:
            return jax.dtypes.canonicalize_dtype(jnp.int64)
        return find_dtype(dtype)

    mappings.t2j_dtype = existing_dtype
    mappings.JAX_DTYPE_TO_TORCH[jnp.dtype(jnp.float8_e8m0fnu)] = torch.float8_e8m0fnu
