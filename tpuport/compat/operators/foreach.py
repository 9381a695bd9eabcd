"""Operators over lists of tensors (`torch._foreach_add_`), with which optimizers,
averages and clipping work.

Each is its operator of single tensors, once for every tensor of the lists.
"""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Lowering, Method
from tpuport.internals.torch_internals import (
    OPTIMIZERS_OVER_LISTS,
    group_tensors,
    overload_name,
    schema_of,
)

_PREFIX = "aten::_foreach_"
_aten = torch.ops.aten


def _norm(
    tensor: torch.Tensor, order: Any = 2, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return _aten.linalg_vector_norm(tensor, order, dtype=dtype)


# What torch itself computes under another name.
_OTHER_NAMES: dict[str, Any] = {
    "maximum": _aten.clamp_min,
    "minimum": _aten.clamp_max,
    "norm": _norm,
}
_OTHER_NAMES |= {"maximum_": _aten.clamp_min_, "minimum_": _aten.clamp_max_}


def _lowering(overload: Any) -> Callable[..., Any]:
    name = schema_of(overload).name.removeprefix(_PREFIX)
    operator = _OTHER_NAMES.get(name) or getattr(_aten, name)
    takes_factor = name.startswith("addc")
    factors_are_tensor = takes_factor and overload_name(overload) == "Tensor"

    def run(*args: Any, **kwargs: Any) -> Any:
        if takes_factor and len(args) == 4:
            # By position for lists, by name for tensors.
            args, factors = args[:3], args[3]
            kwargs = {"value": factors.tolist() if factors_are_tensor else factors}
        results = [
            operator(
                *(_item(argument, index) for argument in args),
                **{key: _item(argument, index) for key, argument in kwargs.items()},
            )
            for index in range(_common_length([*args, *kwargs.values()]))
        ]
        return results if schema_of(overload).returns else None

    return run


def _common_length(arguments: list[Any]) -> int:
    lengths = [
        len(argument) for argument in arguments if isinstance(argument, (list, tuple))
    ]
    different = [length for length in lengths if length != lengths[0]]
    if different:
        raise RuntimeError(
            f"Tensor lists must have the same number of tensors, got {lengths[0]} and {different[0]}"
        )
    return lengths[0]


def _item(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, (list, tuple)) else argument


def _overloads() -> list[Any]:
    """All but those that write into `out=`, and those of an operator that single
    tensors do not have.
    """
    names = [name for name in dir(torch) if name.startswith("_foreach_")]
    packets = [
        getattr(_aten, name)
        for name in names
        if _is_of_single_tensors(name.removeprefix("_foreach_"))
    ]
    return [
        getattr(packet, name)
        for packet in packets
        for name in packet.overloads()
        if not name.endswith("out")
    ]


def _is_of_single_tensors(name: str) -> bool:
    return name in _OTHER_NAMES or hasattr(_aten, name)


def _group_by_device_and_dtype(
    tensors: list[list[Any]], with_indices: bool = False
) -> dict:
    """torch's own groups; to it, a tensor on the device is one without memory, to whose
    device nothing can go.
    """
    groups = {}
    for (device, dtype), group in group_tensors(tensors, with_indices).items():
        first = next(tensor for tensor in group[0][0] if tensor is not None)
        groups[first.device if is_ported(first) else device, dtype] = group
    return groups


LOWERINGS = tuple(
    Lowering(overload, _lowering(overload), "has no lowering")
    for overload in _overloads()
)
METHODS = (
    Method(
        "torch._C",
        "_group_tensors_by_device_and_dtype",
        _group_by_device_and_dtype,
        "is on no device to torch",
        OPTIMIZERS_OVER_LISTS,
    ),
)
