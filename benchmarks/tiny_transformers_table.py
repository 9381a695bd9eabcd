"""What the names of fields do not tell about transformers' classes: configuration fields and inputs by hand.

Keys are the beginnings of class names; the fields go over those that are cut down by name.
"""

from typing import Any

import torch

BATCH, LENGTH, PAST = 2, 16, 16

SERIES: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 8,
    "num_time_features": 1,
    "lags_sequence": [1, 2],
}
ROTARY: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
# Heads whose queries and keys have a part with positions and one without.
LATENT: dict[str, Any] = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
_REFORMER: dict[str, Any] = {
        "is_decoder": True, "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 48], "max_position_embeddings": 32,
        "attn_layers": ["local", "lsh"], "num_hidden_layers": 2, "local_attn_chunk_length": 4, "num_buckets": 2,
        "lsh_attn_chunk_length": 4, "pad_token_id": 0, "hidden_size": 64,
}  # fmt: skip
# Rotary parameters by the type of a layer.
_BY_LAYER: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": ROTARY["rope_parameters"], "sliding_attention": ROTARY["rope_parameters"],
        "mrope_section": None,
    },
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Autoformer": {**SERIES, "label_length": 2, "moving_average": 3},
    "Bamba": {"mamba_d_head": 32, "mamba_n_heads": 4, "attn_layer_indices": [1]},
    "Beit": {"num_hidden_layers": 4, "out_features": None, "out_indices": [1, 2, 3, 4]},
    "Bark": {},
    "Data2VecVision": {
        "num_hidden_layers": 4, "out_features": None, "out_indices": [1, 2, 3, 4], "hidden_size": 64,
    },
    # Heads are as wide as its rotary embedding, 32; the encoder of speech reads the 300 tokens that the decoder writes.
    "Clvp": {
        "text_config": {"num_attention_heads": 2}, "speech_config": {"num_attention_heads": 2, "vocab_size": 300},
    },
    # Its vocabulary and special tokens are those of a checkpoint.
    "Esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "Esmc": {},
    "FalconH1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "GPTNeo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "GraniteMoeHybrid": {"mamba_d_head": 32, "mamba_n_heads": 4, "layer_types": ["mamba", "attention"]},
    "Idefics3": {"vision_config": {"image_size": 128, "patch_size": 16}},
    "Informer": SERIES,
    "SmolVLMFor": {"vision_config": {"image_size": 128, "patch_size": 16}},
    "ModernVBert": {"vision_config": {"image_size": 128, "patch_size": 16}},
    "GraniteDoclingFor": {"vision_config": {"image_size": 128, "patch_size": 16}},
    "Blip2Model": {"image_token_index": 250},
    "InstructBlipModel": {"image_token_index": 250},
    "InstructBlipVideoModel": {"image_token_index": 250, "video_token_index": 250},
    "Kosmos2For": {"latent_query_num": 2},
    "Kosmos2Model": {"latent_query_num": 2},
    "PaliGemma": {"vision_config": {"projection_dim": 64}, "projection_dim": 64},
    "Jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "LightGlue": {"depth_confidence": 0.01},  # pairs of images leave before the last layer
    "LlavaNext": {"image_grid_pinpoints": [[224, 448], [448, 224]]},
    "LongT5": {"decoder_start_token_id": 0},
    "LlavaOnevision": {"image_grid_pinpoints": [[224, 448], [448, 224]]},
    "MllamaForCond": {
        "text_config": {"cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    },
    "Mamba2": {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 1},
    "Nemotron": {"num_key_value_heads": 2},
    "Gemma3ForCond": {"mm_tokens_per_image": 4},
    "Perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2, "d_model": 64, "num_blocks": 1},
    "PatchTS": {"context_length": PAST, "patch_length": 4, "patch_stride": 4, "prediction_length": 4},
    "PatchTSMixer": {"context_length": PAST, "patch_length": 4, "patch_stride": 4, "prediction_length": 4},
    "RecurrentGemma": {"num_hidden_layers": 3},
    "Reformer": _REFORMER,
    "ReformerForMaskedLM": {**_REFORMER, "is_decoder": False},
    "SwitchTransformers": {"decoder_start_token_id": 0},
    "SamModel": {
        "vision_config": {"output_channels": 64, "num_pos_feats": 32},
        "prompt_encoder_config": {"image_embedding_size": 14},
    },
    "SamHQModel": {
        "vision_config": {"output_channels": 64, "num_pos_feats": 32},
        "prompt_encoder_config": {"image_embedding_size": 14},
    },
    "T5GemmaEncoder": {"is_encoder_decoder": False},
    "T5ForSequence": {"decoder_start_token_id": 0},
    "T5Gemma2Encoder": {"text_config": {"dropout_rate": 0.0}, "mm_tokens_per_image": 4},
    "TimeSeriesTransformer": SERIES,
    "BigBirdFor": {"block_size": 2, "num_random_blocks": 1, "attention_type": "block_sparse"},
    # As transformers asks for: otherwise it generates from the last token alone.
    "BigBirdForCausalLM": {"is_decoder": True, "attention_type": "original_full"},
    "BigBirdPegasus": {"block_size": 2, "num_random_blocks": 1, "attention_type": "block_sparse"},
    "DbrxFor": {
        "ffn_config": {"ffn_hidden_size": 64, "hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}, "d_model": 64,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}, "n_heads": 4,
    },
    "CohereCompassForCausalLM": _BY_LAYER,
    "CohereCompassText": _BY_LAYER,
    "DeepseekV2For": {**LATENT, **ROTARY, "num_experts_per_tok": 2, "head_dim": 8},
    "Dory": {
        "num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "Dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Dots3Note": {
        "num_key_value_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "swa_head_dim": 16, "head_dim": 16,
    },
    "Dots3NoteForConditional": {},
    "Dots3NoteModel": {},
    "Gemma3nForCausal": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": 64, "activation_sparsity_pattern": [0.0] * 4,
    },
    "HunYuanDense": {"head_dim": 16},
    "HunYuanVLText": {"head_dim": 16},
    "HunYuanMoE": {"head_dim": 16, "num_experts": 4},
    "XLNet": {"d_head": 16},
    "Xmod": {"default_language": "en_XX"},
    "KimiLinearFor": {
        **LATENT, "num_key_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"], "num_hidden_layers": 2, "linear_num_heads": 4, "linear_head_dim": 16,
        "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "Lfm2Moe": {**ROTARY, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "LongcatFlashFor": {
        **LATENT, **ROTARY, "qk_head_dim": 24, "head_dim": 8, "num_layers": 1, "zero_expert_num": 2, "moe_topk": 2,
    },
    "MinistralFor": {"head_dim": 16},
    "Mistral4For": {**LATENT, "rope_parameters": None, "num_key_value_heads": 4, "moe_intermediate_size": 32},
    "MoonshineStreamingFor": {"num_key_value_heads": 4},
    "NemotronH": {
        "layers_block_type": ["mamba", "attention", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 1,
        "chunk_size": 16, "ssm_state_size": 16, "head_dim": 16, "moe_shared_expert_intermediate_size": 64,
        "moe_intermediate_size": 32, "num_key_value_heads": 2,
    },
    "NemotronH_Omni": {},
    "UdopFor": {"decoder_start_token_id": 0},
    "Qwen4ExpFor": {
        "layer_types": ["linear_attention", "full_attention"], "indexer_n_heads": 4, "indexer_kv_heads": 1,
        "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4, "ple_layer_ids": [],
        "ngram_vocab_size_base": 500, "split_ngram_parts": 2,
    },
    "xLSTM": {"num_blocks": 2, "embedding_dim": 64, "num_heads": 4, "chunk_size": 16, "qk_dim_factor": 1.0},
    "ZambaFor": {
        "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_dt_rank": 4, "num_hidden_layers": 4,
        "attention_hidden_size": 128, "attention_head_dim": 32,
    },
    "Zamba2For": {
        "layers_block_type": ["mamba", "hybrid"], "num_hidden_layers": 2, "mamba_d_state": 16, "chunk_size": 16,
        "attention_hidden_size": 128, "attention_head_dim": 32,
    },
    "DPT": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False},
}  # fmt: skip

