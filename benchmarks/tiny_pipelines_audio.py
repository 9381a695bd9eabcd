"""Tiny pipelines that make sound."""

from typing import Any

import diffusers
import torch

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import Builder, call, draw, pipeline


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


def stable_audio_3(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Stable Audio 3, which reads the duration with the prompt."""
    from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder

    local = 9 if "Inpaint" in name else 0
    pipe = pipeline(
        name, vae=construct("AutoencoderSAME", sampling_rate=16),
        transformer=construct("StableAudio3DiTModel", local_add_cond_dim=local),
        duration_embedder=StableAudio3DurationEmbedder(output_dim=32, fourier_dim=16).eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )  # fmt: skip
    return pipe, {"prompt_embeds": draw(1, 7, 32, seed=1), "duration": 8.0, **inputs}


def ace_step() -> tuple[Any, dict[str, Any]]:
    """ACE-Step, which makes music of a description and of lyrics."""
    from diffusers.pipelines.ace_step import AceStepConditionEncoder

    encoder = AceStepConditionEncoder(
        hidden_size=32, intermediate_size=64, text_hidden_dim=32, timbre_hidden_dim=8,
        num_lyric_encoder_hidden_layers=1, num_timbre_encoder_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, sliding_window=4,
    ).eval()  # fmt: skip
    # A checkpoint brings it; as zeros it would hide what is read of it.
    encoder.silence_latent = draw(*encoder.silence_latent.shape, seed=3)
    vae = diffusers.AutoencoderOobleck(
        encoder_hidden_size=6, downsampling_ratios=[1, 2], decoder_channels=3, decoder_input_channels=8,
        audio_channels=2, channel_multiples=[2, 4], sampling_rate=16,
    ).eval()  # fmt: skip
    pipe = pipeline(
        "AceStepPipeline", vae=vae, transformer=construct("AceStepTransformer1DModel"), condition_encoder=encoder,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )  # fmt: skip
    mask = torch.ones(1, 7, dtype=torch.long)
    pipe.encode_prompt = lambda **_: (draw(1, 7, 32, seed=1), mask, draw(1, 7, 32, seed=2), mask.clone())
    return pipe, {"prompt": "a piano", "lyrics": "la la", "audio_duration": 2.0}


def long_cat_audio() -> tuple[Any, dict[str, Any]]:
    """LongCat's audio model, with guidance that is projected."""
    vae = construct("LongCatAudioDiTVae", sample_rate=16)
    transformer = construct("LongCatAudioDiTTransformer", latent_dim=4)
    pipe = pipeline("LongCatAudioDiTPipeline", vae=vae, transformer=transformer)
    pipe.encode_prompt = lambda prompt, device: (draw(1, 7, 32, seed=len(prompt)), torch.tensor([7]))
    return pipe, {"prompt": "rain", "negative_prompt": "wind", "audio_duration_s": 8.0}


def audio_ldm_2() -> tuple[Any, dict[str, Any]]:
    """AudioLDM 2, whose U-Net reads two sequences of embeddings, and whose vocoder is SpeechT5's."""
    from transformers import (
        GPT2Config,
        GPT2Model,
        SpeechT5HifiGan,
        SpeechT5HifiGanConfig,
        T5Config,
        T5EncoderModel,
    )

    vocoder = SpeechT5HifiGan(
        SpeechT5HifiGanConfig(
            model_in_dim=8, sampling_rate=16000, upsample_initial_channel=16, upsample_rates=[2, 2],
            upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
            normalize_before=False,
        )
    ).eval()  # fmt: skip
    language_model = GPT2Model(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16)
    ).eval()
    t5 = T5Config(vocab_size=32, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    unet = diffusers.AudioLDM2UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=8, sample_size=8, in_channels=4,
        out_channels=4, cross_attention_dim=([None, 16, 32],) * 2, attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKL(
        in_channels=1, out_channels=1, block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=4,
    ).eval()  # fmt: skip
    pipe = pipeline(
        "AudioLDM2Pipeline", vae=vae, unet=unet, vocoder=vocoder, language_model=language_model,
        text_encoder_2=T5EncoderModel(t5).eval(), scheduler=diffusers.DDIMScheduler(clip_sample=False),
    )  # fmt: skip
    texts: dict[str, Any] = {}
    for seed, prefix in ((1, ""), (2, "negative_")):
        texts[f"{prefix}prompt_embeds"] = draw(1, 7, 32, seed=seed)
        texts[f"{prefix}attention_mask"] = (torch.arange(7)[None] < 7 - seed).long()
        texts[f"{prefix}generated_prompt_embeds"] = draw(1, 8, 16, seed=seed + 2)
    return pipe, {**texts, "audio_length_in_s": 0.004}


BUILDERS: dict[str, Builder] = {
    "StableAudioPipeline": stable_audio,
    "StableAudio3Pipeline": call(
        stable_audio_3, "StableAudio3Pipeline", guidance_scale=3.0, negative_prompt_embeds=draw(1, 7, 32, seed=2)
    ),
    "StableAudio3AudioToAudioPipeline": call(
        stable_audio_3, "StableAudio3AudioToAudioPipeline", audio=draw(1, 2, 128), init_noise_level=0.8
    ),
    "StableAudio3InpaintPipeline": call(
        stable_audio_3, "StableAudio3InpaintPipeline", audio=draw(1, 2, 128), mask_start_seconds=2.0,
        mask_end_seconds=5.0,
    ),
    "AceStepPipeline": ace_step,
    "LongCatAudioDiTPipeline": long_cat_audio,
    "AudioLDM2Pipeline": audio_ldm_2,
}  # fmt: skip
