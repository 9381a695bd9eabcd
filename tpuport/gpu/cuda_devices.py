"""The GPU shim where code names a CUDA device: factories, `.to`, autocast, generators,
`torch.load`.
"""

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tpuport.gpu.replaced_calls import Calls
from tpuport.internals.torch_internals import pop_function_modes, push_function_mode

_CUDA = re.compile(r"cuda(:\d+)?")
_CUDA_TYPE = "torch.cuda."
PLACES = {"cpu": "on the CPU", "jax": "on the TPU"}
_NAMES = {"_parse_to": "Module.to", "to": "Tensor.to", "type": "Tensor.type"}


def is_cuda(value: Any) -> bool:
    """Whether a value names a CUDA device."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and _CUDA.fullmatch(value) is not None


class Devices(TorchFunctionMode):
    """Creates tensors elsewhere that calls of this thread would create on a CUDA
    device.

    Args:
        calls: where they are noted.
        target: the device instead, "cpu" or "jax".
    """

    def __init__(self, calls: Calls, target: str = "cpu") -> None:
        super().__init__()
        self.calls = calls
        self.target = target
        self.place = PLACES[target]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        # Naming a device is not using it.
        if not self.calls.active or func is torch.device:
            return func(*args, **kwargs)
        if func is torch.Tensor.pin_memory or (
            func is torch.Tensor.cuda and self.target == "cpu"
        ):
            self.calls.note(f"Tensor.{func.__name__}", "the tensor itself")
            return args[0]
        if func is torch.Tensor.cuda:
            self.calls.note("Tensor.cuda", self.place)
            return args[0].to(self.target)
        rewritten = _without_cuda(func, args, kwargs, self.target)
        if rewritten is None:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        self.calls.note(f"{_NAMES.get(name, name)} on a CUDA device", self.place)
        args, kwargs = rewritten
        return func(*args, **kwargs)


def _without_cuda(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: str
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments with the target instead of CUDA devices; None if they name no CUDA
    device.
    """
    named_by_text = func in (torch.Tensor.to, torch.as_tensor)
    # Elsewhere a text such as "cuda" need not be a device.
    positions = [
        position
        for position, value in enumerate(args)
        if is_cuda(value) and (named_by_text or not isinstance(value, str))
    ]
    if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
        positions.append(1)  # a number is a CUDA device
    if (
        func is torch.Tensor.type
        and len(args) > 1
        and str(args[1]).startswith(_CUDA_TYPE)
    ):
        return (args[0], str(args[1]).replace(_CUDA_TYPE, "torch."), *args[2:]), kwargs
    # A number is a CUDA device here too; True is not (its type is bool).
    device = kwargs.get("device")
    has_cuda_device = is_cuda(device) or type(device) is int
    is_pinned = bool(kwargs.get("pin_memory"))
    if not (positions or has_cuda_device or is_pinned):
        return None
    if has_cuda_device:
        kwargs["device"] = target
    if is_pinned:
        kwargs["pin_memory"] = False
    arguments: list[Any] = list(args)
    for position in positions:
        arguments[position] = target
    return tuple(arguments), kwargs


def _load(calls: Calls, target: str) -> Callable[..., Any]:
    former: Any = torch.load

    @functools.wraps(former)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # A function decides for each storage by itself.
        if calls.active and not callable(map_location):
            calls.note("torch.load", "with map_location on the CPU")
            map_location = "cpu"
        return former(f, map_location, *args, **kwargs)

    return load


def opening_safetensors() -> Callable[..., Any]:
    """`safe_open` of safetensors, as its `load_file` and `load_model` call it.

    It reads files by functions of torch, which `Devices` redirects; without a shim,
    `compat` refuses CUDA devices.
    """
    safe_open = importlib.import_module("safetensors").safe_open

    def opening(*args: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        # For a number safetensors reads bytes to the device, which has no integers of
        # 64 bits, and not tensors.
        name = f"cuda:{device}" if type(device) is int else device
        return safe_open(*args, device=name, **kwargs)

    return opening


def _default_device(calls: Calls, target: str) -> Callable[..., Any]:
    former = torch.set_default_device

    @functools.wraps(former)
    def set_default_device(device: Any) -> None:
        if not calls.active or not (is_cuda(device) or type(device) is int):
            former(device)
        elif target == "cpu":
            calls.note("torch.set_default_device", "nothing")
        else:
            calls.note("torch.set_default_device", PLACES[target])
            former(target)

    return set_default_device


def _default_type(calls: Calls, target: str) -> Callable[..., Any]:
    former = torch.set_default_tensor_type

    @functools.wraps(former)
    def set_default_tensor_type(t: Any) -> None:
        if calls.active and isinstance(t, str) and t.startswith(_CUDA_TYPE):
            calls.note("torch.set_default_tensor_type", "the type on the CPU")
            t = t.replace(_CUDA_TYPE, "torch.")
        former(t)

    return set_default_tensor_type


def answers() -> dict[str, Callable[[Calls, str], Callable[..., Any]]]:
    """Factories of replacements, by name, for the functions of torch that take a device
    but no tensor.

    They are called with the calls to note, and with the device that "cuda" means.
    """
    return {
        "load": _load,
        "set_default_device": _default_device,
        "set_default_tensor_type": _default_type,
    }


def autocast_classes(calls: Calls) -> dict[str, type]:
    """`torch.autocast` and the older name, for which autocast of a CUDA device changes
    nothing, without a warning.
    """
    original: Any = torch.autocast

    class autocast(original):  # noqa: N801  torch's name
        """torch's, switched off for CUDA devices."""

        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            if calls.active and is_cuda(device_type):
                calls.note(f"torch.autocast({device_type!r})", "switched off")
                super().__init__("cuda", enabled=False)
            else:
                super().__init__(device_type, *args, **kwargs)

    # It has no argument for the device.
    class cuda_autocast(original):  # noqa: N801
        """torch.cuda.amp's, switched off."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            calls.note("torch.cuda.amp.autocast", "switched off")
            super().__init__("cuda", enabled=False)

    return {
        "autocast": autocast,
        "amp.autocast": autocast,
        "cuda.amp.autocast": cuda_autocast,
    }


def generator_class(calls: Calls) -> type:
    """A `torch.Generator` that is created on the CPU if a CUDA device is named."""
    original = torch.Generator

    class Kind(type):
        # For generators from before the shim, and for those that torch makes.
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            if calls.active and is_cuda(device):
                calls.note("torch.Generator on a CUDA device", "on the CPU")
                device = "cpu"
            return original(device)

    return Kind("Generator", (), {"__module__": "torch", "__doc__": original.__doc__})


def remove(mode: Devices) -> None:
    """Remove a mode from anywhere in this thread's stack, and modes of shims that
    another thread has switched off.
    """
    # torch gives no other access to the middle of the stack.
    modes = pop_function_modes()
    for other in reversed(modes):
        is_stale = isinstance(other, Devices) and not other.calls.active
        if other is not mode and not is_stale:
            push_function_mode(other)
