"""How fast a step can be at most, from what the compiled program does and what the hardware's makers publish.

Times of collectives are those of "Sharded Matrices and How to Multiply Them" (`generations.COLLECTIVES`): an array of V
bytes is gathered over n chips in V (n - 1) / (n W), where W is what each of them can send over the links along its
axis, one way, or in a hop's latency times the hops where that is longer; a reduce-scatter is the same backwards, an
all-reduce one after the other. An all-to-all is bound by the links across the middle of the axis.

The devices of an axis are a box of chips: by the coordinates of the mesh's devices, or else the box with the most links
that the slice has room for, tp's first. A dimension of it is a ring where it is all of a dimension that the slice
closes (16 chips of v5e and v6e, every dimension of whole cubes of v4, v5p and tpu7x), else an open row. Devices of one
chip share its links.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

from tpuport.hardware import GENERATIONS, Generation, legal_slices, parse_slice
from tpuport.topology.compile_report import Collective, Costs, Estimate

PARTS: Final = ("compute", "memory", "interconnect")


@dataclasses.dataclass(frozen=True)
class Ring:
    """Devices beside each other, each sending to both of its neighbours.

    Attributes:
        size: how many; closed: whether the last is beside the first.
        rate: bytes a second to one neighbour, for each of the devices that share the link.
        on_chip: whether they are the devices of one chip.
    """

    size: int
    closed: bool
    rate: float
    on_chip: bool = False

    @property
    def ways(self) -> int:
        """Links of the device that has fewest: one at the end of an open row, else two."""
        return 2 if self.closed else 1

    @property
    def hops(self) -> int:
        """To the device that is furthest."""
        return self.size // 2 if self.closed else self.size - 1


def estimate(
    generation: str,
    mesh: Mapping[str, int],
    costs: Costs,
    collectives: Iterable[Collective],
    unit: str,
    units: float | int,
    *,
    topology: str | None = None,
    placed: Any = None,
) -> Estimate:
    """A roofline of one step.

    Compute is `costs.flops` at the device's bf16 peak, but of products of 8 bits at the peak of int8 or fp8 where it is
    published, and of float32 as many passes as the program asks for: one by default, on numbers rounded to bfloat16.
    Memory is `costs.hbm_bytes` at its HBM bandwidth; interconnect the sum over the collectives, one after another, with
    nothing else on the links.

    Args:
        generation: a key of `hardware.GENERATIONS`.
        mesh: size of each axis, in order.
        costs: of one device and one step; collectives: the same step's.
        unit: what a step makes; units: how many, on the whole mesh.
        topology: the slice's full name; None takes the most cube-like slice with that many devices.
        placed: the jax Mesh, whose devices have `coords`; None guesses where they are.
    """
    figures = GENERATIONS[generation]
    device = figures.device
    rings = layout(figures, mesh, topology, placed)
    seconds = {
        "compute": _compute(costs, figures),
        "memory": costs.hbm_bytes / device.hbm_bandwidth,
        "interconnect": sum((collective_seconds(one, rings, figures) for one in collectives), 0.0),
    }
    together, apart = max(seconds.values()), sum(seconds.values())

    def utilization(time: float) -> float:
        return costs.model_flops / (device.bf16 * time) if time else 0.0

    return Estimate(
        **seconds, binds=max(PARTS, key=lambda part: seconds[part]), seconds=together, seconds_apart=apart, unit=unit,
        units=float(units), units_per_second=units / together if together else 0.0,
        units_per_second_apart=units / apart if apart else 0.0, mfu=utilization(together), mfu_apart=utilization(apart),
    )  # fmt: skip


def _compute(costs: Costs, figures: Generation) -> float:
    """Seconds of all operations, each at its dtype's peak."""
    low = ((costs.int8_flops, figures.int8), (costs.fp8_flops, figures.fp8))
    apart = [(flops, peak.value / figures.devices) for flops, peak in low if peak is not None]
    rest = costs.flops + costs.pass_flops - sum(flops for flops, _ in apart)
    return rest / figures.device.bf16 + sum(flops / peak for flops, peak in apart)


def collective_seconds(one: Collective, rings: Mapping[str, tuple[Ring, ...]], figures: Generation) -> float:
    """What all of a `Collective` take, with the links to themselves.

    `nbytes` is what they leave on each device: all of what is gathered or reduced, a device's part of what is scattered
    or exchanged.
    """
    along = tuple(ring for axis in one.axes for ring in rings.get(axis, ()))
    if not along and one.group > 1:  # no whole axes: as if its devices were beside each other
        along = (Ring(one.group, one.group > 2, figures.link.value / figures.devices),)
    gather = _gather(along)
    latency = one.count * figures.hop.value * sum(ring.hops for ring in along)
    if one.kind == "all-reduce":
        return 2 * max(latency, one.nbytes * gather)
    if one.kind == "reduce-scatter":
        return max(latency, one.nbytes * prod(ring.size for ring in along) * gather)
    if one.kind in ("all-to-all", "ragged-all-to-all"):
        return max(latency, one.nbytes * max(map(_across, along), default=0.0))
    if one.kind == "collective-permute" and along:
        return max(one.count * figures.hop.value, one.nbytes / min(ring.rate for ring in along))
    return max(latency, one.nbytes * gather)


