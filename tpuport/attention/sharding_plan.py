"""How attention is divided over the axes of a mesh: batch over dp, heads over tp, the
sequence over sp.

A dimension that its axis does not divide costs padding or repeated work;
`plan_sharding` decides by cost, and says why.
"""

import dataclasses
import math
from typing import Any, Final

import jax
from jax.sharding import Mesh

from tpuport.base.mappings import without
from tpuport.errors import PortError
from tpuport.hardware.mesh import AXES

# Costs are in bytes of a TPU's memory that are moved in the same time, for each unit of
# the head dimension: v4 to v6e do 170 to 560 operations in the time of one byte, and
# move 4 to 5 bytes in that of one between chips.
_OPERATIONS: Final = 240
_LINK: Final = 4
_ITEMSIZE: Final = 2  # of bf16


@dataclasses.dataclass(frozen=True)
class Split:
    """How one dimension is divided.

    Attributes:
        size: of the whole dimension.
        local: what one device computes; if parts * local is more than size, the rest is
            padding.
        axis: the mesh axis that divides it; None: every device has all of it.
        parts: devices along that axis.
        reason: one sentence saying why, empty if the mesh leaves nothing to decide.
    """

    size: int
    local: int
    axis: str | None = None
    parts: int = 1
    reason: str = ""

    @classmethod
    def undivided(cls, size: int, reason: str = "") -> "Split":
        """All of the dimension on every device."""
        return cls(size, size, reason=reason)

    @property
    def padding(self) -> int:
        """How much longer the parts are together than the whole."""
        return self.parts * self.local - self.size

    @property
    def is_even(self) -> bool:
        """Whether the parts make up the whole: none overlap, none is padded."""
        return self.padding == 0


@dataclasses.dataclass(frozen=True)
class ShardingPlan:
    """What each axis of a mesh divides in one attention call, from `plan_sharding`.

    Attributes:
        sequence: "gather", "ring" or "ulysses"; "gather" if sp is 1.
        batch, heads, kv_heads, queries, keys: how each dimension is divided.
        idle: a sentence on axes that divide nothing, because attention does not know
            their names.
    """

    sequence: str
    batch: Split
    heads: Split
    kv_heads: Split
    queries: Split
    keys: Split
    idle: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for every dimension that the mesh affects."""
        splits = (self.batch, self.heads, self.kv_heads, self.queries, self.keys)
        return tuple(filter(None, [*(split.reason for split in splits), self.idle]))


@dataclasses.dataclass(frozen=True)
class CallSizes:
    """The sizes of an attention call, on the whole mesh or on one device."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int

    @classmethod
    def of(cls, query_BHQD: Any, key_BKTD: Any) -> "CallSizes":
        """The sizes of these arrays."""
        batch, heads, queries, _ = query_BHQD.shape
        kv_heads, keys = key_BKTD.shape[1:3]
        return cls(batch, heads, kv_heads, queries, keys)

    def cost(self, *, copies: bool = False) -> float:
        """The time that the dot products take, and reading keys and values, thrice if
        they are copied first.
        """
        work = self.batch * self.heads * self.queries * self.keys * 4 / _OPERATIONS
        reads = 3 if copies else 1
        return work + reads * self.batch * self.kv_heads * self.keys * 2 * _ITEMSIZE

    def is_worth_dividing(self, *, copies: bool, **local: int) -> bool:
        """Whether it saves time to compute only a part, and send the whole output to
        the other devices.

        Args:
            copies: whether the part of keys and values has to be copied out first.
            local: sizes of the part.
        """
        sent = self.batch * self.heads * self.queries * _ITEMSIZE * _LINK
        return (
            dataclasses.replace(self, **local).cost(copies=copies) + sent < self.cost()
        )


