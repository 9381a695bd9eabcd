"""One model of diffusers: a denoiser, or the decoder of an autoencoder."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tpuport.checkpoint import building
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.topology.targets import code, fields, guessed, vaes
from tpuport.topology.targets.configs import Found, read_json
from tpuport.topology.targets.images import IMAGES
from tpuport.topology.targets.latents import Call, Compression, Family, Size, call_of
from tpuport.topology.targets.target import Options, Target
from tpuport.topology.targets.text import chosen_dtype
from tpuport.topology.targets.videos import VIDEOS


def component_target(found: Found, options: Options, like: tuple[Size, int] | None = None) -> Target:
    """The program of a diffusers config: a step of a denoiser, or the decoding of latents.

    Args:
        like: of a pipeline's autoencoder, the size and the frames that the denoiser makes.

    Raises:
        PortError: a class that diffusers does not have, options that do not apply, or sizes that do not fit.
    """
    model_class, config = class_of(found), settings(found)
    name = model_class.__name__
    if options.task not in (None, "forward"):
        raise PortError(f"{name} has no {options.task}", where="task", fix="--task forward, or none")
    dtype, notes = chosen_dtype(found.raw, options.dtype)
    vae = vaes.is_vae(model_class)
    build = _builder(model_class, found, dtype, vae)
    if options.inputs is not None:
        options.check_apply((), name)
        made = code.made_inputs(options.inputs, _as_attributes(config), options.task)
        notes = (*notes, f"inputs are those of {options.inputs}")
        return Target(found.name, build, made, None, dtype, "vae" if vae else "denoiser", notes)
    if vae:
        options.check_apply(vaes.applicable(name), name)
        made, unit, said = vaes.inputs_of(name, config, options, dtype, like)
        return Target(found.name, build, made, unit, dtype, "vae", (*notes, *said))
    family, call, note = _denoising(found, model_class, config, options, dtype)
    guess = (
        () if name in IMAGES or name in VIDEOS else (f"the inputs of {name} are guessed from their names",)
    )
    return Target(
        found.name, build, family.inputs(call), ("steps", 1.0), dtype, "denoiser", (*notes, note, *guess)
    )


def makes(found: Found, options: Options) -> tuple[Size, int]:
    """Height and width in pixels, and frames, that a denoiser makes with these options."""
    model_class, config = class_of(found), settings(found)
    family, call, _ = _denoising(found, model_class, config, options, "bfloat16")
    frames = options.frames or (family.frames(config) if callable(family.frames) else family.frames)
    return call.pixels, frames if family.temporal else 1


def applicable(found: Found) -> tuple[str, ...]:
    """The options that say something of this component's inputs."""
    model_class = class_of(found)
    if vaes.is_vae(model_class):
        return vaes.applicable(model_class.__name__)
    return family_of(model_class, settings(found)).applicable()


def family_of(model_class: Any, config: Mapping[str, Any]) -> Family:
    """How models of the class are called."""
    known = IMAGES | VIDEOS
    return known.get(model_class.__name__) or guessed.family_of(model_class, config)


def _denoising(
    found: Found, model_class: Any, config: Mapping[str, Any], options: Options, dtype: str
) -> tuple[Family, Call, str]:
    family = family_of(model_class, config)
    options.check_apply(family.applicable(), model_class.__name__)
    call, note = call_of(family, config, options, dtype, _beside(found, family))
    return family, call, note


def class_of(found: Found) -> Any:
    """The class of diffusers that the config names.

    Raises:
        PortError: diffusers is not installed, or has no such model.
    """
    try:
        import diffusers
    except ImportError as error:
        raise PortError(
            "diffusers is not installed", where=found.path, fix="pip install diffusers"
        ) from error
    name = found.raw.get("_class_name")
    named = getattr(diffusers, name, None) if isinstance(name, str) else None
    if not (isinstance(named, type) and issubclass(named, torch.nn.Module)):
        said = "has no model" if named is None else "says that this is no model:"
        raise PortError(
            f"diffusers {diffusers.__version__} {said} {name}", where=f"{found.path}, _class_name",
            fix="check the spelling, or install the diffusers that has it",
        )  # fmt: skip
    return named


def settings(found: Found) -> dict[str, Any]:
    """The config with the constructor's defaults for what it does not say."""
    signature = inspect.signature(class_of(found).__init__).parameters
    defaults = {name: one.default for name, one in signature.items() if one.default is not one.empty}
    return {**defaults, **{name: value for name, value in found.raw.items() if not name.startswith("_")}}


def _beside(found: Found, family: Family) -> Compression | None:
    """The compression of the autoencoder in the same pipeline's directory, where there is one."""
    if found.directory is None:
        return None
    path = found.directory.resolve().parent / "vae" / "config.json"
    if not path.is_file():
        return None
    vae = Found(read_json(path), "vae", str(path), path.parent)
    name = vae.raw.get("_class_name", "")
    beside = vaes.compression_of(name, settings(vae), "vae/config.json")
    # What makes images may have an autoencoder that could do videos.
    return beside if family.temporal else Compression(beside.spatial, 1, True, beside.source)


def _builder(model_class: Any, found: Found, dtype: str, vae: bool) -> Callable[[], torch.nn.Module]:
    kind = as_torch_dtype(dtype) or torch.bfloat16

    def build() -> torch.nn.Module:
        raw = {name: value for name, value in found.raw.items() if name != "quantization_config"}
        with fields.told(found, f"{model_class.__name__} cannot be built"):
            model = building.build_empty(model_class, raw, kind, False, Path(found.path))
        return vaes.decoding(model) if vae else model

    if found.raw.get("quantization_config"):
        raise PortError(
            "the checkpoint is quantised, which is not supported", where=f"{found.path}, quantization_config",
            fix="take that entry out of a copy of the config, to compile the model unquantised",
        )  # fmt: skip
    return build


def _as_attributes(config: Mapping[str, Any]) -> Any:
    """The config as diffusers' models have it: its fields are attributes too."""
    from diffusers.configuration_utils import FrozenDict

    return FrozenDict(config)
