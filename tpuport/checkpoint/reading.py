"""Read slices of tensors out of files with `pread`, casting on the way.

`pread` and not a memory map: mapped pages count as resident memory until the kernel drops them, and a file
that shrinks under a map kills the process instead of raising.
"""

import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tpuport.errors import PortError

Index = tuple[slice, ...]

# What is staged at once when bytes cannot go straight to their place (a cast, a narrow column slice).
BLOCK_BYTES = 8 << 20
# Below a page, reading only the wanted bytes of a row saves the disk nothing and costs a system call.
PAGE_BYTES = 4096
# One system call reads at most this, so that the progress of a large tensor is seen.
_CALL_BYTES = 64 << 20
# XLA's CPU client takes a host buffer without copying it when it is aligned to this.
_ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array of `shape`, aligned so that a CPU device can adopt it instead of copying it."""
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def full_index(shape: tuple[int, ...]) -> Index:
    """The index that takes all of an array of `shape`."""
    return tuple(slice(0, size) for size in shape)


def bounded(index: Index, shape: tuple[int, ...]) -> Index:
    """`index` with its open ends filled in from `shape`; `()` is all of it."""
    parts = index or full_index(shape)
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(parts, shape, strict=True))


def assign(out: np.ndarray, values: np.ndarray, name: str) -> None:
    """Cast `values` into `out`; an integer that does not fit raises PortError naming the tensor."""
    if out.dtype != values.dtype and out.dtype.kind in "iu" and values.dtype.kind in "iu" and values.size:
        limits = np.iinfo(out.dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise PortError(f"a value does not fit {out.dtype}, the integer type used on device", where=name)
    out[...] = values


class Reader:
    """Open files by path and read slices of the tensors in them.

    Args:
        progress: called after each read with the number of wanted bytes, as they are stored.
    """

    def __init__(self, progress: Callable[[int], object] = lambda count: None) -> None:
        self.progress = progress
        self._files: dict[Path, int] = {}
        self._remembered: tuple[object, Any] = (None, None)

    def remember(self, key: object, compute: Callable[[], Any]) -> Any:
        """`compute()`, or what it gave when the last call had the same key; one result is kept, the last."""
        if self._remembered[0] is not key:
            self._remembered = (None, None)  # freed before the next one is made
            self._remembered = (key, compute())
        return self._remembered[1]

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _fill(self, path: Path, offset: int, out: np.ndarray, progress: Callable[[int], object]) -> None:
        """Fill the contiguous array `out` from the bytes of `path` at `offset`."""
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        done = 0
        while done < len(view):
            count = os.preadv(self._files[path], [view[done : done + _CALL_BYTES]], offset + done)
            if count == 0:
                raise PortError("the file ended while it was read", where=f"{path}, byte {offset + done}")
            progress(count)
            done += count

    def read_slice(
        self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype, index: Index, out: np.ndarray
    ) -> None:
        """Read `array[index]` of the row-major array stored at `offset` into `out`, cast to its dtype."""
        if not shape:
            self._read_rows(path, offset, (1,), dtype, out.reshape(1))
            return
        first, rest = index[0], index[1:]
        row_shape, rows = shape[1:], first.stop - first.start
        row_bytes = prod(row_shape) * dtype.itemsize
        start = offset + first.start * row_bytes
        if out.size == 0:
            return
        if rest == full_index(row_shape):
            self._read_rows(path, start, (rows, *row_shape), dtype, out)
        elif _run_bytes(rest, row_shape, dtype) < PAGE_BYTES and row_bytes <= BLOCK_BYTES:
            step = max(1, BLOCK_BYTES // row_bytes)
            for row in range(0, rows, step):
                block = np.empty((min(step, rows - row), *row_shape), dtype)
                self._fill(path, start + row * row_bytes, block, lambda count: None)
                wanted = block[(slice(None), *rest)]
                assign(out[row : row + step], wanted, str(path))
                self.progress(wanted.nbytes)
        else:
            for row in range(rows):
                self.read_slice(path, start + row * row_bytes, row_shape, dtype, rest, out[row, ...])

    def _read_rows(
        self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype, out: np.ndarray
    ) -> None:
        """Read contiguous rows: straight into `out` where it has the same bytes, else through a block."""
        if out.dtype == dtype and out.flags.c_contiguous:
            self._fill(path, offset, out, self.progress)
            return
        row_bytes = prod(shape[1:]) * dtype.itemsize
        step = max(1, BLOCK_BYTES // row_bytes)
        for row in range(0, shape[0], step):
            block = np.empty((min(step, shape[0] - row), *shape[1:]), dtype)
            self._fill(path, offset + row * row_bytes, block, self.progress)
            assign(out[row : row + step], block, str(path))


def _run_bytes(index: Index, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The length in bytes of each contiguous run that `index` takes of an array of `shape`."""
    run = dtype.itemsize
    for part, size in zip(reversed(index), reversed(shape), strict=True):
        run *= part.stop - part.start
        if part.stop - part.start != size:
            break
    return run
