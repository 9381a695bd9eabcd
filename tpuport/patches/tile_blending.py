"""Blending of a video autoencoder's tiles on the device, one program for a shape.

The autoencoders' own loops write one row or column at a time. Outside a compiled
program each write is a separate program and copies the whole tile. Shapes: B batch, C
channels, F frames, h height, w width.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat


def blend_t(
    self: Any, a: torch.Tensor, b: torch.Tensor, blend_extent: int
) -> torch.Tensor:
    """The first frames of tile b [B, C, F, h, w] blend into the last ones of a. Changes
    b and returns it.
    """
    return _blend(a, b, blend_extent, 2)


def blend_v(
    self: Any, a: torch.Tensor, b: torch.Tensor, blend_extent: int
) -> torch.Tensor:
    """The first rows of tile b [B, C, F, h, w] blend into the last ones of a. Changes b
    and returns it.
    """
    return _blend(a, b, blend_extent, 3)


def blend_h(
    self: Any, a: torch.Tensor, b: torch.Tensor, blend_extent: int
) -> torch.Tensor:
    """The first columns of tile b [B, C, F, h, w] blend into the last ones of a.
    Changes b and returns it.
    """
    return _blend(a, b, blend_extent, 4)


def _blend(a: torch.Tensor, b: torch.Tensor, extent: int, axis: int) -> torch.Tensor:
    extent = min(a.shape[axis], b.shape[axis], extent)
    if extent > 0:
        # In place, because the next tiles are blended with the changed one.
        b.copy_(compat.wrap(_mix(compat.to_jax(a), compat.to_jax(b), extent, axis)))
    return b


@functools.partial(jax.jit, static_argnums=(2, 3))
def _mix(a_BCFhw: jax.Array, b_BCFhw: jax.Array, extent: int, axis: int) -> jax.Array:
    """Traced. Tile b, with its first `extent` positions along an axis blended with the
    last ones of tile a.
    """
    last = jax.lax.slice_in_dim(a_BCFhw, a_BCFhw.shape[axis] - extent, None, axis=axis)
    first, rest = jnp.split(b_BCFhw, [extent], axis=axis)
    others = [dimension for dimension in range(b_BCFhw.ndim) if dimension != axis]
    share = jnp.expand_dims(jnp.arange(extent) / extent, others)
    blended = last * (1 - share) + first * share
    return jnp.concatenate([blended.astype(b_BCFhw.dtype), rest], axis=axis)
