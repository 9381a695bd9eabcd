"""A tensor of the host by its values, which are a part of a program's key."""

import dataclasses
import math
from typing import Any, Final

import jax
import torch

from tpuport import compat

_ELEMENTS_SHOWN: Final = 16


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HostInput:
    """An input whose values are a part of the program's key.

    Attributes:
        shape, dtype: of the tensor; data: its bytes, in the order of its elements.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    data: bytes

    @classmethod
    def of(cls, value: Any) -> "HostInput":
        """The input with the values of a tensor, on the host or on the device, or of an
        array.
        """
        tensor = _host_tensor(value)
        data = (
            tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            if tensor.numel()
            else b""
        )
        return cls(tuple(tensor.shape), tensor.dtype, data)

    def as_tensor(self) -> torch.Tensor:
        """A new tensor on the host with these values."""
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).reshape(
            self.shape
        )

    def __repr__(self) -> str:
        """Its values; of many, a number that is another one for other values."""
        if math.prod(self.shape) <= _ELEMENTS_SHOWN:
            return str(self.as_tensor().tolist())
        return f"{self.dtype}{self.shape} of hash {hash(self.data):x}"


def _host_tensor(value: Any) -> torch.Tensor:
    """The value on the host, contiguous."""
    if isinstance(value, jax.Array):
        value = compat.wrap(value)
    if compat.is_ported(value):
        return compat.to_torch(value)
    return torch.as_tensor(value).detach().contiguous()
