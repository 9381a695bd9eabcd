"""Views and copies: torchax forgets that most views share memory, and takes some copies
for the tensor itself.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport.compat import aliasing, view_steps
from tpuport.compat.argument_checks import require
from tpuport.compat.convert import as_jax, is_ported, wrap
from tpuport.compat.declarations import Lowering, Method
from tpuport.internals.torch_internals import share_storage
from tpuport.internals.torchax_internals import TENSOR_ATTRIBUTES

_aten = torch.ops.aten
# A torchax tensor.
Ported = Any
_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def view(
    tensor: torch.Tensor,
    *shape: Any,
    dtype: torch.dtype | None = None,
    size: Any = None,
) -> torch.Tensor:
    """`tensor.view(shape)`, also where torch has other strides than those known here
    and finds no view.
    """
    shape = shape if size is None else (size,)
    if dtype is not None or isinstance(shape[0], torch.dtype):
        return _aten.view.dtype(tensor, dtype or shape[0])
    result = _aten.view.default(tensor, _as_size(shape))
    if getattr(result, "_alias", None) is None:
        # Where its elements are in torch is not known.
        step = view_steps.Step(
            "view()", lambda array: array.reshape(result.shape), _reshape_back, False
        )
        aliasing.link(result, tensor, step, aliasing.twin(result))
    return result


def _as_size(shape: tuple) -> Any:
    """The sizes of `view(2, 3)` and of `view((2, 3))`."""
    if isinstance(shape[0], int):
        return shape
    return shape[0]


def _reshape_back() -> view_steps.Write:
    return lambda array, values: values.reshape(array.shape)


def reshape(tensor: torch.Tensor, *sizes: Any, shape: Any = None) -> torch.Tensor:
    """`tensor.reshape(shape)`: a view if the strides allow one, else a copy."""
    size = _as_size(sizes) if shape is None else shape
    result = _aten.view.default(tensor, size)
    if _is_view_of_twin(torch.Tensor.reshape, tensor, size):
        return result
    return wrap(result.jax())


def narrow(tensor: Ported, dim: int, start: Any, length: int) -> torch.Tensor:
    """`tensor.narrow(dim, start, length)`, whose start may be a number that only a
    program knows.
    """
    _require_integer(start)
    if not is_ported(start) or not isinstance(start.jax(), Tracer):
        return _aten.narrow.default(tensor, dim, int(start), length)
    first, axis = start.jax(), dim % tensor.ndim
    twin = aliasing.twin(tensor)
    # Raises if it is too long.
    view_twin = view_steps.on_twins(torch.narrow, twin, axis, 0, length)
    # Counted from the end, as torch does.
    first = jnp.where(first < 0, first + tensor.shape[axis], first)

    def read(array: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(array, first, length, axis)

    def write(array: jax.Array, values: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(array, values, first, axis)

    result = wrap(read(tensor.jax()))
    aliasing.link(
        result,
        tensor,
        view_steps.Step("narrow()", read, lambda: write, False),
        view_twin,
    )
    return result


def _require_integer(start: Any) -> None:
    if isinstance(start, torch.Tensor):
        is_integer = start.ndim == 0 and start.dtype in _INTEGERS
        require(is_integer, "start must be an 0-dim integral Tensor.")


def ravel(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor.ravel()`: unlike `reshape(-1)`, a copy of every tensor whose elements are
    not next to one another.
    """
    return contiguous(tensor).view(-1)


