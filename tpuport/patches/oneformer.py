"""OneFormer's decoder layer with masks of fixed shape."""

from typing import Any

import torch


def decode_layer(
    self: Any,
    index: int,
    output: torch.Tensor,
    multi_stage_features: list[torch.Tensor],
    multi_stage_positional_embeddings: list[torch.Tensor],
    attention_mask: torch.Tensor | None = None,
    query_embeddings: torch.Tensor | None = None,
    output_attentions: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Traced. `OneFormerTransformerDecoderLayer.forward`.

    The original looks up the queries that see no pixel, and lets them see all.

    Args:
        attention_mask: [rows, queries, pixels], True where a pixel is hidden.
    """
    assert attention_mask is not None
    level = index % self.num_feature_levels
    sees_nothing = attention_mask.all(dim=-1, keepdim=True)
    output, cross_attentions = self.cross_attn(
        output,
        multi_stage_features[level],
        memory_mask=attention_mask & ~sees_nothing,
        memory_key_padding_mask=None,
        pos=multi_stage_positional_embeddings[level],
        query_pos=query_embeddings,
    )
    output, self_attentions = self.self_attn(
        output,
        output_mask=None,
        output_key_padding_mask=None,
        query_pos=query_embeddings,
    )
    output = self.ffn(output)
    return (
        (output, self_attentions, cross_attentions) if output_attentions else (output,)
    )
