"""tpuport's attention under the names that transformers looks up: the attention function and its mask function.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, S positions, D head dimension.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.attention.attend import attend
from tpuport.attention.mask import Mask
from tpuport.attention.provenance import structure_of
from tpuport.attention.register.lazy_mask import LazyMask, lazy_mask
from tpuport.attention.register.mask_functions import Places, Unstructured, read
from tpuport.errors import PortError

NAME = "tpuport"
_VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")


def transformers_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Traced. transformers' attention interface: query [B, H, Q, D], key, value [B, K, T, D] -> [B, Q, H, D].

    Tensors of the host stay with torch.

    Args:
        attention_mask: what `transformers_mask` made, or a tensor of the user's or the model's own that broadcasts to
            [B, H, Q, T], boolean or to be added; None is causal attention in a module that is causal.
        softcap, s_aux: as in Gemma 2, and the sinks [H] of GPT-OSS.
        position_bias: added to the scores, broadcasts to [B, H, Q, T].
        is_causal: None takes the module's; without effect beside a mask, as in transformers.
        kwargs: `sliding_window` is in the mask already; whatever else would change the result is refused.

    Raises:
        PortError: dropout, weights, or a kind of attention that is not computed here.
    """
    if not any(map(compat.is_ported, (query, key, value))) and softcap is None and s_aux is None:
        return _on_host(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, position_bias, **kwargs
        )
    _refuse(module, dropout, (query, key, value), kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    queries, keys = query.shape[2], key.shape[2]
    mask, reason = Mask(right=0) if causal and queries > 1 else Mask(), ""
    if attention_mask is not None:
        mask, reason = _structure(attention_mask, (*query.shape[:3], keys))
    if kwargs.get("indices") is not None:
        mask = _selected(mask, compat.as_jax(kwargs["indices"]), keys)
    if position_bias is not None:
        mask = _biased(mask, compat.as_jax(position_bias), (queries, keys))
    q, k, v, sinks = compat.as_jax((query, key, value, s_aux))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if _has_segments(kwargs) and mask.query_segments_BQ is None:
        raise PortError(
            "lengths of packed sequences, and a mask that does not tell the sequences apart",
            where=f"{type(module).__name__}: {', '.join(n for n in _VARLEN if kwargs.get(n) is not None)}",
            fix="give position_ids that start anew with each sequence, and neither attention_mask nor a cache",
        )
    out = attend(
        q, k, v, mask, scale=scale, softcap=softcap, sinks_H=sinks, source="transformers", note=reason
    )
    return compat.wrap(out.swapaxes(1, 2)), None


def _on_host(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """What transformers computes by torch; it takes neither a soft cap nor sinks."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(*args, **kwargs)


def _refuse(module: torch.nn.Module, dropout: float, tensors: tuple, kwargs: dict[str, Any]) -> None:
    """PortError for what would be ignored, or go wrong later."""
    where = type(module).__name__
    if dropout:
        raise PortError("attention dropout is on", where=where, fix="call model.eval() first")
    if kwargs.get("output_attentions"):
        raise PortError(
            "fused attention has no weights to give", where="output_attentions=True", fix="leave it out"
        )
    if not all(map(compat.is_ported, tensors)):
        raise PortError(
            "attention over tensors that are not on the device",
            where=where,
            fix="model = tpuport.port(model), and inputs on its device; or attn_implementation='sdpa' on the host",
        )
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise PortError(
                f"{what} is not computed by tpuport's attention", where=f"{where}: {name}", fix=_OTHER
            )


_OTHER = "model.set_attn_implementation('eager') keeps the model's own attention"
_REFUSED = {
    "cache": "paged attention",
    "head_mask": "a mask of whole heads",
    "block_indices": "attention to selected blocks of keys",
    "sinks": "a sink of each query",
}


def _has_segments(kwargs: dict[str, Any]) -> bool:
    """Whether the lengths of packed sequences are given."""
    return any(kwargs.get(name) is not None for name in _VARLEN)


def _structure(attention_mask: torch.Tensor, scores: tuple[int, ...]) -> tuple[Mask, str]:
    """Traced. A mask's structure, and why it has none; Q and T must be those of the scores."""
    if isinstance(attention_mask, LazyMask) and attention_mask.structure is not None:
        if tuple(attention_mask.shape[2:]) != scores[2:]:
            raise PortError(
                f"a mask {tuple(attention_mask.shape)} for scores {scores}", where="attention_mask"
            )
        return attention_mask.structure, attention_mask.reason
    batch, heads, queries, keys = scores
    found = structure_of(compat.to_jax(attention_mask), batch=batch, heads=heads, queries=queries, keys=keys)
    return found, "" if found.dense is None else "a mask tensor"


def _selected(mask: Mask, indices_BQN: jax.Array, keys: int) -> Mask:
    """Traced. The mask and, for each query, the keys that an indexer chose; an index of -1 is none."""
    batch, queries, _ = indices_BQN.shape
    places = jnp.where(indices_BQN < 0, keys, indices_BQN)  # beyond the end, where nothing is written
    rows = jnp.arange(batch)[:, None, None], jnp.arange(queries)[None, :, None]
    chosen = jnp.zeros((batch, queries, keys), jnp.bool_).at[(*rows, places)].set(True, mode="drop")[:, None]
    if mask.dense is None:
        return replace(mask, dense=chosen)
    if mask.dense.dtype == jnp.bool_:
        return replace(mask, dense=mask.dense & chosen)
    return replace(mask, dense=jnp.where(chosen, mask.dense, jnp.finfo(mask.dense.dtype).min))


def _biased(mask: Mask, bias: jax.Array, scores: tuple[int, int]) -> Mask:
    """Traced. The mask, and numbers that are added to the scores."""
    bias = jnp.broadcast_to(bias, (*bias.shape[:2], *scores))
    if mask.dense is None:
        return replace(mask, dense=bias)
    if mask.dense.dtype == jnp.bool_:
        return replace(mask, dense=jnp.where(mask.dense, bias, jnp.finfo(bias.dtype).min))
    lowest = jnp.finfo(mask.dense.dtype).min
    return replace(mask, dense=jnp.where(mask.dense <= lowest, lowest, mask.dense + bias))


def transformers_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable | None = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    local_size: int | None = None,
    device: Any = None,
    **kwargs: Any,
) -> Any:
    """Traced. transformers' mask interface: a boolean mask [B, 1, Q, T], structure until a model computes with it.

    None stands for plain causal attention, or for none hidden, where transformers allows that.

    Args:
        q_offset, kv_offset: positions of the first query and key. `kv_offset` may be a vector [T]: a ring buffer's
            slots then hold key positions arange(T) + kv_offset, negative where nothing has been written.
        attention_mask: [B, S] over key positions, True where a token is.
        use_vmap: the mask function need not take whole arrays.
        device: of the model's inputs; a mask on the host is transformers' own.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    if device is not None and torch.device(device).type not in ("jax", "privateuseone"):
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, local_size,
            allow_is_causal_skip, allow_is_bidirectional_skip, use_vmap, device, **kwargs,
        )  # fmt: skip
    q_start, kv_start = compat.as_jax((q_offset, kv_offset))
    places = Places(q_length, kv_length, q_start, kv_start)
    mask, reason = _read(function, places, (batch_size, use_vmap))
    if attention_mask is not None:
        padding = _padding(compat.to_jax(attention_mask).astype(jnp.bool_), places)
        mask = replace(mask, keys_BT=padding if mask.keys_BT is None else mask.keys_BT & padding)
    elif _may_skip(mask, places, local_size, (allow_is_causal_skip, allow_is_bidirectional_skip)):
        return None
    return lazy_mask(mask, (batch_size, 1, q_length, kv_length), reason)


def _read(function: Callable, places: Places, sizes: tuple[int, bool]) -> tuple[Mask, str]:
    """Traced. What a mask function says of these positions, and why it had to be called for all of them."""
    known = isinstance(places.query_start, int) and isinstance(places.key_start, int)
    try:
        if jnp.ndim(places.key_start) == 0 and (known or places.queries > 1):
            return read(function, places), ""
        reason = "several queries against the slots of a ring buffer"
    except Unstructured as error:
        reason = str(error)
    called = _called(function, places, sizes) & _written(places)
    if places.queries == 1:  # whatever the function is, for one query it hides keys
        return Mask(keys_BT=called[:, 0, 0]), ""
    found = structure_of(called, batch=sizes[0], heads=1, queries=places.queries, keys=places.keys)
    return found, "" if found.dense is None else reason


def _written(places: Places) -> jax.Array:
    """Which slots of the cache hold a position."""
    return jnp.arange(places.keys) + places.key_start >= 0


def _called(function: Callable, places: Places, sizes: tuple[int, bool]) -> jax.Array:
    """Traced. A mask function's answer for every query and key, [B or 1, 1, Q, T]."""
    batch, one_by_one = sizes
    positions = (
        jnp.arange(batch),
        jnp.zeros(1, jnp.int32),
        jnp.arange(places.queries) + places.query_start,
        jnp.arange(places.keys) + places.key_start,
    )
    call = lambda *indices: compat.as_jax(function(*compat.as_torch(indices)))  # noqa: E731
    if one_by_one:
        for axis in (3, 2, 1, 0):
            call = jax.vmap(call, in_axes=[0 if n == axis else None for n in range(4)])
        return call(*positions)
    spread = [x.reshape([-1 if n == axis else 1 for n in range(4)]) for axis, x in enumerate(positions)]
    mask = call(*spread)
    return jnp.broadcast_to(mask, (*mask.shape[:2], places.queries, places.keys))


def _padding(padding_BS: jax.Array, places: Places) -> jax.Array:
    """Traced. The padding mask at key positions, [B, T]; positions past its end are padding."""
    length, start = places.keys, places.key_start
    if isinstance(start, int):
        cut = padding_BS[:, start : start + length]
        return jnp.pad(cut, ((0, 0), (0, length - cut.shape[1])))
    at = jnp.maximum(jnp.arange(length) + start, 0)
    return jnp.take(padding_BS, at, axis=1, mode="fill", fill_value=False)


def _may_skip(mask: Mask, places: Places, window: int | None, allowed: tuple[bool, bool]) -> bool:
    """Whether None says the same as this mask."""
    causal, bidirectional = allowed
    given = {part.name for part in fields(mask) if getattr(mask, part.name) is not None} - {"offset"}
    if not given:
        return bidirectional or (causal and places.queries == 1)
    if window is not None and places.keys <= window:
        # Of chunks that are longer than the sequence there is one.
        given -= {"query_segments_BQ", "key_segments_BT"}
    square = places.queries == places.keys and isinstance(mask.offset, int) and mask.offset == 0
    return causal and square and given == {"right"} and mask.right == 0


def _configs(model: torch.nn.Module) -> list[Any]:
    found = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return [c for c in found.values() if hasattr(c, "_attn_implementation_internal")]


def register_transformers() -> None:
    """Make `attn_implementation="tpuport"` known to transformers; only models that choose it change. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, transformers_attention)
    AttentionMaskInterface.register(NAME, transformers_mask)


def unregister_transformers() -> None:
    """Take both names out of transformers again. A model that has chosen them has to choose others. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(NAME, None)


@contextlib.contextmanager
def use_in_model(model: torch.nn.Module) -> Iterator[None]:
    """Let a transformers model compute its attention through tpuport inside the block.

    A model that cannot be told so keeps its own.
    """
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        yield
        return
    register_transformers()
    previous = [(config, config._attn_implementation_internal) for config in _configs(model)]
    for config, _ in previous:
        config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        for config, name in previous:
            config._attn_implementation_internal = name
