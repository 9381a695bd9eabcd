"""Tensors of the device met where they cannot be worked on: said so that the advice leads somewhere.

torchax advises to enable it globally, and then every tensor that is still on the host fails in turn.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

from tpuport.compat.convert import is_ported
from tpuport.compat.operators.registry import Method
from tpuport.errors import PortError


def _explained(owner: str) -> classmethod:
    """A `__torch_dispatch__` that asks torchax's own one, and explains its refusal."""

    def dispatch(cls: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from tpuport.compat.operators import original

        try:
            return original(owner, "__torch_dispatch__").__get__(None, cls)(func, types, args, kwargs)
        except AssertionError:
            raise PortError(
                "torch itself cannot work on a tensor that is on the device",
                where=f"{func} outside of torchax's environment",
                fix="tpuport.to_cpu(x) makes a result a torch tensor, and takes a ported model back, to save it say; "
                "tpuport.generate(model, ...) and tpuport.compile(model)(...) run a model; inside "
                "`with torchax.default_env():` single operations run on the device",
            ) from None

    return classmethod(dispatch)


def _to_jax(self: Any, tensors: Any) -> Any:
    """torchax's `t2j_iso`, which unwraps the operands of an operator; one on the host is named."""
    from tpuport.compat.operators import original

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
            fix='move it, x.to("jax"), or make it on the device of the others, device=y.device; '
            "tpuport.compile(model) takes arguments from the host as they are",
        ) from None


_REASON = "its message advises to enable torchax globally, where tensors of the host then fail"
LOWERINGS = ()
METHODS = (
    Method("Tensor", "__torch_dispatch__", _explained("Tensor"), _REASON),
    Method("View", "__torch_dispatch__", _explained("View"), _REASON),
    Method("Environment", "t2j_iso", _to_jax, "a tensor of the host among the operands is not named"),
)
