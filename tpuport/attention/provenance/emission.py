"""Arrays made out of nodes, without the axes along which they do not vary: what is not asked for is never computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpuport.attention.provenance.constants import in_order, run
from tpuport.attention.provenance.graph import DEEPEST, Node, Unknown
from tpuport.attention.provenance.operations import groups, is_elementwise
from tpuport.attention.provenance.rewriting import simplify

Axes = tuple[bool, ...]


def emit(node: Node, single: Axes) -> jax.Array:
    """Traced. The array with its first element alone along the axes marked, along which it must not vary.

    Raises Unknown where an operation cannot be run again.
    """
    single = tuple(one and size > 1 for one, size in zip(single, node.shape, strict=True))
    key = (emit, single)
    if key not in node.memo:
        if node.graph.depth >= DEEPEST:
            raise Unknown(node.name)
        node.graph.depth += 1
        try:
            node.memo[key] = _emit(node, single)
        finally:
            node.graph.depth -= 1
    return node.memo[key]


def _emit(node: Node, single: Axes) -> jax.Array:
    if node.array is not None and not (any(single) and node.equation):
        return _first(jnp.asarray(node.array), single)
    simpler = simplify(node)
    if simpler is not node:
        return emit(simpler, single)
    if is_elementwise(node):
        return run(node, [emit(operand, single if operand.shape else ()) for operand in node.operands])
    rule = _RULES.get(node.name)
    found = None if rule is None else rule(node, single)
    if found is not None:
        return found
    if node.array is not None:
        return _first(jnp.asarray(node.array), single)
    return _first(run(node, [emit(o, (False,) * len(o.shape)) for o in node.operands]), single)


def _first(array: jax.Array, single: Axes) -> jax.Array:
    for axis, one in enumerate(single):
        if one:
            array = lax.slice_in_dim(array, 0, 1, axis=axis)
    return array


def _shape(node: Node, single: Axes) -> tuple[int, ...]:
    return tuple(1 if one else size for one, size in zip(single, node.shape, strict=True))


def _broadcast(node: Node, single: Axes) -> jax.Array:
    axes = node.params["broadcast_dimensions"]
    source = emit(node.operands[0], tuple(single[axis] for axis in axes))
    return lax.broadcast_in_dim(source, _shape(node, single), axes)


def _transpose(node: Node, single: Axes) -> jax.Array:
    order = node.params["permutation"]
    source = emit(node.operands[0], tuple(single[order.index(axis)] for axis in range(len(order))))
    return lax.transpose(source, order)


def _reshape(node: Node, single: Axes) -> jax.Array | None:
    """Where each group of axes is kept or left out as a whole."""
    source = node.operands[0]
    if node.params.get("dimensions") is not None:
        return None
    inner = [False] * len(source.shape)
    for old, new in groups(source.shape, node.shape):
        if len({single[axis] for axis in new}) > 1:
            return None
        for axis in old:
            inner[axis] = single[new[0]]
    return lax.reshape(emit(source, tuple(inner)), _shape(node, single))


def _slice(node: Node, single: Axes) -> jax.Array:
    source = emit(node.operands[0], single)
    strides = node.params["strides"] or (1,) * len(single)
    return lax.slice(
        source,
        [0 if one else start for one, start in zip(single, node.params["start_indices"], strict=True)],
        [1 if one else end for one, end in zip(single, node.params["limit_indices"], strict=True)],
        [1 if one else step for one, step in zip(single, strides, strict=True)],
    )


def _reversal(node: Node, single: Axes) -> jax.Array:
    return lax.rev(emit(node.operands[0], single), node.params["dimensions"])


def _concatenate(node: Node, single: Axes) -> jax.Array | None:
    axis = node.params["dimension"]
    return None if single[axis] else lax.concatenate([emit(o, single) for o in node.operands], axis)


def _pad(node: Node, single: Axes) -> jax.Array | None:
    config = node.params["padding_config"]
    if any(one and any(sides) for one, sides in zip(single, config, strict=True)):
        return None
    return lax.pad(emit(node.operands[0], single), emit(node.operands[1], ()), config)


def _gather(node: Node, single: Axes) -> jax.Array | None:
    """With fewer indices; whole slices are kept."""
    numbers, (source, indices) = node.params["dimension_numbers"], node.operands
    if numbers.operand_batching_dims or any(single[axis] for axis in numbers.offset_dims):
        return None
    of_indices = tuple(one for axis, one in enumerate(single) if axis not in numbers.offset_dims)
    return run(node, [emit(source, (False,) * len(source.shape)), emit(indices, (*of_indices, False))])


_RULES: dict[str, Any] = {
    "broadcast_in_dim": _broadcast, "transpose": _transpose, "reshape": _reshape, "slice": _slice,
    "rev": _reversal, "concatenate": _concatenate, "gather": _gather, "pad": _pad,
}  # fmt: skip


def emit_scalar(node: Node) -> jax.Array:
    """Traced. The one value of an array that varies along no axis."""
    return jnp.reshape(emit(node, (True,) * len(node.shape)), ())


def evaluate(node: Node, single: Axes) -> np.ndarray:
    """The value, computed now, of a node for which `is_constant` holds."""
    copies: dict[Node, Node] = {}
    for at in in_order(node) or ():
        operands = () if at.known is not None else tuple(copies[operand] for operand in at.operands)
        # Of its arrays only those that are no tracers.
        copies[at] = Node(at.graph, at.shape, at.dtype, at.equation, operands, at.known, at.output)
    if node not in copies:
        raise Unknown(node.name)
    with jax.ensure_compile_time_eval():
        return np.asarray(emit(copies[node], single))
