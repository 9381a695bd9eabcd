"""Bicubic interpolation, whose coordinates need more digits than half precision has."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from tpuport.compat.operators.declarations import Lowering, on_arrays

_aten = torch.ops.aten


def _in_float32(decomposition: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch's decomposition, computed in float32 and rounded once."""

    @functools.wraps(decomposition)
    def interpolate(image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if image.dtype not in _HALF:
            return decomposition(image, *args, **kwargs)
        return decomposition(image.float(), *args, **kwargs).to(image.dtype)

    return interpolate


def interpolate(image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`functional.interpolate`, which torchax has for some modes."""
    from torchax.ops.ops_registry import all_torch_functions

    if image.dtype in _HALF and kwargs.get("mode") == "bicubic":
        return torch.nn.functional.interpolate(image.float(), *args, **kwargs).to(image.dtype)
    torchax_function = all_torch_functions[torch.nn.functional.interpolate].func
    return on_arrays(torchax_function)(image, *args, **kwargs)


_HALF = (torch.bfloat16, torch.float16)
_COORDINATES = "computes coordinates in half precision"
LOWERINGS = (
    Lowering(torch.nn.functional.interpolate, interpolate, _COORDINATES),
    *(
        Lowering(target, _in_float32(decomposition_table[target]), _COORDINATES)
        for target in (_aten.upsample_bicubic2d.default, _aten.upsample_bicubic2d.vec)
    ),
)
METHODS = ()
