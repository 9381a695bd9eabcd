"""Tensors that are still on disk: their shape is known, and any slice of them can be read.

They answer the few torch functions of which checkpoint conversions are made (stack, cat, chunk, split,
transpose), so that transformers' own conversion operations run on them unchanged and give the recipe of a
parameter instead of its values. Any other function raises `NotSliceable`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpuport.checkpoint.reading import Index, Reader, aligned_empty, assign, full_index


class NotSliceable(Exception):
    """An operation of which a slice of the result cannot be read from slices of the inputs."""


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor of `shape` and `dtype` (as stored) that is read on demand."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        """Read `self[index]` into `out`, cast to its dtype. `index` has one bounded slice a dimension."""
        raise NotImplementedError

    def read(self, reader: Reader, dtype: np.dtype) -> np.ndarray:
        """The whole tensor, cast to `dtype`."""
        out = aligned_empty(self.shape, dtype)
        self.read_into(reader, full_index(self.shape), out)
        return out

    @property
    def stored_bytes(self) -> int:
        """Bytes that the whole tensor takes in the files."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    # What the conversion operations ask of a tensor beside the functions below.
    def size(self, dim: int) -> int:
        return self.shape[dim]

    def contiguous(self) -> "LazyTensor":
        return self

    def squeeze(self, dim: int) -> "LazyTensor":
        return Squeezed.of(self, dim)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in _FUNCTIONS:
            raise NotSliceable(getattr(func, "__name__", str(func)))
        return _FUNCTIONS[func](*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class StoredTensor(LazyTensor):
    """A tensor in a file: row-major, `offset` bytes from the file's start."""

    name: str
    path: Path
    offset: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        reader.read_slice(self.path, self.offset, self.shape, self.dtype, index, out)


@dataclass(frozen=True, eq=False)
class Stacked(LazyTensor):
    """`parts` of one shape, along a new dimension `dim`."""

    parts: tuple[LazyTensor, ...]
    dim: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        wanted, inner = index[self.dim], (*index[: self.dim], *index[self.dim + 1 :])
        moved = np.moveaxis(out, self.dim, 0)
        for place, part in enumerate(self.parts[wanted]):
            part.read_into(reader, inner, moved[place, ...])


@dataclass(frozen=True, eq=False)
class Concatenated(LazyTensor):
    """`parts` one after another along `dim`."""

    parts: tuple[LazyTensor, ...]
    dim: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        wanted, start = index[self.dim], 0
        for part in self.parts:
            stop = start + part.shape[self.dim]
            low, high = max(start, wanted.start), min(stop, wanted.stop)
            if low < high:
                inside = _replaced(index, self.dim, slice(low - start, high - start))
                target = _replaced(
                    full_index(out.shape), self.dim, slice(low - wanted.start, high - wanted.start)
                )
                part.read_into(reader, inside, out[target])
            start = stop


@dataclass(frozen=True, eq=False)
class Narrowed(LazyTensor):
    """`base[start : start + shape[dim]]` along `dim`."""

    base: LazyTensor
    dim: int
    start: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        part = index[self.dim]
        moved = slice(part.start + self.start, part.stop + self.start)
        self.base.read_into(reader, _replaced(index, self.dim, moved), out)


@dataclass(frozen=True, eq=False)
class Transposed(LazyTensor):
    """`base` with its dimensions `first` and `second` exchanged."""

    base: LazyTensor
    first: int
    second: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        self.base.read_into(
            reader, _swapped(index, self.first, self.second), out.swapaxes(self.first, self.second)
        )


@dataclass(frozen=True, eq=False)
class Squeezed(LazyTensor):
    """`base` without its dimension `dim`, which is one long."""

    base: LazyTensor
    dim: int

    @classmethod
    def of(cls, base: LazyTensor, dim: int) -> LazyTensor:
        dim = dim % len(base.shape)
        if base.shape[dim] != 1:
            return base
        return cls((*base.shape[:dim], *base.shape[dim + 1 :]), base.dtype, base, dim)

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        inner = (*index[: self.dim], slice(0, 1), *index[self.dim :])
        self.base.read_into(reader, inner, np.expand_dims(out, self.dim))


@dataclass(frozen=True, eq=False)
class Converted(LazyTensor):
    """The result of an operation that is not sliceable: `compute` makes all of it on the host."""

    compute: Callable[[Reader], np.ndarray]
    inputs: tuple[LazyTensor, ...]

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        assign(out, self.compute(reader)[index], "a converted tensor")


def _replaced(index: Index, dim: int, part: slice) -> Index:
    return (*index[:dim], part, *index[dim + 1 :])


def _swapped(values: Sequence[Any], first: int, second: int) -> tuple:
    swapped = list(values)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _stack(tensors: Sequence[LazyTensor], dim: int = 0) -> LazyTensor:
    parts = tuple(tensors)
    shape = parts[0].shape
    if any(part.shape != shape or part.dtype != parts[0].dtype for part in parts):
        raise NotSliceable("stack of tensors that differ in shape or dtype")
    dim = dim % (len(shape) + 1)
    return Stacked((*shape[:dim], len(parts), *shape[dim:]), parts[0].dtype, parts, dim)


def _cat(tensors: Sequence[LazyTensor], dim: int = 0) -> LazyTensor:
    parts = tuple(tensors)
    if len(parts) == 1:
        return parts[0]
    dim = dim % len(parts[0].shape)
    outer = {(*part.shape[:dim], *part.shape[dim + 1 :], part.dtype) for part in parts}
    if len(outer) != 1:
        raise NotSliceable("cat of tensors that differ in dtype or in another dimension")
    shape = (*parts[0].shape[:dim], sum(part.shape[dim] for part in parts), *parts[0].shape[dim + 1 :])
    return Concatenated(shape, parts[0].dtype, parts, dim)


def _split(tensor: LazyTensor, sizes: int | Iterable[int], dim: int = 0) -> tuple[LazyTensor, ...]:
    dim = dim % len(tensor.shape)
    total = tensor.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    pieces, start = [], 0
    for size in sizes:
        shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
        pieces.append(Narrowed(shape, tensor.dtype, tensor, dim, start))
        start += size
    if start != total:
        raise NotSliceable(f"split of a dimension of {total} into {start}")
    return tuple(pieces)


def _chunk(tensor: LazyTensor, chunks: int, dim: int = 0) -> tuple[LazyTensor, ...]:
    return _split(tensor, -(-tensor.shape[dim] // chunks), dim)


def _transpose(tensor: LazyTensor, dim0: int, dim1: int) -> LazyTensor:
    first, second = dim0 % len(tensor.shape), dim1 % len(tensor.shape)
    return Transposed(_swapped(tensor.shape, first, second), tensor.dtype, tensor, first, second)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stack,
    torch.cat: _cat,
    torch.split: _split,
    torch.chunk: _chunk,
    torch.transpose: _transpose,
}
