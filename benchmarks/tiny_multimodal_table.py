"""Configuration fields of classes with images, videos or audio, whose defaults are None or do not fit when cut down.

Keys are the beginnings of class names, as in `tiny_transformers_table`.
"""

from typing import Any

_AXES: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
GEMMA4_VISION: dict[str, Any] = {
    "model_type": "gemma4_vision", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "pooling_kernel_size": 2, "patch_size": 4,
    "position_embedding_size": 64,
}  # fmt: skip
_GEMMA4_AUDIO: dict[str, Any] = {
    "model_type": "gemma4_audio", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "output_proj_dims": 64, "subsampling_conv_channels": [16, 8],
}  # fmt: skip
# Each of 32 codes of an image is a token, by the names that checkpoints give them: digits are letters in Chameleon's.
_DIGITS = str.maketrans("0123456789", "ABCDEFGHIJ")
_CHAMELEON_TOKENS = {f"IMGIMG{str(code).translate(_DIGITS)}Z": 260 + code for code in range(32)}
_EMU3_TOKENS = {f"<|visual token {code:06d}|>": 260 + code for code in range(32)}
_VISION_TOKENS = {"vision_start_token_id": 252, "vision_end_token_id": 253}

# The tokens of pictures and of sound are the last of the vocabulary.
_APERTUS: dict[str, Any] = {
    "image_token_id": 250, "audio_token_id": 251, "image_token_offset": 260, "audio_token_offset": 280,
    "vision_config": {"codebook_size": 20, "base_channels": 32, "embed_dim": 16, "latent_channels": 32},
    "audio_config": {"codebook_size": 20, "num_filters": 4},
}  # fmt: skip
_SECTIONS = {**_AXES, "mrope_section": [2, 3, 3]}
# By the type of a layer.
_BY_LAYER: dict[str, Any] = {"full_attention": _SECTIONS, "sliding_attention": _SECTIONS}
# Of heads whose queries and keys have a part with positions and one without.
_LATENT = {
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "swa_head_dim": 16,
    "head_dim": 16,
}

