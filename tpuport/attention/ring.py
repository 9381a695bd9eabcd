"""Ring attention: keys and values stay shared out over the sequence and travel from device to device.

Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023
(arXiv:2310.01889). Each device computes its queries against the keys that it holds while those of the next step are on
their way, and merges the results. A device holds two parts of the keys at a time, in the backward pass as well: there
the gradients of keys and values travel with them.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length (of one device),
D head dimension of queries and keys, C of values.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention.mask import Mask

AXIS = "sp"
# What travels with the keys, and what stays with the queries.
_TRAVELLING = ("keys_BT", "key_segments_BT", "bias_BT")
_STAYING = ("queries_BQ", "query_segments_BQ")
_DIFFERENTIABLE = ("key", "value", "bias_BT")

# jax gives a constant back as an array of numpy.
Arrays = dict[str, Any]
Attend = Callable[..., tuple[jax.Array, jax.Array]]
Gradients = Callable[..., tuple[jax.Array | None, ...]]


def merge(
    out_BHQC: Float[Array, "B H Q C"],
    lse_BHQ: Float[Array, "B H Q"],
    other_BHQC: Float[Array, "B H Q C"],
    other_lse_BHQ: Float[Array, "B H Q"],
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. Attention to the keys of two sets that have none in common, float32, from the attention to each.

    Each output is a mean of values, weighted by exp(score), and exp(lse) is the sum of the weights, so that
        lse = log(exp(lse_1) + exp(lse_2)),   out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2
    (Liu et al. 2023, section 3, after Milakov and Gimelshein 2018, "Online normalizer calculation for softmax").
    A row that sees no key in either set, both lse -inf, gives zeros and -inf.
    """
    lse = jnp.logaddexp(lse_BHQ, other_lse_BHQ)
    first, second = (_weight(part, lse)[..., None] for part in (lse_BHQ, other_lse_BHQ))
    return out_BHQC.astype(jnp.float32) * first + other_BHQC.astype(jnp.float32) * second, lse


def _weight(part_BHQ: jax.Array, lse_BHQ: jax.Array) -> jax.Array:
    """Traced. The share of a part in the whole softmax's sum, 0 where there is nothing to share."""
    return jnp.where(
        part_BHQ > -jnp.inf, jnp.exp(part_BHQ - jnp.where(lse_BHQ > -jnp.inf, lse_BHQ, 0.0)), 0.0
    )


def ring(
    attend: Attend,
    gradients: Gradients,
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. One device's rows of attention to the keys of all devices along sp, and the log of their softmax's sum.

    To be called in code that is manual over sp. Both results can be differentiated.

    Args:
        attend: from query, key, value and mask to output and log-sum-exp, as `flash`.
        gradients: as `backward`, which takes those two and their cotangents besides.
        query_BHQD, key_BKTD, value_BKTC: this device's part of each.
        mask: its arrays are this device's parts, its offset is that of the whole sequence's first query.
    """
    devices, queries, keys = jax.lax.axis_size(AXIS), query_BHQD.shape[2], key_BKTD.shape[2]
    shifts = (0, devices - 1)
    if mask.has_band and isinstance(mask.offset, int):
        shifts = needed_shifts(mask, devices, queries, keys)
    block = {"key": key_BKTD, "value": value_BKTC} | _given(mask, _TRAVELLING)
    own = {"offset": jnp.asarray(mask.offset, jnp.int32)} | _given(mask, _STAYING)
    return _ring(_Ring(attend, gradients, Mask(mask.left, mask.right), *shifts), query_BHQD, block, own)


def _given(mask: Mask, names: tuple[str, ...]) -> Arrays:
    return {name: getattr(mask, name) for name in names if getattr(mask, name) is not None}


def needed_shifts(mask: Mask, parts: int, queries: int, keys: int) -> tuple[int, int]:
    """The first and the last of the steps in which some device sees a key; a step's number is how far keys travelled.

    A window needs the parts next to its own only: negative numbers are parts of later keys. What lies between is
    computed as well, or skipped by the devices that see nothing in it.
    """
    needed = [
        shift
        for shift in range(parts)
        if any(
            _meets(mask, _offset(mask.offset, i, shift, parts, queries, keys), queries, keys)
            for i in range(parts)
        )
    ]
    if not needed:
        return 0, 0
    # On the circle of shifts, all but the longest stretch without a needed one.
    gaps = [
        (after - before - 1) % parts for before, after in zip([needed[-1], *needed], needed, strict=False)
    ]
    longest = gaps.index(max(gaps))
    first, count = needed[longest], parts - max(gaps)
    first -= parts if first > 0 and first + count > parts else 0
    return first, first + count - 1


def _offset(offset: Any, device: Any, shift: Any, parts: int, queries: int, keys: int) -> Any:
    """Position of the device's first query among the keys that it holds after `shift` steps; numbers or traced."""
    return offset + device * queries - (device - shift) % parts * keys


def _meets(mask: Mask, offset: Any, queries: int, keys: int) -> Any:
    """Whether some query sees some key by position; a bool, or traced."""
    seen = True
    if mask.right is not None:
        seen &= -(offset + queries - 1) <= mask.right
    if mask.left is not None:
        seen &= keys - 1 - offset >= -mask.left
    return seen


def _rotated(arrays: Any, distance: int) -> Any:
    """Traced. What the device `distance` places before this one holds."""
    parts = jax.lax.axis_size(AXIS)
    if distance % parts == 0:
        return arrays
    pairs = [(device, (device + distance) % parts) for device in range(parts)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, AXIS, pairs), arrays)


