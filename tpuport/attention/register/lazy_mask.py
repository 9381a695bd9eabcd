"""A mask as model code passes it around: structure for attention, and a tensor as soon
as a model computes with it.

Shapes: B batch, H query heads, Q query length, T key/value length.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import EllipsisType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.attention.mask import Mask, broadcasts_to
from tpuport.internals.torchax_internals import ArrayOnDemand


class LazyMask(ArrayOnDemand):
    """A torchax tensor [B, 1 or H, Q, T] of a mask that knows its structure and has no
    elements until they are needed.

    It is boolean, or has the numbers that a model adds to its scores: 0, and the lowest
    of the dtype for hidden keys.

    Shape, dtype and device are read without making them, and slices of step one,
    `expand`, `to`, `bool`, `clone`, `contiguous` and `detach` give another LazyMask.
    Anything else that torch, torchax or jax does with it (an operator, an in-place
    change, `tpuport.compat.as_jax`, the boundary of a jitted or checkpointed function)
    goes through its array, which `Mask.to_dense` makes at that moment; the result is an
    ordinary tensor. It is a torch.Tensor for `torch.is_tensor` and `isinstance`.

    Attributes:
        structure: what attention reads; None after an in-place change, which leaves an
            ordinary tensor.
        reason: why `structure` is a dense mask, empty if it is not.
        number_dtype: of the numbers that are added to scores; None for a boolean mask.
        left_out_if: computes the boolean whether transformers leaves the mask out,
            since attention that is causal by itself does not need it; None for a mask
            that it never leaves out.
    """

    structure: Mask | None
    reason: str
    number_dtype: torch.dtype | None
    left_out_if: Callable[[], jax.Array] | None
    _size: tuple[int, ...]
    _dense: jax.Array | None

    def __init__(self, abstract: jax.ShapeDtypeStruct, environment: Any) -> None:
        """As torchax constructs its tensors; `lazy_mask` sets the rest."""
        self._env, self._size, self._dense = environment, tuple(abstract.shape), None

    def compute_array(self) -> jax.Array:
        """Traced. The elements."""
        if self._dense is not None:
            return self._dense
        # An in-place change, which drops the structure, leaves an array.
        assert self.structure is not None
        dense = self.structure.to_dense(*self._size[-2:])
        if dense is None:
            dense = jnp.ones(self._size, jnp.bool_)
        dense = jnp.broadcast_to(dense, self._size)
        if self.number_dtype is not None:
            dtype = compat.jax_dtype(self.number_dtype)
            dense = jnp.where(dense, jnp.zeros((), dtype), jnp.finfo(dtype).min)
        # A tracer belongs to its trace, which may be nested in another (a checkpointed
        # layer), so it is not kept.
        if not isinstance(dense, Tracer):
            self._dense = dense
        return dense

    def replace_array(self, array: jax.Array) -> None:
        """An in-place operation of torchax."""
        self._dense, self.structure, self._size = array, None, tuple(array.shape)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._size)

    @property
    def ndim(self) -> int:
        return len(self._size)

    @property
    def dtype(self) -> torch.dtype:
        if self.structure is not None:
            return self.number_dtype or torch.bool
        return compat.torch_dtype(self.compute_array().dtype)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def __repr__(self) -> str:
        return f"LazyMask(shape={self._size}, structure={self.structure})"

    def __getitem__(self, key: Any) -> torch.Tensor:
        parts = _plain_slices(key, self._size)
        if self.structure is None or parts is None:
            # An ordinary tensor, on which torchax then does the rest.
            return compat.wrap(self.compute_array())[key]
        size = [part.stop - part.start for part in parts]
        return lazy_mask(
            _slice_structure(self.structure, parts),
            size,
            self.reason,
            self.number_dtype,
        )

    def expand(self, *sizes: Any) -> torch.Tensor:
        # torch takes sizes one by one, or together as one argument.
        if len(sizes) == 1 and not isinstance(sizes[0], int):
            sizes = sizes[0]
        expanded = self._expanded_size(sizes)
        if self.structure is None or expanded is None:
            return compat.wrap(self.compute_array()).expand(*sizes)
        return lazy_mask(
            self.structure, expanded, self.reason, self.number_dtype, self.left_out_if
        )

    def _expanded_size(self, sizes: Any) -> tuple[int, ...] | None:
        """The size after `expand`, if that only repeats batch rows and heads."""
        if len(sizes) != self.ndim:
            return None
        # As torch has it, -1 keeps a size.
        expanded = tuple(np.where(np.equal(sizes, -1), self._size, sizes).tolist())
        if expanded[2:] != self._size[2:] or not broadcasts_to(self._size, expanded):
            return None
        return expanded

    def _copy(self, *_: Any, **__: Any) -> torch.Tensor:
        """Another tensor of the same elements: changing it in place leaves this one
        unchanged.
        """
        if self.structure is None:
            return compat.wrap(self.compute_array())
        return lazy_mask(
            self.structure, self._size, self.reason, self.number_dtype, self.left_out_if
        )

    clone = detach = __copy__ = __deepcopy__ = _copy

    def contiguous(self, *_: Any, **__: Any) -> Any:
        return self

    def bool(self, *_: Any, **__: Any) -> Any:
        if self.structure is None or self.number_dtype is not None:
            return compat.wrap(self.compute_array()).bool()
        return self


@functools.cache
def _tensor_class() -> Any:
    """LazyMask and torchax's tensor in one class: torchax computes only with instances
    of its own class.
    """
    torchax_tensor = type(compat.wrap(jnp.zeros((), jnp.bool_)))
    return type("LazyMask", (LazyMask, torchax_tensor), {})


def lazy_mask(
    structure: Mask,
    size: Any,
    reason: str = "",
    number_dtype: torch.dtype | None = None,
    left_out_if: Callable[[], jax.Array] | None = None,
) -> Any:
    """The tensor of `size` [B, 1 or H, Q, T] of a mask.

    Args:
        structure: without numbers to add to scores; its batch is B or 1.
        reason: why the structure is dense, if it is.
        number_dtype: None for a boolean mask; otherwise that of the numbers that stand
            for it.
        left_out_if: as the attribute.
    """
    abstract = jax.ShapeDtypeStruct(
        tuple(size), compat.jax_dtype(number_dtype or torch.bool)
    )
    mask = _tensor_class()(abstract, compat.environment())
    mask.structure, mask.reason, mask.number_dtype = structure, reason, number_dtype
    mask.left_out_if = left_out_if
    return mask


def _plain_slices(key: Any, size: tuple[int, ...]) -> list[slice] | None:
    """A subscript as one slice for each dimension, with bounds and step one; None if it
    is anything else.
    """
    if not isinstance(key, tuple):
        key = (key,)
    parts = list(key)
    ellipses = [
        index for index, part in enumerate(parts) if isinstance(part, EllipsisType)
    ]
    missing = len(size) - (len(parts) - len(ellipses))
    if len(ellipses) > 1 or missing < 0:
        return None
    # An ellipsis, or the end, means all of the dimensions that are not named.
    start = min(ellipses, default=len(parts))
    parts[start : start + len(ellipses)] = [slice(None)] * missing
    if not all(map(_is_plain, parts)):
        return None
    return list(map(_bounded_slice, parts, size))


def _is_plain(part: Any) -> bool:
    """Whether a subscript selects consecutive elements between known bounds."""
    match part:
        # A bound that is a tensor is not known when the program is traced.
        case slice(start=int() | None, stop=int() | None, step=1 | None):
            return True
    return False


def _bounded_slice(part: slice, size: int) -> slice:
    start, stop, _ = part.indices(size)
    return slice(start, max(start, stop))


def _slice_structure(mask: Mask, parts: list[slice]) -> Mask:
    """Traced. The structure of a slice."""
    batch, heads, queries, keys = parts
    return dataclasses.replace(
        mask,
        # Positions count from the first key of the slice.
        offset=mask.offset + queries.start - keys.start,
        keys_BT=_slice_part(mask.keys_BT, [batch], keys),
        queries_BQ=_slice_part(mask.queries_BQ, [batch], queries),
        query_segments_BQ=_slice_part(mask.query_segments_BQ, [batch], queries),
        key_segments_BT=_slice_part(mask.key_segments_BT, [batch], keys),
        dense=_slice_part(mask.dense, [batch, heads], queries, keys),
    )


def _slice_part(
    array: jax.Array | None, shared: list[slice], *lengths: slice
) -> jax.Array | None:
    """A part of the mask; of its first dimensions, `shared`, one of 1 stands for all
    rows or heads.
    """
    if array is None:
        return None
    rows = [
        part if size > 1 else slice(None)
        for part, size in zip(shared, array.shape, strict=False)
    ]
    return array[*rows, *lengths]