# Whose convolutions get weights that keep the size of numbers. Through many layers with those of the class, a model
# that is not trained gives 1e-34 and less, where processors differ: XLA sets the smallest numbers to zero on a CPU.
SIZE_KEEPING = ("PPLCNet", "Align", "EfficientNet", "DepthAnything", "PromptDepthAnything", "PPOCRV")


def padded(*shape: int) -> torch.Tensor:
    """A mask of ones, the end of whose second row is padded."""
    mask = torch.ones(*shape, dtype=torch.long)
    mask[1, -2:] = 0
    return mask


def series() -> dict[str, Any]:
    """The past, the future and the time features of two series."""
    return {
        "past_values": torch.rand(BATCH, 10), "past_time_features": torch.rand(BATCH, 10, 1),
        "past_observed_mask": torch.ones(BATCH, 10), "future_values": torch.rand(BATCH, 4),
        "future_time_features": torch.rand(BATCH, 4, 1),
    }  # fmt: skip


def ids(*shape: int) -> torch.Tensor:
    """Token ids."""
    return torch.randint(5, 200, shape)


def questions() -> dict[str, Any]:
    """Texts in which one token stands for a question."""
    texts = ids(BATCH, LENGTH)
    texts[:, 4] = 104
    return {"input_ids": texts, "attention_mask": padded(BATCH, LENGTH)}


