"""Configuration fields and inputs of transformers' classes that read images with a model of timm.

They need timm, which is not among this project's packages: `PYTHONPATH=DIRECTORY`, into which `pip install --target
DIRECTORY --no-deps timm torchvision` put it. Keys are the beginnings of class names, as in `tiny_transformers_table`.
"""

from typing import Any

import torch

from benchmarks.tiny_transformers_table import BATCH, padded

_VIT: dict[str, Any] = {
    "model_type": "timm_wrapper", "architecture": "vit_pe_core_large_patch14_336",
    "model_args": {"embed_dim": 64, "depth": 1, "num_heads": 4, "img_size": 28},
}  # fmt: skip
# Four levels, and the channels of each, the last first.
_REPVIT: dict[str, Any] = {
    "backbone_config": {
        "model_type": "timm_wrapper", "architecture": "repvit_m1", "num_classes": 2,
        "model_args": {
            "in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3],
            "embed_dim": [16, 24, 32, 48], "depth": [1, 1, 1, 1],
        },
    },
    "backbone_channel_list": [48, 32, 24, 16], "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
    "fpn_hidden_size": 64,
}  # fmt: skip
_DAC = {"dac_config": {"encoder_hidden_size": 8, "hidden_size": 128}}
CONFIGS: dict[str, dict[str, Any]] = {
    "EdgeTamModel": {
        "vision_config": _REPVIT,
        "prompt_encoder_config": {"hidden_size": 64, "image_size": 128, "patch_size": 16},
        "mask_decoder_config": {"hidden_size": 64, "iou_head_hidden_dim": 64, "num_attention_heads": 4},
    },
    "EdgeTamVisionModel": _REPVIT,
    "PeAudioVideoEncoder": {"audio_config": _DAC, "video_config": {"vision_config": _VIT}},
    "PeAudioVideoModel": {
        "audio_video_config": {"audio_config": _DAC, "video_config": {"vision_config": _VIT}}
    },
    "PeVideoEncoder": {"vision_config": _VIT},
    "PeVideoModel": {"video_config": {"vision_config": _VIT}},
    "TimmBackbone": {"backbone": "resnet10t"},
    "TimmWrapper": {"architecture": "resnet10t"},
}
# Of classes that generate text.
MULTIMODAL_CONFIGS: dict[str, dict[str, Any]] = {
    "FastVlm": {
        "vision_config": {
            "model_type": "timm_wrapper", "architecture": "fastvit_mci3", "hidden_size": 128,
            "model_args": {"layers": [1] * 5, "embed_dims": [16, 16, 32, 32, 64], "inference_mode": False},
        },
        "image_token_index": 250,
    },
    "Gemma3nForCond": {
        "text_config": {
            "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "intermediate_size": 64,
            "activation_sparsity_pattern": [0.0] * 4,
        },
        "vision_config": {
            "architecture": "mobilenetv5_base", "hidden_size": 64,
            "model_args": {"channel_multiplier": 0.05, "num_features": 64, "msfa_output_resolution": 2},
        },
        "vision_soft_tokens_per_image": 4,
    },
    "PerceptionLM": {
        "vision_config": {**_VIT, "model_args": {**_VIT["model_args"], "img_size": 56}},
        "image_token_id": 250, "video_token_id": 251,
    },
}  # fmt: skip


def _points() -> dict[str, Any]:
    """A picture of 128 x 128 pixels, and two points in each."""
    return {
        "pixel_values": torch.randn(BATCH, 3, 128, 128), "input_points": torch.rand(BATCH, 1, 2, 2) * 100,
        "input_labels": torch.ones(BATCH, 1, 2).int(),
    }  # fmt: skip


def _film() -> dict[str, Any]:
    """Four frames, of which the second film lacks two."""
    return {"pixel_values_videos": torch.randn(BATCH, 4, 3, 28, 28), "padding_mask_videos": padded(BATCH, 4)}


def _film_with_sound() -> dict[str, Any]:
    return {**_film(), "input_values": torch.randn(BATCH, 1, 9600)}


INPUTS: dict[str, Any] = {
    "EdgeTamModel": _points,
    "EdgeTamVisionModel": lambda: {"pixel_values": torch.randn(BATCH, 3, 128, 128)},
    "PeAudioVideo": _film_with_sound,
    "PeVideo": _film,
}
