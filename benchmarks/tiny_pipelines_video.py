"""Tiny pipelines that make clips: Wan, LTX-Video, CogVideoX, HunyuanVideo, Mochi, Cosmos and others."""

from typing import Any

import diffusers
import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import (
    SIZE,
    Builder,
    Unused,
    call,
    draw,
    image_vae,
    picture,
    pipeline,
    positive,
    prompts,
    vision_encoder,
    vision_processor,
    with_bool_masks,
)

_MASKS = "_attention_mask"


# --- Wan and its kin ---


def wan_vae() -> AutoencoderKLWan:
    """One latent for 8 x 8 pixels of 4 frames."""
    return AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()


def wan_transformer(
    name: str = "WanTransformer3DModel", channels: int = 16, **options: Any
) -> torch.nn.Module:
    """A block of width 24."""
    return getattr(diffusers, name)(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=channels, out_channels=16,
        text_dim=32, freq_dim=32, ffn_dim=32, num_layers=1, cross_attn_norm=True, rope_max_seq_len=32, **options,
    ).eval()  # fmt: skip


def wan(name: str, transformers: int = 1, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Wan's transformers: one for steps of much noise, and maybe one for the others."""
    options: dict[str, Any] = {}
    match name:
        case "WanImageToVideoPipeline":
            # Latents, those of the first frame, and a mask.
            make = {"channels": 36}
            if transformers == 1:
                make |= {"image_dim": 32, "added_kv_proj_dim": 24}
                options = {
                    "image_encoder": vision_encoder(with_projection=False),
                    "image_processor": vision_processor(),
                }
        case "WanVACEPipeline":
            make = {"name": "WanVACETransformer3DModel", "vace_layers": [0], "vace_in_channels": 96}
        case _:
            make = {}
    if transformers == 2:
        options |= {"transformer_2": wan_transformer(**make), "boundary_ratio": 0.9}
    pipe = pipeline(
        name, vae=wan_vae(), scheduler=UniPCMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True,
        prediction_type="flow_prediction"), transformer=wan_transformer(**make), **options,
    )  # fmt: skip
    return pipe, {**prompts(), **SIZE, **inputs}


def sky_reels(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around SkyReels' transformer: Wan's, with frames of several noise levels."""
    options: dict[str, Any] = {}
    encoders: dict[str, Any] = {}
    if name == "SkyReelsV2ImageToVideoPipeline":
        options = {"channels": 36, "image_dim": 32, "added_kv_proj_dim": 24}
        encoders = {
            "image_encoder": vision_encoder(with_projection=False), "image_processor": vision_processor(),
        }  # fmt: skip
    pipe = pipeline(
        name, vae=wan_vae(), scheduler=UniPCMultistepScheduler(flow_shift=8.0, use_flow_sigmas=True),
        transformer=wan_transformer("SkyReelsV2Transformer3DModel", **options), **encoders,
    )  # fmt: skip
    return pipe, {**prompts(), **SIZE, **inputs}


def cosmos(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Cosmos' transformer; the guardrail that it asks for lets everything pass."""
    is_second = name.startswith("Cosmos2")
    channels = 16 if name in ("CosmosTextToWorldPipeline", "Cosmos2TextToImagePipeline") else 17
    vae: Any = wan_vae()
    if not is_second:
        vae = diffusers.AutoencoderKLCosmos(
            encoder_block_out_channels=(8, 8, 8, 8), decode_block_out_channels=(8, 8, 8, 8),
            attention_resolutions=(8,), resolution=64, num_layers=1, latent_channels=16,
        ).eval()  # fmt: skip
    transformer = construct(
        "CosmosTransformer3DModel", in_channels=channels, out_channels=16, num_attention_heads=2,
        attention_head_dim=16, num_layers=1, text_embed_dim=32, adaln_lora_dim=4, max_size=(4, 32, 32),
        patch_size=(1, 2, 2), rope_scale=(2.0, 1.0, 1.0), concat_padding_mask=False,
        extra_pos_embed_type=None if is_second else "learnable",
    )  # fmt: skip
    scheduler: Any = diffusers.EDMEulerScheduler(final_sigmas_type="sigma_min")
    if is_second:
        scheduler = FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True)
    pipe = pipeline(name, vae=vae, scheduler=scheduler, transformer=transformer, safety_checker=Guardrail())
    return pipe, {**prompts(), **SIZE, **inputs}


class Guardrail(Unused):
    """Lets every prompt and every clip pass."""

    def check_text_safety(self, prompt: str) -> bool:
        """That it is safe."""
        return True

    def check_video_safety(self, video: Any) -> Any:
        """The clip itself."""
        return video


# --- LTX-Video ---


