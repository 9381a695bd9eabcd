"""Fused attention: one traced function that is the TPU kernel where it is lowered for a TPU, and plain XLA elsewhere.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D head dimension, C of values.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention import padding as pad
from tpuport.attention.backward import backward
from tpuport.attention.block_sizes import block_sizes, vmem_limit_bytes
from tpuport.attention.flash_kernel import flash_kernel
from tpuport.attention.kernel_cost import Blocks, Call, vmem_bytes
from tpuport.attention.mask import Mask
from tpuport.attention.xla_attention import attention_xla
from tpuport.errors import PortError

# The parts of a mask that are arrays, or numbers that may be traced.
_ARRAYS = ("offset", "keys_BT", "queries_BQ", "query_segments_BQ", "key_segments_BT")
# Queries whose hidden states are 32 MiB at a width of 4,096, in 16 bits.
_SHORT = 4096


@dataclass(frozen=True)
class _Static:
    """What decides which program runs; hashable."""

    left: int | None
    right: int | None
    offset: int | None
    scale: float
    softcap: float | None
    padding: str
    blocks: tuple[int, int, int]
    vmem_limit_bytes: int | None
    interpret: bool


def _needed(query_BHQD: Any, value_BKTC: Any, blocks: tuple[int, int, int]) -> int | None:
    """Vector memory that a call takes; None where hidden states of so many queries would not fit beside the kernel."""
    queries, dim = query_BHQD.shape[2:]
    keys, value_dim = value_BKTC.shape[2:]
    if queries > _SHORT:
        return None
    return vmem_bytes(Call(1, queries, keys, dim, value_dim, query_BHQD.dtype.itemsize), Blocks(*blocks))


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
        padding: how `keys_BT` is applied where nothing else is masked key by key: "exact", "segment_ids" or "zero". The
            first two differ in the kernel only; the third is wrong, and wrong on every device.
        blocks: rows of queries, keys of a step of the kernel, keys of a chunk of it; None takes the tuned ones.
        interpret: run the kernel itself on any device, slowly, for tests.

    Raises:
        PortError: a dense mask, an unknown `padding`, or blocks that are no multiples of 128.
    """
    pad.check_mode(padding)
    if mask.dense is not None:
        raise PortError("the kernel takes masks as structure", where="mask.dense", fix="use attention_xla")
    if padding == "zero" and mask.keys_BT is not None and _only_padding(mask):
        # Out here, so that XLA and gradients have the same fault as the kernel: it is for comparison.
        key_BKTD, value_BKTC, _ = pad.zeroed(key_BKTD, value_BKTC, mask.keys_BT)
        mask = replace(mask, keys_BT=None)
    offset = mask.offset if isinstance(mask.offset, int) else None
    chosen = _blocks(query_BHQD.shape, key_BKTD, value_BKTC, mask, padding, blocks)
    limit = vmem_limit_bytes(needed=_needed(query_BHQD, value_BKTC, chosen))
    static = _Static(mask.left, mask.right, offset, float(scale), softcap, padding, chosen, limit, interpret)
    arrays = {
        name: jnp.asarray(x) for name in _ARRAYS if (x := getattr(mask, name)) is not None and x is not offset
    }
    return _flash(static, query_BHQD, key_BKTD, value_BKTC, mask.bias_BT, arrays)


def _blocks(
    query: tuple[int, ...], key: jax.Array, value: jax.Array, mask: Mask, padding: str, asked: tuple | None
) -> tuple[int, int, int]:
    by_key = mask.keys_BT is not None and padding == "segment_ids"
    return block_sizes(
        heads=query[0] * query[1],
        queries=query[2],
        keys=key.shape[2],
        head_dim=query[3],
        value_dim=value.shape[3],
        dtype=key.dtype.name,
        masked=mask.has_band or mask.key_segments_BT is not None or mask.bias_BT is not None or by_key,
        left=mask.left,
        right=mask.right,
        offset=mask.offset if isinstance(mask.offset, int) else 0,
        blocks=asked,
    )


