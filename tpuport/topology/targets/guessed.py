"""Inputs of denoisers that no family is known for, by the names of their arguments; or a clear refusal."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.targets.latents import Call, Family, patches
from tpuport.topology.targets.target import empty

_TEXT_WIDTHS: Final = (
    "joint_attention_dim text_embed_dim text_dim caption_channels cap_feat_dim in_text_dim text_in_dim "
    "cross_attention_input_dim cross_attention_dim encoder_hid_dim"
).split()
# Positions, grids and lists that only the pipeline knows the meaning of.
_MADE: Final = frozenset(
    "hidden_states sample encoder_hidden_states timestep pooled_projections encoder_attention_mask guidance "
    "class_labels return_dict".split()
)


def family_of(model_class: Any, config: Mapping[str, Any]) -> Family:
    """A family for the class, whose inputs follow from names.

    Raises:
        PortError: there is an argument that cannot be made from its name.
    """
    parameters = inspect.signature(model_class.forward).parameters
    name = model_class.__name__
    needed = [key for key, value in parameters.items() if value.default is value.empty and key != "self"]
    for key in needed:
        if key not in _MADE and parameters[key].kind is not inspect.Parameter.VAR_KEYWORD:
            raise _refusal(name, key)
    video = "3D" in name or "Video" in name
    if not video and "2D" not in name and "Image" not in name:
        raise _refusal(name, needed[0] if needed else "hidden_states")
    if strange := [key for key in ("img_ids", "img_shapes", "image_rotary_emb") if key in parameters]:
        raise _refusal(name, strange[0])
    maker = _maker(name, set(parameters), set(needed), video)
    text = 256 if "encoder_hidden_states" in parameters else 0
    if video:
        return Family(maker, temporal=4, size=(480, 832), frames=81, text=text, multiple=patches)
    return Family(maker, text=text, multiple=patches)


def _maker(name: str, known: set[str], needed: set[str], video: bool) -> Callable[[Call], dict[str, Any]]:
    def inputs(call: Call) -> dict[str, Any]:
        config = call.config
        shape = (call.frames, call.height, call.width) if video else (call.height, call.width)
        text = _width(config, _TEXT_WIDTHS)
        pooled = _width(config, ["pooled_projection_dim"])
        makers: dict[str, Callable[[], Any]] = {
            "hidden_states": lambda: call.floats(_need(name, config, "in_channels"), *shape),
            "sample": lambda: call.floats(_need(name, config, "in_channels"), *shape),
            "timestep": call.times,
            "return_dict": lambda: False,
        }
        if text is not None:
            makers["encoder_hidden_states"] = lambda: call.floats(call.text, text)
            makers["encoder_attention_mask"] = lambda: call.whole(call.text)
        if pooled is not None:
            makers["pooled_projections"] = lambda: call.floats(pooled)
        if config.get("guidance_embeds"):
            makers["guidance"] = call.times
        if config.get("num_class_embeds"):
            makers["class_labels"] = lambda: empty(call.batch, dtype="int64")
        for key in needed - {"self"}:
            if key not in makers:
                raise _refusal(name, key)
        return {key: make() for key, make in makers.items() if key in known}

    return inputs


def _width(config: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((config[key] for key in names if isinstance(config.get(key), int)), None)


def _need(name: str, config: Mapping[str, Any], field: str) -> int:
    if not isinstance(config.get(field), int):
        raise _refusal(name, "hidden_states")
    return config[field]


def _refusal(name: str, argument: str) -> PortError:
    return PortError(
        f"no value can be made here for the argument {argument!r} of {name}",
        where=argument, fix="--inputs module:function, which returns the arguments of forward by name",
    )  # fmt: skip
