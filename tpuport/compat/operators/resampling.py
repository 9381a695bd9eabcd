"""Interpolation: bicubic, whose coordinates need more digits than half precision has,
with antialiasing, and nearest.

Shapes: I elements before and O after along one dimension.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.errors import PortError
from tpuport.internals.torch_internals import decompositions

_aten = torch.ops.aten


def _in_float32(
    decomposition: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """torch's decomposition, computed in float32 and rounded once."""

    @functools.wraps(decomposition)
    def interpolate(image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if image.dtype not in _HALF:
            return decomposition(image, *args, **kwargs)
        return decomposition(image.float(), *args, **kwargs).to(image.dtype)

    return interpolate


def interpolate(image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`functional.interpolate`, which torchax has for some modes."""
    from torchax.ops.ops_registry import all_torch_functions

    if image.dtype in _HALF and kwargs.get("mode") == "bicubic":
        return torch.nn.functional.interpolate(image.float(), *args, **kwargs).to(
            image.dtype
        )
    torchax_function = all_torch_functions[torch.nn.functional.interpolate].func
    return on_arrays(torchax_function)(image, *args, **kwargs)


def nearest(
    image: jax.Array,
    output_size: Sequence[int],
    *scales: float | None,
    offset: float = 0.0,
) -> jax.Array:
    """Traced. An image [N, C, ...] whose pixels are those that lie nearest, by torch's
    rule.

    Pixels that are repeated, as by a whole factor, are broadcast: a TPU gathers them
    one by one.

    Args:
        output_size: of the dimensions after the second.
        scales: that the caller asked for; None: by the sizes.
        offset: of a pixel's position within it.
    """
    for axis, (after, factor) in enumerate(
        zip(output_size, scales or (None,) * len(output_size), strict=True), 2
    ):
        before = image.shape[axis]
        scale = before / after if factor is None else before / (before * factor)
        positions = (
            np.arange(after, dtype=np.float32) + np.float32(offset)
        ) * np.float32(scale)
        pixels = np.minimum(positions.astype(np.int32), before - 1)
        repeats = after // before if before else 0
        if repeats and np.array_equal(pixels, np.repeat(np.arange(before), repeats)):
            image = jnp.repeat(image, repeats, axis=axis)
        else:
            image = jnp.take(image, pixels, axis=axis)
    return image


def nearest_by_factors(
    image: jax.Array,
    output_size: Sequence[int] | None,
    scale_factors: Sequence[float] | None = None,
    *,
    offset: float = 0.0,
) -> jax.Array:
    """Traced. `nearest`, to a size or by factors."""
    if output_size is not None:
        return nearest(image, output_size, offset=offset)
    if scale_factors is None:
        raise RuntimeError("Must specify exactly one of output_size and scale_factors")
    sizes = [
        int(size * factor)
        for size, factor in zip(image.shape[2:], scale_factors, strict=True)
    ]
    return nearest(image, sizes, *scale_factors, offset=offset)


def antialiased(
    image: jax.Array,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    kernel: Callable[[np.ndarray], np.ndarray],
    reach: float,
) -> jax.Array:
    """Traced. An image [.., height, width] resampled by a kernel that is as wide as the
    pixels that become one.

    Args:
        image: floating.
        output_size: height and width of the result.
        align_corners: whether the corners' centers stay where they are.
        scales_h, scales_w: that the caller asked for; None: by the sizes.
        kernel: weights by distance from the center.
        reach: of the kernel, in pixels of an image that is not made smaller.
    """
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise PortError(
            f"interpolation of {image.dtype} with antialias=True",
            fix="convert it with .float()",
        )
    rows, columns = (
        _antialias_weights(
            before, after, _scale(before, after, align_corners, factor), kernel, reach
        )
        for before, after, factor in zip(
            image.shape[-2:], output_size, (scales_h, scales_w), strict=True
        )
    )
    wide = image.astype(jnp.promote_types(image.dtype, jnp.float32))
    # Highest: a TPU would round the weights to 16 bits.
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    across = product("...hw,ow->...ho", wide, jnp.asarray(columns, wide.dtype))
    return product("...hw,oh->...ow", across, jnp.asarray(rows, wide.dtype)).astype(
        image.dtype
    )


def antialiased_by_factors(
    image: jax.Array,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None = None,
    **options: Any,
) -> jax.Array:
    """Traced. `antialiased`, to a size or by factors of height and width."""
    if output_size is not None:
        return antialiased(image, output_size, align_corners, **options)
    if scale_factors is None:
        raise RuntimeError("Must specify exactly one of output_size and scale_factors")
    sizes = [
        int(size * factor)
        for size, factor in zip(image.shape[-2:], scale_factors, strict=True)
    ]
    return antialiased(image, sizes, align_corners, *scale_factors, **options)


def _scale(before: int, after: int, align_corners: bool, factor: float | None) -> float:
    """Pixels before for one after."""
    if align_corners:
        return (before - 1) / (after - 1) if after > 1 else 0.0
    return 1 / factor if factor else before / after


def _antialias_weights(
    before: int,
    after: int,
    scale: float,
    kernel: Callable[[np.ndarray], np.ndarray],
    reach: float,
) -> np.ndarray:
    """[O, I]; each row sums to 1."""
    stretch = max(scale, 1.0)
    centers_O = scale * (np.arange(after) + 0.5)
    starts_O = np.maximum((centers_O - reach * stretch + 0.5).astype(int), 0)
    ends_O = np.minimum((centers_O + reach * stretch + 0.5).astype(int), before)
    place_I = np.arange(before)
    weights_OI = kernel(np.abs(place_I - centers_O[:, None] + 0.5) / stretch)
    weights_OI *= (starts_O[:, None] <= place_I) & (place_I < ends_O[:, None])
    return weights_OI / weights_OI.sum(axis=1, keepdims=True)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0.0)


def _cubic(distance: np.ndarray) -> np.ndarray:
    # Pillow's, whose parameter is -0.5, where it is -0.75 without antialiasing.
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


_HALF = (torch.bfloat16, torch.float16)
_COORDINATES = "computes coordinates in half precision"
_GATHERED = "gathers pixels one by one"
_NEAREST = (
    (_aten.upsample_nearest1d, 0.0), (_aten.upsample_nearest2d, 0.0), (_aten.upsample_nearest3d, 0.0),
    (_aten._upsample_nearest_exact1d, 0.5), (_aten._upsample_nearest_exact2d, 0.5),
    (_aten._upsample_nearest_exact3d, 0.5),
)  # fmt: skip
LOWERINGS = (
    *(
        Lowering(
            target, on_arrays(functools.partial(function, offset=offset)), _GATHERED
        )
        for packet, offset in _NEAREST
        for target, function in (
            (packet.default, nearest),
            (packet.vec, nearest_by_factors),
        )
    ),
    Lowering(torch.nn.functional.interpolate, interpolate, _COORDINATES),
    *(
        Lowering(target, _in_float32(decompositions()[target]), _COORDINATES)
        for target in (_aten.upsample_bicubic2d.default, _aten.upsample_bicubic2d.vec)
        if target in decompositions()
    ),
    *(
        Lowering(
            target,
            on_arrays(functools.partial(function, kernel=kernel, reach=reach)),
            "fails",
        )
        for packet, kernel, reach in (
            (_aten._upsample_bilinear2d_aa, _triangle, 1.0),
            (_aten._upsample_bicubic2d_aa, _cubic, 2.0),
        )
        for target, function in (
            (packet.default, antialiased),
            (packet.vec, antialiased_by_factors),
            (packet, antialiased_by_factors),
        )
    ),
)
METHODS = ()
