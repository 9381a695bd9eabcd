"""Tiny pipelines of the rarer families that make pictures: Bria, Krea, HunyuanImage, Kandinsky 5 and others."""

from typing import Any

import diffusers
import torch

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
    prompts,
    with_bool_masks,
)
from benchmarks.tiny_pipelines_image import chroma, flow, flux2, hunyuan_dit, qwen_vae, z_image

_LARGE = {"height": 32, "width": 32}
_EMBEDS_MASK = "_embeds_mask"


def flux2_vae() -> torch.nn.Module:
    """Flux.2's autoencoder, which others have, too: its latents are normalized."""
    return diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, sample_size=16, layers_per_block=1,
    ).eval()  # fmt: skip


def bria() -> tuple[Any, dict[str, Any]]:
    """Bria 3.2: Flux's transformer with a negative prompt."""
    transformer = construct(
        "BriaTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = pipeline("BriaPipeline", vae=image_vae(), scheduler=flow(), transformer=transformer)
    return pipe, {**prompts(), **SIZE}


def bria_fibo_2() -> tuple[Any, dict[str, Any]]:
    """Bria Fibo 2, whose transformer reads the states of several layers of a text encoder."""
    transformer = construct("BriaFibo2Transformer2DModel", in_channels=4)
    pipe = pipeline("BriaFibo2Pipeline", vae=flux2_vae(), scheduler=flow(), transformer=transformer)
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        texts[f"{prefix}prompt_embeds"] = draw(1, 2, 8, 32, seed=seed)
        texts[f"{prefix}prompt_embeds_mask"] = torch.ones(1, 8, dtype=torch.long)
    return pipe, {**texts, **_LARGE}


def ernie() -> tuple[Any, dict[str, Any]]:
    """ERNIE-Image, which reads a list of prompts of any lengths."""
    transformer = construct("ErnieImageTransformer2DModel", in_channels=16, out_channels=16, text_in_dim=32)
    pipe = pipeline("ErnieImagePipeline", vae=flux2_vae(), scheduler=flow(), transformer=transformer)
    texts = {"prompt_embeds": [draw(7, 32, seed=1)], "negative_prompt_embeds": [draw(5, 32, seed=2)]}
    return pipe, {**texts, **_LARGE}


def glm_image() -> tuple[Any, dict[str, Any]]:
    """GLM-Image's decoder, from the tokens that its language model makes of a prompt."""
    transformer = construct("GlmImageTransformer2DModel", in_channels=4, out_channels=4)
    vae = image_vae(latents_mean=(0.1,) * 4, latents_std=(1.2,) * 4)
    pipe = pipeline("GlmImagePipeline", vae=vae, scheduler=flow(), transformer=transformer)
    return pipe, {**prompts(), **_LARGE, "prior_token_ids": torch.arange(64)[None]}


def hunyuan_image(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """HunyuanImage, which reads two encodings of the prompt, or its refiner, which reads a picture."""
    is_refiner = "Refiner" in name
    vae_name = "AutoencoderKLHunyuanImageRefiner" if is_refiner else "AutoencoderKLHunyuanImage"
    vae = construct(vae_name, scaling_factor=0.75)
    channels = vae.config.latent_channels
    transformer = construct(
        "HunyuanImageTransformer2DModel", in_channels=channels * (4 if is_refiner else 1),
        out_channels=channels * (2 if is_refiner else 1),
        text_embed_dim=32, text_embed_2_dim=None if is_refiner else 32, num_layers=1, num_single_layers=1,
        patch_size=(1, 1, 1) if is_refiner else (1, 1), rope_axes_dim=(4, 6, 6) if is_refiner else (8, 8),
        guidance_embeds=is_refiner,
    )  # fmt: skip
    pipe = pipeline(name, vae=vae, scheduler=flow(), transformer=transformer)
    texts = prompts(attention_mask=_EMBEDS_MASK)
    if not is_refiner:
        texts |= {f"{key}_2": value for key, value in texts.items()}
    return pipe, {**texts, **inputs}


def joy_image() -> tuple[Any, dict[str, Any]]:
    """JoyImage, which edits a picture."""
    from benchmarks.tiny_pipelines_video import wan_vae

    transformer = construct("JoyImageEditTransformer3DModel", in_channels=16, out_channels=16, text_dim=32)
    pipe = pipeline("JoyImageEditPipeline", vae=wan_vae(), scheduler=flow(), transformer=transformer)
    # Its own sizes are about 1,024 pixels a side.
    pipe.vae_image_processor.get_default_height_width = lambda image, height, width: (height, width)
    return pipe, {**prompts(attention_mask=_EMBEDS_MASK), **_LARGE, "image": frames(1, side=32)[0]}


def kandinsky_5(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline of pictures around Kandinsky 5's transformer."""
    from benchmarks.tiny_pipelines_video import kandinsky5_prompts

    transformer = diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=4, out_visual_dim=4, in_text_dim=32, in_text_dim2=32, time_dim=16, model_dim=32, ff_dim=64,
        num_text_blocks=1, num_visual_blocks=1, axes_dims=(4, 6, 6), visual_cond="I2I" in name,
    ).eval()  # fmt: skip
    # A latent for 8 by 8 pixels, as it reckons with.
    vae = image_vae(
        block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    pipe = pipeline(name, vae=vae, scheduler=flow(shift=5.0), transformer=transformer)
    # Its own sizes are about 1,024 pixels a side.
    pipe.resolutions = [(32, 32)]
    return pipe, {**kandinsky5_prompts(), **_LARGE, **inputs}


def krea_2() -> tuple[Any, dict[str, Any]]:
    """Krea 2, whose transformer reads the states of several layers of a text encoder."""
    transformer = construct("Krea2Transformer2DModel", in_channels=16)
    pipe = pipeline(
        "Krea2Pipeline", vae=qwen_vae(), scheduler=flow(use_dynamic_shifting=True), transformer=transformer
    )
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        texts[f"{prefix}prompt_embeds"] = draw(1, 8, 2, 32, seed=seed)
        texts[f"{prefix}prompt_embeds_mask"] = torch.arange(8)[None] < 8 - seed
    return pipe, {**texts, **_LARGE}


def long_cat() -> tuple[Any, dict[str, Any]]:
    """LongCat-Image."""
    transformer = construct(
        "LongCatImageTransformer2DModel", in_channels=64, num_layers=1, num_single_layers=1, joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = pipeline(
        "LongCatImagePipeline", vae=image_vae(16), scheduler=flow(use_dynamic_shifting=True), transformer=transformer
    )  # fmt: skip
    # It asks for texts, also beside embeddings.
    pipe._encode_prompt = lambda texts: draw(len(texts), 7, 32, seed=len(texts[0]))
    return pipe, {"prompt": "a cat", "negative_prompt": "", **SIZE, "enable_prompt_rewrite": False}


def nucleus() -> tuple[Any, dict[str, Any]]:
    """Nucleus-Image, a mixture of experts."""
    transformer = construct("NucleusMoEImageTransformer2DModel", in_channels=16, out_channels=4)
    pipe = pipeline(
        "NucleusMoEImagePipeline", vae=qwen_vae(), scheduler=flow(use_dynamic_shifting=True), transformer=transformer
    )  # fmt: skip
    return pipe, {**prompts(attention_mask=_EMBEDS_MASK), **_LARGE}


def prx_pixel() -> tuple[Any, dict[str, Any]]:
    """PRX without an autoencoder."""
    transformer = construct("PRXTransformer2DModel", in_channels=3)
    pipe = pipeline("PRXPixelPipeline", scheduler=flow(), transformer=transformer)
    texts = with_bool_masks(prompts(attention_mask="_attention_mask"))
    return pipe, {**texts, **SIZE, "use_resolution_binning": False}


def z_image_control(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Z-Image with its ControlNet, which shares the transformer's embedders."""
    channels = 16 if "Inpaint" not in name else 9
    pipe, others = z_image("ZImagePipeline")
    controlnet = fill_zeros(construct("ZImageControlNetModel", control_in_dim=channels))
    components = {**pipe.components, "controlnet": controlnet}
    return pipeline(name, **components), {**others, **inputs}


_INPAINTING = {"mask_image": mask(), "strength": 0.9}
BUILDERS: dict[str, Builder] = {
    "BriaPipeline": bria,
    "BriaFibo2Pipeline": bria_fibo_2,
    "ErnieImagePipeline": ernie,
    "GlmImagePipeline": glm_image,
    "HunyuanImagePipeline": call(hunyuan_image, "HunyuanImagePipeline", height=64, width=64),
    "HunyuanImageRefinerPipeline": call(
        hunyuan_image, "HunyuanImageRefinerPipeline", image=picture(1, side=64), height=64, width=64
    ),
    "JoyImageEditPipeline": joy_image,
    "Kandinsky5T2IPipeline": call(kandinsky_5, "Kandinsky5T2IPipeline"),
    "Kandinsky5I2IPipeline": call(kandinsky_5, "Kandinsky5I2IPipeline", image=frames(1, side=32)[0]),
    "Krea2Pipeline": krea_2,
    "LongCatImagePipeline": long_cat,
    "NucleusMoEImagePipeline": nucleus,
    "PRXPixelPipeline": prx_pixel,
    "ChromaInpaintPipeline": call(chroma, "ChromaInpaintPipeline", image=picture(1), **_INPAINTING),
    "Flux2KleinInpaintPipeline": call(
        flux2, "Flux2KleinInpaintPipeline", image=picture(1), negative_prompt_embeds=draw(1, 7, 32, seed=2),
        guidance_scale=3.0, **_INPAINTING,
    ),
    "Flux2KleinKVPipeline": call(flux2, "Flux2KleinKVPipeline", image=frames(1, side=64)),
    "HunyuanDiTControlNetPipeline": call(
        hunyuan_dit, "HunyuanDiTControlNetPipeline", control=True, control_image=picture(1)
    ),
    "ZImageControlNetPipeline": call(z_image_control, "ZImageControlNetPipeline", control_image=picture(1)),
    "ZImageControlNetInpaintPipeline": call(
        z_image_control, "ZImageControlNetInpaintPipeline", image=picture(1), mask_image=mask(),
        control_image=picture(1, seed=6),
    ),
}  # fmt: skip
