"""What torch itself needs to make tensors for the device "jax": two kernels, and a guard.

Operations with a tensor on the device reach torchax by its class. `torch.zeros(3, device="jax")` and
`x.to("jax")` have none yet: torch allocates memory for the result first, by the kernels of the device's backend, which
torchax does not have.
"""

import logging
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from tpuport.compat.convert import jax_dtype, wrap
from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

_library: torch.library.Library | None = None


class _Guard:
    """Whether torch has been given a guard for the device, which cannot be taken back."""

    is_registered = False


def install() -> None:
    """Let torch allocate tensors on the device. Does nothing the second time."""
    global _library
    if _library is not None:
        return
    _register_guard()
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("empty.memory_format", _empty, "PrivateUse1")
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")


def uninstall() -> None:
    """Take the kernels back."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


def _register_guard() -> None:
    # torch looks for the guard of a device before it moves tensors there. Older releases cannot take one from Python.
    accelerators: Any = getattr(torch._C, "_acc", None)
    if _Guard.is_registered or not hasattr(accelerators, "register_python_privateuseone_device_guard"):
        return

    class DeviceGuard(accelerators.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]

    accelerators.register_python_privateuseone_device_guard(DeviceGuard())
    _Guard.is_registered = True


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Zeros: jax has no memory without values."""
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
        # torch is about to fill the tensor by its own kernels, which would find no memory and write nothing.
        raise PortError(
            "torch.tensor(..., device=) and torch.as_tensor cannot fill a tensor on the device",
            fix='in your code torch.tensor(...).to("jax"); a ported model runs with tpuport.compile(model)(...) or '
            "tpuport.generate(model, ...)",
        )
    return wrap(jnp.zeros(tuple(size), jax_dtype(dtype or torch.get_default_dtype())))


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    return _empty(size, **options)
