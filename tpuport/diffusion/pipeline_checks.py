"""Errors of a pipeline, or of a call of it, reported before any work."""

import dataclasses
import functools
import inspect
import itertools
import math
import numbers
import re
import sys
import traceback
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from tpuport.diffusion import schedulers
from tpuport.diffusion.mixed_devices import current_mode
from tpuport.errors import PortError
from tpuport.libraries.library_classes import is_pipeline, positive_attribute
from tpuport.libraries.model_facts import CUT_CLIPS
from tpuport.objects.static_values import exact_key

# What pipelines call the factor between pixels and latents, in space and in time.
_SPATIAL_FACTORS = (
    "vae_scale_factor_spatial",
    "vae_spatial_compression_ratio",
    "vae_scale_factor",
)
_TEMPORAL_FACTORS = ("vae_scale_factor_temporal", "vae_temporal_compression_ratio")
_SCALE_NAME = re.compile(r"scale(_\d)?$")
# How many legal sizes on each side are tried until the pipeline accepts one: its own
# multiple may be larger.
_CANDIDATE_SIZES = 64
_scheduler_errors: dict[Hashable, PortError | None] = {}


def pipeline_models(pipe: Any) -> dict[str, torch.nn.Module]:
    """Every model of a pipeline by name; `pipe.components` leaves out some that have a
    default.
    """
    # From the instance's dictionary: diffusers warns if a name of the configuration is
    # read as an attribute.
    attributes = vars(pipe)
    return {
        name: attributes[name]
        for name in pipe.config
        if isinstance(attributes.get(name), torch.nn.Module)
    }


def check_portable(pipe: Any) -> None:
    """PortError for a pipeline whose models accelerate moves between devices."""
    models = pipeline_models(pipe).items()
    hooked = [
        name
        for name, model in models
        if any("_hf_hook" in vars(part) for part in model.modules())
    ]
    if hooked:
        raise PortError(
            "accelerate moves models of this pipeline between devices: offloading, or a device map",
            where=", ".join(hooked),
            fix="pipe.remove_all_hooks() first, or load the pipeline without it",
        )


def check_scheduler(scheduler: Any) -> None:
    """PortError for a scheduler whose step cannot be done with tables; cached for each
    configuration.
    """
    key = (type(scheduler), exact_key(dict(scheduler.config)))
    if key not in _scheduler_errors:
        _scheduler_errors[key] = _table_error(scheduler)
    error = _scheduler_errors[key]
    if error is not None:
        raise PortError(
            f"on the device, {error.what}",
            where="scheduler",
            fix=f'tpuport.port(pipe, scheduler="host") steps on the host, with diffusers\' own code; or {error.fix}',
        )


def _table_error(scheduler: Any) -> PortError | None:
    # A dynamic shift needs some value; the pipeline computes its own from the size of
    # the latents.
    mu = 1.0 if scheduler.config.get("use_dynamic_shifting") else None
    try:
        schedulers.build_tables(scheduler, num_inference_steps=4, mu=mu)
    except PortError as error:
        return error
    return None


def check_call(
    pipe: Any, signature: inspect.Signature, arguments: dict[str, Any]
) -> None:
    """PortError for arguments of a pipeline's call that would fail late, or silently
    give a wrong result.
    """
    call = _Call(pipe, signature, arguments)
    for name, value in call.scales():
        _check_scale(name, value)
    steps = arguments.get("num_inference_steps")
    if isinstance(steps, int) and steps < 1:
        raise PortError(
            f"{steps} denoising steps",
            where="num_inference_steps",
            fix="give at least 1",
        )
    _check_sizes(call)
    _check_frames(call)
    required_inputs = _parameter_names(getattr(type(pipe), "check_inputs", None))
    tensors = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor)
    }
    for name in tensors:
        masks = [mask for mask in _mask_names(name) if mask in signature.parameters]
        if masks:
            _check_mask(name, tensors, masks, required_inputs)


