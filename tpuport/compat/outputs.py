"""Results in tensors that are there already: those that are filled, and `out=`."""

from typing import Any

import jax
import torch

from tpuport.compat.argument_checks import is_known
from tpuport.compat.convert import assign, wrap


def store(out: torch.Tensor | None, array: jax.Array) -> torch.Tensor:
    """A new tensor of an array, or the one that a caller wants it in."""
    if out is None:
        return wrap(array)
    return write(out, array.astype(out.jax().dtype))  # type: ignore[attr-defined]


def write(tensor: Any, array: jax.Array) -> Any:
    """Put new values into a tensor, on the devices that had the old ones."""
    old = tensor.jax()
    if is_known(old, array) and old.shape == array.shape:
        array = jax.device_put(array, old.sharding)
    return assign(tensor, array)
