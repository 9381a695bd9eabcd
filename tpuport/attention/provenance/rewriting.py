"""Operations written in fewer kinds: moves stand under elementwise operations, and what changes nothing is gone."""

import numpy as np
from jax import lax

from tpuport.attention.provenance.constants import chosen, chosen_axis
from tpuport.attention.provenance.graph import Node, analysis
from tpuport.attention.provenance.operations import SAME, is_elementwise, is_move
from tpuport.attention.provenance.values import is_outer_product


def reshape(node: Node, shape: tuple[int, ...]) -> Node:
    """`node` in another shape."""
    if node.shape == shape:
        return node
    params = {"new_sizes": shape, "dimensions": None, "sharding": None}
    return node.graph.apply(lax.reshape_p, (node,), shape, node.dtype, params)


def broadcast(node: Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> Node:
    """`node` with its axes at `axes` of a larger shape."""
    params = {"shape": shape, "broadcast_dimensions": axes, "sharding": None}
    return node.graph.apply(lax.broadcast_in_dim_p, (node,), shape, node.dtype, params)


@analysis(lambda node: node)
def simplify(node: Node) -> Node:
    """The same array by fewer kinds of operations: moves stand under elementwise operations, not over them."""
    rewritten = _RULES[node.name](node) if node.name in _RULES else node
    if rewritten is not node:
        return simplify(rewritten)
    if is_elementwise(node):
        return _of_one_shape(node)
    return _sunk(node) if is_move(node) else node


def _unchanged(node: Node) -> Node:
    """What an operation gives on, perhaps elsewhere or in another order of execution."""
    source = node.operands[node.output] if node.output < len(node.operands) else node
    return source if (source.shape, source.dtype) == (node.shape, node.dtype) else node


def _sunk(move: Node) -> Node:
    """A move of an elementwise operation's result as the operation on moved operands."""
    source = simplify(move.operands[0])
    if not is_elementwise(source) or not source.shape:
        return move
    operands = tuple(_moved(move, operand) if operand.shape else operand for operand in source.operands)
    return move.graph.apply(source.equation.primitive, operands, move.shape, source.dtype, source.params)


def _of_one_shape(node: Node) -> Node:
    """An elementwise operation whose operands have all its shape or none."""
    if all(operand.shape in ((), node.shape) for operand in node.operands):
        return node
    axes = tuple(range(len(node.shape)))
    operands = tuple(
        operand if operand.shape in ((), node.shape) else broadcast(operand, node.shape, axes)
        for operand in node.operands
    )
    return node.graph.apply(node.equation.primitive, operands, node.shape, node.dtype, node.params)


def _moved(move: Node, operand: Node) -> Node:
    """The same move of another array; one node however many results ask for it."""
    key = (id(move.equation), move.shape)
    if key not in operand.memo:
        operand.memo[key] = (
            move.graph.apply(move.equation.primitive, (operand,), move.shape, operand.dtype, move.params),
            move.equation,
        )
    return operand.memo[key][0]


def _conversion(node: Node) -> Node:
    """A conversion to bool as a comparison with 0."""
    source = node.operands[0]
    if source.dtype == node.dtype:
        return source
    if node.dtype != np.bool_:
        return node
    zero = node.graph.constant(0, source.dtype)
    return node.graph.apply(lax.ne_p, (source, zero), node.shape, node.dtype, {})


def _reshaped(node: Node) -> Node:
    """One reshape in place of two, and none that keeps the shape."""
    source = simplify(node.operands[0])
    if source.shape == node.shape and node.params.get("dimensions") is None:
        return source
    if {at.params.get("dimensions") for at in (node, source)} == {None} and source.name == "reshape":
        return reshape(source.operands[0], node.shape)
    return node


def _squeezed(node: Node) -> Node:
    return reshape(node.operands[0], node.shape)


def _tile(node: Node) -> Node:
    """A tiling as a broadcast of an axis before each one, joined to it."""
    source, repeats = node.operands[0], tuple(int(count) for count in node.params["reps"])
    both = tuple(size for pair in zip(repeats, source.shape, strict=True) for size in pair)
    spread = broadcast(source, both, tuple(range(1, len(both), 2)))
    return reshape(spread, node.shape)


def _outer_product(node: Node) -> Node:
    """A matrix product over an axis of size 1 as a product of numbers."""
    if not is_outer_product(node):
        return node
    left, right = node.operands
    (summed, summed_right), (batch_left, batch_right) = node.params["dimension_numbers"]
    free_left = [a for a in range(len(left.shape)) if a not in (*summed, *batch_left)]
    free_right = [a for a in range(len(right.shape)) if a not in (*summed_right, *batch_right)]
    first = len(batch_left) + len(free_left)
    operands = []
    for source, order, places in (
        (left, (*batch_left, *free_left), tuple(range(first))),
        (right, (*batch_right, *free_right), (*range(len(batch_right)), *range(first, len(node.shape)))),
    ):
        kept = _transposed(source, order)
        operands.append(broadcast(kept, node.shape, places))
    return node.graph.apply(lax.mul_p, tuple(operands), node.shape, node.dtype, {})


def _transposed(node: Node, order: tuple[int, ...]) -> Node:
    """The axes in `order`, the others, of size 1, left out."""
    left_out = tuple(axis for axis in range(len(node.shape)) if axis not in order)
    permutation = (*order, *left_out)
    shape = tuple(node.shape[axis] for axis in permutation)
    moved = node.graph.apply(lax.transpose_p, (node,), shape, node.dtype, {"permutation": permutation})
    return reshape(moved, shape[: len(order)])


def _slice(node: Node, axis: int, start: int, count: int, step: int = 1) -> Node:
    starts = tuple(start if at == axis else 0 for at in range(len(node.shape)))
    ends = tuple(start + step * (count - 1) + 1 if at == axis else size for at, size in enumerate(node.shape))
    strides = tuple(step if at == axis else 1 for at in range(len(node.shape)))
    shape = tuple(count if at == axis else size for at, size in enumerate(node.shape))
    params = {"start_indices": starts, "limit_indices": ends, "strides": strides}
    return node.graph.apply(lax.slice_p, (node,), shape, node.dtype, params)


def _split(node: Node) -> Node:
    sizes = node.params["sizes"]
    return _slice(node.operands[0], node.params["axis"], sum(sizes[: node.output]), sizes[node.output])


def _gathered(node: Node) -> Node:
    """Slices taken at even distances as a strided slice; all of them, each several times, as a broadcast."""
    places, axis = chosen(node), chosen_axis(node)
    if places is None or axis is None:
        return node
    source, count = node.operands[0], len(places)
    first, step = int(places[0]), int(places[-1] - places[0]) // max(1, count - 1)
    if (places == first + step * np.arange(count)).all() and step:
        if step > 0:
            return _slice(source, axis, first, count, step)
        params = {"dimensions": (axis,)}
        forward = _slice(source, axis, first + step * (count - 1), count, -step)
        return node.graph.apply(lax.rev_p, (forward,), node.shape, node.dtype, params)
    every, times = np.arange(source.shape[axis]), count // source.shape[axis]
    for order, after in ((np.repeat(every, times), 1), (np.tile(every, times), 0)):
        if np.array_equal(places, order):
            spread = (*source.shape[: axis + after], times, *source.shape[axis + after :])
            kept = tuple(at for at in range(len(spread)) if at != axis + after)
            return reshape(broadcast(source, spread, kept), node.shape)
    return node


_RULES = dict.fromkeys(SAME, _unchanged) | {
    "convert_element_type": _conversion, "dot_general": _outer_product, "expand_dims": _squeezed,
    "gather": _gathered, "split": _split,
    "reshape": _reshaped, "squeeze": _squeezed, "tile": _tile,
}  # fmt: skip
