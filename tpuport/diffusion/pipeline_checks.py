"""What is wrong with a pipeline, or with a call of it, said before any work."""

import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from tpuport.diffusion import schedulers
from tpuport.errors import PortError
from tpuport.static_values import exact_key

_SPATIAL = ("vae_scale_factor_spatial", "vae_spatial_compression_ratio", "vae_scale_factor")
_TEMPORAL = ("vae_scale_factor_temporal", "vae_temporal_compression_ratio")
_SCALE = re.compile(r"scale(_\d)?$")
# How many legal sizes on each side are tried until the pipeline takes one: its own multiple may be larger.
_TRIED = 64
_supported: dict[Hashable, PortError | None] = {}


def models_of(pipe: Any) -> dict[str, torch.nn.Module]:
    """Every model of a pipeline by name; `pipe.components` leaves out some that have a default."""
    names = [name for name in pipe.config if not name.startswith("_")]
    held = {
        name: vars(pipe).get(name) for name in names
    }  # diffusers warns of other ways to read a configuration
    return {name: module for name, module in held.items() if isinstance(module, torch.nn.Module)}


def check_portable(pipe: Any) -> None:
    """PortError for a pipeline whose models something else moves between devices."""
    hooked = [
        name
        for name, module in models_of(pipe).items()
        if any("_hf_hook" in vars(part) for part in module.modules())
    ]
    if hooked:
        raise PortError(
            "accelerate moves models of this pipeline between devices: offloading, or a device map",
            where=", ".join(hooked),
            fix="pipe.remove_all_hooks() first, or load the pipeline without it",
        )


def check_scheduler(scheduler: Any) -> None:
    """PortError for a scheduler whose step cannot be done with tables; found out once for each configuration."""
    key = (type(scheduler), exact_key(dict(scheduler.config)))
    if key not in _supported:
        _supported[key] = _refusal(scheduler)
    error = _supported[key]
    if error is not None:
        raise PortError(
            f"on the device, {error.what}",
            where="scheduler",
            fix=f'tpuport.port(pipe, scheduler="host") steps on the host, with diffusers\' own code; or {error.fix}',
        )


def _refusal(scheduler: Any) -> PortError | None:
    shift: dict[str, Any] = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
    try:
        schedulers.tables_for(scheduler, num_inference_steps=4, **shift)
    except PortError as error:
        return error
    return None


def check_call(pipe: Any, signature: inspect.Signature, given: dict[str, Any]) -> None:
    """PortError for arguments of a pipeline's call that would fail late, or silently give something else.

    Args:
        signature: of the call.
        given: its arguments by name.
    """
    for name, value in _scales(pipe, signature, given):
        _check_scale(name, value)
    steps = given.get("num_inference_steps")
    if isinstance(steps, int) and steps < 1:
        raise PortError(f"{steps} denoising steps", where="num_inference_steps", fix="give at least 1")
    _check_sizes(pipe, signature, given)
    _check_frames(pipe, signature, given)
    required = _parameters(getattr(type(pipe), "check_inputs", None))
    for name in signature.parameters:
        if "embeds" in name and "mask" not in name and isinstance(given.get(name), torch.Tensor):
            _check_mask(
                name, given, [mask for mask in _masks_of(name) if mask in signature.parameters], required
            )


