"""Qwen4-Exp's indexer, which selects blocks of keys for each query, with fixed shapes.

transformers looks up the visible tokens of each query, cuts them into blocks and ranks
the complete blocks, in two loops of Python. Tokens behind the last complete block are
always selected. Letters: B rows, Q queries, K keys, H heads, D head width, N blocks, R
tokens of a block.
"""

import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat

# Queries that are ranked at a time: each has blocks of its own, because it sees tokens
# of its own.
_QUERIES = 64
_MODEL = "transformers.models.qwen4_exp.modeling_qwen4_exp"


def select_tokens(
    self: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor,
    cache: Any = None,
    *,
    past_key_values: Any = None,
) -> torch.Tensor:
    """Traced. Whether each query sees each key, bool [B, 1, Q, K], as
    `Qwen4ExpTextQSAIndexer.forward`.

    The cache is called `past_key_values` before transformers 5.24.
    """
    cache = past_key_values if cache is None else cache
    rotate = importlib.import_module(_MODEL).apply_rotary_pos_emb
    rows, queries, _ = hidden_states.shape
    cos, sin = position_embeddings
    widths = [
        self.index_n_heads * self.index_head_dim,
        self.index_kv_heads * self.index_head_dim,
    ]
    query, key = self.index_qk_proj(hidden_states).split(widths, dim=-1)
    query = self.q_layernorm(query.reshape(rows, queries, -1, self.index_head_dim))
    query = rotate(query, cos=cos[:, -queries:], sin=sin[:, -queries:], unsqueeze_dim=2)
    key = key.reshape(rows, queries, self.index_head_dim)
    keys = attention_mask.shape[-1]
    if cos.shape[1] > keys:
        # tpuport's cache has a slot for each position, and the new ones come behind all
        # of them.
        first = compat.as_jax(cache.get_seq_length(self.layer_idx))
        cos, sin = (_move_last(table, keys, first) for table in (cos, sin))
    if cache is not None:
        key = cache.update_indexer(key, self.layer_idx)
    mask = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
    query_BQHD, key_BKD, cos_BKD, sin_BKD, visible = compat.as_jax(
        (query, key, cos, sin, mask)
    )
    visible_BQK = jnp.broadcast_to(visible[:, 0], (rows, queries, keys))

    def rotated_blocks(token_BNR: jax.Array) -> jax.Array:
        """Keys [B, N, D] of blocks of tokens, each at the position of its first."""
        row = jnp.arange(rows)[:, None]
        mean = jnp.mean(key_BKD[row[..., None], token_BNR].astype(jnp.float32), axis=2)
        pooled = self.k_layernorm(compat.wrap(mean.astype(key_BKD.dtype)))
        tables = compat.as_torch(
            (cos_BKD[row, token_BNR[..., 0]], sin_BKD[row, token_BNR[..., 0]])
        )
        return compat.as_jax(
            rotate(pooled[:, None], cos=tables[0], sin=tables[1])[:, 0]
        )

    def select(query_BHD: jax.Array, visible_BK: jax.Array) -> jax.Array:
        """The keys [B, K] that one query of each row sees."""
        size = self.compress_ratio
        blocks = -(-keys // size)
        # The visible tokens first, in their order.
        token_BK = jnp.argsort(~visible_BK, axis=1, stable=True)
        token_BNR = jnp.pad(token_BK, ((0, 0), (0, blocks * size - keys))).reshape(
            rows, blocks, size
        )
        complete_B1 = jnp.sum(visible_BK, axis=1, keepdims=True) // size
        products_BHN = jnp.einsum(
            "bhd,bnd->bhn",
            query_BHD.astype(jnp.float32),
            rotated_blocks(token_BNR).astype(jnp.float32),
        )
        scores_BN = jnp.sum(jax.nn.relu(products_BHN), axis=1) / math.sqrt(
            self.index_head_dim
        )
        scores_BN = jnp.where(jnp.arange(blocks) < complete_B1, scores_BN, -1.0)
        _, best = jax.lax.top_k(scores_BN, min(self.block_topk, blocks))
        is_best_BN = (
            jnp.zeros(scores_BN.shape, jnp.bool_)
            .at[jnp.arange(rows)[:, None], best]
            .set(True)
        )
        block_BK = jnp.maximum(jnp.cumsum(visible_BK, axis=1) - 1, 0) // size
        is_selected_BK = jnp.take_along_axis(is_best_BN, block_BK, axis=1) | (
            block_BK >= complete_B1
        )
        return visible_BK & is_selected_BK

    by_query = (query_BQHD.swapaxes(0, 1), visible_BQK.swapaxes(0, 1))
    selected_QBK = jax.lax.map(
        lambda query: select(*query), by_query, batch_size=_QUERIES
    )
    return compat.wrap(selected_QBK.swapaxes(0, 1)[:, None])


def _move_last(table: torch.Tensor, keys: int, column: jax.Array) -> torch.Tensor:
    """Traced. Of a table [B, K + Q, D] the first K, with the last Q written over those
    from a column on.
    """
    array = compat.as_jax(table)
    return compat.wrap(
        jax.lax.dynamic_update_slice_in_dim(
            array[:, :keys], array[:, keys:], column, axis=1
        )
    )
