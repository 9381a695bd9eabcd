"""tpuport's attention under the names that transformers looks up: the attention function and its mask function."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.attention.reference import attention
from tpuport.errors import PortError

NAME = "tpuport"


def transformers_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Traced. transformers' attention interface: query [B, H, Q, D], key, value [B, K, T, D] -> [B, Q, H, D].

    `attention_mask` is what `transformers_mask` made: boolean [B, 1, Q, T], or None for plain causal attention.
    Sliding windows are in the mask; the `sliding_window` keyword that some models pass besides is not needed.
    """
    if dropout:
        raise PortError("attention dropout is on", where=type(module).__name__, fix="call model.eval() first")
    if kwargs.get("output_attentions"):
        raise PortError(
            "fused attention has no weights to give", where="output_attentions=True", fix="leave it out"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q, k, v, mask, sinks, bias = compat.as_jax((query, key, value, attention_mask, s_aux, position_bias))
    if mask is None and causal and q.shape[2] > 1:
        mask = jnp.tril(jnp.ones((q.shape[2], k.shape[2]), jnp.bool_))[None, None]
    elif mask is not None:
        mask = mask[..., : k.shape[2]]
    if bias is not None:
        mask = bias if mask is None else jnp.where(_visible(mask), bias, jnp.finfo(bias.dtype).min)
    out = attention(q, k, v, mask, scale=float(scale), softcap=softcap, sinks_H=sinks)
    return compat.wrap(out.swapaxes(1, 2)), None


def _visible(mask: jax.Array) -> jax.Array:
    return mask if mask.dtype == jnp.bool_ else mask > jnp.finfo(mask.dtype).min


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
    local_size: int | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Traced. transformers' mask interface: a boolean mask [B, 1, Q, T], or None for plain causal attention.

    `kv_offset` may be a vector [T]: a ring buffer's slots then hold key positions arange(T) + kv_offset,
    negative where nothing has been written. `attention_mask` is [B, S] over key positions, True where a token is.
    """
    if mask_function is None:
        from transformers.masking_utils import causal_mask_function as mask_function
    if use_vmap:
        # A mask function of the user's own need not be index-based; transformers itself maps it over every index.
        from transformers.masking_utils import sdpa_mask

        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, use_vmap=True, device="jax",
        )  # fmt: skip
    no_window = local_size is None or kv_length < local_size
    if (
        allow_is_causal_skip
        and attention_mask is None
        and no_window
        and _is_zero(q_offset)
        and kv_length == q_length
    ):
        return None
    q_start, kv_start, padding = compat.as_jax((q_offset, kv_offset, attention_mask))
    query_Q = jnp.arange(q_length) + q_start
    key_T = jnp.arange(kv_length) + kv_start
    indices = compat.as_torch(
        (
            jnp.arange(batch_size)[:, None, None, None],
            jnp.zeros((1, 1, 1, 1), query_Q.dtype),
            query_Q[None, None, :, None],
            key_T[None, None, None, :],
        )
    )
    mask = compat.as_jax(mask_function(*indices))
    if not _is_zero(kv_offset):
        mask = mask & (key_T >= 0)
    if padding is not None:
        mask = mask & _padding(padding.astype(jnp.bool_), key_T, kv_offset)[:, None, None, :]
    return compat.wrap(jnp.broadcast_to(mask, (batch_size, 1, q_length, kv_length)))


def _padding(padding_BS: jax.Array, key_T: jax.Array, kv_offset: Any) -> jax.Array:
    """The padding mask at key positions [T]; positions past its end are padding."""
    length = key_T.shape[0]
    if isinstance(kv_offset, int):
        cut = padding_BS[:, kv_offset : kv_offset + length]
        return jnp.pad(cut, ((0, 0), (0, length - cut.shape[1])))
    return jnp.take(padding_BS, jnp.maximum(key_T, 0), axis=1, mode="fill", fill_value=False)


def _is_zero(offset: Any) -> bool:
    return isinstance(offset, int) and offset == 0


def _configs(model: torch.nn.Module) -> list[Any]:
    found = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return [c for c in found.values() if hasattr(c, "_attn_implementation_internal")]


def register_transformers() -> None:
    """Make `attn_implementation="tpuport"` known to transformers; only models that choose it change. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, transformers_attention)
    AttentionMaskInterface.register(NAME, transformers_mask)


@contextlib.contextmanager
def use(model: torch.nn.Module) -> Iterator[None]:
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
