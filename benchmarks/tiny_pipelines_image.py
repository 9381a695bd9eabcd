"""Tiny pipelines that make pictures with transformers: Flux, Stable Diffusion 3, Qwen-Image, Sana and others."""

import sys
from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import (
    SIZE,
    Builder,
    call,
    draw,
    fill_zeros,
    frames,
    image_vae,
    mask,
    picture,
    pipeline,
    positive,
    prompts,
    with_bool_masks,
)


def flow(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    """The scheduler of flow matching."""
    return FlowMatchEulerDiscreteScheduler(**options)


# --- Flux and Stable Diffusion 3 ---


def flux(name: str, channels: int = 16, control: bool = False, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Flux's transformer, which reads so many channels."""
    sizes: dict[str, Any] = {
        "patch_size": 1, "in_channels": channels, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
    }  # fmt: skip
    components: dict[str, Any] = {
        "vae": image_vae(), "scheduler": flow(use_dynamic_shifting=True),
        "transformer": diffusers.FluxTransformer2DModel(**sizes, out_channels=16, guidance_embeds=True).eval(),
    }  # fmt: skip
    if control:
        components["controlnet"] = fill_zeros(
            diffusers.FluxControlNetModel(**sizes, guidance_embeds=True).eval()
        )
    texts = positive(prompts(pooled=32))
    return pipeline(name, **components), {**texts, **SIZE, **inputs}


def flux2(name: str = "Flux2Pipeline", **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Flux.2's transformer, whose autoencoder normalizes its latents."""
    transformer = diffusers.Flux2Transformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds="Klein" not in name,
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, sample_size=16, layers_per_block=1,
    ).eval()  # fmt: skip
    pipe = pipeline(name, vae=vae, scheduler=flow(use_dynamic_shifting=True), transformer=transformer)
    return pipe, {"prompt_embeds": draw(1, 7, 32, seed=1), **SIZE, **inputs}


def redux(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Flux's prior, which makes embeddings of a prompt from a picture."""
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
    from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

    encoder = SiglipVisionModel(
        SiglipVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32,
            patch_size=16,
        )
    ).eval()  # fmt: skip
    pipe = pipeline(
        "FluxPriorReduxPipeline", image_encoder=encoder, image_embedder=ReduxImageEncoder(16, 4096).eval(),
        feature_extractor=SiglipImageProcessor(size={"height": 32, "width": 32}),
    )  # fmt: skip
    return pipe, inputs


def stable_diffusion_3(
    name: str, channels: int = 4, control: bool = False, **inputs: Any
) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Stable Diffusion 3's transformer."""
    sizes: dict[str, Any] = {
        "sample_size": 8, "patch_size": 1, "in_channels": channels, "num_layers": 1, "attention_head_dim": 8,
        "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32,
        "pooled_projection_dim": 64, "out_channels": channels,
    }  # fmt: skip
    components: dict[str, Any] = {
        "vae": image_vae(channels), "scheduler": flow(),
        "transformer": diffusers.SD3Transformer2DModel(**sizes).eval(),
    }  # fmt: skip
    if control:
        # Of inpainting, one channel more, which is the mask.
        extra = {"extra_conditioning_channels": 1} if "Inpainting" in name else {}
        components["controlnet"] = fill_zeros(diffusers.SD3ControlNetModel(**sizes, **extra).eval())
    options = {"pag_applied_layers": "blocks.0"} if "PAG" in name else {}
    pipe = pipeline(name, **components, **options)
    return pipe, {**prompts(pooled=64), **SIZE, "guidance_scale": 4.0, **inputs}


# --- Qwen-Image and Z-Image ---


def qwen_image(name: str, control: bool = False, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Qwen-Image's transformer; its prompts come with masks."""
    sizes: dict[str, Any] = {
        "patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "axes_dims_rope": (8, 4, 4),
    }  # fmt: skip
    components: dict[str, Any] = {
        "vae": qwen_vae(), "scheduler": flow(use_dynamic_shifting=True),
        "transformer": diffusers.QwenImageTransformer2DModel(**sizes).eval(),
    }  # fmt: skip
    if control:
        extra = {"extra_condition_channels": 4} if "Inpaint" in name else {}
        components["controlnet"] = fill_zeros(diffusers.QwenImageControlNetModel(**sizes, **extra).eval())
    texts = prompts(attention_mask="_embeds_mask")
    size = {"height": 32, "width": 32}
    pipe = pipeline(name, **components)
    if "Edit" in name:
        shrink_pictures(pipe)
    return pipe, {**texts, **size, "true_cfg_scale": 2.0, **inputs}


def shrink_pictures(pipe: Any) -> None:
    """Make a pipeline give its pictures the area of 32 by 32 pixels, in place of about a million."""
    module: Any = sys.modules[type(pipe).__module__]
    original = module.calculate_dimensions
    module.calculate_dimensions = lambda area, ratio: original(32 * 32, ratio)


def qwen_vae() -> torch.nn.Module:
    """An autoencoder with one latent for 8 x 8 pixels."""
    return diffusers.AutoencoderKLQwenImage(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.1] * 4, latents_std=[1.2] * 4,
    ).eval()  # fmt: skip


def z_image(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Z-Image's transformer, which reads a list of prompts of any lengths."""
    transformer = construct("ZImageTransformer2DModel", in_channels=4, cap_feat_dim=32)
    pipe = pipeline(name, vae=image_vae(), scheduler=flow(use_dynamic_shifting=True), transformer=transformer)
    texts = {"prompt_embeds": [draw(7, 32, seed=1)], "negative_prompt_embeds": [draw(5, 32, seed=2)]}
    return pipe, {**texts, **SIZE, **inputs}


# --- others ---


def pixart(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around PixArt's transformer."""
    transformer = construct(
        "PixArtTransformer2DModel", in_channels=4, out_channels=8, num_layers=1, sample_size=8, caption_channels=32,
        use_additional_conditions=False,
    )  # fmt: skip
    options = {"pag_applied_layers": "blocks.0"} if "PAG" in name else {}
    pipe = pipeline(
        name, vae=image_vae(), scheduler=DPMSolverMultistepScheduler(), transformer=transformer, **options
    )
    return pipe, {
        **prompts(attention_mask="_attention_mask"),
        **SIZE,
        "use_resolution_binning": False,
        "negative_prompt": None,
        **inputs,
    }


def sana(name: str, control: bool = False, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Sana's transformer and its deep autoencoder."""
    sizes = {
        "in_channels": 4, "out_channels": 4, "num_layers": 1, "sample_size": 16, "caption_channels": 32,
        "patch_size": 1, "cross_attention_dim": 32, "num_attention_heads": 2, "attention_head_dim": 16,
    }  # fmt: skip
    is_sprint = "Sprint" in name
    scheduler: Any = diffusers.SCMScheduler() if is_sprint else flow(shift=3.0)
    options = {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"} if is_sprint else {}
    components: dict[str, Any] = {
        "vae": construct("AutoencoderDC", in_channels=3), "scheduler": scheduler,
        "transformer": construct("SanaTransformer2DModel", **sizes, **options),
    }  # fmt: skip
    if control:
        components["controlnet"] = fill_zeros(construct("SanaControlNetModel", **sizes))
    texts = prompts(attention_mask="_attention_mask")
    if is_sprint:
        texts = positive(texts)
    else:
        texts["negative_prompt"] = None
    side = {"height": 32, "width": 32, "use_resolution_binning": False, "complex_human_instruction": None}
    return pipeline(name, **components), {**texts, **side, **inputs}


def chroma(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Chroma's transformer: Flux's, with masks for its prompts."""
    transformer = construct(
        "ChromaTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = pipeline(name, vae=image_vae(), scheduler=flow(), transformer=transformer)
    return pipe, {**with_bool_masks(prompts(attention_mask="_attention_mask")), **SIZE, **inputs}


def lumina(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around either transformer of Lumina."""
    if name == "Lumina2Pipeline":
        transformer = construct("Lumina2Transformer2DModel", in_channels=4, cap_feat_dim=32, num_layers=1)
    else:
        transformer = construct("LuminaNextDiT2DModel", in_channels=4, sample_size=8, learn_sigma=True)
    pipe = pipeline(name, vae=image_vae(), scheduler=flow(), transformer=transformer)
    return pipe, {**prompts(attention_mask="_attention_mask"), "height": 32, "width": 32, **inputs}


def aura_flow() -> tuple[Any, dict[str, Any]]:
    """A pipeline around AuraFlow's transformer."""
    transformer = construct("AuraFlowTransformer2DModel", in_channels=4, out_channels=4, sample_size=8)
    pipe = pipeline("AuraFlowPipeline", vae=image_vae(), scheduler=flow(), transformer=transformer)
    return pipe, {**prompts(attention_mask="_attention_mask"), **SIZE}


def cogview(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around either transformer of CogView."""
    options: dict[str, Any] = {
        "in_channels": 8 if "Control" in name else 4,
        "out_channels": 4,
        "text_embed_dim": 32,
    }
    if name == "CogView3PlusPipeline":
        transformer = construct(
            "CogView3PlusTransformer2DModel", **options, sample_size=8, pos_embed_max_size=16
        )
        scheduler: Any = diffusers.CogVideoXDDIMScheduler()
    else:
        transformer = construct("CogView4Transformer2DModel", **options)
        scheduler = flow(use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, time_shift_type="linear")
    pipe = pipeline(name, vae=image_vae(), scheduler=scheduler, transformer=transformer)
    return pipe, {**prompts(tokens=16), **SIZE, **inputs}


def hunyuan_dit(name: str, control: bool = False, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Hunyuan-DiT, which reads two encodings of the prompt."""
    components = {}
    if control:
        net = construct("HunyuanDiT2DControlNetModel", sample_size=16, transformer_num_layers=2)
        components["controlnet"] = fill_zeros(net)
    transformer = construct("HunyuanDiT2DModel", sample_size=16, num_layers=2, learn_sigma=True)
    pipe = pipeline(
        name, vae=image_vae(), scheduler=diffusers.DDPMScheduler(), transformer=transformer,
        requires_safety_checker=False, **components,
    )  # fmt: skip
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        for end in ("", "_2"):
            texts[f"{prefix}prompt_embeds{end}"] = draw(1, 8, 32, seed=seed)
            texts[f"{prefix}prompt_attention_mask{end}"] = torch.ones(1, 8, dtype=torch.long)
    return pipe, {**texts, **SIZE, "use_resolution_binning": False, **inputs}


def ovis() -> tuple[Any, dict[str, Any]]:
    """A pipeline around Ovis-Image's transformer."""
    transformer = construct(
        "OvisImageTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = pipeline(
        "OvisImagePipeline",
        vae=image_vae(),
        scheduler=flow(use_dynamic_shifting=True),
        transformer=transformer,
    )
    return pipe, {**prompts(), **SIZE, "negative_prompt": None}


def hi_dream() -> tuple[Any, dict[str, Any]]:
    """HiDream, a mixture of experts that reads T5 and the layers of a Llama."""
    transformer = construct("HiDreamImageTransformer2DModel", in_channels=4, out_channels=4)
    pipe = pipeline("HiDreamImagePipeline", vae=image_vae(), scheduler=flow(), transformer=transformer)
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        texts[f"{prefix}prompt_embeds_t5"] = draw(1, 7, 32, seed=seed)
        texts[f"{prefix}prompt_embeds_llama3"] = draw(2, 1, 7, 32, seed=seed)
        texts[f"{prefix}pooled_prompt_embeds"] = draw(1, 32, seed=seed)
    return pipe, {**texts, **SIZE}


def prx() -> tuple[Any, dict[str, Any]]:
    """A pipeline around PRX's transformer."""
    transformer = construct("PRXTransformer2DModel", in_channels=4)
    pipe = pipeline("PRXPipeline", vae=image_vae(), scheduler=flow(), transformer=transformer)
    texts = with_bool_masks(prompts(attention_mask="_attention_mask"))
    return pipe, {**texts, **SIZE, "use_resolution_binning": False}


def dit() -> tuple[Any, dict[str, Any]]:
    """A pipeline around DiT's transformer, for classes of pictures."""
    transformer = construct("DiTTransformer2DModel", in_channels=4, out_channels=8, sample_size=8)
    pipe = pipeline("DiTPipeline", vae=image_vae(), scheduler=DDIMScheduler(), transformer=transformer)
    return pipe, {"class_labels": [1, 2], "guidance_scale": 2.0}


_INPAINTING = {"mask_image": mask(), "strength": 0.9}
_LARGE_INPAINTING = {"mask_image": mask(32), "strength": 0.9}
BUILDERS: dict[str, Builder] = {
    "FluxPipeline": call(flux, "FluxPipeline"),
    "FluxImg2ImgPipeline": call(flux, "FluxImg2ImgPipeline", image=picture(1), strength=0.9),
    "FluxInpaintPipeline": call(flux, "FluxInpaintPipeline", image=picture(1), **_INPAINTING),
    "FluxControlNetPipeline": call(flux, "FluxControlNetPipeline", control=True, control_image=picture(1)),
    "FluxControlNetImg2ImgPipeline": call(
        flux, "FluxControlNetImg2ImgPipeline", control=True, image=picture(1), control_image=picture(1, seed=6),
        strength=0.9,
    ),
    "FluxControlNetInpaintPipeline": call(
        flux, "FluxControlNetInpaintPipeline", control=True, image=picture(1), control_image=picture(1, seed=6),
        **_INPAINTING,
    ),
    "FluxControlPipeline": call(flux, "FluxControlPipeline", 32, control_image=picture(1)),
    "FluxControlImg2ImgPipeline": call(
        flux, "FluxControlImg2ImgPipeline", 32, image=picture(1), control_image=picture(1, seed=6), strength=0.9
    ),
    "FluxControlInpaintPipeline": call(
        flux, "FluxControlInpaintPipeline", 32, image=picture(1), control_image=picture(1, seed=6), **_INPAINTING
    ),
    # Two latents of a picture, and a mask of each pixel of a patch of 4 by 4.
    "FluxFillPipeline": call(
        flux, "FluxFillPipeline", 2 * 16 + 16, image=picture(1), mask_image=mask(), strength=1.0
    ),
    "FluxKontextPipeline": call(
        flux, "FluxKontextPipeline", image=picture(1), _auto_resize=False, max_area=16 * 16
    ),
    "FluxKontextInpaintPipeline": call(
        flux, "FluxKontextInpaintPipeline", image=picture(1), _auto_resize=False, max_area=16 * 16, **_INPAINTING
    ),
    "Flux2Pipeline": flux2,
    "Flux2KleinPipeline": call(
        flux2, "Flux2KleinPipeline", negative_prompt_embeds=draw(1, 7, 32, seed=2), guidance_scale=3.0
    ),
    "Flux2Pipeline:picture": call(flux2, image=frames(1, side=64)),
    "FluxPriorReduxPipeline": call(redux, image=picture(1, side=32)),
    "StableDiffusion3Pipeline": call(stable_diffusion_3, "StableDiffusion3Pipeline"),
    "StableDiffusion3Img2ImgPipeline": call(
        stable_diffusion_3, "StableDiffusion3Img2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusion3InpaintPipeline": call(
        stable_diffusion_3, "StableDiffusion3InpaintPipeline", 16, image=picture(1), **_INPAINTING
    ),
    "StableDiffusion3ControlNetPipeline": call(
        stable_diffusion_3, "StableDiffusion3ControlNetPipeline", control=True, control_image=picture(1)
    ),
    "StableDiffusion3PAGPipeline": call(stable_diffusion_3, "StableDiffusion3PAGPipeline", pag_scale=2.0),
    "StableDiffusion3PAGImg2ImgPipeline": call(
        stable_diffusion_3, "StableDiffusion3PAGImg2ImgPipeline", image=picture(1), strength=0.9, pag_scale=2.0
    ),
    "StableDiffusion3ControlNetInpaintingPipeline": call(
        stable_diffusion_3, "StableDiffusion3ControlNetInpaintingPipeline", control=True, control_image=picture(1),
        control_mask=mask(),
    ),
    "QwenImagePipeline": call(qwen_image, "QwenImagePipeline"),
    "QwenImageImg2ImgPipeline": call(
        qwen_image, "QwenImageImg2ImgPipeline", image=picture(1, side=32), strength=0.9
    ),
    "QwenImageInpaintPipeline": call(
        qwen_image, "QwenImageInpaintPipeline", image=picture(1, side=32), **_LARGE_INPAINTING
    ),
    "QwenImageControlNetPipeline": call(
        qwen_image, "QwenImageControlNetPipeline", control=True, control_image=picture(1, side=32)
    ),
    "QwenImageControlNetInpaintPipeline": call(
        qwen_image, "QwenImageControlNetInpaintPipeline", control=True, control_image=picture(1, side=32),
        control_mask=mask(32),
    ),
    "QwenImageEditInpaintPipeline": call(
        qwen_image, "QwenImageEditInpaintPipeline", image=frames(1, side=32)[0], **_LARGE_INPAINTING
    ),
    "QwenImageEditPipeline": call(qwen_image, "QwenImageEditPipeline", image=frames(1, side=32)[0]),
    "QwenImageEditPlusPipeline": call(qwen_image, "QwenImageEditPlusPipeline", image=frames(1, side=32)),
    "ZImagePipeline": call(z_image, "ZImagePipeline"),
    "ZImageImg2ImgPipeline": call(z_image, "ZImageImg2ImgPipeline", image=picture(1), strength=0.9),
    "ZImageInpaintPipeline": call(z_image, "ZImageInpaintPipeline", image=picture(1), **_INPAINTING),
    "PixArtSigmaPAGPipeline": call(pixart, "PixArtSigmaPAGPipeline", pag_scale=2.0),
    "PixArtAlphaPipeline": call(pixart, "PixArtAlphaPipeline"),
    "PixArtSigmaPipeline": call(pixart, "PixArtSigmaPipeline"),
    "SanaPipeline": call(sana, "SanaPipeline"),
    "SanaSprintPipeline": call(sana, "SanaSprintPipeline"),
    "SanaPAGPipeline": call(sana, "SanaPAGPipeline", pag_scale=2.0),
    "SanaSprintImg2ImgPipeline": call(sana, "SanaSprintImg2ImgPipeline", image=picture(1, side=32), strength=0.9),
    "SanaControlNetPipeline": call(sana, "SanaControlNetPipeline", control=True, control_image=picture(1, side=32)),
    "ChromaPipeline": call(chroma, "ChromaPipeline"),
    "ChromaImg2ImgPipeline": call(chroma, "ChromaImg2ImgPipeline", image=picture(1), strength=0.9),
    "LuminaPipeline": call(lumina, "LuminaPipeline"),
    "Lumina2Pipeline": call(lumina, "Lumina2Pipeline"),
    "AuraFlowPipeline": aura_flow,
    "CogView3PlusPipeline": call(cogview, "CogView3PlusPipeline", original_size=(16, 16)),
    "CogView4Pipeline": call(cogview, "CogView4Pipeline"),
    "CogView4ControlPipeline": call(cogview, "CogView4ControlPipeline", control_image=picture(1)),
    "HunyuanDiTPipeline": call(hunyuan_dit, "HunyuanDiTPipeline"),
    "HunyuanDiTPAGPipeline": call(hunyuan_dit, "HunyuanDiTPAGPipeline", pag_scale=2.0),
    "OvisImagePipeline": ovis,
    "HiDreamImagePipeline": hi_dream,
    "PRXPipeline": prx,
    "DiTPipeline": dit,
}  # fmt: skip
