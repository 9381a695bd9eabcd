"""The models of diffusers that stand beside a pipeline's code: small configurations and inputs."""

from typing import Any

import torch

from benchmarks.tiny_diffusers_table import Small, padded

_ACE_STEP: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "sliding_window": 4,
}  # fmt: skip


def fill_silence(model: Any) -> None:
    """Draw the silence that a checkpoint brings; zeros would hide what is read of it."""
    model.silence_latent.normal_()


TABLE: dict[str, Small] = {
    "AceStepAudioTokenDetokenizer": Small(
        {**_ACE_STEP, "audio_acoustic_hidden_dim": 8}, {"hidden_states": torch.randn(2, 3, 32)}
    ),
    "AceStepAudioTokenizer": Small(
        {**_ACE_STEP, "audio_acoustic_hidden_dim": 8, "fsq_dim": 32}, {"hidden_states": torch.randn(2, 3, 5, 8)}
    ),
    "AceStepConditionEncoder": Small(
        {**_ACE_STEP, "text_hidden_dim": 32, "timbre_hidden_dim": 8, "num_lyric_encoder_hidden_layers": 2},
        {
            "text_hidden_states": torch.randn(2, 7, 32), "text_attention_mask": padded(7, torch.long),
            "lyric_hidden_states": torch.randn(2, 6, 32), "lyric_attention_mask": padded(6, torch.long),
            "refer_audio_acoustic_hidden_states_packed": torch.randn(3, 9, 8),
            "refer_audio_order_mask": torch.tensor([0, 1, 1]),
        },
        prepare=fill_silence,
    ),
    "AudioLDM2ProjectionModel": Small(
        {"text_encoder_dim": 32, "text_encoder_1_dim": 24, "langauge_model_dim": 16},
        {
            "hidden_states": torch.randn(2, 1, 32), "hidden_states_1": torch.randn(2, 7, 24),
            "attention_mask": torch.ones(2, 1, dtype=torch.long), "attention_mask_1": padded(7, torch.long),
        },
    ),
    "AudioLDM2UNet2DConditionModel": Small(
        {
            "only": True, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 8,
            "in_channels": 4, "out_channels": 4, "cross_attention_dim": ([None, 16, 32],) * 2, "attention_head_dim": 4,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        },
        {
            "encoder_hidden_states": torch.randn(2, 8, 16), "encoder_attention_mask": padded(8, torch.long),
            "encoder_hidden_states_1": torch.randn(2, 7, 32), "encoder_attention_mask_1": padded(7, torch.long),
        },
        "image",
    ),
    "CLIPImageProjection": Small({"hidden_size": 16}, {"x": torch.randn(2, 5, 16)}),
    "Ideogram4PromptEnhancerHead": Small(
        {"hidden_size": 16, "vocab_size": 300}, {"hidden_states": torch.randn(2, 5, 16)}
    ),
    "ReduxImageEncoder": Small({"redux_dim": 16, "txt_in_features": 24}, {"x": torch.randn(2, 5, 16)}),
    "StableAudio3DurationEmbedder": Small(
        {"output_dim": 32, "fourier_dim": 16}, {"seconds": torch.tensor([3.0, 400.0])}
    ),
    "StableAudioProjectionModel": Small(
        {"text_encoder_dim": 16, "conditioning_dim": 24, "min_value": 0, "max_value": 32},
        {
            "text_hidden_states": torch.randn(2, 5, 16), "start_seconds": torch.tensor([0.0, 3.0]),
            "end_seconds": torch.tensor([10.0, 40.0]),
        },
    ),
    "UniDiffuserModel": Small(
        {
            "only": True, "text_dim": 32, "clip_img_dim": 32, "num_text_tokens": 7, "num_attention_heads": 2,
            "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "num_layers": 2, "sample_size": 16,
            "patch_size": 2, "activation_fn": "gelu", "num_embeds_ada_norm": 1000, "norm_type": "unidiffuser",
            "block_type": "unidiffuser", "use_timestep_embedding": False, "use_patch_pos_embed": True,
            "ff_final_dropout": True, "use_data_type_embedding": True,
        },
        {
            "latent_image_embeds": torch.randn(2, 4, 16, 16), "image_embeds": torch.randn(2, 1, 32),
            "prompt_embeds": torch.randn(2, 7, 32), "timestep_img": torch.tensor([500, 500]),
            "timestep_text": torch.tensor([300, 300]), "data_type": 1,
        },
    ),
    "UniDiffuserTextDecoder": Small(
        {
            "prefix_length": 7, "prefix_inner_dim": 32, "prefix_hidden_dim": 32, "vocab_size": 300, "n_positions": 64,
            "n_embd": 32, "n_layer": 2, "n_head": 4,
        },
        {
            "input_ids": torch.randint(5, 200, (2, 6)), "prefix_embeds": torch.randn(2, 7, 32),
            "attention_mask": padded(13, torch.long),
        },
    ),
}  # fmt: skip
