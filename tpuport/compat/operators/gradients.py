"""Gradients: torch's autograd sees some operations on the device and not others, so that a part would be missing."""

from typing import Any

import torch

from tpuport.compat.operators.declarations import Lowering
from tpuport.errors import PortError


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise PortError(
        "torch's autograd records nothing of what runs on the device, so there is no gradient",
        fix="tpuport.compile(torchax.interop.jax_value_and_grad(loss)) computes gradients by jax.grad; or train on the "
        "host",
    )


_REASON = "leaves out what its own functions compute"
LOWERINGS = (
    Lowering(torch.Tensor.backward, _refuse, _REASON),
    Lowering(torch.autograd.backward, _refuse, _REASON),
    Lowering(torch.autograd.grad, _refuse, _REASON),
)
METHODS = ()
