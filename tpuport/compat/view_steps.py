"""Single views of tensors: how a view's array is computed, and how a changed one is put
back into what it views.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat import memory_layouts
from tpuport.compat.convert import wrap
from tpuport.compat.slice_writes import write_slices
from tpuport.internals.torch_internals import outside_of_modes, torch_pytree

_aten = torch.ops.aten
# The views that torch's other views consist of, by what undoes them. All elements in
# their order:
_RESHAPES = frozenset({
    _aten.view, _aten._reshape_alias, _aten.squeeze, _aten.unsqueeze, _aten.expand, _aten.alias, _aten.detach,
})  # fmt: skip
# All elements, in an order of axes that depends on nothing but the rank.
_PERMUTATIONS = frozenset({_aten.t, _aten.transpose, _aten.permute})
# A range, or one index, of one axis; some give a list of these.
_RANGES = frozenset({_aten.slice, _aten.split, _aten.split_with_sizes, _aten.narrow})
_INDICES = frozenset({_aten.select, _aten.unbind})
# Some elements, and which ones only torch itself computes.
_GATHERS = frozenset({_aten.diagonal, _aten.unfold})
# Other numbers than those that are stored.
_COMPLEX_PARTS: dict[Any, Callable[[jax.Array, jax.Array], jax.Array]] = {
    _aten.view_as_real: lambda viewed, values: jax.lax.complex(
        values[..., 0], values[..., 1]
    ),
    _aten.view_as_complex: lambda viewed, values: jnp.stack(
        [values.real, values.imag], axis=-1
    ),
    _aten.real: lambda viewed, values: jax.lax.complex(values, viewed.imag),
    _aten.imag: lambda viewed, values: jax.lax.complex(viewed.real, values),
    _aten._conj: lambda viewed, values: values.conj(),
}
VIEWS = (
    _RESHAPES | _PERMUTATIONS | _RANGES | _INDICES | _GATHERS | _COMPLEX_PARTS.keys()
)
# Operators that turn a tensor into a view of what it was.
VIEWS_IN_PLACE = {
    _aten.squeeze_: _aten.squeeze, _aten.unsqueeze_: _aten.unsqueeze, _aten.transpose_: _aten.transpose,
    _aten.t_: _aten.t,
}  # fmt: skip

Read = Callable[[jax.Array], jax.Array]
Write = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Step:
    """One view: how its array is computed from that of the tensor it views, and how a
    changed one is put back.

    Attributes:
        name: of the operation.
        read: the view's array from the viewed array.
        find_write: gives the function that computes the viewed array from itself and
            the view's new array, or None if elements of the view share memory. Called
            before the first write, as few views are ever written to.
        has_known_places: whether the view has elements of what it views, and its twin
            says which ones.
    """

    name: str
    read: Read
    find_write: Callable[[], Write | None]
    has_known_places: bool = True

    @functools.cached_property
    def write(self) -> Write | None:
        return self.find_write()


# A view of all elements as they are.
WHOLE = Step("set_", lambda array: array, lambda: lambda array, values: values)


def on_twins(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a function of torch on its own tensors, whatever torchax has enabled."""
    with outside_of_modes():
        return func(*args, **kwargs)


def make_step(
    run: Callable[[Any, tuple, dict], Any],
    func: Any,
    args: tuple,
    kwargs: dict,
    index: int,
    viewed: torch.Tensor,
    view: torch.Tensor,
) -> Step:
    """The step of a view that is the `index`-th result of an operator, from the twins
    of both tensors.
    """
    arguments = args[1:]

    def read(array: jax.Array) -> jax.Array:
        results = torch_pytree.tree_leaves(
            run(func, (wrap(array, viewed.dtype), *arguments), kwargs)
        )
        return results[index].jax()

    def find_write() -> Write | None:
        packet = getattr(func, "overloadpacket", func)
        if packet in _COMPLEX_PARTS:
            return _COMPLEX_PARTS[packet]
        if packet in _PERMUTATIONS:
            return _permutation_write(func, arguments, kwargs, viewed.ndim)
        if packet in _RANGES:
            return _indexed_write(_range_key(viewed, view))
        if packet in _INDICES:
            return _indexed_write(_index_key(viewed, view))
        if packet in _GATHERS:
            return _gathered_write(func, arguments, kwargs, viewed.shape)
        if viewed.dtype != view.dtype:
            return lambda array, values: run(
                _aten.view.dtype, (wrap(values, view.dtype), viewed.dtype), {}
            ).jax()
        if viewed.numel() != view.numel():
            return None  # expanded
        return lambda array, values: values.reshape(array.shape)

    is_other_numbers = (
        viewed.dtype != view.dtype
        or getattr(func, "overloadpacket", func) in _COMPLEX_PARTS
    )
    return Step(
        f"{func.__name__.partition('.')[0]}()", read, find_write, not is_other_numbers
    )


