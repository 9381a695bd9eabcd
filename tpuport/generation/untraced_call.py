"""A ported model's own call as code of the host, where no program can compute it: a
length that follows from what the model computes, or a decision by it.

The model's code runs as it is written, over a view (`module_views`): the calls of its
modules are compiled programs, and what is between them is torch on the host.
"""

import functools
from collections.abc import Hashable
from typing import Any

import jax
import torch
from jax.sharding import Mesh

from tpuport import checkpoint, compat
from tpuport.checkpoint.device_layout import replicated_sharding
from tpuport.generation.module_views import (
    ModuleCalls,
    check_host,
    make_view,
    warn_of_host,
)
from tpuport.generation.option_values import without_absent
from tpuport.internals.torch_internals import torch_pytree
from tpuport.trace_errors import CannotTrace


class UntracedCall:
    """Calls of a ported model on the host, with tensors of the host or the device.

    Args:
        model: the model, whose class's forward it runs.

    Attributes:
        calls: of its modules.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.calls = ModuleCalls(model)
        # By the form of a call why it cannot be traced.
        self._errors: dict[Hashable, CannotTrace] = {}

    def knows(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether a call of this form could not be traced before."""
        return _form(args, kwargs) in self._errors

    def leave_to_host(
        self, args: tuple, kwargs: dict[str, Any], error: CannotTrace
    ) -> None:
        """Run calls of this form on the host from now on; the error if that would not
        help.
        """
        model = self._model
        function = getattr(model.forward.original, "__func__", None)
        if function is not type(model).forward:
            raise error
        check_host(model, error)
        if not self._errors:
            warn_of_host(model, error)
        # What it was raised from refers to frames, and these to arrays.
        error.__cause__ = error.__context__ = error.__traceback__ = None
        self._errors[_form(args, kwargs)] = error

    def run(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a known call; its result is on the device, as a program's.

        Raises:
            CannotTrace: why there is no program, if the code fails on the host too.
        """
        model = self._model
        on_host = torch_pytree.tree_map(checkpoint.fetch, (args, kwargs))
        try:
            with torch.no_grad():
                view = make_view(model, self.calls)
                output = type(model).forward(view, *on_host[0], **on_host[1])
        except Exception as host_error:
            # What the user can act on is why the usual way fails.
            raise self._errors[_form(args, kwargs)] from host_error
        mesh = checkpoint.model_mesh(model)
        assert mesh is not None
        put = functools.partial(_put, mesh=mesh)
        return torch_pytree.tree_map_only(torch.Tensor, put, output)


def _form(args: tuple, kwargs: dict[str, Any]) -> Hashable:
    """Which arguments a call has."""
    return len(args), frozenset(without_absent(kwargs))


def _put(tensor: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """A tensor of the host on every device of a mesh."""
    if compat.is_ported(tensor):
        return tensor
    array = compat.to_jax(tensor)
    return compat.wrap(jax.device_put(array, replicated_sharding(mesh)), tensor.dtype)