def reshape_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`tensor.reshape_as(other)`."""
    return reshape(tensor, other.shape)


def contiguous(
    tensor: torch.Tensor,
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """`tensor.contiguous()`: the tensor itself if its strides in torch are contiguous,
    else a copy.
    """
    if aliasing.twin(tensor).is_contiguous(memory_format=memory_format):
        return tensor
    return wrap(as_jax(tensor))


def detach(tensor: Ported) -> torch.Tensor:
    """`tensor.detach()`: a view without a gradient."""
    view = wrap(jax.lax.stop_gradient(tensor.jax()), tensor.dtype)
    step = view_steps.Step(
        "detach()", jax.lax.stop_gradient, lambda: lambda array, values: values
    )
    aliasing.link(view, tensor, step, aliasing.twin(tensor))
    return view


# Attributes of torchax and of this package; all others are the user's.
_OWN_ATTRIBUTES = TENSOR_ATTRIBUTES | {"_alias", "_memory"}


def deepcopy(tensor: Ported, memo: dict[int, Any]) -> torch.Tensor:
    """`copy.deepcopy(tensor)`: a parameter if the tensor is one, as a copied model's
    weights have to be.
    """
    # Another array, because a program may be given the memory of this one.
    duplicate = wrap(tensor.jax().copy(), tensor.dtype)
    if isinstance(tensor, torch.nn.Parameter):
        duplicate = torch.nn.Parameter(duplicate, tensor.requires_grad)
    elif tensor.requires_grad:
        duplicate.requires_grad_()
    memo[id(tensor)] = duplicate
    for name in vars(tensor).keys() - _OWN_ATTRIBUTES:
        setattr(duplicate, name, copy.deepcopy(getattr(tensor, name), memo))
    return duplicate


def is_contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> bool:
    """`tensor.is_contiguous()` of the strides that a view has in torch."""
    return aliasing.twin(tensor).is_contiguous(memory_format=memory_format)


def stride(tensor: torch.Tensor, *dim: int) -> Any:
    """`tensor.stride()`, or that of one dimension."""
    return aliasing.twin(tensor).stride(*dim)


def _is_view_of_twin(func: Any, tensor: torch.Tensor, *args: Any) -> bool:
    twin = aliasing.twin(tensor)
    result = view_steps.on_twins(func, twin, *args)
    return share_storage(result, twin)


def fill_diagonal_(tensor: Any, fill_value: Any, wrap: bool = False) -> Any:
    """`tensor.fill_diagonal_(value)`."""
    return tensor.masked_fill_(_diagonal_mask(tensor.shape, wrap), fill_value)


def _diagonal_mask(shape: tuple[int, ...], is_wrapped: bool) -> torch.Tensor:
    mask = np.zeros(shape, dtype=bool)
    np.fill_diagonal(mask, True, wrap=is_wrapped)
    return wrap(jnp.asarray(mask))


_COPY = "gives a view where torch has to copy"
LOWERINGS = (
    Lowering(torch.Tensor.view, view, "is a copy of what torch has in another layout"),
    Lowering(torch.Tensor.reshape, reshape, _COPY),
    Lowering(torch.reshape, reshape, _COPY),
    Lowering(torch.Tensor.reshape_as, reshape_as, _COPY),
    Lowering(
        torch.Tensor.narrow, narrow, "asks for the value of a start on the device"
    ),
    Lowering(torch.narrow, narrow, "asks for the value of a start on the device"),
    Lowering(torch.Tensor.ravel, ravel, _COPY),
    Lowering(torch.ravel, ravel, _COPY),
    Lowering(
        torch.Tensor.fill_diagonal_,
        fill_diagonal_,
        "writes beside the diagonal of a view",
    ),
    Lowering(
        torch.Tensor.contiguous,
        contiguous,
        "gives the tensor itself where torch copies",
    ),
    # torch's own decompositions, as of bilinear resampling and affine grids, ask for
    # these below its functions.
    Lowering(_aten.contiguous.default, contiguous, "has no lowering"),
    Lowering(
        _aten.mT.default, lambda tensor: tensor.transpose(-1, -2), "has no lowering"
    ),
)
METHODS = (
    Method("Tensor", "__deepcopy__", deepcopy, "tries to copy the environment too"),
    Method("Tensor", "is_contiguous", is_contiguous, "is true of every view"),
    Method("Tensor", "stride", stride, "is that of a contiguous tensor for every view"),
    Method("Tensor", "detach", detach, "gives a copy"),
)
