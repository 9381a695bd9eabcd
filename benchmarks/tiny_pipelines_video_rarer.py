"""Tiny pipelines of the rarer families that make clips: Allegro, EasyAnimate, Helios, Wan-Animate and others."""

from typing import Any

import diffusers
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import (
    SIZE,
    Builder,
    call,
    frames,
    picture,
    pipeline,
    prompts,
    vision_encoder,
    vision_processor,
)
from benchmarks.tiny_pipelines_video import cosmos, hunyuan_video, wan_transformer, wan_vae

_MASKS = "_attention_mask"
_LARGE = {"height": 32, "width": 32}


def flow(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    """The scheduler of flow matching."""
    return FlowMatchEulerDiscreteScheduler(**options)


# --- with Wan's autoencoder ---


def any_flow() -> tuple[Any, dict[str, Any]]:
    """AnyFlow, whose transformer reads the time that a step goes to."""
    transformer = construct(
        "AnyFlowTransformer3DModel", in_channels=16, out_channels=16, text_dim=32,
        patch_size=(1, 2, 2), num_layers=1,
    )  # fmt: skip
    scheduler = diffusers.FlowMapEulerDiscreteScheduler()
    pipe = pipeline("AnyFlowPipeline", vae=wan_vae(), scheduler=scheduler, transformer=transformer)
    return pipe, {**prompts(), **SIZE, "num_frames": 5}


def chrono_edit() -> tuple[Any, dict[str, Any]]:
    """ChronoEdit, which edits a picture by a clip that ends with the result."""
    transformer = wan_transformer(
        "ChronoEditTransformer3DModel", channels=36, image_dim=32, added_kv_proj_dim=24
    )
    pipe = pipeline(
        "ChronoEditPipeline", vae=wan_vae(), scheduler=flow(shift=5.0), transformer=transformer,
        image_encoder=vision_encoder(with_projection=False), image_processor=vision_processor(),
    )  # fmt: skip
    return pipe, {**prompts(), **SIZE, "num_frames": 5, "image": frames(1)[0]}


def helios() -> tuple[Any, dict[str, Any]]:
    """Helios, which makes a clip in chunks that see the ones before."""
    transformer = construct(
        "HeliosTransformer3DModel", in_channels=16, out_channels=16, text_dim=32, num_layers=1, patch_size=(1, 2, 2)
    )  # fmt: skip
    scheduler = diffusers.HeliosScheduler(stages=1, stage_range=[0, 1], gamma=1.0)
    pipe = pipeline("HeliosPipeline", vae=wan_vae(), scheduler=scheduler, transformer=transformer)
    return pipe, {**prompts(), **SIZE, "num_frames": 9, "num_latent_frames_per_chunk": 3}


def lucy() -> tuple[Any, dict[str, Any]]:
    """Lucy Edit: Wan's transformer beside a clip."""
    pipe = pipeline(
        "LucyEditPipeline", vae=wan_vae(), scheduler=flow(), transformer=wan_transformer(channels=32)
    )
    return pipe, {**prompts(), **SIZE, "num_frames": 5, "video": frames(5)}


def motif(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Motif-Video."""
    transformer = construct(
        "MotifVideoTransformer3DModel", in_channels=33, out_channels=16, text_embed_dim=32, num_layers=1
    )
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=4.0)
    pipe = pipeline(name, vae=wan_vae(), scheduler=flow(), transformer=transformer, guider=guider)
    return pipe, {**prompts(attention_mask=_MASKS), **_LARGE, "num_frames": 5, **inputs}


def wan_animate() -> tuple[Any, dict[str, Any]]:
    """Wan-Animate, which moves a picture as a clip of a pose and one of a face do."""
    transformer = construct(
        "WanAnimateTransformer3DModel", in_channels=36, latent_channels=16, out_channels=16, text_dim=32,
        patch_size=(1, 2, 2), num_layers=1, inject_face_latents_blocks=1,
    )  # fmt: skip
    pipe = pipeline(
        "WanAnimatePipeline", vae=wan_vae(), transformer=transformer,
        scheduler=UniPCMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction"),
        image_encoder=vision_encoder(with_projection=False), image_processor=vision_processor(),
    )  # fmt: skip
    clips = {"pose_video": frames(5), "face_video": frames(5)}
    return pipe, {**prompts(), **SIZE, **clips, "image": frames(1)[0], "segment_frame_length": 5}


# --- others ---


def allegro() -> tuple[Any, dict[str, Any]]:
    """Allegro, whose autoencoder works in tiles."""
    transformer = construct(
        "AllegroTransformer3DModel", in_channels=4, out_channels=4, caption_channels=32, num_layers=1
    )
    pipe = pipeline(
        "AllegroPipeline", vae=construct("AutoencoderKLAllegro"), scheduler=diffusers.DDIMScheduler(),
        transformer=transformer,
    )  # fmt: skip
    texts = prompts(attention_mask=_MASKS)
    return pipe, {**texts, **_LARGE, "num_frames": 24, "negative_prompt": None, "clean_caption": False}


def easy_animate() -> tuple[Any, dict[str, Any]]:
    """EasyAnimate."""
    transformer = construct(
        "EasyAnimateTransformer3DModel", in_channels=4, out_channels=4, text_embed_dim=32, num_layers=1
    )
    vae = construct("AutoencoderKLMagvit", latent_channels=4)
    pipe = pipeline("EasyAnimatePipeline", vae=vae, scheduler=flow(), transformer=transformer)
    return pipe, {**prompts(attention_mask=_MASKS), **_LARGE, "num_frames": 5}


def hunyuan_video_15() -> tuple[Any, dict[str, Any]]:
    """HunyuanVideo 1.5, which reads two encodings of the prompt, and one of a picture."""
    vae = construct("AutoencoderKLHunyuanVideo15", latent_channels=4)
    transformer = construct(
        "HunyuanVideo15Transformer3DModel", in_channels=9, out_channels=4, num_layers=1, text_embed_dim=32,
        text_embed_2_dim=32, image_embed_dim=32,
    )  # fmt: skip
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=4.0)
    pipe = pipeline(
        "HunyuanVideo15Pipeline", vae=vae, scheduler=flow(), transformer=transformer, guider=guider
    )
    texts = prompts(attention_mask="_embeds_mask")
    texts |= {f"{key}_2": value for key, value in texts.items()}
    return pipe, {**texts, **_LARGE, "num_frames": 5}


BUILDERS: dict[str, Builder] = {
    "AnyFlowPipeline": any_flow,
    "ChronoEditPipeline": chrono_edit,
    "HeliosPipeline": helios,
    "LucyEditPipeline": lucy,
    "MotifVideoPipeline": call(motif, "MotifVideoPipeline"),
    "MotifVideoImage2VideoPipeline": call(
        motif, "MotifVideoImage2VideoPipeline", prompt=None, image=frames(1, side=32)[0]
    ),
    "WanAnimatePipeline": wan_animate,
    "AllegroPipeline": allegro,
    "EasyAnimatePipeline": easy_animate,
    "HunyuanVideo15Pipeline": hunyuan_video_15,
    "HunyuanSkyreelsImageToVideoPipeline": call(
        hunyuan_video, "HunyuanSkyreelsImageToVideoPipeline", 8, image=picture(1), true_cfg_scale=1.0
    ),
    "Cosmos2_5_PredictBasePipeline": call(cosmos, "Cosmos2_5_PredictBasePipeline", num_frames=9),
}  # fmt: skip
