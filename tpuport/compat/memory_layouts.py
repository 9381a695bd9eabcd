"""Where the elements of tensors are in a memory that they share, from their strides."""

import numpy as np
import torch

from tpuport.errors import PortError

# Elements of memory up to this size are listed to see which of them two tensors share.
_LISTED_BYTES = 1 << 20


def layouts_meet(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of the same memory have elements in common; True if it is
    hard to tell.
    """
    (first_start, first_end), (second_start, second_end) = _range(first), _range(second)
    if not (first_start < second_end and second_start < first_end):
        return False
    if max(first_end, second_end) > _LISTED_BYTES:
        return True
    # Interleaved views, such as the halves of a last dimension, have nothing in common.
    return not _bytes(first).isdisjoint(_bytes(second))


def is_inside(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether all elements of a tensor are elements of another one of the same memory;
    False if it is hard to tell.
    """
    (first, end), (whole_first, whole_end) = _range(view), _range(whole)
    if not (whole_first <= first and end <= whole_end):
        return False
    if whole.is_contiguous():
        return True
    return whole_end <= _LISTED_BYTES and _bytes(view) <= _bytes(whole)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its memory, and the one after its last."""
    if tensor.numel() == 0:
        return 0, 0
    span = sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    first = int(tensor.storage_offset()) * tensor.element_size()
    return first, first + int(span + 1) * tensor.element_size()


def _bytes(tensor: torch.Tensor) -> set[int]:
    """The first byte of each element of a tensor in its memory."""
    return set((places_in_memory(tensor) * tensor.element_size()).tolist())


def places_in_memory(tensor: torch.Tensor) -> np.ndarray:
    """Where in its memory each element of a tensor is, in their order."""
    places = np.full(1, int(tensor.storage_offset()))
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + np.arange(size) * int(stride)).ravel()
    return places


def order_in_memory(layout: torch.Tensor, view: torch.Tensor) -> np.ndarray:
    """Which element of a layout, counted in its order, is each one of a view of the
    same memory.

    Raises:
        PortError: the view shows memory that the layout has not.
    """
    available, wanted = places_in_memory(layout), places_in_memory(view)
    order = np.argsort(available, kind="stable")
    if not wanted.size:
        return np.zeros(0, np.int64)
    ranks = np.searchsorted(available, wanted, sorter=order)
    is_available = (ranks < len(order)).all() and (
        available[order[ranks]] == wanted
    ).all()
    if not is_available:
        raise PortError(
            "as_strided() reads memory that no tensor on the device shows",
            where=f"size {list(view.shape)}, stride {list(view.stride())}, offset {view.storage_offset()}",
            fix="apply it to the tensor that owns the memory, not to a slice of it",
        )
    return order[ranks]
