"""How attention is shared out over the axes of a mesh: batch over dp, heads over tp, the sequence over sp.

A dimension that its axis does not divide costs padding or repeated work; `plan` decides by cost, and says why.
"""

import dataclasses
import math
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from tpuport.errors import PortError
from tpuport.mesh import AXES

SEQUENCES = ("gather", "ring", "ulysses")
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
    axes = free_axes(mesh)
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


def manual_axes() -> tuple[str, ...]:
    """Axes over which the code that is being traced runs once a device already."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def free_axes(mesh: Mesh | None) -> dict[str, int]:
    """The axes of the mesh, and their sizes, that are still to be shared out over."""
    if mesh is None:
        return {}
    manual = manual_axes()
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
