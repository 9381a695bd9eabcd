"""In-place forms of elementwise operators that torchax has in their ordinary form
only.
"""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.compat.convert import jax_dtype
from tpuport.compat.declarations import Lowering
from tpuport.compat.operators.promotion import kind_rank

_aten = torch.ops.aten
_NAMES = (
    "abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sgn", "sign", "silu", "sin", "sinh",
    "square", "tan", "trunc",
)  # fmt: skip


def in_place(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The form of an operator that writes its result into its first argument, a tensor
    or a view, and returns it.
    """

    def write(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = function(tensor, *args, **kwargs)
        if not can_cast(result.dtype, tensor.dtype):
            raise RuntimeError(
                f"result type {result.dtype} can't be cast to the desired output type {tensor.dtype}"
                f" (in-place form of {function})"
            )
        # `copy_` writes through a view, and casts to its dtype.
        return tensor.copy_(result)

    return write


def can_cast(source: torch.dtype, target: torch.dtype) -> bool:
    """torch's rule for what an operator may write where: no floating result into
    integers, say.
    """
    return kind_rank(jax_dtype(source)) <= kind_rank(jax_dtype(target))


LOWERINGS = tuple(
    Lowering(
        getattr(_aten, f"{name}_").default,
        in_place(getattr(_aten, name).default),
        "has no lowering",
    )
    for name in _NAMES
)
METHODS = ()
