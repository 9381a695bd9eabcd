"""Attention on a mesh: batch over dp, heads over tp, queries over sp, each device
running `flash` on its part.

`sharding_plan` decides what each device gets; this module gives it to the device.
Queries, keys and values are the parts that they were joined from, such as those of a
video and those of its text, each of which is divided by itself.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T
key/value length, D head dimension of queries and keys, C of values.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from tpuport.attention.attention_settings import Settings
from tpuport.attention.backward import backward
from tpuport.attention.flash import flash
from tpuport.attention.mask import ARRAYS, Mask
from tpuport.attention.provenance.joined_sequences import Parts, parts_along
from tpuport.attention.reference import apply_sinks
from tpuport.attention.ring import ring
from tpuport.attention.sharding_plan import (
    CallSizes,
    ShardingPlan,
    Split,
    free_axes,
    manual_axes,
    plan_sharding,
)
from tpuport.attention.shared_parts import SharedParts
from tpuport.attention.ulysses import ulysses
from tpuport.errors import PortError
from tpuport.hardware.mesh import check_mesh

# The dimensions of each array: B, H, K, Q and T as above, "." for one that is never
# divided. Lower case marks lengths of mask arrays, which stay whole in "ulysses": there
# each device masks the whole sequence.
_DIMENSIONS: Final = {
    "query": "BHQ.", "key": "BKT.", "value": "BKT.", "keys_BT": "Bt", "queries_BQ": "Bq", "query_segments_BQ": "Bq",
    "key_segments_BT": "Bt", "bias_BT": "Bt", "sinks_H": "H", "offset": "",
}  # fmt: skip
_LENGTHS: Final = frozenset("QqTt")
# Whose tokens the last axis of each of these is about.
_OF_QUERIES: Final = ("queries_BQ", "query_segments_BQ")
_OF_KEYS: Final = ("keys_BT", "key_segments_BT", "bias_BT")

# Of the call, by name: those of queries, keys and values are tuples of parts.
Arrays = dict[str, Any]


@dataclass(frozen=True)
class _MeshCall:
    """What is known of one call when it is traced; hashable.

    Attributes:
        mesh: None inside code that is manual over some of its axes, where jax knows the
            mesh.
        axes: those that can still be divided over.
        queries, keys: the parts of both sequences, and what each device has of them.
        band: the mask's numbers, without its arrays.
    """

    mesh: Mesh | None
    axes: frozenset[str]
    queries: SharedParts
    keys: SharedParts
    plan: ShardingPlan
    band: Mask
    scale: float
    softcap: float | None
    padding: str
    interpret: bool


def attention_on_mesh(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    settings: Settings,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: Float[Array, " H"] | None = None,
) -> Float[Array, "B H Q C"]:
    """Traced. Attention on a mesh, equal to that on one device, under jit or called
    eagerly; can be differentiated.

    Args:
        mask: anything but `dense`.
        settings: its mesh may have any of the axes dp, sp and tp; None is one device.
            In code that is manual over axes already, as in the body of a shard_map,
            those axes divide nothing: what a device holds is a call by itself.
        scale, softcap: as in `flash`; sinks_H: as in `reference.attention`.

    Raises:
        PortError: a dense mask, a mesh whose axes are not Auto, or heads that "ulysses"
            cannot divide.
    """
    if mask.dense is not None:
        raise PortError(
            "a dense mask cannot be divided by the fused kernel",
            where="mask.dense",
            fix="call tpuport.attention.attention, which takes any mask",
        )
    mesh = settings.mesh
    check_mesh(mesh)
    # The numbers decide which program runs, the arrays are its arguments.
    band, arrays = _separate_arrays(mask)
    if sinks_H is not None:
        arrays["sinks_H"] = sinks_H
    padding = settings.padding
    # "zero" is not a mask, so it must not hide the keys that are added here to make
    # parts equal.
    if mask.keys_BT is None:
        padding = "exact"
    axes = free_axes(mesh)
    query, key, value = (query_BHQD,), (key_BKTD,), (value_BKTC,)
    # With a band, positions count.
    if not mask.has_band:
        query, key, value = _find_parts(
            query_BHQD, key_BKTD, value_BKTC, axes.get("sp", 1), padding
        )
    queries, keys = (
        SharedParts.of(query, axes.get("sp", 1)),
        SharedParts.of(key, axes.get("sp", 1)),
    )
    arrays = _arrange_masks(arrays, queries, keys)
    arrays |= {
        "query": queries.pad(query),
        "key": keys.pad(key),
        "value": keys.pad(value),
    }
    sizes = CallSizes.of(query_BHQD, key_BKTD)
    sizes = dataclasses.replace(sizes, queries=queries.size, keys=keys.size)
    plan = plan_sharding(sizes, mesh, settings.sequence)
    # Inside of manual code jax itself knows the mesh, and takes no other.
    if manual_axes():
        mesh = None
    call = _MeshCall(
        mesh=mesh,
        axes=frozenset(axes),
        queries=queries,
        keys=keys,
        plan=plan,
        band=band,
        scale=float(scale),
        softcap=softcap,
        padding=padding,
        interpret=settings.interpret,
    )
    if math.prod(axes.values()) == 1:
        [out_BHQC] = _attend_on_device(arrays, call)
        return out_BHQC
    # Joined out here, where code that cuts the result finds the parts.
    return _join(_run_on_mesh(_move_to_mesh(arrays, call), call))


def _find_parts(
    query: jax.Array, key: jax.Array, value: jax.Array, devices: int, padding: str
) -> tuple[Parts, Parts, Parts]:
    """Traced. The parts that queries, keys and values were joined from; each alone
    where it is not to be divided so.
    """
    if devices == 1:
        return (query,), (key,), (value,)
    queries, keys, values = (parts_along(array, 2) for array in (query, key, value))
    shared = SharedParts.of(keys, devices)
    # A mode of padding that is not a mask does not hide what is added to make shares
    # equal.
    can_pad = shared.is_even or padding != "zero"
    if shared != SharedParts.of(values, devices) or not can_pad:
        keys, values = (key,), (value,)
    return queries, keys, values


def _arrange_masks(arrays: Arrays, queries: SharedParts, keys: SharedParts) -> Arrays:
    """Traced. The mask's arrays in the order in which devices have queries and keys,
    added keys hidden.
    """
    arrays = dict(arrays)
    if not keys.is_even:
        arrays.setdefault("keys_BT", jnp.ones((1, sum(keys.lengths)), jnp.bool_))
    for names, sequence in ((_OF_QUERIES, queries), (_OF_KEYS, keys)):
        for name in arrays.keys() & set(names):
            arrays[name] = sequence.arrange(arrays[name])
    return arrays


def _separate_arrays(mask: Mask) -> tuple[Mask, Arrays]:
    """The mask's numbers, and its arrays by name; an offset that is traced counts as an
    array.
    """
    arrays = mask.present(ARRAYS)
    if not mask.has_band:
        return Mask(), arrays
    if isinstance(mask.offset, (int, np.integer)):
        return Mask(mask.left, mask.right, int(mask.offset)), arrays
    return Mask(mask.left, mask.right), arrays | {
        "offset": jnp.asarray(mask.offset, jnp.int32)
    }


def _dimension_letters(name: str, array: jax.Array, plan: ShardingPlan) -> str:
    """The array's dimensions; a batch of 1 that all rows share is never divided."""
    letters = _DIMENSIONS[name]
    # Each device needs all of the one row.
    if letters.startswith("B") and array.shape[0] == 1 and plan.batch.size > 1:
        return "." + letters[1:]
    return letters


