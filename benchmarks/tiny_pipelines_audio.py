"""Tiny pipelines that make sound."""

from typing import Any

import diffusers
import torch

from benchmarks.tiny_pipeline_parts import Builder, draw, pipeline


def stable_audio() -> tuple[Any, dict[str, Any]]:
    """Stable Audio: a transformer over latents of a waveform."""
    from diffusers.pipelines.stable_audio.modeling_stable_audio import StableAudioProjectionModel

    transformer = diffusers.StableAudioDiTModel(
        sample_size=16, in_channels=3, num_layers=1, attention_head_dim=4, num_attention_heads=4,
        num_key_value_attention_heads=2, out_channels=3, cross_attention_dim=16, time_proj_dim=8,
        global_states_input_dim=32, cross_attention_input_dim=16,
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderOobleck(
        encoder_hidden_size=6, downsampling_ratios=[1, 2], decoder_channels=3, decoder_input_channels=3,
        audio_channels=2, channel_multiples=[2, 4], sampling_rate=4,
    ).eval()  # fmt: skip
    pipe = pipeline(
        "StableAudioPipeline", vae=vae, transformer=transformer,
        projection_model=StableAudioProjectionModel(16, 16, 0, 32).eval(),
        scheduler=diffusers.EDMDPMSolverMultistepScheduler(),
    )  # fmt: skip
    texts = {
        "prompt_embeds": draw(1, 7, 16, seed=1), "negative_prompt_embeds": draw(1, 7, 16, seed=2),
        "attention_mask": torch.ones(1, 7, dtype=torch.long),
        "negative_attention_mask": torch.ones(1, 7, dtype=torch.long),
    }  # fmt: skip
    return pipe, {**texts, "audio_end_in_s": 4.0}


BUILDERS: dict[str, Builder] = {"StableAudioPipeline": stable_audio}
