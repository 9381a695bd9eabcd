"""Tensors of the host that a part of a ported model is given, moved to the device.

The model's own call takes tensors of the host. So do its methods and its parts, such as
an encoder, or what PEFT has merged: their first operation has the tensor beside a
weight that is on the device.
"""

import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from jax.core import Tracer

from tpuport.compat.convert import is_ported, to_device
from tpuport.compat.declarations import Call
from tpuport.compat.operators.outside import takes_host_tensors
from tpuport.errors import PortError
from tpuport.internals.torchax_internals import ARRAY

LOWERINGS = ()
METHODS = ()
_TAKES_ALL = 0x04 | 0x08  # inspect.CO_VARARGS, CO_VARKEYWORDS


def move(call: Call) -> None:
    """Move the arguments of an operation to the device, if it has some there and the
    `forward` of a module with weights there was given tensors of the host.
    """
    args, kwargs = call.args, call.kwargs
    values = (*args, *kwargs.values()) if kwargs else args
    if not any(map(_is_of_host, values)):
        return
    if takes_host_tensors() or any(map(_is_traced, values)):
        return
    # Its code may have computed with them before, on the host.
    if not any(map(is_ported, values)) or not any(
        map(_is_of_host, _arguments_of_modules())
    ):
        return
    name = getattr(call.function, "__name__", "").partition(".")[0]
    if name.endswith("_") and args and _is_of_host(args[0]):
        if name == "copy_":
            return
        raise PortError(
            f"{name} writes what is on the device to a tensor on the host",
            where=f"{args[0].dtype} {list(args[0].shape)} on the host",
            fix='compute a new tensor, or give the module a tensor of the device, x.to("jax")',
        )
    call.args = tuple(map(_moved, args))
    call.kwargs = {name: _moved(kwargs[name]) for name in kwargs}


def _moved(value: Any) -> Any:
    return to_device(value) if _is_of_host(value) else value


def _is_traced(value: Any) -> bool:
    # Rows that a mask has selected have no array, and asking for one would compute it.
    return is_ported(value) and isinstance(vars(value).get(ARRAY), Tracer)


def _is_of_host(value: Any) -> bool:
    # A single number takes part as such.
    return isinstance(value, torch.Tensor) and not is_ported(value) and value.ndim > 0


def _arguments_of_modules() -> Iterator[Any]:
    """What was given to each `forward` that is running now, of a module with weights on
    the device.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward":
            module, *arguments = _arguments(frame) or [None]
            if isinstance(module, torch.nn.Module) and _is_on_device(module):
                yield from arguments
        frame = frame.f_back


def _arguments(frame: types.FrameType) -> list[Any]:
    """The arguments that a function was called with, also those in tuples, lists and
    dictionaries among them.
    """
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += (code.co_flags & _TAKES_ALL).bit_count()
    variables = frame.f_locals
    arguments = [variables.get(name) for name in code.co_varnames[:count]]
    for value in list(arguments):
        if isinstance(value, dict):
            arguments += value.values()
        elif isinstance(value, tuple | list):
            arguments += value
    return arguments


def _is_on_device(module: torch.nn.Module) -> bool:
    return any(map(is_ported, module.parameters()))