def strided_step(
    layout: torch.Tensor, view: torch.Tensor, *, of_equals: bool = False
) -> Step:
    """From an array that has the elements of a layout to a view of the same memory,
    both tensors on the meta device.

    Args:
        of_equals: what is written is one number, so that it does not matter which of
            the elements that share memory comes last.

    Raises (when it is read or written):
        PortError: the view shows memory that the layout has not.
    """
    # Of a weight that nobody writes to, this list of places is never needed.
    order = functools.cache(lambda: memory_layouts.order_in_memory(layout, view))

    def read(array: jax.Array) -> jax.Array:
        return array.ravel()[order()].reshape(view.shape)

    def find_write() -> Write | None:
        places = order()
        if not of_equals and len(np.unique(places)) < places.size:
            return None
        return lambda array, values: (
            array.ravel().at[places].set(values.ravel()).reshape(array.shape)
        )

    return Step("as_strided()", read, find_write)


def _permutation_write(func: Any, arguments: tuple, kwargs: dict, rank: int) -> Write:
    # Axes of different sizes tell where each one goes.
    sizes = list(range(2, 2 + rank))
    axes = on_twins(torch.empty, sizes, device="meta")
    order = [size - 2 for size in on_twins(func, axes, *arguments, **kwargs).shape]
    inverse = np.argsort(order)
    return lambda array, values: values.transpose(inverse)


def _indexed_write(key: tuple) -> Write:
    return lambda array, values: write_slices(array, key, values)


def _range_key(viewed: torch.Tensor, view: torch.Tensor) -> tuple[slice, ...]:
    """The key of a view that has some of the indices of one axis, from sizes, strides
    and where it starts.
    """
    key = [slice(None)] * viewed.ndim
    for axis, (size, view_size) in enumerate(
        zip(viewed.shape, view.shape, strict=True)
    ):
        if size != view_size and view_size > 0:
            stride = viewed.stride(axis)
            start = int(view.storage_offset() - viewed.storage_offset()) // stride
            # Of a single index, torch keeps any stride.
            step = view.stride(axis) // stride if view_size > 1 else 1
            key[axis] = slice(start, start + (view_size - 1) * step + 1, step)
        elif size != view_size:
            key[axis] = slice(0, 0)
    return tuple(key)


def _index_key(viewed: torch.Tensor, view: torch.Tensor) -> tuple[slice | int, ...]:
    """The key of a view that has one index of an axis, which it lacks."""
    axis = 0
    while axis < view.ndim and (viewed.shape[axis], viewed.stride(axis)) == (
        view.shape[axis],
        view.stride(axis),
    ):
        axis += 1
    # Along an axis of size 1, all that torch may have taken away is index 0.
    stride = max(viewed.stride(axis), 1)
    index = int(view.storage_offset() - viewed.storage_offset()) // stride
    return (*[slice(None)] * axis, index)


def _gathered_write(
    func: Any, arguments: tuple, kwargs: dict, shape: Sequence[int]
) -> Write | None:
    """By the number of the viewed element that torch shows in each element of the
    view.
    """
    numbers = on_twins(torch.from_numpy, np.arange(math.prod(shape)).reshape(shape))
    order = on_twins(lambda: func(numbers, *arguments, **kwargs).numpy().ravel())
    if len(np.unique(order)) < order.size:
        return None
    return lambda array, values: (
        array.ravel().at[order].set(values.ravel()).reshape(array.shape)
    )
