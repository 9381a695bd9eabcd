"""Which distances between a key's and a query's place a condition allows."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tpuport.attention.provenance.affine import Affine, Symbols, affine
from tpuport.attention.provenance.conditions import Condition
from tpuport.attention.provenance.emission import emit_scalar
from tpuport.attention.provenance.graph import Node

QUERIES, KEYS = 2, 3
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}
_DENIED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True)
class Band:
    """Key place less query place is between `low` and `high`, both counted from `shift`; None: no bound."""

    low: int | None = None
    high: int | None = None
    shift: Symbols = ()

    def meet(self, other: "Band") -> "Band | None":
        """Both bands; None where they are counted from different scalars."""
        if self.low is None and self.high is None:
            return other
        if self.shift != other.shift:
            return None
        lows = [band.low for band in (self, other) if band.low is not None]
        highs = [band.high for band in (self, other) if band.high is not None]
        return Band(max(lows, default=None), min(highs, default=None), self.shift)


def band(condition: Condition) -> Band | None:
    """The band of a comparison of places along queries with places along keys; None if it is none."""
    node = condition.node
    if node.name not in _FLIPPED or len(condition.wanted) != 1 or node.dtype != bool:
        return None
    name = node.name if True in condition.wanted else _DENIED.get(node.name)
    left, right = node.operands
    if name is None:
        return None
    if right.name == "abs":
        name, left, right = _FLIPPED[name], right, left
    if left.name == "abs":
        return _within(name, left.operands[0], right)
    first, second = affine(left), affine(right)
    return None if first is None or second is None else _of_sign(name, first.plus(second.times(-1)))


def _within(name: str, inside: Node, limit: Node) -> Band | None:
    """`abs(inside) <= limit` as two comparisons."""
    middle, bound = affine(inside), affine(limit)
    if name not in ("le", "lt") or middle is None or bound is None or bound.symbols or any(bound.steps):
        return None
    upper = _of_sign(name, middle.plus(bound.times(-1)))
    lower = _of_sign(name, middle.times(-1).plus(bound.times(-1)))
    return None if upper is None or lower is None else upper.meet(lower)


def _of_sign(name: str, difference: Affine) -> Band | None:
    """The band where a difference that grows along one axis as it falls along the other is `name` 0."""
    *others, by_query, by_key = difference.steps
    if any(others) or len(others) != 2 or by_key == 0 or by_query != -by_key:
        return None
    if by_key < 0:
        name, difference, by_key = _FLIPPED[name], difference.times(-1), -by_key
    if any(factor % by_key for _, factor in difference.symbols):
        return None
    # by_key * (distance + scalars) + constant `name` 0, all of them whole.
    shift = tuple((scalar, -factor // by_key) for scalar, factor in difference.symbols)
    at = -difference.constant
    down, up = at // by_key, -(-at // by_key)
    strict = name in ("lt", "gt")
    high = (up - 1 if strict else down) if name in ("lt", "le", "eq") else None
    low = (down + 1 if strict else up) if name in ("gt", "ge", "eq") else None
    return Band(low, high, shift)


def fields(found: Band, queries: int, keys: int) -> dict[str, Any] | None:
    """`left`, `right` and `offset` of a Mask; {} where every pair is allowed, None where none is."""
    low, high = found.low, found.high
    if found.shift:
        offset = _offset(found.shift)
    else:
        low = None if low is None or low <= 1 - queries else low
        high = None if high is None or high >= keys - 1 else high
        if (low is not None and low > keys - 1) or (high is not None and high < 1 - queries):
            return None
        offset = 0
    if low is not None and high is not None and low > high:
        return None
    if low is None and high is None:
        return {}
    origin = _origin(low, high, keys - queries)
    return {
        "left": None if low is None else origin - low,
        "right": None if high is None else high - origin,
        "offset": offset + origin,
    }


def _origin(low: int | None, high: int | None, aligned: int) -> int:
    """Where the first query stands, so that neither bound is negative.

    At the upper bound of a causal band, with or without a window; at 0 where the band reaches as far both ways.
    """
    if high is None:
        return max(low or 0, 0)
    if low is None or (high == aligned and low != -high):
        return high
    return 0 if low <= 0 <= high else high


def _offset(shift: Symbols) -> jax.Array:
    """Traced. The scalars' sum, an int32 scalar."""
    total = jnp.int32(0)
    for scalar, factor in shift:
        total = total + factor * emit_scalar(scalar).astype(jnp.int32)
    return total
