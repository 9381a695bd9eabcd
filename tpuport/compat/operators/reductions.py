"""Reductions and running reductions: the dtype asked for, and dimensions counted from the end."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.convert import jax_dtype
from tpuport.compat.operators.registry import Lowering, on_arrays

Dims = int | Sequence[int] | None


def _axes(dim: Dims) -> tuple[int, ...] | None:
    """torch's dimensions as axes; none given means all."""
    if dim is None or isinstance(dim, int):
        return None if dim is None else (dim,)
    return tuple(dim) or None


def _accumulator(x: jax.Array, dtype: torch.dtype | None) -> np.dtype:
    """The dtype that torch adds up in: the one asked for, 64-bit integers for bools and integers, else x's own."""
    if dtype is not None:
        return jax_dtype(dtype)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x.dtype
    return jax_dtype(torch.int64)


def sum_(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """Traced. Sum over dimensions, cast before it adds."""
    axes = _axes(dim) if x.ndim else None
    return jnp.sum(x.astype(_accumulator(x, dtype)), axis=axes, keepdims=keepdim)


def mean(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """Traced. Mean over dimensions, cast before it adds."""
    axes = _axes(dim) if x.ndim else None
    return jnp.mean(x.astype(_accumulator(x, dtype)), axis=axes, keepdims=keepdim)


def cumsum(x: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    """Traced. Running sum along a dimension."""
    x = x.astype(_accumulator(x, dtype))
    return jnp.cumsum(x, axis=dim) if x.ndim else x


def cummax(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """Traced. Running maximum along a dimension, and where it was last reached."""
    return _running(x, dim, jnp.greater)


def cummin(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """Traced. Running minimum along a dimension, and where it was last reached."""
    return _running(x, dim, jnp.less)


def _running(x: jax.Array, dim: int, beats: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    axis = dim % x.ndim

    def later(left: Any, right: Any) -> Any:
        keep = beats(left[0], right[0]) | (jnp.isnan(left[0]) & ~jnp.isnan(right[0]))
        return jnp.where(keep, left[0], right[0]), jnp.where(keep, left[1], right[1])

    return jax.lax.associative_scan(later, (x, jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)), axis=axis)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(_aten.sum.default, on_arrays(sum_), "casts to the dtype asked for after adding"),
    Lowering(_aten.sum.dim_IntList, on_arrays(sum_), "casts to the dtype asked for after adding"),
    Lowering(_aten.mean.default, on_arrays(mean), "takes no dtype"),
    Lowering(_aten.mean.dim, on_arrays(mean), "takes no dtype"),
    Lowering(_aten.cumsum.default, on_arrays(cumsum), "overflows on small integers"),
    Lowering(_aten.cummax.default, on_arrays(cummax), "fails on a dimension counted from the end"),
    Lowering(_aten.cummin.default, on_arrays(cummin), "fails on a dimension counted from the end"),
)
METHODS = ()