def _split_of(letter: str, plan: ShardingPlan) -> Split:
    """How the plan divides a dimension of `_DIMENSIONS`."""
    splits = {
        "B": plan.batch, "H": plan.heads, "K": plan.kv_heads, "Q": plan.queries, "T": plan.keys,
        ".": Split.undivided(1),
    }  # fmt: skip
    split = splits[letter.upper()]
    if letter.islower() and plan.sequence == "ulysses":
        return Split.undivided(split.size)
    return split


def _partition_spec(name: str, array: jax.Array, call: _MeshCall) -> PartitionSpec:
    """How shard_map divides an array: evenly, or not at all if a device has to select
    its part itself.
    """
    axes: list[str | None] = []
    for letter in _dimension_letters(name, array, call.plan):
        split = _split_of(letter, call.plan)
        # Lengths have been padded until they divide evenly.
        is_even = split.is_even or letter in _LENGTHS
        # Of joined keys a device gathers all shares itself, in one piece.
        if letter == "T" and call.keys.is_joined:
            axes.append("sp")
        else:
            axes.append(split.axis if is_even else None)
    return PartitionSpec(*axes)


def _move_to_mesh(arrays: Arrays, call: _MeshCall) -> Arrays:
    """Arrays that eager code committed to other devices, moved to those of the mesh."""
    if call.mesh is None:
        return arrays
    everywhere, devices = (
        NamedSharding(call.mesh, PartitionSpec()),
        set(call.mesh.devices.flat),
    )

    def move(array: jax.Array) -> jax.Array:
        # jit places uncommitted arrays itself, without a whole copy on each device.
        if (
            isinstance(array, Tracer)
            or not array.committed
            or array.sharding.device_set == devices
        ):
            return array
        return jax.device_put(array, everywhere)

    return jax.tree.map(move, arrays)


