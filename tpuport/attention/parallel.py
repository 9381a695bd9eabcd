"""Attention on a mesh: batch over dp, heads over tp, queries over sp, each device running `flash` on its part.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T key/value length,
D head dimension of queries and keys, C of values.

A dimension that its axis does not divide costs padding or repeated work; `plan` decides, and says why.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from tpuport.attention.backward import backward
from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask
from tpuport.attention.ring import ring
from tpuport.attention.sinks import apply_sinks
from tpuport.attention.ulysses import ulysses
from tpuport.errors import PortError
from tpuport.mesh import AXES, check_mesh

SEQUENCES = ("gather", "ring", "ulysses")
# The dimensions of every array that a device gets a part of; lower case: whole in "ulysses", where the heads move.
_DIMENSIONS = {
    "query": "BHQ.", "key": "BKT.", "value": "BKT.", "keys_BT": "Bt", "queries_BQ": "Bq", "query_segments_BQ": "Bq",
    "key_segments_BT": "Bt", "bias_BT": "Bt", "sinks_H": "H", "offset": "",
}  # fmt: skip
_PARTS = ("keys_BT", "queries_BQ", "query_segments_BQ", "key_segments_BT", "bias_BT")
# Costs are counted in bytes of a TPU's memory that are moved in the same time, for every unit of the head dimension:
# v4 to v6e do 170 to 560 operations in the time of one byte, and move 4 to 5 bytes in that of one between chips.
_OPERATIONS = 240
_LINK = 4
_BYTES = 2  # of one number, in bf16


@dataclass(frozen=True)
class Share:
    """How one dimension is shared out.

    Attributes:
        size: of the whole.
        local: what one device computes; where parts * local is more than size, the rest is padding.
        axis: the mesh axis that shares it out; None: every device has all of it.
        parts: devices along that axis.
        reason: one sentence saying why, empty where the mesh leaves nothing to decide.
    """

    size: int
    local: int
    axis: str | None = None
    parts: int = 1
    reason: str = ""

    @property
    def rest(self) -> int:
        """How much longer the parts are together than the whole."""
        return self.parts * self.local - self.size

    @property
    def is_even(self) -> bool:
        """Whether the parts make up the whole: none overlap, none is padded."""
        return self.rest == 0


@dataclass(frozen=True)
class Plan:
    """What each axis of a mesh shares out in one attention call, made by `plan`.

    Attributes:
        sequence: "gather", "ring" or "ulysses"; "gather" where sp is 1.
        batch, heads, kv_heads, queries, keys: how each dimension is shared out.
        idle: a sentence on axes that share out nothing here, because attention does not know their names.
    """

    sequence: str
    batch: Share
    heads: Share
    kv_heads: Share
    queries: Share
    keys: Share
    idle: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for every dimension that the mesh bears on."""
        shares = (self.batch, self.heads, self.kv_heads, self.queries, self.keys)
        return tuple(reason for reason in (*(share.reason for share in shares), self.idle) if reason)

    def share(self, letter: str) -> Share:
        """The share of a dimension by its letter in `_DIMENSIONS`."""
        shares = {"B": self.batch, "H": self.heads, "K": self.kv_heads, "Q": self.queries, "T": self.keys}
        share = shares[letter.upper()]
        return Share(share.size, share.size) if letter.islower() and self.sequence == "ulysses" else share


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
        PortError: a dense mask, a mesh whose axes are not Auto, or heads that "ulysses" cannot share out.
    """
    if mask.dense is not None:
        raise PortError(
            "a dense mask cannot be shared out by the fused kernel",
            where="mask.dense",
            fix="call tpuport.attention.attention, which takes any mask",
        )
    check_mesh(mesh)
    batch, heads, queries, _ = query_BHQD.shape
    kv_heads, keys = key_BKTD.shape[1:3]
    chosen = plan(
        batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, mesh=mesh, sequence=sequence
    )
    free = _free_axes(mesh)
    band, arrays = _split(mask)
    arrays |= {"query": query_BHQD, "key": key_BKTD, "value": value_BKTC}
    if sinks_H is not None:
        arrays["sinks_H"] = sinks_H
    outer = None if _manual_axes() else mesh
    call = _Call(outer, frozenset(free), chosen, band, float(scale), softcap, padding, interpret)
    return _local(arrays, call) if math.prod(free.values()) == 1 else _run(_placed(arrays, call), call)


def plan(
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    mesh: Mesh | None,
    sequence: str = "gather",
) -> Plan:
    """Which axis shares out which dimension of an attention call, by cost where it does not divide, and why.

    Raises:
        PortError: an unknown `sequence`, kv_heads that do not divide heads, or heads that "ulysses" cannot share out.
    """
    if sequence not in SEQUENCES:
        raise PortError(
            f"there is no such way over the sequence: {sequence!r}",
            where="sequence",
            fix=f"one of {', '.join(SEQUENCES)}",
        )
    if not kv_heads or heads % kv_heads:
        raise PortError(
            f"{kv_heads} key/value heads do not divide {heads} query heads",
            where="the shapes of query and key",
            fix="give each query head its own, repeated as the model means it",
        )
    axes = _free_axes(mesh)
    dp, sp, tp = (axes.get(axis, 1) for axis in AXES)
    sizes = _Sizes(batch, heads, kv_heads, queries, keys)
    batch_share = _share_batch(sizes, dp)
    sizes = dataclasses.replace(sizes, batch=batch_share.local)
    if sequence == "ulysses" and sp > 1:
        head_share, kv_share = _share_heads_twice(sizes, tp, sp)
    else:
        head_share = _share_heads(sizes, tp)
        kv_share = _share_kv_heads(head_share, kv_heads)
    sizes = dataclasses.replace(sizes, heads=head_share.local, kv_heads=kv_share.local)
    return Plan(
        sequence if sp > 1 else "gather",
        batch_share,
        head_share,
        kv_share,
        _share_queries(sizes, sp, sequence),
        _share_keys(keys, sp, sequence),
        _idle(axes),
    )


def _manual_axes() -> tuple[str, ...]:
    """Axes over which the code that is being traced runs once a device already."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def _free_axes(mesh: Mesh | None) -> dict[str, int]:
    """The axes of the mesh, and their sizes, that are still to be shared out over."""
    if mesh is None:
        return {}
    manual = _manual_axes()
    # Inside the body of a shard_map over another mesh there is no sharding over this one.
    if manual and jax.sharding.get_abstract_mesh().shape_tuple != mesh.abstract_mesh.shape_tuple:
        return {}
    return {axis: size for axis, size in mesh.shape.items() if axis not in manual}


