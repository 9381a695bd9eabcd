"""Samplers over arrays: functions of (key, shape, dtype, parameters).

Jitted, because eager calls would run each operation alone.

Shapes: R rows, K categories, N samples.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.convert import jax_dtype

# Bits after the point of a uniform number, as in torch.
_UNIFORM_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 32}


@functools.partial(jax.jit, static_argnums=(1, 2))
def unit(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Uniform in [0, 1); the parts of a complex number each."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _complex(unit, key, shape, dtype)
    bits = _UNIFORM_BITS[dtype.name]
    # Rounding a float32 to a narrow type would give 1.
    numbers = jax.random.bits(key, shape, jnp.uint32) >> (32 - bits)
    wide = jnp.promote_types(dtype, jnp.float32)
    return (numbers.astype(wide) * 2.0**-bits).astype(dtype)


@functools.partial(jax.jit, static_argnums=(1,))
def inner_unit(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform in (0, 1), float32: its logarithm and that of its complement are finite
    and not zero.
    """
    # One bit less than float32 has, which the half takes.
    numbers = jax.random.bits(key, shape, jnp.uint32) >> 9
    return (numbers.astype(jnp.float32) + 0.5) * 2.0**-23


@functools.partial(jax.jit, static_argnums=(1, 2))
def gaussian(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Standard normal, computed in float32 at least; a complex number's variance is 1,
    half in each part.
    """
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _complex(gaussian, key, shape, dtype) * math.sqrt(0.5)
    return jax.random.normal(key, shape, jnp.promote_types(dtype, jnp.float32)).astype(
        dtype
    )


def _complex(
    sampler: Callable, key: jax.Array, shape: tuple[int, ...], dtype: Any
) -> jax.Array:
    real, imaginary = (
        sampler(part, shape, jnp.float32) for part in jax.random.split(key)
    )
    return jax.lax.complex(real, imaginary).astype(dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def uniform(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, low: Any, high: Any
) -> jax.Array:
    """Uniform in [low, high)."""
    wide = jnp.promote_types(dtype, jnp.float32)
    numbers = (unit(key, shape, wide) * (high - low) + low).astype(dtype)
    # Rounding can reach the end that is excluded.
    return jnp.where(
        numbers >= jnp.asarray(high, dtype), jnp.asarray(low, dtype), numbers
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def integers(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, low: Any, high: Any
) -> jax.Array:
    """Integers in [low, high), of any numeric dtype."""
    return jax.random.randint(key, shape, low, high, jax_dtype(torch.int64)).astype(
        dtype
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def coins(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, probability: Any
) -> jax.Array:
    """One with a probability, else zero."""
    return (unit(key, shape, jnp.float32) < probability).astype(dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def exponentials(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, rate: Any
) -> jax.Array:
    """Exponentially distributed, never zero: samplers divide by it."""
    numbers = -jnp.log(inner_unit(key, shape)) / rate
    return jnp.maximum(numbers, jnp.finfo(dtype).tiny).astype(dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def cauchys(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, median: Any, scale: Any
) -> jax.Array:
    """Cauchy distributed."""
    return (median + scale * jnp.tan(jnp.pi * (inner_unit(key, shape) - 0.5))).astype(
        dtype
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def log_normals(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, mean: Any, std: Any
) -> jax.Array:
    """The exponential of normal numbers."""
    return jnp.exp(mean + std * gaussian(key, shape, jnp.float32)).astype(dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def geometrics(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, probability: Any
) -> jax.Array:
    """The number of trials up to the first success."""
    trials = jnp.ceil(
        jnp.log(inner_unit(key, shape)) / jnp.log1p(-jnp.float32(probability))
    )
    return jnp.maximum(trials, 1.0).astype(dtype)


@functools.partial(jax.jit, static_argnums=(2,))
def categories(key: jax.Array, weights_RK: jax.Array, count: int) -> jax.Array:
    """[R, N] distinct categories, in the order of drawing them one after the other by
    their weights.
    """
    gumbel_RK = -jnp.log(-jnp.log(inner_unit(key, weights_RK.shape)))
    # The largest of log-weights with Gumbel noise is a draw by the weights, the next
    # largest a draw among the rest.
    return jax.lax.top_k(jnp.log(weights_RK) + gumbel_RK, count)[1].astype(jnp.int32)


@functools.partial(jax.jit, static_argnums=(2,))
def repeated_categories(key: jax.Array, weights_RK: jax.Array, count: int) -> jax.Array:
    """[R, N] categories, each drawn from all."""
    if count == 1:
        return categories(key, weights_RK, 1)
    rows, size = weights_RK.shape
    ends_RK = jax.lax.cummax(jnp.cumsum(weights_RK, axis=1), axis=1)
    points_RN = unit(key, (rows, count), jnp.float32) * ends_RK[:, -1:]
    find = jax.vmap(functools.partial(jnp.searchsorted, side="right"))
    found_RN = jnp.minimum(find(ends_RK, points_RN), size - 1)
    # Rounding may find a neighbour that has no weight.
    indices_RK = jnp.where(weights_RK > 0, jnp.arange(size), -1)
    before_RK = jax.lax.cummax(indices_RK, axis=1)
    first_RK = jnp.argmax(weights_RK > 0, axis=1, keepdims=True)
    chosen_RK = jnp.where(before_RK < 0, first_RK, before_RK)
    return jnp.take_along_axis(chosen_RK, found_RN, axis=1).astype(jnp.int32)
