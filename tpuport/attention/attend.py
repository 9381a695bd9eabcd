"""One door for every attention call: the fused kernel, or the exact definition in XLA, and a note of why.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D head dimension of queries and
keys, C of values.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tpuport.attention.attention_settings import Settings, current_settings
from tpuport.attention.call_report import Call, find_call_site, record_call
from tpuport.attention.mask import Mask
from tpuport.attention.mesh_attention import plan, sharded
from tpuport.attention.sinks import apply_sinks
from tpuport.attention.xla_attention import attention_xla
from tpuport.errors import PortError

HEAD_DIMENSIONS = range(32, 257)
# The kernel works on at least 128 queries at a time, and reads the keys once for each query head. With so few queries
# most of that is padding, reading the keys is all that takes time, and XLA reads them once for a whole group of heads.
FEW_QUERIES = 16
# One tile of scores, 64 KiB a head: keeping it out of memory saves less than starting a kernel costs.
FEW_SCORES = 128 * 128


def attend(
    query_BHQD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTC: jax.Array,
    mask: Mask | None,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: jax.Array | None = None,
    source: str,
    note: str = "",
    site: tuple[str, str] | None = None,
) -> jax.Array:
    """Traced. Attention by whatever serves this call best, noted for `explain`. A query that sees no key gets zeros.

    Args:
        query_BHQD, key_BKTD, value_BKTC: of one floating dtype; K divides H.
        mask: who sees whom; None: every query every key.
        scale: factor on the dot products.
        softcap: scores become softcap * tanh(score / softcap).
        sinks_H: one extra logit a head, without a value.
        source: the library whose call this is: "torch", "transformers" or "diffusers".
        note: why a mask came without structure, where its maker knows.
        site: (place in the code, class of the module) of the call; None looks for it in the stack.

    Returns:
        [B, H, Q, C] in the query's dtype.

    Raises:
        PortError: shapes or dtypes that do not fit each other, or `register(implementation="flash")` for a call that
            the kernel does not serve.
    """
    mask = Mask() if mask is None else mask
    options = current_settings() or Settings()
    _check(query_BHQD, key_BKTD, value_BKTC, mask, sinks_H)
    obstacle = _obstacle(query_BHQD, key_BKTD, value_BKTC, mask, note)
    fused, reason = _choose(query_BHQD.shape[2], key_BKTD.shape[2], options, obstacle)
    _note(query_BHQD, key_BKTD, value_BKTC, mask, options, (fused, reason), source, site)
    if 0 in (*query_BHQD.shape[:3], key_BKTD.shape[2], value_BKTC.shape[3]):
        return jnp.zeros((*query_BHQD.shape[:3], value_BKTC.shape[3]), query_BHQD.dtype)
    if fused:
        return sharded(
            query_BHQD, key_BKTD, value_BKTC, mask, mesh=options.mesh, scale=scale, softcap=softcap,
            sinks_H=sinks_H, sequence=options.sequence, padding=options.padding, interpret=options.interpret,
        )  # fmt: skip
    out, lse = attention_xla(query_BHQD, key_BKTD, value_BKTC, mask, scale=scale, softcap=softcap)
    return out if sinks_H is None else apply_sinks(out, lse, sinks_H)


def _check(query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, sinks: jax.Array | None) -> None:
    where = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        dtypes = f"{query.dtype}, {key.dtype} and {value.dtype}"
        raise PortError(f"attention over {dtypes}", where=where, fix="give query, key and value one dtype")
    (batch, heads, queries, dim), (kv_heads, keys) = query.shape, key.shape[1:3]
    if key.shape != (batch, kv_heads, keys, dim) or value.shape[:3] != key.shape[:3]:
        raise PortError("attention over shapes that do not fit each other", where=where, fix=_FITS)
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise PortError(
            f"{heads} query heads cannot share {kv_heads} key/value heads", where=where, fix=_FITS
        )
    if sinks is not None and sinks.shape != (heads,):
        raise PortError(f"{sinks.shape} sinks for {heads} heads", where="sinks", fix="give one a head")
    for name, axes in _MASK_AXES.items():
        array, sizes = getattr(mask, name), {"B": batch, "H": heads, "Q": queries, "T": keys}
        whole = tuple(sizes[axis] for axis in axes)
        if array is not None and not _fits(array.shape, whole):
            raise PortError(f"a mask of shape {array.shape} for {whole}", where=f"{name}; {where}")


_FITS = "query [B, H, Q, D], key [B, K, T, D], value [B, K, T, C], with K a divisor of H"
_MASK_AXES = {
    "keys_BT": "BT", "queries_BQ": "BQ", "query_segments_BQ": "BQ", "key_segments_BT": "BT", "bias_BT": "BT",
    "dense": "BHQT",
}  # fmt: skip


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a mask's array has these sizes; batch and heads may be 1."""
    if len(shape) != len(whole):
        return False
    return shape[-1] == whole[-1] and all(n in (1, m) for n, m in zip(shape[:2], whole[:2], strict=True))