def plan_sharding(
    sizes: CallSizes, mesh: Mesh | None, sequence: str = "auto"
) -> ShardingPlan:
    """Which axis divides which dimension of an attention call, by cost if it does not
    do so evenly, and why.

    Raises:
        PortError: kv_heads that do not divide heads, or heads that "ulysses" cannot
            divide.
    """
    if not sizes.kv_heads or sizes.heads % sizes.kv_heads:
        raise PortError(
            f"{sizes.kv_heads} key/value heads do not divide {sizes.heads} query heads",
            where="the shapes of query and key",
            fix="give each query head its own key/value head, repeated as the model intends",
        )
    axes = free_axes(mesh)
    dp, sp, tp = (axes.get(axis, 1) for axis in AXES)
    if sp == 1:
        sequence = "gather"
    # Each dimension is divided in view of what the ones before it leave to a device.
    batch = _split_batch(sizes, dp)
    sizes = dataclasses.replace(sizes, batch=batch.local)
    if sequence == "auto":
        sequence = _choose_sequence(sizes, tp, sp)
    if sequence == "ulysses":
        heads, kv_heads = _split_heads_twice(sizes, tp, sp)
    else:
        heads = _split_heads(sizes, tp)
        kv_heads = _split_kv_heads(heads, sizes.kv_heads)
    sizes = dataclasses.replace(sizes, heads=heads.local, kv_heads=kv_heads.local)
    queries, keys = (
        _split_queries(sizes, sp, sequence),
        _split_keys(sizes.keys, sp, sequence),
    )
    return ShardingPlan(
        sequence, batch, heads, kv_heads, queries, keys, _explain_idle_axes(axes)
    )


def _choose_sequence(sizes: CallSizes, tp: int, sp: int) -> str:
    """Heads are exchanged for positions where that sends less than gathering keys and
    values, as elsewhere.
    """
    # Few queries are computed on every device.
    is_long = sizes.is_worth_dividing(
        copies=False, queries=math.ceil(sizes.queries / sp)
    )
    if sizes.heads % (tp * sp) or not is_long:
        return "gather"
    heads = sizes.heads // tp
    group = sizes.heads // sizes.kv_heads
    # A key/value head that several devices need is sent to each.
    exchanged = heads // math.gcd(heads // sp, group)
    gathered = _split_kv_heads(_split_heads(sizes, tp), sizes.kv_heads).local
    # What a device gets of each, but for its own part, for each unit of the head
    # dimension: keys and values whole, or a part of queries, keys, values and output.
    by_gathering = 2 * gathered * sizes.keys
    by_exchange = 2 * (heads * sizes.queries + exchanged * sizes.keys) / sp
    return "ulysses" if by_exchange < by_gathering else "gather"


