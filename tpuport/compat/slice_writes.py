"""Writing to slices of an array in traced code."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


def write_slices(array: jax.Array, key: tuple[Any, ...], values: Any) -> jax.Array:
    """Traced or not. The array after `array[key] = values`.

    XLA's CPU compiler may compute the values and write them in one loop over the
    array's own memory, although they are computed from elements that the loop has
    overwritten by then: `x[:, n:] = rotate_half(x[:, n:])` came out wrong (jaxlib 0.9),
    and it removes barriers before it decides that. So a program for a CPU joins slices
    instead of writing to one.

    Args:
        key: integers and slices, None and scalar arrays, one for each dimension or
            fewer.
        values: broadcast against `array[key]`.
    """
    bounds = _bounds(array.shape, key)
    if bounds is None or not isinstance(values, Tracer):
        return array.at[key].set(values)

    def join(array: jax.Array, values: jax.Array) -> jax.Array:
        selected = jax.eval_shape(lambda x: x[key], array).shape
        region = [stop - start for start, stop in bounds]
        return _join(
            array,
            jnp.broadcast_to(values, selected).reshape(region).astype(array.dtype),
            bounds,
        )

    return jax.lax.platform_dependent(
        array, values, cpu=join, default=lambda array, values: array.at[key].set(values)
    )


def _bounds(
    shape: tuple[int, ...], key: tuple[Any, ...]
) -> list[tuple[int, int]] | None:
    """Where the slices begin and end in each dimension; None if that is not known, or
    not all in between.
    """
    items = [*key, *[slice(None)] * (len(shape) - len(key))]
    bounds = []
    for item, size in zip(items, shape, strict=False):
        match item:
            case bool() | None:
                return None
            case int():
                start = item + size if item < 0 else item
                bounds.append((start, start + 1))
            case slice():
                start, stop, step = item.indices(size)
                if step != 1 or stop <= start:
                    return None
                bounds.append((start, stop))
            case _:
                return None
    is_whole = all(
        stop - start == size for (start, stop), size in zip(bounds, shape, strict=False)
    )
    return None if is_whole or len(bounds) != len(shape) else bounds


def _join(
    array: jax.Array, values: jax.Array, bounds: list[tuple[int, int]], axis: int = 0
) -> jax.Array:
    """The values with what is around them in the array."""
    if axis == array.ndim:
        return values
    start, stop = bounds[axis]
    between = jax.lax.slice_in_dim(array, start, stop, axis=axis)
    pieces = [
        jax.lax.slice_in_dim(array, 0, start, axis=axis),
        _join(between, values, bounds, axis + 1),
        jax.lax.slice_in_dim(array, stop, array.shape[axis], axis=axis),
    ]
    return jax.lax.concatenate([piece for piece in pieces if piece.shape[axis]], axis)
