"""Which dtype a model's tensors get."""

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch

from tpuport.errors import PortError


def as_torch_dtype(dtype: Any) -> torch.dtype | None:
    """A torch dtype from a torch dtype, a NumPy or jax one, its name, or None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    name = dtype.removeprefix("torch.") if isinstance(dtype, str) else _name(dtype)
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PortError(
            f"{dtype!r} is not a dtype", where="dtype", fix="give torch.bfloat16 or 'bfloat16', for example"
        )
    return found


def _name(dtype: Any) -> str:
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return ""


def kept_dtype(model: Any, dtype: torch.dtype) -> Callable[[str], torch.dtype | None]:
    """A function from a tensor's name to the dtype that the model insists on, or None for `dtype`.

    Models of both libraries list modules that lose too much in 16 bits.
    """
    if hasattr(model, "_get_dtype_plan"):
        plan = {
            re.compile(name.replace("*", ".*")): kept for name, kept in model._get_dtype_plan(dtype).items()
        }
        return lambda name: next((kept for pattern, kept in plan.items() if pattern.search(name)), None)
    modules = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return lambda name: torch.float32 if modules.intersection(name.split(".")) else None