def _obstacle(query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, note: str) -> str | None:
    """Why the kernel cannot serve this call; None where it can."""
    dims = (query.shape[3], value.shape[3])
    if 0 in (*query.shape[:3], key.shape[2], value.shape[3]):
        return "nothing to compute: a dimension is 0"
    if mask.dense is not None:
        shape = f"{list(mask.dense.shape)} {mask.dense.dtype}"
        why = note or "made outside of the traced function, or in a way that is not known"
        return f"a mask without known structure, {shape}: {why}"
    if query.dtype not in (jnp.bfloat16, jnp.float32):
        return f"the kernel computes bfloat16 and float32, not {query.dtype}"
    if not all(dim in HEAD_DIMENSIONS for dim in dims):
        return f"head dimension {dims[0] if dims[0] not in HEAD_DIMENSIONS else dims[1]} is not in 32..256"
    return None


def _choose(queries: int, keys: int, options: Settings, obstacle: str | None) -> tuple[bool, str]:
    """Whether the kernel serves a call, and why."""
    if options.implementation == "xla":
        return False, 'asked for: implementation="xla"'
    if options.implementation == "flash":
        if obstacle is not None:
            raise PortError(
                f"the fused kernel cannot serve an attention call: {obstacle}",
                where='register(implementation="flash")',
                fix='register(implementation="auto") computes such a call exactly in XLA',
            )
        return True, 'asked for: implementation="flash"'
    if obstacle is not None:
        return False, obstacle
    if queries <= FEW_QUERIES:
        return (
            False,
            f"{queries} {'query' if queries == 1 else 'queries'}, where the kernel works on 128 at a time",
        )
    if queries * keys <= FEW_SCORES:
        return False, f"{queries} x {keys} scores a head are too few to be worth a kernel"
    return True, f"{queries} x {keys} scores a head stay out of memory"


def _note(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    options: Settings,
    chosen: tuple[bool, str],
    source: str,
    site: tuple[str, str] | None,
) -> None:
    fused, reason = chosen
    padding = (options.padding if fused else "exact") if mask.keys_BT is not None else ""
    where, module = find_call_site() if site is None else site
    call = Call(
        site=where, module=module, source=source, query=query.shape, key=key.shape, value=value.shape,
        dtype=str(query.dtype), implementation="flash" if fused else "xla", reason=reason, mask=describe(mask),
        mesh=_share(query, key, options) if fused else _by_compiler(options), padding=padding,
    )  # fmt: skip
    record_call(call)


def _share(query: jax.Array, key: jax.Array, options: Settings) -> str:
    """How the devices of the mesh share the call out."""
    (batch, heads, queries), (kv_heads, keys) = query.shape[:3], key.shape[1:3]
    made = plan(
        batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, mesh=options.mesh,
        sequence=options.sequence,
    )  # fmt: skip
    return "; ".join(made.reasons) or "one device"


def _by_compiler(options: Settings) -> str:
    devices = 1 if options.mesh is None else options.mesh.size
    return "one device" if devices == 1 else f"{devices} devices, as the compiler places it"


def describe(mask: Mask) -> str:
    """A mask in a few words: "causal + padding", "window 4096", "dense [1, 1, 8, 8] bool", "none"."""
    parts = [_band(mask.left, mask.right, mask.offset)] if mask.has_band else []
    if mask.keys_BT is not None or mask.queries_BQ is not None:
        given = {"padding": mask.keys_BT, "queries": mask.queries_BQ}
        parts.append("+".join(name for name, array in given.items() if array is not None))
    if mask.query_segments_BQ is not None:
        parts.append("segments")
    if mask.bias_BT is not None:
        parts.append("bias of keys")
    if mask.dense is not None:
        parts.append(f"dense {list(mask.dense.shape)} {mask.dense.dtype}")
    return ", ".join(parts) or "none"


def _band(left: int | None, right: int | None, offset: Any) -> str:
    if right == 0:
        text = "causal" if left is None else f"window {left + 1}"
    else:
        text = f"band {'all' if left is None else left} before, {'all' if right is None else right} after"
    if isinstance(offset, int):
        return text if offset == 0 else f"{text}, offset {offset}"
    return f"{text}, traced offset"
