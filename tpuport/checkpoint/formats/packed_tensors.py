"""Several small numbers in each stored integer, as tensors to be read."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.checkpoint.formats.weight_tensors import BadWeightError
from tpuport.checkpoint.lazy_tensors import (
    Converted,
    Index,
    LazyTensor,
    Reader,
    full_index,
    index_shape,
)

# Each takes several bytes while it is unpacked.
_NUMBERS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class _Packed(LazyTensor):
    """Numbers that are unpacked some at a time."""

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        for part in _parts(index):
            target = tuple(
                slice(some.start - whole.start, some.stop - whole.start)
                for some, whole in zip(part, index, strict=True)
            )
            self._unpack_into(reader, part, out[target])

    def _unpack_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        """`read_into` for few numbers."""
        raise NotImplementedError


def _parts(index: Index) -> Iterator[Index]:
    """The parts of `index`, of few numbers each, that follow one another in a row-major
    file.
    """
    if not index:
        yield index
        return
    first, *others = index
    inner = prod(index_shape(tuple(others)))
    if inner > _NUMBERS_AT_ONCE:
        for entry in range(first.start, first.stop):
            for part in _parts(tuple(others)):
                yield (slice(entry, entry + 1), *part)
        return
    step = _NUMBERS_AT_ONCE // max(1, inner)
    for start in range(first.start, first.stop, step):
        yield (slice(start, min(start + step, first.stop)), *others)


@dataclass(frozen=True, eq=False)
class Unpacked(_Packed):
    """The numbers in the integers of `base`, along `dim`.

    Attributes:
        shifts: the lowest bit of each number in its integer, in the order of the
            numbers.
        bits: of a number.
        offset: added to each; what is not negative after that is what `dtype` holds.
        is_signed: whether they are in two's complement.
    """

    base: LazyTensor
    dim: int
    bits: int
    shifts: tuple[int, ...]
    offset: int
    is_signed: bool = False

    def _unpack_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        dim, factor = self.dim, len(self.shifts)
        part = index[dim]
        first, last = part.start // factor, -(-part.stop // factor)
        words_index = (*index[:dim], slice(first, last), *index[dim + 1 :])
        words = self.base.read(reader, words_index, self.base.dtype)
        # Logical shifts: the highest number has the sign bit.
        words = words.view(np.dtype(f"u{words.dtype.itemsize}"))
        mask = words.dtype.type((1 << self.bits) - 1)
        # The numbers of an integer become a new axis behind its own.
        numbers = np.empty(
            (*words.shape[: dim + 1], factor, *words.shape[dim + 1 :]), np.int16
        )
        for position, shift in enumerate(self.shifts):
            numbers[(slice(None),) * (dim + 1) + (position,)] = (
                words >> words.dtype.type(shift)
            ) & mask
        if self.is_signed:
            sign = np.int16(1 << (self.bits - 1))
            numbers ^= sign
            numbers -= sign
        numbers += np.int16(self.offset)
        shape = (*words.shape[:dim], (last - first) * factor, *words.shape[dim + 1 :])
        start = part.start - first * factor
        needed = slice(start, start + part.stop - part.start)
        out[...] = numbers.reshape(shape)[(slice(None),) * dim + (needed,)].astype(
            out.dtype
        )


def unpack(
    base: LazyTensor,
    dim: int,
    bits: int,
    dtype: np.dtype,
    *,
    size: int | None = None,
    shifts: tuple[int, ...] | None = None,
    offset: int = 0,
    is_signed: bool = False,
) -> LazyTensor:
    """The numbers of `bits` bits in the integers of `base`, along `dim`, as `dtype`.

    Args:
        size: of the result along `dim`; None if the last integer is full.
        shifts: the lowest bit of each number; None for the lowest number first.
        offset: added to each number; is_signed: whether they are in two's complement.
    """
    if shifts is None:
        shifts = tuple(range(0, base.dtype.itemsize * 8 - bits + 1, bits))
    if size is None:
        size = base.shape[dim] * len(shifts)
    shape = (*base.shape[:dim], size, *base.shape[dim + 1 :])
    return Unpacked(shape, dtype, base, dim, bits, shifts, offset, is_signed)


@dataclass(frozen=True, eq=False)
class Reinterpreted(LazyTensor):
    """The bytes of `base` as numbers of another type of a byte each."""

    base: LazyTensor

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        if out.dtype == self.dtype:
            self.base.read_into(reader, index, out.view(self.base.dtype))
        else:
            out[...] = self.base.read(reader, index, self.base.dtype).view(self.dtype)


def reinterpret(base: LazyTensor, dtype: Any) -> LazyTensor:
    """The bytes of a tensor as numbers of another type of a byte each."""
    return Reinterpreted(base.shape, np.dtype(dtype), base)


@dataclass(frozen=True, eq=False)
class Reshaped(LazyTensor):
    """All of `base` in another shape. It is read whole for every slice: for small
    tensors, such as scales.
    """

    base: LazyTensor

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        everything = tuple(slice(0, size) for size in self.base.shape)
        out[...] = self.base.read(reader, everything, self.base.dtype).reshape(
            self.shape
        )[index]


def reshape(base: LazyTensor, *shape: int) -> LazyTensor:
    """A small tensor in another shape."""
    return Reshaped(shape, base.dtype, base)


@dataclass(frozen=True, eq=False)
class BitStream(_Packed):
    """Numbers of `bits` bits one after another in the integers of `base`, along `dim`,
    also across two integers.

    32 numbers fill `bits` integers of 32 bits. `offset` is as in `Unpacked`.
    """

    base: LazyTensor
    dim: int
    bits: int
    offset: int

    def _unpack_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        dim, part = self.dim, index[self.dim]
        first, last = part.start // 32, -(-part.stop // 32)
        stop = min(last * self.bits, self.base.shape[dim])
        words_index = (*index[:dim], slice(first * self.bits, stop), *index[dim + 1 :])
        words = np.moveaxis(
            self.base.read(reader, words_index, self.base.dtype), dim, -1
        )
        missing = (last - first) * self.bits - words.shape[-1]
        words = np.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, missing)])
        bits = np.unpackbits(
            np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little"
        )
        digits = bits.reshape(*bits.shape[:-1], -1, self.bits).astype(np.int16)
        numbers = digits @ (1 << np.arange(self.bits, dtype=np.int16)) + np.int16(
            self.offset
        )
        start = part.start - first * 32
        needed = numbers[..., start : start + part.stop - part.start]
        out[...] = np.moveaxis(needed, -1, dim).astype(out.dtype)


def unpack_words(
    base: LazyTensor, dim: int, bits: int, dtype: np.dtype, size: int, offset: int
) -> LazyTensor:
    """The numbers of `bits` bits in the 32-bit integers of `base`, along `dim`, lowest
    bits first; see `unpack`.

    Where `bits` does not divide 32, numbers go on in the next integer, or each integer
    has unused bits: its length tells.

    Raises:
        BadWeightError: the length along `dim` is that of neither, or of both, as of few
            numbers it may be.
    """
    words, factor = base.shape[dim], 32 // bits
    is_padded, is_stream = words == -(-size // factor), words == -(-size * bits // 32)
    if not (is_padded or is_stream):
        raise BadWeightError(
            f"{words} integers of 32 bits do not hold {size} numbers of {bits} bits"
        )
    if is_padded and is_stream and 32 % bits:
        raise BadWeightError(
            f"{words} integers of 32 bits hold {size} numbers of {bits} bits in two ways, and nothing tells which"
        )
    if is_padded:
        shifts = tuple(range(0, factor * bits, bits))
        return unpack(base, dim, bits, dtype, size=size, shifts=shifts, offset=offset)
    shape = (*base.shape[:dim], size, *base.shape[dim + 1 :])
    return BitStream(shape, dtype, base, dim, bits, offset)


@dataclass(frozen=True, eq=False)
class Permuted(LazyTensor):
    """`base` with the entries of its dimension `dim` in another order."""

    base: LazyTensor
    dim: int
    order: np.ndarray

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        entries = self.order[index[self.dim]]
        if not len(entries):
            return
        # All entries between the first and the last that are needed, as of the heads of
        # a device.
        first, last = int(entries.min()), int(entries.max()) + 1
        needed = (*index[: self.dim], slice(first, last), *index[self.dim + 1 :])
        values = self.base.read(reader, needed, self.base.dtype)
        out[...] = np.take(values, entries - first, axis=self.dim)


def permute(base: LazyTensor, dim: int, order: np.ndarray) -> LazyTensor:
    """`base` with the entry `order[i]` of its dimension `dim` at i."""
    return Permuted(base.shape, base.dtype, base, dim, order)


def in_memory(values: np.ndarray) -> LazyTensor:
    """An array as a tensor to be read."""
    return Converted(values.shape, values.dtype, lambda reader: values)


def integer_dtype(bits: int, *, signed: bool) -> np.dtype:
    """The smallest type of jax with these bits; BadWeightError for more than eight, or
    none.
    """
    if not 1 <= bits <= 8:
        raise BadWeightError(f"{bits} bits are not supported")
    name = f"{'int' if signed else 'uint'}{4 if bits <= 4 else 8}"
    return jnp.dtype(name)


def read_whole(tensor: LazyTensor) -> np.ndarray:
    """The values of a small tensor."""
    with Reader() as reader:
        return tensor.read(reader, full_index(tensor.shape), tensor.dtype)


def group_size(size: Any) -> int | None:
    """Inputs that share a scale, as a config gives them; None for all of them, which
    libraries write as -1.

    Raises:
        BadWeightError: it is neither a positive integer nor one of these.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return size
    if size in (None, -1):
        return None
    raise BadWeightError(
        f"group_size is {size!r:.60}, and not a positive integer or -1"
    )


def count_groups(size: int | None, inputs: int) -> int:
    """How many groups of `size` inputs there are, None for a single one; BadWeightError
    if they are not whole.
    """
    if size is None or size >= inputs:
        return 1
    if inputs % size:
        raise BadWeightError(f"groups of {size} do not divide {inputs} inputs")
    return inputs // size


def group_order(index: LazyTensor, size: int, groups: int) -> np.ndarray | None:
    """The order of inputs in which each group's follow one another; None if they do
    already.

    Args:
        index: integers [K], the group of each input.
        size: inputs in a group.

    Raises:
        BadWeightError: groups have other sizes than `size`, the last one excepted.
    """
    group_of_input = read_whole(index)
    expected = np.arange(len(group_of_input)) // size
    if np.array_equal(group_of_input, expected):
        return None
    order = np.argsort(group_of_input, kind="stable").astype(np.int32)
    if len(expected) != 0 and (
        expected[-1] + 1 != groups
        or not np.array_equal(group_of_input[order], expected)
    ):
        raise BadWeightError(f"the groups of its inputs do not have {size} inputs each")
    return order
