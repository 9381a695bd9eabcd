"""All-to-all attention: each device exchanges its part of the sequence for a part of
the heads, and back.

Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme
Long Sequence Transformer Models", 2023 (arXiv:2309.14509), section 3.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length,
D head dimension of queries and keys, C of values.
"""

from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tpuport.attention.mask import Mask
from tpuport.attention.reference import apply_sinks

AXIS: Final = "sp"


def ulysses(
    attend: Callable[..., tuple[jax.Array, jax.Array]],
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    sinks_H: Float[Array, " H"] | None,
    kv_heads: Int[Array, " _"] | None,
    lengths: tuple[int, int],
) -> Float[Array, "B H Q C"]:
    """Traced. One device's part of attention, in code that is manual over sp, which
    divides H.

    Args:
        attend: from query, key, value and mask to output and log-sum-exp; it gets the
            whole sequence for H / sp heads.
        query_BHQD, key_BKTD, value_BKTC: this device's part of the sequence.
        mask: of the whole sequence.
        sinks_H: of all H heads.
        kv_heads: the key/value heads that the devices along sp need, one device after
            the other; None: they need the K heads in their order. A head that several
            devices need is listed, and sent, several times.
        lengths: queries and keys of the whole sequence; what the parts have beyond it
            is padding, and cut off.
    """
    queries, keys = lengths
    # An exchange deals out each head once, so one that several devices need is there
    # several times.
    if kv_heads is not None:
        key_BKTD = jnp.take(key_BKTD, kv_heads, axis=1, mode="clip")
        value_BKTC = jnp.take(value_BKTC, kv_heads, axis=1, mode="clip")
    query = _exchange_sequence_for_heads(query_BHQD, queries)
    key = _exchange_sequence_for_heads(key_BKTD, keys)
    value = _exchange_sequence_for_heads(value_BKTC, keys)
    out, lse = attend(query, key, value, mask)
    # Of all heads, this device now has those at its own position along sp.
    if sinks_H is not None:
        heads = out.shape[1]
        sinks_H = jax.lax.dynamic_slice_in_dim(
            sinks_H, jax.lax.axis_index(AXIS) * heads, heads
        )
        out = apply_sinks(out, lse, sinks_H)
    return _exchange_heads_for_sequence(out, query_BHQD.shape[2])


def _exchange_sequence_for_heads(array: jax.Array, length: int) -> jax.Array:
    """Traced. [B, heads, part of the sequence, D] ->
    [B, part of the heads, length, D].
    """
    return jax.lax.all_to_all(array, AXIS, split_axis=1, concat_axis=2, tiled=True)[
        :, :, :length
    ]


def _exchange_heads_for_sequence(array_BHSD: jax.Array, part: int) -> jax.Array:
    """Traced. [B, part of the heads, length, D] -> [B, heads, part of the sequence, D],
    the last part padded.
    """
    devices = jax.lax.axis_size(AXIS)
    batch, heads, length, dim = array_BHSD.shape
    array_BHSD = jnp.pad(
        array_BHSD, ((0, 0), (0, 0), (0, part * devices - length), (0, 0))
    )
    # Stacked here: along any axis but the first, the compiler lays out the exchange by
    # copies before and after it.
    parts = jnp.stack(jnp.split(array_BHSD, devices, axis=2))
    parts = jax.lax.all_to_all(parts, AXIS, split_axis=0, concat_axis=0, tiled=True)
    return parts.swapaxes(0, 1).reshape(batch, devices * heads, part, dim)
