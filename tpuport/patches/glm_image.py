"""GLM-Image: prior tokens that are dropped are set to zero by a choice, not by a write
to positions of a mask.
"""

from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput


def forward(
    self: Any,
    hidden_states: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    prior_token_id: torch.Tensor,
    prior_token_drop: torch.Tensor,
    timestep: torch.Tensor,
    target_size: torch.Tensor,
    crop_coords: torch.Tensor,
    attention_kwargs: dict[str, Any] | None = None,
    return_dict: bool = True,
    attention_mask: torch.Tensor | None = None,
    kv_caches: Any = None,
    image_rotary_emb: Any = None,
) -> tuple[torch.Tensor] | Transformer2DModelOutput:
    """Traced. `GlmImageTransformer2DModel.forward`: latents [B, C, height, width] ->
    the same shape.
    """
    batch, _, height, width = hidden_states.shape
    patch = self.config.patch_size
    if image_rotary_emb is None:
        image_rotary_emb = self.rope(hidden_states)
    image = self.image_projector(hidden_states)
    text = self.glyph_projector(encoder_hidden_states)
    prior = self.prior_token_embedding(prior_token_id)
    prior = torch.where(prior_token_drop[..., None], prior * 0.0, prior)
    image = image + self.prior_projector(prior)
    temb = self.time_condition_embed(timestep, target_size, crop_coords, image.dtype)
    for index, block in enumerate(self.transformer_blocks):
        cache = None if kv_caches is None else kv_caches[index]
        image, text = block(
            image,
            text,
            temb,
            image_rotary_emb,
            attention_mask,
            attention_kwargs,
            kv_cache=cache,
        )
    image = self.proj_out(self.norm_out(image, temb))
    sample = image.reshape(batch, height // patch, width // patch, -1, patch, patch)
    sample = sample.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    if not return_dict:
        return (sample,)
    return Transformer2DModelOutput(sample=sample)
