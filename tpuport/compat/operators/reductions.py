"""Reductions and cumulative reductions: the requested dtype, and dimensions counted
from the end.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.convert import jax_dtype
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.complex_functions import absolute
from tpuport.compat.operators.host_operators import on_host
from tpuport.errors import MissingDtypeError

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
    """The dtype that torch sums in: the requested one, else 64-bit integers for bools
    and integers, else x's own.
    """
    if dtype is not None:
        return jax_dtype(dtype)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x.dtype
    return jax_dtype(torch.int64)


def any_(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    """Traced. Whether an element is not zero; a complex one, in either part."""
    # Unlike those of a sum, no dimensions are none.
    axes = () if dim in ((), []) else _axes(x, dim)
    return jnp.any(x != 0, axis=axes, keepdims=keepdim)


def sum_(
    x: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """Traced. Sum over dimensions, cast before it adds."""
    return jnp.sum(
        x.astype(_accumulator(x, dtype)), axis=_axes(x, dim), keepdims=keepdim
    )


def mean(
    x: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """Traced. Mean over dimensions, cast before it adds."""
    return jnp.mean(
        x.astype(_accumulator(x, dtype)), axis=_axes(x, dim), keepdims=keepdim
    )


def nansum(
    x: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """Traced. Sum over dimensions of the elements that are numbers."""
    return sum_(
        jnp.where(jnp.isnan(x), jnp.zeros_like(x), x), dim, keepdim, dtype=dtype
    )


def var(
    x: jax.Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> jax.Array:
    """Traced. Variance over dimensions; the sum of squares is divided by the count less
    the correction, or by zero.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise RuntimeError("std and var only support floating point and complex dtypes")
    axes = _axes(x, dim)
    count = math.prod(
        x.shape[axis] for axis in (range(x.ndim) if axes is None else axes)
    )
    # jax takes a fraction too, which its type does not say.
    correction_or_default: Any = 1 if correction is None else correction
    if count > correction_or_default:
        return jnp.var(x, axis=axes, ddof=correction_or_default, keepdims=keepdim)
    # jax gives NaN here, torch infinity where the elements differ.
    return jnp.var(x, axis=axes, keepdims=keepdim) / 0.0


def var_mean(
    x: jax.Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Traced. Variance and mean over dimensions."""
    return var(x, dim, correction=correction, keepdim=keepdim), mean(x, dim, keepdim)


def cumsum(x: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    """Traced. Running sum along a dimension."""
    return _running(jnp.cumsum, x, dim, dtype)


def cumprod(x: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    """Traced. Running product along a dimension."""
    return _running(jnp.cumprod, x, dim, dtype)


def _running(
    accumulate: Callable[..., jax.Array],
    x: jax.Array,
    dim: int,
    dtype: torch.dtype | None,
) -> jax.Array:
    result_dtype = _accumulator(x, dtype)
    if x.ndim == 0:
        return x.astype(result_dtype)
    # Rounded once, not at each step.
    working = (
        jnp.promote_types(result_dtype, jnp.float32)
        if _is_half(result_dtype)
        else result_dtype
    )
    return accumulate(x.astype(result_dtype).astype(working), axis=dim).astype(
        result_dtype
    )


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
    x: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Traced. Covariances of rows; with weights by torch on the host."""
    if fweights is None and aweights is None:
        return on_arrays(_covariances)(x, correction)
    weights = {"fweights": fweights, "aweights": aweights}
    return on_host(_aten.cov.default)(x, correction=correction, **weights)


def _covariances(x: jax.Array, correction: int = 1) -> jax.Array:
    if x.ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got {x.ndim}"
        )
    # Integers have sums of 64 bits in torch.
    rows = jnp.atleast_2d(x) * 1.0
    count = jnp.asarray(rows.shape[1], rows.dtype)
    centered = rows - (rows.sum(1) / count)[:, None]
    sums = jnp.matmul(centered, centered.T.conj(), precision=jax.lax.Precision.HIGHEST)
    # torch divides by 0 where there are too few observations.
    return (sums / jnp.maximum(count - correction, 0)).squeeze()


