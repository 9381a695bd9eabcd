"""Models of diffusers: a denoiser, the decoder of an autoencoder, or a pipeline
component by component.
"""

import dataclasses
import inspect
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from tpuport.base.mappings import without
from tpuport.checkpoint import building
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.libraries.config_values import name_wrong_fields, read_json
from tpuport.topology.targets import transformers_targets, user_code, vae_decoders
from tpuport.topology.targets.config_files import ConfigFile
from tpuport.topology.targets.denoiser_calls import (
    Compression,
    Config,
    Family,
    PlannedCall,
    Size,
    guess_family,
    plan_call,
)
from tpuport.topology.targets.image_denoisers import IMAGES
from tpuport.topology.targets.quantized_configs import (
    quantization_note,
    quantize_as_file,
)
from tpuport.topology.targets.target import Options, Target
from tpuport.topology.targets.transformers_targets import choose_dtype
from tpuport.topology.targets.video_denoisers import VIDEOS

_FAMILIES: Final = IMAGES | VIDEOS
# Components that run on the host, or only check the result.
_HOST: Final = (
    "scheduler", "tokenizer", "feature_extractor", "processor", "safety_checker", "image_processor",
)  # fmt: skip
_DENOISERS: Final = ("transformer", "unet")
# Tokens that the pipeline pads its prompts to, if its text encoder takes more.
_TEXT_LENGTHS: Final = {
    "FluxPipeline": 512, "StableDiffusion3Pipeline": 256, "WanPipeline": 512, "HunyuanVideoPipeline": 256,
    "CogVideoXPipeline": 226, "LTXPipeline": 128, "MochiPipeline": 256, "PixArtAlphaPipeline": 120,
    "PixArtSigmaPipeline": 300, "SanaPipeline": 300, "AuraFlowPipeline": 256, "Lumina2Pipeline": 256,
    "HunyuanVideo15Pipeline": 1000,
}  # fmt: skip


class _Component(NamedTuple):
    """What a pipeline's index says about a component."""

    library: str
    class_name: str


def pipeline_targets(index: ConfigFile, options: Options) -> tuple[Target, ...]:
    """The programs of the components that have weights: denoisers, text and image
    encoders, the decoder.

    Raises:
        PortError: there is no such component, one has no config, or an option applies
            to none.
    """
    components = _read_components(index.raw)
    compiled = {
        name: component
        for name, component in components.items()
        if _has_weights(name, component)
    }
    selected = _select(compiled, index, options)
    notes = []
    if skipped := [name for name in components if name not in compiled]:
        notes.append(f"not compiled: {', '.join(skipped)}")
    # A decoder alone does not say how large the pipeline's images are: the denoiser
    # does.
    denoised = None
    if any(starmap(_is_decoder, selected.items())):
        denoised = _denoised_size(index.directory, compiled, options)
    targets: list[Target] = []
    used_options: set[str] = set()
    for name, component in selected.items():
        try:
            config_file = _component_config(index.directory, name)
            applicable_options = _applicable_to(config_file, component, options)
            restricted = options
            # With inputs of the user's own, sizes that contradict them are reported and
            # not dropped.
            if options.inputs is None:
                restricted = options.restrict(applicable_options)
            target = _component_program(
                config_file, component, index, restricted, denoised
            )
        except PortError as error:
            fix = error.fix
            if fix is None and len(selected) > 1:
                fix = f"--component, one of {', '.join(other for other in compiled if other != name)}"
            raise PortError(
                f"{name}: {error.what}", where=error.where, fix=fix
            ) from error
        used_options.update(applicable_options)
        targets.append(
            dataclasses.replace(
                target, name=f"{index.name} {name}", notes=(*target.notes, *notes)
            )
        )
    _check_all_used(options, used_options, selected)
    return tuple(targets)


def _has_weights(name: str, component: _Component) -> bool:
    """Whether a component is a model that runs on the device."""
    return component.library in ("diffusers", "transformers") and not any(
        part in name for part in _HOST
    )


def _read_components(raw: Config) -> dict[str, _Component]:
    """The components of a pipeline's index, which has a library and a class for each,
    among other entries.
    """
    components = {}
    for name, value in raw.items():
        match value:
            case [str(library), str(class_name)]:
                components[name] = _Component(library, class_name)
    return components


def _select(
    components: dict[str, _Component], index: ConfigFile, options: Options
) -> dict[str, _Component]:
    """The components to compile, of those with weights."""
    if not components:
        raise PortError("no component of this pipeline is a model", where=index.path)
    names = ", ".join(components)
    name = options.component
    if name is not None and name not in components:
        raise PortError(
            f"there is no component {name!r} to compile",
            where=index.path,
            fix=f"one of {names}",
        )
    if name is not None:
        return {name: components[name]}
    if options.inputs is not None and len(components) > 1:
        raise PortError(
            "inputs are those of one component",
            where="inputs",
            fix=f"--component, one of {names}",
        )
    return components


