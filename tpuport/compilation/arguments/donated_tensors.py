"""Tensors that the user has donated to a compiled call: they have no memory any more,
and every use of them says so.
"""

import functools
from typing import Any, NoReturn

import jax
import torch

from tpuport import compat
from tpuport.errors import PortError
from tpuport.internals.torchax_internals import ArrayOnDemand


class _Donated(ArrayOnDemand):
    """What a tensor has in place of its array: its form is known, and every other use
    raises.

    Attributes:
        donated_form: its shape and dtype.
        donated_as: the name of the argument, and of the program.
    """

    donated_form: jax.ShapeDtypeStruct
    donated_as: tuple[str, str]

    def compute_array(self) -> NoReturn:
        name, program = self.donated_as
        raise PortError(
            f"this tensor was donated to an earlier call of {program}, whose results have its memory now",
            where=name,
            fix="go on with the one in that call's result, or leave the argument out of donate=",
        )

    def replace_array(self, array: Any) -> NoReturn:
        self.compute_array()

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.donated_form.shape)

    @property
    def ndim(self) -> int:
        return len(self.donated_form.shape)

    @property
    def dtype(self) -> torch.dtype:
        return compat.torch_dtype(self.donated_form.dtype)


@functools.cache
def _donated_class(cls: type) -> type:
    """The class of a donated tensor whose class this was."""
    return type(f"Donated{cls.__name__}", (_Donated, cls), {})


def mark_donated(tensor: Any, name: str, program: str) -> None:
    """Let every use of a tensor on the device say that it was donated, if it was."""
    array = compat.to_jax(tensor)
    # What the call has written to has a new array, and what no result could take over
    # has its own.
    if not isinstance(array, jax.Array) or not array.is_deleted():
        return
    tensor.donated_form = jax.ShapeDtypeStruct(array.shape, array.dtype)
    tensor.donated_as = name, program
    tensor.__class__ = _donated_class(type(tensor))
