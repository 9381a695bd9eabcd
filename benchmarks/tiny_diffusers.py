"""Tiny diffusers models: constructor defaults cut down by name, and inputs by name, with a table for the rest."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import torch

from benchmarks import (
    exported_models,
    tiny_diffusers_companions,
    tiny_diffusers_parts,
    tiny_diffusers_table,
    tiny_diffusers_transformers,
)
from benchmarks.tiny_diffusers_table import Small

TABLE = {
    **tiny_diffusers_table.TABLE,
    **tiny_diffusers_transformers.TABLE,
    **tiny_diffusers_parts.TABLE,
    **tiny_diffusers_companions.TABLE,
}

BATCH, TOKENS, TEXT, SIDE, FRAMES = 2, 16, 8, 16, 5

# (what a constructor argument's name contains, its largest value), the first match decides
SIZES = [
    (re.compile(r"num_(key_value|kv)|kv_heads"), 1),
    (re.compile(r"heads?$|n_heads|num_heads"), 2),
    (re.compile(r"head_dim$|dim_head"), 16),
    (re.compile(r"num_.*(layers|blocks)|n_layers|n_refiner|^depth|layers_per_block|num_res_blocks|^layers"), 2),
    (re.compile(r"experts_per|activated_experts"), 2),
    (re.compile(r"experts"), 4),
    (re.compile(r"ffn|ff_dim|intermediate|mlp_dim|hidden_features"), 64),
    (re.compile(r"norm_num_groups|num_groups"), 4),
    (re.compile(r"^in_channels|^out_channels|latent_channel|channels$|visual_dim"), 16),
    (re.compile(r"_dim\d?$|hidden_size|^dim$|embed_dim|_dims$|caption_channels|^ch$|base_channels"), 32),
    (re.compile(r"sample_(size|height|width)"), SIDE),
    (re.compile(r"pos_embed_max_size"), 64),
]  # fmt: skip
# Base classes, and a class that is only a part of `UNetControlNetXSModel` and has no forward of its own.
OTHERS = ("ModelMixin", "LegacyModelMixin", "ControlNetXSAdapter")
AXES = {2: (8, 8), 3: (4, 6, 6), 4: (4, 4, 4, 4)}  # rotary axes that add up to a head of 16
TEXT_WIDTHS = (
    "joint_attention_dim text_embed_dim text_dim caption_channels cap_feat_dim in_text_dim text_in_dim "
    "text_hidden_dim cross_attention_input_dim cross_attention_dim llm_features_dim encoder_hid_dim"
).split()


def candidates() -> dict[str, type[Any]]:
    """Every model class of the library, by name."""
    found: dict[str, type[Any]] = {}
    parts = ("transformers", "unets", "autoencoders", "controlnets", "condition_embedders", "latent_upscaler")
    for part in (*parts, "adapter"):
        module = importlib.import_module(f"diffusers.models.{part}")
        classes = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
        found |= {name: value for name, value in classes.items() if issubclass(value, diffusers.ModelMixin)}
    return {name: value for name, value in found.items() if name not in OTHERS} | {
        "VQModel": diffusers.VQModel
    }


def names() -> list[str]:
    """Class names: those of the table first, which matter most."""
    found = {*candidates(), *exported_models.names("diffusers")}
    return [*TABLE, *sorted(found.difference(TABLE))]


def shrink(model_class: type[Any]) -> dict[str, Any]:
    """Small constructor arguments, for those whose default is large."""
    small = {}
    for name, parameter in inspect.signature(model_class.__init__).parameters.items():
        value = parameter.default
        if isinstance(value, bool) or value in (None, inspect.Parameter.empty):
            continue
        if isinstance(value, int):
            small[name] = next((min(value, most) for pattern, most in SIZES if pattern.search(name)), value)
        elif isinstance(value, tuple | list) and value and all(type(item) is int for item in value):
            small[name] = shrink_several(name, list(value))
    return small


def shrink_several(name: str, values: list[int]) -> list[int]:
    """Small values for an argument that takes several whole numbers."""
    if re.search(r"axes|rope_.*dim", name) and "lens" not in name and sum(values) > 16:
        return list(AXES.get(len(values), values))
    if re.search("out_channels|channels$", name):
        return [16] * len(values)
    if re.search("layers|blocks", name):
        return [1] * len(values)
    return values


def construct(name: str, **options: Any) -> torch.nn.Module:
    """The model, in evaluation mode.

    Args:
        name: of the class.
        options: constructor arguments, over the small ones.
    """
    entry = TABLE.get(name, Small())
    config = entry.config
    model_class = candidates().get(name) or getattr(diffusers, name)
    arguments = {} if config.get("only") else shrink(model_class)
    arguments |= {
        key: value() if callable(value) else value for key, value in config.items() if key != "only"
    }
    model = model_class(**(arguments | options)).eval()
    entry.prepare(model)
    return model


def build(name: str, **options: Any) -> tuple[torch.nn.Module, list[dict[str, Any]]]:
    """The model, and one call for each arrangement of the sample (tokens, image, video, sound) that it takes.

    Args:
        name: of the class.
        options: constructor arguments, over the small ones.

    Raises:
        RuntimeError: If the class does not take the sizes or the inputs that are known here; says why.
    """
    entry = TABLE.get(name, Small())
    model = construct(name, **options)
    inputs = entry.inputs() if callable(entry.inputs) else entry.inputs
    calls, reasons = [], []
    for layout in (entry.layout,) if entry.layout else ("image", "video", "tokens", "sound"):
        torch.manual_seed(0)
        call: dict[str, Any] = {}
        try:
            call = dict(Inputs(model, layout, inputs).make())
            with torch.no_grad():
                model(**call)
        except Exception as error:  # noqa: BLE001 - whatever the class raises is the reason to report
            shapes = {key: tuple(getattr(value, "shape", ())) for key, value in call.items()}
            reasons.append(
                f"{layout}: {type(error).__name__}: {' '.join(str(error).split())[-150:]} {shapes}"
            )
            continue
        calls.append(call)
        calls.extend({**call, **made(more, model)} for more in entry.more)
        break
    if not calls:
        raise RuntimeError(" | ".join(reasons))
    return model, calls


def made(inputs: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """The inputs, those that are given as functions of the configuration called."""
    config = getattr(model, "config", None)
    return {key: value(config) if callable(value) else value for key, value in inputs.items()}


class Inputs:
    """The arguments of a call, by the names in the signature of the model's `forward`."""

    def __init__(self, model: torch.nn.Module, layout: str, given: dict[str, Any]) -> None:
        self.config, self.layout = getattr(model, "config", {}), layout
        self.given = made(given, model)
        self.parameters = inspect.signature(model.forward).parameters

    def make(self) -> Iterator[tuple[str, Any]]:
        """Yield the arguments that are known here, or given."""
        for name, parameter in self.parameters.items():
            maker: Callable[[], Any] | None = getattr(self, name, None)
            if name in self.given:
                if self.given[name] is not None:
                    yield name, self.given[name]
            elif maker is not None:
                if (value := maker()) is not None:
                    yield name, value
            elif (
                parameter.default is inspect.Parameter.empty
                and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            ):
                yield name, None

    def get(self, *wanted: str, default: Any = None) -> Any:
        """The first of the configuration's fields that is set."""
        return next((value for name in wanted if (value := self.config.get(name)) is not None), default)

    def channels(self) -> int:
        return self.get("in_channels", "in_visual_dim", "latent_channel", default=3)

    def hidden_states(self) -> torch.Tensor:
        shape = {
            "image": (SIDE, SIDE),
            "video": (FRAMES, SIDE, SIDE),
            "sound": (TOKENS,),
        }.get(self.layout)
        if shape is None:
            return torch.randn(BATCH, TOKENS, self.channels())
        return torch.randn(BATCH, self.channels(), *shape)

    sample = x = hidden_states

    def encoder_hidden_states(self) -> torch.Tensor:
        return torch.randn(BATCH, TEXT, self.get(*TEXT_WIDTHS, default=32))

    def timestep(self) -> torch.Tensor:
        return torch.tensor([500.0, 500.0])

    timesteps = timestep

    def text_mask(self) -> torch.Tensor:
        """A text mask with a padded row."""
        mask = torch.ones(BATCH, TEXT, dtype=torch.long)
        mask[1, -3:] = 0
        return mask

    encoder_attention_mask = encoder_hidden_states_mask = text_mask

    def pooled_projections(self) -> torch.Tensor:
        return torch.randn(BATCH, self.get("pooled_projection_dim", "in_text_dim2", default=32))

    def guidance(self) -> Any:
        return torch.tensor([4.0, 4.0]) if self.get("guidance_embeds") else None

    def ids(self, length: int) -> torch.Tensor:
        """Positions of `length` tokens, on as many axes as the rotary embedding has."""
        return torch.zeros(length, len(self.get("axes_dims_rope", default=(0, 0, 0))))

    def img_ids(self) -> torch.Tensor:
        return self.ids(TOKENS)

    def txt_ids(self) -> torch.Tensor:
        return self.ids(TEXT)

    def num_frames(self) -> int:
        return 1

    def height(self) -> int:
        return 4

    width = height

    def img_shapes(self) -> Any:
        return [[(1, 4, 4)]] * BATCH

    def original_size(self) -> torch.Tensor:
        return torch.tensor([[SIDE, SIDE]] * BATCH)

    target_size = original_size

    def crop_coords(self) -> torch.Tensor:
        return torch.zeros(BATCH, 2)

    def added_cond_kwargs(self) -> Any:
        return {"resolution": None, "aspect_ratio": None} if "caption_channels" in self.config else None

    def controlnet_cond(self) -> torch.Tensor:
        return torch.randn(BATCH, 3, SIDE * 8, SIDE * 8)