def ltx(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around LTX-Video's transformer."""
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32,
        num_layers=1, caption_channels=32,
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5, decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False), patch_size=1,
        decoder_spatio_temporal_scaling=(True, True, False, False), decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4, upsample_factor=(1,) * 4,
    ).eval()  # fmt: skip
    pipe = pipeline(name, vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(), transformer=transformer)
    texts = with_bool_masks(prompts(tokens=16, attention_mask=_MASKS))
    return pipe, {**texts, "num_frames": 9, "height": 32, "width": 32, "guidance_scale": 3.0, **inputs}


# --- others ---


def cogvideo(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around CogVideoX's transformer."""
    channels = 8 if "ImageToVideo" in name or "Control" in name else 4
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=channels, out_channels=4, time_embed_dim=2,
        text_embed_dim=32, num_layers=1, sample_width=2, sample_height=2, sample_frames=9, patch_size=2,
        temporal_compression_ratio=4, max_text_seq_length=7, use_rotary_positional_embeddings=True,
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2,
        temporal_compression_ratio=4,
    ).eval()  # fmt: skip
    pipe = pipeline(name, vae=vae, scheduler=diffusers.CogVideoXDDIMScheduler(), transformer=transformer)
    return pipe, {**prompts(), **SIZE, "max_sequence_length": 7, **inputs}


def hunyuan_video(
    name: str, channels: int = 4, condition: str | None = None, **inputs: Any
) -> tuple[Any, dict[str, Any]]:
    """A pipeline around HunyuanVideo's transformer, which reads the guidance scale and so many channels."""
    transformer = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=channels, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, patch_size=1, patch_size_t=1, guidance_embeds=True,
        text_embed_dim=32, pooled_projection_dim=32, rope_axes_dim=(2, 4, 4), image_condition_type=condition,
    ).eval()  # fmt: skip
    pipe = pipeline(
        name, vae=hunyuan_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0), transformer=transformer
    )
    texts = positive(prompts(pooled=32, attention_mask=_MASKS))
    return pipe, {**texts, **SIZE, "num_frames": 9, **inputs}


def hunyuan_vae() -> torch.nn.Module:
    """HunyuanVideo's autoencoder, which Kandinsky 5 has, too."""
    return diffusers.AutoencoderKLHunyuanVideo(
        in_channels=3, out_channels=3, latent_channels=4, down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4, block_out_channels=(8, 8, 8, 8), layers_per_block=1,
        spatial_compression_ratio=8, temporal_compression_ratio=4, norm_num_groups=4, mid_block_add_attention=True,
    ).eval()  # fmt: skip


def kandinsky5() -> tuple[Any, dict[str, Any]]:
    """A pipeline around Kandinsky 5's transformer, which reads the lengths of the prompts."""
    transformer = diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=4, out_visual_dim=4, in_text_dim=32, in_text_dim2=32, time_dim=16, model_dim=32, ff_dim=64,
        num_text_blocks=1, num_visual_blocks=1, axes_dims=(4, 6, 6),
    ).eval()  # fmt: skip
    pipe = pipeline(
        "Kandinsky5T2VPipeline", vae=hunyuan_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        transformer=transformer,
    )  # fmt: skip
    return pipe, {**kandinsky5_prompts(), **SIZE, "num_frames": 5}


def kandinsky5_prompts() -> dict[str, Any]:
    """Embeddings of two prompts by both encoders."""
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        texts[f"{prefix}prompt_embeds_qwen"] = draw(1, 7, 32, seed=seed)
        texts[f"{prefix}prompt_embeds_clip"] = draw(1, 32, seed=seed)
        texts[f"{prefix}prompt_cu_seqlens"] = torch.tensor([0, 7], dtype=torch.int32)
    return texts


def mochi() -> tuple[Any, dict[str, Any]]:
    """A pipeline around Mochi's transformer."""
    transformer = diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=12, text_embed_dim=32, time_embed_dim=4, activation_fn="swiglu", max_sequence_length=16,
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKLMochi(
        latent_channels=12, out_channels=3, encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32), layers_per_block=(1, 1, 1, 1, 1),
    ).eval()  # fmt: skip
    pipe = pipeline(
        "MochiPipeline", vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(), transformer=transformer
    )
    texts = with_bool_masks(prompts(attention_mask=_MASKS))
    return pipe, {**texts, **SIZE, "num_frames": 7}


def latte() -> tuple[Any, dict[str, Any]]:
    """A pipeline around Latte's transformer, whose autoencoder is one of pictures."""
    transformer = construct("LatteTransformer3DModel", sample_size=8, video_length=2, out_channels=8)
    pipe = pipeline(
        "LattePipeline", vae=image_vae(), scheduler=diffusers.DDIMScheduler(), transformer=transformer
    )
    return pipe, {
        **prompts(),
        **SIZE,
        "video_length": 2,
        "clean_caption": False,
        "mask_feature": False,
        "negative_prompt": None,
    }


