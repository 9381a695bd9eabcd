"""Lumina-Image 2.0: prompts are joined with the image by the number of their tokens,
which stays in the trace.

Shapes: B batch, N text tokens, I image tokens, S = N + I, E model width, D rotary
angles, C channels.
"""

from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from tpuport.patches.lora_scale import with_lora_scale


@with_lora_scale
def forward(
    self: Any,
    hidden_states: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    encoder_attention_mask: torch.Tensor,
    attention_kwargs: dict[str, Any] | None = None,
    return_dict: bool = True,
) -> tuple[torch.Tensor] | Transformer2DModelOutput:
    """Traced. `Lumina2Transformer2DModel.forward`: latents [B, C, height, width] -> the
    same shape.

    The original reads the number of each prompt's tokens, and cuts every sequence to
    the longest. Here the sequence is as long as the longest could be, and what is
    behind a prompt and its image is masked.
    """
    batch, _, height, width = hidden_states.shape
    patch = self.config.patch_size
    rows, columns = height // patch, width // patch
    temb, text = self.time_caption_embed(hidden_states, timestep, encoder_hidden_states)
    text_count = encoder_attention_mask.sum(dim=1).to(torch.int32)
    text_rotary, image_rotary, rotary = _rotary_tables(
        self.rope_embedder, text_count, text.shape[1], rows, columns
    )
    image = self.x_embedder(_patchify(hidden_states, patch))
    for layer in self.context_refiner:
        text = layer(text, encoder_attention_mask, text_rotary)
    for layer in self.noise_refiner:
        image = layer(image, None, image_rotary, temb)

    positions = torch.arange(text.shape[1] + image.shape[1], device=image.device)
    tokens = _join(text, image, text_count, positions)
    mask = positions < text_count[:, None] + image.shape[1]
    for layer in self.layers:
        tokens = layer(tokens, mask, rotary, temb)
    tokens = self.norm_out(tokens, temb)

    # The image's tokens, which begin behind those of the prompt.
    image_positions = text_count[:, None] + torch.arange(
        image.shape[1], device=image.device
    )
    sample = _take_tokens(tokens, image_positions)
    sample = sample.reshape(batch, rows, columns, patch, patch, self.out_channels)
    sample = sample.permute(0, 5, 1, 3, 2, 4).reshape(
        batch, self.out_channels, height, width
    )
    if not return_dict:
        return (sample,)
    return Transformer2DModelOutput(sample=sample)


def _patchify(latents: torch.Tensor, patch: int) -> torch.Tensor:
    """Latents [B, C, height, width] as tokens [B, I, patch * patch * C]."""
    batch, channels, height, width = latents.shape
    grid = latents.view(batch, channels, height // patch, patch, width // patch, patch)
    return grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def _rotary_tables(
    embedder: Any, text_count: torch.Tensor, text_length: int, rows: int, columns: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The complex rotary tables of text [B, N, D], image [B, I, D] and both [B, S, D].

    On the first axis, text counts from zero and the whole image is at the number of
    text tokens; the others are the image's rows and columns.
    """
    batch, device = text_count.shape[0], text_count.device
    text_positions = torch.arange(text_length, device=device)
    is_text = text_positions < text_count[:, None]
    text_axis = torch.where(is_text, text_positions, 0)
    text_ids = torch.stack(
        [text_axis, torch.zeros_like(text_axis), torch.zeros_like(text_axis)], dim=-1
    )
    cells = torch.arange(rows * columns, device=device).expand(batch, -1)
    image_ids = torch.stack(
        [text_count[:, None].expand(cells.shape), cells // columns, cells % columns],
        dim=-1,
    )
    positions = torch.arange(text_length + rows * columns, device=device)
    ids = _join(
        text_ids.to(torch.int32), image_ids.to(torch.int32), text_count, positions
    )
    rotary = embedder._get_freqs_cis(ids)
    text_rotary, image_rotary = (
        embedder._get_freqs_cis(text_ids),
        embedder._get_freqs_cis(image_ids),
    )
    return text_rotary, image_rotary, rotary


def _join(
    text: torch.Tensor,
    image: torch.Tensor,
    text_count: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Text [B, N, E] up to its count, then image [B, I, E], then zeros: [B, S, E] at
    the positions [S].
    """
    in_image = positions - text_count[:, None]
    text_part = _take_tokens(
        text, positions.clamp(max=text.shape[1] - 1).expand(in_image.shape)
    )
    image_part = _take_tokens(image, in_image.clamp(min=0, max=image.shape[1] - 1))
    joined = torch.where(
        (in_image < 0)[..., None], text_part.to(image.dtype), image_part
    )
    return torch.where((in_image < image.shape[1])[..., None], joined, 0)


def _take_tokens(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The tokens [B, K, E] at positions [B, K] of tokens [B, S, E]."""
    index = positions.to(torch.int64)[..., None].expand(-1, -1, tokens.shape[-1])
    return torch.gather(tokens, 1, index)
