"""Tensors that are still on disk: their shape is known, and any slice of them can be
read.

They answer the few torch functions of which checkpoint conversions consist (stack, cat,
chunk, split, transpose), so that transformers' own conversion operations run on them
unchanged and give the recipe of a parameter instead of its values. Any other function
raises `NotSliceable`.

Slices are read with `pread` and not through a memory map: mapped pages count as
resident memory until the kernel drops them, and a file that shrinks under a map kills
the process instead of raising.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpuport.errors import PortError

Index = tuple[slice, ...]

# How much is staged at once when bytes cannot go straight to their destination (a cast,
# a narrow column slice).
BLOCK_BYTES = 8 << 20
# Below a page, reading only the needed bytes of a row saves the disk nothing and costs
# a system call.
PAGE_BYTES = 4096
# A single system call reads at most this, so that a large tensor shows progress.
_CALL_BYTES = 64 << 20
# XLA's CPU client takes a host buffer without copying it when it is aligned to this.
_ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array of `shape`, aligned so that a CPU device can adopt it
    instead of copying it.
    """
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def full_index(shape: tuple[int, ...]) -> Index:
    """The index that takes all of an array of `shape`."""
    return tuple(slice(0, size) for size in shape)


def fill_bounds(index: Index | None, shape: tuple[int, ...]) -> Index:
    """`index` with its open ends filled in from `shape`; None and `()` take
    everything.
    """
    parts = index or full_index(shape)
    return tuple(
        slice(*part.indices(size)[:2]) for part, size in zip(parts, shape, strict=True)
    )


def index_shape(index: Index) -> tuple[int, ...]:
    """The shape of what a bounded index takes."""
    return tuple(part.stop - part.start for part in index)


