"""HunyuanImage's transformer, which selects the valid tokens of both prompts by boolean
masks: here a sort does.

Shapes: B batch, C channels, then the sizes of the latents, with frames for the refiner;
N tokens of a prompt.
"""

from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from tpuport.errors import PortError
from tpuport.patches.lora_scale import with_lora_scale
from tpuport.patches.reordering import valid_first


@with_lora_scale
def forward(
    self: Any,
    hidden_states: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    encoder_attention_mask: torch.Tensor,
    timestep_r: torch.Tensor | None = None,
    encoder_hidden_states_2: torch.Tensor | None = None,
    encoder_attention_mask_2: torch.Tensor | None = None,
    guidance: torch.Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None,
    return_dict: bool = True,
) -> tuple[torch.Tensor] | Transformer2DModelOutput:
    """Traced. `HunyuanImageTransformer2DModel.forward`, equal in every valid token and
    so in its output.

    Args:
        hidden_states: [B, C, height, width], or with frames before the height.
        timestep, timestep_r, guidance: [B].
        encoder_hidden_states, encoder_attention_mask: text, [B, N, _] and [B, N].
        encoder_hidden_states_2, encoder_attention_mask_2: glyphs, of the same shapes;
            None without any.

    Raises:
        PortError: there are glyphs and no mask of them.
    """
    batch, _, *sizes = hidden_states.shape
    rotary = self.rope(hidden_states)
    temb = self.time_guidance_embed(timestep, guidance=guidance, timestep_r=timestep_r)
    mask = encoder_attention_mask.bool()
    context = self.context_embedder(encoder_hidden_states, timestep, mask)
    if self.context_embedder_2 is not None and encoder_hidden_states_2 is not None:
        if encoder_attention_mask_2 is None:
            raise PortError(
                "the embeddings of the second prompt come without their mask",
                where="encoder_attention_mask_2",
                fix="pass it, [batch, tokens] with ones for valid tokens",
            )
        glyphs = self.context_embedder_2(encoder_hidden_states_2)
        context, mask = valid_first(
            [glyphs, context], [encoder_attention_mask_2, mask], zero_padding=False
        )
    tokens = self.x_embedder(hidden_states)
    joint_mask = torch.nn.functional.pad(mask, (tokens.shape[1], 0), value=True)[
        :, None, None
    ]
    # The original can checkpoint gradients, which is a feature of torch's autograd;
    # here jax computes gradients.
    for block in self.transformer_blocks:
        tokens, context = block(
            tokens, context, temb, attention_mask=joint_mask, image_rotary_emb=rotary
        )
    for block in self.single_transformer_blocks:
        tokens, context = block(
            tokens, context, temb, attention_mask=joint_mask, image_rotary_emb=rotary
        )
    sample = _unpatchify(
        self.config, self.proj_out(self.norm_out(tokens, temb)), batch, sizes
    )
    if not return_dict:
        return (sample,)
    return Transformer2DModelOutput(sample=sample)


def _unpatchify(
    config: Any, tokens: torch.Tensor, batch: int, sizes: list[int]
) -> torch.Tensor:
    """[B, patches, numbers of a patch] -> [B, C, *sizes]."""
    patches = [
        size // patch for size, patch in zip(sizes, config.patch_size, strict=True)
    ]
    count = len(patches)
    tokens = tokens.reshape(batch, *patches, config.out_channels, *config.patch_size)
    pairs = [
        axis for number in range(count) for axis in (number + 1, count + 2 + number)
    ]
    tokens = tokens.permute(0, count + 1, *pairs)
    whole = [
        number * patch for number, patch in zip(patches, config.patch_size, strict=True)
    ]
    return tokens.reshape(batch, config.out_channels, *whole)
