"""Axes that code joins for products of matrices, such as batch and heads, computed
apart: `reshape`.

Attention by hand often joins them to [B * H, Q, D], which `torch.bmm` takes, and splits
the result. Heads that are divided over devices are no longer divided in such an axis:
the compiler gathers them. So where code splits the axis, what was computed since it was
joined is computed with its parts apart. The compiler drops what nothing uses then.

Shapes: B batch, H heads, Q queries, D head dimension.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from tpuport.attention.provenance.emission import emit
from tpuport.attention.provenance.graph import (
    MAX_DEPTH,
    MAX_NODES,
    Graph,
    Node,
    UnknownError,
    compute_once,
    go_deeper,
)
from tpuport.attention.provenance.primitives import (
    IDENTITIES,
    axis_before_reshape,
    is_elementwise,
)

# Elementwise operations of one operand, which are not computed again for anything but
# their shape.
_UNARY: Final = IDENTITIES | {"stop_gradient"}
_REDUCTIONS: Final = (
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
)


class Joined(NamedTuple):
    """How an axis was joined from others.

    Attributes:
        boundaries: where it can be split: the products of the sizes of its leading
            parts.
        has_product: whether a product of matrices was computed for each of its
            positions since.
    """

    boundaries: frozenset[int]
    has_product: bool


class _Step(NamedTuple):
    """What an operation does to an axis of its result, and how it runs with that axis
    in parts.

    Attributes:
        sources: the axis of each operand that goes on as this one; None for an operand
            that does not have it.
        run: takes the operands, their axes in parts, and the sizes of the parts.
    """

    sources: Sequence[int | None]
    run: Callable[[list[jax.Array], tuple[int, ...]], jax.Array]


def reshape(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Traced. The array in another shape; if that splits an axis that was joined before
    a product, by way of its parts.

    Args:
        shape: of the result; one size may be -1.
    """
    target = _complete(shape, math.prod(array.shape))
    if not isinstance(array, Tracer) or 0 in target:
        return jnp.reshape(array, target)
    node = Graph().node(array)
    for axis, sizes in _splits(node, target):
        try:
            return lax.reshape(_emit_apart(node, axis, sizes), target)
        except UnknownError:
            # Something behind it cannot be computed again.
            continue
    return jnp.reshape(array, target)


