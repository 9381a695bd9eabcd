"""Fused attention: one traced function that is the TPU kernel where it is lowered for a
TPU, and plain XLA elsewhere.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension, C of values.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from tpuport.attention import padding as pad
from tpuport.attention.backward import backward
from tpuport.attention.block_sizes import block_sizes, vmem_limit_bytes
from tpuport.attention.flash_kernel import flash_kernel
from tpuport.attention.kernel_cost import (
    SHORT,
    Blocks,
    KernelCall,
    rounds_of_keys,
    vmem_bytes,
)
from tpuport.attention.mask import Mask
from tpuport.attention.xla_attention import attention_xla
from tpuport.errors import PortError
from tpuport.hardware.generations import target_generation

# The parts of a mask that are arrays, or numbers that may be traced; without the bias,
# which has a gradient.
_MASK_ARRAYS: Final = (
    "offset",
    "keys_BT",
    "queries_BQ",
    "query_segments_BQ",
    "key_segments_BT",
)

Arrays = dict[str, jax.Array]
Results = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class _Static:
    """What decides which program runs; hashable. `offset` is None if it is traced."""

    left: int | None
    right: int | None
    offset: int | None
    scale: float
    softcap: float | None
    padding: str
    blocks: Blocks
    rounds: int
    vmem_limit_bytes: int
    interpret: bool

    def mask(self, bias_BT: jax.Array | None, arrays: Arrays) -> Mask:
        """The call's mask, put together again."""
        parts: dict[str, Any] = {"offset": self.offset} | arrays
        return Mask(left=self.left, right=self.right, bias_BT=bias_BT, **parts)


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
    in_rounds: bool = True,
    interpret: bool = False,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. Attention without a score matrix in memory, and the log of its softmax's
    sum (-inf: no key seen).

    Both results can be differentiated with respect to query, key, value and the mask's
    bias.

    Args:
        mask: anything but `dense`, which only the XLA definition takes.
        padding: how `keys_BT` is applied if nothing else is masked key by key: "exact",
            "segment_ids" or "zero". The first two differ in the kernel only; the third
            is wrong, and wrong on every device.
        blocks: rows of queries, keys of a step of the kernel, keys of a chunk of it;
            None takes the tuned ones.
        in_rounds: whether a step may fetch several blocks of keys together, and compute
            them in rounds of a loop.
        interpret: run the kernel itself on any device, slowly, for tests.

    Raises:
        PortError: a dense mask, an unknown `padding`, or blocks that are not multiples
            of 128.
    """
    pad.check_mode(padding)
    if mask.dense is not None:
        raise PortError(
            "the kernel takes masks as structure",
            where="mask.dense",
            fix="use attention_xla",
        )
    if padding == "zero" and mask.keys_BT is not None and _masks_padding_only(mask):
        # Before the kernel, so that XLA and gradients have the same fault as the
        # kernel: it is for comparison.
        key_BKTD, value_BKTC, _ = pad.zeroed(key_BKTD, value_BKTC, mask.keys_BT)
        mask = replace(mask, keys_BT=None)
    arrays = mask.present(_MASK_ARRAYS)
    offset = None
    # A number is a part of the program, a traced scalar an argument of it.
    if isinstance(mask.offset, int):
        offset = arrays.pop("offset")
    chosen_blocks = _choose_blocks(
        query_BHQD, key_BKTD, value_BKTC, mask, padding, blocks
    )
    rounds = 1
    if in_rounds:
        rounds = _choose_rounds(query_BHQD, value_BKTC, mask, chosen_blocks)
    static = _Static(
        mask.left, mask.right, offset, float(scale), softcap, padding, chosen_blocks, rounds,
        vmem_limit_bytes(needed=_vmem_needed(query_BHQD, value_BKTC, chosen_blocks)), interpret,
    )  # fmt: skip
    # An operation of its own outside of a program, as any other.
    run = _flash_traced_once if isinstance(query_BHQD, Tracer) else _flash
    return run(
        static,
        query_BHQD,
        key_BKTD,
        value_BKTC,
        mask.bias_BT,
        jax.tree.map(jnp.asarray, arrays),
    )


def _choose_blocks(
    query_BHQD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTC: jax.Array,
    mask: Mask,
    padding: str,
    blocks: tuple[int, int, int] | None,
) -> Blocks:
    batch, heads, queries, head_dim = query_BHQD.shape
    keys, value_dim = value_BKTC.shape[2:]
    masks_by_segment = mask.key_segments_BT is not None or (
        mask.keys_BT is not None and padding == "segment_ids"
    )
    # Sizes are chosen by cost alone, for which a traced offset counts as none.
    offset = mask.offset
    if not isinstance(offset, int):
        offset = 0
    return block_sizes(
        heads=batch * heads, queries=queries, keys=keys, head_dim=head_dim, value_dim=value_dim,
        dtype=key_BKTD.dtype.name, masked=mask.has_band or mask.bias_BT is not None or masks_by_segment,
        left=mask.left, right=mask.right, offset=offset, blocks=blocks,
    )  # fmt: skip


def _choose_rounds(
    query_BHQD: jax.Array, value_BKTC: jax.Array, mask: Mask, blocks: Blocks
) -> int:
    batch, heads, queries, dim = query_BHQD.shape
    keys, value_dim = value_BKTC.shape[2:]
    call = KernelCall(
        batch * heads,
        queries,
        keys,
        dim,
        value_dim,
        query_BHQD.dtype.itemsize,
        mask.left,
        mask.right,
    )
    return rounds_of_keys(call, blocks, target_generation())


def _vmem_needed(
    query_BHQD: jax.Array, value_BKTC: jax.Array, blocks: Blocks
) -> int | None:
    """Vector memory that a call takes; None if hidden states of so many queries would
    not fit beside the kernel.
    """
    queries, dim = query_BHQD.shape[2:]
    keys, value_dim = value_BKTC.shape[2:]
    if queries > SHORT:
        return None
    return vmem_bytes(
        KernelCall(1, queries, keys, dim, value_dim, query_BHQD.dtype.itemsize), blocks
    )


def _masks_padding_only(mask: Mask) -> bool:
    """Whether nothing but padding, if that, is masked key by key."""
    return not mask.has_band and mask.bias_BT is None and mask.key_segments_BT is None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(
    static: _Static,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    arrays: Arrays,
) -> Results:
    on_tpu = functools.partial(_run_kernel, static)
    if static.interpret:
        return on_tpu(q, k, v, bias, arrays)
    # Decided when the program is lowered, so a program traced on a CPU host can be
    # compiled for a TPU.
    elsewhere = functools.partial(_run_xla, static)
    return jax.lax.platform_dependent(
        q, k, v, bias, arrays, tpu=on_tpu, default=elsewhere
    )


# The blocks of a model call it with equal shapes: jax traces it for the first of them,
# and gives the others the same equations.
_flash_traced_once = jax.jit(_flash, static_argnums=0, inline=True)


def _run_xla(
    static: _Static,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    arrays: Arrays,
) -> Results:
    mask = static.mask(bias, arrays)
    return attention_xla(q, k, v, mask, scale=static.scale, softcap=static.softcap)


def _run_kernel(
    static: _Static,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    arrays: Arrays,
) -> Results:
    """The kernel, and around it the parts of the mask that it does not take."""
    mask = static.mask(bias, arrays)
    operands = _hide_padding(mask, k, v, q.shape[2], static.padding)
    out, lse = flash_kernel(
        q, operands.key, operands.value,
        scale=static.scale, blocks=static.blocks, rounds=static.rounds, softcap=static.softcap,
        left=mask.left, right=mask.right, offset=mask.offset,
        weights_BT=operands.weights, bias_BT=operands.bias,
        query_segments_BQ=operands.query_segments, key_segments_BT=operands.key_segments,
        vmem_limit_bytes=static.vmem_limit_bytes, interpret=static.interpret,
    )  # fmt: skip
    if mask.queries_BQ is not None:
        is_real = mask.queries_BQ[:, None, :]
        out, lse = (
            jnp.where(is_real[..., None], out, 0),
            jnp.where(is_real, lse, -jnp.inf),
        )
    return out, lse


class _KernelOperands(NamedTuple):
    """Keys, values, and the arrays [B or 1, Q or T] by which the kernel hides keys."""

    key: jax.Array
    value: jax.Array
    weights: jax.Array | None = None
    bias: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None


def _hide_padding(
    mask: Mask, k: jax.Array, v: jax.Array, queries: int, padding: str
) -> _KernelOperands:
    """The kernel's operands, with the padded keys hidden by one of them.

    By weights if there is no other mask: with one, the copy of a real key that stands
    in for a padded key might be hidden from a query that sees the original, or the
    other way round. Else by the bias or the segments, which are compared key by key in
    any case.
    """
    bias, query_segments, key_segments = (
        mask.bias_BT,
        mask.query_segments_BQ,
        mask.key_segments_BT,
    )
    is_real = mask.keys_BT
    if is_real is None:
        return _KernelOperands(k, v, None, bias, query_segments, key_segments)
    # A masked value is multiplied by a weight of exactly zero, and zero times NaN is
    # NaN.
    clean_value = jnp.where(is_real[:, None, :, None], v, 0)
    if bias is not None:
        clean_key = jnp.where(is_real[:, None, :, None], k, 0)
        hiding_bias = jnp.where(is_real, bias, -jnp.inf)
        return _KernelOperands(
            clean_key, clean_value, None, hiding_bias, query_segments, key_segments
        )
    if padding == "exact" and _masks_padding_only(mask):
        return _KernelOperands(*pad.exact(k, v, is_real))
    if query_segments is None:
        query_segments = jnp.zeros((1, queries), jnp.int32)
    return _KernelOperands(
        k, clean_value, None, None, query_segments, pad.segments(is_real, key_segments)
    )


def _forward(
    static: _Static, q: Any, k: Any, v: Any, bias: Any, arrays: Any
) -> tuple[Any, Any]:
    results: Any = _flash(static, q, k, v, bias, arrays)
    return results, (q, k, v, bias, arrays, *results)


def _backward(
    static: _Static, saved: tuple, cotangents: tuple[jax.Array, jax.Array]
) -> tuple:
    q, k, v, bias, arrays, out, lse = saved
    mask = static.mask(bias, arrays)
    gradients = backward(
        q, k, v, mask, out, lse, *cotangents, scale=static.scale, softcap=static.softcap
    )
    return *gradients, None


_flash.defvjp(_forward, _backward)
