"""Which distances between a key's and a query's position a mask allows: of comparisons, and of known values."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.conditions import Condition
from tpuport.attention.provenance.emission import emit_scalar
from tpuport.attention.provenance.graph import Node, analysis
from tpuport.attention.provenance.primitives import is_elementwise, reshape_groups
from tpuport.attention.provenance.rewriting import simplify, varying_axes

# Of a larger constant the values are not looked at.
_MAX_CONSTANT = 1 << 16
_MAX_INTEGER = 1 << 31
# Up to here float32 has every integer.
_MAX_FLOAT32_INTEGER = 1 << 24
# The same comparison with its sides exchanged, and the one that holds whenever it does not.
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}

# (scalar, factor): traced integers without axes, in the order of their ids.
Symbols = tuple[tuple[Node, int], ...]


@dataclass(frozen=True)
class Affine:
    """Integers that grow evenly: `constant + sum(steps[axis] * index[axis]) + sum(factor * scalar)`.

    Attributes:
        steps: for each axis; 0 along an axis of size 1.
        constant: an integer.
        symbols: traced scalars with factors.
    """

    steps: tuple[int, ...]
    constant: int
    symbols: Symbols = ()

    def bounds(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The least and the greatest element, without the symbols."""
        growth = [step * (size - 1) for step, size in zip(self.steps, shape, strict=True)]
        low = self.constant + sum(min(total, 0) for total in growth)
        return low, self.constant + sum(max(total, 0) for total in growth)

    def times(self, factor: int) -> "Affine":
        """All elements times a number."""
        symbols = tuple((scalar, factor * own) for scalar, own in self.symbols if factor)
        return Affine(tuple(factor * step for step in self.steps), factor * self.constant, symbols)

    def plus(self, other: "Affine") -> "Affine":
        """The sum, element by element; an array without axes counts everywhere."""
        factors: dict[Node, int] = {}
        for scalar, factor in (*self.symbols, *other.symbols):
            factors[scalar] = factors.get(scalar, 0) + factor
        nonzero = [(scalar, factor) for scalar, factor in factors.items() if factor]
        symbols = tuple(sorted(nonzero, key=lambda symbol: id(symbol[0])))
        steps = tuple(map(sum, itertools.zip_longest(self.steps, other.steps, fillvalue=0)))
        return Affine(steps, self.constant + other.constant, symbols)


@analysis(lambda node: None)
def affine(node: Node) -> Affine | None:
    """The even growth of an array of integers, or None. A sum with a traced scalar is assumed not to overflow."""
    node = simplify(node)
    growth = _find_growth(node)
    # A traced length or offset: unknown, but the same everywhere.
    if growth is None and np.issubdtype(node.dtype, np.integer) and not any(varying_axes(node)):
        return Affine((0,) * node.rank, 0, ((_broadcast_scalar(node), 1),))
    return growth if growth is not None and _is_exact(node, growth) else None


def _find_growth(node: Node) -> Affine | None:
    if node.known is not None:
        return _growth_of_array(np.asarray(node.known))
    if node.name in _ELEMENTWISE_RULES and is_elementwise(node):
        return _ELEMENTWISE_RULES[node.name](node)
    if node.name == "iota":
        dimension = node.params["dimension"]
        return Affine(tuple(int(axis == dimension and size > 1) for axis, size in enumerate(node.shape)), 0)
    if node.name in _MOVE_RULES:
        source = affine(node.operands[0])
        return None if source is None else _MOVE_RULES[node.name](node, source)
    return None


def _is_exact(node: Node, growth: Affine) -> bool:
    """Whether the dtype has all the numbers: no overflow, no rounding."""
    low, high = growth.bounds(node.shape)
    if np.issubdtype(node.dtype, np.integer):
        limits = np.iinfo(node.dtype)
        return limits.min <= low and high <= limits.max
    is_float32 = node.dtype == np.float32 and not growth.symbols
    return is_float32 and low >= -_MAX_FLOAT32_INTEGER and high <= _MAX_FLOAT32_INTEGER


