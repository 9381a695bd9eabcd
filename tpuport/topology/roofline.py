"""How fast a step can be at most, from what the compiled program does and what the hardware's makers publish.

Times of collectives are those of "Sharded Matrices and How to Multiply Them" (`hardware.COLLECTIVES`): an array of V
bytes is gathered over n chips in V (n - 1) / (n W), where W is what each of them can send over the links along its
axis, one way, or in a hop's latency times the hops where that is longer; a reduce-scatter is the same backwards, an
all-reduce one after the other. An all-to-all is bound by the links across the middle of the axis.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from math import gcd, prod
from typing import Final

from tpuport.topology import slices
from tpuport.topology.hardware import FIGURES, Figures
from tpuport.topology.report import Collective, Costs, Estimate

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
    units: float,
    *,
    topology: str | None = None,
) -> Estimate:
    """A roofline of one step.

    Compute is `costs.flops` at the device's bf16 peak, whatever the dtype; memory `costs.hbm_bytes` at its HBM
    bandwidth; interconnect the sum over the collectives, one after another, with nothing else on the links. An axis of
    the mesh is taken to lie along whole dimensions of the slice where its size allows, as
    `mesh_utils.create_device_mesh` has it, else on a part of one, which is an open row. A dimension is a ring where the
    slice closes it: 16 chips of v5e and v6e, every dimension of whole cubes of v4, v5p and tpu7x. Devices of one chip
    share its links.

    Args:
        generation: a key of `hardware.FIGURES`.
        mesh: size of each axis, in order.
        costs: of one device and one step; collectives: the same step's.
        unit: what a step makes; units: how many, on the whole mesh.
        topology: the slice's full name; None takes the most cube-like slice with that many devices.
    """
    figures = FIGURES[generation]
    device = figures.device
    rings = layout(figures, mesh, topology)
    seconds = {
        "compute": costs.flops / device.bf16,
        "memory": costs.hbm_bytes / device.hbm_bandwidth,
        "interconnect": sum(collective_seconds(one, rings, figures) for one in collectives),
    }
    together, apart = max(seconds.values()), sum(seconds.values())

    def utilization(time: float) -> float:
        return min(1.0, costs.model_flops / (device.bf16 * time)) if time else 0.0

    return Estimate(
        **seconds, binds=max(PARTS, key=lambda part: seconds[part]), seconds=together, seconds_apart=apart, unit=unit,
        units=units, units_per_second=units / together if together else 0.0,
        units_per_second_apart=units / apart if apart else 0.0, mfu=utilization(together), mfu_apart=utilization(apart),
    )  # fmt: skip


def collective_seconds(one: Collective, rings: Mapping[str, tuple[Ring, ...]], figures: Figures) -> float:
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
    figures: Figures, mesh: Mapping[str, int], topology: str | None = None
) -> dict[str, tuple[Ring, ...]]:
    """Along which rows and rings of the slice the devices of each axis lie; none for an axis of one device."""
    left = _dimensions(figures, prod(mesh.values()), topology)
    found: dict[str, tuple[Ring, ...]] = {}
    for axis in reversed(list(mesh)):
        chosen = _whole(left, mesh[axis])
        if chosen is not None:
            found[axis] = tuple(left[place] for place in chosen)
            left = [ring for place, ring in enumerate(left) if place not in chosen]
        else:
            found[axis], left = _parts(left, mesh[axis], figures)
    return {axis: found[axis] for axis in mesh}


def _across(ring: Ring) -> float:
    """Seconds a byte of an all-to-all, over the links across the middle of one dimension.

    Of n devices in rows of s, n floor(s / 2) / s are on one side, and each sends 1 / n of its bytes to each of the
    rest; n / s rows cross, and twice where they are rings. For an even ring that is the book's quarter of an all-gather.
    """
    return ring.size**2 // 4 / ring.size / (ring.ways * ring.rate)


def _dimensions(figures: Figures, devices: int, topology: str | None) -> list[Ring]:
    """The slice's dimensions of more than one device, those on a chip last."""
    if topology is not None:
        shape: tuple[int, ...] = slices.shape_of(topology)
    else:
        fitting = [one for one in slices.shapes(figures.generation) if prod(one) * figures.devices == devices]
        shape = fitting[0] if fitting else (max(1, devices // figures.devices),)
    cubes = all(size % figures.wraps == 0 for size in shape)
    rate = figures.link.value / figures.devices
    rings = [
        Ring(size, cubes if figures.dimensions == 3 else size % figures.wraps == 0, rate)
        for size in shape
        if size > 1
    ]
    if figures.on_chip is not None and devices > 1 and devices % figures.devices == 0:
        rings.append(Ring(figures.devices, False, figures.on_chip.value, on_chip=True))
    return rings


def _whole(rings: list[Ring], size: int) -> tuple[int, ...] | None:
    """Places of rings that have that many devices together: as many rings as there can be, the last of them."""
    if size == 1:
        return ()
    for number in range(len(rings), 0, -1):
        for places in itertools.combinations(reversed(range(len(rings))), number):
            if prod(rings[place].size for place in places) == size:
                return places
    return None


def _parts(rings: list[Ring], size: int, figures: Figures) -> tuple[tuple[Ring, ...], list[Ring]]:
    """(Parts of rings that have that many devices together, what is left of all). A part is an open row."""
    taken: list[Ring] = []
    left: list[Ring] = []
    for ring in reversed(rings):
        part = gcd(size, ring.size)
        size //= part
        if part > 1:
            taken.append(ring if part == ring.size else dataclasses.replace(ring, size=part, closed=False))
        if part < ring.size:
            left.insert(
                0, dataclasses.replace(ring, size=ring.size // part, closed=ring.closed and part == 1)
            )
    if size > 1:  # more devices than the slice has, or other factors
        taken.append(Ring(size, size > 2, figures.link.value / figures.devices))
    return tuple(taken), left
