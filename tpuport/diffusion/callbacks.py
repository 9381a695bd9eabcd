"""Callbacks of a pipeline: they see tensors of the host, and may give others back."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from tpuport import compat
from tpuport.diffusion import mixed_devices

_INPUTS = "callback_on_step_end_tensor_inputs"


def show_host(arguments: dict[str, Any]) -> None:
    """Put a function around every callback among the arguments of a pipeline's call.

    A tensor that a callback gives back as it was handed to it goes on on the device, without a copy.
    """
    for name, value in arguments.items():
        if name.startswith("callback") and callable(value):
            arguments[name] = _hosting(value)
            # diffusers' own callback objects name the tensors that they want, which the pipeline asks them for.
            wanted = getattr(value, "tensor_inputs", None)
            if wanted is not None and name == "callback_on_step_end":
                arguments[_INPUTS] = wanted


def _hosting(callback: Callable) -> Callable:
    # Keyword arguments of the function around it are the callback's own: pipelines look at nothing but calling it.
    @functools.wraps(callback, assigned=("__doc__",), updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        shown: list[tuple[torch.Tensor, int, torch.Tensor]] = []

        def show(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: show(held) for name, held in value.items()}
            if type(value) in (list, tuple):
                return type(value)(show(held) for held in value)
            if not (isinstance(value, torch.Tensor) and compat.is_ported(value)):
                return value
            host = mixed_devices.to_host(value)
            shown.append((host, host._version, value))
            return host

        args, kwargs = show(args), show(kwargs)
        return _returned(callback(*args, **kwargs), shown)

    return called


def _returned(out: Any, shown: list[tuple[torch.Tensor, int, torch.Tensor]]) -> Any:
    """What a callback gave, with untouched copies being the tensors of the device again."""
    if not isinstance(out, dict):
        return out
    untouched = {id(host): device for host, version, device in shown if host._version == version}
    for name, value in out.items():
        out[name] = untouched.get(id(value), value)
    return out
