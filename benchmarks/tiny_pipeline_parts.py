"""What tiny pipelines share: random tensors, pictures, embeddings of prompts, autoencoders, encoders."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from diffusers import AutoencoderKL

# A function that makes a pipeline and the keyword arguments of a call.
Builder = Callable[[], tuple[Any, dict[str, Any]]]
SIZE = {"height": 16, "width": 16}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picture(*batch: int, side: int = 16, seed: int = 5) -> torch.Tensor:
    """Pictures [*batch, 3, side, side] with values from 0 to 1."""
    return torch.rand((*batch, 3, side, side), generator=torch.Generator().manual_seed(seed))


def mask(side: int = 16) -> torch.Tensor:
    """A mask [1, 1, side, side] of the left half."""
    half = torch.zeros(1, 1, side, side)
    half[..., : side // 2] = 1
    return half


def frames(count: int, side: int = 16) -> list[Any]:
    """Pictures of a clip, as PIL has them."""
    from PIL import Image

    clip = (picture(count, side=side).permute(0, 2, 3, 1) * 255).byte().numpy()
    return [Image.fromarray(frame) for frame in clip]


def prompts(width: int = 32, tokens: int = 7, pooled: int = 0, attention_mask: str = "") -> dict[str, Any]:
    """Embeddings of a prompt and of a negative one.

    Args:
        width: of a token's embedding.
        tokens: of a prompt.
        pooled: the width of the embeddings of whole prompts; none if 0.
        attention_mask: the end of the masks' names, such as "_attention_mask"; none if empty.
    """
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        texts[f"{prefix}prompt_embeds"] = draw(1, tokens, width, seed=seed)
        if pooled:
            texts[f"{prefix}pooled_prompt_embeds"] = draw(1, pooled, seed=seed)
        if attention_mask:
            texts[f"{prefix}prompt{attention_mask}"] = (torch.arange(tokens)[None] < tokens - seed).long()
    return texts


def positive(texts: dict[str, Any]) -> dict[str, Any]:
    """Without what belongs to the negative prompt."""
    return {name: value for name, value in texts.items() if not name.startswith("negative_")}


def with_bool_masks(texts: dict[str, Any]) -> dict[str, Any]:
    """The embeddings, their masks of true and false."""
    return {name: value.bool() if name.endswith("mask") else value for name, value in texts.items()}


def pipeline(name: str, **components: Any) -> Any:
    """A pipeline of this class, with None for each component that is not given and has no default."""
    pipeline_class = getattr(diffusers, name)
    expected, _ = pipeline_class._get_signature_keys(pipeline_class)
    missing = dict.fromkeys(expected - components.keys() - {"self"})
    return pipeline_class(**missing, **components)


def image_vae(channels: int = 4, **options: Any) -> AutoencoderKL:
    """An autoencoder that halves pictures."""
    sizes: dict[str, Any] = {
        "block_out_channels": (8, 8), "down_block_types": ("DownEncoderBlock2D",) * 2, "latent_channels": channels,
        "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4, "sample_size": 16, "shift_factor": 0.1,
        "scaling_factor": 0.5,
    }  # fmt: skip
    return AutoencoderKL(**{**sizes, **options}).eval()


def fill_zeros(model: torch.nn.Module) -> torch.nn.Module:
    """The model, its outputs that begin as zeros given weights that have an effect."""
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.copy_(0.1 * draw(*weight.shape))
    return model


def vision_encoder(with_projection: bool = True) -> torch.nn.Module:
    """CLIP's encoder of pictures of 32 by 32 pixels, of width 32."""
    from transformers import CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=32, projection_dim=32, num_hidden_layers=2, num_attention_heads=2, image_size=32,
        intermediate_size=32, patch_size=16,
    )  # fmt: skip
    model_class = CLIPVisionModelWithProjection if with_projection else CLIPVisionModel
    return model_class(config).eval()


def vision_processor() -> Any:
    """What prepares pictures for that encoder."""
    from transformers import CLIPImageProcessor

    return CLIPImageProcessor(crop_size=32, size=32)


def text_encoder() -> torch.nn.Module:
    """CLIP's encoder of texts, for pipelines that ask for its dtype though they are given embeddings."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=64, hidden_size=32, projection_dim=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, eos_token_id=2,
    )  # fmt: skip
    return CLIPTextModelWithProjection(config).eval()


class Unused(diffusers.ModelMixin, diffusers.ConfigMixin):
    """A component that a pipeline must have and that this call does not use."""

    config_name = "config.json"

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))


def call(builder: Callable[..., Any], *args: Any, **inputs: Any) -> Builder:
    """The builder with its arguments."""
    return lambda: builder(*args, **inputs)
