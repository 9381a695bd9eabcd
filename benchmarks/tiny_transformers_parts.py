"""Configuration fields and inputs of transformers' classes that no automatic mapping lists.

Most of them are parts of others, or heads that few models have; see `tiny_transformers_table`.
"""

from typing import Any

import torch

from benchmarks.tiny_transformers_sound import CONFIGS as SOUND
from benchmarks.tiny_transformers_table import BATCH, LENGTH, ROTARY, ids, padded

_CLVP = {"num_attention_heads": 2}
_DEPTH = {"num_codebooks": 16, "vocab_size": 300, "backbone_hidden_size": 64}
_PERCEIVER: dict[str, Any] = {
    "d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2, "num_cross_attention_heads": 1,
}  # fmt: skip
_FOLDING: dict[str, Any] = {
    "vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "is_folding_model": True,
    "esmfold_config": {
        "fp16_esm": False, "lddt_head_hid_dim": 16,
        "trunk": {
            "num_blocks": 1, "sequence_state_dim": 64, "pairwise_state_dim": 32, "sequence_head_width": 16,
            "pairwise_head_width": 16, "max_recycles": 1,
            "structure_module": {
                "sequence_dim": 32, "pairwise_dim": 32, "ipa_dim": 8, "resnet_dim": 16, "num_heads_ipa": 2,
                "num_blocks": 2,
            },
        },
    },
}  # fmt: skip
_RAG: dict[str, Any] = {
    "question_encoder": {
        "model_type": "dpr", "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128,
    },
    "generator": {
        "model_type": "bart", "vocab_size": 300, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "forced_eos_token_id": None,
    },
    "vocab_size": 300, "n_docs": 2, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
_ERNIE: dict[str, Any] = {"rope_parameters": {**ROTARY["rope_parameters"], "mrope_section": [3, 3, 2]}}
CONFIGS: dict[str, dict[str, Any]] = {
    "BayesianDetector": {"watermarking_depth": 3},
    "Blip2TextModelWith": {"qformer_config": {"use_qformer_text_input": True}},
    "BridgeTowerForContrastive": {"contrastive_hidden_size": 64, "logit_scale_init_value": 2.6592},
    "CLIPSegForImage": {"extract_layers": [0, 1], "vision_config": {"image_size": 64, "patch_size": 16}},
    "ClapAudio": SOUND["Clap"]["audio_config"],
    "ClapText": {},
    "ClvpDecoder": _CLVP,
    "ClvpEncoder": _CLVP,
    "ClvpForCausalLM": _CLVP,
    "ClvpModel": _CLVP,
    "ConditionalDetrForSegmentation": {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "CsmDepthDecoder": _DEPTH,
    "DiffusionGemmaEncoderText": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    # An eighth of 128 features in each of 64 channels.
    "Dots3NoteAudio": {"adapter_input_size": 64, "conv_output_size": 64 * 16, "num_key_value_heads": 4},
    "Ernie4_5_VL_MoeModel": {"text_config": _ERNIE, "image_token_id": 250},
    "Ernie4_5_VL_MoeText": _ERNIE,
    "EsmForProteinFolding": _FOLDING,
    "JanusVQVAE": {
        "base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 32, "num_embeddings": 32,
        "num_patches": 8,
    },
    "MllamaVision": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "Phi4MultimodalAudio": {
        "nemo_conv_channels": 64, "ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64,
    },
    "PerceiverForMultimodalAutoencoding": {
        **_PERCEIVER, "d_model": 704, "num_labels": 700, "num_frames": 2, "image_size": 16,
        "audio_samples_per_frame": 64, "samples_per_patch": 16, "output_shape": [1, 2, 16, 16],
    },
    "PerceiverForOpticalFlow": {**_PERCEIVER, "d_model": 322, "train_size": [16, 24]},
    "Qwen2_5OmniToken2WavModel": {"bigvgan_config": {"upsample_initial_channel": 64}},
    "Qwen3OmniMoeTalkerFor": {"spatial_merge_size": 2, "text_config": {"shared_expert_intermediate_size": 32}},
    "Qwen3OmniMoeTalkerModel": {"shared_expert_intermediate_size": 32},
    "Rag": _RAG,
    "SegGpt": {"num_hidden_layers": 4, "intermediate_hidden_state_indices": [2, 3], "merge_index": 1},
    # It drops out values of the spectrogram in evaluation, too.
    "SpeechT5ForSpeechToSpeech": {"speech_decoder_prenet_dropout": 0.0},
    "VibeVoiceModel": SOUND["VibeVoiceFor"],
    "ViltForImagesAndText": {"num_images": 2, "modality_type_vocab_size": 3},
}  # fmt: skip


def _choices() -> dict[str, Any]:
    """Two texts a row, and the position of the token of each that decides."""
    return {
        "input_ids": ids(BATCH, 2, LENGTH), "attention_mask": None, "mc_token_ids": torch.tensor([[15, 12], [14, 15]]),
    }  # fmt: skip


def _entities(count: int) -> Any:
    """What makes a text with so many entities of three tokens each."""

    def make() -> dict[str, Any]:
        first = torch.arange(count) * 4 + 2
        positions = torch.full((BATCH, count, 30), -1)
        positions[:, :, :3] = first[:, None] + torch.arange(3)
        return {
            "entity_ids": ids(BATCH, count), "entity_position_ids": positions,
            "entity_attention_mask": torch.ones(BATCH, count, dtype=torch.long),
            "entity_start_positions": first.repeat(BATCH, 1), "entity_end_positions": first.repeat(BATCH, 1) + 2,
        }  # fmt: skip

    return make


def _codes_of_two_speakers() -> dict[str, Any]:
    """Codes of what the user and the model say, beside the text."""
    codes = {f"{who}_audio_codes": torch.randint(0, 200, (BATCH, 8, LENGTH)) for who in ("user", "moshi")}
    return {"input_ids": ids(BATCH, LENGTH), "attention_mask": padded(BATCH, LENGTH), **codes}


def _queries() -> dict[str, Any]:
    """Queries before a text, and the image that both read."""
    return {
        "input_ids": ids(BATCH, 6), "attention_mask": padded(BATCH, 14), "query_embeds": torch.randn(BATCH, 8, 64),
        "encoder_hidden_states": torch.randn(BATCH, 10, 64),
    }  # fmt: skip


def _documents() -> dict[str, Any]:
    """A question, two documents that were found for it, and the answer until now, for one row."""
    return {
        "input_ids": ids(1, LENGTH), "attention_mask": torch.ones(1, LENGTH, dtype=torch.long),
        "context_input_ids": ids(2, 20), "context_attention_mask": padded(2, 20),
        "doc_scores": torch.tensor([[0.7, 0.4]]), "decoder_input_ids": ids(1, 6),
    }  # fmt: skip


def _boxes() -> dict[str, Any]:
    """Boxes of a page, of which the second page has fewer."""
    corners = torch.randint(0, 400, (BATCH, 8, 2))
    return {
        "boxes": torch.cat([corners, corners + 100], -1), "labels": torch.randint(0, 20, (BATCH, 8)),
        "mask": padded(BATCH, 8).bool(),
    }  # fmt: skip


def _pictures_of_patches() -> dict[str, Any]:
    """An image of 4 x 4 patches a text, which becomes four tokens."""
    texts = ids(BATCH, LENGTH)
    texts[:, 2:6] = 250
    kinds = (texts == 250).long()
    return {
        "input_ids": texts, "attention_mask": padded(BATCH, LENGTH), "mm_token_type_ids": kinds,
        "moe_mm_token_type_ids": kinds, "pixel_values": torch.randn(16 * BATCH, 588),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
    }  # fmt: skip


def _embedded(length: int) -> Any:
    """What makes embeddings of so many tokens in place of their ids."""
    return lambda: {
        "inputs_embeds": torch.randn(BATCH, length, 64), "input_ids": None, "attention_mask": padded(BATCH, length),
    }  # fmt: skip


def _speech_to_speech() -> dict[str, Any]:
    return {
        "input_values": torch.randn(BATCH, 4000), "attention_mask": padded(BATCH, 4000),
        "decoder_input_values": torch.randn(BATCH, 12, 80), "speaker_embeddings": torch.randn(BATCH, 512),
    }  # fmt: skip


INPUTS: dict[str, Any] = {
    "BarkFineModel": lambda: {"codebook_idx": 2, "input_ids": ids(BATCH, LENGTH, 8)},
    "BayesianDetector": lambda: {
        "g_values": torch.randint(0, 2, (BATCH, LENGTH, 3)).float(), "mask": padded(BATCH, LENGTH),
    },
    "CsmBackboneModel": lambda: {"input_ids": ids(BATCH, LENGTH, 4)},
    "CsmDepthDecoder": lambda: {
        "input_ids": ids(BATCH, 4), "attention_mask": None, "backbone_last_hidden_state": torch.randn(BATCH, 64),
    },
    "DecisionTransformerGPT2": dict,
    # Of 1280 samples one token; the second row ends earlier.
    "Dots3NoteAudio": lambda: {
        "input_features": torch.randn(BATCH, 128, 96), "chunk_sample_lengths": torch.tensor([96 * 160, 64 * 160]),
    },
    "Ernie4_5_VL_MoeModel": _pictures_of_patches,
    "EsmForProteinFolding": lambda: {
        "input_ids": torch.randint(0, 20, (BATCH, 10)), "attention_mask": padded(BATCH, 10),
    },
    "FastSpeech2ConformerHifiGan": lambda: {"spectrogram": torch.randn(BATCH, 12, 80)},
    # Padding has equal scores, of which torch may take any.
    "FlaubertForQuestionAnswering": lambda: {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)},
    "FlavaImageCodebook": lambda: {"pixel_values": torch.rand(BATCH, 3, 112, 112)},
    "FlavaMultimodal": lambda: {"hidden_states": torch.randn(BATCH, LENGTH, 64)},
    "GPT2DoubleHeads": _choices,
    "InstructBlipQFormer": _queries,
    "InstructBlipVideoQFormer": _queries,
    "JanusVQVAE": lambda: {"pixel_values": torch.rand(BATCH, 3, 16, 16)},
    "LukeForEntityClassification": _entities(1),
    "LukeForEntityPair": _entities(2),
    "LukeForEntitySpan": _entities(3),
    "MgpstrModel": lambda: {"pixel_values": torch.rand(BATCH, 3, 32, 128)},
    "MoshiForConditional": _codes_of_two_speakers,
    "OpenAIGPTDoubleHeads": _choices,
    "PPDocLayoutV2ReadingOrder": _boxes,
    "PerceiverForMultimodalAutoencoding": lambda: {
        "inputs": {
            "image": torch.rand(BATCH, 2, 3, 16, 16), "audio": torch.randn(BATCH, 128, 1),
            "label": torch.zeros(BATCH, 700),
        },
        "subsampled_output_points": {"image": torch.arange(8), "audio": torch.arange(4), "label": None},
    },
    "PerceiverForOpticalFlow": lambda: {"inputs": torch.rand(BATCH, 2, 27, 16, 24)},
    "Phi4MultimodalAudio": lambda: {
        "hidden_states": torch.randn(BATCH, 96, 80), "mask": padded(BATCH, 96).bool(),
    },
    # In few steps: one evaluates its flow four times.
    "Qwen2_5OmniToken2WavModel": lambda: {
        "code": ids(1, 4), "conditioning": torch.randn(1, 64), "reference_mel": torch.randn(1, 10, 64), "num_steps": 3,
    },
    "Qwen3OmniMoeCode2Wav": lambda: {"codes": torch.randint(0, 200, (BATCH, 16, 6))},
    "Qwen3OmniMoeCode2WavTransformer": _embedded(LENGTH),
    "Qwen3OmniMoeTalkerCodePredictorModel": _embedded(LENGTH),
    # What the talker was thinking, and the first of its codes.
    "Qwen3OmniMoeTalkerCodePredictorModelFor": lambda: {**_embedded(2)(), "attention_mask": None},
    "Qwen3OmniMoeTalkerFor": lambda: {
        "inputs_embeds": torch.randn(BATCH, LENGTH, 64), "input_ids": None, "talker_input_ids": ids(BATCH, LENGTH),
    },
    "Rag": _documents,
    "SeamlessM4TCodeHifiGan": lambda: {
        "input_ids": ids(BATCH, 12), "spkr_id": torch.tensor([[0], [1]]), "lang_id": torch.tensor([[0], [1]]),
    },
    "SeamlessM4TTextToUnit": _embedded(LENGTH),
    "SpeechT5ForSpeechToSpeech": _speech_to_speech,
    "SpeechT5HifiGan": lambda: {"spectrogram": torch.randn(BATCH, 12, 80)},
    "ViltForImagesAndText": lambda: {"pixel_values": torch.rand(BATCH, 2, 3, 224, 224), "pixel_mask": None},
    "XLMForQuestionAnswering": lambda: {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)},
    "VisualBertForRegion": lambda: {
        "visual_embeds": torch.randn(BATCH, 4, 64), "visual_attention_mask": padded(BATCH, 4),
        "region_to_phrase_position": torch.tensor([[1, 4, -1], [2, 7, 9]]),
    },
}  # fmt: skip