def _broadcast_scalar(node: Node) -> Node:
    """What a broadcast scalar is broadcast from, so that the same scalar is one node."""
    node = simplify(node)
    while node.name in ("broadcast_in_dim", "reshape") and not any(varying_axes(node.operands[0])):
        node = simplify(node.operands[0])
    return node


def _growth_of_array(array: np.ndarray) -> Affine | None:
    is_number = np.issubdtype(array.dtype, np.integer) or array.dtype == np.float32
    if not is_number or not 0 < array.size <= _MAX_CONSTANT:
        return None
    if not np.isfinite(array).all() or (array != np.round(array)).any() or np.abs(array).max() > _MAX_INTEGER:
        return None
    integers = array.astype(np.int64)
    first = integers.flat[0]
    steps = []
    for axis, size in enumerate(integers.shape):
        # The element next to the first one along this axis.
        neighbor = tuple(int(other == axis) for other in range(integers.ndim))
        steps.append(int(integers[neighbor] - first) if size > 1 else 0)
    indices = np.indices(integers.shape, sparse=True)
    even = first + sum(step * index for step, index in zip(steps, indices, strict=True))
    return Affine(tuple(steps), int(first)) if (integers == even).all() else None


def _convert(node: Node) -> Affine | None:
    # `affine` is None for a float source whose numbers are not integers.
    source = node.operands[0]
    return None if source.dtype == np.bool_ else affine(source)


def _negate(node: Node) -> Affine | None:
    source = affine(node.operands[0])
    return None if source is None else source.times(-1)


def _add(node: Node) -> Affine | None:
    left, right = map(affine, node.operands)
    if left is None or right is None:
        return None
    return left.plus(right.times(-1) if node.name == "sub" else right)


def _multiply(node: Node) -> Affine | None:
    """A product with one number."""
    left, right = map(affine, node.operands)
    if left is None or right is None:
        return None
    for factor, other in ((left, right), (right, left)):
        if not factor.symbols and not any(factor.steps):
            product = other.times(factor.constant)
            return replace(product, steps=product.steps or factor.steps)
    return None


def _broadcast(node: Node, source: Affine) -> Affine:
    steps = [0] * node.rank
    for axis, step in zip(node.params["broadcast_dimensions"], source.steps, strict=True):
        steps[axis] = step
    return replace(source, steps=tuple(steps))


def _transpose(node: Node, source: Affine) -> Affine:
    return replace(source, steps=tuple(source.steps[axis] for axis in node.params["permutation"]))


def _reshape(node: Node, source: Affine) -> Affine | None:
    """Growth goes on evenly through a group of axes if each step is that of the last axis times its stride."""
    shape = node.operands[0].shape
    if node.params.get("dimensions") is not None:
        return None
    steps = [0] * node.rank
    for group in reshape_groups(shape, node.shape):
        last_step = source.steps[group.before[-1]]
        if any(source.steps[axis] != last_step * stride for axis, stride in _strides(shape, group.before)):
            return None
        for axis, stride in _strides(node.shape, group.after):
            steps[axis] = last_step * stride
    return replace(source, steps=tuple(steps))


def _strides(shape: tuple[int, ...], axes: list[int]) -> Iterator[tuple[int, int]]:
    """(axis, how many elements further its next index is) within a group of axes."""
    for position, axis in enumerate(axes):
        yield axis, math.prod(shape[later] for later in axes[position + 1 :])


def _slice(node: Node, source: Affine) -> Affine:
    starts = node.params["start_indices"]
    strides = node.params["strides"] or (1,) * len(starts)
    constant = source.constant + sum(
        step * int(start) for step, start in zip(source.steps, starts, strict=True)
    )
    steps = [
        step * int(stride) if size > 1 else 0
        for step, stride, size in zip(source.steps, strides, node.shape, strict=True)
    ]
    return replace(source, steps=tuple(steps), constant=constant)