def cast_into(out: np.ndarray, values: np.ndarray, name: str) -> None:
    """Cast `values` into `out`; PortError, with `name` of the tensor or file, if an
    integer does not fit.
    """
    kinds = {out.dtype.kind, values.dtype.kind}
    if kinds <= {"i", "u"} and out.dtype != values.dtype and values.size:
        limits = np.iinfo(out.dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise PortError(
                f"a value does not fit {out.dtype}, the integer type used on device",
                where=name,
            )
    out[...] = values


class Reader:
    """Open files by path and read slices of the tensors in them.

    Args:
        progress: called after each read with the number of useful bytes, as they are
            stored.
    """

    def __init__(self, progress: Callable[[int], object] = lambda count: None) -> None:
        self.progress = progress
        self._files: dict[Path, int] = {}
        self._last_key: object = None
        self._last_result: Any = None

    def remember(self, key: object, compute: Callable[[], Any]) -> Any:
        """`compute()`, or its earlier result if the last call had the same key; only
        the last result is cached.
        """
        if self._last_key is not key:
            # Freed before the next result is computed: each is as large as a layer's
            # experts.
            self._last_result = None
            self._last_result = compute()
            self._last_key = key
        return self._last_result

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _fill(
        self,
        path: Path,
        offset: int,
        out: np.ndarray,
        progress: Callable[[int], object],
    ) -> None:
        """Fill the contiguous array `out` from the bytes of `path` at `offset`."""
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        # As bytes, because NumPy's bfloat16 has no buffer of its own.
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        done = 0
        while done < len(view):
            count = os.preadv(
                self._files[path], [view[done : done + _CALL_BYTES]], offset + done
            )
            if count == 0:
                raise PortError(
                    "the file ended while it was read",
                    where=f"{path}, byte {offset + done}",
                )
            progress(count)
            done += count

    def read_slice(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        index: Index,
        out: np.ndarray,
    ) -> None:
        """Read `array[index]` of the row-major array stored at `offset` into `out`,
        cast to its dtype.
        """
        # A scalar is read as a row of one.
        if not shape:
            self._read_rows(path, offset, (1,), dtype, out.reshape(1))
            return
        if out.size == 0:
            return
        row_index, inner_index = index[0], index[1:]
        row_shape, rows = shape[1:], row_index.stop - row_index.start
        row_bytes = prod(row_shape) * dtype.itemsize
        start = offset + row_index.start * row_bytes
        if inner_index == full_index(row_shape):
            self._read_rows(path, start, (rows, *row_shape), dtype, out)
        elif (
            _run_bytes(inner_index, row_shape, dtype) < PAGE_BYTES
            and row_bytes <= BLOCK_BYTES
        ):
            # Whole rows are read, and what the index takes of them is copied out.
            step = max(1, BLOCK_BYTES // row_bytes)
            for row in range(0, rows, step):
                block = np.empty((min(step, rows - row), *row_shape), dtype)
                self._fill(path, start + row * row_bytes, block, lambda count: None)
                useful = block[(slice(None), *inner_index)]
                cast_into(out[row : row + step], useful, str(path))
                self.progress(useful.nbytes)
        else:
            # The needed part of a row is worth a system call of its own.
            for row in range(rows):
                row_start = start + row * row_bytes
                self.read_slice(
                    path, row_start, row_shape, dtype, inner_index, out[row, ...]
                )

    def _read_rows(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        out: np.ndarray,
    ) -> None:
        """Read contiguous rows: straight into `out` if it has the same layout in
        memory, else through a block.
        """
        if out.dtype == dtype and out.flags.c_contiguous:
            self._fill(path, offset, out, self.progress)
            return
        row_bytes = prod(shape[1:]) * dtype.itemsize
        step = max(1, BLOCK_BYTES // row_bytes)
        # Through one block after another, so that a cast never needs the whole tensor
        # twice.
        for row in range(0, shape[0], step):
            block = np.empty((min(step, shape[0] - row), *shape[1:]), dtype)
            self._fill(path, offset + row * row_bytes, block, self.progress)
            cast_into(out[row : row + step], block, str(path))


def _run_bytes(index: Index, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The length in bytes of each contiguous run that `index` takes of an array of
    `shape`.
    """
    run = dtype.itemsize
    for length, size in zip(reversed(index_shape(index)), reversed(shape), strict=True):
        run *= length
        # The first dimension that is not taken whole ends the run.
        if length != size:
            break
    return run


class NotSliceable(Exception):
    """An operation of which a slice of the result cannot be read from slices of the
    inputs.
    """


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor of `shape` and `dtype` (as stored) that is read on demand."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        """Read `self[index]` into `out`, cast to its dtype. `index` has a bounded slice
        for each dimension.
        """
        raise NotImplementedError

    def read(self, reader: Reader, index: Index, dtype: np.dtype) -> np.ndarray:
        """`self[index]`, cast to `dtype`."""
        out = aligned_empty(index_shape(index), dtype)
        self.read_into(reader, index, out)
        return out

    @property
    def stored_bytes(self) -> int:
        """Bytes that the whole tensor takes in the files."""
        return prod(self.shape) * self.dtype.itemsize

    # What the conversion operations call on a tensor besides the functions below.
    def size(self, dim: int) -> int:
        return self.shape[dim]

    def contiguous(self) -> "LazyTensor":
        return self

    def squeeze(self, dim: int) -> "LazyTensor":
        dim = dim % len(self.shape)
        if self.shape[dim] != 1:
            return self
        return Squeezed(
            (*self.shape[:dim], *self.shape[dim + 1 :]), self.dtype, self, dim
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        # The caller then converts real tensors on the host.
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
    """`parts` of equal shapes, along a new dimension `dim`."""

    parts: tuple[LazyTensor, ...]
    dim: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        inner_index = (*index[: self.dim], *index[self.dim + 1 :])
        outputs = np.moveaxis(out, self.dim, 0)
        for position, part in enumerate(self.parts[index[self.dim]]):
            part.read_into(reader, inner_index, outputs[position, ...])


@dataclass(frozen=True, eq=False)
class Concatenated(LazyTensor):
    """`parts` one after another along `dim`."""

    parts: tuple[LazyTensor, ...]
    dim: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        requested = index[self.dim]
        everything = full_index(out.shape)
        start = 0
        for part in self.parts:
            stop = start + part.shape[self.dim]
            # What of the request lies in this part.
            low, high = max(start, requested.start), min(stop, requested.stop)
            if low < high:
                source = _replace(index, self.dim, slice(low - start, high - start))
                target_slice = slice(low - requested.start, high - requested.start)
                target = _replace(everything, self.dim, target_slice)
                part.read_into(reader, source, out[target])
            start = stop


@dataclass(frozen=True, eq=False)
class Narrowed(LazyTensor):
    """`base[start : start + shape[dim]]` along `dim`."""

    base: LazyTensor
    dim: int
    start: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        part = index[self.dim]
        shifted = slice(part.start + self.start, part.stop + self.start)
        self.base.read_into(reader, _replace(index, self.dim, shifted), out)


@dataclass(frozen=True, eq=False)
class Transposed(LazyTensor):
    """`base` with its dimensions `first` and `second` exchanged."""

    base: LazyTensor
    first: int
    second: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        base_index = _swap(index, self.first, self.second)
        self.base.read_into(reader, base_index, out.swapaxes(self.first, self.second))


@dataclass(frozen=True, eq=False)
class Squeezed(LazyTensor):
    """`base` without its dimension `dim`, whose size is 1."""

    base: LazyTensor
    dim: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        base_index = (*index[: self.dim], slice(0, 1), *index[self.dim :])
        self.base.read_into(reader, base_index, np.expand_dims(out, self.dim))


@dataclass(frozen=True, eq=False)
class Converted(LazyTensor):
    """The result of an operation that is not sliceable: `compute` makes all of it on
    the host.
    """

    compute: Callable[[Reader], np.ndarray]

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        cast_into(out, self.compute(reader)[index], "a converted tensor")


def _replace(index: Index, dim: int, part: slice) -> Index:
    return (*index[:dim], part, *index[dim + 1 :])


def _swap(values: Sequence[Any], first: int, second: int) -> tuple:
    swapped = list(values)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


# The torch functions that conversions call, with torch's parameters.


def _stack(tensors: Sequence[LazyTensor], dim: int = 0) -> LazyTensor:
    parts = tuple(tensors)
    shape, dtype = parts[0].shape, parts[0].dtype
    if any((part.shape, part.dtype) != (shape, dtype) for part in parts):
        raise NotSliceable("stack of tensors that differ in shape or dtype")
    dim = dim % (len(shape) + 1)
    return Stacked((*shape[:dim], len(parts), *shape[dim:]), dtype, parts, dim)


def _cat(tensors: Sequence[LazyTensor], dim: int = 0) -> LazyTensor:
    parts = tuple(tensors)
    if len(parts) == 1:
        return parts[0]
    shape, dtype = parts[0].shape, parts[0].dtype
    dim = dim % len(shape)
    before, after = shape[:dim], shape[dim + 1 :]
    for part in parts:
        if (part.shape[:dim], part.shape[dim + 1 :], part.dtype) != (
            before,
            after,
            dtype,
        ):
            raise NotSliceable(
                "cat of tensors that differ in dtype or in another dimension"
            )
    length = sum(part.shape[dim] for part in parts)
    return Concatenated((*before, length, *after), dtype, parts, dim)


def _split(
    tensor: LazyTensor, sizes: int | Iterable[int], dim: int = 0
) -> tuple[LazyTensor, ...]:
    dim = dim % len(tensor.shape)
    total = tensor.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    pieces = []
    start = 0
    for size in sizes:
        shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
        pieces.append(Narrowed(shape, tensor.dtype, tensor, dim, start))
        start += size
    if start != total:
        raise NotSliceable(f"split of a dimension of {total} into {start}")
    return tuple(pieces)


def _chunk(tensor: LazyTensor, chunks: int, dim: int = 0) -> tuple[LazyTensor, ...]:
    return _split(tensor, -(-tensor.shape[dim] // chunks), dim)


def transpose(tensor: LazyTensor, dim0: int, dim1: int) -> LazyTensor:
    """`tensor` with two of its dimensions exchanged, as `torch.transpose`."""
    first, second = dim0 % len(tensor.shape), dim1 % len(tensor.shape)
    return Transposed(
        _swap(tensor.shape, first, second), tensor.dtype, tensor, first, second
    )


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stack,
    torch.cat: _cat,
    torch.split: _split,
    torch.chunk: _chunk,
    torch.transpose: transpose,
}
