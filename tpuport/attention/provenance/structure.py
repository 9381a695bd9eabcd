"""What a dense mask is known to be when it is traced."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.mask import Mask, broadcasts_to, intersect
from tpuport.attention.provenance.bands import (
    Band,
    comparison_band,
    inspect_known_mask,
    mask_fields,
)
from tpuport.attention.provenance.conditions import (
    Condition,
    find_conditions,
    lowest_number,
    split_additive_mask,
)
from tpuport.attention.provenance.emission import emit, evaluate
from tpuport.attention.provenance.graph import Graph, Node, UnknownError
from tpuport.attention.provenance.primitives import has_only, is_constant, pick_axes
from tpuport.attention.provenance.rewriting import Axes, reshape, varying_axes
from tpuport.errors import PortError
from tpuport.internals.mechanism import Mechanism

_BATCH, _HEADS, _QUERIES, _KEYS = range(4)
# Larger constants are computed by the program and not while it is traced.
_MAX_VECTOR_ELEMENTS = 1 << 20
_MAX_PAIRS = 4096 * 4096


def _recognizes_causal_mask() -> bool:
    """Whether a causal mask that is computed in a trace is known to be one."""
    structures: list[Mask] = []

    def attend(positions: jax.Array) -> jax.Array:
        mask = positions[:, None] >= jnp.arange(4)[None, :]
        structures.append(structure_of(mask, batch=1, heads=1, queries=4, keys=4))
        return positions

    jax.make_jaxpr(lambda: attend(jnp.arange(4)))()
    mask = structures[0]
    return (mask.right, mask.dense) == (0, None)


MASK_RECOGNITION = Mechanism(
    "recognition of masks",
    "jax",
    rests_on="the equation behind a tracer: its fields parent, val, and _trace.frame.constvar_to_val",
    without="attention gets every mask as an array of all pairs, and heads and sequences that are joined by hand stay "
    "joined: the results are the same, but the kernel is slower and takes more memory",
    probe=_recognizes_causal_mask,
)


def structure_of(
    mask: jax.Array, *, batch: int, heads: int, queries: int, keys: int
) -> Mask:
    """Traced. The mask as structure, with the same meaning as the array has for
    `scaled_dot_product_attention`.

    Every visible pair stays visible, every number added stays the same; a mask that is
    not understood stays dense. Nothing is computed that is not returned: a mask
    [B, 1, Q, T] known to be a broadcast of [B, T] is never built. Positions that are
    compared are assumed not to overflow their dtype when a traced scalar is added to
    them.

    Args:
        mask: boolean (True is visible) or float (added to the scores; the lowest finite
            number of its dtype and -inf hide), of 1 to 4 axes, broadcastable to
            [B, H, Q, T]. Traced or not.
        batch: B.
        heads: H, of the queries.
        queries: Q.
        keys: T.

    Raises:
        PortError: the mask has another dtype or shape.
    """
    _check_mask(mask, (batch, heads, queries, keys))
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    if 0 in (*shape, queries, keys):
        return _dense_mask(mask, queries, keys)
    if not MASK_RECOGNITION.works():
        return _dense_mask(mask, queries, keys)
    try:
        # Constants are computed with NumPy, where infinite masks give NaN on purpose.
        with np.errstate(all="ignore"):
            return _find_structure(reshape(Graph().node(mask), shape), queries, keys)
    except UnknownError:
        return _dense_mask(mask, queries, keys)


def _check_mask(mask: jax.Array, sizes: tuple[int, int, int, int]) -> None:
    where = f"attn_mask, {mask.dtype}{list(mask.shape)}"
    if mask.dtype != jnp.bool_ and not jnp.issubdtype(mask.dtype, jnp.floating):
        raise PortError(
            "an attention mask is neither boolean nor float",
            where=where,
            fix="mask.bool()",
        )
    if not broadcasts_to((1,) * (4 - mask.ndim) + mask.shape, sizes):
        raise PortError(
            "an attention mask does not broadcast to the scores",
            where=where,
            fix=f"give it a shape that broadcasts to {list(sizes)}: batch, heads, queries, keys",
        )


def _dense_mask(mask: jax.Array, queries: int, keys: int) -> Mask:
    array = jnp.asarray(mask).reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    return Mask(dense=jnp.broadcast_to(array, (*array.shape[:2], queries, keys)))


def _find_structure(node: Node, queries: int, keys: int) -> Mask:
    """The structure of a mask; UnknownError if it has none."""
    builder = _MaskBuilder(queries, keys)
    if node.dtype == np.bool_:
        conditions, addends = find_conditions(node, [True]), []
    else:
        conditions, addends = split_additive_mask(node)
    for condition in conditions:
        builder.add_condition(condition)
    for addend in addends:
        builder.add_bias(addend)
    return builder.mask()


class _MaskBuilder:
    """The parts of a mask so far.

    An `add` method raises UnknownError if a Mask has no part for what it gets; a `try`
    method returns whether it has.
    """

    def __init__(self, queries: int, keys: int) -> None:
        self._queries = queries
        self._keys = keys
        self._visible_keys: list[jax.Array] = []
        self._visible_queries: list[jax.Array] = []
        self._band = Band()
        self._segments: tuple[jax.Array, jax.Array] | None = None
        self._bias: jax.Array | None = None

    def add_condition(self, condition: Condition) -> None:
        """A condition for pairs to be visible."""
        if not condition.allowed:
            self._hide_all()
            return
        if not condition.node.shape:
            condition = Condition(
                reshape(condition.node, (1, 1, 1, 1)), condition.allowed
            )
        varies = varying_axes(condition.node)
        # A Mask has no part that differs from head to head.
        if varies[_HEADS]:
            raise UnknownError(condition.node.name)
        if varies[_QUERIES] and varies[_KEYS]:
            self._add_pairs(condition)
        elif varies[_QUERIES]:
            self._visible_queries += self._vector(condition, _QUERIES, self._queries)
        else:
            self._visible_keys += self._vector(condition, _KEYS, self._keys)

    def _add_pairs(self, condition: Condition) -> None:
        """A condition that depends on the query and on the key."""
        # The first two stay what they are for any length; the values of all pairs are
        # the last resort.
        tries = (self._try_comparison, self._try_segments, self._try_known_condition)
        if not any(try_part(condition) for try_part in tries):
            raise UnknownError(condition.node.name)

    def _hide_all(self) -> None:
        # This is enough, whatever else there is of the mask.
        self._visible_keys = [jnp.zeros((1, self._keys), jnp.bool_)]

    def _vector(self, condition: Condition, axis: int, size: int) -> list[jax.Array]:
        """A condition that varies along the batch and one axis as an array
        [B or 1, size]; none if it always holds.
        """
        node = condition.node
        single = _single_axes(node, axis)
        other_axis = _QUERIES + _KEYS - axis
        elements = np.prod(node.shape) // max(1, node.shape[other_axis])
        if is_constant(node) and elements <= _MAX_VECTOR_ELEMENTS:
            visible: Any = _is_among(evaluate(node, single), condition.allowed)
            if visible.all():
                return []
            visible = jnp.asarray(visible)
        else:
            visible = _is_among(emit(node, single), condition.allowed)
        batch = visible.shape[0]
        return [jnp.broadcast_to(visible.reshape(batch, -1), (batch, size))]

    def _try_comparison(self, condition: Condition) -> bool:
        """A comparison of positions."""
        band = comparison_band(condition)
        return band is not None and self._try_band(band)

    def _try_band(self, band: Band) -> bool:
        both = self._band.intersect(band)
        if both is None:
            return False
        self._band = both
        return True

    def _try_segments(self, condition: Condition) -> bool:
        # A Mask has one pair of segment numbers.
        if self._segments is not None:
            return False
        self._segments = _find_segments(condition)
        return self._segments is not None

    def _try_known_condition(self, condition: Condition) -> bool:
        """A condition that depends on nothing traced, by its values."""
        values = _known_pairs(condition.node)
        return values is not None and self._try_known_mask(
            _is_among(values, condition.allowed)
        )

    def _try_known_mask(self, visible_BQT: np.ndarray) -> bool:
        known = inspect_known_mask(visible_BQT)
        if known is None or not self._try_band(known.band):
            return False
        if not known.keys_BT.all():
            self._visible_keys.append(jnp.asarray(known.keys_BT))
        if not known.queries_BQ.all():
            self._visible_queries.append(jnp.asarray(known.queries_BQ))
        return True

    def add_bias(self, node: Node) -> None:
        """Numbers added to the scores, of which the lowest hide. A mask has one such
        node at most.
        """
        varies = varying_axes(node)
        # A bias is float32, and has the same numbers for all heads.
        if node.dtype.itemsize > 4 or varies[_HEADS]:
            raise UnknownError(node.name)
        if varies[_QUERIES]:
            self._add_known_bias(node)
            return
        bias = emit(node, _single_axes(node, _KEYS))
        batch = bias.shape[0]
        bias = jnp.broadcast_to(bias.reshape(batch, -1), (batch, self._keys))
        lowest = lowest_number(node.dtype)
        if not has_only(node, lambda value: value > lowest):
            visible = ~(bias <= lowest)
            self._visible_keys.append(visible)
            bias = jnp.where(visible, bias, 0)
        self._bias = bias.astype(jnp.float32)

    def _add_known_bias(self, node: Node) -> None:
        """Known numbers that only hide."""
        values = _known_pairs(node)
        if values is None:
            raise UnknownError(node.name)
        visible = ~(values <= lowest_number(node.dtype))
        every_pair = np.broadcast_to(visible, (len(visible), self._queries, self._keys))
        # A bias for each pair is not a part of a Mask.
        if values[visible].any() or not self._try_known_mask(every_pair):
            raise UnknownError(node.name)

    def mask(self) -> Mask:
        """All the parts together."""
        band_fields = mask_fields(self._band, self._queries, self._keys)
        if band_fields is None:
            self._hide_all()
            band_fields = {}
        query_segments, key_segments = self._segments or (None, None)
        return Mask(
            keys_BT=intersect(*self._visible_keys), queries_BQ=intersect(*self._visible_queries), bias_BT=self._bias,
            query_segments_BQ=query_segments, key_segments_BT=key_segments, **band_fields,
        )  # fmt: skip


def _single_axes(node: Node, axis: int) -> Axes:
    """The axes of which one element is enough, for a node that varies along the batch
    and `axis` at most.
    """
    varies = varying_axes(node)
    return tuple(other not in (_BATCH, axis) or not varies[other] for other in range(4))


def _known_pairs(node: Node) -> np.ndarray | None:
    """The values [B or 1, Q, T] of a node that depends on nothing traced; None for
    another, or a large one.
    """
    batch, _, queries, keys = node.shape
    if batch * queries * keys > _MAX_PAIRS or not is_constant(node):
        return None
    return evaluate(node, (not varying_axes(node)[_BATCH], True, False, False))[:, 0]


def _is_among(array: Any, allowed: frozenset[Any]) -> Any:
    """Where the elements are among `allowed`, which is not empty."""
    # A condition that both truth values satisfy is none.
    if array.dtype == np.bool_ and True in allowed:
        return array
    if array.dtype == np.bool_:
        return ~array
    return functools.reduce(operator.or_, [array == value for value in allowed])


def _find_segments(condition: Condition) -> tuple[jax.Array, jax.Array] | None:
    """Traced. Packed sequences: a number for each query is compared with a number for
    each key.

    Returns:
        (query segments [B or 1, Q], key segments [B or 1, T]), int32 from 0, of a
        comparison for equality.
    """
    node = condition.node
    # An elementwise comparison is true for equal operands, or false.
    equal_result = {"eq": True, "ne": False}.get(node.name)
    if condition.allowed != {equal_result} or any(
        operand.rank != 4 for operand in node.operands
    ):
        return None
    left, right = node.operands
    if not np.issubdtype(left.dtype, np.integer) and left.dtype != np.bool_:
        return None
    for query, key in ((left, right), (right, left)):
        if _varies_only_over(query, _QUERIES) and _varies_only_over(key, _KEYS):
            return _count_from_zero(
                _segment_vector(query, _QUERIES), _segment_vector(key, _KEYS)
            )
    return None


def _varies_only_over(node: Node, axis: int) -> bool:
    other_axes = {_HEADS, _QUERIES, _KEYS} - {axis}
    varies = varying_axes(node)
    return not any(pick_axes(varies, other_axes))


def _segment_vector(node: Node, axis: int) -> jax.Array:
    single = [True] * 4
    single[_BATCH] = not varying_axes(node)[_BATCH]
    single[axis] = False
    array = emit(node, tuple(single))
    return array.reshape(array.shape[0], node.shape[axis])


def _count_from_zero(
    query_BQ: jax.Array, key_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The same equalities between numbers from 0: negative ones mean padding to the
    kernel.
    """
    if query_BQ.dtype.itemsize < 4:
        query_BQ, key_BT = query_BQ.astype(jnp.int32), key_BT.astype(jnp.int32)
        least = jnp.minimum(query_BQ.min(), key_BT.min())
        return query_BQ - least, key_BT - least
    least = jnp.minimum(query_BQ.min(), key_BT.min())
    shifted_query, shifted_key = query_BQ - least, key_BT - least
    # A difference that overflows is negative.
    fits = (shifted_query.min() >= 0) & (shifted_key.min() >= 0)
    fits &= (
        jnp.maximum(shifted_query.max(), shifted_key.max()) <= jnp.iinfo(jnp.int32).max
    )
    return jax.lax.cond(fits, _shift_segments, _rank_segments, query_BQ, key_BT, least)


def _shift_segments(
    query_BQ: jax.Array, key_BT: jax.Array, least: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return (query_BQ - least).astype(jnp.int32), (key_BT - least).astype(jnp.int32)


def _rank_segments(
    query_BQ: jax.Array, key_BT: jax.Array, least: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Positions in the sorted list of all numbers, for numbers that int32 cannot count
    from the least.
    """
    numbers = jnp.sort(jnp.concatenate([query_BQ.ravel(), key_BT.ravel()]))

    def rank(segments: jax.Array) -> jax.Array:
        return jnp.searchsorted(numbers, segments, method="sort").astype(jnp.int32)

    return rank(query_BQ), rank(key_BT)
