"""transformers' mask functions, recognised and read into a `Mask`.

A mask function says whether the query at a position sees the key at a position.
transformers builds them from a few closures, which are recognised by their code
objects; any other function has no known structure.

Shapes: B batch, Q query length, T key/value length.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.attention.mask import Mask, intersect
from tpuport.attention.provenance.emission import evaluate
from tpuport.attention.provenance.graph import Graph, UnknownError
from tpuport.objects.traced_numbers import as_array


class Unstructured(Exception):
    """A mask function that only a dense `Mask` describes; the message says why."""


@dataclass(frozen=True)
class Positions:
    """Query i is at position `query_start + i`, key j at `key_start + j`: numbers,
    numbers of the call (`TracedNumber`), or traced int32 scalars.

    Attributes:
        remapped: [B, Q] and [B, T], the positions that the mask function gets instead,
            or None.
        steady: wherever the rest of the mask lets a query see a key, `remapped` keeps
            their distance.
    """

    queries: int
    keys: int
    query_start: Any = 0
    key_start: Any = 0
    remapped: tuple[jax.Array, jax.Array] | None = None
    steady: bool = True

    def of_arguments(self) -> tuple[jax.Array, jax.Array]:
        """The positions that the mask function gets, [1 or B, Q] and [1 or B, T]."""
        if self.remapped is not None:
            return self.remapped
        return (
            positions_from(self.query_start, self.queries)[None],
            positions_from(self.key_start, self.keys)[None],
        )

    def look_up(self, table_BS: Any) -> tuple[jax.Array, jax.Array]:
        """What a table holds at the positions of queries, [B, Q], and of keys,
        [B, T].
        """
        if self.remapped is not None:
            raise Unstructured(
                "a table that is read at the positions of packed sequences"
            )
        queries = _slice_table(table_BS, self.queries, self.query_start)
        return queries, _slice_table(table_BS, self.keys, self.key_start)


def positions_from(start: Any, length: int) -> jax.Array:
    """The positions from a start on, int32 [length]."""
    return jnp.arange(length) + as_array(start)


def _slice_table(table_BS: Any, length: int, start: Any) -> jax.Array:
    """[B, length] of [B, S], from a position on."""
    if type(start) is not int:
        return jnp.take(
            jnp.asarray(table_BS), positions_from(start, length), axis=1, mode="clip"
        )
    if start + length > table_BS.shape[1]:
        raise Unstructured("a table that is shorter than the queries or the keys")
    return jnp.asarray(table_BS[:, start : start + length])


@dataclass
class MaskParts:
    """What a conjunction of mask functions has asked for so far.

    Attributes:
        packed, chunks: pairs of segment numbers of queries, [1 or B, Q], and of keys,
            [1 or B, T].
        chunks_within_packed: the chunks are counted from the start of each packed
            sequence, and these are consecutive.
    """

    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    keys: list[jax.Array] = field(default_factory=list)
    queries: list[jax.Array] = field(default_factory=list)
    packed: list[tuple[jax.Array, jax.Array]] = field(default_factory=list)
    chunks: list[tuple[jax.Array, jax.Array]] = field(default_factory=list)
    chunks_within_packed: bool = False

    def combine(self, positions: Positions) -> Mask:
        """Traced. All of it as one mask, without limits that never apply."""
        offset = positions.query_start - positions.key_start
        # All functions have to allow a key, so on each side the narrowest limit counts.
        left, right = min(self.left, default=None), min(self.right, default=None)
        if type(offset) is int:
            # A window longer than the sequence hides nothing, and without it the kernel
            # need not compare positions.
            if left is not None and left >= offset + positions.queries - 1:
                left = None
            if right is not None and right >= positions.keys - 1 - offset:
                right = None
        query_segments, key_segments = self._combine_segments()
        mask = Mask(
            left, right, offset,
            keys_BT=intersect(*self.keys), queries_BQ=intersect(*self.queries),
            query_segments_BQ=query_segments, key_segments_BT=key_segments,
        )  # fmt: skip
        if mask.has_band:
            return mask
        # Only a band depends on positions.
        return replace(mask, offset=0)

    def _combine_segments(self) -> tuple[jax.Array | None, jax.Array | None]:
        pairs = self.packed + self.chunks
        if not pairs:
            return None, None
        if len(pairs) == 1:
            query, key = pairs[0]
            return query.astype(jnp.int32), key.astype(jnp.int32)
        if len(pairs) > 2 or not self.chunks_within_packed:
            raise Unstructured("sequences packed in several ways")
        # Both numbers only grow along the sequence, the chunk's within each packed
        # sequence, so each pair of numbers is one run, and counting the runs gives each
        # pair a number.
        packed, chunk = jnp.broadcast_arrays(self.packed[0][1], self.chunks[0][1])
        starts = (jnp.diff(packed, axis=1) != 0) | (jnp.diff(chunk, axis=1) != 0)
        runs = jnp.pad(jnp.cumsum(starts, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))
        return runs, runs


def read_mask_function(function: Callable, positions: Positions) -> Mask:
    """Traced. The structure of a mask function over these positions.

    Raises:
        Unstructured: it is not a function of transformers, or one that `Mask` has no
            parts for.
    """
    parts = MaskParts()
    _read(function, positions, parts)
    return parts.combine(positions)


@dataclass(frozen=True)
class PackedSequences:
    """Several sequences in a row, in transformers' form.

    Attributes:
        mask_function: says what a query sees within its sequence.
        position_ids: [B, T], within each sequence, at which the mask function is asked;
            None asks it at the columns.
        numbers: [B, T], which of its row's sequences a token belongs to.
    """

    mask_function: Callable
    position_ids: jax.Array | None
    numbers: jax.Array

    def are_single(self) -> jax.Array:
        """Traced. Whether each row is one sequence: a boolean."""
        return (self.numbers[:, -1] == 0).all()


def packed_sequences(function: Callable) -> PackedSequences | None:
    """The packed sequences that a mask function is for, or None if it is for none."""
    if _reader_of(function) is not _read_conjunction:
        return None
    # transformers puts two together for packed sequences; read one by one, each knows
    # too little.
    functions = _closure_values(function)["mask_functions"]
    within, *tables = sorted(functions, key=_is_packed)
    if list(map(_is_packed, tables)) != [True]:
        return None
    numbers = _closure_values(tables[0])["packed_sequence_mask"]
    if _reader_of(within) is not _read_remapped:
        return PackedSequences(within, None, numbers)
    remapping = _closure_values(within)
    return PackedSequences(
        remapping["mask_function"], remapping["position_ids"], numbers
    )


def _is_packed(function: Callable) -> bool:
    return _reader_of(function) is _read_packed


def _read(function: Callable, positions: Positions, parts: MaskParts) -> None:
    sequences = packed_sequences(function)
    if sequences is not None and sequences.position_ids is not None:
        _read_packed_sequences(sequences, positions, parts)
        return
    reader = _reader_of(function)
    if reader is None:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise Unstructured(f"the mask function {name} is not one of transformers' own")
    reader(_closure_values(function), positions, parts)


class _Closure(dict):
    """What a function closes over, by the names that transformers gives it today."""

    def __missing__(self, name: str) -> Any:
        raise Unstructured(f"transformers' mask functions do not close over {name}")


def _closure_values(function: Any) -> _Closure:
    values = inspect.getclosurevars(function).nonlocals
    return _Closure(
        (name, compat.to_jax(value) if isinstance(value, torch.Tensor) else value)
        for name, value in values.items()
    )


def _reader_of(function: Callable) -> Any:
    return _readers().get(getattr(function, "__code__", None))


@functools.cache
def _readers() -> dict[Any, Callable[[dict[str, Any], Positions, MaskParts], None]]:
    """The reader of each of transformers' functions, by the code that all functions of
    one factory share.
    """
    from transformers import masking_utils

    readers = {}
    for name, (arguments, reader) in _READERS.items():
        # Not every release has all of them.
        if function := getattr(masking_utils, name, None):
            example = function(*arguments) if arguments else function
            readers[example.__code__] = reader
    return readers


def _add_limit(
    positions: Positions, limits: list[int], window: Any, own: int = 0
) -> None:
    """A limit on one side. `own` is 1 if the window counts the query's own position,
    which a limit does not.
    """
    if not positions.steady:
        raise Unstructured("a window over positions that do not increase by one")
    if not isinstance(window, int) or window < own:
        raise Unstructured("a window whose length is not a number known at trace time")
    limits.append(window - own)


def _read_causal(_: dict[str, Any], positions: Positions, parts: MaskParts) -> None:
    _add_limit(positions, parts.right, 0)


def _read_window(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    _add_limit(positions, parts.left, closure["sliding_window"], own=1)


def _read_bidirectional_window(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    # This window is a distance, without the query's own position.
    for limits in (parts.left, parts.right):
        _add_limit(positions, limits, closure["sliding_window"])


def _read_bidirectional(
    _: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    """`query position >= 0`, which holds for all positions that are counted from 0."""
    if positions.remapped is not None:
        parts.queries.append(positions.remapped[0] >= 0)


def _read_chunks(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    """Query and key are in the same chunk, counted from the first position that is not
    left padding.
    """
    size, padding_B = closure["chunk_size"], closure["left_padding"]
    if not isinstance(size, int):
        raise Unstructured("chunks whose size is not a number known at trace time")
    start = positions.key_start if type(positions.key_start) is int else 0
    # Chunks that left padding may fill, added so that no segment number is negative.
    shift = -(-(positions.keys + start) // size)
    query, key = (
        (position - padding_B[:, None]) // size + shift
        for position in positions.of_arguments()
    )
    parts.chunks.append((query, key))
    if positions.remapped is not None and positions.steady:
        parts.chunks_within_packed = True


def _read_packed(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    parts.packed.append(positions.look_up(closure["packed_sequence_mask"]))


def _read_padding(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    _, keys = positions.look_up(closure["padding_mask"])
    parts.keys.append(keys.astype(jnp.bool_))


def _read_remapped(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    _read_at(
        closure["mask_function"],
        closure["position_ids"],
        positions,
        parts,
        steady=False,
    )


def _read_at(
    function: Callable,
    position_ids: Any,
    positions: Positions,
    parts: MaskParts,
    *,
    steady: bool,
) -> None:
    """Read a mask function that gets the positions of packed sequences."""
    if positions.remapped is not None:
        raise Unstructured("positions of packed sequences within packed sequences")
    remapped = positions.look_up(position_ids)
    _read(function, replace(positions, remapped=remapped, steady=steady), parts)


def _read_conjunction(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    for function in closure["mask_functions"]:
        _read(function, positions, parts)


def _read_packed_sequences(
    sequences: PackedSequences, positions: Positions, parts: MaskParts
) -> None:
    """Packed sequences together with the positions within each."""
    packed, position_ids = sequences.numbers, sequences.position_ids
    assert position_ids is not None
    # Traced positions increase by one: where they do not, transformers itself begins
    # another sequence.
    counts_by_one, is_single_sequence = True, False
    with contextlib.suppress(UnknownError):
        # Neither depends on traced values in a model that counts positions by itself.
        packed, position_ids = known_values(packed), known_values(position_ids)
        counts_by_one = _counts_by_one(packed, position_ids)
        is_single_sequence = bool((packed == packed[:, :1]).all())
    steady = packed.shape[1] == positions.queries == positions.keys and counts_by_one
    if not (steady and is_single_sequence):
        _read_packed({"packed_sequence_mask": packed}, positions, parts)
    _read_at(sequences.mask_function, position_ids, positions, parts, steady=steady)


def known_values(array: jax.Array) -> np.ndarray:
    """The values of an array, traced or not; UnknownError if they depend on something
    traced.
    """
    if not isinstance(array, Tracer):
        return np.asarray(array)
    return evaluate(Graph().node(array), (False,) * array.ndim)


def _counts_by_one(packed_BT: np.ndarray, positions_BT: np.ndarray) -> bool:
    """Whether packed sequences are consecutive, and positions increase by one within
    each.
    """
    change = np.diff(packed_BT, axis=1)
    is_next = (change == 0) & (np.diff(positions_BT, axis=1) == 1)
    return bool(((change > 0) | is_next).all())


def _read_disjunction(
    closure: dict[str, Any], positions: Positions, parts: MaskParts
) -> None:
    functions = closure["mask_functions"]
    # A `Mask` is a conjunction.
    if len(functions) > 1:
        raise Unstructured("a union of mask functions")
    _read(functions[0], positions, parts)


# The reader of each function of transformers, or of what its factory makes with these
# arguments: only the code of that matters, not what it closes over.
_READERS: Final[dict[str, tuple[tuple, Callable]]] = {
    "causal_mask_function": ((), _read_causal),
    "bidirectional_mask_function": ((), _read_bidirectional),
    "sliding_window_overlay": ((1,), _read_window),
    "sliding_window_bidirectional_overlay": ((1,), _read_bidirectional_window),
    "chunked_overlay": ((1, None), _read_chunks),
    "packed_sequence_mask_function": ((None,), _read_packed),
    "padding_mask_function": ((None,), _read_padding),
    "remap_positions_for_packed_sequence": ((None, None), _read_remapped),
    "and_masks": ((abs,), _read_conjunction),
    "or_masks": ((abs,), _read_disjunction),
}
