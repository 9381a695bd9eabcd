"""Integers that grow evenly along the axes of an array, and the bands that come of comparing them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpuport.attention.provenance.graph import Node, analysis
from tpuport.attention.provenance.operations import groups, is_elementwise
from tpuport.attention.provenance.rewriting import simplify
from tpuport.attention.provenance.variation import varies

Symbols = tuple[tuple[Node, int], ...]


@dataclass(frozen=True)
class Affine:
    """Elements `constant + sum(steps[axis] * index[axis]) + sum(factor * scalar)`.

    Attributes:
        steps: for each axis; 0 along an axis of size 1.
        constant: a whole number.
        symbols: (scalar, factor): traced whole numbers without axes, in the order of their ids.
    """

    steps: tuple[int, ...]
    constant: int
    symbols: Symbols = ()

    def bounds(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The least and the greatest element, the symbols left out."""
        ends = [step * (size - 1) for step, size in zip(self.steps, shape, strict=True)]
        return self.constant + sum(min(e, 0) for e in ends), self.constant + sum(max(e, 0) for e in ends)

    def times(self, factor: int) -> "Affine":
        """All elements times a number."""
        symbols = tuple((scalar, factor * own) for scalar, own in self.symbols if factor)
        return Affine(tuple(factor * step for step in self.steps), factor * self.constant, symbols)

    def plus(self, other: "Affine") -> "Affine":
        """The sum, element by element; one without axes counts everywhere."""
        rank = max(len(self.steps), len(other.steps))
        ours, theirs = (own.steps or (0,) * rank for own in (self, other))
        factors: dict[Node, int] = {}
        for scalar, factor in (*self.symbols, *other.symbols):
            factors[scalar] = factors.get(scalar, 0) + factor
        symbols = tuple(sorted(((s, f) for s, f in factors.items() if f), key=lambda pair: id(pair[0])))
        steps = tuple(a + b for a, b in zip(ours, theirs, strict=True))
        return Affine(steps, self.constant + other.constant, symbols)


@analysis(lambda node: None)
def affine(node: Node) -> Affine | None:
    """The even growth of an array of whole numbers, or None. A sum with a traced scalar is taken not to overflow."""
    node = simplify(node)
    if node.known is not None:
        found = _of_array(np.asarray(node.known))
    elif node.name in _RULES and (node.name not in _ELEMENTWISE or is_elementwise(node)):
        found = _RULES[node.name](node)
    else:
        found = None
    if found is None and np.issubdtype(node.dtype, np.integer) and not any(varies(node)):
        return Affine((0,) * len(node.shape), 0, ((_scalar(node), 1),))
    return found if found is not None and _exact(node, found) else None


def _exact(node: Node, found: Affine) -> bool:
    """Whether the numbers are what the dtype holds: no overflow, no rounding."""
    low, high = found.bounds(node.shape)
    if np.issubdtype(node.dtype, np.integer):
        limits = np.iinfo(node.dtype)
        return limits.min <= low and high <= limits.max
    return node.dtype == np.float32 and not found.symbols and low >= -(1 << 24) and high <= 1 << 24


def _scalar(node: Node) -> Node:
    """What a broadcast scalar is broadcast from, so that the same scalar is one node."""
    node = simplify(node)
    while node.name in ("broadcast_in_dim", "reshape") and not any(varies(node.operands[0])):
        node = simplify(node.operands[0])
    return node


def _of_array(array: np.ndarray) -> Affine | None:
    if array.size == 0 or array.dtype == np.bool_ or array.size > 1 << 16:
        return None
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != np.float32:
        return None
    if not np.isfinite(array).all() or (array != np.round(array)).any() or (np.abs(array) > 1 << 31).any():
        return None
    whole = array.astype(np.int64)
    first = whole[(0,) * whole.ndim]
    steps = tuple(
        int(np.take(whole, 1, axis)[(0,) * (whole.ndim - 1)] - first) if size > 1 else 0
        for axis, size in enumerate(whole.shape)
    )
    even = first + sum(
        step * index for step, index in zip(steps, np.indices(whole.shape, sparse=True), strict=True)
    )
    return Affine(steps, int(first)) if (whole == even).all() else None


