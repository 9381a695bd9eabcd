"""Tiny pipelines of the newest families that make clips: Kandinsky 5 and 6, Cosmos 3, Sana-WM and others."""

from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import (
    SIZE,
    Builder,
    call,
    draw,
    fill_zeros,
    frames,
    image_vae,
    picture,
    pipeline,
    positive,
    prompts,
)
from benchmarks.tiny_pipelines_unet import SIZES, XL, unet
from benchmarks.tiny_pipelines_video import Guardrail, hunyuan_vae, kandinsky5_prompts, wan_vae

_MASKS = "_attention_mask"
_LARGE = {"height": 32, "width": 32}


def flow(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    """The scheduler of flow matching."""
    return FlowMatchEulerDiscreteScheduler(**options)


# --- with HunyuanVideo's autoencoder ---


def kandinsky_5_image() -> tuple[Any, dict[str, Any]]:
    """Kandinsky 5 from a picture."""
    transformer = diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=4, out_visual_dim=4, in_text_dim=32, in_text_dim2=32, time_dim=16, model_dim=32, ff_dim=64,
        num_text_blocks=1, num_visual_blocks=1, axes_dims=(4, 6, 6), visual_cond=True,
    ).eval()  # fmt: skip
    pipe = pipeline(
        "Kandinsky5I2VPipeline", vae=hunyuan_vae(), scheduler=flow(shift=5.0), transformer=transformer
    )
    return pipe, {**kandinsky5_prompts(), **SIZE, "num_frames": 21, "image": frames(1)[0]}


def kandinsky_6(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Kandinsky 6, which makes sound too."""
    audio_vae = diffusers.MMAudioVAE(
        mel_bins=8, latent_channels=4, hidden_channels=16, channel_multipliers=(1, 2), layers_per_block=1,
        sample_rate=64, n_fft=16, hop_length=4,
    ).eval()  # fmt: skip
    vocoder = diffusers.MMAudioVocoder(
        num_mels=8, upsample_initial_channel=16, upsample_rates=(2, 2), upsample_kernel_sizes=(4, 4),
        resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 3),),
    ).eval()  # fmt: skip
    transformer = construct(
        "Kandinsky6Transformer3DModel", visual_cond=True, num_visual_blocks=1, visual_token_type_num_embeddings=2,
        patch_size=(1, 2, 2),
    )  # fmt: skip
    pipe = pipeline(
        "Kandinsky6TI2VAPipeline", vae=hunyuan_vae(), audio_vae=audio_vae, vocoder=vocoder, transformer=transformer,
        scheduler=flow(shift=7.0),
    )  # fmt: skip
    return pipe, {**prompts(pooled=32), **SIZE, "num_frames": 5, **inputs}


def kandinsky_6_larger() -> tuple[Any, dict[str, Any]]:
    """Kandinsky 6's model that makes a clip larger, tile by tile."""
    transformer = diffusers.Kandinsky6SRTransformer3DModel(
        in_visual_dim=4, out_visual_dim=4, time_dim=32, patch_size=(1, 1, 1), model_dim=32, ff_dim=32,
        num_visual_blocks=1, axes_dims=(4, 6, 6), tile_sizes=((32, 32), (32, 64), (64, 32)),
    ).eval()  # fmt: skip
    vae = diffusers.Kandinsky6SRVAE(
        latent_channels=4, encoder_block_out_channels=(8, 8, 8), decoder_block_out_channels=(8, 8, 8),
        layers_per_block=1, temporal_compression_ratio=4, temporal_compression_start_level=0,
    ).eval()  # fmt: skip
    upscaler = diffusers.Kandinsky6SRLatentUpscalerBank(
        in_channels=4, stage_channels=(8, 8, 4), num_pre_blocks=1, num_mid_blocks=1, num_post_blocks=1,
        num_x2_adapter_blocks=1, scales=(2, 4),
    ).eval()  # fmt: skip
    pipe = pipeline(
        "Kandinsky6SRPipeline",
        vae=vae,
        latent_upscaler=upscaler,
        transformer=transformer,
        scheduler=flow(shift=3.5),
    )
    clip = torch.rand(5, 3, 16, 32, generator=torch.Generator().manual_seed(5))
    return pipe, {"video": clip, "resolution_scale": 2, "tiles_batch_size": 4}


def frame_pack() -> tuple[Any, dict[str, Any]]:
    """HunyuanVideo by FramePack, which makes a clip in sections that see the ones before in fewer and fewer tokens."""
    from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

    encoder = SiglipVisionModel(
        SiglipVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32,
            patch_size=16,
        )
    ).eval()  # fmt: skip
    transformer = diffusers.HunyuanVideoFramepackTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True, text_embed_dim=32,
        pooled_projection_dim=32, rope_axes_dim=(2, 4, 4), image_condition_type=None, has_image_proj=True,
        image_proj_dim=32, has_clean_x_embedder=True,
    ).eval()  # fmt: skip
    pipe = pipeline(
        "HunyuanVideoFramepackPipeline", vae=hunyuan_vae(), scheduler=flow(shift=7.0), transformer=transformer,
        image_encoder=encoder, feature_extractor=SiglipImageProcessor(size=_LARGE),
    )  # fmt: skip
    texts = positive(prompts(pooled=32, attention_mask=_MASKS))
    options = {"num_frames": 9, "latent_window_size": 2, "image": frames(1, side=32)[0]}
    return pipe, {**texts, **_LARGE, **options}