def manual_axes() -> tuple[str, ...]:
    """Axes over which the code that is being traced already runs once a device."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def free_axes(mesh: Mesh | None) -> dict[str, int]:
    """The axes of the mesh, and their sizes, over which work can still be divided."""
    if mesh is None:
        return {}
    manual = manual_axes()
    # Inside the body of a shard_map over another mesh there is no sharding over this
    # one.
    if (
        manual
        and jax.sharding.get_abstract_mesh().shape_tuple
        != mesh.abstract_mesh.shape_tuple
    ):
        return {}
    return without(mesh.shape, manual)


def _explain_idle_axes(axes: dict[str, int]) -> str:
    # An axis of one device repeats nothing.
    unknown = [axis for axis, size in axes.items() if axis not in AXES and size > 1]
    if not unknown:
        return ""
    return f"the devices along {', '.join(unknown)} repeat each other's work: attention is divided over dp, sp and tp"


def _split(
    name: str, size: int, axis: str, parts: int, *, is_worthwhile: bool, uneven: str
) -> Split:
    """A dimension over an axis: evenly if possible, else unevenly if that is
    worthwhile.
    """
    if parts == 1:
        return Split.undivided(size)
    local = math.ceil(size / parts)
    if size % parts == 0:
        return Split(
            size,
            local,
            axis,
            parts,
            f"{name} over {axis}={parts}: {local} on each device",
        )
    if is_worthwhile:
        return Split(
            size, local, axis, parts, f"{axis}={parts} does not divide {name}: {uneven}"
        )
    return Split.undivided(
        size,
        f"{name} on every device of {axis}={parts}: computing them once would save less than sending them costs",
    )


def _split_batch(sizes: CallSizes, parts: int) -> Split:
    local = math.ceil(sizes.batch / parts)
    return _split(
        f"batch {sizes.batch}", sizes.batch, "dp", parts,
        # The devices cannot hold uneven parts of an array, so each copies its rows out
        # of the whole.
        is_worthwhile=sizes.is_worth_dividing(copies=True, batch=local),
        uneven=f"{local} on each device, the last ones repeat the last row",
    )  # fmt: skip


def _split_heads(sizes: CallSizes, parts: int) -> Split:
    local = math.ceil(sizes.heads / parts)
    uneven = Split(sizes.heads, local, "tp", parts)
    kv_heads = _split_kv_heads(uneven, sizes.kv_heads).local
    return _split(
        f"{sizes.heads} query heads", sizes.heads, "tp", parts,
        is_worthwhile=sizes.is_worth_dividing(copies=sizes.kv_heads > 1, heads=local, kv_heads=kv_heads),
        uneven=f"{local} on each device, the last ones repeat the last head",
    )  # fmt: skip


def _split_kv_heads(heads: Split, size: int) -> Split:
    """What the query heads of each device need."""
    if heads.axis is None:
        return Split.undivided(size)
    tp = heads.parts
    if size % tp == 0:
        local = size // tp
        return Split(
            size,
            local,
            "tp",
            tp,
            f"{size} key/value heads over tp={tp}: {local} on each device",
        )
    if size == 1:
        return Split.undivided(1, f"the one key/value head on every device of tp={tp}")
    # In blocks of the greatest common divisor, all query heads of a block share a
    # key/value head on every device.
    group = heads.size // size
    local = heads.local // math.gcd(heads.local, group)
    reason = f"tp={tp} does not divide {size} key/value heads: each device takes the {local} that its query heads need"
    return Split(size, local, "tp", tp, reason)


def _split_heads_twice(sizes: CallSizes, tp: int, sp: int) -> tuple[Split, Split]:
    """Query heads, and their key/value heads, over tp before "ulysses" divides them
    over sp.
    """
    heads, kv_heads = sizes.heads, sizes.kv_heads
    if heads % (tp * sp):
        raise PortError(
            f"{heads} query heads cannot be divided evenly over {tp * sp} devices (tp={tp}, sp={sp})",
            where="sequence='ulysses'",
            fix="sequence='ring', or a mesh whose tp times sp divides the number of heads",
        )
    axis = "tp" if tp > 1 else None
    reason = f"{heads} query heads over tp={tp}, then sp={sp}: {heads // tp // sp} on each device"
    head_split = Split(heads, heads // tp, axis, tp, reason)
    if kv_heads % tp or tp == 1:
        return head_split, Split.undivided(
            kv_heads, f"of {kv_heads} key/value heads each device gets those it needs"
        )
    reason = f"{kv_heads} key/value heads over tp={tp}, of which each device gets those it needs"
    return head_split, Split(kv_heads, kv_heads // tp, axis, tp, reason)


def _split_queries(sizes: CallSizes, parts: int, sequence: str) -> Split:
    local = math.ceil(sizes.queries / parts)
    return _split(
        f"{sizes.queries} queries", sizes.queries, "sp", parts,
        # In a ring or with exchanged heads, the sequence is divided in any case.
        is_worthwhile=sequence != "gather" or sizes.is_worth_dividing(copies=False, queries=local),
        uneven=f"padded to {local * parts}, {local} on each device",
    )  # fmt: skip


def _split_keys(size: int, parts: int, sequence: str) -> Split:
    if parts == 1:
        return Split.undivided(size)
    if sequence == "gather":
        return Split.undivided(size, f"all {size} keys on every device of sp={parts}")
    local = math.ceil(size / parts)
    padding = f" padded to {local * parts}," if size % parts else ""
    movement = {"ulysses": "exchanged for heads", "ring": "sent round"}[sequence]
    reason = f"{size} keys over sp={parts},{padding} {local} on each device, {movement}"
    return Split(size, local, "sp", parts, reason)