def _scales(pipe: Any, signature: inspect.Signature, given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The scales of a call, but for those left at their default, which may be None."""
    for name, value in given.items():
        default = signature.parameters[name].default if name in signature.parameters else None
        if _SCALE.search(name) and not (value is None and default is None):
            yield name, value
    guider = getattr(pipe, "guider", None)
    if guider is not None and hasattr(guider, "guidance_scale"):
        yield "guider.guidance_scale", guider.guidance_scale


def _check_scale(name: str, value: Any) -> None:
    """PortError for what is no number, and no list or array of some for several controls."""
    if isinstance(value, (list, tuple)):
        for one in value:
            _check_scale(name, one)
    elif isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise PortError(f"{name} is {value}", where=name, fix="give a finite number")
    elif not hasattr(value, "__array__"):
        raise PortError(
            f"{name} is {value!r:.40}, which is no number", where=name, fix=f"give one: {name}=3.0"
        )


def _masks_of(name: str) -> list[str]:
    """What pipelines call the mask that belongs to embeddings of this name."""
    number = next((end for end in ("_2", "_3") if name.endswith(end)), "")
    stem = name.removesuffix(number) if number else name
    attention = stem.replace("_embeds", "_attention_mask")
    return [f"{stem}_mask{number}", f"{stem}{number}_mask", f"{attention}{number}"]


def _check_mask(name: str, given: dict[str, Any], masks: list[str], required: frozenset[str]) -> None:
    if not masks:
        return
    embeddings = given[name]
    present = [mask for mask in masks if isinstance(given.get(mask), torch.Tensor)]
    if not present:
        if masks[0] in required:
            raise PortError(
                f"{name} without {masks[0]}, which says what of it is padding",
                where=name,
                fix=f"give the mask of shape {list(embeddings.shape[:2])} that encode_prompt gave with it; "
                "ones where nothing is padding",
            )
        return
    mask = given[present[0]]
    if embeddings.ndim >= 3 and tuple(mask.shape[:2]) != tuple(embeddings.shape[:2]):
        raise PortError(
            f"{present[0]} is {list(mask.shape)}, and {name} is {list(embeddings.shape)}: "
            "their first two dimensions, batch and tokens, must agree",
            where=present[0],
            fix="give the mask that encode_prompt gave with these embeddings",
        )


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) if inspect.isfunction(function) else frozenset()


def _check_sizes(pipe: Any, signature: inspect.Signature, given: dict[str, Any]) -> None:
    factor = _number(pipe, _SPATIAL)
    if factor is None:
        return
    factor *= _patch(pipe)
    sizes = [name for name in ("height", "width") if isinstance(given.get(name), int)]
    for name in sizes:
        size = given[name]
        if size % factor or size < factor:
            # Both are tried at once: a pipeline says only that one of them is wrong.
            takes = functools.partial(_takes, pipe, signature, given, sizes)
            raise PortError(
                f"{name}={size} is no multiple of {factor}, the VAE's factor times the patch size",
                where=name,
                fix=f"{name}={_nearest(size, factor, 0, takes)}",
            )


def _check_frames(pipe: Any, signature: inspect.Signature, given: dict[str, Any]) -> None:
    factor, frames = _number(pipe, _TEMPORAL), given.get("num_frames")
    if factor is None or not isinstance(frames, int):
        return
    if frames < 1 or (frames - 1) % factor:
        takes = functools.partial(_takes, pipe, signature, given, ["num_frames"])
        raise PortError(
            f"num_frames={frames}: the VAE makes 1 + n * {factor} frames, and the rest would be dropped",
            where="num_frames",
            fix=f"num_frames={_nearest(frames, factor, 1, takes)}",
        )


def _takes(
    pipe: Any, signature: inspect.Signature, given: dict[str, Any], names: list[str], value: int
) -> bool:
    """Whether the pipeline's own check of its inputs passes with this value; where it cannot be asked, it does."""
    check = getattr(pipe, "check_inputs", None)
    if not callable(check):
        return True
    given = given | dict.fromkeys(names, value)
    wanted = [name for name in inspect.signature(check).parameters if name in signature.parameters]
    try:
        check(**{name: given.get(name, signature.parameters[name].default) for name in wanted})
    except ValueError:
        return False
    except Exception:  # noqa: BLE001 - it wants what the call works out before it asks
        return True
    return True


def _nearest(size: int, factor: int, offset: int, takes: Callable[[int], bool]) -> str:
    """The legal sizes on both sides that the pipeline takes, whose own multiple may be larger."""
    place = max((size - offset) // factor, 0)
    below = range(place, max(place - _TRIED, -1), -1)
    above = range(place + 1, place + 1 + _TRIED)
    sides = [[offset + n * factor for n in side if offset + n * factor > 0] for side in (below, above)]
    found = [next(filter(takes, side), None) for side in sides]
    choices = [str(value) for value in found if value is not None]
    # Where it takes none, something else is wrong as well, which it will say next.
    return " or ".join(choices) or f"{f'{offset} + ' if offset else ''}n * {factor}"


def _patch(pipe: Any) -> int:
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, (list, tuple)) and patch:
        patch = patch[-1]
    return patch if isinstance(patch, int) and not isinstance(patch, bool) and patch > 0 else 1


def _number(pipe: Any, names: tuple[str, ...]) -> int | None:
    found = (getattr(pipe, name, None) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)
