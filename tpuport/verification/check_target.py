"""What `tpuport check` is given: a function of the user's own, or a config of
transformers or diffusers.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import NoCudaError, PortError
from tpuport.gpu import gpu_shim
from tpuport.gpu.stand_ins import PACKAGES
from tpuport.internals.transformers_internals import builder
from tpuport.topology.targets import resolve
from tpuport.topology.targets.config_files import find_config
from tpuport.topology.targets.early_checks import is_user_code
from tpuport.topology.targets.target import required_parameters
from tpuport.topology.targets.user_code import (
    called_by_name,
    describe_value,
    load_function,
)
from tpuport.verification.model_runs import describe

_FIX: Final = "return (model, inputs): a torch.nn.Module with weights, and its arguments by name, a tuple, or a tensor"
# Long enough to have positions that differ, and short enough for a CPU.
_LENGTH: Final = 16
# Integer inputs that are not tokens are classes, positions or time steps: small numbers
# are in range everywhere.
_LARGEST_NUMBER: Final = 8


@dataclasses.dataclass(frozen=True)
class CheckTarget:
    """A model to check, and inputs of one call.

    Attributes:
        notes: what was chosen that the user did not say, a sentence each.
    """

    model: torch.nn.Module
    inputs: Any
    notes: tuple[str, ...] = ()


def load_target(name: str, options: Mapping[str, Any], seed: int = 0) -> CheckTarget:
    """The model and inputs that a target names.

    Args:
        name: "module:function" or "file.py:function", which returns (model, inputs); or
            a directory or file with the config of a transformers or diffusers model.
        options: further arguments of `targets.resolve`, for a config.
        seed: of random weights and inputs.

    Raises:
        PortError: there is no such target, or it fails, or gives something else.
    """
    torch.manual_seed(seed)
    if is_user_code(name):
        return _user_target(name, options)
    return _config_target(name, options)


def _user_target(name: str, options: Mapping[str, Any]) -> CheckTarget:
    chosen = _chosen(options)
    if chosen:
        raise PortError(
            "the function itself determines its model and inputs",
            where=", ".join(chosen),
            fix="leave the options out",
        )
    try:
        return _load_target(name)
    except PortError as error:
        if not _needs_shim(error):
            raise
    with gpu_shim() as shim:
        target = _load_target(name)
    notes = [
        f"{call.file}:{call.line}: {call.name} became {call.became}, with tpuport.gpu_shim"
        for call in shim.calls
    ]
    return dataclasses.replace(target, notes=tuple(notes))


def _needs_shim(error: BaseException | None) -> bool:
    """Whether the user's code names CUDA, or imports a package of attention kernels
    that needs it.
    """
    match error:
        case None:
            return False
        case NoCudaError():
            return True
        case ModuleNotFoundError(name=str(package)):
            return package.partition(".")[0] in PACKAGES
    return _needs_shim(error.__cause__)


def _load_target(name: str) -> CheckTarget:
    function = load_function(name)
    required = required_parameters(function)
    if required:
        raise PortError(
            f"the function takes {', '.join(required)}, and it is called without arguments",
            where=name,
            fix="give its parameters defaults, or name a function that calls it",
        )
    with called_by_name(name):
        result = function()
        match result:
            case [model, inputs] if callable(model):
                # Only now, as `tpuport compile` has it: the function may return what
                # builds the model, or the inputs.
                if not isinstance(model, torch.nn.Module):
                    model = model()
                if callable(inputs):
                    inputs = inputs()
                if isinstance(model, torch.nn.Module):
                    return CheckTarget(model, inputs)
    raise PortError(f"it returned {describe_value(result)}", where=name, fix=_FIX)


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name, value in options.items() if value}


def _config_target(name: str, options: Mapping[str, Any]) -> CheckTarget:
    config_file = find_config(name)
    chosen = _chosen(options)
    raw = config_file.raw
    if config_file.path.endswith(".gguf"):
        raise PortError(
            "a GGUF file has no random weights to check with",
            where=name,
            fix="check the model by the config.json that it was converted from",
        )
    # transformers' configs have a model_type; diffusers' components are named by their
    # class.
    if "model_type" in raw and "_class_name" not in raw:
        chosen.setdefault("length", _LENGTH)
        chosen["task"] = "forward"
    targets = resolve(name, **chosen)
    if len(targets) > 1:
        raise PortError(
            f"this has {len(targets)} models: {', '.join(target.name for target in targets)}",
            where=name,
            fix="choose one with --component",
        )
    target = next(iter(targets))
    if not isinstance(target.inputs, Mapping):
        # The step of a decoder, for example, has a cache as well.
        raise PortError(
            "there are no inputs of a forward call",
            where=name,
            fix="give a function instead",
        )
    model, note = _build(target.build(), config_file.directory, chosen.get("component"))
    dtype = as_torch_dtype(target.dtype)
    if dtype is not None:
        model = model.to(dtype)
    inputs = {key: _fill(key, value, model) for key, value in target.inputs.items()}
    shapes = ", ".join(
        f"{key} {describe(value)}"
        for key, value in inputs.items()
        if isinstance(value, torch.Tensor)
    )
    return CheckTarget(
        model, inputs, (*target.notes, note, f"inputs are random: {shapes}")
    )


def _build(
    empty: torch.nn.Module, directory: Path, component: str | None
) -> tuple[torch.nn.Module, str]:
    """The model with the weights that the directory has, or random ones; and a note
    that says which.
    """
    model_class: Any = type(empty)
    folder = directory / (component or "")
    if any(folder.glob("*.safetensors")):
        return model_class.from_pretrained(
            str(folder)
        ), f"weights are those in {folder}"
    config: Any = empty.config
    # transformers' name for it, and diffusers'. Both give random weights.
    build = builder(model_class) or model_class.from_config
    return build(config), "weights are random: there are none beside the config"


def _fill(name: str, value: Any, model: torch.nn.Module) -> Any:
    """Values for an input that has only a shape: tokens, masks without padding, and
    normal numbers.
    """
    if not isinstance(value, torch.Tensor) or not value.is_meta:
        return value
    shape = tuple(value.shape)
    if name.endswith("mask"):
        # Attention to everything: padding would have to agree with the tokens.
        return torch.ones(shape, dtype=value.dtype)
    if value.is_floating_point():
        return torch.randn(shape).to(value.dtype)
    largest = _LARGEST_NUMBER
    if name.endswith("input_ids"):
        largest = int(getattr(model.config, "vocab_size", _LARGEST_NUMBER))  # type: ignore[arg-type]
    return torch.randint(0, largest, shape).to(value.dtype)
