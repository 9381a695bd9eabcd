"""Which distances between a key's and a query's position a mask allows: of comparisons,
and of known values.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.conditions import Condition
from tpuport.attention.provenance.emission import emit_scalar
from tpuport.attention.provenance.graph import Node, UnknownError, analysis
from tpuport.attention.provenance.primitives import (
    is_elementwise,
    pick_axes,
    place_axes,
    reshape_groups,
)
from tpuport.attention.provenance.rewriting import simplify, varying_axes

# Of a larger constant the values are not looked at.
_MAX_CONSTANT = 1 << 16
_MAX_INTEGER = 1 << 31
# Up to here float32 has every integer.
_MAX_FLOAT32_INTEGER = 1 << 24
# The same comparison with its sides exchanged, and the one that holds whenever it does
# not.
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}

# Traced integers without axes, and by what they are multiplied; no factor is 0.
Symbols = dict[Node, int]


@dataclass(frozen=True)
class Affine:
    """Integers that grow evenly:
    `constant + sum(steps[axis] * index[axis]) + sum(factor * scalar)`.

    Attributes:
        steps: for each axis; 0 along an axis of size 1.
        constant: an integer.
        symbols: traced scalars with factors.
    """

    steps: tuple[int, ...]
    constant: int
    symbols: Symbols = field(default_factory=dict)

    @property
    def is_number(self) -> bool:
        """Whether it is one number, the same everywhere and known now."""
        return not self.symbols and not any(self.steps)

    def bounds(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The least and the greatest element, without the symbols."""
        growth = [
            step * (size - 1) for step, size in zip(self.steps, shape, strict=True)
        ]
        low = self.constant + sum(min(total, 0) for total in growth)
        return low, self.constant + sum(max(total, 0) for total in growth)

    def multiply(self, other: "Affine") -> "Affine":
        """The product, element by element, if one of the two is a number; else
        UnknownError.
        """
        # The number comes second.
        left, right = sorted((self, other), key=lambda growth: growth.is_number)
        if not right.is_number:
            raise UnknownError("mul")
        product = left.times(right.constant)
        return replace(product, steps=product.steps or right.steps)

    def times(self, factor: int) -> "Affine":
        """All elements times a number."""
        symbols = {scalar: factor * own for scalar, own in self.symbols.items()}
        return Affine(
            tuple(factor * step for step in self.steps),
            factor * self.constant,
            _nonzero(symbols),
        )

    def plus(self, other: "Affine") -> "Affine":
        """The sum, element by element; an array without axes counts everywhere."""
        factors = Counter(self.symbols)
        # Unlike `+`, this leaves negative factors in.
        factors.update(other.symbols)
        steps = tuple(
            map(sum, itertools.zip_longest(self.steps, other.steps, fillvalue=0))
        )
        return Affine(steps, self.constant + other.constant, _nonzero(factors))

    def minus(self, other: "Affine") -> "Affine":
        """The difference, element by element."""
        return self.plus(other.times(-1))


def _nonzero(symbols: Symbols) -> Symbols:
    return {scalar: factor for scalar, factor in symbols.items() if factor}


@analysis(lambda node: None)
def affine(node: Node) -> Affine | None:
    """The even growth of an array of integers, or None. A sum with a traced scalar is
    assumed not to overflow.
    """
    node = simplify(node)
    try:
        growth = _find_growth(node)
    except UnknownError:
        # A traced length or offset: unknown, but the same everywhere.
        if np.issubdtype(node.dtype, np.integer) and not any(varying_axes(node)):
            return Affine((0,) * node.rank, 0, {_broadcast_scalar(node): 1})
        return None
    return growth if _is_exact(node, growth) else None


def _known_growth(node: Node) -> Affine:
    """The even growth of an array of integers.

    Raises:
        UnknownError: it does not grow evenly, or it is not known how.
    """
    growth = affine(node)
    if growth is None:
        raise UnknownError(node.name)
    return growth


