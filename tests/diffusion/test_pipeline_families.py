"""Pipelines of several families, each diffusers' own with tiny models of random weights: results are torch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)

import tpuport

pytestmark = pytest.mark.slow
none: Any = None


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def image_vae(channels: int = 4) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=16,
        shift_factor=0.1,
        scaling_factor=0.5,
    )


def ltx() -> tuple[Any, dict[str, Any]]:
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=32,
    )
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        patch_size=1,
    )
    pipe = LTXPipeline(FlowMatchEulerDiscreteScheduler(), vae, none, none, transformer)
    mask = torch.arange(16)[None] < 10
    inputs = {
        "prompt_embeds": draw(1, 16, 32, seed=1),
        "prompt_attention_mask": mask,
        "negative_prompt_embeds": draw(1, 16, 32, seed=2),
        "negative_prompt_attention_mask": mask.roll(-3),
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "guidance_scale": 3.0,
    }
    return pipe, inputs


def stable_diffusion_3() -> tuple[Any, dict[str, Any]]:
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
    )
    pipe = StableDiffusion3Pipeline(
        transformer, FlowMatchEulerDiscreteScheduler(), image_vae(), none, none, none, none, none, none
    )
    inputs = {"height": 16, "width": 16, "guidance_scale": 4.0}
    for n, prefix in enumerate(("", "negative_")):
        inputs[f"{prefix}prompt_embeds"] = draw(1, 7, 32, seed=n)
        inputs[f"{prefix}pooled_prompt_embeds"] = draw(1, 64, seed=n)
    return pipe, inputs


def flux() -> tuple[Any, dict[str, Any]]:
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipe = FluxPipeline(scheduler, image_vae(), none, none, none, none, transformer)
    return pipe, {
        "prompt_embeds": draw(1, 7, 32),
        "pooled_prompt_embeds": draw(1, 32),
        "height": 16,
        "width": 16,
    }


def stable_diffusion() -> tuple[Any, dict[str, Any]]:
    unet = UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=8,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=2,
    )
    pipe = StableDiffusionPipeline(
        image_vae(),
        none,
        none,
        unet,
        DPMSolverMultistepScheduler(steps_offset=1),
        none,
        none,
        requires_safety_checker=False,
    )
    return pipe, {
        "prompt_embeds": draw(1, 7, 32, seed=1),
        "negative_prompt_embeds": draw(1, 7, 32, seed=2),
        "height": 16,
        "width": 16,
    }


def wan() -> tuple[Any, dict[str, Any]]:
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=1,
        cross_attn_norm=True,
        rope_max_seq_len=32,
    )
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    pipe = WanPipeline(none, none, vae, UniPCMultistepScheduler(flow_shift=3.0), transformer)
    return pipe, {
        "prompt_embeds": draw(1, 7, 32, seed=1),
        "negative_prompt_embeds": draw(1, 7, 32, seed=2),
        "height": 16,
        "width": 16,
        "num_frames": 5,
    }


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning",
    "ignore:float64 becomes float32:UserWarning",
)
@pytest.mark.parametrize("family", [ltx, stable_diffusion_3, flux, stable_diffusion, wan])
def test_a_family(family: Callable[[], tuple[Any, dict[str, Any]]]) -> None:
    torch.manual_seed(0)
    pipe, inputs = family()
    pipe.set_progress_bar_config(disable=True)

    def run(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return pipe(**inputs, generator=generator, num_inference_steps=3, output_type="pt")[0]

    expected = [run(seed) for seed in range(2)]
    tpuport.port(pipe)
    for seed in range(2):
        actual = run(seed)
        assert (actual - expected[seed]).abs().max() < 1 / 255
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    assert denoiser.forward.program.compilations == 1