def _is_decoder(name: str, component: _Component) -> bool:
    return component.library == "diffusers" and name not in _DENOISERS


def _component_config(directory: Path, name: str) -> ConfigFile:
    path = directory / name / "config.json"
    if not path.is_file():
        raise PortError(
            f"the component {name} has no config.json", where=str(path),
            fix="download it too; weights are not needed",
        )  # fmt: skip
    return ConfigFile(read_json(path), name, str(path), path.parent)


def _with_class(config_file: ConfigFile, component: _Component) -> ConfigFile:
    """The config with the class that the pipeline's index names, which the component's
    own may lack.
    """
    raw = {**config_file.raw, "_class_name": component.class_name}
    return dataclasses.replace(config_file, raw=raw)


def _applicable_to(
    config_file: ConfigFile, component: _Component, options: Options
) -> tuple[str, ...]:
    """The options that apply to a component."""
    if component.library == "transformers":
        # The length of a text belongs to one encoder: it is only for the one that the
        # user names.
        return ("batch", "task", "length") if options.component else ("batch", "task")
    if options.inputs is not None:
        return ()
    return applicable(_with_class(config_file, component))


def _component_program(
    config_file: ConfigFile,
    component: _Component,
    index: ConfigFile,
    options: Options,
    denoised: tuple[Size, int] | None,
) -> Target:
    if component.library == "diffusers":
        return component_target(_with_class(config_file, component), options, denoised)
    is_text = (
        config_file.name.startswith("text_encoder")
        and "CLIP" not in component.class_name
    )
    if is_text and options.length is None and options.inputs is None:
        length = _TEXT_LENGTHS.get(str(index.raw.get("_class_name")))
        options = dataclasses.replace(options, length=length)
    [target] = transformers_targets.transformers_targets(
        config_file, options, component.class_name
    )
    return target


def _denoised_size(
    directory: Path, components: dict[str, _Component], options: Options
) -> tuple[Size, int] | None:
    """The size and frames of what the pipeline's denoiser makes, for the decoder; None
    if nothing says it.
    """
    configs = {name: directory / name / "config.json" for name in _DENOISERS}
    names = [
        name
        for name, config in configs.items()
        if name in components and config.is_file()
    ]
    if options.inputs is not None or not names:
        return None
    config_file = _with_class(
        _component_config(directory, names[0]), components[names[0]]
    )
    restricted = options.restrict(applicable(config_file))
    _, planned = _plan_denoising(config_file, restricted, "bfloat16")
    return planned.call.pixels, planned.frames


def _check_all_used(
    options: Options, used: set[str], components: dict[str, _Component]
) -> None:
    """PortError for an option that applies to none of the components."""
    # Inputs of the user's own have been checked against the sizes already.
    if options.inputs is not None:
        return
    for name in options.stray(used):
        raise PortError(
            f"{name} applies to none of {', '.join(components)}",
            where=name,
            fix="leave it out",
        )


def component_target(
    config_file: ConfigFile, options: Options, denoised: tuple[Size, int] | None = None
) -> Target:
    """The program of a diffusers config: a step of a denoiser, or the decoding of
    latents.

    Args:
        denoised: for a pipeline's autoencoder, the size in pixels and the frames that
            the denoiser makes.

    Raises:
        PortError: diffusers does not have the class, an option does not apply, or a
            size does not fit.
    """
    model_class = find_class(config_file)
    name = model_class.__name__
    if options.task not in (None, "forward"):
        raise PortError(
            f"{name} has no {options.task}", where="task", fix="--task forward, or none"
        )
    config = full_config(config_file)
    dtype, notes = choose_dtype(config_file.raw, options.dtype)
    notes += quantization_note(config_file)
    is_vae = vae_decoders.is_vae(model_class)
    kind = "vae" if is_vae else "denoiser"
    build = _make_builder(model_class, config_file, dtype)
    target = Target(config_file.name, build, {}, None, dtype, kind, notes)
    if options.inputs is not None:
        options.check_apply((), name)
        inputs = user_code.call_inputs_function(
            options.inputs, _as_attributes(config), options.task
        )
        notes += (f"inputs are those of {options.inputs}",)
        return dataclasses.replace(target, inputs=inputs, notes=notes)
    if is_vae:
        options.check_apply(vae_decoders.applicable(name), name)
        decoding = vae_decoders.plan_decoding(name, config, options, dtype, denoised)
        notes += decoding.notes
        return dataclasses.replace(
            target, inputs=decoding.inputs, unit=decoding.unit, notes=notes
        )
    family, planned = _plan_denoising(config_file, options, dtype)
    notes += (planned.note,)
    if name not in _FAMILIES:
        notes += (f"the inputs of {name} are guessed from their names",)
    return dataclasses.replace(
        target, inputs=family.inputs(planned.call), unit=("steps", 1.0), notes=notes, product=_product(planned),
        rows=planned.call.batch, is_distilled=bool(config.get("guidance_embeds")),
    )  # fmt: skip


