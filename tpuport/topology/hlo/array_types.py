"""Shapes as HLO writes them: "bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", tiled, and in a memory space."""

import functools
import math
import re
from typing import Final, NamedTuple

HBM: Final = 0  # VMEM is 1, semaphores are 2, a host's memory is 5, SMEM is 6
_ARRAY: Final = re.compile(
    r"\b(pred|token|[a-z]+\d+\w*)\[([\d,<=]*)\](?:\{([\d,]*)(?::((?:[^{}()]|\([^()]*\))*))?\})?"
)
_BITS: Final = re.compile(r"[a-z]+(\d+)")
_TILES: Final = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE: Final = re.compile(r"S\((\d+)\)")


class Array(NamedTuple):
    """A shape with its dtype, "bf16" and (8, 128), and how it lies in memory.

    Attributes:
        order: its dimensions from the one that varies most to the one that varies least; empty: last dimension first.
        tiles: it is padded to; those of a tile's own inside follow it.
        space: of memory, `HBM` or another.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = HBM

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes without the padding of tiles."""
        return _bytes(self.dtype, self.size)

    @property
    def tiled_nbytes(self) -> int:
        """Bytes that it takes in memory: its tiles are whole."""
        return _bytes(self.dtype, _padded(self))

    @property
    def bare(self) -> "Array":
        """Its dtype and dimensions only."""
        return Array(self.dtype, self.dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def _bytes(dtype: str, size: int) -> int:
    bits = _BITS.match(dtype)
    return math.ceil(size * (int(bits[1]) if bits else 8 * (dtype == "pred")) / 8)


@functools.lru_cache(maxsize=4096)
def _padded(array: Array) -> int:
    """Numbers with those that pad it; a tile covers the dimensions that vary most, and the next one its inside."""
    order = array.order or tuple(reversed(range(len(array.dims))))
    dims = [array.dims[place] for place in reversed(order)]
    for tile in array.tiles:
        dims = [1] * (len(tile) - len(dims)) + dims
        outer, inner = dims[: -len(tile)], dims[-len(tile) :]
        whole = [size or have for size, have in zip(tile, inner, strict=True)]  # 0: as long as the array is
        dims = outer + [-(-have // size) for have, size in zip(inner, whole, strict=True)] + whole
    return math.prod(dims)


@functools.lru_cache(maxsize=1 << 16)
def arrays(text: str) -> tuple[Array, ...]:
    """Every shape that stands in a piece of a program."""
    return tuple(_array(*found.groups()) for found in _ARRAY.finditer(text) if found[1] != "token")


def _array(dtype: str, dims: str, order: str | None, layout: str | None) -> Array:
    tiles = _TILES.search(layout or "")
    space = _SPACE.search(layout or "")
    return Array(
        dtype,
        _numbers(dims.replace("<=", "")),  # "<=" marks the most that a dynamic dimension has
        _numbers(order or ""),
        tuple(_numbers(one.replace("*", "0")) for one in tiles[1][1:-1].split(")(")) if tiles else (),
        int(space[1]) if space else HBM,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def elements(text: str) -> list[str]:
    """The types that a tuple's type is made of; of an array's type, itself."""
    if not text.startswith("("):
        return [text]
    found, depth, start = [], 0, 1
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
        if depth == 0:
            break
    return [one for one in found if one]
