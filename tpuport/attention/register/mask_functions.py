"""transformers' mask functions, recognised as what they are and read into a `Mask`.

A mask function says whether the query at a position sees the key at a position. transformers makes them of a few
closures, which are known here by their code objects; a function that is none of them has no structure.
Shapes: B batch, Q query length, T key/value length.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.attention.mask import Mask
from tpuport.attention.provenance.emission import evaluate
from tpuport.attention.provenance.graph import Graph, UnknownError


class Unstructured(Exception):
    """A mask function that no `Mask` without dense elements describes; the message says why."""


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand: at `query_start + i` and `key_start + j`, numbers or traced int32 scalars.

    Attributes:
        remapped: [B, Q] and [B, T], the positions that the mask function is given instead, or None.
        steady: wherever the rest of the mask lets a query see a key, `remapped` keeps their distance.
    """

    queries: int
    keys: int
    query_start: Any = 0
    key_start: Any = 0
    remapped: tuple[jax.Array, jax.Array] | None = None
    steady: bool = True

    def given(self) -> tuple[jax.Array, jax.Array]:
        """The positions that the mask function is given, [1 or B, Q] and [1 or B, T]."""
        query_1Q = jnp.arange(self.queries)[None] + self.query_start
        return self.remapped or (query_1Q, jnp.arange(self.keys)[None] + self.key_start)

    def of_both(self, table_BS: Any) -> tuple[jax.Array, jax.Array]:
        """What a table holds at the positions of queries, [B, Q], and of keys, [B, T]."""
        if self.remapped is not None:
            raise Unstructured("a table that is read at the positions of packed sequences")
        queries = _span(table_BS, self.queries, self.query_start)
        return queries, _span(table_BS, self.keys, self.key_start)


def _span(table_BS: Any, length: int, start: Any) -> jax.Array:
    """[B, length] of [B, S], from a position on."""
    if not isinstance(start, int):
        return jnp.take(jnp.asarray(table_BS), jnp.arange(length) + start, axis=1, mode="clip")
    if start + length > table_BS.shape[1]:
        raise Unstructured("a table that is shorter than the queries or the keys")
    return jnp.asarray(table_BS[:, start : start + length])


@dataclass
class Parts:
    """What a conjunction of mask functions has asked for so far.

    Attributes:
        packed, chunks: pairs of segment numbers of queries, [1 or B, Q], and of keys, [1 or B, T].
        inside: the chunks are counted anew in each of the packed sequences, which follow each other.
    """

    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    keys: list[jax.Array] = field(default_factory=list)
    queries: list[jax.Array] = field(default_factory=list)
    packed: list[tuple[jax.Array, jax.Array]] = field(default_factory=list)
    chunks: list[tuple[jax.Array, jax.Array]] = field(default_factory=list)
    inside: bool = False

    def mask(self, places: Places) -> Mask:
        """Traced. All of it as one mask, without limits that never bind."""
        offset = places.query_start - places.key_start
        left, right = min(self.left, default=None), min(self.right, default=None)
        if isinstance(offset, int):
            left = None if left is not None and left >= offset + places.queries - 1 else left
            right = None if right is not None and right >= places.keys - 1 - offset else right
        query_segments, key_segments = self._segments()
        return Mask(
            left=left,
            right=right,
            offset=offset if left is not None or right is not None else 0,
            keys_BT=functools.reduce(jnp.logical_and, self.keys) if self.keys else None,
            queries_BQ=functools.reduce(jnp.logical_and, self.queries) if self.queries else None,
            query_segments_BQ=query_segments,
            key_segments_BT=key_segments,
        )

    def _segments(self) -> tuple[jax.Array | None, jax.Array | None]:
        pairs = self.packed + self.chunks
        if len(pairs) > 2 or (len(pairs) == 2 and not self.inside):
            raise Unstructured("sequences packed in several ways")
        if not pairs:
            return None, None
        if len(pairs) == 1:
            query, key = pairs[0]
            return query.astype(jnp.int32), key.astype(jnp.int32)
        # Both numbers only grow along the sequence, the chunk's within each packed one: each pair is one run.
        packed, chunk = jnp.broadcast_arrays(self.packed[0][1], self.chunks[0][1])
        starts = (jnp.diff(packed, axis=1) != 0) | (jnp.diff(chunk, axis=1) != 0)
        runs = jnp.pad(jnp.cumsum(starts, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))
        return runs, runs


def read(function: Callable, places: Places) -> Mask:
    """Traced. The structure of a mask function over these positions.

    Raises:
        Unstructured: it is no function of transformers, or one that `Mask` has no parts for.
    """
    parts = Parts()
    _collect(function, places, parts)
    return parts.mask(places)


def _collect(function: Callable, places: Places, parts: Parts) -> None:
    reader = _readers().get(getattr(function, "__code__", None))
    if reader is None:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise Unstructured(f"the mask function {name} is not one of transformers' own")
    reader(_closure(function), places, parts)


def _closure(function: Any) -> dict[str, Any]:
    cells = function.__closure__ or ()
    names = function.__code__.co_freevars
    return {name: _array(cell.cell_contents) for name, cell in zip(names, cells, strict=True)}


