"""Operators that change a tensor's shape, its dtype's meaning, or where its elements
come from.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat import aliasing, view_steps
from tpuport.compat.argument_checks import is_known
from tpuport.compat.convert import assign, is_ported, jax_dtype, to_device, to_jax, wrap
from tpuport.compat.declarations import Lowering, Method, on_arrays
from tpuport.errors import PortError
from tpuport.internals import torch_internals
from tpuport.internals.torchax_internals import array_of


def view_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor.view(dtype)`: the same bits read as another dtype; the last dimension
    grows or shrinks with the width.

    Raises:
        PortError: torch has 64 bits where the device has 32.
    """
    array, target = tensor.jax(), jax_dtype(dtype)  # type: ignore[attr-defined]
    widths = (tensor.dtype.itemsize, dtype.itemsize)
    if tensor.dtype != dtype and widths != (array.dtype.itemsize, target.itemsize):
        raise PortError(
            f"the bits of {tensor.dtype} cannot be read as {dtype}: the device has 32 bits a number",
            fix="run jax with jax_enable_x64, or read them on the host, x.cpu().view(dtype)",
        )
    return wrap(_read_bits(array, target), dtype)


def _read_bits(x: jax.Array, target: np.dtype) -> jax.Array:
    """Traced. The same bits as numbers of another dtype of the device."""
    # jax reads the bits of no complex number; torch has its real part before the
    # imaginary one.
    if jnp.iscomplexobj(x) and target != x.dtype:
        parts = jnp.stack([x.real, x.imag], axis=-1)
        return _read_bits(parts.reshape(*x.shape[:-1], 2 * x.shape[-1]), target)
    if jnp.issubdtype(target, jnp.complexfloating) and target != x.dtype:
        parts = _read_bits(x, np.finfo(target).dtype)
        return jax.lax.complex(parts[..., 0::2], parts[..., 1::2])
    # jax gives the parts of an element a dimension of their own, and expects one.
    if target.itemsize < x.dtype.itemsize:
        split = jax.lax.bitcast_convert_type(x, target)
        return split.reshape(*x.shape[:-1], x.shape[-1] * split.shape[-1])
    if target.itemsize > x.dtype.itemsize:
        ratio = target.itemsize // x.dtype.itemsize
        x = x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio)
    return jax.lax.bitcast_convert_type(x, target)


def take_along_dim(
    x: jax.Array, indices: jax.Array, dim: int | None = None
) -> jax.Array:
    """Traced. Elements along a dimension, x and indices broadcast against each other in
    the others.
    """
    if dim is None:
        return jnp.take_along_axis(x.ravel(), indices.ravel(), axis=0)
    # Not broadcast first: an index that is the same along a dimension then moves whole
    # slices, not elements. torch lets one that is outside start again at the other end.
    return jnp.take_along_axis(x, indices % x.shape[dim], axis=dim)


def repeat_interleave(
    input: torch.Tensor,  # noqa: A002 - torch's name
    repeats: int | torch.Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> torch.Tensor:
    """Traced. Repeat every element along a dimension (of the flattened tensor if None),
    copies adjacent.

    Args:
        input: the elements; their places are, if this is the only tensor, the numbers
            of repeats.
        repeats: a number, or one for each element, on the host or the device.
        dim: along which.
        output_size: the sum of the repeats, which those that only a program knows need.
    """
    if repeats is None:
        return repeat_interleave(
            torch.arange(input.shape[0], device=input.device),
            input,
            0,
            output_size=output_size,
        )
    x = to_jax(input)
    if dim is None:
        x, dim = x.reshape(-1), 0
    if not isinstance(repeats, torch.Tensor):
        return wrap(_repeat_equally(x, repeats, dim % max(x.ndim, 1)))
    # What a program makes of a tensor on the host has no value.
    counts: Any = (repeats.jax() if is_ported(repeats) else repeats.numpy()).reshape(-1)  # type: ignore[attr-defined]
    x = jnp.atleast_1d(x)
    size = x.shape[dim]
    if counts.size not in (1, size):
        raise RuntimeError(
            f"repeats must have the same size as input along dim, but got {counts.size} and {size}"
        )
    if is_known(counts):
        counts = _checked_counts(np.asarray(counts), size, output_size)
    return wrap(jnp.repeat(x, counts, axis=dim, total_repeat_length=output_size))


def _repeat_equally(x: jax.Array, repeats: int, axis: int) -> jax.Array:
    if repeats < 0:
        raise RuntimeError("Repeats must be non-negative")
    # Plain broadcasting, through which a mask's origin can be seen.
    x = jnp.atleast_1d(x)
    shape = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), shape)
    return wide.reshape(*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :])


