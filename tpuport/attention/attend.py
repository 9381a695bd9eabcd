"""The entry of every attention call: the fused kernel, or the exact definition in XLA,
and a record of why.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values.
"""

import math
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from tpuport.attention.attention_settings import Settings, current_settings
from tpuport.attention.call_report import Call, find_call_site, record_call
from tpuport.attention.lane_maps import with_matrix_products
from tpuport.attention.mask import Mask, broadcasts_to
from tpuport.attention.mesh_attention import attention_on_mesh
from tpuport.attention.provenance.joined_sequences import parts_along
from tpuport.attention.reference import apply_sinks, attention_with_lse
from tpuport.attention.sharding_plan import CallSizes, plan_sharding
from tpuport.attention.xla_attention import attention_xla
from tpuport.compat.randomness import next_key
from tpuport.errors import PortError

HEAD_DIMENSIONS: Final = range(32, 257)
# The kernel works on at least 128 queries at a time, and reads the keys once for each
# query head. With so few queries most of that is padding, reading the keys is all that
# takes time, and XLA reads them once for a whole group of heads.
FEW_QUERIES: Final = 16
# One tile of scores, 64 KiB a head: keeping it out of memory saves less than starting a
# kernel costs.
FEW_SCORES: Final = 128 * 128
_EXPECTED_SHAPES: Final = (
    "query [B, H, Q, D], key [B, K, T, D], value [B, K, T, C], with K a divisor of H"
)
_MASK_AXES: Final = {
    "keys_BT": "BT", "queries_BQ": "BQ", "query_segments_BQ": "BQ", "key_segments_BT": "BT", "bias_BT": "BT",
    "dense": "BHQT",
}  # fmt: skip

_PART_NAMES: Final = {
    "keys_BT": "padding", "queries_BQ": "queries", "query_segments_BQ": "segments", "bias_BT": "bias of keys",
}  # fmt: skip


class _Choice(NamedTuple):
    """What computes a call, "flash" or "xla", and why."""

    implementation: str
    reason: str


def attend(
    query_BHQD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTC: jax.Array,
    mask: Mask | None,
    *,
    scale: float | None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    dropout_p: float = 0.0,
    source: str,
    note: str = "",
    site: tuple[str, str] | None = None,
) -> jax.Array:
    """Traced. Attention by whatever serves this call best, recorded for `explain`. A
    query that sees no key gets zeros.

    Args:
        query_BHQD, key_BKTD, value_BKTC: of the same floating dtype; K divides H.
        mask: who sees whom; None: every query every key.
        scale: factor on the dot products; None is D ** -0.5.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: one extra logit a head, [H], or one of each query, [B, H, Q]; it has no
            value.
        dropout_p: share of the weights to drop at random, anew in each call.
        source: the library whose call this is: "torch", "transformers" or "diffusers".
        note: why the mask has no structure, if the caller knows.
        site: (file and line, class of the module) of the call; None looks for it in the
            stack.

    Returns:
        [B, H, Q, C] in the query's dtype.

    Raises:
        PortError: shapes or dtypes that do not fit each other, or
            `register(implementation="flash")` for a call that the kernel does not
            serve.
    """
    mask = mask or Mask()
    settings = current_settings() or Settings()
    if scale is None:
        # A head dimension of 0 is legal in torch, and 0 ** -0.5 raises.
        scale = float((query_BHQD.shape[3] or 1) ** -0.5)
    scale = float(scale)
    _check_arrays(query_BHQD, key_BKTD, value_BKTC, mask, sinks)
    obstacle = _find_obstacle(
        query_BHQD, key_BKTD, value_BKTC, mask, sinks, note, dropout_p
    )
    choice = _choose(query_BHQD.shape[2], key_BKTD.shape[2], settings, obstacle)
    where, module = site or find_call_site()
    call = Call(
        site=where, module=module, source=source, query=query_BHQD.shape, key=key_BKTD.shape, value=value_BKTC.shape,
        dtype=str(query_BHQD.dtype), implementation=choice.implementation, reason=choice.reason,
        mask=describe_mask(mask), mesh=_describe_mesh(query_BHQD, key_BKTD, settings, choice),
        padding=_describe_padding(mask, settings, choice),
    )  # fmt: skip
    # Before computing, so that `explain` lists a call that fails, too.
    record_call(call)
    if _is_empty(query_BHQD, value_BKTC):
        return jnp.zeros((*query_BHQD.shape[:3], value_BKTC.shape[3]), query_BHQD.dtype)
    if choice.implementation == "flash":
        # Rotary embeddings of so many tokens would be copied in several layouts.
        query_BHQD, key_BKTD = map(_with_products_by_part, (query_BHQD, key_BKTD))
        return attention_on_mesh(
            query_BHQD,
            key_BKTD,
            value_BKTC,
            mask,
            settings,
            scale=scale,
            softcap=softcap,
            sinks_H=sinks,
        )
    if dropout_p:
        dense = mask.to_dense(query_BHQD.shape[2], key_BKTD.shape[2])
        out, lse = attention_with_lse(
            query_BHQD, key_BKTD, value_BKTC, dense, scale=scale, softcap=softcap, dropout_p=dropout_p,
            dropout_key=next_key(),
        )  # fmt: skip
    else:
        out, lse = attention_xla(
            query_BHQD, key_BKTD, value_BKTC, mask, scale=scale, softcap=softcap
        )
    return apply_sinks(out, lse, sinks)


