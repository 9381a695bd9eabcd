"""Ring attention: keys and values stay divided over the sequence and travel from device
to device.

Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023 (arXiv:2310.01889). Each device computes its queries against the keys
that it holds while those of the next step are on their way, and merges the results. A
device holds two parts of the keys at a time, in the backward pass as well: there the
gradients of keys and values travel with them.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length
(of one device), D head dimension of queries and keys, C of values.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention.mask import Mask

AXIS: Final = "sp"
_TRAVEL_WITH_KEYS: Final = ("keys_BT", "key_segments_BT", "bias_BT")
_STAY_WITH_QUERIES: Final = ("queries_BQ", "query_segments_BQ")
_DIFFERENTIABLE: Final = ("key", "value", "bias_BT")

# By name. jax gives a constant back as an array of numpy.
Arrays = dict[str, Any]
Attend = Callable[..., tuple[jax.Array, jax.Array]]
Gradients = Callable[..., tuple[jax.Array | None, ...]]


def merge(
    out_BHQC: Float[Array, "B H Q C"],
    lse_BHQ: Float[Array, "B H Q"],
    other_BHQC: Float[Array, "B H Q C"],
    other_lse_BHQ: Float[Array, "B H Q"],
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. Attention to the keys of two disjoint sets, float32, from the attention
    to each.

    Each output is a mean of values, weighted by exp(score), and exp(lse) is the sum of
    the weights, so that
        lse = log(exp(lse_1) + exp(lse_2))
        out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2
    (Liu et al. 2023, section 3, after Milakov and Gimelshein 2018, "Online normalizer
    calculation for softmax"). A row that sees no key in either set, both lse -inf,
    gives zeros and -inf.
    """
    lse = jnp.logaddexp(lse_BHQ, other_lse_BHQ)
    weight = _share_of_sum(lse_BHQ, lse)[..., None]
    other_weight = _share_of_sum(other_lse_BHQ, lse)[..., None]
    return out_BHQC.astype(jnp.float32) * weight + other_BHQC.astype(
        jnp.float32
    ) * other_weight, lse


def _share_of_sum(part_lse_BHQ: jax.Array, lse_BHQ: jax.Array) -> jax.Array:
    """Traced. The share of a part in the sum of the whole softmax, 0 for a part of
    which no key is seen.
    """
    # The inner selection keeps -inf - -inf, which is NaN, out of the gradient as well.
    finite_lse = jnp.where(lse_BHQ > -jnp.inf, lse_BHQ, 0.0)
    return jnp.where(part_lse_BHQ > -jnp.inf, jnp.exp(part_lse_BHQ - finite_lse), 0.0)


