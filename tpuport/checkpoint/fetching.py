"""Back to the host: results as torch tensors, a ported model as the model that it was."""

from typing import Any

import jax
import torch
from jax.core import Tracer

from tpuport import compat, pytrees
from tpuport.checkpoint.device_layout import find_owner, parameter_groups
from tpuport.errors import PortError


def to_cpu(value: Any) -> Any:
    """Copy what is on the devices to the host, as plain torch tensors of the same shape and dtype.

    Sharded arrays are gathered whole. Integers that the port made 32 bits wide stay so.

    Args:
        value: a tensor on the device; whatever a compiled function gave: a transformers output, a cache, a list or
            dict of them; or a ported module, which is moved back in place, one tensor after the other.

    Returns:
        The same with tensors on the CPU; what is there already is left as it is.

    Raises:
        PortError: a part of an array is on the devices of another process, or the value is being traced.
    """
    if isinstance(value, torch.nn.Module):
        return _take_back(value)
    pytrees.register()
    pytrees.register_used(value)
    return jax.tree.map(_fetch, value)


def _fetch(leaf: Any, name: str | None = None) -> Any:
    if not (isinstance(leaf, jax.Array) or compat.is_ported(leaf)):
        return leaf
    array = compat.as_jax(leaf)
    _check(array, name)
    return compat.to_torch(array)


def _check(array: jax.Array, name: str | None) -> None:
    where = name or f"{array.dtype} {list(array.shape)}"
    if isinstance(array, Tracer):
        raise PortError(
            "a value inside a compiled function is not there yet", where=where, fix="return it, then fetch it"
        )
    if array.is_deleted():
        raise PortError(
            "this array was donated to an earlier call", where=where, fix="use that call's output"
        )
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise PortError(
            "a part of this array is on the devices of another process",
            where=where,
            fix="gather it first: jax.experimental.multihost_utils.process_allgather(array, tiled=True)",
        )


def _take_back(model: torch.nn.Module) -> torch.nn.Module:
    """Move every parameter, buffer and plain attribute of a module that is on the device to the host, in place."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for name, tensor in (parameters | buffers).items():
        if compat.is_ported(tensor):
            _check(compat.as_jax(tensor), name)
    for names in parameter_groups(model):
        parameter = model.get_parameter(names[0])
        if compat.is_ported(parameter):
            host = torch.nn.Parameter(_fetch(parameter), requires_grad=False)
            for module, leaf in (find_owner(model, name) for name in names):
                module._parameters[leaf] = host
    for module in model.modules():
        for held in (module._buffers, vars(module)):
            ported = {name: tensor for name, tensor in held.items() if compat.is_ported(tensor)}
            held.update({name: _fetch(tensor) for name, tensor in ported.items()})
    vars(model).pop("tpuport_mesh", None)
    return model
