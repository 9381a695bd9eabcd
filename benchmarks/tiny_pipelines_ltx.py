"""Tiny pipelines of the LTX family beyond LTX-Video's own: LTX-2, which makes sound too, upsamplers, long clips."""

from typing import Any

import diffusers
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.ltx.modeling_latent_upsampler import LTXLatentUpsamplerModel
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from diffusers.pipelines.ltx2.pipeline_ltx2_ic_lora import LTX2ReferenceCondition
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import Builder, call, draw, frames, picture, pipeline, positive, prompts
from benchmarks.tiny_pipelines_video import ltx

_SIZE = {"height": 32, "width": 32, "num_frames": 9}
_CHANNELS = 8


def ltx2(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline around LTX-2's transformer, which steps a clip and its sound together."""
    is_chunked = "DFR" in name
    transformer = diffusers.LTX2VideoTransformer3DModel(
        in_channels=_CHANNELS, out_channels=_CHANNELS, num_attention_heads=2, attention_head_dim=16,
        cross_attention_dim=32, audio_in_channels=8, audio_out_channels=8, audio_num_attention_heads=2,
        audio_attention_head_dim=8, audio_cross_attention_dim=16, num_layers=2, caption_channels=32,
        rope_double_precision=False, rope_type="split", vae_scale_factors=(2, 8, 8),
        use_keyframes_abs_pos_embedding=is_chunked,
    ).eval()  # fmt: skip
    audio_vae = diffusers.AutoencoderKLLTX2Audio(
        base_channels=8, ch_mult=(1, 1, 1), num_res_blocks=1, resolution=16, latent_channels=2, mel_bins=16
    ).eval()
    scheduler: Any = FlowMatchEulerDiscreteScheduler()
    components: dict[str, Any] = {}
    if "TemporalRefine" in name:
        scheduler = diffusers.LTXEulerAncestralRFScheduler(eta=0.5)
        components["temporal_latent_upsampler"] = LTX2LatentUpsamplerModel(
            in_channels=_CHANNELS, mid_channels=32, num_blocks_per_stage=1, spatial_upsample=False,
            temporal_upsample=True,
        ).eval()  # fmt: skip
    pipe = pipeline(
        name, vae=ltx2_vae(), audio_vae=audio_vae, transformer=transformer,
        connectors=ltx2_connectors(), vocoder=ltx2_vocoder(), scheduler=scheduler, **components,
    )  # fmt: skip
    texts = prompts(tokens=8, width=96, attention_mask="_attention_mask")
    # Pipelines of few steps have no guidance.
    texts = positive(texts) if is_chunked else {**texts, "spatio_temporal_guidance_blocks": [1]}
    return pipe, {**texts, **_SIZE, **inputs}


def ltx2_vae() -> torch.nn.Module:
    """An autoencoder with a latent for two frames of 8 x 8 pixels."""
    return diffusers.AutoencoderKLLTX2Video(
        latent_channels=_CHANNELS, block_out_channels=(8,), decoder_block_out_channels=(8,), layers_per_block=(1,),
        decoder_layers_per_block=(1, 1), spatio_temporal_scaling=(True,), decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False), downsample_type=("spatiotemporal",), upsample_residual=(False,),
        upsample_factor=(1,), patch_size=4,
    ).eval()  # fmt: skip


def ltx2_connectors() -> torch.nn.Module:
    """What makes of the states of a text encoder's three layers one sequence for the clip and one for the sound."""
    return LTX2TextConnectors(
        caption_channels=32, text_proj_in_factor=3, video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=16, video_connector_num_layers=1, video_connector_num_learnable_registers=4,
        audio_connector_num_attention_heads=2, audio_connector_attention_head_dim=16, audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=4, connector_rope_base_seq_len=32, rope_double_precision=False,
        rope_type="split",
    ).eval()  # fmt: skip


def ltx2_vocoder() -> torch.nn.Module:
    """What makes a waveform of spectrograms with 16 frequencies in two channels."""
    return LTX2Vocoder(
        in_channels=32, hidden_channels=32, upsample_kernel_sizes=[4, 4], upsample_factors=[2, 2],
        resnet_kernel_sizes=[3], resnet_dilations=[[1, 3, 5]], output_sampling_rate=16000,
    ).eval()  # fmt: skip


