"""Tensors on the device whose arrays are still to be computed."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

from tpuport.internals.torchax_internals import ARRAY, ArrayOnDemand, set_array

# Attributes of a pending tensor.
_COMPUTE, _FORM, _DTYPE = "tpuport_compute", "tpuport_form", "tpuport_dtype"


class _Pending(ArrayOnDemand):
    """What a tensor is until its array is computed: its form is known, and whoever
    reads it lets it be computed.
    """

    def compute_array(self) -> Any:
        vars(self)[_COMPUTE]()
        return self._elem

    def replace_array(self, array: Any) -> None:
        vars(self)[_COMPUTE]()
        self._elem = array

    @property
    def shape(self) -> torch.Size:
        return torch.Size(vars(self)[_FORM].shape)

    @property
    def ndim(self) -> int:
        return len(vars(self)[_FORM].shape)

    @property
    def dtype(self) -> torch.dtype:
        return vars(self)[_DTYPE]


@functools.cache
def _pending_class(cls: type) -> type:
    """The class of a pending tensor whose class this was."""
    return type(cls.__name__, (_Pending, cls), {"__module__": cls.__module__})


def is_pending(tensor: Any) -> bool:
    """Whether the array of a tensor is still to be computed."""
    return _COMPUTE in vars(tensor)


def form_of(tensor: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a tensor's array."""
    if is_pending(tensor):
        return vars(tensor)[_FORM]
    array = vars(tensor)[ARRAY]
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def await_array(tensor: Any, compute: Callable[[], None]) -> None:
    """Take the array of a tensor away, until `compute` gives it another
    (`give_array`); does nothing if it waits already.
    """
    if is_pending(tensor):
        return
    form, dtype = form_of(tensor), tensor.dtype
    del vars(tensor)[ARRAY]
    vars(tensor).update({_COMPUTE: compute, _FORM: form, _DTYPE: dtype})
    tensor.__class__ = _pending_class(type(tensor))


def give_array(tensor: Any, array: Any) -> None:
    """Give a pending tensor its array."""
    tensor.__class__ = type(tensor).__bases__[1]
    for name in (_COMPUTE, _FORM, _DTYPE):
        del vars(tensor)[name]
    set_array(tensor, array)