def _array(value: Any) -> Any:
    return compat.to_jax(value) if isinstance(value, torch.Tensor) else value


@functools.cache
def _readers() -> dict[Any, Callable[[dict[str, Any], Places, Parts], None]]:
    """What reads each of transformers' functions, by the code that all functions made by one factory share."""
    from transformers import masking_utils as m

    none: Any = None
    made = {
        m.causal_mask_function: _causal,
        m.bidirectional_mask_function: _bidirectional,
        m.sliding_window_overlay(1): _window,
        m.sliding_window_bidirectional_overlay(1): _window_both_ways,
        m.chunked_overlay(1, none): _chunks,
        m.packed_sequence_mask_function(none): _packed,
        m.padding_mask_function(none): _padding,
        m.remap_positions_for_packed_sequence(none, none): _remapped,
        m.and_masks(m.causal_mask_function): _all_of,
        m.or_masks(m.causal_mask_function): _any_of,
    }
    return {function.__code__: reader for function, reader in made.items()}


def _band(places: Places, limits: list[int], value: Any) -> None:
    if not places.steady:
        raise Unstructured("a window over positions that do not count on by one")
    if not isinstance(value, int) or value < 0:
        raise Unstructured("a window whose length is no number known at trace time")
    limits.append(value)


def _causal(_: dict[str, Any], places: Places, parts: Parts) -> None:
    _band(places, parts.right, 0)


def _window(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    window = closure["sliding_window"]
    _band(places, parts.left, window - 1 if isinstance(window, int) else window)


def _window_both_ways(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    for limits in (parts.left, parts.right):
        _band(places, limits, closure["sliding_window"])


def _bidirectional(_: dict[str, Any], places: Places, parts: Parts) -> None:
    """`query position >= 0`: of positions that are counted, all."""
    if places.remapped is not None:
        parts.queries.append(places.remapped[0] >= 0)


def _chunks(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    """Query and key are in the same chunk, counted from the first position that is no left padding."""
    size, padding_B = closure["chunk_size"], closure["left_padding"]
    if not isinstance(size, int):
        raise Unstructured("chunks whose size is no number known at trace time")
    start = places.key_start if isinstance(places.key_start, int) else 0
    shift = -(
        -(places.keys + start) // size
    )  # chunks that left padding may fill, so that no number is below zero
    query, key = ((at - padding_B[:, None]) // size + shift for at in places.given())
    parts.chunks.append((query, key))
    parts.inside = parts.inside or (places.remapped is not None and places.steady)


def _packed(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    parts.packed.append(places.of_both(closure["packed_sequence_mask"]))


def _padding(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    parts.keys.append(places.of_both(closure["padding_mask"])[1].astype(jnp.bool_))


def _remapped(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    _remap(closure, places, parts, steady=False)


def _remap(closure: dict[str, Any], places: Places, parts: Parts, *, steady: bool) -> None:
    if places.remapped is not None:
        raise Unstructured("positions of packed sequences within packed sequences")
    given = places.of_both(closure["position_ids"])
    _collect(closure["mask_function"], replace(places, remapped=given, steady=steady), parts)


def _all_of(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    functions = closure["mask_functions"]
    pair = [_readers().get(getattr(function, "__code__", None)) for function in functions] == [
        _packed,
        _remapped,
    ]
    if not pair:
        for function in functions:
            _collect(function, places, parts)
        return
    table, inner = map(_closure, functions)
    packed, positions = _sequences(table["packed_sequence_mask"], inner["position_ids"])
    steady = packed.shape[1] == places.queries == places.keys and _counted(packed, positions)
    if not (steady and _is_one(packed)):
        _packed({"packed_sequence_mask": packed}, places, parts)
    _remap(inner | {"position_ids": positions}, places, parts, steady=steady)


def _sequences(packed_BT: jax.Array, positions_BT: jax.Array) -> tuple[Any, Any]:
    """Both as numbers where nothing traced takes part in them, as in a model that counts positions by itself."""
    found = _known(packed_BT), _known(positions_BT)
    return found if found[0] is not None and found[1] is not None else (packed_BT, positions_BT)


def _known(array: jax.Array) -> np.ndarray | None:
    if not isinstance(array, Tracer):
        return np.asarray(array)
    try:
        return evaluate(Graph().node(array), (False,) * array.ndim)
    except UnknownError:
        return None


def _counted(packed_BT: Any, positions_BT: Any) -> bool:
    """Whether packed sequences follow each other, and positions count on by one within each.

    transformers finds the sequences where positions do not, so they do; of what is not traced it is checked.
    """
    if isinstance(packed_BT, jax.Array) or isinstance(positions_BT, jax.Array):
        return True
    change = np.diff(packed_BT, axis=1)
    return bool(((change > 0) | (change == 0) & (np.diff(positions_BT, axis=1) == 1)).all())


def _is_one(packed_BT: Any) -> bool:
    """Whether each row is known to be a single sequence."""
    return isinstance(packed_BT, np.ndarray) and bool((packed_BT == packed_BT[:, :1]).all())


def _any_of(closure: dict[str, Any], places: Places, parts: Parts) -> None:
    functions = closure["mask_functions"]
    if len(functions) > 1:
        raise Unstructured("a union of mask functions")
    _collect(functions[0], places, parts)