@dataclasses.dataclass
class _Call:
    """A call of a pipeline, before it runs; arguments by name."""

    pipe: Any
    signature: inspect.Signature
    arguments: dict[str, Any]

    def scales(self) -> Iterator[tuple[str, Any]]:
        """The scales of the call, except those that are None by default."""
        for name, value in self.arguments.items():
            default = self.signature.parameters[name].default
            if _SCALE_NAME.search(name) and (value is not None or default is not None):
                yield name, value
        guider: Any = getattr(self.pipe, "guider", None)
        if hasattr(guider, "guidance_scale"):
            yield "guider.guidance_scale", guider.guidance_scale

    def check_size(
        self, names: list[str], factor: int, first: int, reason: str
    ) -> None:
        """PortError for an argument that is not one of `first`, `first + factor` and so
        on.

        Args:
            names: of arguments that must be such a size, and that the pipeline may only
                accept together.
        """
        for name in names:
            size = self.arguments[name]
            if size < first or (size - first) % factor:
                # All of them get the size that is tried: a pipeline says only that one
                # of them is wrong.
                accepts = functools.partial(self._is_accepted, names)
                suggestions = _suggest_sizes(size, factor, first, accepts)
                raise PortError(
                    f"{name}={size}{reason}", where=name, fix=f"{name}={suggestions}"
                )

    def _is_accepted(self, names: list[str], value: int) -> bool:
        """Whether the pipeline's own check of its inputs passes with this value; True
        if it cannot be run.
        """
        check = getattr(self.pipe, "check_inputs", None)
        if not callable(check):
            return True
        defaults = {
            name: parameter.default
            for name, parameter in self.signature.parameters.items()
        }
        inputs = {**defaults, **self.arguments, **dict.fromkeys(names, value)}
        # The call takes more than its check, and the check may take what the call
        # computes first.
        checked_names = inspect.signature(check).parameters.keys() & defaults
        try:
            check(**{name: inputs[name] for name in checked_names})
        except ValueError:
            return False
        except Exception:  # noqa: BLE001 - it needs values that the call computes before it checks
            return True
        return True


def _check_scale(name: str, value: Any) -> None:
    """PortError for anything but a finite number, an array, or a list of numbers for
    several controls.
    """
    match value:
        case list() | tuple():
            for item in value:
                _check_scale(name, item)
        case numbers.Real() if not math.isfinite(value):
            raise PortError(
                f"{name} is {value}", where=name, fix="give a finite number"
            )
        case numbers.Real():
            pass
        case _ if not hasattr(value, "__array__"):
            raise PortError(
                f"{name} is {value!r:.40}, which is not a number",
                where=name,
                fix=f"give one: {name}=3.0",
            )


def _mask_names(name: str) -> list[str]:
    """What pipelines call the mask that belongs to embeddings of this name; nothing if
    they are not embeddings.
    """
    if "embeds" not in name or "mask" in name:
        return []
    number = name[-2:] if name.endswith(("_2", "_3")) else ""
    stem = name.removesuffix(number)
    attention_mask = stem.replace("_embeds", "_attention_mask")
    return [f"{stem}_mask{number}", f"{stem}{number}_mask", f"{attention_mask}{number}"]


def _check_mask(
    name: str,
    tensors: dict[str, torch.Tensor],
    masks: list[str],
    required_inputs: frozenset[str],
) -> None:
    embeddings = tensors[name]
    mask_name = next(filter(tensors.__contains__, masks), None)
    if mask_name is None:
        # What check_inputs takes is required; other pipelines compute a mask or need
        # none.
        if masks[0] in required_inputs:
            raise PortError(
                f"{name} without {masks[0]}, which marks its padding",
                where=name,
                fix=f"give the mask of shape {list(embeddings.shape[:2])} that encode_prompt returned with it; "
                "ones if nothing is padding",
            )
        return
    mask = tensors[mask_name]
    if embeddings.ndim >= 3 and not _fits(mask, embeddings):
        raise PortError(
            f"{mask_name} is {list(mask.shape)}, and {name} is {list(embeddings.shape)}: "
            "they must agree in batch and tokens",
            where=mask_name,
            fix="give the mask that encode_prompt returned with these embeddings",
        )


def _fits(mask: torch.Tensor, embeddings: torch.Tensor) -> bool:
    """Whether a mask is of these embeddings, which may have layers of an encoder before
    or after their tokens.
    """
    batch, *between, _ = embeddings.shape
    return mask.ndim >= 2 and mask.shape[0] == batch and mask.shape[1] in between