def corrcoef(x: jax.Array) -> jax.Array:
    """Traced. Correlations of rows."""
    values = _covariances(x)
    if values.ndim == 0:
        return values / values
    deviations = jnp.sqrt(jnp.diagonal(values).real)
    values = values / deviations[:, None] / deviations
    if jnp.iscomplexobj(values):
        return jax.lax.complex(values.real.clip(-1, 1), values.imag.clip(-1, 1))
    return values.clip(-1, 1)


def vector_norm(
    x: jax.Array,
    ord: float = 2,  # noqa: A002 - torch's name
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """Traced. The norm of vectors along dimensions, in the dtype asked for; halves are
    summed in float32.
    """
    result_dtype = x.dtype if dtype is None else jax_dtype(dtype)
    wide = x.astype(jnp.promote_types(result_dtype, jnp.float32))
    axes, size = _axes(x, dim), absolute(wide)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(values, axis=axes, keepdims=keepdim)

    if ord == math.inf:
        norm = jnp.max(size, axis=axes, keepdims=keepdim, initial=0.0)
    elif ord == -math.inf:
        norm = jnp.min(size, axis=axes, keepdims=keepdim)
    elif ord == 0:
        norm = total((size != 0).astype(size.dtype))
    elif ord == 1:
        norm = total(size)
    elif ord == 2:
        norm = jnp.sqrt(total(jnp.square(size)))
    else:
        norm = total(size**ord) ** (1 / ord)
    return norm.astype(jnp.finfo(result_dtype).dtype)


def hash_tensor(x: torch.Tensor, *options: Any, **keywords: Any) -> torch.Tensor:
    """Traced. The exclusive or of the bits of elements, by torch on the host."""
    if not jax.config.read("jax_enable_x64"):
        raise MissingDtypeError(
            "torch.hash_tensor gives uint64, which the device does not have",
            fix="compute it on the host, torch.hash_tensor(x.cpu()); jax_enable_x64 gives a CPU 64 bits",
        )
    return on_host(_aten.hash_tensor.default)(x, *options, **keywords)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.linalg_vector_norm.default,
        on_arrays(vector_norm),
        "asks for the value of a number",
    ),
    Lowering(_aten.hash_tensor.default, hash_tensor, "has no lowering"),
    *(
        Lowering(overload, on_arrays(any_), "forgets imaginary parts")
        for overload in (_aten.any.default, _aten.any.dim, _aten.any.dims)
    ),
    Lowering(
        _aten.sum.default, on_arrays(sum_), "casts to the dtype asked for after adding"
    ),
    Lowering(
        _aten.sum.dim_IntList,
        on_arrays(sum_),
        "casts to the dtype asked for after adding",
    ),
    Lowering(_aten.mean.default, on_arrays(mean), "takes no dtype"),
    Lowering(_aten.mean.dim, on_arrays(mean), "takes no dtype"),
    Lowering(
        _aten.nansum.default,
        on_arrays(nansum),
        "takes no dimensions in () for all of them, and no dtype",
    ),
    Lowering(
        _aten.var.correction,
        on_arrays(var),
        "takes integers, and no dimension of a number",
    ),
    Lowering(
        _aten.var_mean.correction,
        on_arrays(var_mean),
        "takes integers, and no dimension of a number",
    ),
    Lowering(torch.cov, cov, "asks for the weights' values"),
    Lowering(torch.corrcoef, on_arrays(corrcoef), "has float32 for no halves"),
    Lowering(torch.Tensor.cov, cov, "asks for the weights' values"),
    Lowering(
        _aten.cumsum.default,
        on_arrays(cumsum),
        "overflows on small integers, and rounds at each step",
    ),
    Lowering(
        _aten.cumprod.default,
        on_arrays(cumprod),
        "overflows on small integers, and rounds at each step",
    ),
    Lowering(
        _aten.cummax.default,
        on_arrays(cummax),
        "fails on a dimension counted from the end",
    ),
    Lowering(
        _aten.cummin.default,
        on_arrays(cummin),
        "fails on a dimension counted from the end",
    ),
)
METHODS = ()