def _find_growth(node: Node) -> Affine:
    if node.known is not None:
        return _growth_of_array(np.asarray(node.known))
    if node.name in _PAIRWISE_RULES and is_elementwise(node):
        return _PAIRWISE_RULES[node.name](*map(_known_growth, node.operands))
    if node.name in _SINGLE_RULES:
        return _SINGLE_RULES[node.name](node, _known_growth(node.operands[0]))
    if node.name == "iota":
        axes = np.arange(node.rank) == node.params["dimension"]
        return Affine(_steps(axes, node.shape), 0)
    raise UnknownError(node.name)


def _steps(steps: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Steps as an Affine has them: 0 along an axis of size 1."""
    return tuple(
        int(step) * (size > 1) for step, size in zip(steps, shape, strict=True)
    )


def _is_exact(node: Node, growth: Affine) -> bool:
    """Whether the dtype has all the numbers: no overflow, no rounding."""
    low, high = growth.bounds(node.shape)
    if np.issubdtype(node.dtype, np.integer):
        limits = np.iinfo(node.dtype)
        return limits.min <= low and high <= limits.max
    is_float32 = node.dtype == np.float32 and not growth.symbols
    return is_float32 and low >= -_MAX_FLOAT32_INTEGER and high <= _MAX_FLOAT32_INTEGER


def _broadcast_scalar(node: Node) -> Node:
    """What a broadcast scalar is broadcast from, so that the same scalar is one
    node.
    """
    node = simplify(node)
    while node.name in ("broadcast_in_dim", "reshape") and not any(
        varying_axes(node.operands[0])
    ):
        node = simplify(node.operands[0])
    return node


def _growth_of_array(array: np.ndarray) -> Affine:
    is_number = np.issubdtype(array.dtype, np.integer) or array.dtype == np.float32
    if not is_number or not 0 < array.size <= _MAX_CONSTANT:
        raise UnknownError(array.dtype)
    # NaN and infinity are not among these either.
    is_integer = (array == np.round(array)) & (np.abs(array) <= _MAX_INTEGER)
    if not is_integer.all():
        raise UnknownError(array.dtype)
    integers = array.astype(np.int64)
    first = integers.flat[0]
    # The element next to the first one along each axis; along an axis of size 1, the
    # first one itself.
    last_indices = np.array(integers.shape) - 1
    neighbors = np.minimum(np.eye(integers.ndim, dtype=np.int64), last_indices)
    steps = [int(integers[tuple(neighbor)] - first) for neighbor in neighbors]
    indices = np.indices(integers.shape, sparse=True)
    even = first + sum(map(np.multiply, steps, indices))
    if not np.array_equal(integers, np.broadcast_to(even, integers.shape)):
        raise UnknownError(array.dtype)
    return Affine(tuple(steps), int(first))


def _convert(node: Node, source: Affine) -> Affine:
    # The growth of the source is known only if its numbers are integers, which a
    # conversion keeps.
    return source


def _negate(node: Node, source: Affine) -> Affine:
    return source.times(-1)


def _broadcast(node: Node, source: Affine) -> Affine:
    steps = place_axes(
        source.steps, node.params["broadcast_dimensions"], node.rank, default=0
    )
    return replace(source, steps=steps)


def _transpose(node: Node, source: Affine) -> Affine:
    return replace(source, steps=pick_axes(source.steps, node.params["permutation"]))


def _reshape(node: Node, source: Affine) -> Affine:
    """Growth goes on evenly through a group of axes if each step is that of the last
    axis times its stride.
    """
    shape = node.operands[0].shape
    steps = [0] * node.rank
    for group in reshape_groups(shape, node.shape):
        last_step = source.steps[group.before[-1]]
        if any(
            source.steps[axis] != last_step * stride
            for axis, stride in _strides(shape, group.before)
        ):
            raise UnknownError(node.name)
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
    constant = source.constant + sum(map(operator.mul, source.steps, map(int, starts)))
    steps = _steps(map(operator.mul, source.steps, strides), node.shape)
    return replace(source, steps=steps, constant=constant)


def _reverse(node: Node, source: Affine) -> Affine:
    steps, constant = list(source.steps), source.constant
    for axis in node.params["dimensions"]:
        constant += steps[axis] * (node.shape[axis] - 1)
        steps[axis] = -steps[axis]
    return replace(source, steps=tuple(steps), constant=constant)


_PAIRWISE_RULES: dict[str, Callable[[Affine, Affine], Affine]] = {
    "add": Affine.plus, "sub": Affine.minus, "mul": Affine.multiply,
}  # fmt: skip
_SINGLE_RULES: dict[str, Callable[[Node, Affine], Affine]] = {
    "broadcast_in_dim": _broadcast, "transpose": _transpose, "reshape": _reshape, "slice": _slice, "rev": _reverse,
    "neg": _negate, "convert_element_type": _convert,
}  # fmt: skip


@dataclass(frozen=True)
class Band:
    """Key position less query position is between `low` and `high`, both integers
    counted from `shift`, or infinite.
    """

    low: int | float = -math.inf
    high: int | float = math.inf
    shift: Symbols = field(default_factory=dict)

    @property
    def is_unbounded(self) -> bool:
        """Whether every pair is in it."""
        return (self.low, self.high) == (-math.inf, math.inf)

    def intersect(self, other: "Band") -> "Band | None":
        """What both bands allow; None if they are counted from different scalars."""
        if self.is_unbounded:
            return other
        if self.shift != other.shift:
            return None
        return Band(max(self.low, other.low), min(self.high, other.high), self.shift)

    def clip(self, queries: int, keys: int) -> "Band":
        """Without the bounds that no pair of these queries and keys comes up
        against.
        """
        # How far apart they are does not help if it is not known where the bounds are
        # counted from.
        if self.shift:
            return self
        low, high = self.low, self.high
        if low <= 1 - queries:
            low = -math.inf
        if high >= keys - 1:
            high = math.inf
        return Band(low, high)

    def is_empty(self, queries: int, keys: int) -> bool:
        """Whether no pair of these queries and keys is in it, as far as that is
        known.
        """
        low, high = self.low, self.high
        if not self.shift:
            low, high = max(low, 1 - queries), min(high, keys - 1)
        return low > high


def comparison_band(condition: Condition) -> Band | None:
    """The band of a comparison of positions along queries with positions along keys;
    None for another condition.
    """
    node = condition.node
    name: str | None = node.name
    if True not in condition.allowed:
        # "Not equal" is not a band, so `eq` has no negation here.
        name = _NEGATED.get(node.name)
    if name not in _FLIPPED:
        return None
    try:
        return _band_of_operands(name, *node.operands)
    except UnknownError:
        return None


def _band_of_operands(name: str, left: Node, right: Node) -> Band | None:
    """The band of `left name right`.

    Raises:
        UnknownError: the operands are not known, or do not grow as positions do.
    """
    # As "abs(...) compared with something".
    if right.name == "abs":
        name, left, right = _FLIPPED[name], right, left
    if left.name == "abs":
        return _symmetric_band(name, left.operands[0], right)
    return _difference_band(name, _known_growth(left).minus(_known_growth(right)))


def _symmetric_band(name: str, distance: Node, limit: Node) -> Band | None:
    """`abs(distance) <= limit` as two comparisons."""
    middle, bound = _known_growth(distance), _known_growth(limit)
    if name not in ("le", "lt") or not bound.is_number:
        raise UnknownError(name)
    upper = _difference_band(name, middle.minus(bound))
    lower = _difference_band(name, middle.plus(bound).times(-1))
    return upper.intersect(lower)


def _difference_band(name: str, difference: Affine) -> Band:
    """The band in which `difference` compares with 0, if that grows along keys as it
    falls along queries.
    """
    # A band is along the last two of the mask's four axes.
    *others, by_query, by_key = difference.steps
    if any(others) or by_key == 0 or by_query != -by_key:
        raise UnknownError(name)
    # "query - key <= 3" as "key - query >= -3".
    if by_key < 0:
        name, difference, by_key = _FLIPPED[name], difference.times(-1), -by_key
    # The band is counted in whole positions.
    if any(factor % by_key for factor in difference.symbols.values()):
        raise UnknownError(name)
    # by_key * (distance + scalars) + constant is compared with 0, all of them integers.
    shift = {scalar: -factor // by_key for scalar, factor in difference.symbols.items()}
    bound = -difference.constant
    rounded_down, rounded_up = bound // by_key, -(-bound // by_key)
    bands = {
        "lt": Band(high=rounded_up - 1, shift=shift),
        "le": Band(high=rounded_down, shift=shift),
        "gt": Band(low=rounded_down + 1, shift=shift),
        "ge": Band(low=rounded_up, shift=shift),
        "eq": Band(rounded_up, rounded_down, shift),
    }
    return bands[name]


def mask_fields(band: Band, queries: int, keys: int) -> dict[str, Any] | None:
    """`left`, `right` and `offset` of a Mask, without those that are unbounded; None if
    no pair is allowed.
    """
    if band.is_empty(queries, keys):
        return None
    band = band.clip(queries, keys)
    if band.is_unbounded:
        return {}
    origin = _choose_origin(band, keys - queries)
    fields: dict[str, Any] = {"offset": origin}
    if band.shift:
        fields["offset"] = _emit_sum(band.shift) + origin
    if band.low > -math.inf:
        fields["left"] = origin - band.low
    if band.high < math.inf:
        fields["right"] = band.high - origin
    return fields


def _choose_origin(band: Band, aligned: int) -> Any:
    """The key position that the first query counts from, such that neither bound is
    negative.

    It is the upper bound of a causal band, with or without a window, and 0 if the band
    extends equally both ways.
    """
    low, high = band.low, band.high
    if high == math.inf:
        return max(low, 0)
    is_window = high == aligned and low != -high
    is_causal = low == -math.inf or is_window
    if low <= 0 <= high and not is_causal:
        return 0
    return high


def _emit_sum(symbols: Symbols) -> jax.Array:
    """Traced. The sum of the scalars times their factors, an int32 scalar."""
    terms = [
        factor * emit_scalar(scalar).astype(jnp.int32)
        for scalar, factor in symbols.items()
    ]
    return sum(terms, start=jnp.int32(0))


@dataclass(frozen=True)
class KnownMask:
    """A boolean mask [B or 1, Q, T] that is `keys_BT & queries_BQ & band`."""

    keys_BT: np.ndarray
    queries_BQ: np.ndarray
    band: Band


def inspect_known_mask(visible_BQT: np.ndarray) -> KnownMask | None:
    """The structure of a mask whose values are known: rows and columns hidden as a
    whole, and a band.
    """
    keys_BT = np.asarray(visible_BQT.any(1))
    queries_BQ = np.asarray(visible_BQT.any(2))
    rows, columns = np.nonzero(visible_BQT.any(0))
    if rows.size == 0:
        return KnownMask(keys_BT, np.ones_like(queries_BQ), Band())
    low, high = int((columns - rows).min()), int((columns - rows).max())
    distance_QT = (
        np.arange(visible_BQT.shape[2])[None, :]
        - np.arange(visible_BQT.shape[1])[:, None]
    )
    outer_BQT = keys_BT[:, None, :] & queries_BQ[:, :, None]
    # The simplest first.
    for band in (Band(), Band(high=high), Band(low=low), Band(low, high)):
        allowed_QT = (distance_QT >= band.low) & (distance_QT <= band.high)
        if (visible_BQT == (outer_BQT & allowed_QT)).all():
            return _hide_least(keys_BT, queries_BQ, allowed_QT, band)
    return None


def _hide_least(
    keys_BT: np.ndarray, queries_BQ: np.ndarray, allowed_QT: np.ndarray, band: Band
) -> KnownMask:
    """Without hiding the keys and queries that the rest hides in any case."""
    keys_BT = keys_BT | ~(queries_BQ[:, :, None] & allowed_QT).any(1)
    queries_BQ = queries_BQ | ~(keys_BT[:, None, :] & allowed_QT).any(2)
    return KnownMask(keys_BT, queries_BQ, band)
