"""Tiny pipelines of diffusers with random weights, and a call of each: what `benchmarks.pipelines` runs.

Text is given as embeddings, which every pipeline takes, so that no tokenizer is needed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffusers
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from benchmarks.tiny_diffusers import construct


class TinyPipeline(NamedTuple):
    """A pipeline and the keyword arguments of a call, without those that the runner decides."""

    pipe: Any
    inputs: dict[str, Any]


def names() -> list[str]:
    """The names of the pipelines: a class, and after a colon a variant of it."""
    return list(_BUILDERS)


def build(name: str) -> TinyPipeline:
    """A pipeline with components of random weights, always the same."""
    torch.manual_seed(0)
    pipe, inputs = _BUILDERS[name]()
    pipe.set_progress_bar_config(disable=True)
    return TinyPipeline(pipe, inputs)


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


def pipeline(name: str, **components: Any) -> Any:
    """A pipeline of this class, with None for each component that is not given and has no default."""
    pipeline_class = getattr(diffusers, name)
    expected, _ = pipeline_class._get_signature_keys(pipeline_class)
    missing = dict.fromkeys(expected - components.keys() - {"self"})
    return pipeline_class(**missing, **components)


def image_vae(channels: int = 4) -> AutoencoderKL:
    """An autoencoder that halves pictures."""
    return AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=channels,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, sample_size=16, shift_factor=0.1,
        scaling_factor=0.5,
    ).eval()  # fmt: skip


# --- Stable Diffusion ---


def stable_diffusion(name: str, controls: int = 0, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around a U-Net, with as many ControlNets."""
    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 4}
    components: dict[str, Any] = {
        "vae": image_vae(), "scheduler": DPMSolverMultistepScheduler(steps_offset=1),
        "unet": construct("UNet2DConditionModel", block_out_channels=(8, 16), norm_num_groups=4, **blocks),
    }  # fmt: skip
    if controls:
        nets = [
            construct(
                "ControlNetModel", block_out_channels=(8, 16), norm_num_groups=4,
                conditioning_embedding_out_channels=(8, 8), **blocks,
            )
            for _ in range(controls)
        ]  # fmt: skip
        for net in nets:
            _fill_zeros(net)
        components["controlnet"] = nets[0] if controls == 1 else nets
    pipe = pipeline(name, requires_safety_checker=False, **components)
    prompts = {"prompt_embeds": draw(1, 7, 32, seed=1), "negative_prompt_embeds": draw(1, 7, 32, seed=2)}
    return pipe, {**prompts, **inputs}


def _fill_zeros(model: torch.nn.Module) -> None:
    """Give a ControlNet's outputs, which begin as zeros, weights that have an effect."""
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.copy_(0.1 * draw(*weight.shape))


# --- Flux and Stable Diffusion 3 ---


def flux(name: str, control: bool = False, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Flux's transformer."""
    sizes = {
        "patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
    }  # fmt: skip
    components: dict[str, Any] = {
        "vae": image_vae(), "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "transformer": diffusers.FluxTransformer2DModel(**sizes, guidance_embeds=True).eval(),
    }  # fmt: skip
    if control:
        components["controlnet"] = diffusers.FluxControlNetModel(**sizes, guidance_embeds=True).eval()
        _fill_zeros(components["controlnet"])
    prompts = {
        "prompt_embeds": draw(1, 7, 32),
        "pooled_prompt_embeds": draw(1, 32),
        "height": 16,
        "width": 16,
    }
    return pipeline(name, **components), {**prompts, **inputs}


def stable_diffusion_3(name: str, channels: int = 4, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Stable Diffusion 3's transformer."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=channels, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=64,
        out_channels=channels,
    ).eval()  # fmt: skip
    pipe = pipeline(
        name, vae=image_vae(channels), scheduler=FlowMatchEulerDiscreteScheduler(), transformer=transformer
    )
    prompts: dict[str, Any] = {"height": 16, "width": 16, "guidance_scale": 4.0}
    for seed, prefix in enumerate(("", "negative_")):
        prompts[f"{prefix}prompt_embeds"] = draw(1, 7, 32, seed=seed)
        prompts[f"{prefix}pooled_prompt_embeds"] = draw(1, 64, seed=seed)
    return pipe, {**prompts, **inputs}


# --- video ---


def wan(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Wan's transformer."""
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16,
        text_dim=32, freq_dim=32, ffn_dim=32, num_layers=1, cross_attn_norm=True, rope_max_seq_len=32,
    ).eval()  # fmt: skip
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()
    pipe = pipeline(name, vae=vae, scheduler=UniPCMultistepScheduler(flow_shift=3.0), transformer=transformer)
    prompts = {"prompt_embeds": draw(1, 7, 32, seed=1), "negative_prompt_embeds": draw(1, 7, 32, seed=2)}
    return pipe, {**prompts, "height": 16, "width": 16, **inputs}


def ltx(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around LTX-Video's transformer."""
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32,
        num_layers=1, caption_channels=32,
    ).eval()  # fmt: skip
    vae = AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5, decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False), patch_size=1,
        decoder_spatio_temporal_scaling=(True, True, False, False), decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4, upsample_factor=(1,) * 4,
    ).eval()  # fmt: skip
    pipe = pipeline(name, vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(), transformer=transformer)
    valid = torch.arange(16)[None] < 10
    prompts = {
        "prompt_embeds": draw(1, 16, 32, seed=1), "prompt_attention_mask": valid, "num_frames": 9,
        "negative_prompt_embeds": draw(1, 16, 32, seed=2), "negative_prompt_attention_mask": valid.roll(-3),
        "height": 32, "width": 32, "guidance_scale": 3.0,
    }  # fmt: skip
    return pipe, {**prompts, **inputs}


