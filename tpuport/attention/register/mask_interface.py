"""tpuport's mask function under the name that transformers looks up: masks that are
structure until a model computes with them.

Shapes: B batch, Q query length, T key/value length, S positions.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.attention.mask import ARRAYS, Mask, intersect
from tpuport.attention.provenance import structure_of
from tpuport.attention.provenance.graph import UnknownError
from tpuport.attention.register.eager_attention import is_eager_config
from tpuport.attention.register.lazy_mask import lazy_mask
from tpuport.attention.register.mask_functions import (
    Positions,
    Unstructured,
    known_values,
    packed_sequences,
    positions_from,
    read_mask_function,
)


def with_reason(mask: Mask, reason: str) -> tuple[Mask, str]:
    """The mask, and a reason that is empty unless it is dense."""
    return mask, "" if mask.dense is None else reason


def mask_of_any_release(**arguments: Any) -> Any:
    """Traced. `transformers_mask` as any release of transformers calls it.

    The first ones give the positions of the queries, `cache_position` [Q], in place of
    their number and the first of them.
    """
    positions = arguments.pop("cache_position", None)
    if positions is None:
        return transformers_mask(**arguments)
    if not compat.is_ported(positions):
        from transformers.masking_utils import sdpa_mask

        return sdpa_mask(cache_position=positions, **arguments)
    start: Any = compat.as_jax(positions)[0]
    with contextlib.suppress(UnknownError):
        start = int(known_values(start))
    return transformers_mask(q_length=positions.shape[0], q_offset=start, **arguments)


def transformers_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable | None = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    local_size: int | None = None,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **kwargs: Any,
) -> Any:
    """Traced. transformers' mask interface: a mask [B, 1, Q, T] that is structure until
    a model computes with it.

    None means plain causal attention, or no mask, if transformers allows that. The mask
    is boolean, as for torch's fused attention. Code of a model that has only its own
    ("eager") attention may compute with the numbers that are added to scores there, so
    its mask has these, and is never None instead of causal.

    Args:
        q_offset, kv_offset: positions of the first query and key. `kv_offset` may be a
            vector [T]: a ring buffer's slots then hold key positions arange(T) +
            kv_offset, negative if nothing has been written.
        attention_mask: [B, S] over key positions, True for a token.
        use_vmap: the mask function may be unable to take whole arrays.
        device: of the model's inputs; a mask on the host is transformers' own.
        dtype: of the numbers.
        config: of the model.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = mask_function or causal_mask_function
    if device is not None and torch.device(device).type not in ("jax", "privateuseone"):
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, local_size,
            allow_is_causal_skip, allow_is_bidirectional_skip, use_vmap, device, dtype=dtype, config=config, **kwargs,
        )  # fmt: skip
    has_own_attention = is_eager_config(config)
    positions = Positions(q_length, kv_length, *compat.as_jax((q_offset, kv_offset)))
    mask, reason = _read_or_call(function, positions, batch_size, use_vmap=use_vmap)
    may_be_none = _means_none(
        mask,
        positions,
        local_size,
        causal=allow_is_causal_skip and not has_own_attention,
        bidirectional=allow_is_bidirectional_skip,
    )
    left_out_if = None
    if attention_mask is not None:
        padding = _padding_at(
            compat.to_jax(attention_mask).astype(jnp.bool_), positions
        )
        # Musicgen's codebooks are rows of ids, and so of the mask, but several of them
        # one row of states.
        padding = padding[:: max(1, len(padding) // batch_size)]
        if may_be_none and q_length > 1:
            # For attention that is not causal by itself, such as Aimv2's and
            # PaliGemma's, or that is, beside a mask without order, such as that of
            # Phi-4's images, None means another result.
            left_out_if = functools.partial(jnp.all, padding)
        mask = replace(mask, keys_BT=intersect(mask.keys_BT, padding))
    elif may_be_none:
        return None
    elif not has_own_attention:
        left_out_if = _left_out_if_single(function, positions, local_size)
    number_dtype = dtype if has_own_attention else None
    return lazy_mask(
        mask, (batch_size, 1, q_length, kv_length), reason, number_dtype, left_out_if
    )


def _left_out_if_single(
    function: Callable, positions: Positions, window: int | None
) -> Callable[[], jax.Array] | None:
    """Traced. What says whether transformers, seeing that no positions begin anew,
    leaves a causal mask out.
    """
    try:
        sequences = packed_sequences(function)
        if sequences is None:
            return None
        mask = read_mask_function(sequences.mask_function, positions)
    except Unstructured:
        return None
    if mask.right == 0 and _means_none(
        mask, positions, window, causal=True, bidirectional=False
    ):
        return sequences.are_single
    return None


def _read_or_call(
    function: Callable, positions: Positions, batch: int, *, use_vmap: bool
) -> tuple[Mask, str]:
    """Traced. A mask function's structure at these positions, and why it had to be
    called for all of them.
    """
    is_known = isinstance(positions.query_start, int) and isinstance(
        positions.key_start, int
    )
    try:
        if is_known or (positions.queries > 1 and jnp.ndim(positions.key_start) == 0):
            return read_mask_function(function, positions), ""
        reason = "several queries against the slots of a ring buffer"
    except Unstructured as error:
        reason = str(error)
    key_positions = positions_from(positions.key_start, positions.keys)
    is_written = key_positions >= 0
    visible = (
        _call_everywhere(function, positions, batch, use_vmap=use_vmap) & is_written
    )
    if positions.queries == 1:
        # For one query, any function only hides keys.
        return Mask(keys_BT=visible[:, 0, 0]), ""
    mask = structure_of(
        visible, batch=batch, heads=1, queries=positions.queries, keys=positions.keys
    )
    return with_reason(mask, reason)


def _call_everywhere(
    function: Callable, positions: Positions, batch: int, *, use_vmap: bool
) -> jax.Array:
    """Traced. A mask function's answer for every query and key, [B or 1, 1, Q, T]."""
    indices = (
        jnp.arange(batch),
        jnp.zeros(1, jnp.int32),
        positions_from(positions.query_start, positions.queries),
        positions_from(positions.key_start, positions.keys),
    )

    def call(*indices: jax.Array) -> jax.Array:
        return compat.as_jax(function(*compat.as_torch(indices)))

    if use_vmap:
        # One axis after the other, as transformers does it, so that the function sees
        # single indices.
        mapped: Any = call
        for axis in (3, 2, 1, 0):
            in_axes: list[int | None] = [None] * 4
            in_axes[axis] = 0
            mapped = jax.vmap(mapped, in_axes=in_axes)
        return mapped(*indices)
    mask = call(*jnp.ix_(*indices))
    # It has the length 1 along an axis that the function does not look at.
    return jnp.broadcast_to(mask, (*mask.shape[:2], positions.queries, positions.keys))


def _padding_at(padding_BS: jax.Array, positions: Positions) -> jax.Array:
    """Traced. The padding mask at key positions, [B, T]; positions past its end are
    padding.
    """
    length, start = positions.keys, positions.key_start
    if type(start) is int:
        part = padding_BS[:, start : start + length]
        return jnp.pad(part, ((0, 0), (0, length - part.shape[1])))
    # Slots of a ring buffer that are still empty have negative positions.
    columns = jnp.maximum(positions_from(start, length), 0)
    return jnp.take(padding_BS, columns, axis=1, mode="fill", fill_value=False)


def _means_none(
    mask: Mask,
    positions: Positions,
    window: int | None,
    *,
    causal: bool,
    bidirectional: bool,
) -> bool:
    """Whether transformers lets None mean the same as this mask.

    Args:
        causal, bidirectional: whether it may mean plain causal attention, and no mask.
    """
    parts = mask.present(("left", "right", *ARRAYS)).keys()
    if not parts:
        # One query that sees every key is causal as well.
        return bidirectional or (causal and positions.queries == 1)
    if window is not None and positions.keys <= window:
        # A sequence that is not longer than a chunk has only one chunk.
        parts -= {"query_segments_BQ", "key_segments_BT"}
    if parts != {"right"} or isinstance(mask.offset, jax.Array):
        return False
    is_square = positions.queries == positions.keys
    return causal and is_square and (mask.right, mask.offset) == (0, 0)