def _only_padding(mask: Mask) -> bool:
    """Whether keys are padded, and nothing else is masked key by key."""
    others = (mask.bias_BT, mask.key_segments_BT)
    return mask.keys_BT is not None and not mask.has_band and all(x is None for x in others)


def _mask(static: _Static, bias: jax.Array | None, arrays: dict[str, jax.Array]) -> Mask:
    parts: dict[str, Any] = {"offset": static.offset} | arrays
    return Mask(left=static.left, right=static.right, bias_BT=bias, **parts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(
    static: _Static,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    arrays: dict[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    on_tpu = functools.partial(_kernel, static)
    if static.interpret:
        return on_tpu(q, k, v, bias, arrays)
    return jax.lax.platform_dependent(
        q, k, v, bias, arrays, tpu=on_tpu, default=functools.partial(_xla, static)
    )


def _xla(
    static: _Static,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    arrays: dict[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    mask = _mask(static, bias, arrays)
    return attention_xla(q, k, v, mask, scale=static.scale, softcap=static.softcap)


def _kernel(
    static: _Static,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    arrays: dict[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """The kernel on what it takes of a mask, and the rest of the mask around it."""
    mask = _mask(static, bias, arrays)
    key, value, weights, bias, query_segments, key_segments = _hidden(mask, k, v, q.shape[2], static.padding)
    out, lse = flash_kernel(
        q, key, value,
        scale=static.scale, blocks=static.blocks, softcap=static.softcap,
        left=mask.left, right=mask.right, offset=mask.offset,
        weights_BT=weights, bias_BT=bias, query_segments_BQ=query_segments, key_segments_BT=key_segments,
        vmem_limit_bytes=static.vmem_limit_bytes, interpret=static.interpret,
    )  # fmt: skip
    if mask.queries_BQ is not None:
        real = mask.queries_BQ[:, None, :]
        out, lse = jnp.where(real[..., None], out, 0), jnp.where(real, lse, -jnp.inf)
    return out, lse


def _hidden(mask: Mask, k: jax.Array, v: jax.Array, queries: int, padding: str) -> tuple[Any, ...]:
    """(keys, values, weights, bias, query segments, key segments) with the padded keys hidden in one of them.

    Weights, where no other mask is: a stand-in key may be out of sight of a query that the original is in sight of,
    or the other way round. Else the bias or the segments, which are compared key by key in any case.
    """
    bias, query_segments, key_segments = mask.bias_BT, mask.query_segments_BQ, mask.key_segments_BT
    real = mask.keys_BT
    if real is None:
        return k, v, None, bias, query_segments, key_segments
    # A masked value is multiplied by a weight of exactly zero, and zero times NaN is NaN.
    clean = jnp.where(real[:, None, :, None], v, 0)
    if bias is not None:
        keys = jnp.where(real[:, None, :, None], k, 0)
        return keys, clean, None, jnp.where(real, bias, -jnp.inf), query_segments, key_segments
    if _only_padding(mask) and padding == "exact":
        return *pad.exact(k, v, real), None, None, None
    key_segments = pad.segments(real, key_segments)
    if query_segments is None:
        query_segments = jnp.zeros((1, queries), jnp.int32)
    return k, clean, None, None, query_segments, key_segments


def _forward(static: _Static, q: Any, k: Any, v: Any, bias: Any, arrays: Any) -> tuple[Any, Any]:
    results: Any = _flash(static, q, k, v, bias, arrays)
    out, lse = results
    return (out, lse), (q, k, v, bias, arrays, out, lse)


def _backward(static: _Static, saved: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple:
    q, k, v, bias, arrays, out, lse = saved
    grads = backward(
        q,
        k,
        v,
        _mask(static, bias, arrays),
        out,
        lse,
        *cotangents,
        scale=static.scale,
        softcap=static.softcap,
    )
    return *grads, None


_flash.defvjp(_forward, _backward)
