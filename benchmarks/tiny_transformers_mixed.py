"""Configuration fields and inputs of transformers' classes that read text beside images, and write none of it.

See `tiny_transformers_table`. Token 250 stands for an image wherever a class wants to be told which token does.
"""

from typing import Any

import torch

from benchmarks.tiny_multimodal_table import GEMMA4_VISION
from benchmarks.tiny_transformers_table import BATCH, LENGTH, ids, padded

_IMAGE = 250
_PATCHES = {"image_size": 64, "patch_size": 16}


def _with_images(count: int) -> torch.Tensor:
    """Texts of 16 tokens, so many of which stand for an image."""
    texts = ids(BATCH, LENGTH)
    texts[:, 2 : 2 + count] = _IMAGE
    return texts


def _tiles() -> dict[str, Any]:
    """One image of 4 x 4 patches a text, which becomes one token."""
    return {"input_ids": _with_images(1), "pixel_values": torch.randn(BATCH, 1, 3, 64, 64)}


def _robot() -> dict[str, Any]:
    """A robot's state and camera, and noise that is to become its actions."""
    return {
        **_camera(), "state": torch.randn(BATCH, 32), "noise": torch.randn(BATCH, 50, 32),
        "timestep": torch.tensor([0.3, 0.8]),
    }  # fmt: skip


def _camera() -> dict[str, Any]:
    """A camera's image, of four tokens, and embeddings of actions, the first of which is the robot's state."""
    return {
        "action_embeds": torch.randn(BATCH, 51, 64),
        "input_ids": _with_images(4), "attention_mask": padded(BATCH, LENGTH),
        "pixel_values": torch.randn(BATCH, 1, 3, 28, 28), "pixel_attention_mask": torch.ones(BATCH, 1).bool(),
    }  # fmt: skip


def _picture_of_patches() -> dict[str, Any]:
    """An image of 4 x 4 patches a text, which becomes four tokens."""
    cells = torch.cartesian_prod(torch.arange(4), torch.arange(4)).flip(-1)
    return {
        "input_ids": _with_images(4), "pixel_values": torch.rand(BATCH, 16, 48),
        "image_position_ids": cells.repeat(BATCH, 1, 1), "input_features": None,
    }  # fmt: skip


def _draft() -> dict[str, Any]:
    """One step of a drafting model, over the keys and values of the model that it drafts for."""
    states = {
        kind: (torch.randn(BATCH, 2, 8, 16), torch.randn(BATCH, 2, 8, 16))
        for kind in ("sliding_attention", "full_attention")
    }
    return {
        "input_ids": None, "attention_mask": None, "inputs_embeds": torch.randn(BATCH, 1, 128),
        "position_ids": torch.full((BATCH, 1), 8), "shared_kv_states": states,
    }  # fmt: skip


def _pictures_to_change() -> dict[str, Any]:
    """An image of 4 x 4 patches a text, after which another one begins that is to be drawn."""
    row = [10, 11, 251, *[_IMAGE] * 16, 252, 12, 13, 251]
    return {
        "input_ids": torch.tensor([row] * BATCH), "attention_mask": torch.ones(BATCH, len(row), dtype=torch.long),
        "pixel_values": torch.randn(BATCH * 16, 768), "image_grid_thw": torch.tensor([[1, 4, 4]] * (2 * BATCH)),
        "images_per_sample": torch.tensor([2] * BATCH),
    }  # fmt: skip


_DRAFTING_TEXT: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_GLM_IMAGE: dict[str, Any] = {
    "image_token_id": _IMAGE, "image_start_token_id": 251, "image_end_token_id": 252,
    "vq_config": {"num_embeddings": 32, "embed_dim": 64, "latent_channels": 64},
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Blip2ForImageTextRetrieval": {"qformer_config": {"use_qformer_text_input": True}},
    "ColModernVBert": {"vlm_config": {"image_token_id": _IMAGE, "vision_config": _PATCHES}},
    "ColQwen2": {"vlm_config": {"image_token_id": _IMAGE}},
    "DiffusionGemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
        "canvas_length": 16,
        "vision_config": GEMMA4_VISION,
    },
    "EmbeddingGemma2": {"image_token_id": _IMAGE, "vision_config": GEMMA4_VISION},
    "Gemma4UnifiedAssistant": {"text_config": _DRAFTING_TEXT, "backbone_hidden_size": 64},
    "Gemma3ForSequence": {"mm_tokens_per_image": 4},
    "GlmImageFor": _GLM_IMAGE,
    "GlmImageModel": _GLM_IMAGE,
    # Wider than the block that it drafts and what it is drafted from.
    "MuseGlimmerAssistant": {"sliding_window": 64},
    "NeoMME": {"image_token_id": _IMAGE, "patch_size": 4},
    "PI0": {
        "vlm_config": {
            "image_token_index": _IMAGE,
            "vision_config": {"image_size": 28, "patch_size": 14},
            "projection_dim": 64,
        }
    },
    "Tvp": {"max_img_size": 224, "num_frames": 2},
    "UltraVBert": {"image_token_id": _IMAGE, "vision_config": _PATCHES},
}

INPUTS: dict[str, Any] = {
    "ColModernVBert": _tiles,
    # The patches of each image are padded to the most that one has.
    "ColQwen2": lambda: {
        "input_ids": _with_images(4), "pixel_values": torch.randn(BATCH, 16, 1176),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
    },
    "DiffusionGemma": lambda: {"decoder_input_ids": ids(BATCH, 16)},
    "EmbeddingGemma2": _picture_of_patches,
    "FlavaForPreTraining": lambda: {
        "codebook_pixel_values": torch.rand(BATCH, 3, 112, 112), "input_ids_masked": ids(BATCH, LENGTH),
        "attention_mask": padded(BATCH, LENGTH), "bool_masked_pos": torch.rand(BATCH, 14, 14) < 0.4,
    },
    "Gemma4UnifiedAssistant": _draft,
    "GlmImageFor": _pictures_to_change,
    "GlmImageModel": _pictures_to_change,
    "MuseGlimmerAssistant": lambda: {
        "noise_embeds": torch.randn(BATCH, 16, 64), "context_hidden_states": torch.randn(BATCH, 8, 2 * 64),
    },
    "NeoMME": lambda: {"input_ids": _with_images(2), "pixel_values": torch.randn(2 * BATCH, 48)},
    "PI0For": _robot,
    "PI0Model": _camera,
    # Its positions of columns are for one video.
    "Tvp": lambda: {
        "input_ids": ids(1, LENGTH), "attention_mask": torch.ones(1, LENGTH).long(),
        "pixel_values": torch.randn(1, 2, 3, 224, 224),
    },
    "UltraVBert": _tiles,
}  # fmt: skip
