"""LED's encoder with global attention by masks of fixed shape, and its decoder with a
cache of fixed shape.

transformers looks up which tokens attend globally, copies their keys, and asks first
whether there are any. Here each query is compared with all keys, a block of queries at
a time, and a mask says which of them it sees. The decoder's step of one token has no
mask in transformers, where the cache ends with that token. Shapes: B rows, S tokens, C
queries of a block, H heads, D head width, E model width, Q new tokens, T cache columns.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from tpuport import compat
from tpuport.compat.recording import as_one_node
from tpuport.errors import PortError
from tpuport.patches.switch import with_original


class Columns:
    """Numbers [B, S]: below zero for padding, 0 for tokens with local attention, above
    it with global attention.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    def __getitem__(self, index: Any) -> "Columns":
        return Columns(self.numbers[index])

    def __lt__(self, other: float) -> torch.Tensor:
        return self.numbers < other

    def __gt__(self, other: float) -> "_NoQuestion":
        return _NoQuestion()


class _NoQuestion:
    """In place of which tokens attend globally: the encoder asks whether there are any,
    and passes the answer on.
    """

    def flatten(self) -> "_NoQuestion":
        return self

    def any(self) -> "_NoQuestion":
        return self

    def item(self) -> bool:
        return False


@with_original
def mask_columns(
    original: Callable[..., torch.Tensor],
    mask: torch.Tensor,
    dtype: torch.dtype,
    tgt_len: int | None = None,
) -> Any:
    """Traced. As `_prepare_4d_attention_mask_inverted`, of which the encoder reads
    signs alone.
    """
    return Columns(original(mask, dtype, tgt_len))


def attend(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    is_index_masked: Any = None,
    is_index_global_attn: Any = None,
    is_global_attn: Any = None,
    output_attentions: bool = False,
) -> tuple[torch.Tensor]:
    """Traced. [B, S, E] of hidden states [B, S, E], as
    `LEDEncoderSelfAttention.forward`, and Longformer's.

    Raises:
        PortError: for output_attentions, which has one column for each global token.
    """
    if output_attentions:
        raise PortError(
            "these attention weights have a column for each global token, whose number is not known while tracing",
            where="output_attentions=True",
            fix="leave it out, or run the model in torch, after tpuport.to_cpu(model)",
        )

    def project(layer: nn.Module) -> torch.Tensor:
        return layer(hidden_states).unflatten(-1, (self.num_heads, self.head_dim))

    near = project(self.query), project(self.key), project(self.value)
    wide = project(self.query_global), project(self.key_global), project(self.value_global)  # fmt: skip
    numbers, reach = attention_mask.numbers, self.one_sided_attn_window_size
    return (_attend(near, wide, numbers, reach),)


@as_one_node
def _attend(
    near: tuple[torch.Tensor, ...],
    wide: tuple[torch.Tensor, ...],
    numbers: torch.Tensor,
    reach: int,
) -> torch.Tensor:
    """Traced. [B, S, E] of queries, keys and values [B, S, H, D] of local and of global
    attention.
    """
    query_BSHD, key_BSHD, value_BSHD = compat.as_jax(near)
    global_query_BSHD, global_key_BSHD, global_value_BSHD = compat.as_jax(wide)
    scale = 1 / math.sqrt(query_BSHD.shape[-1])
    query_BSHD, global_query_BSHD = query_BSHD * scale, global_query_BSHD * scale
    columns_BS = compat.as_jax(numbers)
    rows, tokens = columns_BS.shape
    column_S = jnp.arange(tokens)

    def attend_block(first: jax.Array) -> jax.Array:
        """[B, C, H, D] of the queries from one on."""

        def block(array: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(array, first, 2 * reach, axis=1)

        is_near_CS = jnp.abs(first + jnp.arange(2 * reach)[:, None] - column_S) <= reach
        columns_BC = block(columns_BS)
        sees_BCS = (is_near_CS & (columns_BS == 0)[:, None]) | (columns_BS > 0)[:, None]
        local = _weighted_sum(
            block(query_BSHD),
            key_BSHD,
            value_BSHD,
            sees_BCS & (columns_BC >= 0)[..., None],
        )
        is_global_BC = columns_BC > 0

        def attend_globally() -> jax.Array:
            sees_BCS = jnp.broadcast_to(
                (columns_BS >= 0)[:, None], (rows, 2 * reach, tokens)
            )
            wide = _weighted_sum(
                block(global_query_BSHD), global_key_BSHD, global_value_BSHD, sees_BCS
            )
            return jnp.where(is_global_BC[..., None, None], wide, local)

        return jax.lax.cond(jnp.any(is_global_BC), attend_globally, lambda: local)

    # The encoder pads its tokens to whole windows.
    blocks = jax.lax.map(attend_block, jnp.arange(0, tokens, 2 * reach))
    return compat.wrap(jnp.moveaxis(blocks, 0, 1).reshape(rows, tokens, -1))


def _weighted_sum(
    query_BCHD: jax.Array,
    key_BSHD: jax.Array,
    value_BSHD: jax.Array,
    sees_BCS: jax.Array,
) -> jax.Array:
    """Traced. [B, C, H, D]; zeros for a query that sees no key."""
    scores = jnp.einsum("bchd,bshd->bhcs", query_BCHD, key_BSHD).astype(jnp.float32)
    sees = sees_BCS[:, None]
    weights = jax.nn.softmax(
        jnp.where(sees, scores, jnp.finfo(jnp.float32).min), axis=-1
    )
    weights = jnp.where(sees, weights, 0).astype(value_BSHD.dtype)
    return jnp.einsum("bhcs,bshd->bchd", weights, value_BSHD)


def embed_positions(
    self: Any, input_ids_shape: torch.Size, length: Any = 0
) -> torch.Tensor:
    """Traced. [Q, E] for new tokens [B, Q] behind a number of others, which may be a
    tensor.
    """
    positions = torch.arange(input_ids_shape[1], device=self.weight.device) + length
    return nn.Embedding.forward(self, positions)


@with_original
def attend_in_decoder(
    original: Callable[..., Any],
    self: Any,
    hidden_states: torch.Tensor,
    key_value_states: torch.Tensor | None = None,
    cache: Any = None,
    attention_mask: torch.Tensor | None = None,
    output_attentions: bool = False,
    *,
    past_key_values: Any = None,
) -> Any:
    """Traced. As `LEDDecoderAttention.forward`; columns of the cache behind the new
    tokens [B, Q, E] are hidden.

    The cache is called `past_key_values` before transformers 5.24.
    """
    cache = past_key_values if cache is None else cache
    if key_value_states is None and cache is not None and attention_mask is None:
        rows, count = hidden_states.shape[:2]
        columns, _ = cache.get_mask_sizes(count, self.layer_idx)
        last = cache.get_seq_length(self.layer_idx) + count - 1
        is_written = torch.arange(columns, device=hidden_states.device) <= last
        lowest = torch.finfo(hidden_states.dtype).min
        hidden = torch.zeros_like(is_written, dtype=hidden_states.dtype).masked_fill(
            ~is_written, lowest
        )
        attention_mask = hidden.expand(rows, 1, count, columns)
    return original(
        self,
        hidden_states,
        key_value_states,
        cache,
        attention_mask,
        output_attentions,
    )