@functools.cache
def _parameter_names(function: Any) -> frozenset[str]:
    if not inspect.isfunction(function):
        return frozenset()
    return frozenset(inspect.signature(function).parameters)


def _check_sizes(call: _Call) -> None:
    vae_factor = positive_attribute(call.pipe, _SPATIAL_FACTORS)
    if vae_factor is None:
        return
    factor = vae_factor * _patch_size(call.pipe)
    names = [
        name
        for name in ("height", "width")
        if isinstance(call.arguments.get(name), int)
    ]
    reason = f" is not a multiple of {factor}, the VAE's factor times the patch size"
    call.check_size(names, factor, factor, reason)


def _check_frames(call: _Call) -> None:
    factor = positive_attribute(call.pipe, _TEMPORAL_FACTORS)
    if factor is None or not isinstance(call.arguments.get("num_frames"), int):
        return
    if type(call.pipe).__name__ in CUT_CLIPS:
        return
    reason = f": the VAE makes 1 + n * {factor} frames, and the others would be dropped"
    call.check_size(["num_frames"], factor, 1, reason)


def _suggest_sizes(
    size: int, factor: int, first: int, accepts: Callable[[int], bool]
) -> str:
    """The nearest sizes `first + n * factor` on both sides that the pipeline
    accepts.
    """
    # Of sizes that are too small, the first two are offered, but never 0.
    below = max(first + (size - first) // factor * factor, first % factor)
    sides = (
        range(below, first - 1, -factor)[:_CANDIDATE_SIZES],
        range(below + factor, sys.maxsize, factor)[:_CANDIDATE_SIZES],
    )
    nearest = [itertools.islice(filter(accepts, sizes), 1) for sizes in sides]
    # If it accepts none, something else is wrong as well, which it will report next.
    rule = f"{first % factor} + n * {factor}".removeprefix("0 + ")
    return " or ".join(map(str, itertools.chain(*nearest))) or rule


def _patch_size(pipe: Any) -> int:
    """The side of the transformer's patches, 1 if it has none."""
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    patch = getattr(config, "patch_size", None)
    match patch:
        case int():
            return patch
        # Of frames, height and width.
        case [*_, int(side)]:
            return side
    return 1


# A pipeline that is not ported may have models that are: those of a ported pipeline
# with `from_pipe`, or by hand. No code of tpuport runs before such a pipeline does, and
# what it does with tensors on the device fails in torch. So the stack shows whose call
# it is, where the pipeline first reaches the device: when it calls a model, or creates
# a tensor on the device that the model reports.


def check_caller(module: torch.nn.Module) -> None:
    """PortError if the pipeline that calls this ported model is not ported itself."""
    if current_mode() is not None:
        return
    pipe = _unported_caller()
    if pipe is not None:
        raise _unported_error(pipe, f"its {type(module).__name__} is on the devices")


@functools.cache
def explain_tensor_creation() -> torch.library.Library:
    """From now on, a tensor that such a pipeline creates on the device with torch is a
    PortError.

    Elsewhere it is a NotImplementedError, as without this. Torch forgets the fallback
    with the library, which the cache of this function therefore holds.
    """
    library = torch.library.Library("_", "IMPL")
    library.fallback(_refuse_creation, "PrivateUse1")
    return library


def _refuse_creation(operator: Any, *args: Any, **kwargs: Any) -> Any:
    pipe = _unported_caller()
    if pipe is not None:
        raise _unported_error(pipe, "models of it are on the devices")
    raise NotImplementedError(
        f"Could not run '{operator}' with arguments from the 'jax' backend: torch itself creates nothing there"
    )


def _unported_caller() -> Any:
    """The innermost pipeline on the stack, if it is not ported."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        if frame.f_code.co_varnames[:1] == ("self",):
            caller = frame.f_locals.get("self")
            if is_pipeline(caller):
                return None if "_tpuport" in vars(caller) else caller
    return None


def _unported_error(pipe: Any, reason: str) -> PortError:
    return PortError(
        f"this pipeline is not ported, and {reason}",
        where=type(pipe).__name__,
        fix="tpuport.port(pipe) before you call it, which leaves its models on the devices; or tpuport.to_cpu(pipe) "
        "to have them on the host",
    )
