"""Averages of integers in windows, which are integers in torch."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.pooling import spread, window_options

_aten = torch.ops.aten


def avg_pool(
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    """Traced. The average of each window over the last dimensions.

    There are as many of them as `kernel_size` has items; the other arguments have as
    many, or one.
    """
    rank = len(kernel_size)
    strides = spread(stride or kernel_size, rank)
    paddings = spread(padding, rank)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        from torchax.ops.ops_registry import all_aten_ops

        lowering: Any = all_aten_ops[_aten.avg_pool2d].func
        # A sum of halves would be rounded at each element.
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return lowering(
            wide, kernel_size, strides, paddings, ceil_mode, count_include_pad,
            divisor_override,
        ).astype(x.dtype)  # fmt: skip
    window = window_options(x, kernel_size, strides, paddings, ceil_mode=ceil_mode)
    zero = np.zeros((), x.dtype)
    total = jax.lax.reduce_window(x, zero, jax.lax.add, **window)
    sizes = [
        _window_sizes(*axis, includes_padding=count_include_pad)
        for axis in zip(
            x.shape[-rank:],
            total.shape[-rank:],
            kernel_size,
            strides,
            paddings,
            strict=True,
        )
    ]
    divisor = divisor_override or functools.reduce(np.multiply.outer, sizes)
    divisors = np.broadcast_to(np.asarray(divisor, x.dtype), total.shape)
    return jax.lax.div(total, divisors)


def _window_sizes(
    size: int,
    windows: int,
    kernel: int,
    stride: int,
    padding: int,
    *,
    includes_padding: bool,
) -> np.ndarray:
    """How many elements each window along a dimension counts."""
    starts = np.arange(windows) * stride - padding
    stops = np.minimum(starts + kernel, size + padding)
    if not includes_padding:
        starts, stops = np.maximum(starts, 0), np.minimum(stops, size)
    return stops - starts


LOWERINGS = tuple(
    Lowering(
        target,
        on_arrays(avg_pool),
        "averages integers with 24 bits only, and halves with theirs",
    )
    for target in (_aten.avg_pool2d.default, _aten.avg_pool3d.default)
)
METHODS = ()