def ltx2_upsample() -> tuple[Any, dict[str, Any]]:
    """The upsampler of LTX-2's latents."""
    upsampler = LTX2LatentUpsamplerModel(
        in_channels=_CHANNELS, mid_channels=32, num_blocks_per_stage=1
    ).eval()
    pipe = pipeline("LTX2LatentUpsamplePipeline", vae=ltx2_vae(), latent_upsampler=upsampler)
    return pipe, {**_SIZE, "latents": draw(1, _CHANNELS, 5, 4, 4)}


def ltx2_diffusion_decode() -> tuple[Any, dict[str, Any]]:
    """A decoder of LTX-2's latents that is a diffusion model itself."""
    decoder = construct("LTX2VideoDiffusionDecoderModel")
    pipe = pipeline(
        "LTX2VideoDiffusionDecodePipeline", diffusion_decoder=decoder, vae=ltx2_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    return pipe, {"latents": draw(1, _CHANNELS, 2, 3, 3)}


def ltx_upsample() -> tuple[Any, dict[str, Any]]:
    """The upsampler of LTX-Video's latents."""
    pipe, _ = ltx("LTXPipeline")
    upsampler = LTXLatentUpsamplerModel(in_channels=8, mid_channels=32, num_blocks_per_stage=1).eval()
    upsampling = pipeline("LTXLatentUpsamplePipeline", vae=pipe.vae, latent_upsampler=upsampler)
    return upsampling, {"latents": draw(1, 8, 3, 8, 8), "height": 32, "width": 32, "adain_factor": 0.5}


def ltx_long() -> tuple[Any, dict[str, Any]]:
    """LTX-Video over windows of a long clip, each with a prompt of its own."""
    pipe, inputs = ltx("LTXI2VLongMultiPromptPipeline")
    pipe.encode_prompt = lambda **_: tuple(inputs[key] for key in _TEXTS)
    options = {
        "prompt": "a cat", "height": 32, "width": 32, "num_frames": 17, "temporal_tile_size": 16,
        "temporal_overlap": 8, "guidance_scale": 3.0, "cond_image": frames(1, side=32)[0], "seed": 1,
    }  # fmt: skip
    return pipe, options


_TEXTS = (
    "prompt_embeds",
    "prompt_attention_mask",
    "negative_prompt_embeds",
    "negative_prompt_attention_mask",
)
BUILDERS: dict[str, Builder] = {
    "LTX2Pipeline": call(ltx2, "LTX2Pipeline"),
    "LTX2ImageToVideoPipeline": call(ltx2, "LTX2ImageToVideoPipeline", image=picture(1, side=32), image_crf=0),
    "LTX2ConditionPipeline": call(
        ltx2, "LTX2ConditionPipeline", conditions=[LTX2VideoCondition(frames=frames(1, side=32)[0], crf=0)]
    ),
    "LTX2InContextPipeline": call(
        ltx2, "LTX2InContextPipeline", reference_conditions=[LTX2ReferenceCondition(frames=frames(9, side=32))]
    ),
    "LTX2HDRPipeline": call(ltx2, "LTX2HDRPipeline"),
    "LTX2DFRPipeline": call(ltx2, "LTX2DFRPipeline", sigmas=[1.0, 0.5]),
    "LTX2DFRTemporalRefinePipeline": call(
        ltx2, "LTX2DFRTemporalRefinePipeline", sigmas=[0.75, 0.25], latents=draw(1, _CHANNELS, 5, 4, 4),
        keyframes_latents=draw(1, _CHANNELS, 1, 4, 4, seed=1), keyframe_positions=[8],
        audio_latents=draw(1, 2, 9, 4, seed=2),
    ),
    "LTX2LatentUpsamplePipeline": ltx2_upsample,
    "LTX2VideoDiffusionDecodePipeline": ltx2_diffusion_decode,
    "LTXLatentUpsamplePipeline": ltx_upsample,
    "LTXI2VLongMultiPromptPipeline": ltx_long,
}  # fmt: skip
