"""Which columns of its own cache a user's model writes: a position that is shifted
shows there, and in no logits.

A model that takes every position for the next one gives the same logits token by token
as at once, and still computes something else than it was trained for. Where it writes
tells. Shapes: P positions, C columns.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

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


def find_states(
    run: Callable[..., dict[str, jax.Array]],
    token: jax.Array,
    cached: dict[str, jax.Array],
) -> list[str]:
    """Traced. The names of arrays whose values after a token depend on it, or on what
    the cache has before; not those that stay, or have the token's position alone.

    Args:
        run: gives the arrays after a token, `run(position, token, cached)`, where
            `cached` is a list.
    """
    names: list[str] = []
    shapes = {name: array.shape for name, array in cached.items()}

    def run_token(position: jax.Array, token: jax.Array, *cached: jax.Array) -> tuple:
        after = run(position, token, list(cached))
        # What changes its shape is refused later.
        kept = {name: array for name, array in after.items() if name in shapes}
        kept = {name: kept[name] for name in kept if kept[name].shape == shapes[name]}
        names.extend(kept)
        return tuple(kept.values())

    position = jnp.zeros((), jnp.int32)
    jaxpr = jax.make_jaxpr(run_token)(position, token, *cached.values()).jaxpr
    states = []
    for index, (name, result) in enumerate(zip(names, jaxpr.outvars, strict=True)):
        wanted = [other == index for other in range(len(names))]
        _, used = partial_eval.dce_jaxpr(jaxpr, wanted)
        if any(used[1:]) and result not in jaxpr.invars:
            states.append(name)
    return states


def fill_otherwise(array: jax.Array) -> jax.Array:
    """Traced. Other values in an array: a token may happen to have those of a new
    cache.
    """
    return ~array if array.dtype == jnp.bool_ else array + jnp.ones((), array.dtype)


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
                    "position. With check=False the text may be another one than your own loop's",
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
