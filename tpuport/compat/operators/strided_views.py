"""Views by strides: of the memory that a tensor shares with others, whatever the tensor
itself shows of it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tpuport.compat import aliasing, view_steps
from tpuport.compat.convert import assign, wrap
from tpuport.compat.declarations import Lowering
from tpuport.errors import PortError
from tpuport.internals.torchax_internals import array_of

# A torchax tensor.
Ported = Any


def as_strided(
    tensor: Ported,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Ported:
    """`tensor.as_strided(size, stride, offset)`: a view of the memory that the tensor
    shares, by places in it.
    """
    storage, step, view_twin = _strided_view(tensor, size, stride, storage_offset)
    assert storage.array is not None
    view: Ported = wrap(step.read(storage.array))
    storage.add(view)
    view._alias = aliasing.Alias(storage, (step,), view_twin, array_of(view))
    return view


def as_strided_(
    tensor: Ported,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Ported:
    """`tensor.as_strided_(size, stride, offset)`: the tensor itself becomes that
    view.
    """
    storage, step, view_twin = _strided_view(tensor, size, stride, storage_offset)
    assert storage.array is not None
    assign(tensor, step.read(storage.array))
    tensor._alias = aliasing.Alias(storage, (step,), view_twin, array_of(tensor))
    return tensor


def _strided_view(
    tensor: Ported,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> tuple[aliasing.Storage, view_steps.Step, torch.Tensor]:
    """The memory that a view by strides is of, the step from it to the view, and the
    view's twin.
    """
    alias = aliasing.alias_of(tensor)
    if not all(step.has_known_places for step in alias.steps):
        raise PortError(
            "as_strided() of a view of other numbers than the tensor has, or of a place that only a program knows",
            where=f"size {list(size)}, stride {list(stride)}, storage offset {storage_offset}",
            fix="clone the view first, or index it",
        )
    # torch's errors.
    view_twin = view_steps.on_twins(
        torch.as_strided, alias.twin, size, stride, storage_offset
    )
    return (
        alias.storage,
        view_steps.strided_step(alias.storage.layout, view_twin),
        view_twin,
    )


def join_memory(
    whole: Ported, part: Ported, whole_layout: torch.Tensor, part_layout: torch.Tensor
) -> None:
    """Let two tensors, which have the same numbers already, share memory as two of
    these strides do.

    Args:
        whole: has all elements of `part`, which has shared no memory so far.
        whole_layout, part_layout: tensors on the meta device, each with the strides and
            the place in memory.
    """
    alias = getattr(whole, "_alias", None)
    if (
        alias is None
        or alias.storage.array is None
        or alias.array is not array_of(whole)
    ):
        storage = aliasing.Storage(array_of(whole), whole_layout)
        storage.add(whole)
        whole._alias = alias = aliasing.Alias(
            storage, (), whole_layout, array_of(whole)
        )
    aliasing.link(
        part, whole, view_steps.strided_step(whole_layout, part_layout), part_layout
    )


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.as_strided.default, as_strided, "repeats the last element beyond the end"
    ),
    Lowering(_aten.as_strided_.default, as_strided_, "has no lowering"),
)
METHODS = ()