def _gather(along: tuple[Ring, ...]) -> float:
    """Seconds a byte gathered: between chips, whose devices each fetch a part and share it, or on the chip."""
    chips = [ring for ring in along if not ring.on_chip]
    on_chip = [ring for ring in along if ring.on_chip]
    together = prod(ring.size for ring in on_chip)
    count = prod(ring.size for ring in chips)
    rate = together * sum(ring.ways * ring.rate for ring in chips)
    inside = sum((ring.size - 1) / ring.size / ring.rate for ring in on_chip)
    return max((count - 1) / count / rate if chips else 0.0, inside)


def layout(
    figures: Generation, mesh: Mapping[str, int], topology: str | None = None, placed: Any = None
) -> dict[str, tuple[Ring, ...]]:
    """The box of rows and rings that the devices of each axis are in; none for an axis of one device."""
    dimensions = _dimensions(figures, prod(mesh.values()), topology)
    if placed is not None:
        return {
            axis: _box(_extents(placed, place, len(dimensions) - 1), size, dimensions, figures)
            for place, (axis, size) in enumerate(mesh.items())
        }
    left = [ring.size for ring in dimensions]
    found: dict[str, tuple[Ring, ...]] = {}
    for axis in reversed(list(mesh)):
        boxes = [box for box in itertools.product(*map(_divisors, left)) if prod(box) == mesh[axis]] or [
            (1,) * len(left)
        ]
        taken = max(boxes, key=lambda box: _reach(_box(box, mesh[axis], dimensions, figures)))
        found[axis] = _box(taken, mesh[axis], dimensions, figures)
        left = [size // part for size, part in zip(left, taken, strict=True)]
    return {axis: found[axis] for axis in mesh}


def _across(ring: Ring) -> float:
    """Seconds a byte of an all-to-all, over the links across the middle of one dimension.

    Of n devices in rows of s, n floor(s / 2) / s are on one side, and each sends 1 / n of its bytes to each of the
    rest; n / s rows cross, and twice where they are rings. An even ring takes the book's quarter of an all-gather.
    """
    return ring.size**2 // 4 / ring.size / (ring.ways * ring.rate)


def _dimensions(figures: Generation, devices: int, topology: str | None) -> list[Ring]:
    """The slice's dimensions in chips, and last the devices on a chip; of one device too."""
    if topology is not None:
        shape: tuple[int, ...] = parse_slice(topology).shape
    else:
        fitting = [one.shape for one in legal_slices(figures) if one.devices == devices]
        shape = fitting[0] if fitting else (max(1, devices // figures.devices),)
    cubes = all(size % figures.wraps == 0 for size in shape)
    rate = figures.link.value / figures.devices
    rings = [
        Ring(size, cubes if figures.dimensions == 3 else size % figures.wraps == 0, rate) for size in shape
    ]
    on_chip = figures.devices if devices % figures.devices == 0 else 1
    return [*rings, Ring(on_chip, False, figures.on_chip.value if figures.on_chip else rate, on_chip=True)]


def _extents(placed: Any, place: int, dimensions: int) -> tuple[int, ...]:
    """How many chips in each dimension, and last devices on a chip, the first devices along a mesh's axis take up."""
    devices = placed.devices
    line = devices[tuple(slice(None) if axis == place else 0 for axis in range(devices.ndim))]
    places = [(*device.coords[:dimensions], device.core_on_chip) for device in line]
    return tuple(len(set(along)) for along in zip(*places, strict=True))


def _box(extents: Sequence[int], size: int, dimensions: list[Ring], figures: Generation) -> tuple[Ring, ...]:
    """The rows and rings of a box; one ring of the devices where they fill no box."""
    if prod(extents) != size:
        return (Ring(size, size > 2, figures.link.value / figures.devices),)
    return tuple(
        whole if part == whole.size else dataclasses.replace(whole, size=part, closed=False)
        for part, whole in zip(extents, dimensions, strict=True)
        if part > 1
    )


def _reach(rings: tuple[Ring, ...]) -> tuple[int, ...]:
    """What makes one box better than another: devices on one chip, links, closed rings, few hops."""
    chips = [ring for ring in rings if not ring.on_chip]
    links, closed = sum(ring.ways for ring in chips), sum(ring.closed for ring in chips)
    return prod(ring.size for ring in rings if ring.on_chip), links, closed, -sum(ring.hops for ring in chips)


def _divisors(size: int) -> list[int]:
    return [part for part in range(1, size + 1) if size % part == 0]