@functools.partial(jax.jit, static_argnames=("call",))
def _run_on_mesh(arrays: Arrays, call: _MeshCall) -> Parts:
    """Traced. The call on every device of the mesh: the output for each part of the
    queries.
    """
    plan = call.plan
    arrays = _pad_sequence(arrays, plan)
    outputs = jax.shard_map(
        functools.partial(_attend_on_device, call=call),
        mesh=call.mesh,
        in_specs=(_map_arrays(_partition_spec, arrays, call),),
        out_specs=PartitionSpec(
            plan.batch.axis, plan.heads.axis, plan.queries.axis, None
        ),
        axis_names=call.axes,
        check_vma=False,
    )(arrays)
    return tuple(
        out_BHQC[: plan.batch.size, : plan.heads.size, :length]
        for out_BHQC, length in zip(outputs, call.queries.lengths, strict=True)
    )


def _map_arrays(function: Callable[..., Any], arrays: Arrays, *args: Any) -> Arrays:
    """`function(name, array, *args)` of each array; parts of a sequence have the same
    name.
    """
    return {
        name: jax.tree.map(lambda array, name=name: function(name, array, *args), value)
        for name, value in arrays.items()
    }


def _pad_sequence(arrays: Arrays, plan: ShardingPlan) -> Arrays:
    """Traced. Queries and keys padded until sp divides them, the added keys hidden."""
    arrays = dict(arrays)
    if not plan.keys.is_even and plan.sequence == "ring":
        arrays.setdefault("keys_BT", jnp.ones((1, plan.keys.size), jnp.bool_))
    return _map_arrays(_pad_lengths, arrays, plan)


def _pad_lengths(name: str, array: jax.Array, plan: ShardingPlan) -> jax.Array:
    letters = _dimension_letters(name, array, plan)
    padding = [
        _split_of(letter, plan).padding if letter in _LENGTHS else 0
        for letter in letters
    ]
    if not any(padding):
        return array
    return jnp.pad(array, [(0, count) for count in padding])


