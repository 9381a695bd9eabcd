"""Tiny pipelines of diffusers, and the process as `tpuport.enable` makes it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tpuport


@pytest.fixture(scope="package", autouse=True)
def enabled() -> Iterator[None]:
    tpuport.enable()
    yield
    tpuport.disable()


def _hunyuan_transformer(layers: int = 1) -> Any:
    from diffusers import HunyuanVideo15Transformer3DModel

    return HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=4,
        attention_head_dim=16,
        num_layers=layers,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=1,
        text_embed_dim=24,
        text_embed_2_dim=12,
        image_embed_dim=20,
        rope_axes_dim=(4, 6, 6),
        target_size=16,
        task_type="t2v",
    )


def _hunyuan_vae() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo15

    return AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        scaling_factor=1.0,
    )


@pytest.fixture(scope="package")
def hunyuan() -> Callable[[], Any]:
    """Makes HunyuanVideo-1.5 pipelines without text encoders, always of the same random weights."""
    from diffusers import ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler, HunyuanVideo15Pipeline

    def build() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            none: Any = None
            pipe = HunyuanVideo15Pipeline(
                text_encoder=none,
                tokenizer=none,
                text_encoder_2=none,
                tokenizer_2=none,
                transformer=_hunyuan_transformer().eval(),
                vae=_hunyuan_vae().eval(),
                scheduler=FlowMatchEulerDiscreteScheduler(shift=2.0),
                guider=ClassifierFreeGuidance(guidance_scale=3.0),
            )
        pipe.vision_num_semantic_tokens = 3
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return build


@pytest.fixture(scope="package")
def prompts() -> Callable[..., dict[str, torch.Tensor]]:
    """Makes embeddings of HunyuanVideo-1.5 for a batch, positive and negative, of different padding."""

    def build(batch: int = 1, glyphs: bool = True) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(1)
        given: dict[str, torch.Tensor] = {}
        for prefix, valid in (("", 7), ("negative_", 2)):
            mask, mask_2 = torch.zeros(batch, 10), torch.zeros(batch, 4)
            mask[:, :valid] = 1
            mask_2[:, : 3 if glyphs and not prefix else 0] = 1
            given[f"{prefix}prompt_embeds"] = torch.randn(batch, 10, 24, generator=draw)
            given[f"{prefix}prompt_embeds_mask"] = mask
            given[f"{prefix}prompt_embeds_2"] = torch.randn(batch, 4, 12, generator=draw)
            given[f"{prefix}prompt_embeds_mask_2"] = mask_2
        return given

    return build
