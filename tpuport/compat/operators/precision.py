"""Functions that torch computes in float32 whatever they are given, and rounds once at
the end.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.complex_functions import FUNCTIONS


def _widened(x: jax.Array) -> jax.Array:
    """As float32 if it is narrower, or an integer; float64 stays."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _rounded(wide: jax.Array, like: jax.Array) -> jax.Array:
    # The result for integers is floating, as in torch.
    if jnp.issubdtype(like.dtype, jnp.inexact):
        return wide.astype(like.dtype)
    return wide


def sigmoid(x: jax.Array) -> jax.Array:
    """Traced. 1 / (1 + exp(-x)), elementwise."""
    if jnp.iscomplexobj(x):
        total = 1 + FUNCTIONS["exp"](-x)
        # torch has no quotient of two infinite parts.
        is_lost = ~jnp.isfinite(total) & (total.imag != 0)
        return jnp.where(is_lost, jnp.nan * (1 + 1j), 1 / total)
    return _rounded(jax.nn.sigmoid(_widened(x)), x)


def silu(x: jax.Array) -> jax.Array:
    """Traced. x * sigmoid(x), elementwise."""
    return _rounded(jax.nn.silu(_widened(x)), x)


def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """Traced. x times the normal distribution's cumulative function, exact or by
    tanh.
    """
    return _rounded(jax.nn.gelu(_widened(x), approximate=approximate == "tanh"), x)


def softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    """Traced. Softmax over one dimension; `half_to_float` leaves the result in
    float32.
    """
    return _along(jax.nn.softmax, x, dim, half_to_float)


def log_softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    """Traced. Logarithm of the softmax over one dimension; `half_to_float` leaves the
    result in float32.
    """
    return _along(jax.nn.log_softmax, x, dim, half_to_float)


def _along(
    function: Callable[..., jax.Array], x: jax.Array, dim: int, half_to_float: bool
) -> jax.Array:
    # torch counts a number as an array of one dimension.
    wide = function(_widened(jnp.atleast_1d(x)), axis=dim).reshape(x.shape)
    return wide if half_to_float else _rounded(wide, x)


def native_layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Traced. Layer norm over the last dimensions.

    Returns:
        the result in x's dtype, and the mean and reciprocal deviation, ones in place of
        the normalised dimensions; these are float32 if a parameter is.
    """
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    wide = _widened(x)
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    scale = jax.lax.rsqrt(jnp.var(wide, axis=axes, keepdims=True) + eps)
    out = (wide - mean) * scale
    if weight is not None:
        out = out * _widened(weight)
    if bias is not None:
        out = out + _widened(bias)
    dtype = functools.reduce(
        jnp.promote_types,
        [array.dtype for array in (x, weight, bias) if array is not None],
    )
    return _rounded(out, x), mean.astype(dtype), scale.astype(dtype)


_REASON = "computed in bfloat16 throughout, torch rounds once"

_aten = torch.ops.aten
_TARGETS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (_aten.sigmoid.default, sigmoid),
    (_aten.silu.default, silu),
    (_aten.gelu.default, gelu),
    (_aten._softmax.default, softmax),
    (_aten._log_softmax.default, log_softmax),
    (_aten.native_layer_norm.default, native_layer_norm),
)
LOWERINGS = tuple(
    Lowering(target, on_arrays(function), _REASON) for target, function in _TARGETS
)
METHODS = ()
