"""Arrays computed from nodes, without the axes along which they do not vary: what is
not needed is never computed.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpuport.attention.provenance import host_values
from tpuport.attention.provenance.graph import Node, UnknownError, compute_once
from tpuport.attention.provenance.primitives import (
    is_elementwise,
    needed_operands,
    order_operations,
    pick_axes,
    reshape_groups,
    run_operation,
)
from tpuport.attention.provenance.rewriting import Axes, simplify


def emit(node: Node, single: Axes) -> jax.Array:
    """Traced. The array; of each axis in `single`, along which it must not vary, its
    first element alone.

    Raises:
        UnknownError: an operation cannot be run again.
    """
    single = tuple(
        is_single and size > 1
        for is_single, size in zip(single, node.shape, strict=True)
    )
    # The same array with other axes left out is another one.
    return compute_once(node, _emit, single)


def emit_scalar(node: Node) -> jax.Array:
    """Traced. The one value of an array that varies along no axis."""
    return jnp.reshape(emit(node, (True,) * node.rank), ())


def _emit(node: Node, single: Axes) -> jax.Array:
    # Of what an equation made, fewer elements are computed again.
    is_smaller = any(single) and node.equation is not None
    if node.array is not None and not is_smaller:
        return _take_first(jnp.asarray(node.array), single)
    # Moves below elementwise operations let the axes go before anything is computed.
    simpler = simplify(node)
    if simpler is not node:
        return emit(simpler, single)
    if is_elementwise(node):
        return run_operation(
            node, [emit(operand, single[: operand.rank]) for operand in node.operands]
        )
    smaller = _RULES.get(node.name, _emit_nothing)(node, single)
    if smaller is not None:
        return smaller
    return _take_first(_emit_whole(node), single)


def _emit_nothing(node: Node, single: Axes) -> None:
    """Of an operation without a rule, no part is computed alone."""


def _emit_whole(node: Node) -> jax.Array:
    if node.array is not None:
        return jnp.asarray(node.array)
    return run_operation(
        node, [emit(operand, (False,) * operand.rank) for operand in node.operands]
    )


def _take_first(array: jax.Array, single: Axes) -> jax.Array:
    for axis in np.flatnonzero(single).tolist():
        array = lax.slice_in_dim(array, 0, 1, axis=axis)
    return array


def _single_shape(node: Node, single: Axes) -> tuple[int, ...]:
    return tuple(np.where(single, 1, node.shape).tolist())


def _emit_broadcast(node: Node, single: Axes) -> jax.Array:
    axes = node.params["broadcast_dimensions"]
    source = emit(node.operands[0], pick_axes(single, axes))
    return lax.broadcast_in_dim(source, _single_shape(node, single), axes)


def _emit_transpose(node: Node, single: Axes) -> jax.Array:
    permutation = node.params["permutation"]
    inverse = np.argsort(permutation).tolist()
    return lax.transpose(
        emit(node.operands[0], pick_axes(single, inverse)), permutation
    )


def _emit_reshape(node: Node, single: Axes) -> jax.Array | None:
    """None if only some axes of a group are single."""
    source = node.operands[0]
    source_single = [False] * source.rank
    for group in reshape_groups(source.shape, node.shape):
        if len(set(pick_axes(single, group.after))) > 1:
            return None
        for axis in group.before:
            source_single[axis] = single[group.after[0]]
    return lax.reshape(emit(source, tuple(source_single)), _single_shape(node, single))


def _emit_slice(node: Node, single: Axes) -> jax.Array:
    source = emit(node.operands[0], single)
    starts, ends = (
        list(node.params["start_indices"]),
        list(node.params["limit_indices"]),
    )
    strides = list(node.params["strides"] or (1,) * node.rank)
    # Along these axes the source has only the first element.
    for axis in np.flatnonzero(single):
        starts[axis], ends[axis], strides[axis] = 0, 1, 1
    return lax.slice(source, starts, ends, strides)


def _emit_reversal(node: Node, single: Axes) -> jax.Array:
    return lax.rev(emit(node.operands[0], single), node.params["dimensions"])


def _emit_concatenation(node: Node, single: Axes) -> jax.Array | None:
    axis = node.params["dimension"]
    if single[axis]:
        return None
    return lax.concatenate([emit(operand, single) for operand in node.operands], axis)


def _emit_pad(node: Node, single: Axes) -> jax.Array | None:
    config = node.params["padding_config"]
    is_padded = list(map(any, config))
    # The first element along such an axis may be padding.
    if np.logical_and(single, is_padded).any():
        return None
    array, value = node.operands
    return lax.pad(emit(array, single), emit(value, ()), config)


def _emit_gather(node: Node, single: Axes) -> jax.Array | None:
    """With fewer indices, and whole slices."""
    numbers = node.params["dimension_numbers"]
    source, indices = node.operands
    if numbers.operand_batching_dims or any(pick_axes(single, numbers.offset_dims)):
        return None
    # The axes of the result that are not the slices' own are those of the indices, in
    # their order.
    index_axes = np.delete(single, numbers.offset_dims).tolist()
    return run_operation(
        node,
        [emit(source, (False,) * source.rank), emit(indices, (*index_axes, False))],
    )


_RULES: dict[str, Callable[[Node, Axes], jax.Array | None]] = {
    "broadcast_in_dim": _emit_broadcast, "transpose": _emit_transpose, "reshape": _emit_reshape,
    "slice": _emit_slice, "rev": _emit_reversal, "concatenate": _emit_concatenation, "gather": _emit_gather,
    "pad": _emit_pad,
}  # fmt: skip


def evaluate(node: Node, single: Axes) -> np.ndarray:
    """The value, computed now, of a node for which `is_constant` holds."""
    order = order_operations(node) or ()
    if order and not any(single):
        values = host_values.compute(order)
        if values is not None:
            return values
    copies: dict[Node, Node] = {}
    for original in order:
        operands = tuple(map(copies.__getitem__, needed_operands(original)))
        # Without the arrays that are tracers, which cannot be read now.
        copies[original] = Node(
            original.graph, original.shape, original.dtype, original.equation, partial(tuple, operands), original.known,
            original.output,
        )  # fmt: skip
    if node not in copies:
        raise UnknownError(node.name)
    with jax.ensure_compile_time_eval():
        return np.asarray(emit(copies[node], single))
