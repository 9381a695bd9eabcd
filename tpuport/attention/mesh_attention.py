"""Attention on a mesh: batch over dp, heads over tp, queries over sp, each device running `flash` on its part.

`sharding_plan` decides what each device gets; this module gives it to the device.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T key/value length,
D head dimension of queries and keys, C of values.
"""

import dataclasses
import functools
import math
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
from tpuport.attention.ulysses import ulysses
from tpuport.errors import PortError
from tpuport.mesh import check_mesh

# The dimensions of each array: B, H, K, Q and T as above, "." for one that is never divided. Lower case marks lengths
# of mask arrays, which stay whole in "ulysses": there each device masks the whole sequence.
_DIMENSIONS: Final = {
    "query": "BHQ.", "key": "BKT.", "value": "BKT.", "keys_BT": "Bt", "queries_BQ": "Bq", "query_segments_BQ": "Bq",
    "key_segments_BT": "Bt", "bias_BT": "Bt", "sinks_H": "H", "offset": "",
}  # fmt: skip
_LENGTHS: Final = frozenset("QqTt")


@dataclass(frozen=True)
class _MeshCall:
    """What is known of one call when it is traced; hashable.

    Attributes:
        mesh: None inside code that is manual over some of its axes, where jax knows the mesh.
        axes: those that can still be divided over.
        band: the mask's numbers, without its arrays.
    """

    mesh: Mesh | None
    axes: frozenset[str]
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
    """Traced. Attention on a mesh, equal to that on one device, under jit or called eagerly; can be differentiated.

    Args:
        mask: anything but `dense`.
        settings: its mesh may have any of the axes dp, sp and tp; None is one device. In code that is manual over axes
            already, as in the body of a shard_map, those axes divide nothing: what a device holds is a call by itself.
        scale, softcap: as in `flash`; sinks_H: as in `reference.attention`.

    Raises:
        PortError: a dense mask, a mesh whose axes are not Auto, or heads that "ulysses" cannot divide.
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
    arrays |= {"query": query_BHQD, "key": key_BKTD, "value": value_BKTC}
    if sinks_H is not None:
        arrays["sinks_H"] = sinks_H
    axes = free_axes(mesh)
    plan = plan_sharding(CallSizes.of(query_BHQD, key_BKTD), mesh, settings.sequence)
    # Inside of manual code jax itself knows the mesh, and takes no other.
    if manual_axes():
        mesh = None
    padding = settings.padding
    # "zero" is not a mask, so it must not hide the keys that are added here to make parts equal.
    if mask.keys_BT is None:
        padding = "exact"
    call = _MeshCall(
        mesh=mesh,
        axes=frozenset(axes),
        plan=plan,
        band=band,
        scale=float(scale),
        softcap=softcap,
        padding=padding,
        interpret=settings.interpret,
    )
    if math.prod(axes.values()) == 1:
        return _attend_on_device(arrays, call)
    return _run_on_mesh(_move_to_mesh(arrays, call), call)


def _separate_arrays(mask: Mask) -> tuple[Mask, dict[str, jax.Array]]:
    """The mask's numbers, and its arrays by name; an offset that is traced counts as an array."""
    arrays = mask.present(ARRAYS)
    if not mask.has_band:
        return Mask(), arrays
    if isinstance(mask.offset, (int, np.integer)):
        return Mask(mask.left, mask.right, int(mask.offset)), arrays
    return Mask(mask.left, mask.right), arrays | {"offset": jnp.asarray(mask.offset, jnp.int32)}


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


def _partition_spec(name: str, array: jax.Array, plan: ShardingPlan) -> PartitionSpec:
    """How shard_map divides an array: evenly, or not at all if a device has to select its part itself."""
    axes: list[str | None] = []
    for letter in _dimension_letters(name, array, plan):
        split = _split_of(letter, plan)
        # Lengths have been padded until they divide evenly.
        is_even = split.is_even or letter in _LENGTHS
        axes.append(split.axis if is_even else None)
    return PartitionSpec(*axes)


def _move_to_mesh(arrays: dict[str, jax.Array], call: _MeshCall) -> dict[str, jax.Array]:
    """Arrays that eager code committed to other devices, moved to those of the mesh."""
    if call.mesh is None:
        return arrays
    everywhere, devices = NamedSharding(call.mesh, PartitionSpec()), set(call.mesh.devices.flat)

    def move(array: jax.Array) -> jax.Array:
        # jit places uncommitted arrays itself, without a whole copy on each device.
        if isinstance(array, Tracer) or not array.committed or array.sharding.device_set == devices:
            return array
        return jax.device_put(array, everywhere)

    return {name: move(array) for name, array in arrays.items()}