# --- without text ---


def unconditional(name: str) -> tuple[Any, dict[str, Any]]:
    """A pipeline around a U-Net alone."""
    unet = construct(
        "UNet2DModel", block_out_channels=(8, 16), norm_num_groups=4, in_channels=3, out_channels=3
    )
    return pipeline(name, unet=unet, scheduler=DDIMScheduler()), {}


def dit() -> tuple[Any, dict[str, Any]]:
    """A pipeline around DiT's transformer, for classes of pictures."""
    transformer = construct("DiTTransformer2DModel", in_channels=4, out_channels=8, sample_size=8)
    pipe = pipeline("DiTPipeline", vae=image_vae(), scheduler=DDIMScheduler(), transformer=transformer)
    return pipe, {"class_labels": [1, 2], "guidance_scale": 2.0}


def _with(builder: Callable[..., Any], *args: Any, **inputs: Any) -> Callable[[], Any]:
    return lambda: builder(*args, **inputs)


_SIZE = {"height": 16, "width": 16}
_INPAINTING = {"mask_image": mask(), "strength": 0.9}
_BUILDERS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "StableDiffusionPipeline": _with(stable_diffusion, "StableDiffusionPipeline", **_SIZE),
    "StableDiffusionImg2ImgPipeline": _with(
        stable_diffusion, "StableDiffusionImg2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusionInpaintPipeline": _with(
        stable_diffusion, "StableDiffusionInpaintPipeline", image=picture(1), **_INPAINTING, **_SIZE
    ),
    "StableDiffusionControlNetPipeline": _with(
        stable_diffusion, "StableDiffusionControlNetPipeline", 1, image=picture(1), **_SIZE
    ),
    "StableDiffusionControlNetPipeline:stack": _with(
        stable_diffusion, "StableDiffusionControlNetPipeline", 2, image=[picture(1), picture(1, seed=6)],
        controlnet_conditioning_scale=[1.0, 0.5], **_SIZE,
    ),
    "StableDiffusion3Pipeline": _with(stable_diffusion_3, "StableDiffusion3Pipeline"),
    "StableDiffusion3Img2ImgPipeline": _with(
        stable_diffusion_3, "StableDiffusion3Img2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusion3InpaintPipeline": _with(
        stable_diffusion_3, "StableDiffusion3InpaintPipeline", 16, image=picture(1), **_INPAINTING
    ),
    "FluxPipeline": _with(flux, "FluxPipeline"),
    "FluxImg2ImgPipeline": _with(flux, "FluxImg2ImgPipeline", image=picture(1), strength=0.9),
    "FluxInpaintPipeline": _with(flux, "FluxInpaintPipeline", image=picture(1), **_INPAINTING),
    "FluxControlNetPipeline": _with(flux, "FluxControlNetPipeline", True, control_image=picture(1)),
    "WanPipeline": _with(wan, "WanPipeline", num_frames=5),
    "WanVideoToVideoPipeline": _with(
        wan, "WanVideoToVideoPipeline", video=picture(1, 5), strength=0.9
    ),
    "LTXPipeline": _with(ltx, "LTXPipeline"),
    "LTXImageToVideoPipeline": _with(ltx, "LTXImageToVideoPipeline", image=picture(1, side=32)),
    "DDIMPipeline": _with(unconditional, "DDIMPipeline"),
    "DiTPipeline": dit,
}  # fmt: skip