def _iota(node: Node) -> Affine:
    steps = tuple(int(axis == node.params["dimension"] and size > 1) for axis, size in enumerate(node.shape))
    return Affine(steps, 0)


def _conversion(node: Node) -> Affine | None:
    # From a float dtype the numbers are whole by what `affine` answers for it.
    return affine(node.operands[0]) if node.operands[0].dtype != np.bool_ else None


def _linear(node: Node) -> Affine | None:
    parts = [affine(operand) for operand in node.operands]
    if any(part is None for part in parts):
        return None
    left, *rest = (part for part in parts if part is not None)
    if node.name == "neg":
        return left.times(-1)
    if node.name == "mul":
        return _product(left, rest[0])
    return left.plus(rest[0].times(-1 if node.name == "sub" else 1))


def _product(left: Affine, right: Affine) -> Affine | None:
    for one, other in ((left, right), (right, left)):
        if not one.symbols and not any(one.steps):
            found = other.times(one.constant)
            return replace(found, steps=found.steps or one.steps)
    return None


def _broadcast(node: Node) -> Affine | None:
    source = affine(node.operands[0])
    if source is None:
        return None
    at = dict(zip(node.params["broadcast_dimensions"], source.steps, strict=True))
    return replace(source, steps=tuple(at.get(axis, 0) for axis in range(len(node.shape))))


def _transpose(node: Node) -> Affine | None:
    source = affine(node.operands[0])
    return source and replace(source, steps=tuple(source.steps[axis] for axis in node.params["permutation"]))


def _reshape(node: Node) -> Affine | None:
    source = affine(node.operands[0])
    if source is None or node.params.get("dimensions") is not None:
        return None
    steps = [0] * len(node.shape)
    for old, new in groups(node.operands[0].shape, node.shape):
        least = source.steps[old[-1]]
        if any(
            source.steps[axis] != least * stride for axis, stride in _strides(node.operands[0].shape, old)
        ):
            return None
        for axis, stride in _strides(node.shape, new):
            steps[axis] = least * stride
    return replace(source, steps=tuple(steps))


def _strides(shape: tuple[int, ...], axes: list[int]) -> list[tuple[int, int]]:
    """(axis, how many elements further its next index is) within a group of axes."""
    return [
        (axis, int(np.prod([shape[a] for a in axes[place + 1 :]], initial=1)))
        for place, axis in enumerate(axes)
    ]


def _slice(node: Node) -> Affine | None:
    source = affine(node.operands[0])
    if source is None:
        return None
    starts = node.params["start_indices"]
    strides = node.params["strides"] or (1,) * len(starts)
    constant = source.constant + sum(s * int(b) for s, b in zip(source.steps, starts, strict=True))
    steps = tuple(
        s * int(k) if n > 1 else 0 for s, k, n in zip(source.steps, strides, node.shape, strict=True)
    )
    return replace(source, steps=steps, constant=constant)


def _reversal(node: Node) -> Affine | None:
    source = affine(node.operands[0])
    if source is None:
        return None
    turned = set(node.params["dimensions"])
    constant = source.constant + sum(source.steps[axis] * (node.shape[axis] - 1) for axis in turned)
    steps = tuple(-step if axis in turned else step for axis, step in enumerate(source.steps))
    return replace(source, steps=steps, constant=constant)


_ELEMENTWISE = {"add", "sub", "neg", "mul", "convert_element_type"}
_RULES: dict[str, Callable[[Node], Any]] = {
    "add": _linear, "sub": _linear, "neg": _linear, "mul": _linear, "convert_element_type": _conversion,
    "iota": _iota, "broadcast_in_dim": _broadcast, "transpose": _transpose, "reshape": _reshape, "slice": _slice,
    "rev": _reversal,
}  # fmt: skip
