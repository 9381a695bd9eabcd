"""Reading and writing by index: tensors, lists, masks, and views that are indexed
again.

A key is split in two, as in torch: the basic part (integers, slices, None, scalar
tensors) selects a view first, then the index arrays select from that view. NumPy and
jax treat an integer beside an index array as another index array, and so order the
dimensions differently.
"""

import itertools
import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat import aliasing, deferral, recording, view_steps
from tpuport.compat.convert import (
    cast,
    check_fits,
    is_ported,
    jax_dtype,
    to_device,
    to_jax,
    to_torch,
    wrap,
)
from tpuport.compat.declarations import Call, Lowering, Method
from tpuport.compat.operators.index_bounds import check_index
from tpuport.compat.operators.masked_selection import (
    MaskedSelection,
    as_mask,
    selects_lazily,
)
from tpuport.compat.runtime import check_process, environment
from tpuport.compat.slice_writes import write_slices
from tpuport.internals.torch_internals import without_subclass_functions
from tpuport.internals.torchax_internals import array_of, set_array

_FULL = slice(None)
# torch treats a list as a tuple if it is shorter than this and contains more than
# numbers.
_UNPACKED_BELOW = 32

Key = tuple[Any, ...]
# torchax's Tensor: importing it here would import torchax before its versions are
# checked.
Ported = Any


def split_key(key: Any, shape: Sequence[int]) -> tuple[Key, Key]:
    """Split an index into a basic key for an array of this shape and the index arrays
    for what that selects.

    Returns:
        basic: integers, slices, None and scalar integer arrays, one entry a dimension.
        advanced: one entry a dimension of the basic selection, a full slice or an index
            array or mask; empty when there is no index array.

    Raises:
        IndexError: too many indices, or an integer outside its dimension; also in an
            array that has values.
    """
    basic: list[Any] = []
    advanced: list[Any] = []
    axis = 0
    for item in _expand_ellipsis(_as_items(key), len(shape)):
        match item:
            case None | True:
                basic.append(None)
                advanced.append(_FULL)
            case False:
                basic.append(None)
                advanced.append(np.zeros(0, np.int32))
            case slice():
                basic.append(_static_slice(item))
                advanced.append(_FULL)
            case int():
                _check_bounds(item, axis, shape)
                basic.append(item)
            case _ if item.dtype == np.bool_:
                # A scalar mask adds a dimension of length 0 or 1.
                basic.extend([_FULL] * item.ndim or [None])
                advanced.append(item.reshape(item.shape or 1))
            case _ if item.ndim == 0:
                check_index(item, axis, shape[axis])
                basic.append(item)
            case _:
                check_index(item, axis, shape[axis])
                basic.append(_FULL)
                advanced.append(item)
        axis += _dimensions(item)
    if all(isinstance(item, slice) for item in advanced):
        advanced = []
    return tuple(basic), tuple(advanced)


def read(array: jax.Array, key: Any) -> jax.Array:
    """Traced. `array[key]` with torch's meaning; a mask that is itself traced has no
    static result shape.
    """
    basic, advanced = split_key(key, array.shape)
    selected = _select(array, basic)
    if not advanced:
        return selected
    return selected[advanced]


def write(array: jax.Array, key: Any, value: Any) -> jax.Array:
    """Traced. The array after `array[key] = value` with torch's meaning: cast,
    broadcast, masks of any rank.

    Under a traced mask, a value with one row for each True is spread over the mask;
    that their counts agree can only be known on the device, so it is not checked.
    """
    basic, advanced = split_key(key, array.shape)
    value = _cast(value, array.dtype)
    if not advanced:
        return write_slices(array, basic, _drop_leading_ones(value, array, basic))
    selected = _select(array, basic)
    axes = [axis for axis, item in enumerate(advanced) if not isinstance(item, slice)]
    if len(axes) == 1 and advanced[axes[0]].dtype == np.bool_:
        selected = _write_masked(selected, advanced[axes[0]], axes[0], value)
    else:
        selected = selected.at[advanced].set(
            _drop_leading_ones(value, selected, advanced)
        )
    if not _selects(basic):
        return selected
    return write_slices(array, basic, selected)


def _cast(value: Any, dtype: np.dtype) -> jax.Array:
    if np.dtype(dtype).itemsize < 4:
        check_fits(value, dtype)
    try:
        return cast(jnp.asarray(value), dtype)
    except OverflowError as error:
        raise RuntimeError(
            f"value cannot be converted to type {dtype} without overflow: integers have 32 bits on the device"
        ) from error


