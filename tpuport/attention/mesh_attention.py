"""Attention on a mesh: batch over dp, heads over tp, queries over sp, each device running `flash` on its part.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T key/value length,
D head dimension of queries and keys, C of values.

`sharing` decides what each device gets; here it gets it.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from tpuport.attention.backward import backward
from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask
from tpuport.attention.padding import check_mode
from tpuport.attention.ring import ring
from tpuport.attention.sharding_plan import Plan, Share, free_axes, manual_axes, plan
from tpuport.attention.sinks import apply_sinks
from tpuport.attention.ulysses import ulysses
from tpuport.errors import PortError
from tpuport.mesh import check_mesh

# The dimensions of every array that a device gets a part of; lower case: whole in "ulysses", where the heads move.
_DIMENSIONS = {
    "query": "BHQ.", "key": "BKT.", "value": "BKT.", "keys_BT": "Bt", "queries_BQ": "Bq", "query_segments_BQ": "Bq",
    "key_segments_BT": "Bt", "bias_BT": "Bt", "sinks_H": "H", "offset": "",
}  # fmt: skip
_PARTS = ("keys_BT", "queries_BQ", "query_segments_BQ", "key_segments_BT", "bias_BT")


@dataclass(frozen=True)
class _Call:
    """What of one call is known when it is traced: the mask's band, the plan and the options of `flash`."""

    mesh: Mesh | None
    axes: frozenset[str]
    plan: Plan
    band: Mask
    scale: float
    softcap: float | None
    padding: str
    interpret: bool

    @property
    def options(self) -> dict[str, Any]:
        names = ("scale", "softcap", "padding", "interpret")
        return {name: getattr(self, name) for name in names}


def sharded(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    *,
    mesh: Mesh | None,
    scale: float,
    softcap: float | None = None,
    sinks_H: Float[Array, " H"] | None = None,
    sequence: str = "gather",
    padding: str = "exact",
    interpret: bool = False,
) -> Float[Array, "B H Q C"]:
    """Traced. Attention on a mesh, equal to that on one device, under jit or called eagerly; can be differentiated.

    Args:
        mask: anything but `dense`.
        mesh: with any of the axes dp, sp and tp; None is one device. In code that is manual over axes already, as in
            the body of a shard_map, those axes share out nothing: what each device holds is a call of its own.
        sequence: where sp has the queries and keys of one sequence: "gather" brings all keys to each device, "ring"
            sends them round, "ulysses" swaps the sharding of the sequence for one of the heads.
        scale, softcap, padding, interpret: as in `flash`; sinks_H: as in `reference.attention`.

    Raises:
        PortError: a dense mask, an unknown `sequence` or `padding`, a mesh whose axes are not Auto, or heads that
            "ulysses" cannot share out.
    """
    if mask.dense is not None:
        raise PortError(
            "a dense mask cannot be shared out by the fused kernel",
            where="mask.dense",
            fix="call tpuport.attention.attention, which takes any mask",
        )
    check_mesh(mesh)
    check_mode(padding)
    batch, heads, queries, _ = query_BHQD.shape
    kv_heads, keys = key_BKTD.shape[1:3]
    chosen = plan(
        batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, mesh=mesh, sequence=sequence
    )
    free = free_axes(mesh)
    band, arrays = _split(mask)
    arrays |= {"query": query_BHQD, "key": key_BKTD, "value": value_BKTC}
    if sinks_H is not None:
        arrays["sinks_H"] = sinks_H
    # "zero" is no mask, and may not serve for keys that are filled up here.
    padding = padding if mask.keys_BT is not None else "exact"
    outer = None if manual_axes() else mesh
    call = _Call(outer, frozenset(free), chosen, band, float(scale), softcap, padding, interpret)
    return _local(arrays, call) if math.prod(free.values()) == 1 else _run(_placed(arrays, call), call)


def _split(mask: Mask) -> tuple[Mask, dict[str, jax.Array]]:
    """The mask's numbers, and its arrays by name."""
    arrays = {name: getattr(mask, name) for name in _PARTS if getattr(mask, name) is not None}
    offset = mask.offset
    if isinstance(offset, (int, np.integer)) or not mask.has_band:
        return Mask(mask.left, mask.right, int(offset) if mask.has_band else 0), arrays
    return Mask(mask.left, mask.right), arrays | {"offset": jnp.asarray(offset, jnp.int32)}


def _letters(name: str, array: jax.Array, plan: Plan) -> str:
    """The array's dimensions; "." is one that stays as it is, as a batch of 1 that stands for every row."""
    letters = _DIMENSIONS[name]
    one_for_all = letters.startswith("B") and array.shape[0] == 1
    return "." + letters[1:] if one_for_all and plan.batch.size > 1 else letters


def _specs(arrays: dict[str, jax.Array], plan: Plan) -> dict[str, PartitionSpec]:
    """How shard_map cuts each array: evenly, or not at all where a device has to choose its part itself."""

    def axis(letter: str) -> str | None:
        if letter == ".":
            return None
        share = plan.share(letter)
        return share.axis if share.is_even or letter in "QqTt" else None

    return {name: PartitionSpec(*map(axis, _letters(name, array, plan))) for name, array in arrays.items()}


