"""How the denoisers of image models are called: by name of the class, as their pipelines in diffusers do it."""

import math
from collections.abc import Mapping
from typing import Any, Final

from tpuport.topology.targets.latents import Call, Family, Size, patches, sample_size
from tpuport.topology.targets.target import empty

_POOLED: Final = 1280  # of the larger CLIP of SDXL


def _packed(call: Call) -> int:
    """Tokens of latents that the pipeline packs two by two."""
    return (call.height // 2) * (call.width // 2)


def _ids(tokens: int, axes: int, dtype: str) -> Any:
    return empty(tokens, axes, dtype=dtype)


def _flux(call: Call) -> dict[str, Any]:
    config, tokens, axes = call.config, _packed(call), len(call.config["axes_dims_rope"])
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "pooled_projections": call.floats(config["pooled_projection_dim"]),
        "timestep": call.floats(),
        "img_ids": _ids(tokens, axes, call.dtype),
        "txt_ids": _ids(call.text, axes, call.dtype),
        "guidance": call.times() if config["guidance_embeds"] else None,
        "return_dict": False,
    }


def _chroma(call: Call) -> dict[str, Any]:
    config, tokens, axes = call.config, _packed(call), len(call.config["axes_dims_rope"])
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "timestep": call.floats(),
        "img_ids": _ids(tokens, axes, call.dtype),
        "txt_ids": _ids(call.text, axes, call.dtype),
        "attention_mask": call.floats(call.text + tokens),
        "return_dict": False,
    }


def _flux2(call: Call) -> dict[str, Any]:
    config, tokens, axes = call.config, _packed(call), len(call.config["axes_dims_rope"])
    return {
        "hidden_states": call.floats(tokens, config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "timestep": call.floats(),
        "img_ids": call.whole(tokens, axes),
        "txt_ids": call.whole(call.text, axes),
        "guidance": call.times() if config["guidance_embeds"] else None,
        "return_dict": False,
    }


def _qwen(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(_packed(call), config["in_channels"]),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        # The pipeline drops a mask of ones; with a prompt that fills all tokens there is none.
        "encoder_hidden_states_mask": None,
        "timestep": call.floats(),
        "img_shapes": [[(1, call.height // 2, call.width // 2)]] * call.batch,
        "guidance": call.times() if config["guidance_embeds"] else None,
        "return_dict": False,
    }


def _sd3(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["joint_attention_dim"]),
        "pooled_projections": call.floats(config["pooled_projection_dim"]),
        "timestep": call.times(),
        "return_dict": False,
    }


def _pixart(call: Call) -> dict[str, Any]:
    config, given = call.config, _pixart_conditions(call.config)
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(
            call.text, config["caption_channels"] or config["cross_attention_dim"]
        ),
        "encoder_attention_mask": call.whole(call.text),
        "timestep": call.whole(),
        "added_cond_kwargs": {
            "resolution": call.floats(2) if given else None,
            "aspect_ratio": call.floats(1) if given else None,
        },
        "return_dict": False,
    }


def _pixart_conditions(config: Mapping[str, Any]) -> bool:
    """Whether the model is told the resolution; as its constructor decides it."""
    given = config.get("use_additional_conditions")
    return config.get("sample_size") == 128 if given is None else bool(given)


def _pixart_text(config: Mapping[str, Any]) -> int:
    """120 tokens for PixArt-alpha at 1024 pixels, which is told the resolution, and 300 for sigma."""
    return 120 if _pixart_conditions(config) else 300


def _sana(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["caption_channels"]),
        "encoder_attention_mask": call.whole(call.text),
        "timestep": call.times(),
        **({"guidance": call.floats()} if config["guidance_embeds"] else {}),
        "return_dict": False,
    }


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
        "timestep": call.times(),
        "encoder_hidden_states": call.floats(call.text, config["cap_feat_dim"]),
        "encoder_attention_mask": call.whole(call.text),
        "return_dict": False,
    }


def _cogview4(call: Call) -> dict[str, Any]:
    config = call.config
    return {
        "hidden_states": call.floats(config["in_channels"], call.height, call.width),
        "encoder_hidden_states": call.floats(call.text, config["text_embed_dim"]),
        "timestep": call.times(),
        "original_size": call.floats(2),
        "target_size": call.floats(2),
        "crop_coords": call.floats(2),
        "return_dict": False,
    }