def _idle(axes: dict[str, int]) -> str:
    others = [axis for axis, size in axes.items() if axis not in AXES and size > 1]
    if not others:
        return ""
    return f"the devices along {', '.join(others)} repeat each other's work: attention is shared out over dp, sp and tp"


@dataclass(frozen=True)
class _Sizes:
    """The sizes of one device's attention call."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int

    def cost(self, copied: bool = False) -> float:
        """The time it takes: the dot products, and reading keys and values, thrice where they are copied first."""
        work = self.batch * self.heads * self.queries * self.keys * 4 / _OPERATIONS
        return work + self.batch * self.kv_heads * self.keys * 2 * _BYTES * (3 if copied else 1)

    def gains(self, copied: bool, **parts: int) -> bool:
        """Whether it saves time to compute a part only, and send the whole output to the other devices."""
        sent = self.batch * self.heads * self.queries * _BYTES * _LINK
        return dataclasses.replace(self, **parts).cost(copied) + sent < self.cost()


def _share_batch(sizes: _Sizes, parts: int) -> Share:
    size, local = sizes.batch, math.ceil(sizes.batch / parts)
    if parts == 1:
        return Share(size, size)
    if size % parts == 0:
        return Share(size, local, "dp", parts, f"batch {size} over dp={parts}: {local} on each device")
    if not sizes.gains(True, batch=local):
        return _repeated(size, f"batch {size}", "dp", parts)
    why = (
        f"dp={parts} does not divide batch {size}: {local} on each device, the last ones repeat the last row"
    )
    return Share(size, local, "dp", parts, why)


def _share_heads(sizes: _Sizes, parts: int) -> Share:
    size, local = sizes.heads, math.ceil(sizes.heads / parts)
    if parts == 1:
        return Share(size, size)
    if size % parts == 0:
        return Share(size, local, "tp", parts, f"{size} query heads over tp={parts}: {local} on each device")
    why = f"tp={parts} does not divide {size} query heads: {local} on each device, the last ones repeat the last head"
    share = Share(size, local, "tp", parts, why)
    needed = _share_kv_heads(share, sizes.kv_heads).local
    gains = sizes.gains(sizes.kv_heads > 1, heads=local, kv_heads=needed)
    return share if gains else _repeated(size, f"{size} query heads", "tp", parts)


def _repeated(size: int, name: str, axis: str, parts: int) -> Share:
    why = f"{name} on every device of {axis}={parts}: computing them once would save less than sending them costs"
    return Share(size, size, reason=why)


def _share_kv_heads(heads: Share, size: int) -> Share:
    """What the query heads of each device need."""
    if heads.axis is None:
        return Share(size, size)
    tp = heads.parts
    if size % tp == 0:
        local = size // tp
        return Share(size, local, "tp", tp, f"{size} key/value heads over tp={tp}: {local} on each device")
    if size == 1:
        return Share(1, 1, reason=f"the one key/value head on every device of tp={tp}")
    local = heads.local // math.gcd(heads.local, heads.size // size)
    why = f"tp={tp} does not divide {size} key/value heads: each device takes the {local} that its query heads need"
    return Share(size, local, "tp", tp, why)


def _share_heads_twice(sizes: _Sizes, tp: int, sp: int) -> tuple[Share, Share]:
    """Query heads, and their key/value heads, over tp before "ulysses" shares them out over sp."""
    size, kv_size = sizes.heads, sizes.kv_heads
    if size % (tp * sp):
        raise PortError(
            f"{size} query heads cannot be shared out evenly over {tp * sp} devices (tp={tp}, sp={sp})",
            where="sequence='ulysses'",
            fix="sequence='ring', or a mesh whose tp times sp divides the number of heads",
        )
    why = f"{size} query heads over tp={tp}, then sp={sp}: {size // tp // sp} on each device"
    heads = Share(size, size // tp, "tp" if tp > 1 else None, tp, why)
    if kv_size % tp or tp == 1:
        return heads, Share(
            kv_size, kv_size, reason=f"of {kv_size} key/value heads each device gets those it needs"
        )
    why = f"{kv_size} key/value heads over tp={tp}, of which each device gets those it needs"
    return heads, Share(kv_size, kv_size // tp, "tp", tp, why)


def _share_queries(sizes: _Sizes, parts: int, sequence: str) -> Share:
    size, local = sizes.queries, math.ceil(sizes.queries / parts)
    if parts == 1:
        return Share(size, size)
    if size % parts == 0:
        return Share(size, local, "sp", parts, f"{size} queries over sp={parts}: {local} on each device")
    if sequence == "gather" and not sizes.gains(False, queries=local):
        return _repeated(size, f"{size} queries", "sp", parts)
    why = f"sp={parts} does not divide {size} queries: padded to {local * parts}, {local} on each device"
    return Share(size, local, "sp", parts, why)


def _share_keys(size: int, parts: int, sequence: str) -> Share:
    if parts == 1:
        return Share(size, size)
    if sequence == "gather":
        return Share(size, size, reason=f"all {size} keys on every device of sp={parts}")
    local = math.ceil(size / parts)
    padded = "" if size % parts == 0 else f" padded to {local * parts},"
    end = "exchanged for heads" if sequence == "ulysses" else "sent round"
    return Share(
        size, local, "sp", parts, f"{size} keys over sp={parts},{padded} {local} on each device, {end}"
    )


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
    """Arrays that lie on other devices than the mesh's, as those of eager code do, put on those."""
    if call.mesh is None:
        return arrays
    everywhere, devices = NamedSharding(call.mesh, PartitionSpec()), set(call.mesh.devices.flat)

    def place(array: jax.Array) -> jax.Array:
        elsewhere = not isinstance(array, jax.core.Tracer) and array.sharding.device_set != devices
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
