"""The blocks in which GGUF files keep numbers: 32 or 256 inputs of an output in some
bytes, scales among them.

The layouts are those of llama.cpp's `ggml-common.h`. A number is `value * scale`, less
a minimum in some types; where 256 inputs share a block, each group of 16 or 32 has a
scale, and often a minimum, of a few bits, and the block has a factor for all of them in
sixteen bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.checkpoint.lazy_tensors import Index, LazyTensor, Reader, transpose
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, group_columns

# From the bytes of blocks [..., N, bytes] to numbers [..., N, numbers of a block].
Decoder = Callable[[np.ndarray], np.ndarray]
# Blocks are decoded so many at a time: numbers take more memory than their bytes.
_BLOCKS_AT_ONCE = 1 << 12
_IQ4_LEVELS = (
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of the weights in a block.

    Attributes:
        count: its numbers in a block.
    """

    count: int
    dtype: np.dtype
    decode: Decoder


@dataclass(frozen=True)
class BlockType:
    """How a block keeps its numbers.

    Attributes:
        inputs: numbers in a block.
        block_bytes: what it takes.
        parts: by the names of `QuantizedTensor`'s.
        levels: the numbers that values are the indices of; None if they are numbers
            themselves.
    """

    inputs: int
    block_bytes: int
    parts: Mapping[str, Part] = field(default_factory=dict)
    levels: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class _BlockPart(LazyTensor):
    """A part [..., O, numbers] of the blocks in `base` [..., O, bytes]."""

    base: LazyTensor
    block_bytes: int
    part: Part

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        *others, numbers = index
        count = self.part.count
        first, last = numbers.start // count, -(-numbers.stop // count)
        needed = slice(numbers.start - first * count, numbers.stop - first * count)
        leading, *inner = others
        blocks_of_row = (last - first) * int(
            np.prod([part.stop - part.start for part in inner], dtype=np.int64)
        )
        step = max(1, _BLOCKS_AT_ONCE // max(1, blocks_of_row))
        for start in range(leading.start, leading.stop, step):
            rows = slice(start, min(start + step, leading.stop))
            read = (
                rows,
                *inner,
                slice(first * self.block_bytes, last * self.block_bytes),
            )
            raw = self.base.read(reader, read, self.base.dtype)
            blocks = raw.reshape(*raw.shape[:-1], last - first, self.block_bytes)
            decoded = self.part.decode(blocks)
            flat = decoded.reshape(*raw.shape[:-1], (last - first) * count)[..., needed]
            out[rows.start - leading.start : rows.stop - leading.start] = flat


def quantized_tensor(base: LazyTensor, name: str, dtype: np.dtype) -> QuantizedTensor:
    """The weight [..., O, K] of `dtype` that blocks of the type `name` hold, whose
    bytes are `base` [..., O, bytes].
    """
    block_type = BLOCK_TYPES[name]
    *leading, outputs, row_bytes = base.shape
    blocks = row_bytes // block_type.block_bytes
    parts: dict[str, Any] = {}
    for part_name, part in block_type.parts.items():
        shape = (*leading, outputs, blocks * part.count)
        stored = _BlockPart(shape, part.dtype, base, block_type.block_bytes, part)
        if part_name == "values":
            parts[part_name] = group_columns(
                stored, block_type.inputs // block_type.parts["scale"].count
            )
        else:
            parts[part_name] = transpose(stored, -1, -2)
    return QuantizedTensor(
        (*leading, outputs, blocks * block_type.inputs),
        dtype,
        **parts,
        levels=block_type.levels,
        scheme=f"GGUF {name}",
    )


def _int(bits: int) -> np.dtype:
    return jnp.dtype(f"int{bits}")


def _uint(bits: int) -> np.dtype:
    return jnp.dtype(f"uint{bits}")


def _half(start: int) -> Part:
    """A number in sixteen bits at byte `start`, one for a block."""
    return Part(
        1, np.dtype(np.float16), lambda blocks: _cut(blocks, start, 2).view(np.float16)
    )


def _negated_half(start: int) -> Part:
    """As `_half`, of what is added and not subtracted."""
    return Part(
        1, np.dtype(np.float16), lambda blocks: -_cut(blocks, start, 2).view(np.float16)
    )


def _cut(blocks: np.ndarray, start: int, count: int) -> np.ndarray:
    """`count` bytes of every block, in memory of their own."""
    return np.ascontiguousarray(blocks[..., start : start + count])


def _digits(packed: np.ndarray, bits: int, width: int) -> np.ndarray:
    """The numbers of some bits in bytes: of each `width` bytes first all lowest ones,
    then the next.

    [..., bytes] becomes [..., bytes * 8 / bits].
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(*packed.shape[:-1], -1, 1, width)
    return ((runs >> shifts) & np.uint8((1 << bits) - 1)).reshape(
        *packed.shape[:-1], -1
    )


def _signed(digits: np.ndarray, offset: int) -> np.ndarray:
    return digits.astype(np.int8) - np.int8(offset)


def _five_bits(start: int) -> Decoder:
    """32 numbers: their highest bits in four bytes at `start`, the others in the 16
    bytes behind these.
    """

    def decode(blocks: np.ndarray) -> np.ndarray:
        high = np.unpackbits(_cut(blocks, start, 4), axis=-1, bitorder="little")
        return _digits(_cut(blocks, start + 4, 16), 4, 16) | (high << 4)

    return decode


def _small_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima of six bits, in the twelve bytes at 4.

    The first four of each are the lower bits of a byte; of the others four bits are in
    the last bytes, and two are the highest bits of the first ones.
    """
    packed = _cut(blocks, 4, 12)
    scales, minima, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    high_scales, high_minima = (scales >> 2) & 0x30, (minima >> 2) & 0x30
    return (
        np.concatenate([scales & 0x3F, (rest & 0x0F) | high_scales], axis=-1),
        np.concatenate([minima & 0x3F, (rest >> 4) | high_minima], axis=-1),
    )


def _three_bit_scales(blocks: np.ndarray) -> np.ndarray:
    """Sixteen scales of six bits in twelve bytes: four bits of each in the first eight,
    two in the others.
    """
    low = _digits(_cut(blocks, 96, 8), 4, 8)
    high = _digits(_cut(blocks, 104, 4), 2, 4)
    return _signed(low | (high << 4), 32)


def _three_bits(blocks: np.ndarray) -> np.ndarray:
    """Two bits of each number, less four unless its bit is set in the mask."""
    unset = _digits(_cut(blocks, 0, 32), 1, 32) ^ 1
    return _digits(_cut(blocks, 32, 64), 2, 32).astype(np.int8) - (unset << 2).astype(
        np.int8
    )


def _five_bits_of_256(blocks: np.ndarray) -> np.ndarray:
    high = _digits(_cut(blocks, 16, 32), 1, 32)
    return _digits(_cut(blocks, 48, 128), 4, 32) | (high << 4)


def _six_bits(blocks: np.ndarray) -> np.ndarray:
    low = _digits(_cut(blocks, 0, 128), 4, 64)
    high = _digits(_cut(blocks, 128, 64), 2, 32)
    return _signed(low | (high << 4), 32)


def _level_scales(blocks: np.ndarray) -> np.ndarray:
    """Eight scales of six bits: four of each in the bytes 4 to 7, two in the bytes 2
    and 3.
    """
    low = _digits(_cut(blocks, 4, 4), 4, 1)
    high = _digits(_cut(blocks, 2, 2), 2, 1)
    return _signed(low | (high << 4), 32)


# What 256 numbers with scales and minima of six bits have in common.
_MINIMA_OF_SIX_BITS = {
    "scale": Part(8, _uint(8), lambda blocks: _small_scales(blocks)[0]),
    "outer_scale": _half(0),
    "minimum": Part(8, _uint(8), lambda blocks: _small_scales(blocks)[1]),
    "outer_minimum": _half(2),
}

BLOCK_TYPES: dict[str, BlockType] = {
    "Q4_0": BlockType(32, 18, {
        "values": Part(32, _int(4), lambda blocks: _signed(_digits(_cut(blocks, 2, 16), 4, 16), 8)),
        "scale": _half(0),
    }),
    "Q4_1": BlockType(32, 20, {
        "values": Part(32, _uint(4), lambda blocks: _digits(_cut(blocks, 4, 16), 4, 16)),
        "scale": _half(0),
        "minimum": _negated_half(2),
    }),
    "Q5_0": BlockType(32, 22, {
        "values": Part(32, _int(8), lambda blocks: _signed(_five_bits(2)(blocks), 16)),
        "scale": _half(0),
    }),
    "Q5_1": BlockType(32, 24, {
        "values": Part(32, _int(8), _five_bits(4)),
        "scale": _half(0),
        "minimum": _negated_half(2),
    }),
    "Q8_0": BlockType(32, 34, {
        "values": Part(32, _int(8), lambda blocks: _cut(blocks, 2, 32).view(np.int8)),
        "scale": _half(0),
    }),
    "Q2_K": BlockType(256, 84, {
        "values": Part(256, _uint(4), lambda blocks: _digits(_cut(blocks, 16, 64), 2, 32)),
        "scale": Part(16, _uint(4), lambda blocks: _cut(blocks, 0, 16) & 15),
        "outer_scale": _half(80),
        "minimum": Part(16, _uint(4), lambda blocks: _cut(blocks, 0, 16) >> 4),
        "outer_minimum": _half(82),
    }),
    "Q3_K": BlockType(256, 110, {
        "values": Part(256, _int(4), _three_bits),
        "scale": Part(16, _int(8), _three_bit_scales),
        "outer_scale": _half(108),
    }),
    "Q4_K": BlockType(256, 144, {
        "values": Part(256, _uint(4), lambda blocks: _digits(_cut(blocks, 16, 128), 4, 32)),
        **_MINIMA_OF_SIX_BITS,
    }),
    "Q5_K": BlockType(256, 176, {
        "values": Part(256, _int(8), _five_bits_of_256),
        **_MINIMA_OF_SIX_BITS,
    }),
    "Q6_K": BlockType(256, 210, {
        "values": Part(256, _int(8), _six_bits),
        "scale": Part(16, _int(8), lambda blocks: _cut(blocks, 192, 16).view(np.int8)),
        "outer_scale": _half(208),
    }),
    "IQ4_NL": BlockType(32, 18, {
        "values": Part(32, _uint(4), lambda blocks: _digits(_cut(blocks, 2, 16), 4, 16)),
        "scale": _half(0),
    }, levels=_IQ4_LEVELS),
    "IQ4_XS": BlockType(256, 136, {
        "values": Part(256, _uint(4), lambda blocks: _digits(_cut(blocks, 8, 128), 4, 16)),
        "scale": Part(8, _int(8), _level_scales),
        "outer_scale": _half(0),
    }, levels=_IQ4_LEVELS),
}  # fmt: skip