def _with_products_by_part(array: jax.Array) -> jax.Array:
    """Traced. `with_matrix_products` of each part that was joined along the sequence,
    and these joined again.
    """
    parts = tuple(map(with_matrix_products, parts_along(array, 2)))
    return jnp.concatenate(parts, axis=2)


def _is_empty(query: jax.Array, value: jax.Array) -> bool:
    return 0 in (*query.shape[:3], *value.shape[2:])


def _check_arrays(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    sinks: jax.Array | None,
) -> None:
    where = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        dtypes = f"{query.dtype}, {key.dtype} and {value.dtype}"
        raise PortError(
            f"attention over {dtypes}",
            where=where,
            fix="give query, key and value the same dtype",
        )
    (batch, heads, queries, dim), (kv_heads, keys) = query.shape, key.shape[1:3]
    if key.shape != (batch, kv_heads, keys, dim) or value.shape[:3] != key.shape[:3]:
        raise PortError(
            "attention over shapes that do not fit each other",
            where=where,
            fix=_EXPECTED_SHAPES,
        )
    # Not `heads % kv_heads`, because there may be no heads.
    if math.gcd(heads, kv_heads) != kv_heads:
        raise PortError(
            f"{heads} query heads cannot share {kv_heads} key/value heads",
            where=where,
            fix=_EXPECTED_SHAPES,
        )
    if sinks is not None and sinks.shape not in ((heads,), (batch, heads, queries)):
        raise PortError(
            f"{sinks.shape} sinks for {heads} heads",
            where="sinks",
            fix="give one sink for each head, [H], or for each query, [B, H, Q]",
        )
    sizes = {"B": batch, "H": heads, "Q": queries, "T": keys}
    for name, array in mask.present(_MASK_AXES).items():
        expected = tuple(map(sizes.__getitem__, _MASK_AXES[name]))
        # Batch and heads may be 1; of keys, each needs its own.
        if not broadcasts_to(array.shape, expected) or array.shape[-1] != expected[-1]:
            raise PortError(
                f"a mask of shape {array.shape} for {expected}",
                where=f"{name}; {where}",
            )


