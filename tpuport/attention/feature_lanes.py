"""The last axes of an array as features of the arrays that they come from: which
feature goes where, with which sign.

Shapes: L any leading axes, D features of the source, E features of the result.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tpuport.attention.provenance.emission import evaluate
from tpuport.attention.provenance.graph import Node, UnknownError
from tpuport.attention.provenance.primitives import IDENTITIES, is_constant

# They keep the order of elements, or add and drop axes of size 1.
_RESHAPES: Final = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim"}


class Lanes(NamedTuple):
    """The last axes of an array [L, ...], as features of other arrays.

    Attributes:
        parts: arrays [L, D], each with its own D.
        part, lane: for each element of the last axes, the index of its part, and of the
            feature in it.
        sign: 1 or -1, by which the feature is multiplied.
    """

    parts: tuple[Node, ...]
    part: np.ndarray
    lane: np.ndarray
    sign: np.ndarray

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Lanes":
        """The lanes after a move that is the same for all leading indices."""
        return Lanes(
            self.parts, function(self.part), function(self.lane), function(self.sign)
        )

    @property
    def is_identity(self) -> bool:
        """Whether it is one whole part, as it is."""
        size = self.parts[0].shape[-1]
        in_order = self.lane.shape == (size,) and (self.lane == np.arange(size)).all()
        return len(self.parts) == 1 and in_order and bool((self.sign == 1).all())


def find_lanes(node: Node, axes: int) -> Lanes:
    """The last axes of an array, as features of the arrays that they come from.

    Raises:
        UnknownError: they are not features of anything.
    """
    rule = _RULES.get(node.name)
    if rule is not None:
        try:
            return rule(node, axes)
        except UnknownError:
            pass
    if axes != 1:
        raise UnknownError(node.name)
    size = node.shape[-1]
    return Lanes((node,), np.zeros(size, int), np.arange(size), np.ones(size, int))


def _leading(node: Node, axes: int) -> tuple[int, ...]:
    return node.shape[: node.rank - axes]


def _reshaped(node: Node, axes: int) -> Lanes:
    [source, *_] = node.operands
    leading = _leading(node, axes)
    if source.shape[: len(leading)] != leading or math.prod(source.shape) != math.prod(
        node.shape
    ):
        raise UnknownError(node.name)
    source_axes = source.rank - len(leading)
    if source_axes < 1:
        raise UnknownError(node.name)
    return find_lanes(source, source_axes).map(
        lambda values: values.reshape(node.shape[len(leading) :])
    )


def _sliced(node: Node, axes: int) -> Lanes:
    starts, ends = node.params["start_indices"], node.params["limit_indices"]
    strides = node.params["strides"] or (1,) * node.rank
    [source] = node.operands
    if _leading(source, axes) != _leading(node, axes):
        raise UnknownError(node.name)
    slices = tuple(map(slice, starts, ends, strides))[node.rank - axes :]
    return find_lanes(source, axes).map(lambda values: values[slices])


def _joined(
    lanes: Sequence[Lanes], join: Callable[[list[np.ndarray]], np.ndarray]
) -> Lanes:
    offsets = np.cumsum([0, *(len(view.parts) for view in lanes)])
    return Lanes(
        tuple(part for view in lanes for part in view.parts),
        join(
            [view.part + offset for view, offset in zip(lanes, offsets, strict=False)]
        ),
        join([view.lane for view in lanes]),
        join([view.sign for view in lanes]),
    )


def _stacked(node: Node, axes: int) -> Lanes:
    axis = node.params["axis"] - (node.rank - axes)
    if axis < 0 or axes < 2:
        raise UnknownError(node.name)
    return _joined(
        [find_lanes(operand, axes - 1) for operand in node.operands],
        lambda values: np.stack(values, axis),
    )


def _concatenated(node: Node, axes: int) -> Lanes:
    axis = node.params["dimension"] - (node.rank - axes)
    if axis < 0:
        raise UnknownError(node.name)
    return _joined(
        [find_lanes(operand, axes) for operand in node.operands],
        lambda values: np.concatenate(values, axis),
    )


def _negated(node: Node, axes: int) -> Lanes:
    lanes = find_lanes(node.operands[0], axes)
    return lanes._replace(sign=-lanes.sign)


def _multiplied(node: Node, axes: int) -> Lanes:
    """A product with the number -1, which is how torch negates."""
    for number, source in (node.operands, node.operands[::-1]):
        if number.known is not None and not number.shape and float(number.known) == -1:
            lanes = find_lanes(source, axes)
            return lanes._replace(sign=-lanes.sign)
    raise UnknownError(node.name)


def _unchanged(node: Node, axes: int) -> Lanes:
    return find_lanes(node.operands[0], axes)


def _scattered(node: Node, axes: int) -> Lanes:
    """Features written at known places, `out[..., 0::2] = x`."""
    target, indices, updates = node.operands
    numbers = node.params["dimension_numbers"]
    last = node.rank - 1
    writes_features = (
        axes == 1
        and numbers.inserted_window_dims == (last,)
        and numbers.scatter_dims_to_operand_dims == (last,)
        and numbers.update_window_dims == tuple(range(last))
        and node.params.get("update_jaxpr") is None
        and _leading(updates, 1) == _leading(node, 1)
        and is_constant(indices)
    )
    if not writes_features:
        raise UnknownError(node.name)
    places = evaluate(indices, (False,) * indices.rank).reshape(-1)
    joined = _joined([find_lanes(target, 1), find_lanes(updates, 1)], np.concatenate)
    size = node.shape[-1]
    order = np.arange(size)
    # What lies outside is not written.
    inside = (places >= 0) & (places < size)
    order[places[inside]] = size + np.flatnonzero(inside)
    return joined.map(lambda values: values[order])


_RULES: Final[dict[str, Callable[[Node, int], Lanes]]] = {
    **dict.fromkeys(_RESHAPES, _reshaped), **dict.fromkeys(IDENTITIES, _unchanged), "slice": _sliced,
    "stack": _stacked, "concatenate": _concatenated, "neg": _negated, "mul": _multiplied, "scatter": _scattered,
}  # fmt: skip
