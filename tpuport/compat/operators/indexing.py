"""Reading and writing by index: tensors, lists, masks, and views that are indexed again.

A key is split in two, as torch does it: the basic part (integers, slices, None, scalar tensors) selects a view
first, then the index arrays pick from it. NumPy and jax take an integer beside an index array for one more index
array, and so put the dimensions in another order.
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.convert import is_ported, to_jax, to_torch
from tpuport.compat.operators.registry import Lowering, Method
from tpuport.compat.runtime import environment

_FULL = slice(None)
# torch unpacks a list as if it were a tuple when it is shorter than this and holds more than numbers.
_UNPACKED_BELOW = 32

Key = tuple[Any, ...]
# torchax's Tensor or View: importing them here would import torchax before its versions are checked.
Ported = Any


def split_key(key: Any, shape: Sequence[int]) -> tuple[Key, Key]:
    """Split an index into a basic key for an array of this shape and the index arrays for what that selects.

    Returns:
        basic: integers, slices, None and scalar integer arrays, one entry a dimension.
        advanced: one entry a dimension of the basic selection, a full slice or an index array or mask; empty when
            there is no index array.

    Raises:
        IndexError: too many indices, or an integer outside its dimension.
    """
    basic: list[Any] = []
    advanced: list[Any] = []
    axis = 0
    for item in _spread(_as_items(key), len(shape)):
        if item is None or item is True:
            basic.append(None)
            advanced.append(_FULL)
        elif item is False:
            basic.append(None)
            advanced.append(np.zeros(0, np.int32))
        elif isinstance(item, slice):
            basic.append(_static_slice(item))
            advanced.append(_FULL)
            axis += 1
        elif isinstance(item, int):
            basic.append(_checked(item, axis, shape))
            axis += 1
        elif item.dtype == np.bool_:
            basic.extend([_FULL] * item.ndim if item.ndim else [None])
            advanced.append(item if item.ndim else item.reshape(1))
            axis += item.ndim
        elif item.ndim == 0:
            basic.append(item)
            axis += 1
        else:
            basic.append(_FULL)
            advanced.append(item)
            axis += 1
    if all(isinstance(item, slice) for item in advanced):
        advanced = []
    return tuple(basic), tuple(advanced)


def read(array: jax.Array, key: Any) -> jax.Array:
    """Traced. `array[key]` with torch's meaning; a mask that is itself traced has no static result shape."""
    basic, advanced = split_key(key, array.shape)
    selected = array[basic] if _selects(basic) else array
    return selected[advanced] if advanced else selected


def written(array: jax.Array, key: Any, value: Any) -> jax.Array:
    """Traced. The array after `array[key] = value` with torch's meaning: cast, broadcast, masks of any rank.

    Under a traced mask, a value with one row for each True is spread over the mask; that their counts agree can only
    be known on the device, so it is not checked.
    """
    basic, advanced = split_key(key, array.shape)
    value = jnp.asarray(value).astype(array.dtype)
    if not advanced:
        return array.at[basic].set(_fitted(value, array, basic))
    selected = array[basic] if _selects(basic) else array
    masks = [i for i, item in enumerate(advanced) if not isinstance(item, slice) and item.dtype == np.bool_]
    arrays = [item for item in advanced if not isinstance(item, slice)]
    if masks and len(arrays) == 1:
        selected = _masked(selected, advanced[masks[0]], masks[0], value)
    else:
        selected = selected.at[advanced].set(_fitted(value, selected, advanced))
    return array.at[basic].set(selected) if _selects(basic) else selected


def _masked(array: jax.Array, mask: Any, axis: int, value: jax.Array) -> jax.Array:
    """Write where a mask, that covers the dimensions from `axis` on, is true."""
    rank = array.ndim - mask.ndim + 1
    while value.ndim > rank and value.shape[0] == 1:
        value = value[0]
    value = value.reshape((1,) * (rank - value.ndim) + value.shape)
    if value.shape[axis] == 0:
        return array
    if value.shape[axis] != 1:
        row = jnp.clip(jnp.cumsum(mask.ravel().astype(jnp.int32)) - 1, 0, value.shape[axis] - 1)
        value = jnp.take(value, row, axis=axis)
        value = value.reshape(value.shape[:axis] + mask.shape + value.shape[axis + 1 :])
    else:
        value = value.reshape(value.shape[:axis] + (1,) * mask.ndim + value.shape[axis + 1 :])
    where = mask.reshape((1,) * axis + mask.shape + (1,) * (array.ndim - axis - mask.ndim))
    return jnp.where(where, value, array)