def _write_masked(
    array: jax.Array, mask: Any, axis: int, value: jax.Array
) -> jax.Array:
    """Write where a mask, which covers the dimensions from `axis` on, is true."""
    rank = array.ndim - mask.ndim + 1
    while value.ndim > rank and value.shape[0] == 1:
        value = value[0]
    value = value.reshape((1,) * (rank - value.ndim) + value.shape)
    if value.shape[axis] == 0:
        return array
    if value.shape[axis] != 1:
        # The n-th True of the mask receives the n-th row of the value.
        row = jnp.clip(
            jnp.cumsum(mask.ravel().astype(jnp.int32)) - 1, 0, value.shape[axis] - 1
        )
        value = jnp.take(value, row, axis=axis)
        value = value.reshape(value.shape[:axis] + mask.shape + value.shape[axis + 1 :])
    else:
        value = value.reshape(
            value.shape[:axis] + (1,) * mask.ndim + value.shape[axis + 1 :]
        )
    where = mask.reshape(
        (1,) * axis + mask.shape + (1,) * (array.ndim - axis - mask.ndim)
    )
    return jnp.where(where, value, array)


def _drop_leading_ones(value: jax.Array, array: jax.Array, key: Key) -> jax.Array:
    """Drop leading dimensions of size one, which torch ignores in a value that is
    written.
    """
    if value.ndim > 0 and value.shape[0] == 1:
        rank = len(jax.eval_shape(lambda x: x[key], array).shape)
        while value.ndim > rank and value.shape[0] == 1:
            value = value[0]
    return value


def _select(array: jax.Array, basic: Key) -> jax.Array:
    if not _selects(basic):
        return array
    return array[basic]


def _selects(basic: Key) -> bool:
    """Whether a basic key selects less than everything."""
    return any(not (isinstance(item, slice) and item == _FULL) for item in basic)


def _as_items(key: Any) -> list[Any]:
    """The key's entries, tensors as arrays, index lists as NumPy arrays."""
    is_short_list = isinstance(key, list) and len(key) < _UNPACKED_BELOW
    if is_short_list and any(isinstance(item, _COMPOUND) for item in key):
        key = tuple(key)
    if not isinstance(key, tuple):
        key = (key,)
    return list(map(_as_item, key))


_COMPOUND = (
    type(None),
    type(Ellipsis),
    slice,
    list,
    tuple,
    torch.Tensor,
    np.ndarray,
    jax.Array,
)


def _as_item(item: Any) -> Any:
    match item:
        case None | EllipsisType() | slice() | bool():
            return item
        case list() | tuple() | range():
            # For no items, NumPy's default would be a floating type.
            array: Any = np.asarray(item or np.zeros(0, np.int32))
        case torch.Tensor() if not is_ported(item):
            array = item.numpy()
        case torch.Tensor():
            array = to_jax(item)
        case np.ndarray() | jax.Array():
            array = item
        case _:
            return operator.index(item)
    # torch's older masks are of bytes.
    if array.dtype == np.uint8:
        return array.astype(np.bool_)
    # jax has no 64-bit integers by default, and would warn.
    if isinstance(array, np.ndarray) and array.dtype == np.int64:
        return array.astype(np.int32)
    return array


def _expand_ellipsis(items: list[Any], rank: int) -> list[Any]:
    """Replace an Ellipsis by full slices, or append them at the end."""
    indexed = sum(_dimensions(item) for item in items if item is not Ellipsis)
    if indexed > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    # By identity: comparing an array with Ellipsis would compare its elements.
    before = list(itertools.takewhile(lambda item: item is not Ellipsis, items))
    after = [item for item in items[len(before) :] if item is not Ellipsis]
    return [*before, *[_FULL] * (rank - indexed), *after]


def _dimensions(item: Any) -> int:
    """How many dimensions of the array an entry of the key indexes."""
    match item:
        case None | bool():
            return 0
        case np.ndarray() | jax.Array() if item.dtype == np.bool_:
            return item.ndim
        case _:
            return 1


def _check_bounds(index: int, axis: int, shape: Sequence[int]) -> None:
    if not -shape[axis] <= index < shape[axis]:
        raise IndexError(
            f"index {index} is out of bounds for dimension {axis} with size {shape[axis]}"
        )


def _static_slice(item: slice) -> slice:
    ends = [item.start, item.stop, item.step]
    for position, end in enumerate(ends):
        if end is not None:
            ends[position] = operator.index(end)
    if ends[2] is not None and ends[2] <= 0:
        raise ValueError("step must be greater than zero")
    return slice(*ends)


def getitem(tensor: Ported, key: Any) -> torch.Tensor:
    """`tensor[key]` for a torchax tensor: a view where torch gives one, else a new
    tensor.
    """
    if not is_ported(tensor):
        # The index is on the device: this raises, unless tensors of the host are
        # constants in this block.
        tensor = wrap(environment().t2j_iso(tensor))
    check_process()
    basic, advanced = split_key(as_mask(key, tensor), tensor.shape)
    selected = _select(tensor.jax(), basic)
    if advanced:
        if selects_lazily(advanced):
            return MaskedSelection.of(selected, advanced)  # type: ignore[return-value]
        return wrap(selected[advanced])
    view = wrap(selected)
    aliasing.link(
        view, tensor, _basic_step(basic), _index_twin(aliasing.twin(tensor), basic)
    )
    return view


