"""Images, videos and audio of single classes, whose processors prepare them in forms of their own.

Keys are the beginnings of class names, as in `tiny_transformers_table`; a maker takes the model, the number of images,
videos or recordings, and that of rows.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.tiny_transformers_table import lookup

# Of several images, in merged patches: height and width.
_SIZES = ((2, 2), (2, 4), (4, 2), (2, 2))


def inkling_image(model: Any, items: int, _: int) -> dict[str, Any]:
    """Two frames of each patch of 40 x 40 pixels, which is a token; so many as placeholders are counted."""
    vision = model.config.vision_config
    side = vision.patch_size
    return {
        "pixel_values": torch.rand(2 * items, vision.temporal_patch_size, side, side, vision.num_channels)
    }


def inkling_audio(model: Any, items: int, _: int) -> dict[str, Any]:
    """For each frame of sound the codes of its bins; the last recording is two frames shorter."""
    audio = model.config.audio_config
    mask = torch.ones(items, 6, dtype=torch.long)
    mask[-1, -2:] = 0
    codes = torch.randint(audio.mel_vocab_size, (items, 6, audio.n_mel_bins))
    return {"audio_input_ids": codes, "audio_input_ids_mask": mask}


def inkling2_image(model: Any, items: int, _: int) -> dict[str, Any]:
    """Merged patches as small pictures, and the grid of them in each image."""
    vision = model.config.vision_config
    side = vision.patch_size * vision.spatial_merge_size
    grid = torch.tensor([(1, *_SIZES[number % 4]) for number in range(items)])
    count = int(grid.prod(-1).sum())
    return {"pixel_values": torch.rand(count, side, side, vision.num_channels), "image_grid_thw": grid}


def molmo2_image(model: Any, items: int, _: int) -> dict[str, Any]:
    """One crop of 4 x 4 patches of each image, which four tokens see by windows of 2 x 2."""
    pixels, windows = _molmo2_crops(model, items)
    grids = torch.tensor([(2, 2, 0, 0)] * items)
    return {"pixel_values": pixels, "image_token_pooling": windows, "image_grids": grids}


def molmo2_video(model: Any, items: int, _: int) -> dict[str, Any]:
    """Two frames of each video, in the form of images."""
    pixels, windows = _molmo2_crops(model, 2 * items)
    grids = torch.tensor([(2, 2, 2)] * items)
    return {"pixel_values_videos": pixels, "video_token_pooling": windows, "video_grids": grids}


def _molmo2_crops(model: Any, crops: int) -> tuple[torch.Tensor, torch.Tensor]:
    patch = model.config.vision_config.patch_size
    cells = torch.arange(16).reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
    windows = torch.cat([cells + 16 * crop for crop in range(crops)])
    return torch.randn(crops, 16, 3 * patch * patch), windows


def apertus_image(_model: Any, items: int, _: int) -> dict[str, Any]:
    """Images of patches of 16 x 16, each a token, padded to the largest."""
    sizes = torch.tensor([_SIZES[number % 4] for number in range(items)]) * 16
    return {"pixel_values": torch.rand(items, 3, 64, 64), "image_sizes": sizes}


def apertus_audio(model: Any, items: int, _: int) -> dict[str, Any]:
    """Samples of four tokens a recording, of three in the last one."""
    hop = model.config.audio_config.hop_length
    mask = torch.ones(items, 4 * hop, dtype=torch.long)
    mask[-1, 3 * hop :] = 0
    return {"input_values": torch.randn(items, 1, 4 * hop), "padding_mask": mask}


def omni_audio(_model: Any, items: int, _: int) -> dict[str, Any]:
    """A quarter of a second of sound, and less of the last recording."""
    mask = torch.ones(items, 4000, dtype=torch.long)
    mask[-1, 3000:] = 0
    return {"input_values": torch.randn(items, 1, 4000), "padding_mask": mask}


def deepseek_image(model: Any, items: int, _: int) -> dict[str, Any]:
    """Images, and of every other one a part too. Each is 144 tokens, whatever its size."""
    counts = torch.tensor([1, 0] * items)[:items]
    side = model.config.vision_config.sam_config.image_size
    return {
        "pixel_values": torch.randn(items, 3, side, side),
        "pixel_values_local": torch.randn(int(counts.sum()), 3, side, side),
        "num_local_patches": counts,
    }


def nemotron_image(model: Any, items: int, _: int) -> dict[str, Any]:
    """The patches of all images in one list, with the height and the width of each in patches."""
    vision = model.config.vision_config
    grid = torch.tensor([_SIZES[number % 4] for number in range(items)]) * 2
    count = int(grid.prod(-1).sum())
    return {"pixel_values": torch.randn(count, 3 * vision.patch_size**2), "image_grid_hw": grid}


def docling_image(model: Any, items: int, rows: int) -> dict[str, Any]:
    """Tiles of each row, of which the mask says that they are not padding."""
    side = model.config.vision_config.image_size
    mask = torch.ones(rows, items // rows, dtype=torch.bool)
    return {"pixel_values": torch.randn(rows, items // rows, 3, side, side), "pixel_attention_mask": mask}


def fun_audio(model: Any, items: int, _: int) -> dict[str, Any]:
    """Stacked frames of sound; the last recording is shorter."""
    audio = model.config.audio_config
    mask = torch.ones(items, 48, dtype=torch.long)
    mask[-1, -16:] = 0
    features = torch.randn(items, 48, audio.num_mel_bins * audio.num_stacked_frames)
    return {"input_features": features, "input_features_mask": mask}


def gemma4_unified_image(model: Any, items: int, _: int) -> dict[str, Any]:
    """Patches of each image with their columns and rows, padded by -1 to the largest image."""
    side = model.config.vision_config.model_patch_size
    positions = torch.full((items, 8, 2), -1)
    for number in range(items):
        height, width = _SIZES[number % 4]
        cells = torch.cartesian_prod(torch.arange(height), torch.arange(width)).flip(-1)
        positions[number, : len(cells)] = cells
    return {"pixel_values": torch.rand(items, 8, 3 * side * side), "image_position_ids": positions}


def gemma4_unified_audio(model: Any, items: int, _: int) -> dict[str, Any]:
    """Six frames of samples a recording; the last one is two frames shorter."""
    mask = torch.ones(items, 6, dtype=torch.bool)
    mask[-1, -2:] = False
    width = model.config.audio_config.audio_embed_dim
    return {"input_features": torch.randn(items, 6, width), "input_features_mask": mask}


def muse_audio(model: Any, items: int, _: int) -> dict[str, Any]:
    """Samples of three tokens a recording."""
    return {"input_values": torch.randn(items, 3 * model.config.audio_config.samples_per_token)}


def vibe_audio(model: Any, items: int, _: int) -> dict[str, Any]:
    """Samples of three tokens a recording, of two in the last one, and no noise added to what they become."""
    hop = model.config.acoustic_tokenizer_encoder_config.hop_length
    mask = torch.ones(items, 3 * hop, dtype=torch.bool)
    mask[-1, 2 * hop :] = False
    return {"input_values": torch.randn(items, 1, 3 * hop), "padding_mask": mask, "sample": False}


MAKERS: dict[str, dict[str, Callable[[Any, int, int], dict[str, Any]]]] = {
    "Apertus1p5": {"image": apertus_image, "audio": apertus_audio},
    "DeepseekOcr2": {"image": deepseek_image},
    "FunAsrNano": {"audio": fun_audio},
    "Gemma4Unified": {"image": gemma4_unified_image, "audio": gemma4_unified_audio},
    "GraniteDocling": {"image": docling_image},
    "InklingFor": {"image": inkling_image, "audio": inkling_audio},
    "Inkling2For": {"image": inkling2_image},
    "Inkling2LoopFor": {"image": inkling2_image},
    "Molmo2": {"image": molmo2_image, "video": molmo2_video},
    "MuseSpark": {"audio": muse_audio},
    "NemotronH_Omni": {"image": nemotron_image},
    "OmniASRFor": {"audio": omni_audio},
    "VibeVoiceAsr": {"audio": vibe_audio},
}


def maker(model: Any, modality: str) -> Callable[[Any, int, int], dict[str, Any]] | None:
    """What makes a class's inputs of a modality, where they have a form of their own."""
    return (lookup(MAKERS, type(model).__name__) or {}).get(modality)