def _checked_counts(
    counts: np.ndarray, size: int, output_size: int | None
) -> np.ndarray:
    """Numbers of repeats, one for each of `size` elements, that torch takes."""
    if (counts < 0).any():
        raise RuntimeError("repeats can not be negative")
    counts = np.broadcast_to(counts, (size,))
    if output_size is not None and counts.sum() != output_size:
        raise RuntimeError(
            f"allocated size does not match required size: {output_size} for {counts.sum()}"
        )
    return counts


def tensor_split(
    input: torch.Tensor,  # noqa: A002 - torch's name
    indices_or_sections: Any = None,
    dim: int = 0,
    *,
    indices: Any = None,
    sections: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """`torch.tensor_split`, whose indices may be in a tensor, if their values are
    known: views.
    """
    ends = next(
        value for value in (indices_or_sections, indices, sections) if value is not None
    )
    if isinstance(ends, torch.Tensor):
        ends = ends.tolist()
    # torch's errors, and where the parts begin.
    parts = view_steps.on_twins(torch.tensor_split, aliasing.twin(input), ends, dim)
    axis = dim % input.ndim
    limits = (
        ends
        if isinstance(ends, (list, tuple))
        else np.cumsum([part.shape[axis] for part in parts[:-1]])
    )
    starts = [None, *map(int, limits), None]
    before = (slice(None),) * axis
    return tuple(
        input[(*before, slice(start, end))] for start, end in itertools.pairwise(starts)
    )


def type_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`tensor.type_as(other)`: a new tensor of other's dtype, where other is, or this
    one if nothing differs.
    """
    if not is_ported(other):
        return tensor.to(other.device, other.dtype)
    if tensor.dtype == other.dtype:
        return tensor
    return tensor.to(other.dtype)


def flatten(
    tensor: torch.Tensor, start_dim: int = 0, end_dim: int = -1
) -> torch.Tensor:
    """`tensor.flatten(start_dim, end_dim)`, both counted from either end."""
    shape = tensor.shape
    if not shape:
        return tensor.reshape(1)
    for dim in (start_dim, end_dim):
        if not -len(shape) <= dim < len(shape):
            raise IndexError(
                f"dimension {dim} is out of range for a tensor of {len(shape)} dimensions"
            )
    start, end = start_dim % len(shape), end_dim % len(shape)
    if start > end:
        raise RuntimeError(
            "flatten() has invalid args: start_dim cannot come after end_dim"
        )
    if start == end:
        return tensor
    return tensor.reshape(
        *shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]
    )


def flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Traced. The elements in the opposite order along some dimensions; a scalar has
    one, as torch counts here.
    """
    return jnp.flip(jnp.atleast_1d(x), tuple(dims)).reshape(x.shape)


def squeeze_(tensor: Any, *dim: Any) -> Any:
    """`tensor.squeeze_()`, of all dimensions of size 1 or of those that are named."""
    shape = view_steps.on_twins(torch.squeeze, aliasing.twin(tensor), *dim).shape
    return assign(tensor, array_of(tensor).reshape(shape))


def unsqueeze_(tensor: Any, dim: int) -> Any:
    """`tensor.unsqueeze_(dim)`."""
    return assign(tensor, jnp.expand_dims(array_of(tensor), dim))


def transpose_(tensor: Any, dim0: int, dim1: int) -> Any:
    """`tensor.transpose_(dim0, dim1)`."""
    if tensor.ndim == 0:  # of which torch says that it has one dimension
        return tensor
    return assign(tensor, jnp.swapaxes(array_of(tensor), dim0, dim1))


def t_(tensor: Any) -> Any:
    """`tensor.t_()`, of at most two dimensions."""
    if tensor.ndim > 2:
        raise RuntimeError(
            f"t_() expects a tensor with <= 2 dimensions, but self is {tensor.ndim}D"
        )
    return assign(tensor, array_of(tensor).T)


def resize_(tensor: Any, *size: Any, memory_format: Any = None) -> Any:
    """`tensor.resize_(size)`: the elements in their order; those that torch would leave
    undefined repeat them.
    """
    del memory_format
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    if getattr(tensor, "_alias", None) is not None:
        raise PortError(
            "a view, or a tensor that has views, cannot be resized",
            fix="clone it first",
        )
    return assign(tensor, jnp.resize(array_of(tensor), tuple(shape)))


def resize_as_(tensor: Any, other: torch.Tensor, *, memory_format: Any = None) -> Any:
    """`tensor.resize_as_(other)`."""
    return resize_(tensor, other.shape, memory_format=memory_format)


def as_strided(
    x: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    """Traced. Elements of the flattened array by strides; a copy."""
    return jnp.ravel(x)[_strided_places(x, size, stride, storage_offset)]


def as_strided_scatter(
    x: jax.Array,
    source: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    """Traced. A copy in which the elements that strides select are the source's."""
    places = _strided_places(x, size, stride, storage_offset)
    return jnp.ravel(x).at[places].set(source.astype(x.dtype)).reshape(x.shape)


def _strided_places(
    x: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> np.ndarray:
    places = np.full(tuple(size), storage_offset or 0)
    for axis, step in enumerate(stride):
        places += (np.arange(size[axis]) * step).reshape(
            -1, *(1,) * (len(size) - axis - 1)
        )
    # An array on the device has no storage beyond its elements.
    if places.size and places.max() >= x.size:
        raise PortError(
            f"as_strided reads beyond the tensor's {x.size} elements",
            where=f"size {list(size)}, stride {list(stride)}, storage offset {storage_offset}",
            fix="apply it to the tensor that owns the memory, not to a slice of it",
        )
    return places


def pad(
    tensor: Any, pad: Sequence[int], *mode_and_value: Any, **options: Any
) -> torch.Tensor:
    """`F.pad(tensor, pad, mode, value)`: by torchax, but for numbers, which torch pads
    by nothing.
    """
    from torchax.ops.ops_registry import all_torch_functions

    if len(pad) > 2 * tensor.ndim:
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and input of dimension {tensor.ndim}"
        )
    if tensor.ndim == 0:
        return tensor.clone()
    return on_arrays(all_torch_functions[torch.nn.functional.pad].func)(
        tensor, pad, *mode_and_value, **options
    )


def split(x: jax.Array, size: int, dim: int = 0) -> list[jax.Array]:
    """Traced. Pieces of a size along a dimension, the last one as long as the rest; of
    an empty one, a single piece.
    """
    length = x.shape[dim]
    starts = range(0, length, size) if length else [0]
    return [
        jax.lax.slice_in_dim(x, start, min(start + size, length), axis=dim)
        for start in starts
    ]


def pixel_unshuffle(image: jax.Array, factor: int) -> jax.Array:
    """Traced. An image [..., channels, height, width] with each block of pixels in the
    channels of one.
    """
    if not image.size:
        return image  # torch on any device leaves it as it is
    *leading, channels, height, width = image.shape
    blocks = image.reshape(
        *leading, channels, height // factor, factor, width // factor, factor
    )
    pixels = jnp.moveaxis(blocks, (-3, -1), (-4, -3))
    return pixels.reshape(
        *leading, channels * factor**2, height // factor, width // factor
    )


_aten = torch.ops.aten
_REPEATS = (torch.repeat_interleave, torch.Tensor.repeat_interleave, _aten.repeat_interleave.self_int,
            _aten.repeat_interleave.self_Tensor, _aten.repeat_interleave.Tensor)  # fmt: skip


def meshgrid(*tensors: Any, indexing: str | None = None) -> Any:
    """Traced. Grids of coordinates. Vectors whose values decide shapes are on the host,
    where integers have 64 bits.
    """
    vectors = tensors[0] if isinstance(tensors[0], list | tuple) else tensors
    if any(map(is_ported, vectors)):
        vectors = list(map(_on_device, vectors))
    options = {} if indexing is None else {"indexing": indexing}
    return torch_internals.meshgrid(vectors, **options)


def _on_device(vector: torch.Tensor) -> torch.Tensor:
    # Wide numbers would be float32 there, which torch refuses to mix with them.
    if is_ported(vector) or vector.dtype in (torch.float64, torch.complex128):
        return vector
    return to_device(vector)


LOWERINGS = (
    *(
        Lowering(target, repeat_interleave, "takes no output_size")
        for target in _REPEATS
    ),
    Lowering(torch.tensor_split, tensor_split, "fails on indices in tensors"),
    Lowering(torch.Tensor.tensor_split, tensor_split, "fails on indices in tensors"),
    Lowering(_aten.view.dtype, view_dtype, "takes the dtype for a shape"),
    Lowering(
        torch.nn.functional.pad,
        pad,
        "fails on numbers, and on more padding than dimensions",
    ),
    Lowering(
        torch.take_along_dim,
        on_arrays(take_along_dim),
        "refuses the 32-bit indices that jax has",
    ),
    Lowering(
        torch.Tensor.take_along_dim,
        on_arrays(take_along_dim),
        "refuses the 32-bit indices that jax has",
    ),
    Lowering(
        torch.meshgrid,
        meshgrid,
        "refuses integers of the host beside those of the device",
    ),
    Lowering(torch.Tensor.resize_, resize_, "leaves the tensor as it was"),
    Lowering(_aten.resize_.default, resize_, "has no lowering"),
    Lowering(_aten.resize_as_.default, resize_as_, "leaves the tensor as it was"),
    Lowering(
        _aten.as_strided_copy.default,
        on_arrays(as_strided),
        "repeats the last element beyond the end",
    ),
    Lowering(
        _aten.as_strided_scatter.default,
        on_arrays(as_strided_scatter),
        "writes nothing beyond the end",
    ),
    Lowering(_aten.flip.default, on_arrays(flip), "fails on scalars"),
    *(
        Lowering(target, on_arrays(split), "has no piece of an empty dimension")
        for target in (_aten.split.Tensor, _aten.split_copy.Tensor)
    ),
    Lowering(
        _aten.pixel_unshuffle.default,
        on_arrays(pixel_unshuffle),
        "has channels for an image without elements",
    ),
    *(
        Lowering(
            overload,
            squeeze_,
            "leaves the sizes that torch's own functions ask for as they were",
        )
        for overload in (
            _aten.squeeze_.default,
            _aten.squeeze_.dim,
            _aten.squeeze_.dims,
        )
    ),
    Lowering(_aten.unsqueeze_.default, unsqueeze_, "copies into the old shape"),
    Lowering(_aten.transpose_.default, transpose_, "copies into the old shape"),
    Lowering(_aten.t_.default, t_, "has no lowering"),
)
METHODS = (
    Method("Tensor", "type_as", type_as, "changes the tensor itself"),
    Method(
        "Tensor",
        "flatten",
        flatten,
        "miscounts a last dimension given as a positive number, and 0 dimensions",
    ),
)