def hunyuan_video_15_image() -> tuple[Any, dict[str, Any]]:
    """HunyuanVideo 1.5 from a picture."""
    from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

    encoder = SiglipVisionModel(
        SiglipVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32,
            patch_size=16,
        )
    ).eval()  # fmt: skip
    transformer = construct(
        "HunyuanVideo15Transformer3DModel", in_channels=9, out_channels=4, num_layers=1, text_embed_dim=32,
        text_embed_2_dim=32, image_embed_dim=32, target_size=32,
    )  # fmt: skip
    pipe = pipeline(
        "HunyuanVideo15ImageToVideoPipeline", vae=construct("AutoencoderKLHunyuanVideo15", latent_channels=4),
        scheduler=flow(), transformer=transformer, guider=diffusers.ClassifierFreeGuidance(guidance_scale=4.0),
        image_encoder=encoder, feature_extractor=SiglipImageProcessor(size=_LARGE),
    )  # fmt: skip
    texts = prompts(attention_mask="_embeds_mask")
    texts |= {f"{key}_2": value for key, value in texts.items()}
    return pipe, {**texts, "num_frames": 5, "image": frames(1, side=32)[0]}


# --- with Wan's autoencoder ---


def any_flow_causal() -> tuple[Any, dict[str, Any]]:
    """AnyFlow in chunks of frames, whose keys and values are kept for the chunks after them."""
    transformer = construct(
        "AnyFlowFARTransformer3DModel", in_channels=16, out_channels=16, text_dim=32, patch_size=(1, 2, 2),
        chunk_partition=(1, 2),
    )  # fmt: skip
    pipe = pipeline(
        "AnyFlowFARPipeline", vae=wan_vae(), scheduler=diffusers.FlowMapEulerDiscreteScheduler(),
        transformer=transformer,
    )  # fmt: skip
    return pipe, {**prompts(), **_LARGE, "num_frames": 9, "guidance_scale": 3.0}


def helios_pyramid() -> tuple[Any, dict[str, Any]]:
    """Helios, each chunk from small to large."""
    transformer = construct(
        "HeliosTransformer3DModel", in_channels=16, out_channels=16, text_dim=32, num_layers=1, patch_size=(1, 2, 2)
    )  # fmt: skip
    scheduler = diffusers.HeliosScheduler(stages=2, stage_range=[0, 1 / 2, 1], gamma=0.3)
    pipe = pipeline("HeliosPyramidPipeline", vae=wan_vae(), scheduler=scheduler, transformer=transformer)
    options = {
        "num_frames": 9,
        "num_latent_frames_per_chunk": 3,
        "pyramid_num_inference_steps_list": [1, 1],
    }
    return pipe, {**prompts(), "height": 64, "width": 64, **options}


def cosmos_transfer() -> tuple[Any, dict[str, Any]]:
    """Cosmos 2.5 from a clip of edges, depths or the like."""
    sizes: dict[str, Any] = {
        "num_attention_heads": 2, "attention_head_dim": 16, "text_embed_dim": 32, "adaln_lora_dim": 4,
        "max_size": (4, 32, 32), "patch_size": (1, 2, 2), "rope_scale": (2.0, 1.0, 1.0),
        "extra_pos_embed_type": None,
    }  # fmt: skip
    transformer = construct(
        "CosmosTransformer3DModel", **sizes, in_channels=17, out_channels=16, num_layers=2, concat_padding_mask=False,
        controlnet_block_every_n=2,
    )  # fmt: skip
    controlnet = construct(
        "CosmosControlNetModel", **sizes, in_channels=130, latent_channels=18, model_channels=32,
        encoder_hidden_states_channels=32, crossattn_proj_in_channels=32,
    )  # fmt: skip
    scheduler = diffusers.UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    pipe = pipeline(
        "Cosmos2_5_TransferPipeline", vae=wan_vae(), scheduler=scheduler, transformer=transformer,
        controlnet=fill_zeros(controlnet), safety_checker=Guardrail(),
    )  # fmt: skip
    options = {
        "controls": frames(5, side=32),
        "negative_prompt": None,
        "num_frames": 5,
        "num_frames_per_chunk": 5,
    }
    return pipe, {**prompts(), **_LARGE, **options}


