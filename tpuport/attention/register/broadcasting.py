"""The shapes that torch's attention takes, as those that tpuport's attention takes.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values; N any leading dimensions.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tpuport.attention.mask import Mask, broadcasts_to
from tpuport.attention.provenance import structure_of
from tpuport.errors import PortError


class Operands(NamedTuple):
    """[B, H, Q, D], [B, K, T, D], [B, K, T, C]; the mask as
    [1 or B, 1 or H, 1 or Q, 1 or T]; the output's shape.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    mask: jax.Array | None
    output: tuple[int, ...]

    def mask_structure(self) -> Mask | None:
        """Traced. Who sees whom, as far as the mask's origin tells; None without a
        mask.
        """
        if self.mask is None:
            return None
        batch, heads, queries, _ = self.query.shape
        return structure_of(
            self.mask, batch=batch, heads=heads, queries=queries, keys=self.key.shape[2]
        )


def arrange(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    enable_gqa: bool,
) -> Operands:
    """Traced. Query [N, H, Q, D], key [N, K, T, D] and value [N, K, T, C], with N and
    heads broadcast or missing.

    Without `enable_gqa` heads broadcast as any dimension does; with it, every head of
    key and value, which may have different numbers of them, serves a group of query
    heads.

    Raises:
        PortError: shapes that torch does not take either.
    """
    where = f"query {query.shape}, key {key.shape}, value {value.shape}"
    _check_shapes(query, key, value, enable_gqa, where)
    rank = max(query.ndim, key.ndim, value.ndim)
    query, key, value = (_add_leading_dimensions(x, 3) for x in (query, key, value))
    has_no_heads = rank == 3 and not enable_gqa
    if has_no_heads and mask is not None and mask.ndim == 3 and mask.shape[0] > 1:
        # The first dimension becomes the batch: as heads, each would have its own mask,
        # which no kernel serves.
        query, key, value, mask = (x[:, None] for x in (query, key, value, mask))
    batch = _broadcast([x.shape[:-3] for x in (query, key, value)], where)
    heads = query.shape[-3]
    if not enable_gqa:
        (heads,) = _broadcast([x.shape[-3:-2] for x in (query, key, value)], where)
    # Attention takes as many key heads as value heads; different numbers are both
    # repeated to the query heads.
    kv_heads = key.shape[-3]
    if kv_heads != value.shape[-3]:
        kv_heads = heads
    length, width = query.shape[-2], value.shape[-1]
    # Leading dimensions that were added above are not in the output.
    output = (*(*batch, heads)[: rank - 2], length, width)
    if mask is not None:
        mask = _broadcast_mask(mask, batch, heads, (length, key.shape[-2]))
    return Operands(
        _flatten_batch(query, batch, heads),
        _flatten_batch(key, batch, kv_heads),
        _flatten_batch(value, batch, kv_heads),
        mask,
        output,
    )


def _check_shapes(
    query: jax.Array, key: jax.Array, value: jax.Array, enable_gqa: bool, where: str
) -> None:
    rank = min(query.ndim, key.ndim, value.ndim)
    if rank < 2:
        raise PortError(
            "attention over fewer than two dimensions",
            where=where,
            fix="give [..., length, head dim]",
        )
    if query.shape[-1] != key.shape[-1]:
        raise PortError("query and key differ in head dimension", where=where)
    if key.shape[-2] != value.shape[-2]:
        raise PortError("key and value differ in length", where=where)
    if not enable_gqa:
        return
    if rank < 3:
        raise PortError(
            "enable_gqa without a dimension of heads",
            where=where,
            fix="give [..., heads, length, dim]",
        )
    heads = query.shape[-3]
    for name, count in (("key", key.shape[-3]), ("value", value.shape[-3])):
        # Not `heads % count`, because torch allows no heads at all.
        if math.gcd(heads, count) != count:
            raise PortError(
                f"{heads} query heads cannot share {count} {name} heads", where=where
            )


def _broadcast(shapes: list[tuple[int, ...]], where: str) -> tuple[int, ...]:
    try:
        return jnp.broadcast_shapes(*shapes)
    except ValueError:
        raise PortError(
            f"dimensions {' and '.join(map(str, dict.fromkeys(shapes)))} of attention do not broadcast",
            where=where,
            fix="enable_gqa=True shares key/value heads between query heads",
        ) from None


def _add_leading_dimensions(array: jax.Array, rank: int) -> jax.Array:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _flatten_batch(array: jax.Array, batch: tuple[int, ...], heads: int) -> jax.Array:
    """[N, K, T, D] -> [B, heads, T, D], each head repeated as often as needed, in a
    row.
    """
    count, *rest = array.shape[-3:]
    if count != heads:
        # Each head in a row, as torch groups query heads.
        array = jnp.repeat(array, heads // count, axis=-3)
    array = jnp.broadcast_to(array, (*batch, heads, *rest))
    return array.reshape(math.prod(batch), heads, *rest)


def _broadcast_mask(
    mask: jax.Array, batch: tuple[int, ...], heads: int, scores: tuple[int, int]
) -> jax.Array:
    """The mask in four dimensions, each whole or 1."""
    whole = (*batch, heads, *scores)
    shape = (1,) * (len(whole) - mask.ndim) + mask.shape
    if mask.ndim < 2 or not broadcasts_to(shape, whole):
        raise PortError(
            f"an attention mask {mask.shape} does not broadcast to the scores {whole}",
            where="attn_mask",
            fix="give [..., query length, key length]",
        )
    mask, leading = mask.reshape(shape), shape[: len(batch)]
    # A mask that all rows share stays small.
    if set(leading) <= {1}:
        return mask.reshape(1, *shape[-3:])
    return jnp.broadcast_to(mask, (*batch, *shape[-3:])).reshape(
        math.prod(batch), *shape[-3:]
    )