def _reverse(node: Node, source: Affine) -> Affine:
    steps, constant = list(source.steps), source.constant
    for axis in node.params["dimensions"]:
        constant += steps[axis] * (node.shape[axis] - 1)
        steps[axis] = -steps[axis]
    return replace(source, steps=tuple(steps), constant=constant)


_ELEMENTWISE_RULES: dict[str, Callable[[Node], Affine | None]] = {
    "add": _add, "sub": _add, "neg": _negate, "mul": _multiply, "convert_element_type": _convert,
}  # fmt: skip
_MOVE_RULES: dict[str, Callable[[Node, Affine], Affine | None]] = {
    "broadcast_in_dim": _broadcast, "transpose": _transpose, "reshape": _reshape, "slice": _slice, "rev": _reverse,
}  # fmt: skip


@dataclass(frozen=True)
class Band:
    """Key position less query position is between `low` and `high`, both counted from `shift`; None: no bound."""

    low: int | None = None
    high: int | None = None
    shift: Symbols = ()

    def intersect(self, other: "Band") -> "Band | None":
        """What both bands allow; None if they are counted from different scalars."""
        if self.low is None and self.high is None:
            return other
        if self.shift != other.shift:
            return None
        lows = [band.low for band in (self, other) if band.low is not None]
        highs = [band.high for band in (self, other) if band.high is not None]
        return Band(max(lows, default=None), min(highs, default=None), self.shift)

    def clip(self, queries: int, keys: int) -> "Band":
        """Without the bounds that no pair of these queries and keys comes up against."""
        if self.shift:
            return self
        low = None if self.low is None or self.low <= 1 - queries else self.low
        high = None if self.high is None or self.high >= keys - 1 else self.high
        return Band(low, high)

    def is_empty(self, queries: int, keys: int) -> bool:
        """Whether no pair of these queries and keys is in it, as far as that is known."""
        least, greatest = (-math.inf, math.inf) if self.shift else (1 - queries, keys - 1)
        low = least if self.low is None else self.low
        high = greatest if self.high is None else self.high
        return low > high or low > greatest or high < least


def comparison_band(condition: Condition) -> Band | None:
    """The band of a comparison of positions along queries with positions along keys; None for another condition."""
    node = condition.node
    if node.name not in _FLIPPED or len(condition.allowed) != 1 or node.dtype != bool:
        return None
    # "Not equal" is not a band, so `eq` has no negation here.
    name = node.name if True in condition.allowed else _NEGATED.get(node.name)
    if name is None:
        return None
    left, right = node.operands
    if right.name == "abs":
        name, left, right = _FLIPPED[name], right, left
    if left.name == "abs":
        return _symmetric_band(name, left.operands[0], right)
    left_growth, right_growth = affine(left), affine(right)
    if left_growth is None or right_growth is None:
        return None
    return _difference_band(name, left_growth.plus(right_growth.times(-1)))


def _symmetric_band(name: str, distance: Node, limit: Node) -> Band | None:
    """`abs(distance) <= limit` as two comparisons."""
    middle, bound = affine(distance), affine(limit)
    if name not in ("le", "lt") or middle is None or bound is None:
        return None
    if bound.symbols or any(bound.steps):
        return None
    upper = _difference_band(name, middle.plus(bound.times(-1)))
    lower = _difference_band(name, middle.times(-1).plus(bound.times(-1)))
    return None if upper is None or lower is None else upper.intersect(lower)


