"""Padded keys, left out of attention exactly and at no cost, and two other ways for
comparison.

Shapes: B batch, K key/value heads, T key/value length, D head dimension of keys, C of
values.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tpuport.errors import PortError

MODES: Final = ("exact", "segment_ids", "zero")


class PaddedKeys(NamedTuple):
    """Keys and values whose padding the kernel may read, and the weight [B or 1, T]
    that each key has in the sum.
    """

    key_BKTD: jax.Array
    value_BKTC: jax.Array
    weights_BT: jax.Array | None


def check_mode(mode: str) -> None:
    """PortError unless this is one of `MODES`."""
    if mode not in MODES:
        raise PortError(
            "no such way to mask padding",
            where=f"padding={mode!r}",
            fix=f"one of {', '.join(MODES)}",
        )


def exact(
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    keys_BT: Bool[Array, "#B T"],
) -> PaddedKeys:
    """Traced. Each padded key replaced by a copy of the row's first real key, with a
    value of zeros and the weight 0.

    The copy scores what the original scores, so it is never a new maximum, whatever the
    logits are; its value adds nothing to the numerator, and its weight nothing to the
    denominator. What the padding held, NaN included, is gone. A row without a real key
    has a sum of 0, for which the kernel gives zeros.
    """
    first = jnp.argmax(keys_BT, axis=1)[:, None, None, None]
    first = jnp.broadcast_to(first, (key_BKTD.shape[0], *first.shape[1:]))
    copy = jnp.take_along_axis(key_BKTD, first, axis=2)
    is_real = keys_BT[:, None, :, None]
    # argmax of a row without a real key is 0: the padding there may hold NaN.
    copy = jnp.where(jnp.any(is_real, axis=2, keepdims=True), copy, 0)
    return PaddedKeys(
        jnp.where(is_real, key_BKTD, copy),
        jnp.where(is_real, value_BKTC, 0),
        keys_BT.astype(jnp.float32),
    )


def zeroed(
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    keys_BT: Bool[Array, "#B T"],
) -> PaddedKeys:
    """Traced. Zeros for padded keys and values, as some ports do it: NOT a mask. Each
    of them adds exp(0) to the sum.

    The output is too small by the factor 1 - n / sum(exp(scores)) for n padded keys;
    docs/attention.md has the figure.
    """
    is_real = keys_BT[:, None, :, None]
    return PaddedKeys(
        jnp.where(is_real, key_BKTD, 0), jnp.where(is_real, value_BKTC, 0), None
    )


def segments(
    keys_BT: Bool[Array, "#B T"], key_segments_BT: jax.Array | None = None
) -> jax.Array:
    """Traced. Segment numbers [B or 1, T] in which padding has -1, which no query
    has.
    """
    # Without packed sequences, all real keys are in segment 0.
    numbers = 0 if key_segments_BT is None else key_segments_BT
    return jnp.where(keys_BT, numbers, -1).astype(jnp.int32)