def _complete(shape: Sequence[int], elements: int) -> tuple[int, ...]:
    """The shape with the size that -1 stands for."""
    known = math.prod(size for size in shape if size != -1)
    if -1 not in shape or not known:
        return tuple(shape)
    return tuple(elements // known if size == -1 else size for size in shape)


def _splits(
    node: Node, target: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(axis, the sizes of its parts) of each axis that was joined before a product and
    is split by a reshape.
    """
    for axis, size in enumerate(node.shape):
        wanted = _boundaries_inside(axis, node.shape, target)
        joined = _find_joined(node, axis) if wanted else None
        if joined is None or not joined.has_product:
            continue
        boundaries = sorted(wanted & joined.boundaries)
        if boundaries:
            pairs = itertools.pairwise((1, *boundaries, size))
            yield axis, tuple(end // start for start, end in pairs)


def _boundaries_inside(
    axis: int, shape: tuple[int, ...], other: tuple[int, ...]
) -> frozenset[int]:
    """Where a reshape splits an axis of one of two shapes: products of the sizes of the
    axis' leading parts.
    """
    before = math.prod(shape[:axis])
    ends = np.cumprod(other, dtype=np.int64).tolist()
    inside = [
        end for end in ends if before < end < before * shape[axis] and end % before == 0
    ]
    return frozenset(end // before for end in inside)


def _find_joined(node: Node, axis: int) -> Joined | None:
    """How an axis was joined; None if it was not, or that is not known."""
    key = (_find_joined, axis)
    if key not in node.memo:
        if node.graph.depth >= MAX_DEPTH or node.graph.count >= MAX_NODES:
            return None  # not remembered: from elsewhere the node may be less deep
        node.memo[key] = go_deeper(node, _look_for_joined, axis)
    return node.memo[key]


def _look_for_joined(node: Node, axis: int) -> Joined | None:
    if boundaries := _joining(node, axis):
        return Joined(boundaries, has_product=False)
    step = _step(node, axis)
    if step is None:
        return None
    operands = [
        _find_joined(operand, source)
        for operand, source in zip(node.operands, step.sources, strict=True)
        if source is not None
    ]
    known = [joined for joined in operands if joined is not None]
    boundaries = frozenset[int]()
    if known:
        boundaries = frozenset.intersection(*(joined.boundaries for joined in known))
    if not boundaries:
        return None
    has_product = node.name == "dot_general" or any(
        joined.has_product for joined in known
    )
    return Joined(boundaries, has_product)


def _joining(node: Node, axis: int) -> frozenset[int]:
    """The boundaries of what a reshape joins to an axis of its result; empty if it
    joins nothing to it.
    """
    if node.name != "reshape":
        return frozenset()
    return _boundaries_inside(axis, node.shape, node.operands[0].shape)


def _emit_apart(node: Node, axis: int, sizes: tuple[int, ...]) -> jax.Array:
    """Traced. The array with an axis in parts of these sizes.

    Raises:
        UnknownError: an operation cannot be run again.
    """
    return compute_once(node, _compute_apart, axis, sizes)


def _compute_apart(node: Node, axis: int, sizes: tuple[int, ...]) -> jax.Array:
    shape = _divided(node.shape, axis, sizes)
    if _joining(node, axis):
        return lax.reshape(_emit_whole(node.operands[0]), shape)
    step = _step(node, axis)
    if step is None or _find_joined(node, axis) is None:
        # A mask, say, that was joined with others or is the same for all: to split it
        # costs nothing.
        return lax.reshape(_emit_whole(node), shape)
    operands = []
    for operand, source in zip(node.operands, step.sources, strict=True):
        if source is None:
            operands.append(_emit_whole(operand))
        else:
            operands.append(_emit_apart(operand, source, sizes))
    return step.run(operands, sizes)


def _emit_whole(node: Node) -> jax.Array:
    return emit(node, (False,) * node.rank)


def _step(node: Node, axis: int) -> _Step | None:
    """What the operation of a node does to an axis; None if that is not known."""
    if not node.can_rerun:
        return None
    if node.name in _UNARY and len(node.operands) == 1:
        return _Step([axis], lambda operands, sizes: _run(node, operands))
    if is_elementwise(node):
        return _elementwise(node, axis)
    rule = _RULES.get(node.name)
    return None if rule is None else rule(node, axis)


def _run(node: Node, operands: list[jax.Array], **params: Any) -> jax.Array:
    """The operation with some parameters replaced."""
    return node.equation.primitive.bind(*operands, **{**node.params, **params})


def _divided(
    shape: Iterable[int], axis: int, sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """A shape, or another value for each axis, with several in place of one."""
    before = tuple(shape)
    return (*before[:axis], *sizes, *before[axis + 1 :])


def _renumbered(axes: Iterable[int], axis: int, parts: int) -> tuple[int, ...]:
    """Indices of axes after one of them has become several; that one is all of its
    parts.
    """
    renumbered: list[int] = []
    for index in axes:
        if index == axis:
            renumbered += range(axis, axis + parts)
        else:
            renumbered.append(index + (parts - 1) * (index > axis))
    return tuple(renumbered)


def _repeated(array: jax.Array, axis: int, parts: int) -> jax.Array:
    """An array of size 1 along an axis, with as many axes of size 1 in its place."""
    return lax.reshape(array, _divided(array.shape, axis, (1,) * parts))


def _elementwise(node: Node, axis: int) -> _Step:
    size = node.shape[axis]
    # Numbers have no axes, and what is repeated along this one has size 1.
    has_axis = [
        bool(operand.rank) and operand.shape[axis] == size for operand in node.operands
    ]

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        fitting = [
            _repeated(array, axis, len(sizes)) if array.ndim and not is_apart else array
            for array, is_apart in zip(operands, has_axis, strict=True)
        ]
        return _run(node, fitting)

    return _Step([axis if is_apart else None for is_apart in has_axis], run)


def _product(node: Node, axis: int) -> _Step | None:
    (left_contracted, right_contracted), (left_batch, right_batch) = node.params[
        "dimension_numbers"
    ]
    # The result's first axes are those for whose positions products are computed apart.
    if axis >= len(left_batch):
        return None
    left, right = left_batch[axis], right_batch[axis]

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        parts = len(sizes)
        contracted = (
            _renumbered(left_contracted, left, parts),
            _renumbered(right_contracted, right, parts),
        )
        batch = (
            _renumbered(left_batch, left, parts),
            _renumbered(right_batch, right, parts),
        )
        return _run(node, operands, dimension_numbers=(contracted, batch))

    return _Step([left, right], run)


def _transpose(node: Node, axis: int) -> _Step:
    permutation = node.params["permutation"]
    source = permutation[axis]

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        return lax.transpose(operands[0], _renumbered(permutation, source, len(sizes)))

    return _Step([source], run)


def _broadcast(node: Node, axis: int) -> _Step | None:
    targets = node.params["broadcast_dimensions"]
    source = targets.index(axis) if axis in targets else None
    # What is repeated along the axis was not joined to it.
    if source is None or node.operands[0].shape[source] != node.shape[axis]:
        return None

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        shape = _divided(node.shape, axis, sizes)
        return lax.broadcast_in_dim(
            operands[0], shape, _renumbered(targets, axis, len(sizes))
        )

    return _Step([source], run)


def _reduction(node: Node, axis: int) -> _Step:
    return _without(node, axis, "axes")


def _squeeze(node: Node, axis: int) -> _Step:
    return _without(node, axis, "dimensions")


def _without(node: Node, axis: int, parameter: str) -> _Step:
    """Of an operation whose result lacks the axes that a parameter lists."""
    removed = node.params[parameter]
    remaining = [
        index for index in range(node.operands[0].rank) if index not in removed
    ]
    source = remaining[axis]

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        return _run(
            node, operands, **{parameter: _renumbered(removed, source, len(sizes))}
        )

    return _Step([source], run)


def _reshape(node: Node, axis: int) -> _Step | None:
    source = axis_before_reshape(node, axis)
    if source is None:
        return None
    return _Step(
        [source],
        lambda operands, sizes: lax.reshape(
            operands[0], _divided(node.shape, axis, sizes)
        ),
    )


def _concatenation(node: Node, axis: int) -> _Step | None:
    dimension = node.params["dimension"]
    if dimension == axis:
        return None

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        [along] = _renumbered([dimension], axis, len(sizes))
        return lax.concatenate(operands, along)

    return _Step([axis] * len(node.operands), run)


def _slice(node: Node, axis: int) -> _Step | None:
    # None stands for steps of 1.
    strides = node.params["strides"] or (1,) * node.rank
    if node.operands[0].shape[axis] != node.shape[axis]:
        return None

    def run(operands: list[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        starts = _divided(node.params["start_indices"], axis, (0,) * len(sizes))
        limits = _divided(node.params["limit_indices"], axis, sizes)
        return lax.slice(
            operands[0], starts, limits, _divided(strides, axis, (1,) * len(sizes))
        )

    return _Step([axis], run)


_RULES: Final[dict[str, Callable[[Node, int], _Step | None]]] = {
    "dot_general": _product,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "concatenate": _concatenation,
    "slice": _slice,
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
