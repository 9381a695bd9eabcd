"""How fast a step can be at most, from what the compiled program does and what the
hardware's makers publish.

Times of collectives follow "Sharded Matrices and How to Multiply Them"
(`generations.COLLECTIVES`). Gathering an array of V bytes over n chips takes V (n - 1)
/ (n W), where W is what each chip can send over the links along the axis, one way; or
the latency of a hop times the hops, if that is longer. A reduce-scatter is the same in
reverse, and an all-reduce is one after the other. An all-to-all is bound by the links
across the middle of the axis.

The devices of an axis form a box of chips: by the coordinates of the mesh's devices, or
else the box with the most links for which the slice has room, tp's first. A dimension
of the box is a ring if it is a whole dimension that the slice closes (16 chips of v5e
and v6e, every dimension of whole cubes of v4, v5p and tpu7x), else an open row. The
devices of one chip share its links.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import gcd, prod
from operator import attrgetter
from typing import Any, Final

from tpuport.base.mappings import group_by
from tpuport.hardware import GENERATIONS, Generation, legal_slices, parse_slice
from tpuport.topology.compile_report import Collective, Costs, Estimate

PARTS: Final = ("compute", "memory", "interconnect")


@dataclasses.dataclass(frozen=True)
class Ring:
    """Devices in a row, each of which sends to both of its neighbours.

    Attributes:
        size: how many; closed: whether the last is next to the first.
        rate: bytes a second to one neighbour, for each of the devices that share the
            link.
        on_chip: whether they are the devices of one chip.
    """

    size: int
    closed: bool
    rate: float
    on_chip: bool = False

    @property
    def links(self) -> int:
        """Links of the device that has the fewest: a device at the end of an open row
        has one.
        """
        return 1 + self.closed

    @property
    def hops(self) -> int:
        """Hops to the device that is farthest away."""
        if self.closed:
            return self.size // 2
        return self.size - 1


def estimate(
    generation: str,
    mesh: Mapping[str, int],
    costs: Costs,
    collectives: Iterable[Collective],
    unit: str,
    units: float | int,
    *,
    topology: str | None = None,
    device_mesh: Any = None,
) -> Estimate:
    """A roofline of one step.

    Compute is `costs.flops` at the device's bf16 peak; 8-bit products run at the peak
    of int8 or fp8 if one is published, and float32 products take as many passes as the
    program asks for: one by default, on numbers rounded to bfloat16. Memory is
    `costs.hbm_bytes` at the HBM bandwidth. Interconnect is the sum over the collectives
    that go along the busiest axis, one after another, with nothing else on its links.

    Args:
        generation: a key of `hardware.GENERATIONS`.
        mesh: size of each axis, in order.
        costs: of one device and one step; collectives: of the same step.
        unit: what a step produces; units: how many, on the whole mesh.
        topology: the slice's full name; None takes the most cube-like slice with that
            many devices.
        device_mesh: the jax Mesh, whose devices have `coords`; None guesses where they
            are.
    """
    hardware = GENERATIONS[generation]
    rings = layout(hardware, mesh, topology, device_mesh)
    sent = [
        (kind.axes, collective_seconds(kind, rings, hardware)) for kind in collectives
    ]
    seconds = {
        "compute": compute_seconds(
            costs.flops, costs.int8_flops, costs.fp8_flops, costs.pass_flops, hardware
        ),
        "memory": costs.hbm_bytes / hardware.device.hbm_bandwidth,
        "interconnect": _busiest_links(sent),
    }
    # The chip overlaps the three at best, and does one after another at worst.
    together = max(seconds.values())
    apart = (
        seconds["compute"] + seconds["memory"] + sum(duration for _, duration in sent)
    )
    model_seconds = costs.model_flops / hardware.device.bf16
    return Estimate(
        **seconds, binds=max(PARTS, key=lambda part: seconds[part]), seconds=together, seconds_apart=apart, unit=unit,
        units=float(units), units_per_second=_ratio(units, together), units_per_second_apart=_ratio(units, apart),
        mfu=_ratio(model_seconds, together), mfu_apart=_ratio(model_seconds, apart),
    )  # fmt: skip


def _ratio(amount: float | int, seconds: float) -> float:
    # A program that does nothing takes no time.
    if not seconds:
        return 0.0
    return amount / seconds


def compute_seconds(
    flops: float,
    int8_flops: float,
    fp8_flops: float,
    pass_flops: float,
    hardware: Generation,
) -> float:
    """Seconds of a device for operations, each at the peak of its dtype; the parts are
    as in `Costs`.
    """
    flops += pass_flops
    seconds = 0.0
    for low_precision_flops, peak in (
        (int8_flops, hardware.int8),
        (fp8_flops, hardware.fp8),
    ):
        # Without a published peak they run at the bf16 one.
        if peak is not None:
            flops -= low_precision_flops
            seconds += low_precision_flops * hardware.devices / peak.value
    return seconds + flops / hardware.device.bf16


def collective_seconds(
    collective: Collective, rings: Mapping[str, tuple[Ring, ...]], hardware: Generation
) -> float:
    """Seconds of all instances of a `Collective`, with the links to themselves.

    Its `nbytes` are the results on each device: all of what is gathered or reduced, and
    a device's part of what is scattered or exchanged.
    """
    along = tuple(
        itertools.chain.from_iterable(rings.get(axis, ()) for axis in collective.axes)
    )
    if not along and collective.group > 1:
        # A group that is not whole axes counts as a ring of its own.
        along = (_single_ring(collective.group, hardware),)
    nbytes = collective.nbytes
    hop = collective.count * hardware.hop.value
    latency = hop * sum(ring.hops for ring in along)
    gathering = nbytes * _gather_seconds(along)
    match collective.kind:
        # A reduce-scatter, then an all-gather.
        case "all-reduce":
            return 2 * max(latency, gathering)
        # The result is a device's part: the whole array is what passes through the
        # links.
        case "reduce-scatter":
            return max(latency, gathering * prod(ring.size for ring in along))
        case "all-to-all" | "ragged-all-to-all":
            return max(
                latency, nbytes * max(map(_exchange_seconds, along), default=0.0)
            )
        case "collective-permute" if along:
            return max(hop, nbytes / min(ring.rate for ring in along))
        case _:
            return max(latency, gathering)


def _busiest_links(sent: Iterable[tuple[tuple[str, ...], float]]) -> float:
    """Seconds of the axis that collectives take longest, from the axes and seconds of
    each.
    """
    seconds: dict[str, float] = collections.defaultdict(float)
    of_any_axis = 0.0
    for axes, duration in sent:
        # A group that is not whole axes may go along any of them.
        if not axes:
            of_any_axis += duration
        for axis in axes:
            seconds[axis] += duration
    return of_any_axis + max(seconds.values(), default=0.0)


def _gather_seconds(along: tuple[Ring, ...]) -> float:
    """Seconds to gather a byte: between chips, whose devices each fetch a part and
    share it, or on the chip.
    """
    # The links on a chip and those between chips work at the same time.
    on_chip, between_chips = _by_place(along)
    inside = sum(((ring.size - 1) / ring.size / ring.rate for ring in on_chip), 0.0)
    if not between_chips:
        return inside
    chips = prod(ring.size for ring in between_chips)
    rate_of_links = sum(ring.links * ring.rate for ring in between_chips)
    devices_a_chip = prod(ring.size for ring in on_chip)
    return max((chips - 1) / chips / (devices_a_chip * rate_of_links), inside)


def _by_place(rings: Iterable[Ring]) -> tuple[list[Ring], list[Ring]]:
    """The rings on a chip, and those between chips."""
    by_place = group_by(rings, attrgetter("on_chip"))
    return by_place.get(True, []), by_place.get(False, [])


def _exchange_seconds(ring: Ring) -> float:
    """Seconds for a byte of an all-to-all, over the links across the middle of one
    dimension.

    Of n devices in rows of s, n floor(s / 2) / s are on one side, and each sends 1 / n
    of its bytes to each of the others; n / s rows cross the middle, twice if they are
    rings. An even ring takes the book's quarter of an all-gather.
    """
    return ring.size**2 // 4 / ring.size / (ring.links * ring.rate)


def layout(
    hardware: Generation,
    mesh: Mapping[str, int],
    topology: str | None = None,
    device_mesh: Any = None,
) -> dict[str, tuple[Ring, ...]]:
    """The rows and rings that the devices of each axis form; none for an axis of one
    device.
    """
    dimensions = _slice_dimensions(hardware, prod(mesh.values()), topology)
    if device_mesh is None:
        return _guess_layout(hardware, mesh, dimensions)
    torus_dimensions = len(dimensions) - 1
    rings = {}
    for index, (axis, size) in enumerate(mesh.items()):
        extents = _extents(device_mesh, index, torus_dimensions)
        rings[axis] = _rings_of_box(extents, size, dimensions, hardware)
    return rings


def _guess_layout(
    hardware: Generation, mesh: Mapping[str, int], dimensions: list[Ring]
) -> dict[str, tuple[Ring, ...]]:
    """Give each axis the best box that is left, the last axis first: tp sends the
    most.
    """
    # Chips in each dimension that no axis has taken.
    room = [ring.size for ring in dimensions]
    rings: dict[str, tuple[Ring, ...]] = {}
    for axis, size in reversed(list(mesh.items())):
        boxes = itertools.product(*map(_divisors, room))
        candidates = {
            box: _rings_of_box(box, size, dimensions, hardware)
            for box in boxes
            if prod(box) == size
        }
        # Sizes such as 3 fit into no slice, and take no room.
        box = max(
            candidates,
            key=lambda box: _quality(candidates[box]),
            default=(1,) * len(room),
        )
        rings[axis] = candidates.get(box, (_single_ring(size, hardware),))
        room = [size // part for size, part in zip(room, box, strict=True)]
    return rings


def _slice_dimensions(
    hardware: Generation, devices: int, topology: str | None
) -> list[Ring]:
    """The slice's dimensions in chips, and last the devices on a chip, even if it is
    one.
    """
    shape = _slice_shape(hardware, devices, topology)
    whole = [size % hardware.wraps == 0 for size in shape]
    if hardware.dimensions == 3:
        # Cubes have optical links on all their faces or on none.
        whole = [all(whole)] * len(shape)
    rate = hardware.link.value / hardware.devices
    rings = [
        Ring(size, closed, rate) for size, closed in zip(shape, whole, strict=True)
    ]
    # An odd number of devices leaves a device of a chip of two idle.
    devices_a_chip = gcd(devices, hardware.devices)
    on_chip_rate = rate
    if hardware.on_chip is not None:
        on_chip_rate = hardware.on_chip.value
    return [*rings, Ring(devices_a_chip, closed=False, rate=on_chip_rate, on_chip=True)]


def _slice_shape(
    hardware: Generation, devices: int, topology: str | None
) -> tuple[int, ...]:
    if topology is not None:
        return parse_slice(topology).shape
    # The most cube-like slice comes first.
    shapes = (
        candidate.shape
        for candidate in legal_slices(hardware)
        if candidate.devices == devices
    )
    return next(shapes, (max(1, devices // hardware.devices),))


def _extents(device_mesh: Any, axis: int, torus_dimensions: int) -> tuple[int, ...]:
    """The box around the first devices along a mesh axis: chips in each dimension, and
    last devices on a chip.
    """
    devices = device_mesh.devices
    index: list[Any] = [0] * devices.ndim
    # The devices along the axis, at the first place of every other.
    index[axis] = slice(None)
    coordinates = [
        (*device.coords[:torus_dimensions], device.core_on_chip)
        for device in devices[tuple(index)]
    ]
    return tuple(len(set(column)) for column in zip(*coordinates, strict=True))


def _rings_of_box(
    extents: Sequence[int], size: int, dimensions: list[Ring], hardware: Generation
) -> tuple[Ring, ...]:
    """The rows and rings of a box; a single ring if the devices do not fill the box."""
    if prod(extents) != size:
        return (_single_ring(size, hardware),)
    # Part of a ring is an open row.
    rings = [
        dataclasses.replace(
            whole, size=part, closed=whole.closed and part == whole.size
        )
        for part, whole in zip(extents, dimensions, strict=True)
    ]
    return tuple(ring for ring in rings if ring.size > 1)


def _single_ring(size: int, hardware: Generation) -> Ring:
    # Two devices have one link between them.
    return Ring(size, closed=size > 2, rate=hardware.link.value / hardware.devices)


def _quality(rings: tuple[Ring, ...]) -> tuple[int, ...]:
    """What makes one box better than another: devices on one chip, links, closed rings,
    few hops.
    """
    on_chip, between_chips = _by_place(rings)
    return (
        prod(ring.size for ring in on_chip),
        sum(ring.links for ring in between_chips),
        sum(ring.closed for ring in between_chips),
        -sum(ring.hops for ring in between_chips),
    )


def _divisors(size: int) -> list[int]:
    return [part for part in range(1, size + 1) if size % part == 0]
