"""Tensors on the device outside of torchax's environment: operations run in it, and what cannot run is explained.

torchax refuses every operation there and advises to enable it globally, after which tensors of the host fail.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.core import Tracer
from torch.utils import _pytree as torch_pytree

from tpuport.compat.convert import is_ported, to_torch
from tpuport.compat.operators.declarations import Method
from tpuport.compat.replacements import original
from tpuport.compat.runtime import environment, on_device
from tpuport.errors import PortError

# A torchax tensor.
Ported = Any


class _Running(threading.local):
    """Whether this thread runs an operation in the environment on behalf of code outside."""

    is_inside = False


_running = _Running()


def _dispatch(cls: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    """torchax's `__torch_dispatch__`, which is reached outside of its environment only."""
    if _running.is_inside:
        # Its environment does not take this operator: what it says of itself ends the loop.
        return _refuse(func)
    return _run_inside(func, args, kwargs)


def _run_inside(func: Any, args: tuple, kwargs: dict | None) -> Any:
    _running.is_inside = True
    try:
        return on_device(func, args, kwargs or {})
    finally:
        _running.is_inside = False


def _refuse(operation: Any) -> Any:
    raise PortError(
        "torch itself cannot work on a tensor that is on the device",
        where=str(operation),
        fix="tpuport.to_cpu(x) turns a result into a torch tensor, and takes a ported model back to the CPU; "
        "tpuport.generate(model, ...) and tpuport.compile(model)(...) run a model",
    )


def _refusing(name: str) -> Callable[..., Any]:
    """A method that asks for a tensor's memory, by which `save_pretrained` would take all tensors here for one."""

    def refuse(tensor: Ported) -> Any:
        return _refuse(f"{name}()")

    return refuse


def _to_text(tensor: Ported) -> str:
    """As torch prints a tensor on a device, or torchax a tensor that is traced."""
    if isinstance(tensor._elem, Tracer):
        return f"Tensor({type(tensor._elem)} {tensor._elem})"
    text = repr(to_torch(tensor._elem))
    return f"{text[:-1]}, device='{tensor.device}')"


def _format(tensor: Ported, specification: str) -> str:
    """A tensor without dimensions is formatted as its number."""
    if tensor.ndim == 0 and not isinstance(tensor._elem, Tracer):
        return format(tensor._elem.item(), specification)
    return object.__format__(tensor, specification)


def _torch_function(cls: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    """Functions of torch that are called outside run in the environment, where some have a lowering of their own."""
    if _running.is_inside or environment().enabled:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
    return _run_inside(func, args, kwargs)


def _reduce(tensor: Ported, protocol: int) -> Any:
    """Pickled, and saved by `torch.save`, as the tensor on the host; loading it needs no torchax."""
    return to_torch(tensor.jax()).__reduce_ex__(protocol)


def _to_jax(self: Any, tensors: Any) -> Any:
    """torchax's `t2j_iso`, which unwraps the operands of an operator; one on the host is named."""
    unwrap: Callable[..., Any] = original("Environment", "t2j_iso")
    try:
        return unwrap(self, tensors)
    except AssertionError:
        leaves = torch_pytree.tree_leaves(tensors)
        hosts = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not is_ported(leaf)]
        if self.config.debug_mixed_tensor or not hosts:
            raise
        raise PortError(
            "an operation has one tensor on the device and one on the host",
            where=", ".join(f"{host.dtype} {list(host.shape)} on the host" for host in hosts),
            fix='move it, x.to("jax"), or create it on the device of the others, device=y.device; '
            "tpuport.compile(model) takes arguments from the host itself",
        ) from None


def _to_host(environment: Any, arrays: Any) -> Any:
    """torchax's `j2t_copy`. Its tensors share the memory of their arrays, so that a write to one changed both."""
    return torch_pytree.tree_map_only(jax.Array, to_torch, arrays)


LOWERINGS = ()
METHODS = (
    Method("Tensor", "__torch_dispatch__", classmethod(_dispatch), "refuses every operation outside"),
    Method("Tensor", "__torch_function__", classmethod(_torch_function), "refuses every function outside"),
    Method("Tensor", "__format__", _format, "formats no number"),
    Method("Tensor", "__repr__", _to_text, "shows the type of the array inside"),
    Method("Tensor", "__str__", _to_text, "shows the type of the array inside"),
    *(
        Method("Tensor", name, _refusing(name), "is that of no memory, and the same for all tensors")
        for name in ("storage", "untyped_storage", "data_ptr")
    ),
    Method("Tensor", "__reduce_ex__", _reduce, "cannot be pickled"),
    Method("Environment", "j2t_copy", _to_host, "gives tensors that share memory with arrays of jax"),
    Method("Environment", "t2j_iso", _to_jax, "its message does not name the operand that is on the host"),
)