def ring(
    attend: Attend,
    gradients: Gradients,
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. One device's rows of attention to the keys of all devices along sp, and
    the log of their softmax's sum.

    For code that is manual over sp. Both results can be differentiated.

    Args:
        attend: from query, key, value and mask to output and log-sum-exp, as `flash`.
        gradients: as `backward`, which takes those two and their cotangents besides.
        query_BHQD, key_BKTD, value_BKTC: this device's part of each.
        mask: its arrays are this device's parts, its offset is that of the whole
            sequence's first query.
    """
    devices, queries, keys = (
        jax.lax.axis_size(AXIS),
        query_BHQD.shape[2],
        key_BKTD.shape[2],
    )
    first, last = 0, devices - 1
    if mask.has_band and isinstance(mask.offset, int):
        first, last = needed_shifts(mask, devices, queries, keys)
    traveling = {"key": key_BKTD, "value": value_BKTC} | mask.present(_TRAVEL_WITH_KEYS)
    staying = {"offset": jnp.asarray(mask.offset, jnp.int32)} | mask.present(
        _STAY_WITH_QUERIES
    )
    call = _RingCall(attend, gradients, Mask(mask.left, mask.right), first, last)
    return _ring(call, query_BHQD, traveling, staying)


def needed_shifts(mask: Mask, devices: int, queries: int, keys: int) -> tuple[int, int]:
    """The first and the last of the steps in which some device sees a key; a step is
    how far the keys have traveled.

    A window needs only the parts next to its own: negative numbers are parts of later
    keys. The steps between the two are all computed, or skipped by the devices that see
    nothing in them.
    """

    def is_needed(shift: int) -> bool:
        offsets = (
            _relative_offset(mask.offset, i, shift, devices, queries, keys)
            for i in range(devices)
        )
        return any(_sees_any(mask, offset, queries, keys) for offset in offsets)

    needed = list(filter(is_needed, range(devices)))
    # One step is computed in any case: it gives the zeros of queries that see no key.
    if not needed:
        return 0, 0
    # The shifts form a circle. Steps run over all of it but the longest gap between two
    # needed shifts.
    previous = [needed[-1], *needed[:-1]]
    gaps = [
        (shift - before - 1) % devices
        for before, shift in zip(previous, needed, strict=True)
    ]
    longest = max(gaps)
    start, count = needed[gaps.index(longest)], devices - longest
    # Steps that begin before the circle closes, and go on after it, are counted from a
    # negative number.
    if start > 0 and start + count > devices:
        start -= devices
    return start, start + count - 1


def _relative_offset(
    offset: Any, device: Any, shift: Any, devices: int, queries: int, keys: int
) -> Any:
    """Position of the device's first query among the keys that it holds after `shift`
    steps; numbers or traced.
    """
    return offset + device * queries - (device - shift) % devices * keys


def _sees_any(mask: Mask, offset: Any, queries: int, keys: int) -> Any:
    """Whether the band lets some query see some key; a bool, or traced."""
    visible = True
    if mask.right is not None:
        visible &= -(offset + queries - 1) <= mask.right
    if mask.left is not None:
        visible &= keys - 1 - offset >= -mask.left
    return visible


def _shift_along_ring(arrays: Any, distance: int) -> Any:
    """Traced. What the device `distance` positions before this one holds."""
    devices = jax.lax.axis_size(AXIS)
    if distance % devices == 0:
        return arrays
    pairs = [(device, (device + distance) % devices) for device in range(devices)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, AXIS, pairs), arrays)


@dataclasses.dataclass(frozen=True)
class _RingCall:
    """What is known of one call when it is traced: the two functions, the band without
    its offset, and the steps.
    """

    attend: Attend
    gradients: Gradients
    band: Mask
    first: int
    last: int

    def visit(
        self,
        use: Any,
        unchanged: Any,
        shift: Any,
        query: jax.Array,
        current: Arrays,
        staying: Arrays,
    ) -> Any:
        """Traced. `use(mask)` with the keys of step `shift`, or `unchanged` if the band
        hides them all.
        """
        parts = staying | current
        # The offset is that of the whole sequence, and counts below.
        mask_parts = {
            name: parts[name] for name in parts.keys() - {"key", "value", "offset"}
        }
        mask = dataclasses.replace(self.band, **mask_parts)
        if not mask.has_band:
            return use(mask)
        queries, keys = query.shape[2], current["key"].shape[2]
        device, devices = jax.lax.axis_index(AXIS), jax.lax.axis_size(AXIS)
        offset = _relative_offset(
            staying["offset"], device, shift, devices, queries, keys
        )
        mask = dataclasses.replace(mask, offset=offset)
        return jax.lax.cond(
            _sees_any(mask, offset, queries, keys), lambda: use(mask), lambda: unchanged
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(
    call: _RingCall, query: jax.Array, traveling: Arrays, staying: Arrays
) -> tuple[jax.Array, jax.Array]:
    return _forward(call, query, traveling, staying)[0]


def _forward(
    call: _RingCall, query: jax.Array, traveling: Arrays, staying: Arrays
) -> tuple[Any, Any]:
    """Traced. Output and log-sum-exp, and what the backward pass needs, which does not
    grow with the steps.
    """

    def step(shift: Any, current: Arrays, state: Any) -> Any:
        def use(mask: Mask) -> Any:
            out, lse = call.attend(query, current["key"], current["value"], mask)
            total_out, total_lse = state
            return merge(total_out, total_lse, out, lse)

        return call.visit(use, state, shift, query, current, staying)

    def send_and_step(shift: Any, carry: Any) -> Any:
        current, state = carry
        # Sent before the step uses them, so that the links work while the device
        # computes.
        received = _shift_along_ring(current, 1)
        return received, step(shift, current, state)

    shape = (*query.shape[:3], traveling["value"].shape[3])
    state = jnp.zeros(shape, jnp.float32), jnp.full(shape[:3], -jnp.inf, jnp.float32)
    carry = _shift_along_ring(traveling, call.first), state
    current, state = jax.lax.fori_loop(call.first, call.last, send_and_step, carry)
    out, lse = step(call.last, current, state)
    out = out.astype(query.dtype)
    return (out, lse), (query, traveling, staying, out, lse)


def _backward(
    call: _RingCall, residuals: Any, cotangents: Any
) -> tuple[jax.Array, Any, None]:
    """Traced. A second round, in which the gradients of each part of the keys are
    summed and travel home with it.

    With the log-sum-exp over all keys, the weight of a key is exp(score - lse) whatever
    the other keys are, so each part's gradients are those of attention to that part
    alone with this log-sum-exp instead of its own.
    """
    query, traveling, staying, out, lse = residuals
    names = [name for name in _DIFFERENTIABLE if name in traveling]

    def step(shift: Any, current: Arrays, d_query: jax.Array, d_current: Arrays) -> Any:
        def use(mask: Mask) -> Any:
            d_step, *d_keys = call.gradients(
                query, current["key"], current["value"], mask, out, lse, *cotangents
            )
            # The last gradient, of the bias, is None and has no name if there is no
            # bias.
            update = d_step, dict(zip(names, d_keys, strict=False))
            return jax.tree.map(
                lambda total, x: total + x.astype(jnp.float32),
                (d_query, d_current),
                update,
            )

        return call.visit(use, (d_query, d_current), shift, query, current, staying)

    def send_and_step(shift: Any, carry: Any) -> Any:
        current, d_query, d_current = carry
        received = _shift_along_ring(current, 1)
        d_query, d_current = step(shift, current, d_query, d_current)
        return received, d_query, _shift_along_ring(d_current, 1)

    zeros = {name: jnp.zeros(traveling[name].shape, jnp.float32) for name in names}
    carry = (
        _shift_along_ring(traveling, call.first),
        jnp.zeros(query.shape, jnp.float32),
        zeros,
    )
    current, d_query, d_current = jax.lax.fori_loop(
        call.first, call.last, send_and_step, carry
    )
    d_query, d_current = step(call.last, current, d_query, d_current)
    d_current = _shift_along_ring(d_current, -call.last)
    # Arrays of whole numbers have no gradient.
    d_traveling: dict[str, Any] = dict.fromkeys(traveling)
    for name in names:
        d_traveling[name] = d_current[name].astype(traveling[name].dtype)
    return d_query.astype(query.dtype), d_traveling, None


_ring.defvjp(_forward, _backward)