@functools.partial(jax.jit, static_argnames=("call",))
def _run_on_mesh(arrays: dict[str, jax.Array], call: _MeshCall) -> jax.Array:
    """Traced. The call on every device of the mesh."""
    plan = call.plan
    arrays = _pad_sequence(arrays, plan)
    out_BHQC = jax.shard_map(
        functools.partial(_attend_on_device, call=call),
        mesh=call.mesh,
        in_specs=({name: _partition_spec(name, array, plan) for name, array in arrays.items()},),
        out_specs=PartitionSpec(plan.batch.axis, plan.heads.axis, plan.queries.axis, None),
        axis_names=call.axes,
        check_vma=False,
    )(arrays)
    return out_BHQC[: plan.batch.size, : plan.heads.size, : plan.queries.size]


def _pad_sequence(arrays: dict[str, jax.Array], plan: ShardingPlan) -> dict[str, jax.Array]:
    """Traced. Queries and keys padded until sp divides them, the added keys hidden."""
    arrays = dict(arrays)
    if not plan.keys.is_even and plan.sequence == "ring":
        arrays.setdefault("keys_BT", jnp.ones((1, plan.keys.size), jnp.bool_))
    for name, array in arrays.items():
        letters = _dimension_letters(name, array, plan)
        padding = [_split_of(letter, plan).padding if letter in _LENGTHS else 0 for letter in letters]
        if any(padding):
            arrays[name] = jnp.pad(array, [(0, count) for count in padding])
    return arrays


def _attend_on_device(arrays: dict[str, jax.Array], call: _MeshCall) -> jax.Array:
    """Traced. One device's part [B, H, Q, C] of the output."""
    plan = call.plan
    arrays = {name: _select_part(name, array, plan) for name, array in arrays.items()}
    query, key, value = arrays.pop("query"), arrays.pop("key"), arrays.pop("value")
    sinks_H = arrays.pop("sinks_H", None)
    mask_parts: dict[str, Any] = arrays  # what is left, with the offset if it is traced
    mask = dataclasses.replace(call.band, **mask_parts)
    attend = functools.partial(
        flash, scale=call.scale, softcap=call.softcap, padding=call.padding, interpret=call.interpret
    )
    if plan.sequence == "ulysses":
        lengths = plan.queries.size, plan.keys.size
        return ulysses(attend, query, key, value, mask, sinks_H, _exchanged_kv_heads(plan), lengths)
    if plan.sequence == "ring":
        gradients = functools.partial(backward, scale=call.scale, softcap=call.softcap)
        out, lse = ring(attend, gradients, query, key, value, mask)
    else:
        if mask.has_band and plan.queries.axis is not None:
            first_query = jax.lax.axis_index("sp") * plan.queries.local
            mask = dataclasses.replace(mask, offset=mask.offset + first_query)
        out, lse = attend(query, key, value, mask)
    return apply_sinks(out, lse, sinks_H)


def _select_part(name: str, array: jax.Array, plan: ShardingPlan) -> jax.Array:
    """Traced. What this device needs of the dimensions that shard_map left whole because they do not divide evenly."""
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
    """Traced. The indices of this device's part, which repeats the last one beyond the end."""
    start = jax.lax.axis_index(split.axis) * split.local
    return jnp.minimum(start + jnp.arange(split.local), split.size - 1)


def _kv_head_indices(plan: ShardingPlan, block: int) -> jax.Array:
    """Traced. The key/value head, among those on this device, of every `block` query heads of this device."""
    heads, kv_heads = plan.heads, plan.kv_heads
    device = 0 if heads.axis is None else jax.lax.axis_index(heads.axis)
    first_heads = device * heads.local + jnp.arange(heads.local // block) * block
    indices = jnp.minimum(first_heads, heads.size - 1) // (heads.size // kv_heads.size)
    if kv_heads.axis is not None and kv_heads.is_even:
        indices -= device * kv_heads.local
    return indices


def _exchanged_kv_heads(plan: ShardingPlan) -> jax.Array | None:
    """Traced. The key/value heads in the order in which "ulysses" deals them out over sp; None: in their own order."""
    # Query heads in blocks of this size share a key/value head, on whichever device they are.
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
