"""How the denoisers of image models are called, by class name: as their pipelines in
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
    sample_size,
)
from tpuport.topology.targets.target import empty

_POOLED: Final = 1280  # of the larger CLIP of SDXL


def _packed(call: Call) -> int:
    """Tokens of latents that the pipeline packs two by two."""
    return (call.height // 2) * (call.width // 2)


def _flux(call: Call) -> dict[str, Any]:
    config = call.config
    tokens = _packed(call)
    axes = len(config["axes_dims_rope"])
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "pooled_projections": call.floats(config["pooled_projection_dim"]),
        "timestep": call.floats(),
        "img_ids": empty(tokens, axes, dtype=call.dtype),
        "txt_ids": empty(call.text, axes, dtype=call.dtype),
        "guidance": call.guidance(),
        "return_dict": False,
    }


def _chroma(call: Call) -> dict[str, Any]:
    config = call.config
    tokens = _packed(call)
    axes = len(config["axes_dims_rope"])
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "timestep": call.floats(),
        "img_ids": empty(tokens, axes, dtype=call.dtype),
        "txt_ids": empty(call.text, axes, dtype=call.dtype),
        "attention_mask": call.floats(call.text + tokens),
        "return_dict": False,
    }


def _flux2(call: Call) -> dict[str, Any]:
    config = call.config
    tokens = _packed(call)
    axes = len(config["axes_dims_rope"])
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "timestep": call.floats(),
        "img_ids": call.integers(tokens, axes),
        "txt_ids": call.integers(call.text, axes),
        "guidance": call.guidance(),
        "return_dict": False,
    }


def _qwen(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(_packed(call), config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        # The pipeline drops a mask of ones; with a prompt that fills all tokens there
        # is none.
        "encoder_hidden_states_mask": None,
        "timestep": call.floats(),
        # (frames, height, width) of each image of a row, in packed latents.
        "img_shapes": [[(1, call.height // 2, call.width // 2)]] * call.batch,
        "guidance": call.guidance(),
        "return_dict": False,
    }


def _sd3(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "pooled_projections": call.floats(config["pooled_projection_dim"]),
        "timestep": call.timesteps(),
        "return_dict": False,
    }


def _pixart(call: Call) -> dict[str, Any]:
    config = call.config
    width = config["caption_channels"] or config["cross_attention_dim"]
    conditions = {"resolution": None, "aspect_ratio": None}
    if _has_pixart_conditions(config):
        conditions = {"resolution": call.floats(2), "aspect_ratio": call.floats(1)}
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, width),
        "encoder_attention_mask": call.integers(call.text),
        "timestep": call.integers(),
        "added_cond_kwargs": conditions,
        "return_dict": False,
    }


def _has_pixart_conditions(config: Mapping[str, Any]) -> bool:
    """Whether the model is told the resolution, as its constructor decides it."""
    setting = config.get("use_additional_conditions")
    # Only the model for 1024 pixels, 128 latents, was trained with them.
    if setting is None:
        return config.get("sample_size") == 128
    return bool(setting)


def _pixart_text(config: Mapping[str, Any]) -> int:
    """120 tokens for PixArt-alpha at 1024 pixels, which is told the resolution, and 300
    for sigma.
    """
    return 120 if _has_pixart_conditions(config) else 300


def _sana(call: Call) -> dict[str, Any]:
    config = call.config
    inputs = {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["caption_channels"]),
        "encoder_attention_mask": call.integers(call.text),
        "timestep": call.timesteps(),
        "return_dict": False,
    }
    if config["guidance_embeds"]:
        inputs["guidance"] = call.floats()
    return inputs


def _aura(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "timestep": call.floats(),
        "return_dict": False,
    }


def _lumina2(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "timestep": call.timesteps(),
        "encoder_hidden_states": call.floats(call.text, config["cap_feat_dim"]),
        "encoder_attention_mask": call.integers(call.text),
        "return_dict": False,
    }


def _cogview4(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["text_embed_dim"]),
        "timestep": call.timesteps(),
        "original_size": call.floats(2),
        "target_size": call.floats(2),
        "crop_coords": call.floats(2),
        "return_dict": False,
    }


def _z_image(call: Call) -> dict[str, Any]:
    """A list with a tensor for each row: [C, 1, h, w] of latents, [N, E] of text."""
    config = call.config
    latents = empty(config["in_channels"], 1, call.height, call.width, dtype=call.dtype)
    text = empty(call.text, config["cap_feat_dim"], dtype=call.dtype)
    return {
        "x": [latents] * call.batch,
        "t": call.timesteps(),
        "cap_feats": [text] * call.batch,
        "return_dict": False,
    }


def _dit(call: Call) -> dict[str, Any]:
    return {
        "hidden_states": call.floats(
            call.config["in_channels"], call.height, call.width
        ),
        "timestep": call.integers(),
        "class_labels": call.integers(),
        "return_dict": False,
    }


def _unet(call: Call) -> dict[str, Any]:
    inputs = {
        "sample": call.floats(call.config["in_channels"], call.height, call.width),
        "timestep": call.timesteps(),
        "return_dict": False,
    }
    if call.config["num_class_embeds"]:
        inputs["class_labels"] = call.integers()
    return inputs


def _unet_condition(call: Call) -> dict[str, Any]:
    """Stable Diffusion 1 and 2, and XL, which also takes pooled text and numbers about
    sizes.
    """
    config = call.config
    width = first_width(config["encoder_hid_dim"] or config["cross_attention_dim"])
    inputs = {
        "sample": call.floats(config["in_channels"], call.height, call.width),
        "timestep": call.timesteps(),
        "encoder_hidden_states": call.floats(call.text, width),
        "return_dict": False,
    }
    if config["addition_embed_type"] == "text_time":
        sizes = _time_ids(config)
        pooled = (
            config["projection_class_embeddings_input_dim"]
            - sizes * config["addition_time_embed_dim"]
        )
        inputs["added_cond_kwargs"] = {
            "text_embeds": call.floats(pooled),
            "time_ids": call.floats(sizes),
        }
    if config["time_cond_proj_dim"]:
        inputs["timestep_cond"] = call.floats(config["time_cond_proj_dim"])
    if config["num_class_embeds"]:
        inputs["class_labels"] = call.integers()
    return inputs


def _time_ids(config: Mapping[str, Any]) -> int:
    """How many numbers SDXL takes beside the text: the base three pairs of sizes, the
    refiner two and a score.
    """
    width = config["projection_class_embeddings_input_dim"] - _POOLED
    return 5 if width == 5 * config["addition_time_embed_dim"] else 6


def _table_size(config: Mapping[str, Any]) -> int:
    return config["pos_embed_max_size"]


def _pair_packing(_: Mapping[str, Any]) -> Size:
    return 2, 2


def _unet_multiple(config: Mapping[str, Any]) -> Size:
    """A U-Net halves its sides once less than it has levels."""
    factor = 2 ** (len(config["block_out_channels"]) - 1)
    return factor, factor


IMAGES: Final[dict[str, Family]] = {
    "FluxTransformer2DModel": Family(_flux, multiple=_pair_packing),
    "ChromaTransformer2DModel": Family(_chroma, multiple=_pair_packing),
    "Flux2Transformer2DModel": Family(_flux2, multiple=_pair_packing),
    "QwenImageTransformer2DModel": Family(_qwen, multiple=_pair_packing),
    # 77 tokens of the two CLIPs, and 256 of T5 after them.
    "SD3Transformer2DModel": Family(
        _sd3,
        size=sample_size,
        text=77 + 256,
        multiple=patch_sides,
        max_patches=_table_size,
    ),
    "PixArtTransformer2DModel": Family(
        _pixart, size=sample_size, text=_pixart_text, multiple=patch_sides
    ),
    "SanaTransformer2DModel": Family(
        _sana, spatial=32, size=sample_size, text=300, multiple=patch_sides
    ),
    "AuraFlowTransformer2DModel": Family(
        _aura,
        text=256,
        multiple=patch_sides,
        max_patches=lambda config: math.isqrt(_table_size(config)),
    ),
    "Lumina2Transformer2DModel": Family(
        _lumina2, size=sample_size, text=256, multiple=patch_sides
    ),
    "CogView4Transformer2DModel": Family(
        _cogview4, size=sample_size, text=1024, multiple=patch_sides
    ),
    "ZImageTransformer2DModel": Family(_z_image, multiple=_pair_packing),
    "DiTTransformer2DModel": Family(
        _dit, size=sample_size, text=0, multiple=patch_sides, fixed=True
    ),
    "UNet2DModel": Family(
        _unet, spatial=1, size=sample_size, text=0, multiple=_unet_multiple
    ),
    "UNet2DConditionModel": Family(
        _unet_condition, size=sample_size, text=77, multiple=_unet_multiple
    ),
}
