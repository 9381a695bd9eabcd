"""`logaddexp` and `logcumsumexp`, which torch computes on the host for complex
numbers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.host_operators import on_host


def logaddexp(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Traced. `log(exp(x) + exp(y))`."""
    if x.dtype.is_complex or y.dtype.is_complex:
        return on_host(_aten.logaddexp.default)(x, y)
    return on_arrays(jnp.logaddexp)(x, y)


def logcumsumexp(x: torch.Tensor, dim: int) -> Any:
    """Traced. The logarithm of the running sum of exponentials along a dimension."""
    if x.dtype.is_complex:
        return on_host(_aten.logcumsumexp.default)(x, dim)
    return on_arrays(_of_real)(x, dim)


def _of_real(x: jax.Array, dim: int) -> jax.Array:
    if x.ndim == 0 or not x.size:
        return x
    return jax.lax.cumlogsumexp(x, axis=dim % x.ndim)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(_aten.logaddexp.default, logaddexp, "is for real numbers"),
    Lowering(_aten.logcumsumexp.default, logcumsumexp, "is for real numbers"),
)
METHODS = ()
