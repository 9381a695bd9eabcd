"""What is known of a call of the attention kernel before it runs: its blocks, and which
of them a band leaves.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

LOG2E = math.log2(math.e)
# With fewer rounds, the last chunk by itself costs more than the others save.
_ROUNDS_TO_CARRY = 4


@dataclass(frozen=True)
class Layout:
    """What is known of a call before it runs.

    Attributes:
        blocks: rows of queries, keys of a step, keys of a chunk of it.
        queries, keys: Q and T without padding.
        left, right, scale, softcap: as in `flash_kernel`.
        late: the scale is applied in the exponent, not before.
        rounds: of the loop in each step, each over as many chunks. 1 with a band.
    """

    blocks: tuple[int, int, int]
    queries: int
    keys: int
    left: int | None
    right: int | None
    scale: float
    softcap: float | None
    late: bool
    rounds: int = 1

    @property
    def unit(self) -> float:
        """What a difference of the kernel's scores counts in powers of two."""
        scale = self.scale if self.late else 1.0
        return scale * LOG2E

    @property
    def carries(self) -> bool:
        """Whether the last chunk of a round is left for the next one, where products
        hide its exponentials.
        """
        return self.rounds >= _ROUNDS_TO_CARRY

    @property
    def has_band(self) -> bool:
        """Whether positions decide what is visible."""
        return self.left is not None or self.right is not None

    def first_key(self, position: Any) -> Any:
        """The first key that a query at this key position sees."""
        return 0 if self.left is None else _larger(position - self.left, 0)

    def last_key(self, position: Any) -> Any:
        """The last key that a query at this key position sees; below `first_key` if it
        sees none.
        """
        end = self.keys - 1
        if self.right is None:
            return end
        # The smaller of two, for numbers and traced scalars alike.
        return -_larger(-(position + self.right), -end)

    def key_blocks(self, query_block: Any, offset: Any) -> tuple[Any, Any]:
        """First and last block of keys for a block of queries; the last is below the
        first if it sees none.
        """
        rows, keys, _ = self.blocks
        start = query_block * rows + offset
        first = _block_index(self.first_key(start), keys)
        last = _block_index(self.last_key(start + rows - 1), keys)
        return first, last

    def steps(self, offset: Any) -> int:
        """The most blocks of keys that any block of queries sees, at least one."""
        rows, keys, _ = self.blocks
        all_blocks = pl.cdiv(self.keys, keys)
        # The grid has as many steps for each block of queries; those that need fewer do
        # nothing in the last ones.
        if isinstance(offset, int):
            spans = [
                self.key_blocks(i, offset) for i in range(pl.cdiv(self.queries, rows))
            ]
            return max(1, *(last - first + 1 for first, last in spans))
        if self.left is None or self.right is None:
            return all_blocks
        # One more, because the band may begin anywhere within a block.
        return min(all_blocks, pl.cdiv(rows + self.left + self.right, keys) + 1)


def _larger(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, int) else jnp.maximum(a, b)


def _block_index(key: Any, size: int) -> Any:
    """The block that a key is in, -1 for a key before the first."""
    if isinstance(key, int):
        return max(key, -1) // size
    # Mosaic divides towards zero, and has no `//`.
    return lax.div(jnp.maximum(key, -size) + size, size) - 1