def _find_obstacle(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    sinks: jax.Array | None,
    note: str,
    dropout_p: float,
) -> str | None:
    """Why the kernel cannot serve this call; None if it can."""
    if not 0 <= dropout_p <= 1:
        raise PortError(
            f"a dropout probability has to be between 0 and 1, but got {dropout_p}"
        )
    if dropout_p:
        return f"dropout of {dropout_p} is applied to weights, which the kernel does not keep"
    if _is_empty(query, value):
        return "nothing to compute: a dimension is 0"
    if mask.dense is not None:
        why = (
            note or "made outside of the traced function, or in a way that is not known"
        )
        return f"a mask without known structure, {_describe_array(mask.dense)}: {why}"
    if sinks is not None and sinks.ndim > 1:
        return "a sink of each query; the kernel takes one a head"
    if query.dtype not in (jnp.bfloat16, jnp.float32):
        return f"the kernel computes bfloat16 and float32, not {query.dtype}"
    for dim in (query.shape[3], value.shape[3]):
        if dim not in HEAD_DIMENSIONS:
            return f"head dimension {dim} is not in 32..256"
    return None


def _choose(
    queries: int, keys: int, settings: Settings, obstacle: str | None
) -> _Choice:
    """Whether the kernel serves a call, and why."""
    if settings.implementation == "xla":
        return _Choice("xla", 'asked for: implementation="xla"')
    if settings.implementation == "flash":
        if obstacle is not None:
            raise PortError(
                f"the fused kernel cannot serve an attention call: {obstacle}",
                where='register(implementation="flash")',
                fix='register(implementation="auto") computes such a call exactly in XLA',
            )
        return _Choice("flash", 'asked for: implementation="flash"')
    if obstacle is not None:
        return _Choice("xla", obstacle)
    if queries <= FEW_QUERIES:
        plural = "query" if queries == 1 else "queries"
        return _Choice(
            "xla", f"{queries} {plural}, where the kernel works on 128 at a time"
        )
    if queries * keys <= FEW_SCORES:
        return _Choice(
            "xla", f"{queries} x {keys} scores a head are too few to be worth a kernel"
        )
    return _Choice("flash", f"{queries} x {keys} scores a head stay out of memory")


def _describe_mesh(
    query: jax.Array, key: jax.Array, settings: Settings, choice: _Choice
) -> str:
    """How the devices of the mesh divide the call."""
    if choice.implementation == "flash":
        plan = plan_sharding(CallSizes.of(query, key), settings.mesh, settings.sequence)
        return "; ".join(plan.reasons) or "one device"
    if settings.mesh is None or settings.mesh.size == 1:
        return "one device"
    return f"{settings.mesh.size} devices, as the compiler places it"


def _describe_padding(mask: Mask, settings: Settings, choice: _Choice) -> str:
    # Nothing is padded.
    if mask.keys_BT is None:
        return ""
    # The other modes exist in the kernel only.
    if choice.implementation == "xla":
        return "exact"
    return settings.padding


def describe_mask(mask: Mask) -> str:
    """A mask in a few words: "causal, padding", "window 4096", "dense [1, 1, 8, 8]
    bool", "none".
    """
    parts = []
    if mask.has_band:
        parts.append(_describe_band(mask))
    # Both are padding, of keys or of queries as well.
    padding = [_PART_NAMES[name] for name in mask.present(("keys_BT", "queries_BQ"))]
    if padding:
        parts.append("+".join(padding))
    parts += [
        _PART_NAMES[name] for name in mask.present(("query_segments_BQ", "bias_BT"))
    ]
    if mask.dense is not None:
        parts.append(f"dense {_describe_array(mask.dense)}")
    return ", ".join(parts) or "none"


def _describe_array(array: Any) -> str:
    return f"{list(array.shape)} {array.dtype}"


def _describe_band(mask: Mask) -> str:
    match mask.left, mask.right:
        case None, 0:
            text = "causal"
        case int(left), 0:
            # With the query's own key.
            text = f"window {left + 1}"
        case _:
            limits = {"left": "all", "right": "all"} | mask.present(("left", "right"))
            text = f"band {limits['left']} before, {limits['right']} after"
    if not isinstance(mask.offset, int):
        return f"{text}, traced offset"
    if mask.offset:
        text += f", offset {mask.offset}"
    return text