def _attend_on_device(arrays: Arrays, call: _MeshCall) -> Parts:
    """Traced. One device's share [B, H, Q, C] of the output for each part of the
    queries.
    """
    plan = call.plan
    arrays = _map_arrays(_select_part, arrays, plan)
    query, key, value = (_join(arrays.pop(name)) for name in ("query", "key", "value"))
    if call.keys.is_joined and plan.sequence == "gather":
        key, value = (
            jax.lax.all_gather(array, "sp", axis=2, tiled=True)
            for array in (key, value)
        )
    sinks_H = arrays.pop("sinks_H", None)
    mask_parts: dict[str, Any] = arrays  # what is left, with the offset if it is traced
    mask = dataclasses.replace(call.band, **mask_parts)
    attend = functools.partial(
        flash,
        scale=call.scale,
        softcap=call.softcap,
        padding=call.padding,
        interpret=call.interpret,
    )
    if plan.sequence == "ulysses":
        lengths = plan.queries.size, plan.keys.size
        return call.queries.split(
            ulysses(
                attend,
                query,
                key,
                value,
                mask,
                sinks_H,
                _exchanged_kv_heads(plan),
                lengths,
            )
        )
    if plan.sequence == "ring":
        gradients = functools.partial(backward, scale=call.scale, softcap=call.softcap)
        out, lse = ring(attend, gradients, query, key, value, mask)
    else:
        if mask.has_band and plan.queries.axis is not None:
            first_query = jax.lax.axis_index("sp") * plan.queries.local
            mask = dataclasses.replace(mask, offset=mask.offset + first_query)
        out, lse = attend(query, key, value, mask)
    return call.queries.split(apply_sinks(out, lse, sinks_H))


def _join(parts: Parts) -> jax.Array:
    return jnp.concatenate(parts, axis=2)


def _select_part(name: str, array: jax.Array, plan: ShardingPlan) -> jax.Array:
    """Traced. What this device needs of the dimensions that shard_map left whole
    because they do not divide evenly.
    """
    for axis, letter in enumerate(_dimension_letters(name, array, plan)):
        if letter not in "BHK" or _split_of(letter, plan).is_even:
            continue
        if letter == "K":
            indices = _kv_head_indices(plan, plan.heads.local // plan.kv_heads.local)
        else:
            indices = _local_indices(_split_of(letter, plan))
        array = _take(array, indices, axis)
    return array


def _local_indices(split: Split) -> jax.Array:
    """Traced. The indices of this device's part, which repeats the last one beyond the
    end.
    """
    start = jax.lax.axis_index(split.axis) * split.local
    return jnp.minimum(start + jnp.arange(split.local), split.size - 1)


def _kv_head_indices(plan: ShardingPlan, block: int) -> jax.Array:
    """Traced. The key/value head, among those on this device, of every `block` query
    heads of this device.
    """
    heads, kv_heads = plan.heads, plan.kv_heads
    device = 0 if heads.axis is None else jax.lax.axis_index(heads.axis)
    first_heads = device * heads.local + jnp.arange(heads.local // block) * block
    indices = jnp.minimum(first_heads, heads.size - 1) // (heads.size // kv_heads.size)
    if kv_heads.axis is not None and kv_heads.is_even:
        indices -= device * kv_heads.local
    return indices


def _exchanged_kv_heads(plan: ShardingPlan) -> jax.Array | None:
    """Traced. The key/value heads in the order in which "ulysses" deals them out over
    sp; None: in their own order.
    """
    # Query heads in blocks of this size share a key/value head, on whichever device
    # they are.
    group = plan.heads.size // plan.kv_heads.size
    block = math.gcd(plan.heads.local // plan.queries.parts, group)
    if block == group and plan.kv_heads.parts == plan.heads.parts:
        return None
    return _kv_head_indices(plan, block)


def _take(array: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
    """Traced. `indices` of an axis; a single one is a slice, which costs no gather."""
    if indices.shape[0] == 1:
        return jax.lax.dynamic_slice_in_dim(array, indices[0], 1, axis)
    return jnp.take(array, indices, axis=axis, mode="clip")
