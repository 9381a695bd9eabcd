"""A mask as model code passes it around: structure for attention, and a tensor as soon as a model computes with it.

Shapes: B batch, H query heads, Q query length, T key/value length.
"""

import dataclasses
import functools
from types import EllipsisType
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.attention.mask import Mask


class LazyMask:
    """A boolean torchax tensor [B, 1 or H, Q, T] that knows its structure and has no elements until one is asked for.

    Shape, dtype and device are read without making it, and slices of step one, `expand`, `to`, `bool`, `clone`,
    `contiguous` and `detach` give another one of these. Anything else that torch, torchax or jax does with it (an
    operator, an in-place change, `tpuport.compat.as_jax`, the boundary of a jitted or checkpointed function) goes
    through its array, which `Mask.to_dense` makes at that moment; the result is an ordinary tensor. It is a
    torch.Tensor for `torch.is_tensor` and `isinstance`.

    Attributes:
        structure: what attention reads; None after an in-place change, which leaves an ordinary tensor.
        reason: why `structure` is a dense mask, empty if it is not.
    """

    structure: Mask | None
    reason: str
    _size: tuple[int, ...]
    _dense: jax.Array | None
    _env: Any

    def __init__(self, stand_in: jax.ShapeDtypeStruct, environment: Any) -> None:
        """As torchax makes its tensors; `lazy_mask` sets the rest."""
        self._env, self._size, self._dense = environment, tuple(stand_in.shape), None

    @property
    def _elem(self) -> jax.Array:
        """Traced. The elements. Where torchax looks for a tensor's array."""
        if self._dense is not None:
            return self._dense
        dense = _dense(self.structure or Mask(), self._size)
        # A tracer belongs to the trace that asks, which may be one inside of another (a checkpointed layer).
        if not isinstance(dense, Tracer):
            self._dense = dense
        return dense

    @_elem.setter
    def _elem(self, array: jax.Array) -> None:
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
        return torch.bool if self.structure is not None else compat.torch_dtype(self._elem.dtype)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def __repr__(self) -> str:
        return f"LazyMask(shape={self._size}, structure={self.structure})"

    def __getitem__(self, key: Any) -> torch.Tensor:
        parts = None if self.structure is None else _slices(key, self._size)
        if self.structure is None or parts is None:
            return compat.wrap(self._elem)[key]
        size = [part.stop - part.start for part in parts]
        return lazy_mask(_cut(self.structure, parts), size, self.reason)

    def expand(self, *sizes: Any) -> torch.Tensor:
        wanted = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        whole = self._expanded(wanted)
        if self.structure is None or whole is None:
            return compat.wrap(self._elem).expand(*wanted)
        return lazy_mask(self.structure, whole, self.reason)

    def _expanded(self, wanted: Any) -> list[int] | None:
        """The size after `expand`, if that only repeats batch rows and heads."""
        if len(wanted) != self.ndim:
            return None
        whole = [old if new == -1 else new for new, old in zip(wanted, self._size, strict=True)]
        repeated = all(new == old or old == 1 for new, old in zip(whole[:2], self._size, strict=False))
        return whole if repeated and whole[2:] == list(self._size[2:]) else None

    def _same(self, *_: Any, **__: Any) -> torch.Tensor:
        """Another tensor of the same elements: changed in place, it leaves this one as it is."""
        if self.structure is None:
            return compat.wrap(self._elem)
        return lazy_mask(self.structure, self._size, self.reason)

    clone = detach = __copy__ = __deepcopy__ = _same

    def contiguous(self, *_: Any, **__: Any) -> Any:
        return self

    def bool(self, *_: Any, **__: Any) -> Any:
        return self if self.structure is not None else compat.wrap(self._elem).bool()


@functools.cache
def _tensor_class() -> Any:
    """LazyMask and torchax's tensor in one: torchax computes with instances of its own class only."""
    base = type(compat.wrap(jnp.zeros((), jnp.bool_)))
    return type("LazyMask", (LazyMask, base), {})


def lazy_mask(structure: Mask, size: Any, reason: str = "") -> Any:
    """The tensor of `size` [B, 1 or H, Q, T] that stands for a boolean mask.

    Args:
        structure: anything without numbers to add to scores; its batch is B or 1.
        reason: why `structure.dense` is given.
    """
    mask = _tensor_class()(jax.ShapeDtypeStruct(tuple(size), jnp.bool_), compat.environment())
    mask.structure, mask.reason = structure, reason
    return mask


def _dense(structure: Mask, size: tuple[int, ...]) -> jax.Array:
    """Traced. All the elements of a mask, of which [Q, T] are the last two dimensions."""
    dense = structure.to_dense(*size[-2:])
    return jnp.ones(size, jnp.bool_) if dense is None else jnp.broadcast_to(dense, size)


def _slices(key: Any, size: tuple[int, ...]) -> list[slice] | None:
    """A subscript as one slice for each dimension, from zero and of step one; None if it is anything else."""
    parts = list(key) if isinstance(key, tuple) else [key]
    places = [n for n, part in enumerate(parts) if isinstance(part, EllipsisType)]
    if len(places) > 1 or len(parts) - len(places) > len(size):
        return None
    place = places[0] if places else len(parts)
    parts[place : place + len(places)] = [slice(None)] * (len(size) - len(parts) + len(places))
    if not all(map(_is_plain, parts)):
        return None
    bounds = [part.indices(whole) for part, whole in zip(parts, size, strict=True)]
    return [slice(start, max(start, stop)) for start, stop, _ in bounds]


def _is_plain(part: Any) -> bool:
    """Whether a subscript takes consecutive elements between numbers known now."""
    if not isinstance(part, slice) or part.step not in (None, 1):
        return False
    return all(bound is None or isinstance(bound, int) for bound in (part.start, part.stop))


def _cut(mask: Mask, parts: list[slice]) -> Mask:
    """Traced. The structure of a slice."""
    batch, heads, queries, keys = parts
    dense = mask.dense
    if dense is not None:
        dense = dense[_kept(dense.shape[0], batch), _kept(dense.shape[1], heads), queries, keys]
    return dataclasses.replace(
        mask,
        offset=mask.offset + queries.start - keys.start,
        keys_BT=_row(mask.keys_BT, batch, keys),
        queries_BQ=_row(mask.queries_BQ, batch, queries),
        query_segments_BQ=_row(mask.query_segments_BQ, batch, queries),
        key_segments_BT=_row(mask.key_segments_BT, batch, keys),
        dense=dense,
    )


def _row(array: jax.Array | None, batch: slice, columns: slice) -> jax.Array | None:
    return None if array is None else array[_kept(array.shape[0], batch), columns]


def _kept(rows: int, part: slice) -> slice:
    """A dimension of one stands for all rows, whichever are taken."""
    return slice(None) if rows == 1 else part
