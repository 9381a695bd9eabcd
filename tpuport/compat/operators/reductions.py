"""Reductions and cumulative reductions: the requested dtype, and dimensions counted from the end."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.convert import jax_dtype
from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.samplers import require_values

Dims = int | Sequence[int] | None


def _axes(x: jax.Array, dim: Dims) -> tuple[int, ...] | None:
    """torch's dimensions as axes of the array; None and () mean all."""
    if isinstance(dim, int):
        dim = (dim,)
    # torch counts a number as an array of one dimension.
    if x.ndim == 0 or not dim:
        return None
    return tuple(dim)


def _accumulator(x: jax.Array, dtype: torch.dtype | None) -> np.dtype:
    """The dtype that torch sums in: the requested one, else 64-bit integers for bools and integers, else x's own."""
    if dtype is not None:
        return jax_dtype(dtype)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x.dtype
    return jax_dtype(torch.int64)


def sum_(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """Traced. Sum over dimensions, cast before it adds."""
    return jnp.sum(x.astype(_accumulator(x, dtype)), axis=_axes(x, dim), keepdims=keepdim)


def mean(
    x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """Traced. Mean over dimensions, cast before it adds."""
    return jnp.mean(x.astype(_accumulator(x, dtype)), axis=_axes(x, dim), keepdims=keepdim)


def cumsum(x: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    """Traced. Running sum along a dimension."""
    return _running(jnp.cumsum, x, dim, dtype)


def cumprod(x: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    """Traced. Running product along a dimension."""
    return _running(jnp.cumprod, x, dim, dtype)


def _running(
    accumulate: Callable[..., jax.Array], x: jax.Array, dim: int, dtype: torch.dtype | None
) -> jax.Array:
    result_dtype = _accumulator(x, dtype)
    if x.ndim == 0:
        return x.astype(result_dtype)
    # Rounded once, not at each step.
    working = jnp.promote_types(result_dtype, jnp.float32) if _is_half(result_dtype) else result_dtype
    return accumulate(x.astype(result_dtype).astype(working), axis=dim).astype(result_dtype)


def _is_half(dtype: np.dtype) -> bool:
    return dtype.name in ("bfloat16", "float16")


def cummax(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """Traced. Running maximum along a dimension, and where it was last reached."""
    return _cumulative_extreme(x, dim, jnp.greater)


def cummin(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """Traced. Running minimum along a dimension, and where it was last reached."""
    return _cumulative_extreme(x, dim, jnp.less)


def _cumulative_extreme(
    x: jax.Array, dim: int, beats: Callable[..., jax.Array]
) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    axis = dim % x.ndim
    indices = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)

    # torch: NaN wins and stays; of equal values the later index counts.
    def combine(left: Any, right: Any) -> Any:
        keep = beats(left[0], right[0]) | (jnp.isnan(left[0]) & ~jnp.isnan(right[0]))
        return jnp.where(keep, left[0], right[0]), jnp.where(keep, left[1], right[1])

    return jax.lax.associative_scan(combine, (x, indices), axis=axis)


def cov(
    x: jax.Array, *, correction: int = 1, fweights: jax.Array | None = None, aweights: jax.Array | None = None
) -> jax.Array:
    """Traced. Covariances of rows; that no weight is negative is checked where values are known."""
    if x.ndim > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions but got {x.ndim}")
    rows = jnp.atleast_2d(x)
    _check_weights("fweights", fweights, jnp.integer, rows.shape[1])
    _check_weights("aweights", aweights, jnp.floating, rows.shape[1])
    weights: Any = jnp.ones(rows.shape[1], rows.dtype)
    for factor in filter(lambda factor: factor is not None, (fweights, aweights)):
        weights = weights * factor
    total = weights.sum()
    norm = total - correction
    if aweights is not None and correction:
        norm = total - correction * (weights * aweights).sum() / total
    centered = rows - ((rows * weights).sum(1) / total)[:, None]
    sums = jnp.matmul(centered, (centered * weights).T.conj(), precision=jax.lax.Precision.HIGHEST)
    # torch divides by 0 where there are too few observations.
    return (sums / jnp.maximum(norm, 0)).squeeze()


def _check_weights(name: str, weights: jax.Array | None, kind: Any, observations: int) -> None:
    if weights is None:
        return
    if weights.ndim > 1:
        raise RuntimeError(f"cov(): expected {name} to have one or fewer dimensions but got {weights.ndim}")
    if not jnp.issubdtype(weights.dtype, kind):
        raise RuntimeError(f"cov(): expected {name} to be {kind.__name__} numbers but got {weights.dtype}")
    if weights.size != observations:
        raise RuntimeError(f"cov(): expected {name} to have {observations} elements but got {weights.size}")
    require_values(lambda values: values >= 0, weights, message=f"cov(): {name} cannot be negative")


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(_aten.sum.default, on_arrays(sum_), "casts to the dtype asked for after adding"),
    Lowering(_aten.sum.dim_IntList, on_arrays(sum_), "casts to the dtype asked for after adding"),
    Lowering(_aten.mean.default, on_arrays(mean), "takes no dtype"),
    Lowering(_aten.mean.dim, on_arrays(mean), "takes no dtype"),
    Lowering(torch.cov, on_arrays(cov), "asks for the weights' values"),
    Lowering(torch.Tensor.cov, on_arrays(cov), "asks for the weights' values"),
    Lowering(_aten.cumsum.default, on_arrays(cumsum), "overflows on small integers, and rounds at each step"),
    Lowering(
        _aten.cumprod.default, on_arrays(cumprod), "overflows on small integers, and rounds at each step"
    ),
    Lowering(_aten.cummax.default, on_arrays(cummax), "fails on a dimension counted from the end"),
    Lowering(_aten.cummin.default, on_arrays(cummin), "fails on a dimension counted from the end"),
)
METHODS = ()
