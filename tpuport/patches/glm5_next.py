"""GLM-5-Next's indexer, which ranks pools of keys for each query, with fixed shapes.

Shapes: B rows, K keys, N pools, R keys of a pool, D width of a key.
"""

from typing import Any

import torch


def pool_states(
    self: Any, packed_states: torch.Tensor
) -> tuple[torch.Tensor, torch.LongTensor, torch.BoolTensor]:
    """Traced. As `Glm5NextTextIndexer.get_pooled_states`, with all pools of the buffer.

    transformers leaves out the pools that are complete in no row. Their keys are never
    selected in any case.

    Args:
        packed_states: [B, K, 2 * D + 1], keys, scores of the gate, and whether there is
            a token.

    Returns:
        The pools' keys [B, N, D], the columns of their tokens [B, N, R], -1 without
        one, and whether a pool is complete [B, N].
    """
    keys, gate_scores, valid_keys = torch.split(
        packed_states, [self.head_dim, self.head_dim, 1], dim=-1
    )
    valid_keys = valid_keys.bool().squeeze(-1)
    rows, columns = valid_keys.shape
    size = self.index_kpool
    pools = -(-columns // size)
    first_key = torch.where(valid_keys.any(-1), valid_keys.long().argmax(-1), columns)
    offsets = torch.arange(pools * size, device=keys.device).view(1, pools, size)
    indices = first_key[:, None, None] + offsets
    safe_indices = indices.clamp(0, columns - 1)
    row = torch.arange(rows, device=keys.device)[:, None, None]
    is_token = valid_keys[row, safe_indices] & (indices < columns)
    logits = (
        gate_scores[row, safe_indices].float()
        + self.index_kpool_compress_ape.float()[None, None]
    )
    logits = logits.masked_fill(~is_token[..., None], float("-inf"))
    probabilities = torch.nan_to_num(logits.softmax(dim=2)).to(keys.dtype)
    pool_keys = (probabilities * keys[row, safe_indices]).sum(dim=2)
    return pool_keys, indices.masked_fill(~is_token, -1), is_token.all(-1)  # type: ignore[return-value]
