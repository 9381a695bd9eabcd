"""What of torch's differentiation does not reach the device: forward mode, all of
`torch.autograd.functional`, and the fused kernels of optimizers.
"""

from typing import Any

import torch

from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Lowering, Method
from tpuport.compat.replacements import original
from tpuport.errors import PortError


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise PortError(
        "torch.autograd.functional and forward-mode differentiation see nothing of what runs on the device",
        fix="use loss.backward() or torch.autograd.grad; "
        "tpuport.compile(torchax.interop.jax_value_and_grad(loss)) computes gradients by jax.grad",
    )


def _check_requires_grad(tensors: tuple, input_type: str, strict: bool) -> None:
    """Asked by all of `torch.autograd.functional`, which takes results without a
    gradient for constants.
    """
    if input_type == "outputs" and any(map(is_ported, tensors)):
        _refuse()
    original("torch.autograd.functional", "_check_requires_grad")(
        tensors, input_type, strict
    )


def _refuse_fused(*args: Any, **kwargs: Any) -> Any:
    raise PortError(
        "an optimizer's fused kernel does not run on the device",
        fix="leave fused=True out: the optimizer computes the same, operation by operation",
    )


_aten = torch.ops.aten
_FUSED_STEPS = [
    getattr(operator, overload)
    for operator in (
        _aten._fused_adam_,
        _aten._fused_adamw_,
        _aten._fused_sgd_,
        _aten._fused_adagrad_,
    )
    for overload in operator.overloads()
]
_REASON = "leaves out what its own functions compute"
LOWERINGS = (
    # Of forward-mode differentiation, before anything else.
    Lowering(
        torch.ops.aten._has_same_storage_numel.default, _refuse, "has no lowering"
    ),
    *(
        Lowering(overload, _refuse_fused, "has no lowering")
        for overload in _FUSED_STEPS
    ),
)
METHODS = (
    Method(
        "torch.autograd.functional",
        "_check_requires_grad",
        _check_requires_grad,
        "has no gradients",
    ),
)