def sana_video(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around Sana-Video's transformer, with Wan's autoencoder."""
    transformer = construct(
        "SanaVideoTransformer3DModel", in_channels=16, out_channels=16, num_attention_heads=2, attention_head_dim=12,
        num_layers=1, num_cross_attention_heads=2, cross_attention_head_dim=12, cross_attention_dim=24,
        caption_channels=32, mlp_ratio=2.5, sample_size=8, patch_size=(1, 2, 2), rope_max_seq_len=32,
    )  # fmt: skip
    pipe = pipeline(
        name, vae=wan_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), transformer=transformer
    )
    options = {
        "frames": 5,
        "use_resolution_binning": False,
        "negative_prompt": None,
        "complex_human_instruction": None,
    }
    return pipe, {**prompts(attention_mask=_MASKS), "height": 32, "width": 32, **options, **inputs}


BUILDERS: dict[str, Builder] = {
    "WanPipeline": call(wan, "WanPipeline", num_frames=5),
    "WanPipeline:two": call(wan, "WanPipeline", 2, num_frames=5),
    "WanImageToVideoPipeline": call(wan, "WanImageToVideoPipeline", image=picture(1), num_frames=5),
    "WanImageToVideoPipeline:two": call(wan, "WanImageToVideoPipeline", 2, image=picture(1), num_frames=5),
    "WanVideoToVideoPipeline": call(wan, "WanVideoToVideoPipeline", video=picture(1, 5), strength=0.9),
    "WanVACEPipeline": call(wan, "WanVACEPipeline", num_frames=5),
    "SkyReelsV2Pipeline": call(sky_reels, "SkyReelsV2Pipeline", num_frames=5),
    "SkyReelsV2ImageToVideoPipeline": call(
        sky_reels, "SkyReelsV2ImageToVideoPipeline", image=picture(1), num_frames=5
    ),
    "SkyReelsV2DiffusionForcingPipeline": call(
        sky_reels, "SkyReelsV2DiffusionForcingPipeline", prompt=None, num_frames=9, base_num_frames=9
    ),
    "SkyReelsV2DiffusionForcingImageToVideoPipeline": call(
        sky_reels, "SkyReelsV2DiffusionForcingImageToVideoPipeline", image=picture(1), num_frames=9, base_num_frames=9
    ),
    "SkyReelsV2DiffusionForcingVideoToVideoPipeline": call(
        sky_reels, "SkyReelsV2DiffusionForcingVideoToVideoPipeline", video=picture(1, 5), num_frames=17,
        base_num_frames=9, overlap_history=5,
    ),
    "LTXPipeline": call(ltx, "LTXPipeline"),
    "LTXImageToVideoPipeline": call(ltx, "LTXImageToVideoPipeline", image=picture(1, side=32)),
    "LTXConditionPipeline": call(ltx, "LTXConditionPipeline", image=picture(1, side=32)),
    "CogVideoXPipeline": call(cogvideo, "CogVideoXPipeline", num_frames=9),
    "CogVideoXImageToVideoPipeline": call(
        cogvideo, "CogVideoXImageToVideoPipeline", image=picture(1), num_frames=9
    ),
    "CogVideoXVideoToVideoPipeline": call(
        cogvideo, "CogVideoXVideoToVideoPipeline", video=picture(1, 9), strength=0.9
    ),
    "CogVideoXFunControlPipeline": call(
        cogvideo, "CogVideoXFunControlPipeline", control_video=picture(1, 9)
    ),
    "HunyuanVideoPipeline": call(hunyuan_video, "HunyuanVideoPipeline"),
    "HunyuanVideoImageToVideoPipeline": call(
        hunyuan_video, "HunyuanVideoImageToVideoPipeline", 9, "latent_concat", image=picture(1)
    ),
    "HunyuanVideoImageToVideoPipeline:replace": call(
        hunyuan_video, "HunyuanVideoImageToVideoPipeline", 4, "token_replace", image=picture(1)
    ),
    "Kandinsky5T2VPipeline": kandinsky5,
    "MochiPipeline": mochi,
    "LattePipeline": latte,
    "SanaVideoPipeline": call(sana_video, "SanaVideoPipeline"),
    "SanaImageToVideoPipeline": call(sana_video, "SanaImageToVideoPipeline", image=picture(1, side=32)),
    "CosmosTextToWorldPipeline": call(cosmos, "CosmosTextToWorldPipeline", num_frames=9),
    "CosmosVideoToWorldPipeline": call(
        cosmos, "CosmosVideoToWorldPipeline", num_frames=9, image=picture(1)
    ),
    "Cosmos2TextToImagePipeline": call(cosmos, "Cosmos2TextToImagePipeline"),
    "Cosmos2VideoToWorldPipeline": call(
        cosmos, "Cosmos2VideoToWorldPipeline", num_frames=9, image=picture(1)
    ),
}  # fmt: skip
