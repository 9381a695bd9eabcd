"""Two ways of treating padding that look right and are not: leaving the mask out, and zeroing keys and values.

They are what the figure of the recipe compares with. Both run in plain torch, on a pipeline that is not ported.
Shapes: `B` samples, `S` tokens of video and text together, `T` of text, `N` heads, `D` a head's width.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from diffusers.models.embeddings import apply_rotary_emb
from torch.nn.functional import scaled_dot_product_attention

MASKS = (
    "prompt_embeds_mask",
    "prompt_embeds_mask_2",
    "negative_prompt_embeds_mask",
    "negative_prompt_embeds_mask_2",
)


def without_masks(embeddings: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same embeddings with masks that call every position a token."""
    return {name: torch.ones_like(held) if name in MASKS else held for name, held in embeddings.items()}


class ZeroingProcessor:
    """Joint attention without a mask, in which padded text has keys and values of zero.

    A key of zero has the logit zero and so the weight `exp(0)` in the softmax's sum: every padded position takes part
    of the attention away from what there is to see.
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        image_rotary_emb: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both streams `[B, S - T, width]` and `[B, T, width]` after attention; the mask is `[B, T]`."""

        def turned(tensor: torch.Tensor) -> torch.Tensor:
            return cast("torch.Tensor", apply_rotary_emb(tensor, image_rotary_emb, sequence_dim=1))

        def heads(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.unflatten(-1, (attn.heads, -1))

        query_BSND, key_BSND = (
            attn.norm_q(heads(attn.to_q(hidden_states))),
            attn.norm_k(heads(attn.to_k(hidden_states))),
        )
        query_BSND, key_BSND = turned(query_BSND), turned(key_BSND)
        text_query = attn.norm_added_q(heads(attn.add_q_proj(encoder_hidden_states)))
        text_key = attn.norm_added_k(heads(attn.add_k_proj(encoder_hidden_states)))
        text_value = heads(attn.add_v_proj(encoder_hidden_states))
        valid_BT11 = attention_mask.to(text_key.dtype)[:, :, None, None]
        query, key, value = (
            torch.cat(both, dim=1).transpose(1, 2)
            for both in (
                (query_BSND, text_query),
                (key_BSND, text_key * valid_BT11),
                (heads(attn.to_v(hidden_states)), text_value * valid_BT11),
            )
        )
        seen = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        video, text = seen.split([hidden_states.shape[1], encoder_hidden_states.shape[1]], dim=1)
        return attn.to_out[1](attn.to_out[0](video)), attn.to_add_out(text)


@contextlib.contextmanager
def zeroed_padding(transformer: Any) -> Iterator[None]:
    """Inside, the joint attention of every block zeroes padding instead of masking it."""
    before = [block.attn.processor for block in transformer.transformer_blocks]
    for block in transformer.transformer_blocks:
        block.attn.processor = ZeroingProcessor()
    try:
        yield
    finally:
        for block, processor in zip(transformer.transformer_blocks, before, strict=True):
            block.attn.processor = processor
