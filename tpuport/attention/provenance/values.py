"""The few values that an array can hold, where they are known: 0 and 1, or 0 and the lowest number."""

import itertools
from typing import Any

import numpy as np

from tpuport.attention.provenance.constants import chosen
from tpuport.attention.provenance.graph import Node, analysis
from tpuport.attention.provenance.operations import SAME, is_elementwise, on_numbers

MOST_VALUES = 4
MOST_COMBINATIONS = 64
_FEW_ELEMENTS = 1 << 16
_MOVED = {
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev", "tile", "dynamic_slice",
    "reduce_max", "reduce_min", "cummax", "cummin", "split",
}  # fmt: skip

Values = tuple[Any, ...] | None


def _any(node: Node) -> Values:
    return (np.False_, np.True_) if node.dtype == np.bool_ else None


@analysis(_any)
def values(node: Node) -> Values:
    """Every value that an element can have, each once and none NaN; None: not known, or too many."""
    if node.known is not None:
        found = _of_array(np.asarray(node.known))
    elif is_elementwise(node):
        found = _of_operation(node)
    elif node.name in SAME and node.output < len(node.operands):
        found = values(node.operands[node.output])
    elif node.name in _MOVED:
        found = values(node.operands[0])
    elif node.name in ("concatenate", "pad"):
        found = _together(node)
    elif chosen(node) is not None:
        found = values(node.operands[0])
    elif is_outer_product(node):
        found = (
            *{node.dtype.type(a * b) for a in values(node.operands[0]) for b in values(node.operands[1])},
        )
    else:
        found = None
    return _any(node) if found is None else found


def is_outer_product(node: Node) -> bool:
    """Whether it is a matrix product of zeros and ones over an axis of size 1: a matrix unit keeps those exactly."""
    if node.name != "dot_general":
        return False
    summed, _ = node.params["dimension_numbers"][0]
    return all(node.operands[0].shape[axis] == 1 for axis in summed) and all(
        operand.dtype == node.dtype and set(values(operand) or (2,)) <= {0, 1} for operand in node.operands
    )


def _few(found: list[Any]) -> Values:
    unique = list(dict.fromkeys(found))
    return tuple(unique) if 0 < len(unique) <= MOST_VALUES and all(v == v for v in unique) else None


def _of_array(array: np.ndarray) -> Values:
    if array.size == 0:
        return None
    if array.dtype == np.bool_:
        return _few([array.min(), array.max()])
    if array.size > _FEW_ELEMENTS:
        return None
    return _few(list(np.unique(array)[: MOST_VALUES + 1]))


def _together(node: Node) -> Values:
    parts = [values(operand) for operand in node.operands]
    return None if None in parts else _few([value for part in parts for value in part or ()])


def _of_operation(node: Node) -> Values:
    results = combinations(node)
    return None if results is None else _few([result for _, result in results])


def combinations(node: Node) -> list[tuple[tuple[Any, ...], Any]] | None:
    """What an elementwise operation gives for each choice of values of its different operands; None: not known.

    The values are in the order of `distinct(node)`.
    """
    different = distinct(node)
    sets = [values(operand) for operand in different]
    if any(found is None for found in sets):
        return None
    choices = list(
        itertools.islice(itertools.product(*(found or () for found in sets)), MOST_COMBINATIONS + 1)
    )
    if not 0 < len(choices) <= MOST_COMBINATIONS:
        return None
    at = [different.index(operand) for operand in node.operands]
    arrays = [
        np.asarray([choice[place] for choice in choices], different[place].dtype)
        for place in range(len(different))
    ]
    results = on_numbers(node, *(arrays[place] for place in at))
    return None if results is None else list(zip(choices, results, strict=True))


def distinct(node: Node) -> list[Node]:
    """The operands, each once."""
    return list(dict.fromkeys(node.operands))
