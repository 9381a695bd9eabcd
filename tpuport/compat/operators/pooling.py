"""Maximum pooling with torch's rule for windows that reach over the end, and undone."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.declarations import Lowering, on_arrays


def max_pool(
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Traced. The greatest element of each window over the last dimensions, and its
    place in their flattened form.

    The number of windowed dimensions is that of `kernel_size`; the other arguments have
    as many items, or one.
    """
    rank = len(kernel_size)
    strides, paddings, dilations = (
        spread(items, rank) for items in (stride or kernel_size, padding, dilation)
    )
    window = window_options(
        x, kernel_size, strides, paddings, dilations, ceil_mode=ceil_mode
    )
    spatial = x.shape[x.ndim - rank :]
    values = jax.lax.reduce_window(x, _lowest(x.dtype), jax.lax.max, **window)
    places = jnp.arange(np.prod(spatial), dtype=jnp.int32).reshape(spatial)
    operands = jnp.broadcast_to(places, x.shape), jax.lax.stop_gradient(x)
    indices, _ = jax.lax.reduce_window(
        operands,
        (np.int32(np.iinfo(np.int32).max), _lowest(x.dtype)),
        _first_greatest,
        **window,
    )
    return values, indices


def window_options(
    x: jax.Array,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int] | None = None,
    *,
    ceil_mode: bool,
) -> dict[str, Any]:
    """The options of `jax.lax.reduce_window` for windows over the last dimensions, as
    many as torch has.
    """
    rank = len(kernel_size)
    dilations = dilations or (1,) * rank
    leading = x.ndim - rank
    ends = [
        _end(*sizes, ceil_mode=ceil_mode)
        for sizes in zip(
            x.shape[leading:], kernel_size, strides, paddings, dilations, strict=True
        )
    ]
    return {
        "window_dimensions": (1,) * leading + tuple(kernel_size),
        "window_strides": (1,) * leading + tuple(strides),
        "padding": ((0, 0),) * leading + tuple(zip(paddings, ends, strict=True)),
        "window_dilation": (1,) * leading + tuple(dilations),
    }


