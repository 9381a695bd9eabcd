"""HunyuanVideo 1.0, HunyuanImage and FramePack: masks that stay padding, and are counted in the trace.

Shapes: B batch, N text tokens, S all tokens, E model width, C channels, F frames, h height, w width.
"""

from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils.peft_utils import apply_lora_scale

from tpuport.errors import PortError


def refiner_forward(
    self: Any, hidden_states: torch.Tensor, temb: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Traced. `HunyuanVideoIndividualTokenRefiner.forward`, [B, N, E] -> [B, N, E], equal to it in every valid token.

    Its own mask [B, 1, N, N] lets padded tokens see the first token alone, which is no structure. Here every token sees
    the valid ones, and the first, so that a prompt without any sees something. Nothing reads what padded ones become.
    """
    mask = None
    if attention_mask is not None:
        first = torch.arange(attention_mask.shape[1], device=attention_mask.device) == 0
        mask = (attention_mask.to(torch.bool) | first)[:, None, None, :]
    for block in self.refiner_blocks:
        hidden_states = block(hidden_states, temb, mask)
    return hidden_states


@apply_lora_scale("attention_kwargs")
def framepack_forward(
    self: Any,
    hidden_states: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    encoder_attention_mask: torch.Tensor,
    pooled_projections: torch.Tensor,
    image_embeds: torch.Tensor,
    indices_latents: torch.Tensor,
    guidance: torch.Tensor | None = None,
    latents_clean: torch.Tensor | None = None,
    indices_latents_clean: torch.Tensor | None = None,
    latents_history_2x: torch.Tensor | None = None,
    indices_latents_history_2x: torch.Tensor | None = None,
    latents_history_4x: torch.Tensor | None = None,
    indices_latents_history_4x: torch.Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None,
    return_dict: bool = True,
) -> tuple[torch.Tensor] | Transformer2DModelOutput:
    """Traced. `HunyuanVideoFramepackTransformer3DModel.forward`: latents [B, C, F, h, w] -> the same shape.

    Its own cuts one prompt to its valid tokens, and writes the mask of several row by row. Here padding stays, and a
    comparison of places with the number of valid tokens is the mask. Valid tokens come first in every prompt.

    Raises:
        PortError: a mask whose shape is not that of the embeddings.
    """
    if encoder_attention_mask is None or encoder_attention_mask.shape != encoder_hidden_states.shape[:2]:
        raise PortError(
            "the mask does not fit the text embeddings",
            where="encoder_attention_mask",
            fix="give [batch, tokens]",
        )
    batch, _, frames, height, width = hidden_states.shape
    patch = (self.config.patch_size_t, self.config.patch_size, self.config.patch_size)
    counts = [size // step for size, step in zip((frames, height, width), patch, strict=True)]
    if indices_latents is None:
        indices_latents = torch.arange(frames, device=hidden_states.device)
    clean = self.clean_x_embedder(latents_clean, latents_history_2x, latents_history_4x)
    indices = (indices_latents_clean, indices_latents_history_2x, indices_latents_history_4x)
    rotary = [
        None
        if tokens is None or places is None
        else self.rope(frame_indices=places, height=height, width=width, device=hidden_states.device)
        for tokens, places in zip((hidden_states, *clean), (indices_latents, *indices), strict=True)
    ]
    tokens = self.x_embedder(hidden_states)
    tokens, packed = self._pack_history_states(tokens, *clean, *rotary, *counts[1:])
    temb, _ = self.time_text_embed(timestep, pooled_projections, guidance)
    text = self.context_embedder(encoder_hidden_states, timestep, encoder_attention_mask)
    image = self.image_projection(image_embeds)
    context = torch.cat([image, text], dim=1)
    before = tokens.shape[1] + image.shape[1]
    places = torch.arange(before + text.shape[1], device=tokens.device)
    count = before + encoder_attention_mask.to(torch.int32).sum(dim=1, keepdim=True)
    mask = (places.unsqueeze(0) < count)[:, None, None, :]
    for block in (*self.transformer_blocks, *self.single_transformer_blocks):
        tokens, context = block(tokens, context, temb, mask, packed)
    tokens = self.proj_out(self.norm_out(tokens[:, -counts[0] * counts[1] * counts[2] :], temb))
    sample = tokens.reshape(batch, *counts, -1, *patch).permute(0, 4, 1, 5, 2, 6, 3, 7)
    sample = sample.reshape(batch, -1, frames, height, width)
    return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)
