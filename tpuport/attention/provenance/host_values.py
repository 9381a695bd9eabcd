"""Small integers, such as positions, computed by NumPy: XLA would compile each step of
them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tpuport.attention.provenance.graph import Node

# Beyond that many elements, XLA computes sooner than NumPy.
_MAX_SIZE: Final = 65_536


def compute(order: Sequence[Node]) -> np.ndarray | None:
    """The value of the last of several nodes.

    Args:
        order: each after its operands, as `order_operations` gives them.

    Returns:
        None if one of them is no integer, is large, or is not of an operation here.
    """
    values: dict[Node, np.ndarray] = {}
    for node in order:
        if node.dtype.kind not in "biu" or np.prod(node.shape) > _MAX_SIZE:
            return None
        if node.known is not None:
            values[node] = np.asarray(node.known)
            continue
        operation = _OPERATIONS.get(node.name)
        if operation is None:
            return None
        operands = [values[operand] for operand in node.operands]
        values[node] = np.asarray(operation(node, *operands), node.dtype)
    return values[order[-1]]


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *operands: function(*operands)


def _iota(node: Node) -> np.ndarray:
    axis = node.params["dimension"]
    shape = [1] * node.rank
    shape[axis] = -1
    return np.broadcast_to(np.arange(node.shape[axis]).reshape(shape), node.shape)


def _broadcast(node: Node, array: np.ndarray) -> np.ndarray:
    axes = node.params["broadcast_dimensions"]
    shape = [1] * node.rank
    for axis, size in zip(axes, array.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(array.reshape(shape), node.shape)


def _slice(node: Node, array: np.ndarray) -> np.ndarray:
    starts, ends = node.params["start_indices"], node.params["limit_indices"]
    strides = node.params["strides"] or (1,) * node.rank
    return array[tuple(map(slice, starts, ends, strides))]


def _concatenate(node: Node, *arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays, node.params["dimension"])


def _sum_up(node: Node, array: np.ndarray) -> np.ndarray:
    axis = node.params["axis"]
    if not node.params["reverse"]:
        return np.cumsum(array, axis, node.dtype)
    return np.flip(np.cumsum(np.flip(array, axis), axis, node.dtype), axis)


_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "iota": _iota, "broadcast_in_dim": _broadcast, "slice": _slice, "concatenate": _concatenate, "cumsum": _sum_up,
    "reshape": lambda node, array: array.reshape(node.shape),
    "squeeze": lambda node, array: array.reshape(node.shape),
    "transpose": lambda node, array: array.transpose(node.params["permutation"]),
    "convert_element_type": lambda node, array: array.astype(node.dtype),
    **{
        name: _elementwise(function)
        for name, function in {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
            "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert,
        }.items()
    },
}  # fmt: skip