def _z_image(call: Call) -> dict[str, Any]:
    """A list with a tensor for each sample: [C, 1, h, w] of latents, [N, E] of text."""
    config = call.config
    latents = (config["in_channels"], 1, call.height, call.width)
    return {
        "x": [empty(*latents, dtype=call.dtype) for _ in range(call.batch)],
        "t": call.times(),
        "cap_feats": [empty(call.text, config["cap_feat_dim"], dtype=call.dtype) for _ in range(call.batch)],
        "return_dict": False,
    }


def _dit(call: Call) -> dict[str, Any]:
    return {
        "hidden_states": call.floats(call.config["in_channels"], call.height, call.width),
        "timestep": call.whole(),
        "class_labels": call.whole(),
        "return_dict": False,
    }


def _unet(call: Call) -> dict[str, Any]:
    return {
        "sample": call.floats(call.config["in_channels"], call.height, call.width),
        "timestep": call.times(),
        **({"class_labels": call.whole()} if call.config["num_class_embeds"] else {}),
        "return_dict": False,
    }


def _unet_condition(call: Call) -> dict[str, Any]:
    """Stable Diffusion 1 and 2, and XL: text, and for XL pooled text and six sizes beside it."""
    config = call.config
    width = config["encoder_hid_dim"] or config["cross_attention_dim"]
    width = width if isinstance(width, int) else width[0]
    made = {
        "sample": call.floats(config["in_channels"], call.height, call.width),
        "timestep": call.times(),
        "encoder_hidden_states": call.floats(call.text, width),
        "return_dict": False,
    }
    if config["addition_embed_type"] == "text_time":
        sizes = _time_ids(config)
        pooled = config["projection_class_embeddings_input_dim"] - sizes * config["addition_time_embed_dim"]
        made["added_cond_kwargs"] = {"text_embeds": call.floats(pooled), "time_ids": call.floats(sizes)}
    if config["time_cond_proj_dim"]:
        made["timestep_cond"] = call.floats(config["time_cond_proj_dim"])
    if config["num_class_embeds"]:
        made["class_labels"] = call.whole()
    return made


def _time_ids(config: Mapping[str, Any]) -> int:
    """Numbers beside SDXL's pooled text, 1280 wide: the base has three sizes, the refiner two and a score."""
    rest = config["projection_class_embeddings_input_dim"] - _POOLED
    return 5 if rest == 5 * config["addition_time_embed_dim"] else 6


def _table(config: Mapping[str, Any]) -> int:
    return config["pos_embed_max_size"]


def _two(_: Mapping[str, Any]) -> Size:
    return 2, 2


def _halvings(config: Mapping[str, Any]) -> Size:
    """A U-Net halves its sides once less than it has levels."""
    part = 2 ** (len(config["block_out_channels"]) - 1)
    return part, part


IMAGES: Final[dict[str, Family]] = {
    "FluxTransformer2DModel": Family(_flux, multiple=_two),
    "ChromaTransformer2DModel": Family(_chroma, multiple=_two),
    "Flux2Transformer2DModel": Family(_flux2, multiple=_two),
    "QwenImageTransformer2DModel": Family(_qwen, multiple=_two),
    # 77 tokens of the two CLIPs, and 256 of T5 after them.
    "SD3Transformer2DModel": Family(_sd3, size=sample_size, text=77 + 256, multiple=patches, most=_table),
    "PixArtTransformer2DModel": Family(_pixart, size=sample_size, text=_pixart_text, multiple=patches),
    "SanaTransformer2DModel": Family(_sana, spatial=32, size=sample_size, text=300, multiple=patches),
    "AuraFlowTransformer2DModel": Family(
        _aura, text=256, multiple=patches, most=lambda config: math.isqrt(_table(config))
    ),
    "Lumina2Transformer2DModel": Family(_lumina2, size=sample_size, text=256, multiple=patches),
    "CogView4Transformer2DModel": Family(_cogview4, size=sample_size, text=1024, multiple=patches),
    "ZImageTransformer2DModel": Family(_z_image, multiple=_two),
    "DiTTransformer2DModel": Family(_dit, size=sample_size, text=0, multiple=patches, fixed=True),
    "UNet2DModel": Family(_unet, spatial=1, size=sample_size, text=0, multiple=_halvings),
    "UNet2DConditionModel": Family(_unet_condition, size=sample_size, text=77, multiple=_halvings),
}
