"""What torch itself needs to make tensors for the device "jax": a few kernels, a guard,
and hooks.

Operations with a tensor on the device reach torchax by its class.
`torch.zeros(3, device="jax")` and `x.to("jax")` have none yet: torch allocates memory
for the result first, by the kernels of the device's backend, which torchax does not
have.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch

from tpuport.compat import view_steps
from tpuport.compat.convert import is_ported, jax_dtype, to_device, to_jax, wrap
from tpuport.internals.torch_internals import (
    DEVICE_IN_TORCH,
    is_dispatch_key_excluded,
    register_device,
    remove_kernels,
)
from tpuport.internals.torchax_internals import array_of, set_array

logger = logging.getLogger("tpuport")

_library: torch.library.Library | None = None


# Constructors that torch has kernels for on its own devices only, or composes of what
# the device does not have.
_COMPUTED_ON_HOST = (
    "tril_indices", "triu_indices", "kaiser_window", "kaiser_window.periodic", "kaiser_window.beta", "fft_fftfreq",
)  # fmt: skip


class _Backend:
    """Whether torch has been given a guard and hooks for the device, which cannot be
    taken back.
    """

    is_registered = False


def install() -> None:
    """Let torch allocate tensors on the device. Does nothing the second time."""
    global _library
    if _library is not None:
        return
    _register_backend()
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("empty.memory_format", _empty, "PrivateUse1")
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name in _COMPUTED_ON_HOST:
        operator, _, overload = name.partition(".")
        function = getattr(getattr(torch.ops.aten, operator), overload or "default")
        _library.impl(name, _computing_on_host(function), "PrivateUse1")
    _library.impl(
        "copy_",
        _filling(torch.library.get_kernel("aten::copy_", "Meta")),
        "Meta",
        with_keyset=True,
    )
    _library.impl(
        "_local_scalar_dense",
        _reading(torch.library.get_kernel("aten::_local_scalar_dense", "Meta")),
        "Meta",
        with_keyset=True,
        allow_override=True,
    )
    _library.impl("_pin_memory", _pin_memory, "CPU")
    if not _Backend.is_registered:
        _number_devices(_library)


def uninstall() -> None:
    """Take the kernels back."""
    global _library
    if _library is not None:
        remove_kernels(_library)
        _library = None


def _register_backend() -> None:
    # torch looks for the guard of a device before it moves tensors there, and asks the
    # hooks of the accelerator about pinned memory, also for tensors on the host.
    if not _Backend.is_registered and DEVICE_IN_TORCH.works():
        register_device()
        _Backend.is_registered = True


def _number_devices(library: torch.library.Library) -> None:
    """Have moves to "jax" be moves to "jax:0".

    Without a guard, torch cannot ask which of the devices is meant.
    """
    with warnings.catch_warnings():
        # torch tells of every kernel that takes the place of another one.
        warnings.simplefilter("ignore")
        for name in ("to.device", "to.dtype_layout"):
            # torch composes the operator of others, for tensors of every device.
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(
                name,
                _numbering(kernel),
                "CompositeImplicitAutograd",
                with_keyset=True,
                allow_override=True,
            )


def _numbering(kernel: Any) -> Callable[..., Any]:
    def to(keys: Any, *args: Any, **options: Any) -> Any:
        return kernel.call_boxed(
            keys,
            *(_with_number(value) for value in args),
            **{name: _with_number(value) for name, value in options.items()},
        )

    return to


def _with_number(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "jax"
    return torch.device("jax", 0) if is_device and value.index is None else value


def _empty(
    size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """Zeros: jax has no memory without values."""
    dtype = dtype or torch.get_default_dtype()
    tensor = wrap(jnp.zeros(tuple(size), jax_dtype(dtype)), dtype)
    if tensor.dtype != dtype:
        # The contents of files are as wide as was asked for.
        tensor._wide_dtype = dtype  # type: ignore[attr-defined]
    if is_dispatch_key_excluded("Python"):
        # torch.tensor and torch.as_tensor switch classes of tensors off, and copy the
        # values with their next call.
        tensor._awaits_values = True  # type: ignore[attr-defined]
    return tensor


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], **options: Any
) -> torch.Tensor:
    return _empty(size, **options)


def _computing_on_host(function: Any) -> Callable[..., torch.Tensor]:
    def construct(
        *args: Any, device: Any = None, pin_memory: Any = None, **options: Any
    ) -> torch.Tensor:
        return to_device(view_steps.on_twins(function, *args, device="cpu", **options))

    return construct


def _filling(kernel: Any) -> Callable[..., torch.Tensor]:
    """The kernel of `copy_` for tensors without memory, which fills those on the device
    that torch has just made.
    """

    def copy_(
        keys: Any, tensor: Any, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        if not getattr(tensor, "_awaits_values", False):
            return kernel.call_boxed(keys, tensor, source, non_blocking)
        del tensor._awaits_values
        set_array(tensor, to_jax(source).astype(jax_dtype(tensor.dtype)))
        return tensor

    return copy_


def _reading(kernel: Any) -> Callable[..., Any]:
    """The kernel of `item()` for tensors without memory, which reads those on the
    device.

    `torch.tensor([y[0], y[1]])` asks for each number with classes of tensors switched
    off.
    """

    def item(keys: Any, tensor: torch.Tensor) -> Any:
        if is_ported(tensor):
            return array_of(tensor).item()
        return kernel.call_boxed(keys, tensor)

    return item


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy. Pinned memory makes copies to a GPU faster, and is nothing to jax."""
    return tensor.clone()