# Layers with a state, with attention, and with experts.
_HYBRID: dict[str, Any] = {
            "layers_block_type": ["mamba", "attention", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 16,
            "n_groups": 1, "chunk_size": 16, "ssm_state_size": 16, "moe_shared_expert_intermediate_size": 64,
            "moe_intermediate_size": 32,
}  # fmt: skip

_ERNIE = {"text_config": {"rope_parameters": {**_AXES, "mrope_section": [3, 3, 2]}}}
CONFIGS: dict[str, dict[str, Any]] = {
    "Apertus1p5For": _APERTUS,
    "Aria": {"projector_patch_to_query_dict": {16: 8}, "image_token_index": 250},
    "AudioFlamingo3": {"audio_config": {"max_source_positions": 64}},
    "Blip2For": {"image_token_index": 250},
    "Chameleon": {
        "vocabulary_map": {"<image>": 250, **_CHAMELEON_TOKENS},
        "vq_config": {"num_embeddings": 32, "base_channels": 32, "resolution": 64},
    },
    "CohereCompass": {
        "text_config": {"rope_parameters": {**_BY_LAYER, "mrope_section": None}},
        "vision_config": {"deepstack_visual_indexes": [0]},
    },
    "DeepseekOcr2": {
        "text_config": {
            "mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "num_key_value_heads": 4,
        },
        "vision_config": {
            "sam_config": {"downsample_channels": [16, 64], "global_attn_indexes": [1], "image_size": 128},
            "encoder_config": {"num_key_value_heads": 4},
        },
    },
    "DeepseekVLHybrid": {"high_res_vision_config": {"global_attn_indexes": [0, 1]}},
    "Dots3Note": {
        "text_config": {**_LATENT, "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 32},
        "vision_config": {
            "mlp_layer_types": ["dense", "sparse"], "adapter_in_dim": 64, "adapter_out_dim": 64,
            "moe_intermediate_size": 32,
        },
        "audio_config": {
            "adapter_input_size": 64, "adapter_out_dim": 64, "num_key_value_heads": 4,
        },
    },
    "Emu3": {
        "vocabulary_map": {"<image>": 250, "<|extra_200|>": 251, **_EMU3_TOKENS},
        "vq_config": {"codebook_size": 32, "base_channels": 32, "hidden_size": 128},
    },
    "Ernie4_5_VLMoe": _ERNIE,
    "Ernie4_5_VL_Moe": _ERNIE,
    "FunAsrNano": {"adaptor_config": {"intermediate_size": 16}},
    "Gemma4For": {"vision_config": GEMMA4_VISION, "audio_config": _GEMMA4_AUDIO},
    "Gemma4Unified": {
        "vision_config": {
            "model_type": "gemma4_unified_vision", "patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 64,
            "mm_posemb_size": 64, "output_proj_dims": 64,
        },
        "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 64},
    },
    "Granite4Vision": {
        "downsample_rate": "2/4", "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [0, 1, 0, 1],
        "image_grid_pinpoints": [[128, 256], [256, 128]], "image_token_index": 250,
    },
    "HunYuanVL": {"text_config": {"head_dim": 16}},
    "InstructBlip": {"image_token_index": 250},
    "InstructBlipVideo": {"image_token_index": 250, "video_token_index": 250},
    "JanusFor": {"vq_config": {"base_channels": 32, "num_embeddings": 32}},
    "Llama4For": {"vision_config": {"intermediate_size": 256}},
    # Of images of 4 x 4 patches.
    "LlavaNext": {"image_grid_pinpoints": [[56, 112], [112, 56]]},
    "LlavaOnevision": {"image_grid_pinpoints": [[56, 112], [112, 56]]},
    "MiniCPM": {"image_token_id": 250, "video_token_id": 251},
    "Molmo2": {
        "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 64},
        "vision_config": {"image_size": [56, 56], "num_position_embeddings": 16},
    },
    "MllamaForCond": {
        "text_config": {"cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    },
    "MuseGlimmer": {"out_hidden_size": 256},
    "MuseSpark": {"out_hidden_size": 256, "audio_config": {"num_hidden_layers": 4, "out_hidden_size": 64}},
    "MusicFlamingo": {"audio_config": {"max_source_positions": 64}},
    "Nemotron3_5Transcribe": {
        "audio_config": {
            "asr_config": {"num_key_value_heads": 4},
            "diarization_config": {"audio_config": {"num_key_value_heads": 4}},
        },
        "word_timestamp_config": {"num_key_value_heads": 4}, "text_config": _HYBRID,
    },
    "NemotronH_Omni": {
        "image_token_id": 250, "video_token_id": 251, "audio_token_id": 252,
        "text_config": _HYBRID,
    },
    "PaddleOCRVL": {"text_config": {"rope_parameters": {**_AXES, "mrope_section": [2, 3, 3]}}},
    "Qwen2_5OmniThinker": {**_VISION_TOKENS, "audio_config": {"max_source_positions": 64}},
    "Qwen2Audio": {"audio_config": {"max_source_positions": 64}},
    "Qwen3OmniMoeThinker": {**_VISION_TOKENS, "vision_config": {"deepstack_visual_indexes": [0]}},
    "Qwen4Exp": {
        "text_config": {
            "layer_types": ["linear_attention", "full_attention"], "indexer_n_heads": 4, "indexer_kv_heads": 1,
            "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4, "ple_layer_ids": [],
        },
    },
    "Step3p7": {"text_config": {"sliding_window": 16}},
    "T5Gemma2For": {"encoder": {"mm_tokens_per_image": 4}},
    "UnlimitedOcr": {"vision_config": {"sam_config": {"downsample_channels": [16, 64], "global_attn_indexes": [1]}}},
    # The last of seven stages has 64 times as many filters.
    "VibeVoiceAsr": {
        "acoustic_tokenizer_encoder_config": {"num_filters": 2},
        "semantic_tokenizer_encoder_config": {"num_filters": 2},
    },
    "VipLlava": {"vision_feature_layers": [-2, -1]},
    "VoxtralFor": {"audio_token_id": 250, "audio_config": {"intermediate_size": 256, "max_source_positions": 64}},
}  # fmt: skip
