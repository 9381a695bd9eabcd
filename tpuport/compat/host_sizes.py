"""Sizes that are tensors of the host, as the integers that operations on the device
take.
"""

from typing import Any

import torch
import torch.overrides

from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Call

# Of these, every argument but the first is a size.
_OF_SIZES = frozenset({
    torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.expand, torch.Tensor.repeat, torch.Tensor.unflatten,
    torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_empty, torch.reshape,
})  # fmt: skip


def as_numbers(call: Call) -> None:
    """Make integers of the sizes of a function of a tensor on the device, where they
    are tensors of the host.

    torch takes `x.split([height * width])` and `x.view(height, width)` where
    `height, width = sizes[0]`.
    """
    args = call.args
    if not args or not is_ported(args[0]):
        return
    rest = args[1:]
    if call.function in _OF_SIZES:
        rest = map(_as_number, rest)
    call.args = (args[0], *map(_as_numbers, rest))
    if call.kwargs:
        call.kwargs = {name: _as_numbers(call.kwargs[name]) for name in call.kwargs}


def _as_number(value: Any) -> Any:
    return int(value) if _is_host_size(value) else value


def _as_numbers(value: Any) -> Any:
    """A list of integers, some of which are tensors, as integers; anything else as it
    is.
    """
    if type(value) not in (list, tuple) or not any(map(_is_host_size, value)):
        return value
    if not all(isinstance(leaf, int) or _is_host_size(leaf) for leaf in value):
        return value
    return type(value)(map(int, value))


def _is_host_size(value: Any) -> bool:
    is_host = type(value) is torch.Tensor and value.device.type == "cpu"
    return is_host and not value.ndim and value.dtype in (torch.int64, torch.int32)
