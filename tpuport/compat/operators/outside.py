"""Errors for device tensors where torch cannot work on them, with advice that helps.

torchax's own message advises to enable torchax globally, and then every tensor that is still on the host fails.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

from tpuport.compat.convert import is_ported
from tpuport.compat.operators.declarations import Method
from tpuport.compat.replacements import original
from tpuport.errors import PortError


def _explaining_dispatch(owner: str) -> classmethod:
    """A `__torch_dispatch__` that calls torchax's, and explains its refusal."""

    def dispatch(cls: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        try:
            # What torchax has there is a classmethod, which is bound to its class by hand.
            return original(owner, "__torch_dispatch__").__get__(None, cls)(func, types, args, kwargs)
        except AssertionError:
            raise PortError(
                "torch itself cannot work on a tensor that is on the device",
                where=f"{func} outside of torchax's environment",
                fix="tpuport.to_cpu(x) turns a result into a torch tensor, and takes a ported model back to the CPU; "
                "tpuport.generate(model, ...) and tpuport.compile(model)(...) run a model; inside "
                "`with torchax.default_env():` single operations run on the device",
            ) from None

    return classmethod(dispatch)


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


_REASON = "its message advises to enable torchax globally, and then tensors on the host fail"
LOWERINGS = ()
METHODS = (
    Method("Tensor", "__torch_dispatch__", _explaining_dispatch("Tensor"), _REASON),
    Method("View", "__torch_dispatch__", _explaining_dispatch("View"), _REASON),
    Method("Environment", "t2j_iso", _to_jax, "its message does not name the operand that is on the host"),
)
