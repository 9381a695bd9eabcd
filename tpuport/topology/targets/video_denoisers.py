"""How the denoisers of video models are called, by class name: as their pipelines in
diffusers call them.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from tpuport.topology.targets.denoiser_calls import (
    Call,
    Family,
    Size,
    first_width,
    patch_sides,
    side_pair,
)
from tpuport.topology.targets.target import empty

_GLYPHS: Final = 256  # tokens of the second text encoder of HunyuanVideo-1.5
_SIGLIP: Final = 729  # tokens of an image of 27 x 27 patches
_CLIP: Final = 257  # tokens of an image of 16 x 16 patches, and the class
_FRAME_RATE: Final = 25  # of LTX
_FPS: Final = 30  # of Cosmos


def _latents(call: Call) -> Any:
    return call.floats(call.config["in_channels"], call.frames, call.height, call.width)


def _wan(call: Call) -> dict[str, Any]:
    config = call.config
    inputs = {
        "hidden_states": _latents(call),
        "timestep": call.integers(),
        "encoder_hidden_states": call.floats(call.text, config["text_dim"]),
        "return_dict": False,
    }
    if config["image_dim"]:
        rows = call.batch
        # A model that continues a first and a last frame has both images' tokens, in
        # rows of their own.
        if config["pos_embed_seq_len"]:
            rows *= 2
        inputs["encoder_hidden_states_image"] = empty(
            rows, _CLIP, config["image_dim"], dtype=call.dtype
        )
    return inputs


def _wan_compression(config: Mapping[str, Any]) -> int:
    """16 for Wan 2.2 of 5 billion parameters, whose autoencoder has more channels for
    it; 8 for all others.
    """
    return 16 if config["in_channels"] == 48 else 8


def _hunyuan(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": _latents(call),
        "timestep": call.floats(),
        "encoder_hidden_states": call.floats(call.text, config["text_embed_dim"]),
        "encoder_attention_mask": call.integers(call.text),
        "pooled_projections": call.floats(config["pooled_projection_dim"]),
        "guidance": call.guidance(call.dtype),
        "return_dict": False,
    }


def _hunyuan15(call: Call) -> dict[str, Any]:
    config = call.config
    inputs = {
        "hidden_states": _latents(call),
        "timestep": call.floats(),
        "encoder_hidden_states": call.floats(call.text, config["text_embed_dim"]),
        "encoder_attention_mask": call.integers(call.text),
        "encoder_hidden_states_2": call.floats(_GLYPHS, config["text_embed_2_dim"]),
        "encoder_attention_mask_2": call.integers(_GLYPHS),
        # Without an image these are zeros that no token attends to; None says so before
        # the trace.
        "image_embeds": None,
        "return_dict": False,
    }
    if config["task_type"] != "t2v":
        inputs["image_embeds"] = call.floats(_SIGLIP, config["image_embed_dim"])
    if config["use_meanflow"]:
        inputs["timestep_r"] = call.floats()
    return inputs


def _hunyuan15_size(config: Mapping[str, Any], _: int) -> Size:
    """There are two models: for an area of 640 by 640 pixels, and of 960 by 960, both
    at 16:9.
    """
    return (720, 1280) if config["target_size"] >= 960 else (480, 832)


def _cogvideox(call: Call) -> dict[str, Any]:
    """Frames come before channels, and are rounded up to whole patches."""
    config = call.config
    depth = config["patch_size_t"] or 1
    frames = math.ceil(call.frames / depth) * depth
    side = side_pair(config["patch_size"])
    tokens = (frames // depth) * (call.height // side[0]) * (call.width // side[1])
    inputs = {
        "hidden_states": call.floats(
            frames, config["in_channels"], call.height, call.width
        ),
        "encoder_hidden_states": call.floats(call.text, config["text_embed_dim"]),
        "timestep": call.integers(),
        "return_dict": False,
    }
    if config["use_rotary_positional_embeddings"]:
        table = empty(tokens, config["attention_head_dim"], dtype="float32")
        inputs["image_rotary_emb"] = table, table.clone()
    if config["ofs_embed_dim"]:
        inputs["ofs"] = empty(1, dtype=call.dtype)
    return inputs


def _cogvideox_size(config: Mapping[str, Any], spatial: int) -> Size:
    """As the config counts latents; CogVideoX-1.5, whose config allows 2400 pixels a
    side, makes 768 x 1360.
    """
    if config["patch_size_t"]:
        return 768, 1360
    return _sample_sides(config, spatial)


def _sample_sides(config: Mapping[str, Any], spatial: int) -> Size:
    return config["sample_height"] * spatial, config["sample_width"] * spatial


def _ltx(call: Call) -> dict[str, Any]:
    config, compression = call.config, call.compression
    tokens = call.frames * call.height * call.width
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["caption_channels"]),
        "timestep": call.timesteps(),
        "encoder_attention_mask": call.integers(call.text),
        "num_frames": call.frames,
        "height": call.height,
        "width": call.width,
        "rope_interpolation_scale": (
            compression.temporal / _FRAME_RATE, compression.spatial, compression.spatial,
        ),
        "return_dict": False,
    }  # fmt: skip


def _mochi(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": _latents(call),
        "encoder_hidden_states": call.floats(call.text, config["text_embed_dim"]),
        "timestep": call.floats(),
        "encoder_attention_mask": empty(call.batch, call.text, dtype="bool"),
        "return_dict": False,
    }


def _cosmos(call: Call) -> dict[str, Any]:
    """A model that continues an image or a video has 17 channels: one is the mask of
    the known frames.
    """
    config = call.config
    sides = (call.frames, call.height, call.width)
    text_width = config["text_embed_dim"]
    if config["use_crossattn_projection"]:
        text_width = config["crossattn_proj_in_channels"]
    inputs = {
        "hidden_states": _latents(call),
        "timestep": call.timesteps(),
        "encoder_hidden_states": call.floats(call.text, text_width),
        "fps": _FPS,
        "return_dict": False,
    }
    if config["in_channels"] == 17:
        inputs |= {
            "hidden_states": call.floats(16, *sides),
            "condition_mask": call.floats(1, *sides),
        }
    if config["concat_padding_mask"]:
        inputs["padding_mask"] = empty(1, 1, *call.pixels, dtype=call.dtype)
    return inputs


def _allegro(call: Call) -> dict[str, Any]:
    """Rotary tables of cosines and sines for each axis, and each token's position on
    it: time, height, width.
    """
    config = call.config
    side = config["patch_size"]
    axes = (call.frames, call.height // side, call.width // side)
    width = config["attention_head_dim"] // 3
    tables = tuple((_table(size, width), _table(size, width)) for size in axes)
    positions = tuple(empty(1, math.prod(axes), dtype="int64") for _ in axes)
    return {
        "hidden_states": _latents(call),
        "encoder_hidden_states": call.floats(call.text, config["caption_channels"]),
        "encoder_attention_mask": call.integers(call.text),
        "timestep": call.integers(),
        "image_rotary_emb": (tables, positions),
        "return_dict": False,
    }


def _table(rows: int, columns: int) -> Any:
    return empty(rows, columns, dtype="float32")


def _svd(call: Call) -> dict[str, Any]:
    """Stable Video Diffusion: frames before channels, one token of an image, three
    numbers for time and motion.
    """
    config = call.config
    return {
        "sample": call.floats(
            call.frames, config["in_channels"], call.height, call.width
        ),
        "timestep": call.timesteps(),
        "encoder_hidden_states": call.floats(
            1, first_width(config["cross_attention_dim"])
        ),
        "added_time_ids": call.floats(3),
        "return_dict": False,
    }


VIDEOS: Final[dict[str, Family]] = {
    "WanTransformer3DModel": Family(
        _wan, spatial=_wan_compression, temporal=4, size=(480, 832), frames=81, multiple=patch_sides
    ),
    "HunyuanVideoTransformer3DModel": Family(
        _hunyuan, temporal=4, size=(720, 1280), text=256, frames=129, multiple=patch_sides
    ),
    "HunyuanVideo15Transformer3DModel": Family(
        _hunyuan15, spatial=16, temporal=4, size=_hunyuan15_size, text=1000, frames=121, multiple=patch_sides
    ),
    "CogVideoXTransformer3DModel": Family(
        _cogvideox, temporal=4, size=_cogvideox_size, text=lambda config: config["max_text_seq_length"],
        frames=lambda config: config["sample_frames"], multiple=patch_sides,
    ),
    "LTXVideoTransformer3DModel": Family(_ltx, spatial=32, temporal=8, size=(512, 704), text=128, frames=161),
    "MochiTransformer3DModel": Family(
        _mochi, temporal=6, size=(480, 848), text=256, frames=19, multiple=patch_sides
    ),
    "CosmosTransformer3DModel": Family(_cosmos, temporal=8, size=(704, 1280), frames=121, multiple=patch_sides),
    "AllegroTransformer3DModel": Family(
        _allegro, temporal=4, size=_sample_sides, frames=lambda config: config["sample_frames"] * 4,
        multiple=patch_sides, causal=False,
    ),
    "UNetSpatioTemporalConditionModel": Family(
        _svd, temporal=1, size=(576, 1024), text=0, frames=lambda config: config["num_frames"],
        multiple=lambda config: (2 ** (len(config["block_out_channels"]) - 1),) * 2, causal=False,
    ),
}  # fmt: skip