def _basic_step(basic: Key) -> view_steps.Step:
    def write_back(array: jax.Array, values: jax.Array) -> jax.Array:
        return write_slices(array, basic, values)

    has_known_places = not any(isinstance(item, jax.Array) for item in basic)
    return view_steps.Step(
        "indexing",
        lambda array: _select(array, basic),
        lambda: write_back,
        has_known_places,
    )


def _index_twin(twin: torch.Tensor, basic: Key) -> torch.Tensor:
    # An index in an array may be traced, without a value; which one it is changes no
    # stride.
    key = tuple(
        0 if isinstance(item, (jax.Array, np.ndarray)) else item for item in basic
    )
    return view_steps.on_twins(torch.Tensor.__getitem__, twin, key)


def prepare_key(call: Call) -> None:
    """Put what indexes a tensor on the device there, for torch's own indexing."""
    if call.function is torch.Tensor.__getitem__:
        tensor, key = call.args
        call.args = tensor, _on_device(key)


def _on_device(key: Any) -> Any:
    """A key with tensors on the device in place of lists, and of tensors of the
    host.
    """
    match key:
        case tuple():
            return tuple(map(_on_device, key))
        case list() if any(
            isinstance(item, slice | EllipsisType | None) for item in key
        ):
            return tuple(map(_on_device, key))
        case list() | np.ndarray():
            return to_device(torch.as_tensor(np.asarray(key)))
        case torch.Tensor() if not is_ported(key):
            return to_device(key)
    return key


def set_item(tensor: Ported, key: Any, value: Any) -> None:
    """`tensor[key] = value` for a torchax tensor."""
    if deferral.collector() or recording.is_recorded((tensor, value), {}):
        with environment(), without_subclass_functions():
            torch._C.TensorBase.__setitem__(tensor, _on_device(key), value)
        return
    key = as_mask(key, tensor)
    if isinstance(value, MaskedSelection):
        rows = value.rows_under(tensor, key)
        if rows is not None:
            key, value = ..., _where(key, rows, tensor)
        else:
            value = value.select()
    if aliasing.has_overlap(tensor) and not split_key(key, tensor.shape)[1]:
        # torch writes to the view that this key gives, which may be one of the rows
        # that share memory.
        tensor, key = getitem(tensor, key), ...
    aliasing.check_writable(tensor)
    _check_dtype(tensor, key, value)
    set_array(tensor, write(array_of(tensor), key, _value(value)))
    aliasing.propagate(tensor)


def _where(mask: Ported, rows: Ported, tensor: Ported) -> torch.Tensor:
    """The tensor [*mask, ...] with the rows of the same shape where the mask is
    true.
    """
    _check_dtype(tensor, mask, rows)
    where = mask.jax().reshape(*mask.shape, *[1] * (tensor.ndim - mask.ndim))
    return wrap(jnp.where(where, cast(rows.jax(), tensor.jax().dtype), tensor.jax()))


def _check_dtype(tensor: Ported, key: Any, value: Any) -> None:
    """torch casts what it writes to a basic selection, or what is a single number for a
    mask, and nothing else.
    """
    # `tensor[False] = value` writes nothing, and checks nothing.
    if (
        key is False
        or not isinstance(value, torch.Tensor)
        or value.dtype == tensor.dtype
    ):
        return
    _, advanced = split_key(key, tensor.shape)
    arrays = [item for item in advanced if not isinstance(item, slice)]
    is_fill = value.numel() == 1 and len(arrays) == 1 and arrays[0].dtype == np.bool_
    # 64 bits are 32 on the device, where a value may come from the host.
    if arrays and not is_fill and jax_dtype(value.dtype) != jax_dtype(tensor.dtype):
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{tensor.dtype} for the destination and {value.dtype} for the source; cast it with .to(dtype)"
        )


def copy_(
    destination: Ported, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """`destination.copy_(source)`: cast and broadcast."""
    array = jnp.broadcast_to(_value(source), destination.shape)
    if not is_ported(destination):
        return destination.copy_(to_torch(array))
    set_array(destination, cast(array, destination.jax().dtype))
    return destination


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_jax(value)
    return value


LOWERINGS = (
    Lowering(
        torch.Tensor.__getitem__,
        getitem,
        "a view cannot be indexed by a list or a tensor, and integers beside index arrays order dimensions wrongly",
    ),
    Lowering(
        torch.ops.aten.copy_.default,
        copy_,
        "copying into an indexed view neither casts nor broadcasts, nor does copying into a tensor",
    ),
)
METHODS = (
    Method(
        "Tensor",
        "__setitem__",
        set_item,
        "masks of several dimensions, lists, casts and host tensors",
    ),
)
