"""Configuration fields of classes with images, videos or audio, whose defaults are None or do not fit when cut down.

Keys are the beginnings of class names, as in `tiny_transformers_table`.
"""

from typing import Any

_AXES: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
_GEMMA4_VISION: dict[str, Any] = {
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

CONFIGS: dict[str, dict[str, Any]] = {
    "Aria": {"projector_patch_to_query_dict": {16: 8}, "image_token_index": 250},
    "AudioFlamingo3": {"audio_config": {"max_source_positions": 64}},
    "Blip2For": {"image_token_index": 250},
    "Chameleon": {
        "vocabulary_map": {"<image>": 250, **_CHAMELEON_TOKENS},
        "vq_config": {"num_embeddings": 32, "base_channels": 32, "resolution": 64},
    },
    "DeepseekVLHybrid": {"high_res_vision_config": {"global_attn_indexes": [0, 1]}},
    "Emu3": {
        "vocabulary_map": {"<image>": 250, "<|extra_200|>": 251, **_EMU3_TOKENS},
        "vq_config": {"codebook_size": 32, "base_channels": 32, "hidden_size": 128},
    },
    "Ernie4_5_VLMoe": {"text_config": {"rope_parameters": {**_AXES, "mrope_section": [3, 3, 2]}}},
    "Gemma4For": {"vision_config": _GEMMA4_VISION, "audio_config": _GEMMA4_AUDIO},
    "Gemma4Unified": {"vision_config": _GEMMA4_VISION},
    "InstructBlip": {"image_token_index": 250},
    "InstructBlipVideo": {"image_token_index": 250, "video_token_index": 250},
    "JanusFor": {"vq_config": {"base_channels": 32, "num_embeddings": 32}},
    "Llama4For": {"vision_config": {"intermediate_size": 256}},
    # Of images of 4 x 4 patches.
    "LlavaNext": {"image_grid_pinpoints": [[56, 112], [112, 56]]},
    "LlavaOnevision": {"image_grid_pinpoints": [[56, 112], [112, 56]]},
    "MiniCPM": {"image_token_id": 250, "video_token_id": 251},
    "MllamaForCond": {
        "text_config": {"cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    },
    "PaddleOCRVL": {"text_config": {"rope_parameters": {**_AXES, "mrope_section": [2, 3, 3]}}},
    "Qwen2_5OmniThinker": {**_VISION_TOKENS, "audio_config": {"max_source_positions": 64}},
    "Qwen2Audio": {"audio_config": {"max_source_positions": 64}},
    "Qwen3OmniMoeThinker": {**_VISION_TOKENS, "vision_config": {"deepstack_visual_indexes": [0]}},
    "Step3p7": {"text_config": {"sliding_window": 16}},
    "T5Gemma2For": {"encoder": {"mm_tokens_per_image": 4}},
    "VipLlava": {"vision_feature_layers": [-2, -1]},
    "VoxtralFor": {"audio_token_id": 250, "audio_config": {"intermediate_size": 256, "max_source_positions": 64}},
    "VoxtralRealtime": {"audio_token_id": 250},
}  # fmt: skip
