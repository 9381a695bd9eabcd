"""Tiny pipelines around U-Nets: Stable Diffusion, Stable Diffusion XL, Kandinsky, AnimateDiff and others."""

from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import (
    SIZE,
    Builder,
    Unused,
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
    text_encoder,
    vision_encoder,
    vision_processor,
)

BLOCKS = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 4}
SIZES = {"block_out_channels": (8, 16), "norm_num_groups": 4}
# Stable Diffusion XL: a pooled prompt of 32, and six numbers of 8 each.
XL = {
    "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 32 + 6 * 8,
}  # fmt: skip


def unet(**options: Any) -> torch.nn.Module:
    """A U-Net with two resolutions."""
    return construct("UNet2DConditionModel", **{**SIZES, **BLOCKS, **options})


def controlnet(**options: Any) -> torch.nn.Module:
    """A ControlNet for that U-Net."""
    sizes = {**SIZES, **BLOCKS, "conditioning_embedding_out_channels": (8, 8), **options}
    return fill_zeros(construct("ControlNetModel", **sizes))


def controlnets(count: int, **options: Any) -> dict[str, Any]:
    """A component of as many ControlNets; nothing for none."""
    nets = [controlnet(**options) for _ in range(count)]
    if not nets:
        return {}
    return {"controlnet": nets[0] if count == 1 else nets}


def stable_diffusion(
    name: str, controls: int = 0, components: dict[str, Any] | None = None, **inputs: Any
) -> tuple[Any, dict[str, Any]]:
    """A pipeline around a U-Net, with as many ControlNets.

    Args:
        name: of the pipeline's class.
        controls: the number of ControlNets.
        components: others, as functions that make them.
        inputs: of the call, beside the prompts.
    """
    defaults: dict[str, Any] = {
        "vae": image_vae, "scheduler": lambda: DPMSolverMultistepScheduler(steps_offset=1), "unet": unet,
    }  # fmt: skip
    made = {key: make() for key, make in {**defaults, **(components or {})}.items()}
    pipe = pipeline(name, **made, **controlnets(controls), **_without_checker(name))
    return pipe, {**prompts(), **inputs}


def _without_checker(name: str) -> dict[str, Any]:
    parameters = getattr(diffusers, name).__init__.__code__.co_varnames
    return {"requires_safety_checker": False} if "requires_safety_checker" in parameters else {}


