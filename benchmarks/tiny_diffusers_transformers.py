"""The rest of diffusers' transformers: small configurations and inputs, as in `tiny_diffusers_table`."""

from typing import Any

import torch

from benchmarks.tiny_diffusers_table import Small, padded


def positions(*sizes: int) -> torch.Tensor:
    """Coordinates [tokens, axes] of a grid."""
    return torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))


def text_then_image(text: int, *grid: int) -> torch.Tensor:
    """Coordinates [tokens, 3] of text, which are zeros, and a grid."""
    return torch.cat([torch.zeros(text, 3, dtype=torch.long), positions(*grid)])


def omnigen_mask() -> torch.Tensor:
    """A dense mask [2, 73, 73] of 8 text tokens, causal among themselves, the time and 64 patches."""
    mask = torch.ones(2, 73, 73, dtype=torch.bool)
    mask[:, :8] = torch.arange(73) <= torch.arange(8)[:, None]
    mask[1, :, :3] = False
    return mask.long()


def kv_cache(name: str, blocks: int) -> Any:
    """A new cache of Wan-Animate 2 or of Qwen-Image 2.1."""
    from diffusers.models.transformers import transformer_wan_animate_2

    return getattr(transformer_wan_animate_2, name)(blocks)


TABLE: dict[str, Small] = {
    "AceStepTransformer1DModel": Small(
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 16, "in_channels": 24, "audio_acoustic_hidden_dim": 8,
         "encoder_hidden_size": 32, "sliding_window": 4},
        {"hidden_states": torch.randn(2, 16, 8), "context_latents": torch.randn(2, 16, 16),
         "timestep": torch.tensor([0.5, 0.7]), "timestep_r": torch.tensor([0.5, 0.6])},
    ),
    "AnyFlowFARTransformer3DModel": Small(
        {"rope_max_seq_len": 32, "chunk_partition": (1, 2, 2), "num_layers": 1},
        {"hidden_states": torch.randn(1, 5, 16, 16, 16), "timestep": torch.full((1, 5), 500.0),
         "r_timestep": torch.full((1, 5), 400.0), "encoder_hidden_states": torch.randn(1, 8, 32),
         "chunk_partition": [1, 2, 2]},
        "video",
    ),
    "BriaFibo2Transformer2DModel": Small(
        {"dim": 32, "n_layers": 2, "n_heads": 2, "injection_layer_ids": (1,), "axes_dims": (4, 6, 6),
         "axes_lens": (64, 32, 32), "min_num_gist_tokens": 4, "max_num_gist_tokens": 8, "gist_step": 2,
         "gist_min_text_len": 4, "gist_max_text_len": 8, "cap_feat_dim": 32, "in_channels": 4},
        {"encoder_hidden_states": torch.randn(2, 2, 8, 32), "timestep": torch.tensor([0.5, 0.7]),
         "encoder_attention_mask": padded(8)},
        "image", more=({"encoder_attention_mask": None},),
    ),
    "ConsisIDTransformer3DModel": Small(
        {"sample_frames": 5, "max_text_seq_length": 8, "sample_width": 16, "sample_height": 16, "in_channels": 4,
         "out_channels": 4, "text_embed_dim": 32},
        {"hidden_states": torch.randn(2, 2, 4, 16, 16)},
    ),
    "Cosmos3OmniTransformer": Small(
        {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
         "num_hidden_layers": 2, "head_dim": 16, "latent_channel": 4, "patch_latent_dim": 16, "vocab_size": 64,
         "rope_axes_dim": [4, 2, 2]},
        {"input_ids": torch.arange(6), "text_indexes": torch.arange(6), "und_len": 6, "sequence_length": 14,
         "position_ids": torch.arange(14).expand(3, 14), "vision_tokens": [torch.randn(1, 4, 2, 4, 4)],
         "vision_token_shapes": [(2, 2, 2)], "vision_sequence_indexes": torch.arange(6, 14),
         "vision_mse_loss_indexes": torch.arange(6, 14), "vision_timesteps": torch.full((8,), 500.0),
         "vision_noisy_frame_indexes": [torch.arange(2)]},
    ),
    "DreamLiteTransformer2DModel": Small(
        {"in_channels": 16, "cross_attention_dim": 32, "norm_num_groups": 4}, layout="image"
    ),
    "EasyAnimateTransformer3DModel": Small(
        {"in_channels": 4, "out_channels": 4, "patch_size": 2, "num_attention_heads": 2, "num_layers": 2,
         "mmdit_layers": 1, "text_embed_dim": 32, "time_embed_dim": 32},
        {"hidden_states": torch.randn(2, 4, 2, 16, 16)}, "video",
    ),
    "HunyuanVideoFramepackTransformer3DModel": Small(
        {"has_image_proj": True, "image_proj_dim": 16, "has_clean_x_embedder": True},
        {"image_embeds": torch.randn(2, 4, 16), "indices_latents": torch.arange(5) + 23,
         "latents_clean": torch.randn(2, 16, 2, 16, 16), "indices_latents_clean": torch.tensor([0, 22]),
         "latents_history_2x": torch.randn(2, 16, 2, 16, 16), "indices_latents_history_2x": torch.arange(2) + 20,
         "latents_history_4x": torch.randn(2, 16, 16, 16, 16), "indices_latents_history_4x": torch.arange(16) + 4},
        "video",
    ),
    "Ideogram4Transformer2DModel": Small(
        {"in_channels": 16, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
         "intermediate_size": 64, "adaln_dim": 32, "llm_features_dim": 32, "mrope_section": (4, 2, 2)},
        {"hidden_states": torch.randn(2, 24, 16), "encoder_hidden_states": torch.randn(2, 24, 32),
         "timestep": torch.tensor([0.5, 0.7]), "position_ids": text_then_image(8, 1, 4, 4).expand(2, 24, 3),
         "segment_ids": torch.tensor([[0] * 24, [0] * 12 + [1] * 12]),
         "indicator": torch.tensor([[3] * 8 + [2] * 16]).expand(2, 24)},
    ),
    "JoyImageEditPlusTransformer3DModel": Small(
        {"hidden_size": 32, "num_attention_heads": 2, "num_layers": 2, "rope_dim_list": [4, 6, 6]},
        {"hidden_states": torch.randn(2, 20, 16, 1, 2, 2), "shape_list": [[(1, 4, 4), (1, 2, 2)], [(1, 4, 4)]]},
    ),
    "Kandinsky6SRTransformer3DModel": Small(
        {"in_visual_dim": 4, "out_visual_dim": 8, "model_dim": 32, "time_dim": 32, "axes_dims": (4, 6, 6)},
        {"hidden_states": torch.randn(1, 2, 16, 16, 9), "timestep": torch.tensor([500.0])},
    ),
    "Kandinsky6Transformer3DModel": Small(
        {"in_visual_dim": 4, "out_visual_dim": 4, "model_dim": 32, "axes_dims": (4, 6, 6), "in_text_dim": 32,
         "in_text_dim2": 32, "in_audio_dim": 4, "out_audio_dim": 4, "num_text_blocks": 1},
        {"hidden_states": torch.randn(2, 3, 8, 8, 9), "audio_hidden_states": torch.randn(2, 6, 4),
         "encoder_attention_mask": padded(8)},
        more=({"audio_hidden_states": None},),
    ),
    "Krea2Transformer2DModel": Small(
        {"in_channels": 16, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 64, "timestep_embed_dim": 32, "text_hidden_dim": 32,
         "num_text_layers": 2, "text_num_attention_heads": 2, "text_num_key_value_heads": 1,
         "text_intermediate_size": 64, "axes_dims_rope": (4, 6, 6)},
        {"hidden_states": torch.randn(2, 16, 16), "encoder_hidden_states": torch.randn(2, 8, 2, 32),
         "encoder_attention_mask": padded(8), "timestep": torch.tensor([0.5, 0.7]),
         "position_ids": text_then_image(8, 1, 4, 4)},
    ),
    "LongCatAudioDiTTransformer": Small(
        {"dit_dim": 32, "dit_depth": 2, "dit_heads": 2, "dit_text_dim": 32, "latent_dim": 8},
        {"hidden_states": torch.randn(2, 16, 8), "encoder_attention_mask": padded(8),
         "attention_mask": padded(16), "latent_cond": torch.randn(2, 16, 8)},
    ),
    "LuminaNextDiT2DModel": Small(
        {"hidden_size": 32, "num_layers": 2, "num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 16,
         "cross_attention_dim": 32},
        {"encoder_mask": padded(8), "timestep": torch.tensor([0.5, 0.7]), "cross_attention_kwargs": {},
         "image_rotary_emb": lambda config: lumina_rotary()},
        "image",
    ),
    "MiniMaxH3Transformer3DModel": Small(
        {"num_attention_heads": 2, "attention_head_dim": 24, "hidden_size": 32, "num_layers": 2, "ffn_dim": 64,
         "num_refiner_layers": 1, "in_channels": 4, "audio_in_channels": 8, "text_dim": 32, "freq_dim": 32,
         "time_embed_hidden_dim": 32, "time_embed_dim": 32, "rope_freq_dim": 4},
        {"hidden_states": torch.randn(1, 8, 16), "audio_hidden_states": torch.randn(1, 4, 8),
         "encoder_hidden_states": torch.randn(1, 8, 32), "timestep": torch.tensor([0.5, 0.9]),
         "timestep_indices": torch.tensor([0] * 12 + [1] * 8), "token_tags": torch.tensor([1] * 8 + [0] * 8 + [2] * 4),
         "position_ids": torch.arange(20)[:, None].expand(20, 3), "text_indices": torch.arange(8),
         "video_indices": torch.arange(8, 16), "audio_indices": torch.arange(16, 20)},
    ),
    "MiniMaxMusic3RVQDepthDecoder": Small(
        {"hidden_size": 32, "num_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "audio_vocab_size": 32},
        {"inputs_embeds": torch.randn(2, 8, 32)},
    ),
    "MiniMaxMusic3Transformer1DModel": Small(
        {"in_channels": 8, "condition_dim": 16, "num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16,
         "ff_inner_dim": 64, "rotary_dim": 8, "fourier_embedding_dim": 32},
        {"hidden_states": torch.randn(2, 8, 16), "encoder_hidden_states": torch.randn(2, 16, 16)},
    ),
    "OmniGenTransformer2DModel": Small(
        {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
         "num_layers": 2, "pad_token_id": 0, "vocab_size": 64, "time_step_dim": 32,
         "rope_scaling": {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8}},
        {"input_ids": torch.randint(1, 64, (2, 8)), "input_img_latents": [torch.randn(1, 4, 4, 4)],
         "input_image_sizes": {0: [(2, 6)]}, "attention_mask": omnigen_mask(),
         "position_ids": torch.arange(73).expand(2, 73)},
        "image",
    ),
    "QwenImage21Transformer2DModel": Small(
        {"axes_dims_rope": (4, 6, 6), "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
         "in_channels": 16, "out_channels": 16, "context_in_dim": 32},
        {"hidden_states": torch.randn(2, 16, 16), "encoder_hidden_states": torch.randn(2, 8, 32),
         "img_shapes": [[(1, 4, 4)]] * 2, "img_mask": torch.arange(12).expand(2, 12) >= 8,
         "encoder_hidden_states_mask": padded(8), "timestep": torch.tensor([0.5, 0.5])},
    ),
    "SanaWMLTX2RefinerTransformer3DModel": Small(
        {"cross_attention_dim": 32, "audio_cross_attention_dim": 32, "rope_double_precision": False},
        {"hidden_states": torch.randn(2, 16, 16), "timestep": torch.full((2, 16), 500.0),
         "encoder_hidden_states": lambda config: torch.randn(2, 8, config.caption_channels),
         "video_rotary_emb": lambda config: (torch.rand(1, 16, 32), torch.rand(1, 16, 32))},
    ),
    "SanaWMTransformer3DModel": Small(
        {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "linear_head_dim": 16, "softmax_every_n": 2,
         "image_size": 32, "caption_channels": 32, "chunk_plucker_post_attn_blocks": 2},
        {"timestep": torch.full((2, 1, 5), 500.0), "encoder_hidden_states": torch.randn(2, 1, 8, 32)}, "video",
    ),
    "StableAudio3DiTModel": Small(
        {"io_channels": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "cond_token_dim": 32, "global_cond_dim": 32,
         "local_add_cond_dim": 9, "timestep_features_dim": 32, "num_memory_tokens": 4},
        {"hidden_states": torch.randn(2, 8, 16), "global_hidden_states": torch.randn(2, 32),
         "encoder_attention_mask": padded(8), "local_add_cond": torch.randn(2, 9, 16)},
    ),
    "T5FilmDecoder": Small(
        {"input_dims": 16, "targets_length": 16, "d_model": 32, "num_layers": 2, "num_heads": 2, "d_kv": 16,
         "d_ff": 64},
        {"encodings_and_masks": [(torch.randn(2, 8, 32), torch.ones(2, 8)), (torch.randn(2, 4, 32), torch.ones(2, 4))],
         "decoder_input_tokens": torch.randn(2, 16, 16), "decoder_noise_time": torch.tensor([0.5, 0.7])},
    ),
    "WanAnimate2Transformer3DModel": Small(
        {"text_len": 8, "in_dim": 20, "dim": 32, "ffn_dim": 64, "freq_dim": 32, "text_dim": 32, "out_dim": 16,
         "num_heads": 2, "num_layers": 2, "use_img_emb": False},
        {"hidden_states": [torch.randn(16, 2, 8, 8)], "timestep": torch.tensor([500.0]),
         "encoder_hidden_states": [torch.randn(5, 32)], "condition_latents": [torch.randn(4, 2, 8, 8)],
         "kv_cache": lambda config: kv_cache("WanAnimate2KVCache", config.num_layers), "kv_cache_mode": "extract",
         "seq_len": 32, "offset_grid_sizes": torch.tensor([[2, 4, 4]])},
    ),
    "WanAnimateTransformer3DModel": Small(
        {"in_channels": 12, "latent_channels": 4, "out_channels": 4, "image_dim": 32, "added_kv_proj_dim": 32,
         "motion_encoder_size": 16, "motion_style_dim": 16, "motion_dim": 4, "motion_encoder_dim": 16,
         "face_encoder_hidden_dim": 16, "face_encoder_num_heads": 2, "inject_face_latents_blocks": 2,
         "rope_max_seq_len": 32, "num_layers": 2,
         "motion_encoder_channel_sizes": {"4": 16, "8": 16, "16": 16}},
        {"pose_hidden_states": torch.randn(2, 4, 4, 16, 16), "face_pixel_values": torch.randn(2, 3, 13, 16, 16),
         "encoder_hidden_states_image": torch.randn(2, 4, 32), "hidden_states": torch.randn(2, 12, 5, 16, 16)},
        "video",
    ),
}  # fmt: skip


def lumina_rotary() -> torch.Tensor:
    """Complex rotary tables of Lumina-Next for a grid of up to 384 by 384."""
    from diffusers.models.embeddings import get_2d_rotary_pos_embed_lumina

    return get_2d_rotary_pos_embed_lumina(16, 384, 384, linear_factor=1.0, ntk_factor=1.0)
