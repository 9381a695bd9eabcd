"""Who sees whom, as structure: what a kernel can use where a dense mask would have to exist in memory.

Shapes: B batch, H query heads, Q query length, T key/value length.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@dataclass(frozen=True)
class Mask:
    """A query sees a key where every part that is given allows it. Query i stands at key position `offset + i`.

    Attributes:
        left: how many keys before its own position a query sees; None: all of them.
        right: how many keys after its own position; 0 is causal attention, None: all of them.
        offset: key position of the first query. A number, or a traced int32 scalar.
        keys_BT: [B or 1, T], True where a key is no padding.
        queries_BQ: [B or 1, Q], True where a query is no padding; a query that is gets zeros.
        query_segments_BQ, key_segments_BT: [B or 1, Q] and [B or 1, T] numbers from 0 of packed sequences; a query
            sees the keys of its own number. Both or neither.
        bias_BT: [B or 1, T], float32, added to the scores of a key.
        dense: [B or 1, H or 1, Q, T], boolean (True is visible) or a number added to the score, of which the lowest
            finite number of its dtype and -inf hide the key.
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

    @property
    def has_band(self) -> bool:
        """Whether positions decide."""
        return self.left is not None or self.right is not None

    def to_dense(self, queries: int, keys: int) -> jax.Array | None:
        """Traced. The same as one array [B or 1, H or 1, Q, T]: boolean, or a number to add; None hides nothing."""
        visible = self.dense
        added = None
        if visible is not None and visible.dtype != jnp.bool_:
            # NaN is no way to hide a key: it shows in the output, as it does in torch.
            added, visible = visible, ~(visible <= jnp.finfo(visible.dtype).min)
        if self.bias_BT is not None:
            bias = self.bias_BT.astype(jnp.float32)[:, None, None, :]
            added = bias if added is None else added + bias
        for part in (self._band(queries, keys), self._segments(), self._padding()):
            if part is not None:
                visible = part if visible is None else visible & part
        if added is None:
            if visible is None:
                return None
            return jnp.broadcast_to(visible, (*visible.shape[:2], queries, keys))
        if visible is not None:
            added = jnp.where(visible, added, jnp.finfo(added.dtype).min)
        return jnp.broadcast_to(added, (*added.shape[:2], queries, keys))

    def _band(self, queries: int, keys: int) -> jax.Array | None:
        if not self.has_band:
            return None
        distance = jnp.arange(keys)[None, :] - (jnp.arange(queries)[:, None] + self.offset)
        visible = jnp.ones(distance.shape, jnp.bool_)
        if self.right is not None:
            visible &= distance <= self.right
        if self.left is not None:
            visible &= distance >= -self.left
        return visible[None, None]

    def _segments(self) -> jax.Array | None:
        if self.query_segments_BQ is None or self.key_segments_BT is None:
            return None
        return (self.query_segments_BQ[:, :, None] == self.key_segments_BT[:, None, :])[:, None]

    def _padding(self) -> jax.Array | None:
        visible = None if self.keys_BT is None else self.keys_BT[:, None, None, :]
        if self.queries_BQ is not None:
            queries = self.queries_BQ[:, None, :, None]
            visible = queries if visible is None else visible & queries
        return visible
