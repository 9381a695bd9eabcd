"""What a dense mask is known to be when it is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.mask import Mask
from tpuport.attention.provenance import bands, inspection
from tpuport.attention.provenance.conditions import Condition, addends, conditions, lowest
from tpuport.attention.provenance.constants import is_constant
from tpuport.attention.provenance.emission import emit, evaluate
from tpuport.attention.provenance.graph import Graph, Node, Unknown
from tpuport.attention.provenance.rewriting import reshape
from tpuport.attention.provenance.segments import segments
from tpuport.attention.provenance.values import values
from tpuport.attention.provenance.variation import varies
from tpuport.errors import PortError

_BATCH, _HEADS, _QUERIES, _KEYS = range(4)
_FEW_KEYS = 1 << 20


def structure_of(mask: jax.Array, *, batch: int, heads: int, queries: int, keys: int) -> Mask:
    """Traced. The mask as structure, with the same meaning as the array has for `scaled_dot_product_attention`.

    Every visible pair stays visible, every number added stays the same; a mask that is not understood stays dense.
    Nothing is computed that is not returned: a mask [B, 1, Q, T] known to be a broadcast of [B, T] is never built.

    Args:
        mask: boolean (True is visible) or float (added to the scores; the lowest finite number of its dtype and
            -inf hide), of 1 to 4 axes, broadcastable to [B, H, Q, T]. Traced or not.
        batch: B.
        heads: H, of the queries.
        queries: Q.
        keys: T.

    Raises:
        PortError: the mask has another dtype or shape.

    Positions that are compared are taken not to overflow their dtype where a traced scalar is added to them.
    """
    _check(mask, (batch, heads, queries, keys))
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    if 0 in (*shape, queries, keys):
        return _dense(mask, queries, keys)
    try:
        with np.errstate(all="ignore"):
            found = _structure(reshape(Graph().node(mask), shape), queries, keys)
    except Unknown:
        found = None
    return _dense(mask, queries, keys) if found is None else found


def _check(mask: jax.Array, sizes: tuple[int, int, int, int]) -> None:
    where = f"attn_mask, {mask.dtype}{list(mask.shape)}"
    if mask.dtype != jnp.bool_ and not jnp.issubdtype(mask.dtype, jnp.floating):
        raise PortError("an attention mask is neither boolean nor float", where=where, fix="mask.bool()")
    fits = mask.ndim <= 4 and all(
        own in (1, size) for own, size in zip(mask.shape[::-1], sizes[::-1], strict=False)
    )
    if not fits:
        raise PortError(
            "an attention mask does not broadcast to the scores", where=where,
            fix=f"give it a shape that broadcasts to {list(sizes)}: batch, heads, queries, keys",
        )  # fmt: skip


def _dense(mask: jax.Array, queries: int, keys: int) -> Mask:
    array = jnp.asarray(mask).reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    return Mask(dense=jnp.broadcast_to(array, (*array.shape[:2], queries, keys)))


def _structure(node: Node, queries: int, keys: int) -> Mask | None:
    parts = _Parts(queries, keys)
    if node.dtype == np.bool_:
        wanted, added = conditions(node, [True]), []
    else:
        wanted, added = addends(node)
    understood = all(parts.add_condition(condition) for condition in wanted)
    understood = understood and all(parts.add_bias(addend) for addend in added)
    return parts.mask() if understood else None


class _Parts:
    """The parts of a mask found so far. Each `add_` answers whether it could."""

    def __init__(self, queries: int, keys: int) -> None:
        self._queries, self._keys = queries, keys
        self._visible_keys: list[jax.Array] = []
        self._visible_queries: list[jax.Array] = []
        self._band = bands.Band()
        self._segments: tuple[jax.Array, jax.Array] | None = None
        self._bias: jax.Array | None = None

    def add_condition(self, condition: Condition) -> bool:
        """A condition on the pairs that are visible."""
        if not condition.wanted:
            self._visible_keys.append(jnp.zeros((1, self._keys), jnp.bool_))
            return True
        if not condition.node.shape:
            condition = Condition(reshape(condition.node, (1, 1, 1, 1)), condition.wanted)
        may = varies(condition.node)
        if may[_HEADS]:
            return False
        if not may[_QUERIES] or not may[_KEYS]:
            axis = _QUERIES if may[_QUERIES] else _KEYS
            self._add_vector(condition, axis)
            return True
        return (
            self._add_band(bands.band(condition)) or self._add_segments(condition) or self._inspect(condition)
        )

    def _add_vector(self, condition: Condition, axis: int) -> None:
        """What is the same for all queries, or for all keys."""
        node, may = condition.node, varies(condition.node)
        single = (not may[_BATCH], True, axis != _QUERIES or not may[axis], axis != _KEYS or not may[axis])
        size = self._queries if axis == _QUERIES else self._keys
        if (
            is_constant(node)
            and np.prod(node.shape) // max(1, node.shape[_QUERIES + _KEYS - axis]) <= _FEW_KEYS
        ):
            known = _among(evaluate(node, single), condition.wanted)
            if known.all():
                return
            visible = jnp.asarray(known)
        else:
            visible = _among(emit(node, single), condition.wanted)
        batch = visible.shape[0]
        visible = jnp.broadcast_to(visible.reshape(batch, -1), (batch, size))
        (self._visible_queries if axis == _QUERIES else self._visible_keys).append(visible)

    def _add_band(self, found: bands.Band | None) -> bool:
        met = None if found is None else self._band.meet(found)
        if met is None:
            return False
        self._band = met
        return True

    def _add_segments(self, condition: Condition) -> bool:
        found = segments(condition) if self._segments is None else None
        self._segments = found or self._segments
        return found is not None

    def _inspect(self, condition: Condition) -> bool:
        """A condition that depends on nothing traced, by its values."""
        node = condition.node
        batch, _, queries, keys = node.shape
        if batch * queries * keys > inspection.MOST_ELEMENTS or not is_constant(node):
            return False
        known = evaluate(node, (not varies(node)[_BATCH], True, False, False))
        return self._add_known(_among(known, condition.wanted)[:, 0])

    def _add_known(self, visible_BQT: np.ndarray) -> bool:
        found = inspection.inspect(visible_BQT)
        if found is None or not self._add_band(found.band):
            return False
        if not found.keys_BT.all():
            self._visible_keys.append(jnp.asarray(found.keys_BT))
        if not found.queries_BQ.all():
            self._visible_queries.append(jnp.asarray(found.queries_BQ))
        return True

    def add_bias(self, node: Node) -> bool:
        """Numbers added to the scores, of which the lowest hide."""
        may = varies(node)
        if node.dtype.itemsize > 4 or may[_HEADS]:
            return False
        if may[_QUERIES]:
            return self._inspect_bias(node)
        if self._bias is not None:
            return False
        bias = emit(node, (not may[_BATCH], True, True, not may[_KEYS]))
        batch = bias.shape[0]
        bias = jnp.broadcast_to(bias.reshape(batch, -1), (batch, self._keys))
        low, possible = lowest(node.dtype), values(node)
        if possible is None or any(value <= low for value in possible):
            visible = ~(bias <= low)
            self._visible_keys.append(visible)
            bias = jnp.where(visible, bias, 0)
        self._bias = bias.astype(jnp.float32)
        return True

    def _inspect_bias(self, node: Node) -> bool:
        batch, _, queries, keys = node.shape
        if batch * queries * keys > inspection.MOST_ELEMENTS or not is_constant(node):
            return False
        known = evaluate(node, (not varies(node)[_BATCH], True, False, False))[:, 0]
        visible = ~(known <= lowest(node.dtype))
        if np.where(visible, known, 0).any():
            return False
        if not varies(node)[_KEYS]:
            visible = visible[:, :, :1]
        return self._add_known(np.broadcast_to(visible, (len(visible), self._queries, self._keys)))

    def mask(self) -> Mask:
        """All the parts together."""
        position = bands.fields(self._band, self._queries, self._keys)
        if position is None:
            self._visible_keys, position = [jnp.zeros((1, self._keys), jnp.bool_)], {}
        query_segments, key_segments = self._segments or (None, None)
        return Mask(
            keys_BT=_all(self._visible_keys), queries_BQ=_all(self._visible_queries), bias_BT=self._bias,
            query_segments_BQ=query_segments, key_segments_BT=key_segments, **position,
        )  # fmt: skip


def _among(array: Any, wanted: frozenset[Any]) -> Any:
    """Where the elements are among `wanted`, of which there is one at least."""
    if array.dtype == np.bool_:
        return array if True in wanted else ~array
    first, *rest = wanted
    found = array == first
    for value in rest:
        found = found | (array == value)
    return found


def _all(parts: list[jax.Array]) -> jax.Array | None:
    if not parts:
        return None
    visible, *rest = parts
    for part in rest:
        visible = visible & part
    return visible
