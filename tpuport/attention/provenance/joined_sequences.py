"""Arrays that were joined along an axis from parts, such as the tokens of a video and
those of its text: the parts.

On a mesh the parts are divided differently from what is joined of them: a video over
devices, each of which has all of the text. To join them, and to take them apart again,
the compiler sends both. So attention takes the parts, and where code cuts its result
where two parts meet, it gets the part itself. The compiler drops what nothing uses
then.
"""

import itertools
from collections.abc import Callable
from typing import Final

import jax
from jax import lax
from jax.core import Tracer

from tpuport.attention.provenance.emission import emit
from tpuport.attention.provenance.graph import (
    Graph,
    Node,
    UnknownError,
    compute_once,
    producing_equation,
)
from tpuport.attention.provenance.primitives import (
    IDENTITIES,
    axis_before_reshape,
    is_elementwise,
    run_operation,
)

# They do the same to each part.
_UNARY: Final = IDENTITIES | {"stop_gradient"}

Parts = tuple[jax.Array, ...]


def parts_along(array: jax.Array, axis: int) -> Parts:
    """Traced. The arrays that were joined along an axis to this one; itself alone if it
    was not, or is not traced.
    """
    if not isinstance(array, Tracer):
        return (array,)
    try:
        return _parts(Graph().node(array), axis) or (array,)
    except UnknownError:
        return (array,)


def as_part(array: jax.Array) -> jax.Array:
    """Traced. A slice of what was joined from parts, as the part that it is; any other
    array as it is.
    """
    producer = producing_equation(array) if isinstance(array, Tracer) else None
    if producer is None or producer.equation.primitive.name != "slice":
        return array
    [source] = producer.equation.invars
    params = producer.equation.params
    starts, ends = params["start_indices"], params["limit_indices"]
    axes = [
        axis for axis, size in enumerate(array.shape) if size != source.aval.shape[axis]
    ]
    if len(axes) != 1 or any(stride != 1 for stride in params["strides"] or ()):
        return array
    [axis] = axes
    before = 0
    for part in parts_along(source, axis):
        length = part.shape[axis]
        if (before, before + length) == (starts[axis], ends[axis]):
            return part
        before += length
    return array


def _parts(node: Node, axis: int) -> Parts | None:
    """The parts of a node along an axis; None if it was not joined along it.

    Raises:
        UnknownError: an operation cannot be run again.
    """
    return compute_once(node, _find_parts, axis)


def _find_parts(node: Node, axis: int) -> Parts | None:
    if node.name in _UNARY and len(node.operands) == 1:
        parts = _parts(node.operands[0], axis)
        return parts and tuple(run_operation(node, [part]) for part in parts)
    if is_elementwise(node):
        return _elementwise(node, axis)
    rule = _RULES.get(node.name)
    return rule(node, axis) if rule is not None else None


def _elementwise(node: Node, axis: int) -> Parts | None:
    """Of an operation on what was joined, and on numbers and tables, of which each part
    takes its own range.
    """
    operands = [
        _operand_parts(operand, axis, node.shape[axis]) for operand in node.operands
    ]
    joined = [parts for parts in operands if isinstance(parts, tuple)]
    lengths = {tuple(part.shape[axis] for part in parts) for parts in joined}
    if len(lengths) != 1:
        return None
    [lengths] = lengths
    ranges = [
        parts if isinstance(parts, tuple) else _cut(operand, axis, lengths)
        for parts, operand in zip(operands, node.operands, strict=True)
    ]
    return tuple(
        run_operation(node, list(arrays)) for arrays in zip(*ranges, strict=True)
    )


def _operand_parts(operand: Node, axis: int, size: int) -> Parts | None:
    if not operand.rank or operand.shape[axis] != size:
        return None
    return _parts(operand, axis)


def _cut(operand: Node, axis: int, lengths: tuple[int, ...]) -> Parts:
    """The range of an operand for each part; all of what is the same for the whole
    axis.
    """
    whole = emit(operand, (False,) * operand.rank)
    if not operand.rank or operand.shape[axis] == 1:
        return (whole,) * len(lengths)
    ends = itertools.accumulate(lengths)
    return tuple(
        lax.slice_in_dim(whole, end - length, end, axis=axis)
        for end, length in zip(ends, lengths, strict=True)
    )


def _concatenated(node: Node, axis: int) -> Parts | None:
    if node.params["dimension"] != axis:
        return None
    parts: list[jax.Array] = []
    for operand in node.operands:
        parts += _parts_inside(operand, axis) or (
            emit(operand, (False,) * operand.rank),
        )
    return tuple(parts)


def _parts_inside(operand: Node, axis: int) -> Parts | None:
    """The parts of an operand that was joined itself; None too if it comes from too far
    away to tell.
    """
    # In a model of many blocks, the parts of the last come from all of those before it.
    try:
        return _parts(operand, axis)
    except UnknownError:
        return None


def _transposed(node: Node, axis: int) -> Parts | None:
    permutation = node.params["permutation"]
    parts = _parts(node.operands[0], permutation[axis])
    return parts and tuple(lax.transpose(part, permutation) for part in parts)


def _reshaped(node: Node, axis: int) -> Parts | None:
    """Of a reshape that leaves the axis as it is."""
    source = axis_before_reshape(node, axis)
    if source is None:
        return None
    parts = _parts(node.operands[0], source)
    before, after = node.shape[:axis], node.shape[axis + 1 :]
    return parts and tuple(
        lax.reshape(part, (*before, part.shape[source], *after)) for part in parts
    )


_RULES: Final[dict[str, Callable[[Node, int], Parts | None]]] = {
    "concatenate": _concatenated,
    "reshape": _reshaped,
    "transpose": _transposed,
}
