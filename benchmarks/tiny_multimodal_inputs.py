"""Pixels, patches, frames and audio features of the shapes that transformers' processors give them.

Every kind of input is a function of the configuration; `candidates` lists those that suit the parameters of a class,
the likeliest first.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import tiny_multimodal_special
from benchmarks.tiny_transformers import find, first

# Makes inputs for so many images, videos or recordings, in so many rows.
Maker = Callable[[int, int], dict[str, Any]]
# Of several images, in units of merged patches: frames, height, width.
IMAGE_GRIDS = ((1, 2, 2), (1, 2, 4), (1, 4, 2), (1, 2, 2))
VIDEO_GRIDS = ((2, 2, 2), (2, 2, 4))


def candidates(model: Any, modality: str, features: set[str], parameters: set[str]) -> Iterator[Maker]:
    """Makers of inputs that the class may take.

    Args:
        features: the parameters of the method that computes features.
        parameters: those of `forward`.
    """
    for maker in _makers(model, modality, features, parameters):
        yield functools.partial(_with_questions, maker) if "qformer_input_ids" in parameters else maker


def _with_questions(maker: Maker, items: int, rows: int) -> dict[str, Any]:
    """Images with a question about each, for what reads both (InstructBLIP)."""
    return {**maker(items, rows), "qformer_input_ids": torch.randint(5, 200, (items, 6))}


def _makers(model: Any, modality: str, features: set[str], parameters: set[str]) -> Iterator[Maker]:
    special = tiny_multimodal_special.maker(model, modality)
    if special is not None:
        yield functools.partial(special, model)
        return
    if modality == "audio":
        yield from _audio_candidates(model, features, parameters)
        return
    pixels = "pixel_values_videos" if modality == "video" else "pixel_values"
    if pixels not in features and pixels not in parameters:
        return
    vision = vision_config(model)
    if f"{modality}_grid_thw" in features:
        yield lambda items, _: grid_patches(vision, modality, items, parameters, flat=True)
        yield lambda items, _: grid_patches(vision, modality, items, parameters, flat=False)
    elif f"{modality}_position_ids" in features:
        yield lambda items, _: positioned_patches(vision, modality, items)
    elif "target_sizes" in features or "target_sizes_videos" in features:
        yield lambda items, _: sized_patches(vision, modality, items)
    elif "spatial_shapes" in features:
        yield lambda items, _: masked_patches(vision, items)
    elif modality == "video":
        yield lambda items, _: {pixels: frames(vision, items)}
    else:
        yield from _picture_candidates(model, vision, features)


def vision_config(model: Any) -> Any:
    """The part of the configuration that describes images."""
    names = ("vision_config", "vision_tower_config", "vq_config", "encoder")
    return next(
        (part for name in names if (part := getattr(model.config, name, None)) is not None), model.config
    )


def _picture_candidates(model: Any, vision: Any, features: set[str]) -> Iterator[Maker]:
    forms = {
        "aspect_ratio_ids": _aspect_ratios, "pixel_values_local": _parts_apart, "image_sizes": _parts,
        "pixel_attention_mask": _by_row,
    }  # fmt: skip
    for name, form in forms.items():
        if name in features:
            yield functools.partial(form, vision, features)

    def pictures(items: int, _: int) -> dict[str, Any]:
        processed: dict[str, Any] = {"pixel_values": images(vision, items)}
        if "image_sizes" in features:
            processed["image_sizes"] = torch.tensor([processed["pixel_values"].shape[-2:]] * items)
        if "high_res_pixel_values" in features:
            side = _side(model.config.high_res_vision_config)
            processed["high_res_pixel_values"] = torch.randn(items, 3, side, side)
        return processed

    yield pictures
    # Some take sizes for an encoder of several sizes, which is not the default one (LLaVA).
    yield lambda items, _: {"pixel_values": images(vision, items)}
    yield lambda items, _: {"pixel_values": images(vision, items)[:, None]}
    yield functools.partial(_by_row, vision, features)


def _aspect_ratios(vision: Any, _: set[str], __: int, rows: int) -> dict[str, Any]:
    """Images of up to four tiles, which cross-attention reads (Llama 3.2)."""
    side = _side(vision)
    return {
        "pixel_values": torch.randn(rows, 1, 4, 3, side, side),
        "aspect_ratio_ids": torch.tensor([[1], [2]])[:rows],
        "aspect_ratio_mask": torch.ones(rows, 1, 4, dtype=torch.long),
    }


def _parts_apart(vision: Any, _: set[str], items: int, __: int) -> dict[str, Any]:
    """Images, and two parts of each in a list of their own."""
    side = _side(vision)
    return {
        "pixel_values": images(vision, items),
        "pixel_values_local": torch.randn(2 * items, 3, side, side),
        "num_local_patches": torch.tensor([2] * items),
    }


def _parts(vision: Any, _: set[str], items: int, __: int) -> dict[str, Any]:
    """Images with two parts of each, and their sizes."""
    side = _side(vision)
    sizes = [[side, 2 * side], [2 * side, side]]
    return {
        "pixel_values": torch.randn(items, 3, 3, side, side),
        "image_sizes": torch.tensor([sizes[number % 2] for number in range(items)]),
    }


def _by_row(vision: Any, features: set[str], items: int, rows: int) -> dict[str, Any]:
    """[rows, images, 3, height, width]."""
    side = _side(vision)
    processed: dict[str, Any] = {"pixel_values": torch.randn(rows, items // rows, 3, side, side)}
    if "pixel_attention_mask" in features:
        processed["pixel_attention_mask"] = torch.ones(rows, items // rows, side, side, dtype=torch.bool)
    return processed


def _side(vision: Any) -> int:
    """Height and width of an image."""
    size = find(vision, "image_size", "img_size", "resolution", default=None)
    return min(first(size), 256) if size else 4 * _patch(vision)


def _patch(vision: Any) -> int:
    return first(find(vision, "patch_size", default=14))


def images(vision: Any, count: int) -> torch.Tensor:
    """[count, 3, height, width]."""
    side = _side(vision)
    return torch.randn(count, first(find(vision, "num_channels", "in_channels", default=3)), side, side)


def frames(vision: Any, count: int) -> torch.Tensor:
    """[count, frames, 3, height, width]."""
    side = _side(vision)
    return torch.randn(count, find(vision, "num_frames", default=4), 3, side, side)


def grid_patches(
    vision: Any, modality: str, items: int, parameters: set[str], *, flat: bool
) -> dict[str, Any]:
    """The patches of all images in one list, with the grid of each [frames, height, width]."""
    grids = IMAGE_GRIDS if modality == "image" else VIDEO_GRIDS
    merge = find(vision, "spatial_merge_size", "merge_size", "spatial_merge", "merge_kernel_size", default=2)
    scale = torch.tensor([1, first(merge), first(merge)])
    grid = torch.tensor([grids[number % len(grids)] for number in range(items)]) * scale
    patch, count = _patch(vision), int(grid.prod(-1).sum())
    channels = first(find(vision, "in_channels", "in_chans", "num_channels", default=3))
    depth = first(find(vision, "temporal_patch_size", "patch_temporal", default=1))
    shape = (channels * depth * patch * patch,) if flat else (channels, patch, patch)
    pixels = "pixel_values" if modality == "image" else "pixel_values_videos"
    processed: dict[str, Any] = {pixels: torch.randn(count, *shape), f"{modality}_grid_thw": grid}
    if modality == "video" and "second_per_grid_ts" in parameters:
        processed["second_per_grid_ts"] = torch.tensor([0.5] * items)
    if modality == "video" and "video_second_per_grid" in parameters:
        processed["video_second_per_grid"] = torch.tensor([1.0] * items)
    if f"{modality}_merge_sizes" in parameters:
        processed[f"{modality}_merge_sizes"] = torch.tensor([first(merge)] * items)
    if modality == "video" and "video_compression_mask" in parameters:
        processed["video_compression_mask"] = torch.ones(count // first(merge) ** 2, dtype=torch.bool)
    return processed


def positioned_patches(vision: Any, modality: str, items: int) -> dict[str, Any]:
    """Patches of each image with their columns and rows, padded by -1 to the largest image (Gemma 4)."""
    pool, patch = first(find(vision, "pooling_kernel_size", default=3)), _patch(vision)
    grids = [(2 * pool, 2 * pool), (pool, 2 * pool), (2 * pool, pool), (2 * pool, 2 * pool)]
    most = 4 * pool * pool
    frame_shape = () if modality == "image" else (2,)
    pixels = torch.rand(items, *frame_shape, most, 3 * patch * patch)
    positions = torch.full((items, *frame_shape, most, 2), -1)
    for number in range(items):
        height, width = grids[number % len(grids)]
        cells = torch.cartesian_prod(torch.arange(height), torch.arange(width)).flip(-1)
        positions[number, ..., : len(cells), :] = cells
    if modality == "image":
        return {"pixel_values": pixels, "image_position_ids": positions}
    return {
        "pixel_values_videos": pixels.flatten(0, 1),
        "video_position_ids": positions.flatten(0, 1),
        "num_frames_per_video": torch.tensor([2] * items),
    }


def sized_patches(vision: Any, modality: str, items: int) -> dict[str, Any]:
    """The patches of all images side by side [1, 3, patch, patches * patch], and the size of each (MiniCPM)."""
    patch = _patch(vision)
    sizes = torch.tensor([((4, 4), (4, 8), (8, 4), (4, 4))[number % 4] for number in range(items)])
    pixels = torch.randn(1, 3, patch, int(sizes.prod(-1).sum()) * patch)
    if modality == "video":
        return {"pixel_values_videos": pixels, "target_sizes_videos": sizes}
    return {"pixel_values": pixels, "target_sizes": sizes}


def masked_patches(vision: Any, items: int) -> dict[str, Any]:
    """Patches of each image, padded to the largest, with their mask and the shape of each (LFM2-VL)."""
    patch = _patch(vision)
    shapes = torch.tensor([((4, 4), (2, 4), (4, 2), (4, 4))[number % 4] for number in range(items)])
    mask = torch.arange(16) < shapes.prod(-1)[:, None]
    pixels = torch.randn(items, 16, 3 * patch * patch)
    return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": mask.long()}


def _audio_candidates(model: Any, features: set[str], parameters: set[str]) -> Iterator[Maker]:
    audio = getattr(model.config, "audio_config", None) or getattr(
        model.config, "encoder_config", model.config
    )
    if "input_features" not in features and "input_features" not in parameters:
        return
    bins = first(
        find(audio, "num_mel_bins", "input_feat_size", "input_dim", "feature_size", "num_mels", default=80)
    )
    positions = find(audio, "max_source_positions", default=0)
    known = ("feature_attention_mask", "input_features_mask", "padding_mask")
    masks = [name for name in known if name in parameters or name in features]
    lengths = [2 * positions] if positions else []
    for length, is_last, has_masks in itertools.product((*lengths, 96, 200), (True, False), (True, False)):
        shape = (bins, length) if is_last else (length, bins)
        names = masks if has_masks else []

        def make(
            items: int, _: int, shape: Any = shape, length: int = length, names: list[str] = names
        ) -> dict[str, Any]:
            mask = torch.ones(items, length, dtype=torch.long)
            mask[-1, -32:] = 0
            return {"input_features": torch.randn(items, *shape)} | dict.fromkeys(names, mask)

        yield make
