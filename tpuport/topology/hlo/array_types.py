"""Array types as HLO writes them: "bf16[8,128]{1,0:T(8,128)(2,1)S(1)}" is tiled, and
lies in a memory space.
"""

import functools
import math
import re
from typing import Final, NamedTuple

HBM: Final = 0  # VMEM is 1, semaphores are 2, a host's memory is 5, SMEM is 6
_ARRAY: Final = re.compile(
    r"\b(pred|token|[a-z]+\d+\w*)\[([\d,<=]*)\](?:\{([\d,]*)(?::((?:[^{}()]|\([^()]*\))*))?\})?"
)
_BITS: Final = re.compile(r"^[a-z]+(\d+)")
_TILES: Final = re.compile(r"T\(([\d,*()]+)\)")
_SPACE: Final = re.compile(r"S\((\d+)\)")


class Array(NamedTuple):
    """The type of an array, and how it lies in memory.

    Attributes:
        dtype: as HLO writes it, "bf16".
        dims: its extents.
        order: its dimensions from the fastest varying to the slowest; empty if the last
            dimension is the fastest.
        tiles: the tile that pads it, then the tiles inside of that tile.
        space: of memory, `HBM` or another.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = HBM

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes without the padding of tiles."""
        return _element_bytes(self.dtype, self.size)

    @property
    def tiled_nbytes(self) -> int:
        """Bytes in memory, where tiles are always whole."""
        return _element_bytes(self.dtype, _padded_size(self))

    @property
    def hbm_nbytes(self) -> int:
        """Bytes that it takes of HBM; none if it lies in another memory."""
        if self.space != HBM:
            return 0
        return self.tiled_nbytes

    @property
    def bare(self) -> "Array":
        """Its dtype and dimensions only."""
        return Array(self.dtype, self.dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def _element_bytes(dtype: str, count: int) -> int:
    if dtype == "pred":
        return count
    # The names of all other dtypes have their bits in them, but for a token, which
    # takes no memory.
    return math.ceil(count * int(search_group(_BITS, dtype, "0")) / 8)


@functools.lru_cache(maxsize=4096)
def _padded_size(array: Array) -> int:
    """Elements with those that pad it. A tile covers the fastest dimensions, and the
    next tile the inside of it.
    """
    order = array.order or tuple(reversed(range(len(array.dims))))
    dims = [array.dims[dim] for dim in reversed(order)]
    for tile in array.tiles:
        missing = len(tile) - len(dims)
        dims = [1] * missing + dims
        outer, inner = dims[: -len(tile)], dims[-len(tile) :]
        # A tile's extent of 0 is a "*": as long as the array is.
        extents = [extent or length for extent, length in zip(tile, inner, strict=True)]
        counts = [
            math.ceil(length / extent)
            for length, extent in zip(inner, extents, strict=True)
        ]
        dims = outer + counts + extents
    return math.prod(dims)


@functools.lru_cache(maxsize=1 << 16)
def parse_arrays(text: str) -> tuple[Array, ...]:
    """The types of all arrays in a piece of a program, in its order; tokens are not
    arrays.
    """
    matches = _ARRAY.finditer(text)
    return tuple(
        _parse_array(*match.groups(default=""))
        for match in matches
        if match[1] != "token"
    )


def _parse_array(dtype: str, dims: str, order: str, layout: str) -> Array:
    # "<=" marks the upper bound of a dynamic dimension, "*" a tile that is as long as
    # the array.
    tiles = search_group(_TILES, layout).replace("*", "0").split(")(")
    return Array(
        dtype,
        parse_numbers(dims.replace("<=", "")),
        parse_numbers(order),
        tuple(map(parse_numbers, filter(None, tiles))),
        int(search_group(_SPACE, layout, str(HBM))),
    )


def parse_numbers(text: str, separator: str = ",") -> tuple[int, ...]:
    """The whole numbers between separators: "8,128" or "8x128"; empty parts are left
    out.
    """
    return tuple(int(part) for part in text.split(separator) if part.strip())


def search_group(pattern: re.Pattern[str], text: str, default: str = "") -> str:
    """The first group of the first match, or the default: most attributes of an
    instruction are optional.
    """
    match = pattern.search(text)
    return default if match is None else match[1]


def tuple_types(text: str) -> list[str]:
    """The types of a tuple's elements, or an array's type alone."""
    if not text.startswith("("):
        return [text]
    types, depth, start = [], 0, 1
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        # The types are in one pair of parentheses, and have brackets of their own.
        if depth == 0 or (depth == 1 and character == ","):
            types.append(text[start:position].strip())
            start = position + 1
        if depth == 0:
            break
    return list(filter(None, types))
