"""What primitives are known to mean: elementwise on numbers, or a choice of which element goes where."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tpuport.attention.provenance.graph import Node

_NUMBERS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and, "eq": np.equal, "ge": np.greater_equal,
    "gt": np.greater, "le": np.less_equal, "lt": np.less, "max": np.maximum, "min": np.minimum, "mul": np.multiply,
    "ne": np.not_equal, "neg": np.negative, "not": np.invert, "or": np.bitwise_or, "sign": np.sign,
    "sub": np.subtract, "xor": np.bitwise_xor,
}  # fmt: skip
_OTHER_ELEMENTWISE = {
    "cbrt", "ceil", "clamp", "convert_element_type", "cos", "div", "erf", "exp", "exp2", "expm1", "floor",
    "integer_pow", "is_finite", "log", "log1p", "logistic", "nextafter", "pow", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sin", "sqrt", "square",
    "tanh",
}  # fmt: skip
_ELEMENTWISE = _NUMBERS.keys() | _OTHER_ELEMENTWISE
_MOVES = {"broadcast_in_dim", "reshape", "rev", "slice", "transpose"}
COMPARISONS = {"eq", "ge", "gt", "le", "lt", "ne"}
SAME = {"copy", "copy_p", "optimization_barrier", "reshard", "sharding_constraint", "name", "device_put"}


def is_elementwise(node: Node) -> bool:
    """Whether each element comes from the elements at the same place.

    An operand without axes counts everywhere, and so does one of size 1 along its axis.
    """
    return node.name in _ELEMENTWISE and all(
        not operand.shape
        or (
            len(operand.shape) == len(node.shape)
            and all(own in (1, size) for own, size in zip(operand.shape, node.shape, strict=True))
        )
        for operand in node.operands
    )


def is_move(node: Node) -> bool:
    """Whether each element is an element of the operand, at a place that depends on places alone."""
    return node.name in _MOVES


def on_numbers(node: Node, *operands: np.ndarray) -> np.ndarray | None:
    """The elementwise operation done by NumPy; None where that is not known to be what the device does."""
    if node.name in _NUMBERS:
        return np.asarray(_NUMBERS[node.name](*operands), node.dtype)
    if node.name == "convert_element_type":
        return operands[0].astype(node.dtype)
    if node.name == "select_n":
        return np.choose(operands[0].astype(np.int64), operands[1:])
    return None


def groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """How a reshape joins and splits axes: the least groups with equal products, axes of size 1 left out."""
    if 0 in before:
        return [(list(range(len(before))), list(range(len(after))))]
    old = [(axis, size) for axis, size in enumerate(before) if size != 1]
    new = [(axis, size) for axis, size in enumerate(after) if size != 1]
    found: list[tuple[list[int], list[int]]] = []
    while old or new:
        left, right = [old.pop(0)], [new.pop(0)]
        products = [left[0][1], right[0][1]]
        while products[0] != products[1]:
            side = 0 if products[0] < products[1] else 1
            taken = (old, new)[side].pop(0)
            (left, right)[side].append(taken)
            products[side] *= taken[1]
        found.append(([axis for axis, _ in left], [axis for axis, _ in right]))
    return found
