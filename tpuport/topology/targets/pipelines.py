"""A pipeline of diffusers, component by component."""

import dataclasses
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.targets import components, text
from tpuport.topology.targets.configs import Found, read_json
from tpuport.topology.targets.latents import Size
from tpuport.topology.targets.target import Options, Target

# What runs on the host, or only checks what came out.
_HOST: Final = (
    "scheduler",
    "tokenizer",
    "feature_extractor",
    "processor",
    "safety_checker",
    "image_processor",
)
_DENOISERS: Final = ("transformer", "unet")
# Tokens that the pipeline pads its prompts to, where its text encoder takes more.
_TEXT_LENGTHS: Final = {
    "FluxPipeline": 512, "StableDiffusion3Pipeline": 256, "WanPipeline": 512, "HunyuanVideoPipeline": 256,
    "CogVideoXPipeline": 226, "LTXPipeline": 128, "MochiPipeline": 256, "PixArtAlphaPipeline": 120,
    "PixArtSigmaPipeline": 300, "SanaPipeline": 300, "AuraFlowPipeline": 256, "Lumina2Pipeline": 256,
    "HunyuanVideo15Pipeline": 1000,
}  # fmt: skip


def pipeline_targets(found: Found, options: Options) -> tuple[Target, ...]:
    """The programs of the components that have weights: denoisers, text and image encoders, the decoder.

    Raises:
        PortError: no such component, one without a config, or options that apply to none.
    """
    directory, names = found.directory or Path(), _models(found.raw)
    chosen = _chosen(names, found, options)
    skipped = tuple(key for key in found.raw if _is_component(found.raw, key) and key not in names)
    note = (f"not compiled: {', '.join(skipped)}",) if skipped else ()
    made: list[Target] = []
    taken: set[str] = set()
    decoders = [name for name, kind in chosen.items() if kind[0] == "diffusers" and name not in _DENOISERS]
    like = _output(directory, names, options) if decoders else None
    for name, kind in chosen.items():
        try:
            target, applies = _component(
                _part(directory, name), kind, options, like, found.raw.get("_class_name")
            )
        except PortError as error:
            others = [other for other in names if other != name]
            fix = error.fix or (f"--component, one of {', '.join(others)}" if len(chosen) > 1 else None)
            raise PortError(f"{name}: {error.what}", where=error.where, fix=fix) from error
        taken |= set(applies)
        made.append(dataclasses.replace(target, name=f"{found.name} {name}", notes=(*target.notes, *note)))
    if options.inputs is None and (stray := [name for name in options.given() if name not in taken]):
        raise PortError(
            f"{stray[0]} applies to none of {', '.join(chosen)}", where=stray[0], fix="leave it out"
        )
    return tuple(made)


def _chosen(names: dict[str, tuple[str, str]], found: Found, options: Options) -> dict[str, tuple[str, str]]:
    """The components that were asked for, of those with weights."""
    if not names:
        raise PortError("no component of this pipeline is a model", where=found.path)
    if options.component is not None and options.component not in names:
        raise PortError(
            f"there is no component {options.component!r} to compile", where=found.path,
            fix=f"one of {', '.join(names)}",
        )  # fmt: skip
    if options.inputs is not None and options.component is None and len(names) > 1:
        raise PortError(
            "inputs are those of one component", where="inputs", fix=f"--component, one of {', '.join(names)}"
        )
    return {name: kind for name, kind in names.items() if options.component in (None, name)}


def _component(
    part: Found, kind: tuple[str, str], options: Options, like: tuple[Size, int] | None, pipeline: Any
) -> tuple[Target, tuple[str, ...]]:
    """A component's program, and the options that applied to it."""
    library, class_name = kind
    if library == "diffusers":
        part = dataclasses.replace(part, raw={**part.raw, "_class_name": class_name})
        applies = components.applicable(part) if options.inputs is None else ()
        return components.component_target(part, _restricted(options, applies), like), applies
    applies = ("batch", "task", *(("length",) if options.component else ()))
    return _encoder(part, class_name, _restricted(options, applies), pipeline), applies


def _is_component(raw: dict[str, Any], key: str) -> bool:
    value = raw[key]
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)


def _models(raw: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Components with weights by name: their library and class."""
    return {
        key: (value[0], value[1])
        for key, value in raw.items()
        if _is_component(raw, key)
        and value[0] in ("diffusers", "transformers")
        and not any(part in key for part in _HOST)
    }


def _part(directory: Path, name: str) -> Found:
    path = directory / name / "config.json"
    if not path.is_file():
        raise PortError(
            f"the component {name} has no config.json", where=str(path),
            fix="download it too; weights are not needed",
        )  # fmt: skip
    return Found(read_json(path), name, str(path), path.parent)


def _restricted(options: Options, applies: tuple[str, ...]) -> Options:
    return options if options.inputs is not None else options.restricted(applies)


def _output(directory: Path, names: dict[str, tuple[str, str]], options: Options) -> tuple[Size, int] | None:
    """The size and frames of what the pipeline's denoiser makes, for the decoder; None without one."""
    denoiser = next((name for name in _DENOISERS if name in names), None)
    if denoiser is None or not (directory / denoiser / "config.json").is_file() or options.inputs is not None:
        return None
    part = _part(directory, denoiser)
    part = dataclasses.replace(part, raw={**part.raw, "_class_name": names[denoiser][1]})
    return components.makes(part, options.restricted(components.applicable(part)))


def _encoder(part: Found, class_name: str, options: Options, pipeline: Any) -> Target:
    length = options.length
    is_text = part.name.startswith("text_encoder")
    if length is None and is_text and options.inputs is None and "CLIP" not in class_name:
        length = _TEXT_LENGTHS.get(str(pipeline))
    [target] = text.transformers_targets(part, dataclasses.replace(options, length=length), class_name)
    return target
