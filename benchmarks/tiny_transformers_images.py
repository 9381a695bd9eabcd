"""Configuration fields and inputs of transformers' classes that read images alone; see `tiny_transformers_table`."""

from typing import Any

import torch

from benchmarks.tiny_transformers_table import BATCH, ids, padded

# Of convolutions around a long axis: kernel, stride and padding.
_LINES = {
    f"{kind}_{ratio}ratio": [kernel, 1, padding]
    for ratio, size in (("long", 7), ("mid", 5), ("short", 3))
    for kind, kernel, padding in (
        ("vertical_long_to_small_conv", [size, 1], [size // 2, 0]),
        ("horizontal_small_to_long_conv", [1, size], [0, size // 2]),
        ("symmetric_conv_long", [size, size], [size // 2, size // 2]),
    )
}
_TEXT_DETECTION: dict[str, Any] = {
    "intraclass_block_config": {**_LINES, "reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]},
    "scale_factor_list": [1, 2, 4, 8], "kernel_list": [3, 2, 2],
}  # fmt: skip
_EFFICIENT_NET = {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320, "image_size": 64}
_HG_NET: dict[str, Any] = {
    "stem_channels": [3, 16, 16], "stage_in_channels": [16, 16, 32, 32], "stage_mid_channels": [16] * 4,
    "stage_out_channels": [16, 32, 32, 64], "stage_num_blocks": [1] * 4, "stage_numb_of_layers": [1] * 4,
    "hidden_sizes": [16, 32, 32, 64],
}  # fmt: skip
# Halves both sides of an image in each stage but the first, as a detector of text needs it.
_LC_NET: dict[str, Any] = {
    "block_configs": [
        [[3, 16, 16, 1, True]], [[3, 16, 32, 2, False]], [[3, 32, 32, 2, False]], [[3, 32, 64, 2, True]],
    ],
    "stem_channels": [3, 16, 16], "depths": [1] * 4, "stage_out_channels": [16, 32, 32, 64],
    "out_features": ["stage1", "stage2", "stage3", "stage4"], "out_indices": [1, 2, 3, 4],
}  # fmt: skip
_DEPTH_PART = {"image_size": 32, "patch_size": 8}
_PATCHES = {"image_size": 64, "patch_size": 16}

_SAPIENS = {"num_key_value_heads_per_layer": [4, 2], "num_key_value_attention_heads": 2}
_SAM_PROMPT = {"image_size": 128, "hidden_size": 64}
_SAM_LEVELS = [[32, 32], [16, 16], [8, 8]]
_SAM2: dict[str, Any] = {
    "vision_config": {
        "backbone_config": {
            "embed_dim_per_stage": [16, 32, 64, 128],
            "image_size": [128, 128],
            "blocks_per_stage": [1, 1, 2, 1],
            "global_attention_blocks": [3],
            "hidden_size": 16,
        },
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": _SAM_LEVELS,
        "fpn_hidden_size": 64,
    },
    "prompt_encoder_config": _SAM_PROMPT,
    "mask_decoder_config": {"hidden_size": 64},
}
_SAM3: dict[str, Any] = {
    "vision_config": {
        "backbone_config": {"image_size": 112, "pretrain_image_size": 112, "window_size": 4},
        "backbone_feature_sizes": _SAM_LEVELS,
        "fpn_hidden_size": 64,
    },
    "prompt_encoder_config": {"image_size": 112, "hidden_size": 64},
    "mask_decoder_config": {"hidden_size": 64},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "Align": {"projection_dim": 80, "vision_config": _EFFICIENT_NET},
    "Cvt": {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    "DepthPro": {
        "patch_size": 32, "image_model_config": _DEPTH_PART, "patch_model_config": _DEPTH_PART,
        "fov_model_config": _DEPTH_PART, "intermediate_hook_ids": [1, 0], "intermediate_feature_dims": [32, 32],
        "scaled_images_feature_dims": [32, 32, 16],
    },
    "DetrForSegmentation": {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "EfficientLoFTR": {
        "stage_num_blocks": [1, 1, 1, 1], "out_features": [16, 16, 32, 64], "num_attention_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 8,
        # Features of random weights match by little.
        "coarse_matching_threshold": 0.0, "coarse_matching_border_removal": 1,
    },
    "EfficientNet": _EFFICIENT_NET,
    "Gemma4VisionModel": {"pooling_kernel_size": 2, "patch_size": 4, "position_embedding_size": 64},
    "GraniteDoclingVision": {"image_size": 128, "patch_size": 16},
    "HieraForPreTraining": {"decoder_hidden_size": 32, "decoder_depth": 1, "decoder_num_heads": 2},
    "Idefics3Vision": _PATCHES,
    "LwDetr": {"backbone_config": {"image_size": 256}, "projector_scale_factors": [1.0]},
    "OmDetTurbo": {"apply_layernorm_after_vision_backbone": False, "encoder_in_channels": [16, 32, 64]},
    "OneFormer": {
        "backbone_config": {"embed_dim": 16, "num_heads": [1, 2, 4, 8], "depths": [1, 1, 1, 1]},
        "conv_dim": 32, "mask_dim": 32, "hidden_dim": 32, "text_encoder_width": 32, "num_attention_heads": 4,
    },
    "PPDocLayoutV2": {
        "backbone_config": _HG_NET, "encoder_in_channels": [32, 32, 64], "decoder_in_channels": [64, 64, 64],
        "class_thresholds": [0.5] * 25, "class_order": list(range(25)),
        # With 128, two of the queries that are chosen have equal scores in torch.
        "encoder_ffn_dim": 96,
    },
    "PPDocLayoutV3": {"backbone_config": _HG_NET, "encoder_in_channels": [32, 32, 64], "x4_feat_dim": 16},
    "PPOCRV5ServerDet": {**_TEXT_DETECTION, "backbone_config": _HG_NET},
    "PPOCRV5ServerRec": {"backbone_config": _HG_NET},
    "PPOCRV6MediumDet": {**_TEXT_DETECTION, "backbone_config": _LC_NET},
    "PPOCRV6SmallDet": {"layer_list_out_channels": [16, 32, 32, 64], "backbone_config": _LC_NET},
    "PerceiverForImageClassificationConv": {
        "d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2, "d_model": 322,
        "num_cross_attention_heads": 1,
    },
    "PerceiverForImageClassificationFourier": {
        "d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2, "d_model": 261, "image_size": 224,
        "num_cross_attention_heads": 1,
    },
    "Sapiens2Backbone": _SAPIENS,
    "Sapiens2For": {
        "head_config": {
            "upsample_out_channels": [32], "upsample_kernel_sizes": [4], "conv_out_channels": [32],
            "conv_kernel_sizes": [1],
        },
        **_SAPIENS,
    },
    "Sam2Model": _SAM2,
    "Sam3TrackerModel": _SAM3,
    "ShieldGemma2": {"mm_tokens_per_image": 4, "yes_token_index": 100, "no_token_index": 101},
    # As many as there are stages, all of which it undoes.
    "SwinForMasked": {"num_layers": 4},
    "Swinv2ForMasked": {"num_layers": 4},
    "UVDoc": {
        "backbone_config": {
            "resnet_head": [[3, 16], [16, 16]], "stage_configs": [[[16, 1]], [[16, 2], [16, 3]]],
            "resnet_configs": [[[16, 16, 1, False]], [[16, 16, 1, True], [16, 16, 3, False]]],
            "out_features": ["stage1", "stage2"], "out_indices": [1, 2],
        },
        "bridge_connector": [16, 16], "out_point_positions2D": [[16, 8], [8, 2]],
    },
    "VJEPA2": {"crop_size": 32, "patch_size": 8, "frames_per_clip": 4},
    "VideoMAEForPreTraining": {"image_size": 32, "num_frames": 4},
    "ZoeDepth": {
        "backbone_config": {
            "image_size": 64, "patch_size": 16, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
            "num_attention_heads": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"],
            "out_indices": [1, 2, 3, 4],
        },
        "neck_hidden_sizes": [16, 16, 32, 32], "fusion_hidden_size": 32, "bottleneck_features": 32,
    },
}  # fmt: skip


def _numbered_patches() -> dict[str, Any]:
    """Patches of 4 x 4 pixels with their columns and rows: an image of 16, and one of 8 that is padded."""
    cells = torch.cartesian_prod(torch.arange(4), torch.arange(4)).flip(-1)
    positions = torch.stack([cells, cells])
    positions[1, 8:] = -1
    return {"pixel_values": torch.rand(BATCH, 16, 48), "pixel_position_ids": positions}


def _patches_side_by_side() -> dict[str, Any]:
    """The patches of an image of 4 x 4 and of one of 4 x 8 in a row."""
    return {"pixel_values": torch.randn(1, 3, 16, 48 * 16), "target_sizes": torch.tensor([[4, 4], [4, 8]])}


def _line() -> dict[str, Any]:
    """The image of a line of text."""
    return {"pixel_values": torch.randn(BATCH, 3, 48, 96)}


def _hidden_patches() -> dict[str, Any]:
    """An image of 56 x 56 patches, some of which are hidden."""
    return {"pixel_values": torch.randn(BATCH, 3, 224, 224), "bool_masked_pos": torch.rand(BATCH, 3136) < 0.4}


def _classes_of_tasks() -> dict[str, Any]:
    """Two images, one to be searched for two classes and one for three."""
    return {
        "classes_input_ids": ids(5, 6), "classes_attention_mask": padded(5, 6), "tasks_input_ids": ids(BATCH, 8),
        "tasks_attention_mask": padded(BATCH, 8), "classes_structure": torch.tensor([2, 3]),
    }  # fmt: skip


INPUTS: dict[str, Any] = {
    "DepthPro": lambda: {"pixel_values": torch.randn(BATCH, 3, 128, 128)},
    "EfficientLoFTR": lambda: {"pixel_values": torch.randn(1, 2, 3, 64, 64)},
    "Gemma4VisionModel": _numbered_patches,
    "HieraForPreTraining": lambda: {"noise": torch.rand(BATCH, 49)},
    "Idefics3Vision": dict,
    "Inkling2VisionModel": lambda: {"pixel_values": torch.rand(BATCH * 16, 40, 40, 3)},
    "LwDetr": lambda: {"pixel_values": torch.randn(BATCH, 3, 256, 256)},
    "MiniCPMOcrVision": _patches_side_by_side,
    "MiniCPMV4_7Vision": _patches_side_by_side,
    "OmDetTurbo": _classes_of_tasks,
    # Its default configuration halves both sides in each stage, those of checkpoints mostly the height.
    "PPOCRV5MobileRecFor": lambda: {"pixel_values": torch.randn(BATCH, 3, 96, 192)},
    "PPOCRV5ServerRecFor": _line,
    "PPOCRV6SmallRecFor": _line,
    "PPOCRV6TinyRecFor": _line,
    "PerceiverForImageClassificationConv": dict,
    "PerceiverForImageClassificationFourier": dict,
    "Sam2Model": lambda: {
        "pixel_values": torch.randn(BATCH, 3, 128, 128), "input_points": torch.rand(BATCH, 1, 2, 2) * 100,
        "input_labels": torch.ones(BATCH, 1, 2).int(),
    },
    "Sam3TrackerModel": lambda: {
        "pixel_values": torch.randn(BATCH, 3, 112, 112), "input_points": torch.rand(BATCH, 1, 2, 2) * 100,
        "input_labels": torch.ones(BATCH, 1, 2).int(),
    },
    "SwinForMasked": _hidden_patches,
    "Swinv2ForMasked": _hidden_patches,
    "VideoLlama3Vision": lambda: {
        "grid_thw": torch.tensor([[1, 4, 4]] * BATCH), "merge_sizes": torch.tensor([2] * BATCH),
    },
    "VJEPA2": lambda: {"pixel_values_videos": torch.randn(BATCH, 4, 3, 32, 32)},
    "VideoMAEForPreTraining": lambda: {
        "pixel_values": torch.randn(BATCH, 4, 3, 32, 32),
        "bool_masked_pos": torch.tensor([[True, False] * 4, [False, True] * 4]),
    },
}  # fmt: skip
