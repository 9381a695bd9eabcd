"""Integers of 64 bits and of 32, which the device counts alike: the dtype that a tensor
has in torch.

Code asks for it (`ids.dtype == torch.int64`), and torch decides by it what a sum gives.
The arrays of both are of int32, so the tensor says which it is: one of 64 bits, as
torch's integers are unless asked otherwise. With `jax_enable_x64`, the array says it.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from tpuport.compat.convert import is_ported, wrap
from tpuport.compat.declarations import Method
from tpuport.internals.torch_internals import (
    make_wrapper,
    torch_pytree,
    without_subclass_functions,
)
from tpuport.internals.torchax_internals import array_of

# A torchax tensor.
Ported = Any

_declared_dtype = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]


def _new(
    cls: type,
    elem: Any,
    env: Any,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
) -> Ported:
    """torchax's `Tensor.__new__`, with a dtype for integers whose array does not say
    it.
    """
    dtype = dtype or _usual_dtype(elem)
    has_gradients = dtype.is_floating_point or dtype.is_complex
    return make_wrapper(
        cls,
        elem.shape,
        dtype=dtype,
        device=torch.device("meta"),
        requires_grad=requires_grad and has_gradients,
    )


def _usual_dtype(array: jax.Array) -> torch.dtype:
    """That of a tensor of which nothing is known but its array."""
    # Imported here: the versions have to be checked before.
    from torchax.ops import mappings

    if array.dtype == np.int32 and not jax.config.read("jax_enable_x64"):
        return torch.int64
    return mappings.j2t_dtype(array.dtype)


def _dtype(tensor: Ported) -> torch.dtype:
    dtype = _usual_dtype(array_of(tensor))
    if dtype is not torch.int64:
        return dtype
    # torch's own property would come back here, by way of `__torch_function__`.
    with without_subclass_functions():
        declared = _declared_dtype(tensor)
    # The array may be another than the tensor was made with, and of another kind.
    return torch.int32 if declared is torch.int32 else dtype


def declare(tensor: Ported, dtype: torch.dtype) -> Ported:
    """A tensor of integers with this dtype of the two that its array may stand for: a
    new one, unless it has it already.
    """
    if tensor.dtype is dtype:
        return tensor
    declared: Ported = wrap(array_of(tensor), dtype)
    alias = getattr(tensor, "_alias", None)
    if alias is not None:
        alias.storage.remove(tensor)
        alias.storage.add(declared)
        declared._alias = alias
    declared._memory = getattr(tensor, "_memory", None)
    return declared


def has_narrow(leaves: list[Any]) -> bool:
    """Whether a function is given integers of 32 bits, or is asked for them."""
    return any(
        leaf is torch.int32 or getattr(leaf, "dtype", None) is torch.int32
        for leaf in leaves
    )


# Whatever their arguments are, these give integers of 64 bits: positions, counts, and
# the number that a tensor is.
_USUAL = (torch.ops.aten.nonzero, torch.ops.aten.bincount, torch.full)


def declare_results(
    function: Any,
    leaves: list[Any],
    outputs: Any,
    find_dtypes: Callable[[], list[torch.dtype] | None],
) -> Any:
    """The results of a function, integers of the dtypes that torch gives them.

    Args:
        function: that has been called, with these leaves of its arguments.
        outputs: its results.
        find_dtypes: what torch says of these, None if it does not without values.
    """
    results, structure = torch_pytree.tree_flatten(outputs)
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.dtype)]
    dtypes = asked[:1] or find_dtypes()
    packet = getattr(function, "overloadpacket", function)
    if dtypes is None and packet not in _USUAL:
        # Of what is selected by values, which positions may follow.
        dtypes = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)][:1]
    for index, (result, dtype) in enumerate(zip(results, dtypes or (), strict=False)):
        # Another dtype may be asked for, or the first tensor's, than integers have.
        is_usual = is_ported(result) and result.dtype is torch.int64
        if is_usual and dtype is torch.int32:
            results[index] = declare(result, dtype)
    return torch_pytree.tree_unflatten(results, structure)


METHODS = (
    Method(
        "Tensor", "__new__", staticmethod(_new), "takes integers for those of 32 bits"
    ),
    Method("Tensor", "dtype", property(_dtype), "takes integers for those of 32 bits"),
)
LOWERINGS = ()
