"""`torch.load(path, map_location="jax")`: tensors of a file on the device.

torch reads the bytes of a storage, moves them to where `map_location` says, and gives
them to tensors by `set_`. No storage can be on the device, so that what stands for it
has the bytes on the host, and each tensor its own array.
"""

import weakref
from typing import Any

import torch

from tpuport.compat import aliasing, view_steps
from tpuport.compat.convert import assign, to_jax
from tpuport.errors import PortError
from tpuport.internals.torch_internals import deserializers, is_filled_later

# Asked before torch's own deserializer of the device, which asks for a storage there.
_PRIORITY = 19


class LoadedStorage(torch.UntypedStorage):
    """A storage of a file that is loaded to the device. It is empty itself.

    Args:
        contents: of the storage, on the host.
        device: where its tensors will be.
    """

    device: Any = None

    def __new__(
        cls, contents: torch.UntypedStorage, device: torch.device
    ) -> "LoadedStorage":
        return super().__new__(cls, 0)  # type: ignore[reportCallIssue]

    def __init__(self, contents: torch.UntypedStorage, device: torch.device) -> None:
        self._contents = contents
        self.device = device
        self._tensors: list[tuple[tuple, weakref.ref]] = []

    def nbytes(self) -> int:
        return self._contents.nbytes()

    def data_ptr(self) -> int:
        """By which torch tells that it has read a storage, and shows it to the next
        tensor again.
        """
        return self._contents.data_ptr()

    def give(self, tensor: Any, offset: int, size: Any, stride: Any) -> Any:
        """`tensor.set_(storage, offset, size, stride)` of a new tensor.

        Raises:
            PortError: another tensor of the file shows other elements of the same
                memory.
        """
        dtype = getattr(tensor, "_wide_dtype", tensor.dtype)
        layout = (dtype, offset, tuple(size), tuple(stride))
        for other_layout, reference in self._tensors:
            other = reference()
            if other is not None and other_layout == layout:
                return tensor.set_(other)
            if other is not None and self._meet(layout, other_layout):
                raise _unsupported("two tensors of the file that share memory")
        assign(tensor, to_jax(self._show(layout)))
        self._tensors.append((layout, weakref.ref(tensor)))
        return tensor

    def _show(self, layout: tuple) -> torch.Tensor:
        dtype, *extent = layout
        return view_steps.on_twins(
            lambda: torch.empty(0, dtype=dtype).set_(self._contents, *extent)
        )

    def _meet(self, layout: tuple, other: tuple) -> bool:
        return aliasing.may_overlap(self._show(layout), self._show(other))


def _unsupported(what: str) -> PortError:
    return PortError(
        f"{what} cannot be loaded to the device",
        where='torch.load(map_location="jax")',
        fix='torch.load(path, map_location="cpu"); tpuport.port and load_state_dict take tensors of the host, and '
        'x.to("jax") moves a tensor',
    )


def _deserialize(storage: torch.UntypedStorage, location: str) -> LoadedStorage | None:
    if location.partition(":")[0] != "jax":
        return None
    if is_filled_later(storage):
        # Its contents follow after all tensors.
        raise _unsupported("a file of torch's former format")
    return LoadedStorage(storage, torch.device(location))


_ENTRY: Any = (_PRIORITY, lambda storage: None, _deserialize)


def install() -> None:
    """Let torch load to the device. Does nothing the second time."""
    if _ENTRY not in deserializers():
        torch.serialization.register_package(*_ENTRY)


def uninstall() -> None:
    """Take the deserializer back."""
    if _ENTRY in deserializers():
        deserializers().remove(_ENTRY)
