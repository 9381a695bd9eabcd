"""What torch itself does with a function by following its operations: records them, or
differentiates them.

It sees nothing of a compiled program, whose results would be constants to it.
"""

import torch

from tpuport.errors import PortError
from tpuport.internals.torch_internals import (
    TRANSFORMATIONS,
    forward_differentiation_level,
    is_function_transformed,
)


def refuse_transforms(name: str) -> None:
    """PortError if torch records or transforms what this thread calls.

    Args:
        name: of the compiled function.
    """
    if torch.jit.is_tracing():  # type: ignore[reportPrivateImportUsage]
        raise unseen("torch.jit.trace", name)
    # Before torch.func, which has a level of it where it differentiates forward.
    if TRANSFORMATIONS.works() and forward_differentiation_level() >= 0:
        raise unseen("forward-mode differentiation", name)
    if TRANSFORMATIONS.works() and is_function_transformed():
        raise unseen("torch.func", name)


def unseen(transform: str, name: str) -> PortError:
    """The error for what follows operations and meets a compiled program."""
    return PortError(
        f"{transform} sees nothing of what runs on the device",
        where=f"{transform} of {name}, which is a compiled program already",
        fix="use it on the model on the host, tpuport.to_cpu(model); jax differentiates on the device, "
        "torchax.interop.jax_value_and_grad",
    )