# --- others ---


def easy_animate(name: str, channels: int, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """EasyAnimate beside other clips."""
    transformer = construct(
        "EasyAnimateTransformer3DModel", in_channels=channels, out_channels=4, text_embed_dim=32, num_layers=1
    )
    vae = construct("AutoencoderKLMagvit", latent_channels=4)
    pipe = pipeline(name, vae=vae, scheduler=flow(), transformer=transformer)
    return pipe, {**prompts(attention_mask=_MASKS), **_LARGE, "num_frames": 5, **inputs}


def sana_wm() -> tuple[Any, dict[str, Any]]:
    """Sana-WM, which makes a clip of a picture and the poses of a camera."""
    from benchmarks.tiny_pipelines_ltx import ltx2_vae

    transformer = construct(
        "SanaWMTransformer3DModel",
        in_channels=8,
        caption_channels=32,
        patch_size=(1, 1, 1),
        chunk_plucker_channels=12,
    )
    pipe = pipeline("SanaWMPipeline", vae=ltx2_vae(), scheduler=flow(shift=3.0), transformer=transformer)
    poses = torch.eye(4).repeat(9, 1, 1)
    poses[:, 0, 3] = torch.arange(9) / 9
    options = {"image": frames(1, side=32)[0], "prompt": None, "c2w": poses.numpy(), "num_frames": 9}
    lens = torch.tensor([30.0, 30.0, 16.0, 16.0]).numpy()
    return pipe, {**prompts(attention_mask=_MASKS), **_LARGE, **options, "intrinsics": lens}


def animate_diff_xl() -> tuple[Any, dict[str, Any]]:
    """AnimateDiff with the U-Net of Stable Diffusion XL."""
    pipe = pipeline(
        "AnimateDiffSDXLPipeline", vae=image_vae(), unet=unet(**XL), motion_adapter=motion_adapter(),
        scheduler=DDIMScheduler(clip_sample=False),
    )  # fmt: skip
    return pipe, {**prompts(pooled=32), "num_frames": 2, **SIZE}


def animate_diff_sparse() -> tuple[Any, dict[str, Any]]:
    """AnimateDiff with a ControlNet for some frames."""
    controlnet = construct(
        "SparseControlNetModel", block_out_channels=SIZES["block_out_channels"], norm_num_groups=4,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"), cross_attention_dim=32,
        conditioning_embedding_out_channels=(8, 8),
        motion_num_attention_heads=2,
    )  # fmt: skip
    pipe = pipeline(
        "AnimateDiffSparseControlNetPipeline", vae=image_vae(), unet=unet(), motion_adapter=motion_adapter(),
        scheduler=DDIMScheduler(clip_sample=False), controlnet=fill_zeros(controlnet),
    )  # fmt: skip
    return pipe, {**prompts(), "num_frames": 2, "conditioning_frames": frames(1), **SIZE}


def motion_adapter() -> torch.nn.Module:
    """What makes of a U-Net for pictures one for clips."""
    return diffusers.MotionAdapter(
        block_out_channels=(8, 16), motion_layers_per_block=1, motion_norm_num_groups=2, motion_num_attention_heads=2
    ).eval()  # fmt: skip


BUILDERS: dict[str, Builder] = {
    "Kandinsky5I2VPipeline": kandinsky_5_image,
    "Kandinsky6TI2VAPipeline": call(kandinsky_6, image=frames(1)[0]),
    "Kandinsky6SRPipeline": kandinsky_6_larger,
    "HunyuanVideoFramepackPipeline": frame_pack,
    "HunyuanVideo15ImageToVideoPipeline": hunyuan_video_15_image,
    "AnyFlowFARPipeline": any_flow_causal,
    "HeliosPyramidPipeline": helios_pyramid,
    "Cosmos2_5_TransferPipeline": cosmos_transfer,
    # Its own call gives encode_prompt an argument that it does not take.
    "EasyAnimateControlPipeline": call(
        easy_animate, "EasyAnimateControlPipeline", 8, control_video=picture(1, 5, side=32)
    ),
    # Of other masks it asks its autoencoder's configuration for what is not there.
    "EasyAnimateInpaintPipeline": call(
        easy_animate, "EasyAnimateInpaintPipeline", 9, video=draw(1, 3, 5, 32, 32),
        mask_video=torch.full((1, 1, 5, 32, 32), 255),
    ),
    "SanaWMPipeline": sana_wm,
    "AnimateDiffSDXLPipeline": animate_diff_xl,
    "AnimateDiffSparseControlNetPipeline": animate_diff_sparse,
}  # fmt: skip