def _product(planned: PlannedCall) -> str:
    """What a run of the denoiser makes."""
    height, width = planned.call.pixels
    if planned.frames > 1:
        return f"a clip of {planned.frames} frames of {height}x{width}"
    return f"an image of {height}x{width}"


def applicable(config_file: ConfigFile) -> tuple[str, ...]:
    """The options that determine something of this component's inputs."""
    model_class = find_class(config_file)
    if vae_decoders.is_vae(model_class):
        return vae_decoders.applicable(model_class.__name__)
    return _family(model_class, full_config(config_file)).applicable()


def _family(model_class: Any, config: Config) -> Family:
    """How models of the class are called."""
    return _FAMILIES.get(model_class.__name__) or guess_family(model_class, config)


def _plan_denoising(
    config_file: ConfigFile, options: Options, dtype: str
) -> tuple[Family, PlannedCall]:
    model_class = find_class(config_file)
    config = full_config(config_file)
    family = _family(model_class, config)
    options.check_apply(family.applicable(), model_class.__name__)
    compression = _sibling_compression(config_file, family)
    return family, plan_call(family, config, options, dtype, compression)


def find_class(config_file: ConfigFile) -> Any:
    """The class of diffusers that the config names.

    Raises:
        PortError: diffusers is not installed, or has no such model.
    """
    try:
        import diffusers
    except ImportError as error:
        raise PortError(
            "diffusers is not installed",
            where=config_file.path,
            fix="pip install diffusers",
        ) from error
    name = str(config_file.raw.get("_class_name"))
    model_class = getattr(diffusers, name, None)
    if isinstance(model_class, type) and issubclass(model_class, torch.nn.Module):
        return model_class
    problem = (
        f"has no model {name}"
        if model_class is None
        else f"has a {name} that is not a model"
    )
    raise PortError(
        f"diffusers {diffusers.__version__} {problem}", where=f"{config_file.path}, _class_name",
        fix="check the spelling, or install the diffusers that has it",
    )  # fmt: skip


def full_config(config_file: ConfigFile) -> dict[str, Any]:
    """The config, with the constructor's defaults for missing fields."""
    # Config files leave out fields that were added after the checkpoint was saved.
    parameters = inspect.signature(find_class(config_file).__init__).parameters.values()
    config = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    config.update(
        (name, value)
        for name, value in config_file.raw.items()
        if not name.startswith("_")
    )
    return config


def _sibling_compression(config_file: ConfigFile, family: Family) -> Compression | None:
    """The compression of the autoencoder in the same pipeline's directory; None if
    there is none.
    """
    path = config_file.directory.resolve().parent / "vae" / "config.json"
    if not path.is_file():
        return None
    vae = ConfigFile(read_json(path), "vae", str(path), path.parent)
    compression = vae_decoders.vae_compression(
        vae.raw.get("_class_name", ""), full_config(vae), "vae/config.json"
    )
    if family.temporal:
        return compression
    # A model of images may have an autoencoder that also does videos.
    return Compression(compression.spatial, 1, True, compression.source)


def _make_builder(
    model_class: Any, config_file: ConfigFile, dtype: str
) -> Callable[[], torch.nn.Module]:
    """A function that makes the model without memory for parameters; of an autoencoder,
    the decoder.
    """
    is_vae = vae_decoders.is_vae(model_class)
    torch_dtype: Any = as_torch_dtype(dtype)

    def build() -> torch.nn.Module:
        raw = without(config_file.raw, {building.QUANTIZATION})
        with name_wrong_fields(
            config_file.raw, config_file.path, f"{model_class.__name__} cannot be built"
        ):
            model = building.build_empty(
                model_class, raw, torch_dtype, False, Path(config_file.path)
            )
        quantize_as_file(model, config_file, torch_dtype)
        return vae_decoders.make_decoder(model) if is_vae else model

    return build


def _as_attributes(config: Config) -> Any:
    """The config as diffusers' models have it: its fields are attributes too."""
    from diffusers.configuration_utils import FrozenDict

    return FrozenDict(config)
