"""Indices outside of their dimension: torch's error where their values are known, which
is outside of traced code.

jax clamps such an index, leaves out what is written there, or reads NaN. In a traced
program nothing has a value, and no error can come from the device, unless the program
is one that checks its indices (`index_checks`); torch on a GPU stops there with an
assertion that names no line.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer
from torch.nn import functional

from tpuport.compat import index_checks
from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Call
from tpuport.internals.torch_internals import schema_of

_aten = torch.ops.aten
# Up to so many elements, an index itself is copied to the host (256 KiB), which takes
# one step instead of three.
_COPIED_WHOLE = 65_536


class Extremes(NamedTuple):
    """The least and the greatest of several indices."""

    low: int
    high: int


def extremes(index: Any) -> Extremes | None:
    """The extremes of an index, a tensor or an array; None if it is traced, is empty,
    or is not an array of integers.
    """
    array = _array(index)
    if (
        array is None
        or isinstance(array, Tracer)
        or not array.size
        or array.dtype == np.bool_
    ):
        return None
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return None
    if array.size > _COPIED_WHOLE:
        # Also while something else is traced: this index is known.
        with jax.ensure_compile_time_eval():
            array = jnp.stack([jnp.min(array), jnp.max(array)])
    values = np.asarray(array)
    return Extremes(int(values.min()), int(values.max()))


def may_hold(values: Any, number: int) -> bool:
    """Whether integers, a number, a tensor or an array, lie around this one, or are not
    known.
    """
    if isinstance(values, int):
        return values == number
    if isinstance(_array(values), Tracer):
        return True
    extreme = extremes(values)
    return extreme is not None and extreme.low <= number <= extreme.high


def _array(index: Any) -> Any:
    if is_ported(index):
        return index.jax()
    if isinstance(index, torch.Tensor):
        return index.numpy() if index.device.type == "cpu" else None
    return index if isinstance(index, np.ndarray | jax.Array) else None


def check_range(
    index: Any,
    size: int,
    kind: type[Exception],
    message: str,
    *,
    from_end: bool = False,
    ignored: int | None = None,
) -> None:
    """Raise torch's error for an index, a tensor or an array, that has an element
    outside of its dimension.

    The values of a traced index are not known: a program that checks its indices
    (`index_checks`) does it.

    Args:
        size: of the dimension.
        kind, message: of the error; "{index}" in the message is the element.
        from_end: negative indices count from the end.
        ignored: a value that does not count.
    """
    array = _array(index)
    least = -size if from_end else 0
    if isinstance(array, Tracer):
        if index_checks.is_checking() and array.size and array.dtype != np.bool_:
            index_checks.require(
                array,
                _outside(array.astype(jnp.int32), least, size, ignored),
                kind,
                message,
            )
        return
    # Two numbers decide the usual case; the elements are copied to the host only where
    # one of them may be outside.
    extreme = extremes(index)
    if extreme is None or (least <= extreme.low and extreme.high < size):
        return
    values = np.asarray(array)
    outside = values[_outside(values, least, size, ignored)]
    if outside.size:
        # torch, too, names the first.
        raise kind(message.replace("{index}", str(outside.flat[0])))


def _outside(values: Any, least: int, size: int, ignored: int | None) -> Any:
    """Which values are outside of a dimension."""
    is_outside = (values < least) | (values >= size)
    return is_outside if ignored is None else is_outside & (values != ignored)


def check_index(index: Any, axis: int, size: int) -> None:
    """Raise torch's IndexError for an index array of `x[...]` that has an element
    outside of its dimension.
    """
    message = f"index {{index}} is out of bounds for dimension {axis} with size {size}"
    check_range(index, size, IndexError, message, from_end=True)


def has_rule(function: Any) -> bool:
    """Whether a function or an operator takes an index that may be outside."""
    return getattr(function, "overloadpacket", function) in _RULES


def check(call: Call) -> None:
    """Raise torch's error, if an operator is called with an index outside of its
    dimension.
    """
    function = call.function
    schema = schema_of(function)
    names = (
        [argument.name for argument in schema.arguments]
        if schema
        else _ARGUMENTS[function]
    )
    arguments = dict(zip(names, call.args, strict=False)) | call.kwargs
    # Not of a function that decomposes a call for another device.
    if is_ported(arguments.get("self", arguments.get("weight"))):
        _RULES[getattr(function, "overloadpacket", function)](arguments)


_Rule = Callable[[dict[str, Any]], None]


def _along_dimension(
    kind: type[Exception], message: str, *, from_end: bool = False
) -> _Rule:
    """A rule for an index along the dimension `dim`; the message may show the index,
    the dimension and its size.
    """

    def rule(arguments: dict[str, Any]) -> None:
        tensor, dim = arguments["self"], arguments["dim"]
        axis = dim % max(tensor.ndim, 1)
        # A tensor without dimensions counts as one element.
        size = (*tensor.shape, 1)[axis]
        text = message.format(index="{index}", dim=axis, size=size)
        check_range(arguments["index"], size, kind, text, from_end=from_end)

    return rule


def _flat(arguments: dict[str, Any]) -> None:
    count = arguments["self"].numel()
    message = f"out of range: tried to access index {{index}} on a tensor of {count} elements."
    check_range(arguments["index"], count, IndexError, message, from_end=True)


def _of_flat(arguments: dict[str, Any]) -> None:
    # Along a dimension, indices start again at the other end.
    if arguments.get("dim") is not None:
        return
    count = arguments["self"].numel()
    message = _OUT_OF_BOUNDS.format(index="{index}", dim=0, size=count)
    check_range(arguments["indices"], count, RuntimeError, message)


def _rows(arguments: dict[str, Any]) -> None:
    check_range(
        arguments["indices"], arguments["weight"].shape[0], IndexError, _OUT_OF_RANGE
    )


def _bags(arguments: dict[str, Any]) -> None:
    count = arguments["weight"].shape[0]
    message = (
        f"input takes value {{index}} which is not in the valid range [0, {count})"
    )
    check_range(arguments["indices"], count, RuntimeError, message)


def _index_arrays(arguments: dict[str, Any]) -> None:
    axis = 0
    for index in arguments["indices"]:
        if index is None:
            axis += 1
        elif index.dtype in (torch.bool, torch.uint8):
            axis += index.ndim
        else:
            check_index(index, axis, arguments["self"].shape[axis])
            axis += 1


def _classes(arguments: dict[str, Any]) -> None:
    """Targets of a loss, but for the one that does not count."""
    scores = arguments["self"]
    count = scores.shape[1 if scores.ndim > 1 else 0]
    message = "Target {index} is out of bounds."
    check_range(
        arguments["target"],
        count,
        IndexError,
        message,
        ignored=arguments["ignore_index"],
    )


def _margin_classes(arguments: dict[str, Any]) -> None:
    count = (1, *arguments["self"].shape)[-1]
    check_range(arguments["target"], count, RuntimeError, "target out of range")


def _one_hot(arguments: dict[str, Any]) -> None:
    count = arguments.get("num_classes", -1)
    message = "Class values must be smaller than num_classes."
    # Without a number of classes there are as many as the values ask for.
    largest = np.iinfo(np.int32).max
    check_range(
        arguments["self"], largest, RuntimeError, "Class values must be non-negative."
    )
    if count > 0:
        check_range(arguments["self"], count, RuntimeError, message)


def _places(arguments: dict[str, Any]) -> None:
    """Places in the flattened form of the last dimensions."""
    sizes = arguments["output_size"]
    shape = "x".join(map(str, sizes))
    message = (
        f"Found an invalid max index: {{index}} (output volumes are of size {shape})"
    )
    check_range(arguments["indices"], math.prod(sizes), RuntimeError, message)


_OUT_OF_BOUNDS = "index {index} is out of bounds for dimension {dim} with size {size}"
# Of functions that are not operators.
_ARGUMENTS = {
    functional.one_hot: ("self", "num_classes"),
    torch.take_along_dim: ("self", "indices", "dim"),
    torch.Tensor.take_along_dim: ("self", "indices", "dim"),
}
_OUT_OF_RANGE = "index out of range in self"
_RULES: dict[Any, _Rule] = {
    **dict.fromkeys(
        (
            _aten.gather,
            _aten.scatter,
            _aten.scatter_add,
            _aten.scatter_reduce,
            _aten.index_add,
        ),
        _along_dimension(RuntimeError, _OUT_OF_BOUNDS),
    ),
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), _of_flat),
    **dict.fromkeys(
        (_aten.index_select, _aten.index_reduce),
        _along_dimension(IndexError, _OUT_OF_RANGE),
    ),
    _aten.index_copy: _along_dimension(IndexError, f"index_copy_(): {_OUT_OF_BOUNDS}"),
    _aten.index_fill: _along_dimension(IndexError, _OUT_OF_BOUNDS, from_end=True),
    **dict.fromkeys((_aten.take, _aten.put), _flat),
    **dict.fromkeys((_aten.index, _aten.index_put), _index_arrays),
    _aten.embedding: _rows,
    **dict.fromkeys((_aten._embedding_bag, _aten._embedding_bag_forward_only), _bags),
    **dict.fromkeys((_aten.nll_loss_forward, _aten.nll_loss2d_forward), _classes),
    _aten.multi_margin_loss: _margin_classes,
    **dict.fromkeys((functional.one_hot, _aten.one_hot), _one_hot),
    **dict.fromkeys((_aten.max_unpool2d, _aten.max_unpool3d), _places),
}
LOWERINGS = ()
# `dispatching` calls `check` before an operator runs, and `indexing` checks the arrays
# of `x[...]`.
METHODS = ()
