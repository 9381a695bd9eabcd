"""HunyuanVideo 1.0, HunyuanImage and FramePack: masks stay padding masks, and valid
tokens are counted in the trace.

Shapes: B batch, N text tokens, S all tokens, E model width, C channels, F frames, h
height, w width.
"""

from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from tpuport.errors import PortError
from tpuport.patches.lora_scale import with_lora_scale


def refiner_forward(
    self: Any,
    hidden_states: torch.Tensor,
    temb: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Traced. `HunyuanVideoIndividualTokenRefiner.forward`, [B, N, E] -> [B, N, E],
    equal in every valid token.

    The original's mask [B, 1, N, N] lets padded tokens attend to the first token only,
    which is not a padding mask. Here every token attends to the valid ones and to the
    first, so that a prompt without valid tokens attends to something. Nothing reads the
    padded tokens' results.
    """
    mask = None
    if attention_mask is not None:
        first = torch.arange(attention_mask.shape[1], device=attention_mask.device) == 0
        mask = (attention_mask.to(torch.bool) | first)[:, None, None, :]
    for block in self.refiner_blocks:
        hidden_states = block(hidden_states, temb, mask)
    return hidden_states


@with_lora_scale
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
    """Traced. `HunyuanVideoFramepackTransformer3DModel.forward`: latents
    [B, C, F, h, w] -> the same shape.

    The original cuts a single prompt to its valid tokens, and writes the mask of
    several row by row. Here padding stays, and the mask compares positions with the
    number of valid tokens. Valid tokens come first in every prompt.

    Raises:
        PortError: the mask's shape does not match the embeddings'.
    """
    _check_mask(encoder_hidden_states, encoder_attention_mask)
    batch, _, frames, height, width = hidden_states.shape
    patch = (self.config.patch_size_t, self.config.patch_size, self.config.patch_size)
    counts = [
        size // step for size, step in zip((frames, height, width), patch, strict=True)
    ]
    if indices_latents is None:
        indices_latents = torch.arange(frames, device=hidden_states.device)
    history = (latents_clean, latents_history_2x, latents_history_4x)
    indices = (
        indices_latents,
        indices_latents_clean,
        indices_latents_history_2x,
        indices_latents_history_4x,
    )
    tokens, rotary = _pack_history(self, hidden_states, history, indices)
    temb, _ = self.time_text_embed(timestep, pooled_projections, guidance)
    text = self.context_embedder(
        encoder_hidden_states, timestep, encoder_attention_mask
    )
    context = torch.cat([self.image_projection(image_embeds), text], dim=1)
    mask = _valid_keys(tokens.shape[1] + context.shape[1], encoder_attention_mask)
    for block in (*self.transformer_blocks, *self.single_transformer_blocks):
        tokens, context = block(tokens, context, temb, mask, rotary)
    # The history's tokens come before those of the latents.
    tokens = self.proj_out(
        self.norm_out(tokens[:, -counts[0] * counts[1] * counts[2] :], temb)
    )
    sample = tokens.reshape(batch, *counts, -1, *patch).permute(0, 4, 1, 5, 2, 6, 3, 7)
    sample = sample.reshape(batch, -1, frames, height, width)
    if not return_dict:
        return (sample,)
    return Transformer2DModelOutput(sample=sample)


def _check_mask(text: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Raise a PortError unless the mask has a number for every token of the text."""
    shape = list(getattr(mask, "shape", ()))
    if mask is None or shape != list(text.shape[:2]):
        raise PortError(
            f"a mask of shape {shape} for text of shape {list(text.shape)}",
            where="encoder_attention_mask", fix="give [batch, tokens]: 1 for text and 0 for padding",
        )  # fmt: skip


def _pack_history(
    self: Any,
    latents: torch.Tensor,
    history: tuple[torch.Tensor | None, ...],
    indices: tuple[torch.Tensor | None, ...],
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Tokens [B, N, E] of the history and the latents after it, and their rotary
    tables.
    """
    height, width = latents.shape[3:]
    clean = self.clean_x_embedder(*history)
    tables = []
    for tokens, frames in zip((latents, *clean), indices, strict=True):
        table = None
        if tokens is not None and frames is not None:
            table = self.rope(
                frame_indices=frames, height=height, width=width, device=latents.device
            )
        tables.append(table)
    patch = self.config.patch_size
    return self._pack_history_states(
        self.x_embedder(latents), *clean, *tables, height // patch, width // patch
    )


def _valid_keys(length: int, mask: torch.Tensor) -> torch.Tensor:
    """Which keys are valid, [B, 1, 1, length]: all but the padding of the text, which
    comes last.
    """
    positions = torch.arange(length, device=mask.device)
    count = length - mask.shape[1] + mask.to(torch.int32).sum(dim=1, keepdim=True)
    return (positions.unsqueeze(0) < count)[:, None, None, :]
