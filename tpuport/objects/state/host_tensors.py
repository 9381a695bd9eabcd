"""Tensors of the host that a state has: keys of programs by their values, and writes to
them.

What a model computes on the host while it is traced, and keeps, is another tensor with
the same values after every call: by identity each would need a program of its own.
"""

import contextlib
from collections.abc import Hashable, Iterable, Iterator
from typing import Final

import torch

from tpuport.internals.torch_internals import is_transformed
from tpuport.objects.state.host_input import HostInput
from tpuport.objects.static_values import Identity

# Elements of the largest tensor that is compared by its values: of a text of as many
# tokens, whatever a model remembers.
_MOST_ELEMENTS: Final = 2**16
_PLAIN_CLASSES: Final = (torch.Tensor, torch.nn.Parameter)


class HostTensors:
    """The tensors of the host in a state, in the order of its walk.

    Attributes:
        tensors: those whose keys are their values. All others are compared by identity
            and version, and writes to them are not repeated by programs.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        # By the id of the tensor, and by the address of its memory.
        self._numbers: dict[int, int] = {}
        self._memories: dict[int, int] = {}

    def key_of(self, tensor: torch.Tensor, version: int | None) -> Hashable:
        """The key of a tensor that the walk has come to: its values, and which tensors
        before it are the same one or share its memory.
        """
        if not _has_plain_values(tensor):
            return Identity(tensor), version
        number = self._numbers.setdefault(id(tensor), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
        memory = self._memories.setdefault(
            tensor.untyped_storage().data_ptr(), len(self._memories)
        )
        place = (number, memory, tensor.storage_offset(), tensor.stride())
        form = (type(tensor), tensor.requires_grad)
        return HostInput.of(tensor), place, form

    def find(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor among `tensors`."""
        return self._numbers.get(id(tensor))

    def values(self) -> list[HostInput]:
        """The present values of `tensors`."""
        return list(map(HostInput.of, self.tensors))

    def find_writes(self, before: list[HostInput]) -> tuple[tuple[int, HostInput], ...]:
        """The new values of the tensors that have others than before, by number."""
        pairs = enumerate(zip(before, self.values(), strict=True))
        return tuple((number, new) for number, (old, new) in pairs if new != old)

    @contextlib.contextmanager
    def restored(self, before: list[HostInput]) -> Iterator[None]:
        """Let the tensors have these values again when the block ends."""
        try:
            yield
        finally:
            self.restore(before)

    def restore(self, before: list[HostInput]) -> None:
        """Write the values of `values` into those tensors that have others now."""
        changed = [number for number, _ in self.find_writes(before)]
        self.write((number, before[number]) for number in changed)

    def write(self, writes: Iterable[tuple[int, HostInput]]) -> None:
        """Write values into tensors, in place."""
        with torch.no_grad():
            for number, value in writes:
                self.tensors[number].copy_(value.as_tensor())


def _has_plain_values(tensor: torch.Tensor) -> bool:
    """Whether the bytes of a tensor, which are few, are all that it is."""
    return (
        type(tensor) in _PLAIN_CLASSES
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not is_transformed(tensor)
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() <= _MOST_ELEMENTS
    )