def _difference_band(name: str, difference: Affine) -> Band | None:
    """The band in which `difference` compares with 0; None unless it grows along keys as it falls along queries."""
    if len(difference.steps) != 4:
        return None
    *others, by_query, by_key = difference.steps
    if any(others) or by_key == 0 or by_query != -by_key:
        return None
    # "query - key <= 3" as "key - query >= -3".
    if by_key < 0:
        name, difference, by_key = _FLIPPED[name], difference.times(-1), -by_key
    # The band is counted in whole positions.
    if any(factor % by_key for _, factor in difference.symbols):
        return None
    # by_key * (distance + scalars) + constant is compared with 0, all of them integers.
    shift = tuple((scalar, -factor // by_key) for scalar, factor in difference.symbols)
    bound = -difference.constant
    rounded_down, rounded_up = bound // by_key, -(-bound // by_key)
    match name:
        case "lt":
            return Band(None, rounded_up - 1, shift)
        case "le":
            return Band(None, rounded_down, shift)
        case "gt":
            return Band(rounded_down + 1, None, shift)
        case "ge":
            return Band(rounded_up, None, shift)
    return Band(rounded_up, rounded_down, shift)


def mask_fields(band: Band, queries: int, keys: int) -> dict[str, Any] | None:
    """`left`, `right` and `offset` of a Mask; {} if every pair is allowed, None if none is."""
    if band.is_empty(queries, keys):
        return None
    band = band.clip(queries, keys)
    if band.low is None and band.high is None:
        return {}
    origin = _choose_origin(band, keys - queries)
    offset = _emit_sum(band.shift) if band.shift else 0
    return {
        "left": None if band.low is None else origin - band.low,
        "right": None if band.high is None else band.high - origin,
        "offset": offset + origin,
    }


def _choose_origin(band: Band, aligned: int) -> int:
    """The key position that the first query counts from, such that neither bound is negative.

    It is the upper bound of a causal band, with or without a window, and 0 if the band extends equally both ways.
    """
    low, high = band.low, band.high
    if high is None:
        return max(low or 0, 0)
    is_causal = low is None or (high == aligned and low != -high)
    if not is_causal and low <= 0 <= high:  # type: ignore[operator]
        return 0
    return high


def _emit_sum(symbols: Symbols) -> jax.Array:
    """Traced. The sum of the scalars times their factors, an int32 scalar."""
    terms = [factor * emit_scalar(scalar).astype(jnp.int32) for scalar, factor in symbols]
    return sum(terms, start=jnp.int32(0))


@dataclass(frozen=True)
class KnownMask:
    """A boolean mask [B or 1, Q, T] that is `keys_BT & queries_BQ & band`."""

    keys_BT: np.ndarray
    queries_BQ: np.ndarray
    band: Band


def inspect_known_mask(visible_BQT: np.ndarray) -> KnownMask | None:
    """The structure of a mask whose values are known: rows and columns hidden as a whole, and a band."""
    keys_BT = np.asarray(visible_BQT.any(1))
    queries_BQ = np.asarray(visible_BQT.any(2))
    rows, columns = np.nonzero(visible_BQT.any(0))
    if rows.size == 0:
        return KnownMask(keys_BT, np.ones_like(queries_BQ), Band())
    low, high = int((columns - rows).min()), int((columns - rows).max())
    distance_QT = np.arange(visible_BQT.shape[2])[None, :] - np.arange(visible_BQT.shape[1])[:, None]
    outer_BQT = keys_BT[:, None, :] & queries_BQ[:, :, None]
    # The simplest first.
    for band in (Band(), Band(None, high), Band(low, None), Band(low, high)):
        above_low = True if band.low is None else distance_QT >= band.low
        below_high = True if band.high is None else distance_QT <= band.high
        allowed_QT = np.broadcast_to(above_low & below_high, distance_QT.shape)
        if (visible_BQT == (outer_BQT & allowed_QT)).all():
            return _hide_least(keys_BT, queries_BQ, allowed_QT, band)
    return None


def _hide_least(keys_BT: np.ndarray, queries_BQ: np.ndarray, allowed_QT: np.ndarray, band: Band) -> KnownMask:
    """Without hiding the keys and queries that the rest hides in any case."""
    keys_BT = keys_BT | ~(queries_BQ[:, :, None] & allowed_QT).any(1)
    queries_BQ = queries_BQ | ~(keys_BT[:, None, :] & allowed_QT).any(2)
    return KnownMask(keys_BT, queries_BQ, band)
