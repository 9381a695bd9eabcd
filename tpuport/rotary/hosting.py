"""A rotary module's own forward, run on the host, with tensors that have a shape and no values."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module

from tpuport import compat
from tpuport.rotary.finding import Arguments, Shape

# These take of the tensor that they are called on its dtype and device, and nothing else.
_MAKERS = frozenset({"new_zeros", "new_ones", "new_full", "new_empty"})


class ValuesRead(Exception):
    """A module looked at the values of a tensor that has none."""


class _ShapeOnly(torch.Tensor):
    """A tensor on the host without memory: whoever asks for more than its shape, dtype and device gets ValuesRead."""

    @staticmethod
    def __new__(cls: Any, shape: Shape) -> "_ShapeOnly":
        return torch.Tensor._make_wrapper_subclass(
            cls, shape.shape, dtype=shape.dtype, device=torch.device("cpu")
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _MAKERS:
            raise ValuesRead(name)
        return func(torch.empty(0, dtype=args[0].dtype), *args[1:], **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"_ShapeOnly({tuple(self.shape)})"


def elsewhere(function: Callable[[], Any]) -> Any:
    """Call `function` in a thread of its own: modes that send torch's operators to the device belong to a thread."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                result.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=work, name="tpuport-rotary")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


class Host:
    """A rotary module with what it needs to run on the host.

    Args:
        module: its buffers may be on the device; they are copied now.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._forward = module.forward
        self._buffers = {
            name: compat.to_torch(compat.as_jax(buffer)) if compat.is_ported(buffer) else buffer
            for name, buffer in module.named_buffers()
        }

    def __call__(self, arguments: Arguments) -> Any:
        """What the module's own forward gives, on the host.

        Args:
            arguments: `Shape` or a torch tensor on the host for each tensor.

        Raises:
            ValuesRead: it depends on the values of a tensor given by its shape.
        """
        stand_ins = {
            place: _ShapeOnly(leaf) for place, leaf in enumerate(arguments.leaves) if isinstance(leaf, Shape)
        }
        args, kwargs = arguments.replaced(stand_ins).call()

        def run() -> Any:
            with _reparametrize_module(self._module, self._buffers):
                return self._forward(*args, **kwargs)

        return elsewhere(run)