def question_and_text() -> dict[str, Any]:
    """A question, and behind two separators a text, with one at its end."""
    texts = ids(BATCH, LENGTH)
    texts[:, [6, 7, 13]] = 2
    return {"input_ids": texts, "attention_mask": padded(BATCH, LENGTH)}


def image_positions() -> dict[str, Any]:
    """Which two tokens of each text stand for its image."""
    return {"image_embeds_position_mask": torch.tensor([[0] + [1] * 2 + [0] * 13] * BATCH).bool()}


INPUTS: dict[str, Any] = {
    "AST": lambda: {"attention_mask": None},  # spectrograms, which the builder takes for sound
    "Autoformer": series,
    "Informer": series,
    "TimeSeriesTransformer": series,
    "PatchTS": lambda: {"past_values": torch.rand(BATCH, PAST, 1)},
    "PatchTSMixer": lambda: {"past_values": torch.rand(BATCH, PAST, 1)},
    "TimesFm": lambda: {"past_values": [torch.rand(40), torch.rand(64)], "freq": [0, 1]},
    "Perceiver": lambda: {"inputs": ids(BATCH, LENGTH)},
    "PerceiverForImageClassificationLearned": lambda: {"inputs": None},
    "LongformerForMultipleChoice": question_and_text,
    "LongformerForQuestionAnswering": question_and_text,
    # Two numbers a row, of sums that cancel: those of two rows alone may by chance be nearer to float64 than is usual.
    "MobileBertForNextSentence": lambda: {"input_ids": ids(8, LENGTH), "attention_mask": padded(8, LENGTH)},
    "SplinterForPreTraining": questions,
    "OneFormer": lambda: {"task_inputs": ids(BATCH, 77)},
    "MusicgenMelodyForCausalLM": lambda: {"input_ids": ids(4 * BATCH, LENGTH)},
    "MusicgenForCausalLM": lambda: {"input_ids": ids(4 * BATCH, LENGTH)},  # a row for each of the codebooks
    "MusicgenForConditional": lambda: {"decoder_input_ids": ids(4 * BATCH, 6)},
    "MusicgenMelodyForConditional": lambda: {
        "decoder_input_ids": ids(4 * BATCH, 6), "input_features": torch.randn(BATCH, LENGTH, 12),
    },
    "Pop2Piano": lambda: {"input_ids": None, "attention_mask": None, "input_features": torch.randn(BATCH, 96, 64)},
    "T5Gemma2For": lambda: {"pixel_values": None},
    "Fuyu": lambda: {"pixel_values": None},  # text alone: its images are patches of another form
    "InstructBlip": lambda: {"qformer_input_ids": ids(BATCH, 6), "qformer_attention_mask": padded(BATCH, 6)},
    "Lxmert": lambda: {"visual_feats": torch.randn(BATCH, 4, 64), "visual_pos": torch.rand(BATCH, 4, 4)},
    "VisualBert": lambda: {"visual_embeds": torch.randn(BATCH, 4, 64)},
    "Pix2Struct": lambda: {"flattened_patches": torch.rand(BATCH, LENGTH, 770), "attention_mask": padded(BATCH, 16)},
    "SegGpt": lambda: {
        "pixel_values": torch.rand(1, 3, 448, 448), "prompt_pixel_values": torch.rand(1, 3, 448, 448),
        "prompt_masks": torch.rand(1, 3, 448, 448),
    },
    "DecisionTransformer": lambda: {
        "states": torch.rand(BATCH, 4, 17), "actions": torch.rand(BATCH, 4, 4), "rewards": torch.rand(BATCH, 4, 1),
        "returns_to_go": torch.rand(BATCH, 4, 1), "timesteps": torch.arange(4).repeat(BATCH, 1),
        "attention_mask": padded(BATCH, 4),
    },
    "Vits": lambda: {"input_ids": torch.randint(0, 38, (BATCH, LENGTH)), "attention_mask": padded(BATCH, LENGTH)},
    "FastSpeech2": lambda: {
        "input_ids": torch.randint(0, 78, (BATCH, LENGTH)), "attention_mask": padded(BATCH, LENGTH),
    },
    "Dia": lambda: {"decoder_input_ids": ids(BATCH, 6, 9)},
    "Mllama": lambda: {
        "pixel_values": torch.rand(BATCH, 1, 4, 3, 224, 224), "aspect_ratio_ids": torch.tensor([[1], [2]]),
        "aspect_ratio_mask": torch.ones(BATCH, 1, 4, dtype=torch.long),
        "cross_attention_mask": torch.ones(BATCH, LENGTH, 1, 4, dtype=torch.long),
    },
    "MllamaForCausalLM": dict,  # text alone: a mask of images means nothing without their states
    "Idefics": lambda: {
        "pixel_values": torch.rand(BATCH, 1, 3, 224, 224),
        "image_attention_mask": torch.ones(BATCH, LENGTH, 1, dtype=torch.long),
    },
    "Kosmos2For": image_positions,
    "Kosmos2Model": image_positions,
    "Sam": lambda: {"input_points": torch.rand(BATCH, 1, 2, 2) * 100, "input_labels": torch.ones(BATCH, 1, 2).int()},
    "JevFor": lambda: {
        # A batch of one prompt with two questions.
        "input_ids": ids(1, LENGTH), "marks": torch.tensor([[6, 12]]), "num_options": torch.tensor([[2, 3]]),
        "question_type_ids": torch.tensor([[0, 1]]),
    },
    "BltFor": lambda: {"use_cache": False},  # its configuration has no number of layers to make a cache for
    "Blip2QFormer": lambda: {
        "query_embeds": torch.randn(BATCH, 8, 64), "encoder_hidden_states": torch.randn(BATCH, 10, 64),
    },
    # Which patches of 16 x 16 are hidden, which are drawn otherwise.
    "ViTMAE": lambda: {"noise": torch.rand(BATCH, 196)},
    "MgpstrFor": lambda: {"pixel_values": torch.rand(BATCH, 3, 32, 128)},
    "VitPoseFor": lambda: {"pixel_values": torch.rand(BATCH, 3, 256, 192)},
    "Clvp": lambda: {"input_features": torch.rand(BATCH, 80, 40)},
    "DeepseekVLHybrid": lambda: {"high_res_pixel_values": torch.rand(BATCH, 3, 1024, 1024)},
}  # fmt: skip


def lookup(table: dict[str, Any], name: str) -> Any:
    """The entry whose key is the longest beginning of `name`; none if there is no such key."""
    keys = [key for key in table if name.startswith(key)]
    return table[max(keys, key=len)] if keys else None