def _fitted(value: jax.Array, array: jax.Array, key: Key) -> jax.Array:
    """Drop the leading dimensions of size one that torch lets a value have beyond what it is written into."""
    if value.ndim > 1 and value.shape[0] == 1:
        rank = len(jax.eval_shape(lambda x: x[key], array).shape)
        while value.ndim > rank and value.shape[0] == 1:
            value = value[0]
    return value


def _selects(basic: Key) -> bool:
    return any(not (isinstance(item, slice) and item == _FULL) for item in basic)


def _as_items(key: Any) -> list[Any]:
    """The key's entries, tensors as arrays, index lists as NumPy arrays."""
    if isinstance(key, list) and len(key) < _UNPACKED_BELOW and any(_is_compound(item) for item in key):
        key = tuple(key)
    items = key if isinstance(key, tuple) else (key,)
    return [_as_item(item) for item in items]


def _is_compound(item: Any) -> bool:
    return (
        item is None
        or item is Ellipsis
        or isinstance(item, (slice, list, tuple, torch.Tensor, np.ndarray, jax.Array))
    )


def _as_item(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, (slice, bool)):
        return item
    if isinstance(item, (list, tuple, range)):
        item = np.asarray(item, dtype=None if len(item) else np.int32)
    elif isinstance(item, torch.Tensor):
        item = _value(item) if is_ported(item) else item.numpy()
    if not isinstance(item, (np.ndarray, jax.Array)):
        return operator.index(item)
    if item.dtype == np.uint8:
        return item.astype(np.bool_)
    return item.astype(np.int32) if isinstance(item, np.ndarray) and item.dtype == np.int64 else item


def _spread(items: list[Any], rank: int) -> list[Any]:
    """Put full slices in place of an Ellipsis, or at the end."""
    used = sum(_dimensions(item) for item in items if item is not Ellipsis)
    if used > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    at = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    rest = [item for item in items[at + 1 :] if item is not Ellipsis]
    return [*items[:at], *[_FULL] * (rank - used), *rest]


def _dimensions(item: Any) -> int:
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, (np.ndarray, jax.Array)) and item.dtype == np.bool_:
        return item.ndim
    return 1


def _checked(index: int, axis: int, shape: Sequence[int]) -> int:
    if not -shape[axis] <= index < shape[axis]:
        raise IndexError(f"index {index} is out of bounds for dimension {axis} with size {shape[axis]}")
    return index


def _static_slice(item: slice) -> slice:
    start, stop, step = (
        None if end is None else operator.index(end) for end in (item.start, item.stop, item.step)
    )
    if step is not None and step <= 0:
        raise ValueError("step must be greater than zero")
    return slice(start, stop, step)


def getitem(tensor: Ported, key: Any) -> torch.Tensor:
    """`tensor[key]` for a torchax tensor or view: a view where torch gives one, else a new tensor."""
    from torchax.tensor import Tensor
    from torchax.view import NarrowInfo, View

    if not is_ported(tensor):
        environment().t2j_iso(tensor)  # says that it is on the host, and the index on the device
    basic, advanced = split_key(key, tensor.shape)
    if advanced:
        array = tensor.jax()
        return Tensor((array[basic] if _selects(basic) else array)[advanced], tensor._env)
    return View(tensor, NarrowInfo(basic), tensor._env)


def set_tensor_item(tensor: Ported, key: Any, value: Any) -> None:
    """`tensor[key] = value` for a torchax tensor."""
    tensor._elem = written(tensor._elem, key, _value(value))


def set_view_item(view: Ported, key: Any, value: Any) -> None:
    """`view[key] = value` for a torchax view: written through to the tensor that it shows."""
    view.update(written(view.jax(), key, _value(value)))


def copy_(destination: Ported, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`destination.copy_(source)`: cast and broadcast, written through where the destination is a view."""
    array = jnp.broadcast_to(_value(source), destination.shape)
    if not is_ported(destination):
        return destination.copy_(to_torch(array))
    array = array.astype(destination.jax().dtype)
    if hasattr(destination, "update"):
        destination.update(array)
    else:
        destination._elem = array
    return destination


def _value(value: Any) -> Any:
    return to_jax(value) if isinstance(value, torch.Tensor) else value


LOWERINGS = (
    Lowering(
        torch.Tensor.__getitem__,
        getitem,
        "a view cannot be indexed by a list or a tensor, and integers beside index arrays order dimensions wrongly",
        is_view_op=True,
    ),
    Lowering(
        torch.ops.aten.copy_.default,
        copy_,
        "copying into an indexed view neither casts nor broadcasts, nor does copying into a tensor",
        is_view_op=True,
    ),
)
METHODS = (
    Method(
        "Tensor", "__setitem__", set_tensor_item, "masks of several dimensions, lists, casts and host tensors"
    ),
    Method("View", "__setitem__", set_view_item, "index arrays and masks within a view"),
)
