"""Who sees whom, as structure: a kernel uses it without a dense mask in memory.

Shapes: B batch, H query heads, Q query length, T key/value length.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tpuport.objects.traced_numbers import TracedNumber, as_array

# The parts of a mask that are arrays.
ARRAYS: Final = (
    "keys_BT",
    "queries_BQ",
    "query_segments_BQ",
    "key_segments_BT",
    "bias_BT",
    "dense",
)


@dataclasses.dataclass(frozen=True)
class Mask:
    """A query sees a key if every part of the mask allows it. Query i is at key
    position `offset + i`.

    Attributes:
        left: how many keys before its own position a query sees; None: all of them.
        right: how many keys after its own position; 0 is causal attention, None: all of
            them.
        offset: key position of the first query. A number, or a traced int32 scalar.
        keys_BT: [B or 1, T], False for padded keys.
        queries_BQ: [B or 1, Q], False for padded queries, whose output is zeros.
        query_segments_BQ, key_segments_BT: [B or 1, Q] and [B or 1, T] numbers from 0
            of packed sequences; a query sees the keys of its own number. Both or
            neither.
        bias_BT: [B or 1, T], float32, added to the scores of a key.
        dense: [B or 1, H or 1, Q, T], boolean (True is visible) or a number added to
            the score, of which -inf hides the key; so does the lowest finite number of
            its dtype, unless all keys of a query have it.
    """

    left: int | None = None
    right: int | None = None
    offset: Any = 0
    keys_BT: Bool[Array, "#B T"] | None = None
    queries_BQ: Bool[Array, "#B Q"] | None = None
    query_segments_BQ: Int[Array, "#B Q"] | None = None
    key_segments_BT: Int[Array, "#B T"] | None = None
    bias_BT: Float[Array, "#B T"] | None = None
    dense: Bool[Array, "#B #H Q T"] | Float[Array, "#B #H Q T"] | None = None

    def __post_init__(self) -> None:
        if type(self.offset) is TracedNumber:
            offset = jnp.asarray(as_array(self.offset), jnp.int32)
            object.__setattr__(self, "offset", offset)

    @property
    def has_band(self) -> bool:
        """Whether positions decide what is visible."""
        return self.left is not None or self.right is not None

    def to_dense(self, queries: int, keys: int) -> jax.Array | None:
        """Traced. The same as one array [B or 1, H or 1, Q, T]: boolean, or a number to
        add; None hides nothing.
        """
        is_added = self.dense is not None and self.dense.dtype != jnp.bool_
        visible, added = (None, self.dense) if is_added else (self.dense, None)
        if self.bias_BT is not None:
            bias = self.bias_BT.astype(jnp.float32)[:, None, None, :]
            added = bias if added is None else added + bias
        visible = intersect(
            visible,
            self._band(queries, keys),
            self._segments(),
            _expand(self.keys_BT, (1, 2)),
            _expand(self.queries_BQ, (1, 3)),
        )
        if added is None:
            dense = visible
        elif visible is None:
            dense = added
        else:
            dense = jnp.where(visible, added, -jnp.inf)
        if dense is None:
            return None
        return jnp.broadcast_to(dense, (*dense.shape[:2], queries, keys))

    def blind_queries(self, queries: int, keys: int) -> jax.Array | None:
        """Traced. [B or 1, 1, Q, 1], True where padding leaves a query no key to see;
        None if it leaves each one some.

        Of queries whose keys only `dense` hides, its numbers say themselves what they
        attend to.
        """
        # A single query is the newest token, which sees itself.
        if self.keys_BT is None or queries == 1:
            return None
        if self.queries_BQ is None and self.query_segments_BQ is None:
            return _expand(self._count_keys(queries, keys) == 0, (1, 3))
        visible = dataclasses.replace(self, bias_BT=None, dense=None).to_dense(
            queries, keys
        )
        assert visible is not None
        return ~visible.any(-1, keepdims=True)

    def _count_keys(self, queries: int, keys: int) -> jax.Array:
        """Traced. [B or 1, Q], how many keys that are not padding are in each query's
        band, without a [Q, T] array.
        """
        assert self.keys_BT is not None
        position_Q = jnp.arange(queries) + self.offset
        first_Q = (
            jnp.zeros(queries, jnp.int32)
            if self.left is None
            else position_Q - self.left
        )
        end_Q = (
            jnp.full(queries, keys)
            if self.right is None
            else position_Q + self.right + 1
        )
        before_BT = jnp.pad(
            jnp.cumsum(self.keys_BT, axis=1, dtype=jnp.int32), ((0, 0), (1, 0))
        )
        first_Q, end_Q = (jnp.clip(edge, 0, keys) for edge in (first_Q, end_Q))
        return before_BT[:, end_Q] - before_BT[:, first_Q]

    def present(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the named parts that the mask has."""
        return {
            name: getattr(self, name)
            for name in names
            if getattr(self, name) is not None
        }

    def slice_queries(self, first: Any, size: int) -> "Mask":
        """Traced. The mask of `size` queries from index `first` on, over all keys."""
        return dataclasses.replace(
            self,
            offset=self.offset + first,
            queries_BQ=_slice(self.queries_BQ, first, size, 1),
            query_segments_BQ=_slice(self.query_segments_BQ, first, size, 1),
            dense=_slice(self.dense, first, size, 2),
        )

    def slice_keys(self, first: Any, size: int) -> "Mask":
        """Traced. The mask of `size` keys from index `first` on, for all queries."""
        return dataclasses.replace(
            self,
            # Positions count from the first key.
            offset=self.offset - first,
            keys_BT=_slice(self.keys_BT, first, size, 1),
            key_segments_BT=_slice(self.key_segments_BT, first, size, 1),
            bias_BT=_slice(self.bias_BT, first, size, 1),
            dense=_slice(self.dense, first, size, 3),
        )

    def select_head(self, row: Any, head: Any) -> "Mask":
        """Traced. The mask of one head of one row of the batch, both dimensions 1."""
        parts = {
            name: _select(array, row, 0) for name, array in self.present(ARRAYS).items()
        }
        if self.dense is not None:
            parts["dense"] = _select(parts["dense"], head, 1)
        return dataclasses.replace(self, **parts)

    def _band(self, queries: int, keys: int) -> jax.Array | None:
        if not self.has_band:
            return None
        # Key position less query position.
        distance = jnp.arange(keys)[None, :] - (
            jnp.arange(queries)[:, None] + self.offset
        )
        limits = []
        if self.right is not None:
            limits.append(distance <= self.right)
        if self.left is not None:
            limits.append(distance >= -self.left)
        return _expand(intersect(*limits), (0, 1))

    def _segments(self) -> jax.Array | None:
        if self.query_segments_BQ is None or self.key_segments_BT is None:
            return None
        return (self.query_segments_BQ[:, :, None] == self.key_segments_BT[:, None, :])[
            :, None
        ]


def intersect(*masks: jax.Array | None) -> jax.Array | None:
    """Traced. The conjunction of boolean masks that broadcast, None hiding nothing."""
    present = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, present) if present else None


def broadcasts_to(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether every dimension is 1 or that of the whole shape, which has as many."""
    if len(shape) != len(whole):
        return False
    return all(size in (1, full) for size, full in zip(shape, whole, strict=True))


def _expand(array: jax.Array | None, axes: tuple[int, int]) -> jax.Array | None:
    return None if array is None else jnp.expand_dims(array, axes)


def _slice(
    array: jax.Array | None, first: Any, size: int, axis: int
) -> jax.Array | None:
    return (
        None
        if array is None
        else jax.lax.dynamic_slice_in_dim(array, first, size, axis)
    )


def _select(array: jax.Array, index: Any, axis: int) -> jax.Array:
    """One index of a dimension, which stays; a dimension of 1 is shared by all
    indices.
    """
    if array.shape[axis] == 1:
        return array
    return jax.lax.dynamic_slice_in_dim(array, index, 1, axis)
