"""A tensor's memory on the device: which it is, how large, and which tensors share
it.
"""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.compat import aliasing, view_steps
from tpuport.compat.convert import assign, is_ported
from tpuport.compat.declarations import Method
from tpuport.compat.loaded_tensors import LoadedStorage
from tpuport.compat.operators.outside import Ported, is_traced, refuse_operation
from tpuport.compat.replacements import original
from tpuport.errors import PortError


def _refusing(name: str) -> Callable[..., Any]:
    """A method of a tensor's memory, which the host does not have."""

    def method(tensor: Ported, *args: Any) -> Any:
        return refuse_operation(f"{name}()")

    return method


class _DeviceStorage:
    """`tensor.untyped_storage()` on the device: which memory it is, and how large, as
    libraries ask before they save.

    Args:
        tensor: any of those that share the memory.
    """

    def __init__(self, tensor: Ported) -> None:
        self._tensor = tensor
        self.device = tensor.device

    def data_ptr(self) -> int:
        return aliasing.address(self._tensor)

    def nbytes(self) -> int:
        return aliasing.twin(self._tensor).untyped_storage().nbytes()

    size = nbytes

    def __getattr__(self, name: str) -> Any:
        return refuse_operation(f"untyped_storage().{name}")

    def __getitem__(self, index: Any) -> Any:
        return refuse_operation("untyped_storage()[...]")


def _untyped_storage(tensor: Ported) -> Any:
    return (
        refuse_operation("untyped_storage()")
        if is_traced(tensor)
        else _DeviceStorage(tensor)
    )


def _data_ptr(tensor: Ported) -> int:
    """The number by which torch's users and libraries tell whether tensors share
    memory.
    """
    if is_traced(tensor):
        return refuse_operation("data_ptr()")
    offset = aliasing.twin(tensor).storage_offset() * tensor.element_size()
    return aliasing.address(tensor) + offset if tensor.numel() else 0


def _storage_offset(tensor: Ported) -> int:
    return (
        refuse_operation("storage_offset()")
        if is_traced(tensor)
        else int(aliasing.twin(tensor).storage_offset())
    )


def _detached(tensor: Ported) -> Ported:
    """`tensor.data`: the same values without a gradient, and no parameter; a write to
    it reaches the tensor.
    """
    return tensor.detach()


def _set_data(tensor: Ported, other: torch.Tensor) -> None:
    """`tensor.data = other`: the tensor shows other values from now on, and those that
    viewed it with it do not.
    """
    if not is_ported(other):
        raise PortError(
            "a tensor on the device is to get the memory of one on the host",
            where="x.data = y",
            fix='x.data = y.to("jax"); tpuport.to_cpu(model) takes a whole model back',
        )
    aliasing.refuse_quantized(tensor)
    aliasing.leave(tensor)
    has_gradient = tensor.requires_grad and tensor.is_leaf
    # torch gives no other shape to a tensor that has a gradient.
    if has_gradient:
        tensor.requires_grad_(False)
    # torch's own note of the dtype, by which it decides that `tensor.float()` has
    # nothing to do.
    view_steps.on_twins(torch.Tensor.data.__set__, tensor, other)  # type: ignore[attr-defined]
    assign(tensor, other.jax())  # type: ignore[attr-defined]
    if has_gradient:
        tensor.requires_grad_(True)


def _set(tensor: Ported, source: Any = None, *memory: Any) -> Ported:
    """`tensor.set_(source)`: the tensor has the memory of another one, and writes to
    either are seen in both.
    """
    if tensor is source:
        return tensor
    if isinstance(source, LoadedStorage):
        return source.give(tensor, *memory)
    if memory or not is_ported(source) or is_traced(tensor) or is_traced(source):
        raise PortError(
            "a tensor on the device gets other memory, that of the host or inside of a compiled function",
            where="x.set_(y)",
            fix='outside of compiled code, x.set_(y.to("jax")) for a tensor y',
        )
    aliasing.refuse_quantized(tensor)
    # torch itself refuses another dtype, and a tensor that has a gradient.
    twin = view_steps.on_twins(
        torch.empty, tensor.shape, dtype=tensor.dtype, device="meta"
    )
    twin = view_steps.on_twins(
        twin.requires_grad_(tensor.requires_grad).set_, aliasing.twin(source)
    )
    has_gradient = tensor.requires_grad
    aliasing.leave(tensor)
    tensor.requires_grad_(False)
    assign(tensor, source.jax())
    tensor.requires_grad_(has_gradient)
    aliasing.link(tensor, source, view_steps.WHOLE, twin)
    return tensor


def _refuse_pinning(tensor: Ported, device: Any = None) -> Any:
    """torch pins tensors of the host alone, on a machine with a GPU too."""
    raise PortError(
        "only a tensor of the host can be pinned, and this one is on the device",
        where="x.pin_memory()",
        fix="leave it out, or pin the tensor before it is moved",
    )


def _swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
    """`torch.utils.swap_tensors`: arrays are among the attributes, which torch swaps;
    it refuses weak references.
    """
    with aliasing.exchanged(first, second):
        original("torch.utils", "swap_tensors")(first, second)


def _refuse_dlpack(tensor: Ported, *args: Any, **kwargs: Any) -> Any:
    """Another library would write into the array, which other tensors may have as
    well.
    """
    return refuse_operation("__dlpack__()")


def _to_dlpack(tensor: torch.Tensor) -> Any:
    """`torch.utils.dlpack.to_dlpack`, which asks no class of tensors."""
    return (
        refuse_operation("to_dlpack()")
        if is_ported(tensor)
        else original("torch.utils.dlpack", "to_dlpack")(tensor)
    )


LOWERINGS = ()
METHODS = (
    *(
        Method(
            "Tensor",
            name,
            _refusing(name),
            "is that of no memory, and the same for all tensors",
        )
        for name in ("storage", "apply_", "map_", "share_memory_")
    ),
    Method(
        "Tensor",
        "untyped_storage",
        _untyped_storage,
        "is that of no memory, and the same for all tensors",
    ),
    Method(
        "Tensor",
        "data_ptr",
        _data_ptr,
        "is that of no memory, and the same for all tensors",
    ),
    Method("Tensor", "is_shared", lambda tensor: False, "asks for memory of the host"),
    Method(
        "Tensor",
        "storage_offset",
        _storage_offset,
        "is that of no memory, and 0 for all tensors",
    ),
    Method(
        "torch.utils",
        "swap_tensors",
        _swap_tensors,
        "has weak references, which torch does not swap",
    ),
    Method("torch", "to_dlpack", _to_dlpack, "has no memory that DLPack could show"),
    Method(
        "torch.utils.dlpack",
        "to_dlpack",
        _to_dlpack,
        "has no memory that DLPack could show",
    ),
    Method(
        "Tensor",
        "__dlpack__",
        _refuse_dlpack,
        "is on a device that DLPack does not know",
    ),
    Method(
        "Tensor",
        "__dlpack_device__",
        _refuse_dlpack,
        "is on a device that DLPack does not know",
    ),
    Method(
        "Tensor",
        "data",
        property(_detached, _set_data),
        "warns that writes to it have no effect",
    ),
    Method("Tensor", "set_", _set, "has no lowering"),
    Method(
        "Tensor",
        "pin_memory",
        _refuse_pinning,
        "asks whether the host's memory is pinned",
    ),
    Method(
        "Tensor",
        "is_pinned",
        lambda tensor, device=None: False,
        "asks for memory of the host",
    ),
)
