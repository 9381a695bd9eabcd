"""Which columns of its own cache a user's model writes: a position that is shifted
shows there, and in no logits.

A model that takes every position for the next one gives the same logits token by token
as at once, and still computes something else than it was trained for. Where it writes
tells. Shapes: P positions, C columns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.errors import PortError
from tpuport.generation.row_caches import CacheLayout


class WrittenColumns(NamedTuple):
    """What a token at each of some positions, alone in a new cache, has changed there.

    Attributes:
        positions: [P], which follow each other.
        columns: for the names of arrays, whether a column of theirs has changed,
            [P, C].
        counters: for the names of single integers, their values afterwards, [P].
    """

    positions: jax.Array
    columns: dict[str, jax.Array]
    counters: dict[str, jax.Array]


def nothing() -> WrittenColumns:
    """Traced. Of a model without a cache."""
    return WrittenColumns(jnp.zeros(0, jnp.int32), {}, {})


def choose_positions(columns: int) -> jax.Array:
    """Two positions in the middle, so that a column before or after them is one of the
    cache.
    """
    return (columns - 2) // 2 + jnp.arange(2, dtype=jnp.int32)


def column_axes(layout: CacheLayout, longer: CacheLayout) -> dict[str, int]:
    """The dimension with the columns, for the names of arrays that are longer in a
    cache with room for one more.
    """
    longer_leaves = dict(zip(longer.names, longer.leaves, strict=True))
    axes = {}
    for name, leaf in zip(layout.names, layout.leaves, strict=True):
        match leaf, longer_leaves.get(name):
            case (tuple(shape), _), (tuple(longer_shape), _) if len(shape) == len(
                longer_shape
            ):
                different = [
                    axis
                    for axis, size in enumerate(shape)
                    if longer_shape[axis] != size
                ]
                if len(different) == 1:
                    axes[name] = different[0]
    return axes


def fill_otherwise(array: jax.Array) -> jax.Array:
    """Traced. Other numbers in an array of floats: a token may happen to have those of
    a new cache.
    """
    return array + 1 if jnp.issubdtype(array.dtype, jnp.inexact) else array


def is_counter(array: jax.Array) -> bool:
    """Whether it is a single integer."""
    return array.ndim == 0 and jnp.issubdtype(array.dtype, jnp.integer)


def changed_columns(before: jax.Array, after: jax.Array, axis: int) -> jax.Array:
    """Traced. Whether each column has changed, [C]."""
    others = tuple(dimension for dimension in range(before.ndim) if dimension != axis)
    return jnp.any(before != after, axis=others)


def check_columns(written: WrittenColumns, model_name: str) -> None:
    """Raise unless each token is written to the column of its position.

    Args:
        written: with arrays of NumPy.

    Raises:
        PortError: it is another column; the error names the attribute that counts
            positions, or else the array.
    """
    positions = np.asarray(written.positions)
    counters = _moving_counters(written, positions)
    for name, changed in written.columns.items():
        for index, position in enumerate(positions.tolist()):
            actual = np.flatnonzero(changed[index]).tolist()
            # A model may write more than that.
            if position not in actual:
                message = f"{model_name} writes the token at position {position} to {_describe(actual)} of {name}"
                raise PortError(
                    "; ".join([message, *counters.values()]),
                    where=next(iter(counters), name),
                    fix="let forward(tokens, cache, position) take columns from `position`, as in cache.pos = "
                    "position; check=False accepts it",
                )


def _moving_counters(written: WrittenColumns, positions: np.ndarray) -> dict[str, str]:
    """In words, by their names, the counters that move with the position."""
    return {
        name: f"{name} is {int(values[0])} after it"
        for name, values in written.counters.items()
        if np.array_equal(np.diff(values), np.diff(positions))
    }


def _describe(columns: list[int]) -> str:
    match columns:
        case []:
            return "no column"
        case [column]:
            return f"column {column}"
    return f"columns {', '.join(map(str, columns))}"
