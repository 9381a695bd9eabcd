"""`grid_sample`: pixels of an image at the places that a grid names, for images of two
and three dimensions.

What lies outside, and what is no number, follows torch's kernels for a CPU: those of
two dimensions multiply what they read outside, which is zero, by its weight, and those
of three leave it out.

Shapes: N images, C channels, P pixels of an image, Q places of a grid.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
# The parameter of torch's cubic kernel.
_CUBIC = -0.75
# Along one dimension: where each tap reads, in pixels, and its weight.
_Taps = list[tuple[jax.Array, jax.Array]]


def grid_sampler(
    image: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> jax.Array:
    """Traced. [N, C, ...] of the grid's places [N, ..., dimensions].

    Args:
        image: [N, C, depth, height, width] or [N, C, height, width].
        grid: from -1 to 1, width first.
    """
    sizes, places = image.shape[2:], grid.shape[1:-1]
    wide = jnp.promote_types(image.dtype, jnp.float32)
    image_NCP = image.reshape(*image.shape[:2], math.prod(sizes)).astype(wide)
    grid = grid.reshape(grid.shape[0], math.prod(places), len(sizes)).astype(wide)
    taps = [
        _taps(grid[..., -1 - axis], size, interpolation_mode, padding_mode, align_corners, len(sizes))
        for axis, size in enumerate(sizes)
    ]  # fmt: skip
    terms = (
        _read(image_NCP, sizes, *zip(*corner, strict=True))
        for corner in itertools.product(*taps)
    )
    total_NCQ = functools.reduce(jnp.add, terms)
    return total_NCQ.reshape(*image.shape[:2], *places).astype(image.dtype)


def _taps(
    coordinate_NQ: jax.Array, size: int, mode: int, padding: int, align: bool, rank: int
) -> _Taps:
    # From the outer pixels' centers, or from their edges, which are half a pixel away.
    edges = 0 if align else 1
    pixel = ((coordinate_NQ + 1) * (size - 1 + edges) - edges) / 2
    inside = functools.partial(
        _inside, size=size, padding=padding, align=align, rank=rank
    )
    if mode == _BICUBIC:
        first = jnp.floor(pixel)
        weights = _cubic_weights(pixel - first)
        return [(inside(first + step), w) for step, w in zip(range(-1, 3), weights, strict=True)]  # fmt: skip
    pixel = inside(pixel)
    if mode == _NEAREST:
        return [(jnp.round(pixel), jnp.ones_like(pixel))]
    first = jnp.floor(pixel)
    return [(first, first + 1 - pixel), (first + 1, pixel - first)]


def _inside(
    pixel: jax.Array, size: int, padding: int, align: bool, rank: int
) -> jax.Array:
    """Where a pixel is read that lies outside, unless zeros lie there."""
    if padding == _ZEROS:
        return pixel
    if padding == _REFLECTION:
        pixel = _reflected(pixel, size, align)
    limited = jnp.clip(pixel, 0, size - 1)
    # Of no number the comparisons of the two kernels make either end.
    return jnp.where(jnp.isnan(pixel), 0.0 if rank == 2 else size - 1.0, limited)


def _reflected(pixel: jax.Array, size: int, align: bool) -> jax.Array:
    """Reflected at the outer pixels' centers, or at their edges, until it is inside."""
    low, span = (0.0, size - 1) if align else (-0.5, size)
    if span == 0:
        return jnp.zeros_like(pixel)
    distance = jnp.abs(pixel - low)
    flips, rest = jnp.floor(distance / span), jnp.fmod(distance, span)
    return jnp.where(flips % 2 == 0, rest, span - rest) + low


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    """The weights of four taps, of which the second is t before the place."""

    def near(x: jax.Array) -> jax.Array:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _read(
    image_NCP: jax.Array,
    sizes: tuple[int, ...],
    positions: Sequence[jax.Array],
    weights: Sequence[jax.Array],
) -> jax.Array:
    """[N, C, Q] pixels times their weight."""
    weight = functools.reduce(jnp.multiply, weights)[:, None]
    place = jnp.zeros(positions[0].shape, jnp.int32)
    is_inside = jnp.ones(place.shape, jnp.bool_)
    for position, size in zip(positions, sizes, strict=True):
        is_inside &= (position >= 0) & (position <= size - 1)
        index = jnp.clip(jnp.nan_to_num(position), 0, size - 1).astype(jnp.int32)
        place = place * size + index
    pixels = jnp.take_along_axis(image_NCP, place[:, None], axis=2)
    if len(sizes) == 2:
        return jnp.where(is_inside[:, None], pixels, 0) * weight
    weighted = pixels * weight
    return jnp.where(is_inside[:, None], weighted, 0)


_aten = torch.ops.aten
_REASON = "gives 0 at places that are no numbers, and takes what is outside into sums"
LOWERINGS = tuple(
    Lowering(target, on_arrays(grid_sampler), _REASON)
    for target in (_aten.grid_sampler_2d.default, _aten.grid_sampler_3d.default)
)
METHODS = ()