def stable_diffusion_xl(name: str, controls: int = 0, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around a U-Net that also reads the pooled prompt and the sizes."""
    channels = 8 if "InstructPix2Pix" in name else 4
    components: dict[str, Any] = {
        "vae": image_vae(), "scheduler": EulerDiscreteScheduler(), "unet": unet(**XL, in_channels=channels),
        **controlnets(controls, **XL),
    }  # fmt: skip
    if "Adapter" in name:
        components["adapter"] = adapter()
    return pipeline(name, **components), {**prompts(pooled=32), **inputs}


def refiner(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Stable Diffusion XL's second model, which reads an aesthetic score in place of two sizes."""
    options = {**XL, "projection_class_embeddings_input_dim": 32 + 5 * 8}
    pipe = pipeline(
        "StableDiffusionXLImg2ImgPipeline", vae=image_vae(), scheduler=EulerDiscreteScheduler(), unet=unet(**options),
        requires_aesthetics_score=True,
    )  # fmt: skip
    return pipe, {**prompts(pooled=32), **inputs}


def image_variation(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline whose U-Net reads the embedding of a picture in place of a text's."""
    pipe = pipeline(
        "StableDiffusionImageVariationPipeline", vae=image_vae(), image_encoder=vision_encoder(), unet=unet(),
        scheduler=DPMSolverMultistepScheduler(steps_offset=1), feature_extractor=vision_processor(),
        requires_safety_checker=False,
    )  # fmt: skip
    return pipe, inputs


def adapter() -> torch.nn.Module:
    """A T2I-Adapter whose results have the sizes of the U-Net's resolutions."""
    return diffusers.T2IAdapter(
        in_channels=3, channels=[8, 16], num_res_blocks=1, downscale_factor=2, adapter_type="full_adapter"
    ).eval()


def multi_adapter() -> torch.nn.Module:
    """Two T2I-Adapters."""
    return diffusers.MultiAdapter([adapter(), adapter()]).eval()  # pyright: ignore[reportArgumentType]


def latent_consistency(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline of few steps, whose U-Net reads the guidance scale."""
    pipe = pipeline(
        name, vae=image_vae(), scheduler=diffusers.LCMScheduler(), unet=unet(time_cond_proj_dim=16),
        requires_safety_checker=False,
    )  # fmt: skip
    return pipe, {**positive(prompts()), **inputs}


def animate_diff(name: str, controls: int = 0, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline that gives a U-Net for pictures an adapter for motion, with as many ControlNets."""
    adapter = diffusers.MotionAdapter(
        block_out_channels=(8, 16), motion_layers_per_block=1, motion_norm_num_groups=2, motion_num_attention_heads=2
    ).eval()  # fmt: skip
    pipe = pipeline(
        name, vae=image_vae(), unet=unet(), motion_adapter=adapter, scheduler=DDIMScheduler(clip_sample=False),
        **controlnets(controls),
    )  # fmt: skip
    return pipe, {**prompts(), **inputs}


def stable_video(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Stable Video Diffusion, which reads an embedding of a picture."""
    vae = diffusers.AutoencoderKLTemporalDecoder(
        block_out_channels=(32, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        latent_channels=4,
        sample_size=32,
    ).eval()
    pipe = pipeline(
        "StableVideoDiffusionPipeline", image_encoder=vision_encoder(), vae=vae,
        unet=construct("UNetSpatioTemporalConditionModel", in_channels=8, out_channels=4),
        feature_extractor=vision_processor(),
        scheduler=EulerDiscreteScheduler(
            prediction_type="v_prediction", timestep_type="continuous", sigma_min=0.002, sigma_max=700.0,
            use_karras_sigmas=True,
        ),
    )  # fmt: skip
    return pipe, inputs


# --- Kandinsky ---


def kandinsky_2(
    name: str, channels: int = 4, has_hint: bool = False, **inputs: Any
) -> tuple[Any, dict[str, Any]]:
    """Kandinsky 2.2's decoder, from embeddings of pictures."""
    options = {
        "in_channels": channels, "out_channels": 8, "addition_embed_type": "image_hint" if has_hint else "image",
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"), "layers_per_block": 1,
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), "encoder_hid_dim": 32,
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn", "encoder_hid_dim_type": "image_proj",
        "block_out_channels": (32, 64), "resnet_time_scale_shift": "scale_shift", "cross_attention_dim": 16,
        "attention_head_dim": 4, "class_embed_type": None, "norm_num_groups": 8,
    }  # fmt: skip
    vae = diffusers.VQModel(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"), in_channels=3,
        latent_channels=4, layers_per_block=1, norm_num_groups=8, norm_type="spatial", num_vq_embeddings=12,
        out_channels=3, up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"), vq_embed_dim=4,
    ).eval()  # fmt: skip
    scheduler = DDPMScheduler() if "Img2Img" not in name else DDIMScheduler(clip_sample=False)
    pipe = pipeline(name, unet=construct("UNet2DConditionModel", **options), movq=vae, scheduler=scheduler)
    embeddings = {"image_embeds": draw(1, 32, seed=1), "negative_image_embeds": draw(1, 32, seed=2)}
    return pipe, {**embeddings, **inputs}


def kandinsky_3(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Kandinsky 3."""
    vae = diffusers.VQModel(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"), in_channels=3,
        latent_channels=4, layers_per_block=1, norm_num_groups=8, norm_type="spatial", num_vq_embeddings=12,
        out_channels=3, up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"), vq_embed_dim=4,
    ).eval()  # fmt: skip
    pipe = pipeline(name, unet=construct("Kandinsky3UNet"), movq=vae, scheduler=DDPMScheduler())
    valid = torch.ones(1, 7, dtype=torch.long)
    return pipe, {**prompts(), "attention_mask": valid, "negative_attention_mask": valid.clone(), **inputs}


# --- of pixels ---


def unconditional(name: str, scheduler: str) -> tuple[Any, dict[str, Any]]:
    """A pipeline around a U-Net alone."""
    net = construct("UNet2DModel", **SIZES, in_channels=3, out_channels=3)
    return pipeline(name, unet=net, scheduler=getattr(diffusers, scheduler)()), {}


def deep_floyd(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline of pixels with a prompt; the U-Net also predicts the variance."""
    channels = 6 if "SuperResolution" in name else 3
    options = {"class_embed_type": "timestep"} if "SuperResolution" in name else {}
    components: dict[str, Any] = {
        "unet": unet(in_channels=channels, out_channels=6, **options),
        "scheduler": DDPMScheduler(variance_type="learned_range"),
    }  # fmt: skip
    if "SuperResolution" in name:
        components["image_noising_scheduler"] = DDPMScheduler()
    return pipeline(name, requires_safety_checker=False, **components), {**prompts(), **inputs}


def stable_cascade(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Either model of Stable Cascade."""
    options: dict[str, Any] = {"in_channels": 4, "out_channels": 4}
    components: dict[str, Any] = {"scheduler": diffusers.DDPMWuerstchenScheduler()}
    if "Prior" in name:
        components["text_encoder"] = text_encoder()
        components["prior"] = construct("StableCascadeUNet", **options, effnet_in_channels=None)
    else:
        from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

        components["decoder"] = construct("StableCascadeUNet", **options, effnet_in_channels=4)
        components["vqgan"] = PaellaVQModel(
            bottleneck_blocks=1, num_vq_embeddings=32, embed_dim=8, levels=2, latent_channels=4
        ).eval()
    texts = {
        f"{prefix}prompt_embeds{end}": draw(1, size, 32, seed=seed)
        for seed, prefix in ((1, ""), (2, "negative_"))
        for end, size in (("", 7), ("_pooled", 1))
    }
    return pipeline(name, **components), {**texts, **inputs}


_INPAINTING = {"mask_image": mask(), "strength": 0.9}
_INSTRUCTED = {"unet": lambda: unet(in_channels=8)}
BUILDERS: dict[str, Builder] = {
    "StableDiffusionPipeline": call(stable_diffusion, "StableDiffusionPipeline", **SIZE),
    "StableDiffusionImg2ImgPipeline": call(
        stable_diffusion, "StableDiffusionImg2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusionInpaintPipeline": call(
        stable_diffusion, "StableDiffusionInpaintPipeline", image=picture(1), **_INPAINTING, **SIZE
    ),
    "StableDiffusionControlNetPipeline": call(
        stable_diffusion, "StableDiffusionControlNetPipeline", 1, image=picture(1), **SIZE
    ),
    "StableDiffusionControlNetPipeline:stack": call(
        stable_diffusion, "StableDiffusionControlNetPipeline", 2, image=[picture(1), picture(1, seed=6)],
        controlnet_conditioning_scale=[1.0, 0.5], **SIZE,
    ),
    "StableDiffusionControlNetImg2ImgPipeline": call(
        stable_diffusion, "StableDiffusionControlNetImg2ImgPipeline", 1, image=picture(1),
        control_image=picture(1, seed=6), strength=0.9, **SIZE,
    ),
    "StableDiffusionControlNetInpaintPipeline": call(
        stable_diffusion, "StableDiffusionControlNetInpaintPipeline", 1, image=picture(1),
        control_image=picture(1, seed=6), **_INPAINTING, **SIZE,
    ),
    "StableDiffusionAdapterPipeline": call(
        stable_diffusion, "StableDiffusionAdapterPipeline", 0, {"adapter": adapter}, image=picture(1), **SIZE
    ),
    "StableDiffusionAdapterPipeline:stack": call(
        stable_diffusion, "StableDiffusionAdapterPipeline", 0, {"adapter": multi_adapter},
        image=[picture(1), picture(1, seed=6)], adapter_conditioning_scale=[0.7, 0.4], **SIZE,
    ),
    "StableDiffusionInstructPix2PixPipeline": call(
        stable_diffusion, "StableDiffusionInstructPix2PixPipeline", 0, _INSTRUCTED, image=picture(1)
    ),
    "StableDiffusionDepth2ImgPipeline": call(
        stable_diffusion, "StableDiffusionDepth2ImgPipeline", 0,
        {"unet": lambda: unet(in_channels=5), "depth_estimator": Unused}, image=picture(1),
        depth_map=draw(1, 16, 16), strength=0.9,
    ),
    "StableDiffusionUpscalePipeline": call(
        stable_diffusion, "StableDiffusionUpscalePipeline", 0,
        {"unet": lambda: unet(in_channels=7, num_class_embeds=400), "low_res_scheduler": DDPMScheduler},
        image=picture(1, side=8),
    ),
    "StableDiffusionPAGPipeline": call(stable_diffusion, "StableDiffusionPAGPipeline", pag_scale=2.0, **SIZE),
    "StableDiffusionPAGImg2ImgPipeline": call(
        stable_diffusion, "StableDiffusionPAGImg2ImgPipeline", image=picture(1), strength=0.9, pag_scale=2.0
    ),
    "StableDiffusionPAGInpaintPipeline": call(
        stable_diffusion, "StableDiffusionPAGInpaintPipeline", image=picture(1), pag_scale=2.0, **_INPAINTING, **SIZE
    ),
    "StableDiffusionControlNetPAGPipeline": call(
        stable_diffusion, "StableDiffusionControlNetPAGPipeline", 1, image=picture(1), pag_scale=2.0, **SIZE
    ),
    "StableDiffusionControlNetPAGInpaintPipeline": call(
        stable_diffusion, "StableDiffusionControlNetPAGInpaintPipeline", 1, image=picture(1),
        control_image=picture(1, seed=6), pag_scale=2.0, **_INPAINTING, **SIZE,
    ),
    "StableDiffusionImageVariationPipeline": call(image_variation, image=picture(1, side=32), **SIZE),
    "LatentConsistencyModelPipeline": call(latent_consistency, "LatentConsistencyModelPipeline", **SIZE),
    "LatentConsistencyModelImg2ImgPipeline": call(
        latent_consistency, "LatentConsistencyModelImg2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusionXLPipeline": call(stable_diffusion_xl, "StableDiffusionXLPipeline", **SIZE),
    "StableDiffusionXLImg2ImgPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLImg2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusionXLImg2ImgPipeline:refiner": call(refiner, image=picture(1), strength=0.9),
    "StableDiffusionXLInpaintPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLInpaintPipeline", image=picture(1), **_INPAINTING, **SIZE
    ),
    "StableDiffusionXLControlNetPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLControlNetPipeline", 1, image=picture(1), **SIZE
    ),
    "StableDiffusionXLControlNetPipeline:stack": call(
        stable_diffusion_xl, "StableDiffusionXLControlNetPipeline", 2, image=[picture(1), picture(1, seed=6)], **SIZE
    ),
    "StableDiffusionXLAdapterPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLAdapterPipeline", image=picture(1), **SIZE
    ),
    "StableDiffusionXLInstructPix2PixPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLInstructPix2PixPipeline", image=picture(1), **SIZE
    ),
    "StableDiffusionXLControlNetImg2ImgPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLControlNetImg2ImgPipeline", 1, image=picture(1),
        control_image=picture(1, seed=6), strength=0.9, **SIZE,
    ),
    "StableDiffusionXLControlNetInpaintPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLControlNetInpaintPipeline", 1, image=picture(1),
        control_image=picture(1, seed=6), **_INPAINTING, **SIZE,
    ),
    "StableDiffusionXLPAGPipeline": call(stable_diffusion_xl, "StableDiffusionXLPAGPipeline", pag_scale=2.0, **SIZE),
    "StableDiffusionXLPAGImg2ImgPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLPAGImg2ImgPipeline", image=picture(1), strength=0.9, pag_scale=2.0
    ),
    "StableDiffusionXLPAGInpaintPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLPAGInpaintPipeline", image=picture(1), pag_scale=2.0, **_INPAINTING,
        **SIZE,
    ),
    "StableDiffusionXLControlNetPAGPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLControlNetPAGPipeline", 1, image=picture(1), pag_scale=2.0, **SIZE
    ),
    "StableDiffusionXLControlNetPAGImg2ImgPipeline": call(
        stable_diffusion_xl, "StableDiffusionXLControlNetPAGImg2ImgPipeline", 1, image=picture(1),
        control_image=picture(1, seed=6), strength=0.9, pag_scale=2.0, **SIZE,
    ),
    "AnimateDiffControlNetPipeline": call(
        animate_diff, "AnimateDiffControlNetPipeline", 1, num_frames=2, conditioning_frames=frames(2), **SIZE
    ),
    "AnimateDiffVideoToVideoControlNetPipeline": call(
        animate_diff, "AnimateDiffVideoToVideoControlNetPipeline", 1, video=frames(2), conditioning_frames=frames(2),
        strength=0.9, **SIZE,
    ),
    "AnimateDiffPAGPipeline": call(animate_diff, "AnimateDiffPAGPipeline", num_frames=2, pag_scale=2.0, **SIZE),
    "AnimateDiffPipeline": call(animate_diff, "AnimateDiffPipeline", num_frames=2, **SIZE),
    "AnimateDiffVideoToVideoPipeline": call(
        animate_diff, "AnimateDiffVideoToVideoPipeline", video=frames(2), strength=0.9, **SIZE
    ),
    "StableVideoDiffusionPipeline": call(stable_video, image=picture(1, side=32), num_frames=2, height=32, width=32),
    "KandinskyV22Pipeline": call(kandinsky_2, "KandinskyV22Pipeline", **SIZE),
    "KandinskyV22Img2ImgPipeline": call(
        kandinsky_2, "KandinskyV22Img2ImgPipeline", image=frames(1), strength=0.9, **SIZE
    ),
    "KandinskyV22InpaintPipeline": call(
        kandinsky_2, "KandinskyV22InpaintPipeline", 9, image=frames(1)[0], mask_image=mask()[0, 0].numpy(), **SIZE
    ),
    "KandinskyV22ControlnetImg2ImgPipeline": call(
        kandinsky_2, "KandinskyV22ControlnetImg2ImgPipeline", 8, True, hint=picture(1, side=64), image=frames(1),
        strength=0.9, **SIZE,
    ),
    "KandinskyV22ControlnetPipeline": call(
        kandinsky_2, "KandinskyV22ControlnetPipeline", 8, True, hint=picture(1, side=64), **SIZE
    ),
    "Kandinsky3Pipeline": call(kandinsky_3, "Kandinsky3Pipeline", **SIZE),
    "Kandinsky3Img2ImgPipeline": call(kandinsky_3, "Kandinsky3Img2ImgPipeline", image=frames(1)[0], strength=0.9),
    "DDIMPipeline": call(unconditional, "DDIMPipeline", "DDIMScheduler"),
    "DDPMPipeline": call(unconditional, "DDPMPipeline", "DDPMScheduler"),
    "ConsistencyModelPipeline": call(unconditional, "ConsistencyModelPipeline", "CMStochasticIterativeScheduler"),
    "IFPipeline": call(deep_floyd, "IFPipeline", **SIZE),
    "IFImg2ImgPipeline": call(deep_floyd, "IFImg2ImgPipeline", image=picture(1), strength=0.9),
    "IFInpaintingPipeline": call(deep_floyd, "IFInpaintingPipeline", image=picture(1), **_INPAINTING),
    "IFSuperResolutionPipeline": call(deep_floyd, "IFSuperResolutionPipeline", image=picture(1), **SIZE),
    "IFImg2ImgSuperResolutionPipeline": call(
        deep_floyd, "IFImg2ImgSuperResolutionPipeline", image=picture(1), original_image=picture(1, seed=6),
        strength=0.9,
    ),
    "IFInpaintingSuperResolutionPipeline": call(
        deep_floyd, "IFInpaintingSuperResolutionPipeline", image=picture(1), original_image=picture(1, seed=6),
        **_INPAINTING,
    ),
    "StableCascadePriorPipeline": call(stable_cascade, "StableCascadePriorPipeline", height=128, width=128),
    "StableCascadeDecoderPipeline": call(
        stable_cascade, "StableCascadeDecoderPipeline", image_embeddings=draw(1, 4, 2, 2), guidance_scale=2.0
    ),
}  # fmt: skip