def spread(items: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """A number for each of the windowed dimensions, of which there may be one for
    all.
    """
    items = (items,) if isinstance(items, int) else tuple(items)
    return items * rank if len(items) == 1 else items


def _end(
    size: int, kernel: int, stride: int, padding: int, dilation: int, *, ceil_mode: bool
) -> int:
    """The padding after a dimension, so that it has as many windows as torch gives
    it.
    """
    reach = dilation * (kernel - 1) + 1
    room = size + 2 * padding - reach
    windows = (-(-room // stride) if ceil_mode else room // stride) + 1
    # Every window starts in the input or in the padding before it.
    if ceil_mode and (windows - 1) * stride >= size + padding:
        windows -= 1
    return max(0, (windows - 1) * stride + reach - size - padding)


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(-np.inf, dtype)
    return np.array(jnp.iinfo(dtype).min, dtype)


def _first_greatest(left: Any, right: Any) -> Any:
    """Of two (place, value) the one with the greater value, and of equals the first;
    NaN is the greatest, and of several the last counts.
    """
    are_nan = [jnp.isnan(value) for _, value in (left, right)]
    is_before = left[0] < right[0]
    takes_left = (left[1] > right[1]) | ((left[1] == right[1]) & is_before)
    takes_left = jnp.where(are_nan[1], are_nan[0] & ~is_before, takes_left | are_nan[0])
    return tuple(jnp.where(takes_left, a, b) for a, b in zip(left, right, strict=True))


def max_pool2d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`functional.max_pool2d`, through the operator."""
    if stride is None or stride == ():
        stride = kernel_size
    result = torch.ops.aten.max_pool2d_with_indices.default(
        x, spread(kernel_size, 2), spread(stride, 2), spread(padding, 2), spread(dilation, 2),
        ceil_mode,
    )  # fmt: skip
    return result if return_indices else result[0]


def adaptive_max_pool(
    x: jax.Array, output_size: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    """Traced. The greatest element of each of so many windows over the last dimensions,
    and its place.
    """
    rank = len(output_size)
    spatial = x.shape[x.ndim - rank :]
    places = jnp.broadcast_to(
        jnp.arange(np.prod(spatial), dtype=jnp.int32).reshape(spatial), x.shape
    )
    windows = [
        _adaptive_windows(*sizes) for sizes in zip(spatial, output_size, strict=True)
    ]
    results = [
        _greatest(x[..., *window], places[..., *window], rank)
        for window in itertools.product(*windows)
    ]
    shape = (*x.shape[: x.ndim - rank], *output_size)
    values, indices = (
        jnp.stack(part, axis=-1).reshape(shape) for part in zip(*results, strict=True)
    )
    return values, indices


def _adaptive_windows(size: int, count: int) -> list[slice]:
    return [
        slice(number * size // count, -(-(number + 1) * size // count))
        for number in range(count)
    ]


def _greatest(
    x: jax.Array, places: jax.Array, rank: int
) -> tuple[jax.Array, jax.Array]:
    """The greatest element over the last dimensions, the first of several, or the last
    NaN; and its place.
    """
    flat, flat_places = (
        jax.lax.collapse(array, array.ndim - rank) for array in (x, places)
    )
    first = jnp.argmax(flat, axis=-1, keepdims=True)
    last = flat.shape[-1] - 1 - jnp.argmax(flat[..., ::-1], axis=-1, keepdims=True)
    chosen = jnp.where(jnp.isnan(flat).any(-1, keepdims=True), last, first)
    values, indices = (
        jnp.take_along_axis(array, chosen, axis=-1)[..., 0]
        for array in (flat, flat_places)
    )
    return values, indices


def max_unpool(
    x: jax.Array, indices: jax.Array, output_size: Sequence[int], *window: Any
) -> jax.Array:
    """Traced. Zeros of a size, with x's elements at the places that maximum pooling has
    named.
    """
    del window
    rank = len(output_size)
    return _at_places(x, indices, x.shape[: x.ndim - rank], output_size, add=False)


def max_pool_backward(
    gradient: jax.Array, x: jax.Array, kernel_size: Sequence[int], stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, indices: jax.Array,
) -> jax.Array:  # fmt: skip
    """Traced. The gradient of maximum pooling over two dimensions: each window's goes
    to its greatest element.
    """
    del kernel_size, stride, padding, dilation, ceil_mode
    return _at_places(gradient, indices, x.shape[:-2], x.shape[-2:], add=True)


def _at_places(
    x: jax.Array,
    indices: jax.Array,
    leading: Sequence[int],
    spatial: Sequence[int],
    *,
    add: bool,
) -> jax.Array:
    planes, size = math.prod(leading), math.prod(spatial)
    plane_shape = planes, math.prod(x.shape[len(leading) :])
    target = jnp.zeros((planes, size), x.dtype).at[
        jnp.arange(planes)[:, None], indices.reshape(plane_shape)
    ]  # fmt: skip
    values = x.reshape(plane_shape)
    return (target.add(values) if add else target.set(values)).reshape(
        *leading, *spatial
    )


_aten = torch.ops.aten
_REASON = "miscounts dilated windows that reach over the end"
LOWERINGS = (
    Lowering(torch.nn.functional.max_pool2d, max_pool2d, _REASON),
    Lowering(_aten.max_pool2d_with_indices.default, on_arrays(max_pool), _REASON),
    Lowering(
        _aten.adaptive_max_pool2d.default,
        on_arrays(adaptive_max_pool),
        "has no lowering",
    ),
    Lowering(
        _aten.adaptive_max_pool3d.default,
        on_arrays(adaptive_max_pool),
        "has no lowering",
    ),
    Lowering(_aten.max_pool3d_with_indices.default, on_arrays(max_pool), _REASON),
    Lowering(
        _aten.max_unpool2d.default, on_arrays(max_unpool), "needs the places' values"
    ),
    Lowering(
        _aten.max_unpool3d.default, on_arrays(max_unpool), "needs the places' values"
    ),
    *(
        Lowering(target, on_arrays(max_pool_backward), "fails on one number a size")
        for target in (
            _aten.max_pool2d_with_indices_backward,
            _aten.max_pool2d_with_indices_backward.default,
        )
    ),
)
METHODS = ()
