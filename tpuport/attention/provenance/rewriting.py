"""Operations written in fewer kinds, and along which axes their elements may differ.

`simplify` puts moves (reshape, slice, ...) below elementwise operations and drops what
changes nothing.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from tpuport.attention.provenance.graph import Node, analysis
from tpuport.attention.provenance.primitives import (
    IDENTITIES,
    gather_axis,
    gather_indices,
    is_elementwise,
    is_move,
    is_outer_product,
    pick_axes,
    place_axes,
    reshape_groups,
)

# For each axis, something that is so or not.
Axes = tuple[bool, ...]
# Of a larger constant the values are not looked at.
_MAX_ELEMENTS = 4096 * 4096


def reshape(node: Node, shape: tuple[int, ...]) -> Node:
    """`node` in another shape."""
    if node.shape == shape:
        return node
    params = {"new_sizes": shape, "dimensions": None, "sharding": None}
    return node.graph.apply(lax.reshape_p, (node,), shape, node.dtype, params)


def _broadcast(node: Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> Node:
    """`node` with its axes at `axes` of a larger shape."""
    params = {"shape": shape, "broadcast_dimensions": axes, "sharding": None}
    return node.graph.apply(lax.broadcast_in_dim_p, (node,), shape, node.dtype, params)


@analysis(lambda node: node)
def simplify(node: Node) -> Node:
    """The same array by fewer kinds of operations, moves below elementwise
    operations.
    """
    if node.name in _SIMPLIFICATIONS:
        simpler = _SIMPLIFICATIONS[node.name](node)
        if simpler is not node:
            return simplify(simpler)
    if is_elementwise(node):
        return _broadcast_operands(node)
    return _sink_move(node) if is_move(node) else node


def _skip_identity(node: Node) -> Node:
    if node.output >= len(node.operands):
        return node
    source = node.operands[node.output]
    # Such an operation may still convert, as a copy to another device can.
    if (source.shape, source.dtype) != (node.shape, node.dtype):
        return node
    return source


def _sink_move(move: Node) -> Node:
    """A move of an elementwise operation's result as the operation on moved
    operands.
    """
    source = simplify(move.operands[0])
    if not is_elementwise(source) or not source.shape:
        return move
    # The move of a comparison becomes a comparison of moved positions, whose growth is
    # known.
    operands = tuple(_move_operand(move, operand) for operand in source.operands)
    return move.graph.apply(
        source.equation.primitive, operands, move.shape, source.dtype, source.params
    )


def _move_operand(move: Node, operand: Node) -> Node:
    """The same move of another array; one node, however many results ask for it."""
    if not operand.shape:
        return operand
    key = (id(move.equation), move.shape)
    if key not in operand.memo:
        primitive = move.equation.primitive
        moved = move.graph.apply(
            primitive, (operand,), move.shape, operand.dtype, move.params
        )
        # With the equation, so that no other equation gets its id.
        operand.memo[key] = (moved, move.equation)
    return operand.memo[key][0]


def _broadcast_operands(node: Node) -> Node:
    """An elementwise operation whose operands have all its shape or none."""
    if {operand.shape for operand in node.operands} <= {(), node.shape}:
        return node
    operands = tuple(_broadcast_sizes(operand, node.shape) for operand in node.operands)
    return node.graph.apply(
        node.equation.primitive, operands, node.shape, node.dtype, node.params
    )


def _broadcast_sizes(node: Node, shape: tuple[int, ...]) -> Node:
    """`node` in a shape of as many axes, of which its own may have size 1; one without
    axes stays.
    """
    if node.shape in ((), shape):
        return node
    return _broadcast(node, shape, tuple(range(node.rank)))


def _simplify_conversion(node: Node) -> Node:
    """A conversion to bool as a comparison with 0."""
    source = node.operands[0]
    if source.dtype == node.dtype:
        return source
    if node.dtype != np.bool_:
        return node
    # As a comparison it is taken apart like any other.
    zero = node.graph.number(0, source.dtype)
    return node.graph.apply(lax.ne_p, (source, zero), node.shape, node.dtype, {})


def _simplify_reshape(node: Node) -> Node:
    """One reshape in place of two, and none that keeps the shape."""
    source = simplify(node.operands[0])
    if source.shape == node.shape:
        return source
    if source.name == "reshape":
        return reshape(source.operands[0], node.shape)
    return node


def _squeeze_as_reshape(node: Node) -> Node:
    return reshape(node.operands[0], node.shape)


def _tile_as_broadcast(node: Node) -> Node:
    """A tiling as a broadcast of a new axis before each one, joined with it."""
    source = node.operands[0]
    pairs = zip(node.params["reps"], source.shape, strict=True)
    shape = tuple(map(int, itertools.chain.from_iterable(pairs)))
    broadcast = _broadcast(source, shape, tuple(range(1, len(shape), 2)))
    return reshape(broadcast, node.shape)


def _outer_product_as_multiplication(node: Node) -> Node:
    """A matrix product over an axis of size 1 as a product of numbers."""
    if not is_outer_product(node):
        return node
    left, right = node.operands
    (left_contracted, right_contracted), (left_batch, right_batch) = node.params[
        "dimension_numbers"
    ]
    left_free = [
        axis for axis in range(left.rank) if axis not in (*left_contracted, *left_batch)
    ]
    right_free = [
        axis
        for axis in range(right.rank)
        if axis not in (*right_contracted, *right_batch)
    ]
    # The result's axes are those of the batch, then the left operand's, then the right
    # one's.
    left_end = len(left_batch) + len(left_free)
    right_axes = (*range(len(right_batch)), *range(left_end, node.rank))
    operands = (
        _broadcast(
            _move_first(left, (*left_batch, *left_free)),
            node.shape,
            tuple(range(left_end)),
        ),
        _broadcast(
            _move_first(right, (*right_batch, *right_free)), node.shape, right_axes
        ),
    )
    return node.graph.apply(lax.mul_p, operands, node.shape, node.dtype, {})


def _move_first(node: Node, axes: tuple[int, ...]) -> Node:
    """These axes in this order; the others have size 1 and are left out."""
    permutation = (*axes, *(axis for axis in range(node.rank) if axis not in axes))
    shape = pick_axes(node.shape, permutation)
    transposed = node.graph.apply(
        lax.transpose_p, (node,), shape, node.dtype, {"permutation": permutation}
    )
    return reshape(transposed, shape[: len(axes)])


def _slice_axis(node: Node, axis: int, start: int, count: int, step: int = 1) -> Node:
    starts, ends = [0] * node.rank, list(node.shape)
    strides, shape = [1] * node.rank, list(node.shape)
    starts[axis], ends[axis] = start, start + step * (count - 1) + 1
    strides[axis], shape[axis] = step, count
    params = {
        "start_indices": tuple(starts),
        "limit_indices": tuple(ends),
        "strides": tuple(strides),
    }
    return node.graph.apply(lax.slice_p, (node,), tuple(shape), node.dtype, params)


def _split_as_slice(node: Node) -> Node:
    sizes = node.params["sizes"]
    start = sum(sizes[: node.output])
    return _slice_axis(node.operands[0], node.params["axis"], start, sizes[node.output])


def _simplify_gather(node: Node) -> Node:
    """Slices at even distances as a strided slice; all of them, each several times, as
    a broadcast.
    """
    indices = gather_indices(node)
    if indices is None:
        return node
    # A gather whose indices are known has one.
    axis: Any = gather_axis(node)
    return (
        _gather_as_slice(node, indices, axis)
        or _gather_as_broadcast(node, indices, axis)
        or node
    )


def _gather_as_slice(node: Node, indices: np.ndarray, axis: int) -> Node | None:
    source, count = node.operands[0], len(indices)
    first = int(indices[0])
    # A single index gives 0, which is not a step; it stays a gather of one slice.
    step = int(indices[-1] - indices[0]) // max(1, count - 1)
    is_even = (indices == first + step * np.arange(count)).all()
    if not is_even or step == 0:
        return None
    if step > 0:
        return _slice_axis(source, axis, first, count, step)
    forward = _slice_axis(source, axis, first + step * (count - 1), count, -step)
    return node.graph.apply(
        lax.rev_p, (forward,), node.shape, node.dtype, {"dimensions": (axis,)}
    )


def _gather_as_broadcast(node: Node, indices: np.ndarray, axis: int) -> Node | None:
    source = node.operands[0]
    # Heads repeated for grouped queries, or a whole mask tiled.
    every_index = np.arange(source.shape[axis])
    times = len(indices) // source.shape[axis]
    if np.array_equal(indices, np.repeat(every_index, times)):
        new_axis = axis + 1
    elif np.array_equal(indices, np.tile(every_index, times)):
        new_axis = axis
    else:
        return None
    shape = (*source.shape[:new_axis], times, *source.shape[new_axis:])
    axes = tuple(other for other in range(len(shape)) if other != new_axis)
    return reshape(_broadcast(source, shape, axes), node.shape)


_SIMPLIFICATIONS: dict[str, Callable[[Node], Node]] = dict.fromkeys(IDENTITIES, _skip_identity) | {
    "convert_element_type": _simplify_conversion, "dot_general": _outer_product_as_multiplication,
    "expand_dims": _squeeze_as_reshape, "gather": _simplify_gather, "reshape": _simplify_reshape,
    "split": _split_as_slice, "squeeze": _squeeze_as_reshape, "tile": _tile_as_broadcast,
}  # fmt: skip


def _all_axes(node: Node) -> Axes:
    return tuple(size > 1 for size in node.shape)


@analysis(_all_axes)
def varying_axes(node: Node) -> Axes:
    """For each axis, whether two elements whose indices differ along it alone may
    differ in value.

    False is certain; True may be a lack of knowledge.
    """
    node = simplify(node)
    if node.known is not None:
        axes = _varying_axes_of_array(node)
    elif is_elementwise(node):
        axes = _axes_of_any(node)
    else:
        axes = _VARIATIONS.get(node.name, _all_axes)(node)
    return tuple(
        varies and size > 1 for varies, size in zip(axes, node.shape, strict=True)
    )


def _varying_axes_of_array(node: Node) -> Axes:
    array = np.asarray(node.known)
    if array.size > _MAX_ELEMENTS:
        return _all_axes(node)
    # An axis of size 1 has nothing that its first element could differ from.
    return tuple(
        bool((array != np.take(array, [0], axis)).any()) for axis in range(array.ndim)
    )


def _axes_of_any(node: Node) -> Axes:
    """The axes along which any operand varies; one without axes does not."""
    of_operands = [varying_axes(operand) for operand in node.operands if operand.shape]
    no_axes = (False,) * node.rank
    return tuple(map(any, zip(no_axes, *of_operands, strict=True)))


def _axes_of_source(node: Node) -> Axes:
    return varying_axes(node.operands[0])


def _axes_of_broadcast(node: Node) -> Axes:
    axes = node.params["broadcast_dimensions"]
    return place_axes(varying_axes(node.operands[0]), axes, node.rank, default=False)


def _axes_of_reshape(node: Node) -> Axes:
    source = varying_axes(node.operands[0])
    axes = [False] * node.rank
    for group in reshape_groups(node.operands[0].shape, node.shape):
        varies = any(pick_axes(source, group.before))
        for axis in group.after:
            axes[axis] = varies
    return tuple(axes)


def _axes_of_transpose(node: Node) -> Axes:
    return pick_axes(varying_axes(node.operands[0]), node.params["permutation"])


def _axes_along(node: Node) -> Axes:
    """An operation along one axis, which may make the elements along it differ."""
    # Cumulative operations call it an axis, a sort and a concatenation a dimension.
    axis: Any = node.params.get("axis", node.params.get("dimension"))
    axes = list(_axes_of_any(node))
    axes[axis] = True
    return tuple(axes)


def _axes_of_pad(node: Node) -> Axes:
    padding = map(any, node.params["padding_config"])
    return tuple(map(max, varying_axes(node.operands[0]), padding))


def _axes_of_reduction(node: Node) -> Axes:
    reduced = node.params["axes"]
    return tuple(
        v
        for axis, v in enumerate(varying_axes(node.operands[0]))
        if axis not in reduced
    )


def _axes_of_iota(node: Node) -> Axes:
    return tuple(axis == node.params["dimension"] for axis in range(node.rank))


def _axes_of_gather(node: Node) -> Axes:
    """Along an axis of its indices as those vary, along an axis of the slices as the
    operand varies.
    """
    numbers = node.params["dimension_numbers"]
    source, indices = node.operands
    if numbers.operand_batching_dims:
        return _all_axes(node)
    collapsed = numbers.collapsed_slice_dims
    # Both are in order of the result's axes, which take from one or the other.
    slice_axes = iter(
        [v for axis, v in enumerate(varying_axes(source)) if axis not in collapsed]
    )
    index_axes = iter(varying_axes(indices)[:-1])
    return tuple(
        next(slice_axes if axis in numbers.offset_dims else index_axes)
        for axis in range(node.rank)
    )


_VARIATIONS: dict[str, Callable[[Node], Axes]] = {
    "broadcast_in_dim": _axes_of_broadcast, "reshape": _axes_of_reshape, "transpose": _axes_of_transpose,
    "slice": _axes_of_source, "rev": _axes_of_source, "dynamic_slice": _axes_of_source, "concatenate": _axes_along,
    "pad": _axes_of_pad, "iota": _axes_of_iota, "sort": _axes_along, "cumsum": _axes_along, "cummax": _axes_along,
    "cummin": _axes_along, "cumprod": _axes_along, "gather": _axes_of_gather,
} | {
    f"reduce_{name}": _axes_of_reduction for name in ("and", "max", "min", "or", "prod", "sum", "xor")
}  # fmt: skip