def _placed(arrays: dict[str, jax.Array], call: _Call) -> dict[str, jax.Array]:
    """Arrays that eager code keeps on other devices than the mesh's, put on those."""
    if call.mesh is None:
        return arrays
    everywhere, devices = NamedSharding(call.mesh, PartitionSpec()), set(call.mesh.devices.flat)

    def place(array: jax.Array) -> jax.Array:
        # What is not committed to a device jit puts itself, without a whole copy on each.
        elsewhere = not isinstance(array, Tracer) and array.committed and array.sharding.device_set != devices
        return jax.device_put(array, everywhere) if elsewhere else array

    return {name: place(array) for name, array in arrays.items()}


@functools.partial(jax.jit, static_argnames=("call",))
def _run(arrays: dict[str, jax.Array], call: _Call) -> jax.Array:
    """Traced. The call on every device of the mesh."""
    plan = call.plan
    arrays = _padded(arrays, plan)
    out_BHQC = jax.shard_map(
        functools.partial(_local, call=call),
        mesh=call.mesh,
        in_specs=(_specs(arrays, plan),),
        out_specs=PartitionSpec(plan.batch.axis, plan.heads.axis, plan.queries.axis, None),
        axis_names=call.axes,
        check_vma=False,
    )(arrays)
    return out_BHQC[: plan.batch.size, : plan.heads.size, : plan.queries.size]


def _padded(arrays: dict[str, jax.Array], plan: Plan) -> dict[str, jax.Array]:
    """Traced. Queries and keys filled up to what sp divides, the keys' rest hidden."""
    arrays = dict(arrays)
    if not plan.keys.is_even and plan.sequence == "ring" and "keys_BT" not in arrays:
        arrays["keys_BT"] = jnp.ones((1, plan.keys.size), jnp.bool_)
    for name, array in arrays.items():
        letters = _letters(name, array, plan)
        rest = [0 if letter not in "QqTt" else plan.share(letter).rest for letter in letters]
        if any(rest):
            arrays[name] = jnp.pad(array, [(0, count) for count in rest])
    return arrays


def _local(arrays: dict[str, jax.Array], call: _Call) -> jax.Array:
    """Traced. One device's part [B, H, Q, C] of the output."""
    plan = call.plan
    arrays = {name: _own(name, array, plan) for name, array in arrays.items()}
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    sinks_H = arrays.get("sinks_H")
    parts = {name: arrays[name] for name in _PARTS if name in arrays}
    mask = dataclasses.replace(call.band, offset=arrays.get("offset", call.band.offset), **parts)
    attend = functools.partial(flash, **call.options)
    if plan.sequence == "ulysses":
        lengths = plan.queries.size, plan.keys.size
        return ulysses(attend, query, key, value, mask, sinks_H, _exchanged_kv_heads(plan), lengths)
    if plan.sequence == "ring":
        gradients = functools.partial(backward, scale=call.scale, softcap=call.softcap)
        out, lse = ring(attend, gradients, query, key, value, mask)
    else:
        if mask.has_band and plan.queries.axis is not None:
            mask = dataclasses.replace(
                mask, offset=mask.offset + jax.lax.axis_index("sp") * plan.queries.local
            )
        out, lse = attend(query, key, value, mask)
    return out if sinks_H is None else apply_sinks(out, lse, sinks_H)


def _own(name: str, array: jax.Array, plan: Plan) -> jax.Array:
    """Traced. What this device needs of an array that shard_map gave it whole."""
    for dimension, letter in enumerate(_letters(name, array, plan)):
        if letter in "BH" and not plan.share(letter).is_even:
            array = _take(array, _indices(plan.share(letter)), dimension)
        elif letter == "K" and not plan.kv_heads.is_even:
            array = _take(array, _kv_indices(plan, plan.heads.local // plan.kv_heads.local), dimension)
    return array


def _indices(share: Share) -> jax.Array:
    """Traced. The indices of this device's part; behind the end it repeats the last."""
    start = jax.lax.axis_index(share.axis) * share.local
    return jnp.minimum(start + jnp.arange(share.local), share.size - 1)


def _kv_indices(plan: Plan, block: int) -> jax.Array:
    """Traced. The key/value head, as this device counts, of every `block` query heads of this device."""
    heads, kv_heads = plan.heads, plan.kv_heads
    device = 0 if heads.axis is None else jax.lax.axis_index(heads.axis)
    first = device * heads.local + jnp.arange(heads.local // block) * block
    indices = jnp.minimum(first, heads.size - 1) // (heads.size // kv_heads.size)
    return indices - device * kv_heads.local if kv_heads.axis is not None and kv_heads.is_even else indices


def _exchanged_kv_heads(plan: Plan) -> jax.Array | None:
    """Traced. The key/value heads in the order in which "ulysses" deals them out over sp; None: as they stand."""
    group = plan.heads.size // plan.kv_heads.size
    block = math.gcd(plan.heads.local // plan.queries.parts, group)
    stand = block == group and plan.kv_heads.parts == plan.heads.parts
    return None if stand else _kv_indices(plan, block)


def _take(array: jax.Array, indices: jax.Array, dimension: int) -> jax.Array:
    """Traced. `indices` of a dimension; one alone is a slice, which costs no gather."""
    if indices.shape[0] == 1:
        return jax.lax.dynamic_slice_in_dim(array, indices[0], 1, dimension)
    return jnp.take(array, indices, axis=dimension, mode="clip")