@dataclasses.dataclass(frozen=True)
class _Ring:
    """What is known of one call when it is traced: the two functions, the band without its offset, and the steps."""

    attend: Attend
    gradients: Gradients
    band: Mask
    first: int
    last: int

    def visit(self, use: Any, skipped: Any, shift: Any, query: jax.Array, block: Arrays, own: Arrays) -> Any:
        """Traced. `use(mask)` of the block that is held after `shift` steps, or `skipped` if the band hides it all."""
        parts = {name: array for name, array in (own | block).items() if name in (*_TRAVELLING, *_STAYING)}
        mask = dataclasses.replace(self.band, **parts)
        if not mask.has_band:
            return use(mask)
        queries, keys = query.shape[2], block["key"].shape[2]
        device, devices = jax.lax.axis_index(AXIS), jax.lax.axis_size(AXIS)
        offset = _offset(own["offset"], device, shift, devices, queries, keys)
        mask = dataclasses.replace(mask, offset=offset)
        return jax.lax.cond(_meets(mask, offset, queries, keys), lambda: use(mask), lambda: skipped)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(call: _Ring, query: jax.Array, block: Arrays, own: Arrays) -> tuple[jax.Array, jax.Array]:
    return _forward(call, query, block, own)[0]


def _forward(call: _Ring, query: jax.Array, block: Arrays, own: Arrays) -> tuple[Any, Any]:
    """Traced. Output and log-sum-exp, and what the backward pass needs: nothing that grows with the number of steps."""

    def step(shift: Any, held: Arrays, state: Any) -> Any:
        def use(mask: Mask) -> Any:
            out, lse = call.attend(query, held["key"], held["value"], mask)
            return merge(state[0], state[1], out, lse)

        return call.visit(use, state, shift, query, held, own)

    def send_and_step(shift: Any, carry: Any) -> Any:
        held, state = carry
        coming = _rotated(held, 1)
        return coming, step(shift, held, state)

    shape = (*query.shape[:3], block["value"].shape[3])
    state = jnp.zeros(shape, jnp.float32), jnp.full(shape[:3], -jnp.inf, jnp.float32)
    carry = _rotated(block, call.first), state
    held, state = jax.lax.fori_loop(call.first, call.last, send_and_step, carry)
    out, lse = step(call.last, held, state)
    out = out.astype(query.dtype)
    return (out, lse), (query, block, own, out, lse)


def _backward(call: _Ring, residuals: Any, cotangents: Any) -> tuple[jax.Array, Any, None]:
    """Traced. A second round, in which the gradients of each part of the keys are summed up and travel home with it.

    Given the log-sum-exp over all keys, the weight of a key is exp(score - lse) whatever the other keys are, so each
    part's gradients are those of attention to that part alone with this log-sum-exp in place of its own.
    """
    query, block, own, out, lse = residuals
    names = [name for name in _DIFFERENTIABLE if name in block]

    def step(shift: Any, held: Arrays, d_query: jax.Array, d_held: Arrays) -> Any:
        def use(mask: Mask) -> Any:
            found = call.gradients(query, held["key"], held["value"], mask, out, lse, *cotangents)
            added = found[0], dict(zip(names, found[1:], strict=False))
            return jax.tree.map(
                lambda total, more: total + more.astype(jnp.float32), (d_query, d_held), added
            )

        return call.visit(use, (d_query, d_held), shift, query, held, own)

    def send_and_step(shift: Any, carry: Any) -> Any:
        held, d_query, d_held = carry
        coming = _rotated(held, 1)
        d_query, d_held = step(shift, held, d_query, d_held)
        return coming, d_query, _rotated(d_held, 1)

    zeros = {name: jnp.zeros(block[name].shape, jnp.float32) for name in names}
    carry = _rotated(block, call.first), jnp.zeros(query.shape, jnp.float32), zeros
    held, d_query, d_held = jax.lax.fori_loop(call.first, call.last, send_and_step, carry)
    d_query, d_held = step(call.last, held, d_query, d_held)
    d_held = _rotated(d_held, -call.last)
    d_block = {
        name: d_held[name].astype(array.dtype) if name in names else None for name, array in block.items()
    }
    return d_query.astype(query.dtype), d_block, None


_ring.defvjp(_forward, _backward)
