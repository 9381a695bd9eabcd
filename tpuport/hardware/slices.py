"""Slice shapes that can be rented, and the ways in which people write them.

Two dimensions (v5e, v6e): eight shapes up to the pod of 16x16. Three dimensions (v4,
v5p, tpu7x): four shapes within a cube of 4x4x4 chips, and boxes of cubes, every
dimension a multiple of 4 and none smaller than the one before, up to the pod. libtpu
itself describes more than that: any multiple of a host's 2x2 chips, of any size.

Sources: the pages of `GENERATIONS`, docs.cloud.google.com/tpu/docs/types-topologies,
and github.com/AI-Hypercomputer/xpk/blob/main/src/xpk/core/system_characteristics.py.
"""

import bisect
import difflib
import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.hardware.generations import GENERATIONS, Generation

Shape = tuple[int, ...]

_FLAT: Final[tuple[Shape, ...]] = (
    (1, 1),
    (2, 2),
    (2, 4),
    (4, 4),
    (4, 8),
    (8, 8),
    (8, 16),
    (16, 16),
)
_WITHIN_A_CUBE: Final[tuple[Shape, ...]] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_EDGE: Final = 4
_CUBE: Final = _EDGE**3
# The boxes of cubes that Google's pages list; the pages say that there are more.
_LISTED_BOXES: Final[tuple[Shape, ...]] = (
    (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16), (16, 16, 24), (16, 16, 36),
)  # fmt: skip
_LISTED: Final = frozenset((*_FLAT, *_WITHIN_A_CUBE, *_LISTED_BOXES))
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_LAYOUT: Final = re.compile(rf"{_NUMBER.pattern}(x{_NUMBER.pattern})+")
_ACCELERATOR_TYPE: Final = re.compile(rf"(?P<type>.+)-(?P<count>{_NUMBER.pattern})")
_BY_ACCELERATOR_TYPE: Final = {
    name: generation
    for generation in GENERATIONS.values()
    for name in (generation.name, *generation.accelerator_types)
}


@dataclass(frozen=True)
class Slice:
    """Chips of a generation in a torus of this shape."""

    generation: Generation
    shape: Shape

    @property
    def layout(self) -> str:
        """The shape as it is written: "2x4"."""
        return "x".join(map(str, self.shape))

    @property
    def name(self) -> str:
        """The full name: "v5e:2x4"."""
        return f"{self.generation.name}:{self.layout}"

    @property
    def chips(self) -> int:
        """How many chips it has."""
        return prod(self.shape)

    @property
    def devices(self) -> int:
        """How many devices jax shows of it."""
        return self.chips * self.generation.devices

    @property
    def is_listed(self) -> bool:
        """Whether Google's pages list the shape."""
        return self.shape in _LISTED

    @property
    def libtpu_options(self) -> dict[str, Any]:
        """What `get_topology_desc` needs besides the name in order to describe this
        slice.
        """
        options: dict[str, Any] = {}
        if self.chips == 1:
            # libtpu takes a host to have four chips unless told otherwise.
            options["chips_per_host_bounds"] = (1, 1, 1)
        if self.generation.name == "v4":
            # Makes one device of the two cores of a chip, as jax shows them on a real
            # v4.
            options["chip_config_name"] = "megacore"
        return options


@functools.cache
def legal_slices(generation: Generation) -> tuple[Slice, ...]:
    """Every slice of a generation that can be rented, fewest chips first, then the most
    cube-like.
    """
    shapes: Iterable[Shape] = _FLAT
    if generation.dimensions == 3:
        shapes = _three_dimensional_shapes(generation.pod)
    return tuple(Slice(generation, shape) for shape in shapes)


def listed_slices() -> list[Slice]:
    """The slices of all generations that Google's pages list, in the order of
    `legal_slices`.
    """
    return [candidate for candidate in all_slices() if candidate.is_listed]


def all_slices() -> list[Slice]:
    """The slices of all generations."""
    return list(itertools.chain.from_iterable(map(legal_slices, GENERATIONS.values())))


def _three_dimensional_shapes(pod: int) -> list[Shape]:
    cubes = pod // _CUBE
    shapes = list(_WITHIN_A_CUBE)
    for a in range(1, cubes + 1):
        for b in range(a, cubes // a + 1):
            shapes += [
                (_EDGE * a, _EDGE * b, _EDGE * c)
                for c in range(b, cubes // (a * b) + 1)
            ]
    # The most cube-like of the same size has the shortest longest edge.
    return sorted(shapes, key=lambda shape: (prod(shape), max(shape)))


# What a generation's bare name means: its smallest slice of whole hosts, of 2x2 chips
# each.
_HOSTS: Final = {2: "2x2", 3: "2x2x1"}
SMALLEST_SLICES: Final = {
    name: f"{name}:{_HOSTS[generation.dimensions]}"
    for name, generation in GENERATIONS.items()
}


def parse_slice(name: str) -> Slice:
    """The slice that a name means, however it is written: "v6e" and "v6e-4" are
    "v6e:2x2".

    An accelerator type counts chips (v5litepod-8, v6e-8) or, if a chip has two cores,
    cores (v4-8, v5p-16).

    Raises:
        PortError: there is no such slice; names the nearest that exist.
    """
    generation_name, _, layout = SMALLEST_SLICES.get(name, name).partition(":")
    generation = GENERATIONS.get(generation_name)
    if generation is None:
        return _parse_accelerator_type(name)
    # Another number of dimensions than the generation's is told apart below.
    if not _LAYOUT.fullmatch(layout):
        raise _not_a_layout(name, generation, layout)
    parsed = Slice(generation, tuple(map(int, layout.split("x"))))
    if parsed not in legal_slices(generation):
        raise _illegal(parsed)
    return parsed


def _parse_accelerator_type(name: str) -> Slice:
    match = _ACCELERATOR_TYPE.fullmatch(name)
    if match is None or match["type"] not in _BY_ACCELERATOR_TYPE:
        raise _unknown(name)
    generation = _BY_ACCELERATOR_TYPE[match["type"]]
    chips, half_chip = divmod(int(match["count"]), generation.cores)
    candidates = _slices_with(generation, chips)
    # An odd number of cores would be half a chip.
    if candidates and not half_chip:
        return candidates[0]
    counts = "chips"
    if generation.cores > 1:
        counts = "cores, two a chip"
    raise _no_such_slice(
        name,
        f": {name} counts {counts}, and no slice has that many",
        f"use {_nearest(generation, max(1, chips))}",
    )


def _slices_with(generation: Generation, chips: int) -> list[Slice]:
    return [
        candidate for candidate in legal_slices(generation) if candidate.chips == chips
    ]


def _no_such_slice(name: str, explanation: str, fix: str) -> PortError:
    return PortError(
        f'no TPU slice is called "{name}"{explanation}', where="topology", fix=fix
    )


def _illegal(parsed: Slice) -> PortError:
    for legal in legal_slices(parsed.generation):
        if sorted(legal.shape) == sorted(parsed.shape):
            return _no_such_slice(
                parsed.name,
                ": its dimensions are written in another order",
                f"use {legal.name}",
            )
    explanation = f": {_explain_illegal(parsed)}"
    return _no_such_slice(
        parsed.name, explanation, f"use {_nearest(parsed.generation, parsed.chips)}"
    )


def _explain_illegal(parsed: Slice) -> str:
    generation = parsed.generation
    if len(parsed.shape) != generation.dimensions:
        return f"{generation.name} has {generation.dimensions} dimensions"
    if generation.dimensions == 2:
        return f"{generation.name} has slices of {_layouts(generation, _FLAT)}"
    if parsed.chips > generation.pod:
        return f"that is {parsed.chips} chips, and a slice of {generation.name} has {generation.pod} at most"
    small = _layouts(generation, _WITHIN_A_CUBE)
    return f"{generation.name} has slices of {small}, and those whose every dimension is a multiple of 4"


def _layouts(generation: Generation, shapes: tuple[Shape, ...]) -> str:
    return ", ".join(Slice(generation, shape).layout for shape in shapes)


def _not_a_layout(name: str, generation: Generation, layout: str) -> PortError:
    if not _NUMBER.fullmatch(layout):
        return _unknown(name)
    # "v5e:8" counts chips, and several layouts may have as many.
    chips = int(layout)
    examples = [
        f": {candidate.name} has {chips} chips"
        for candidate in _slices_with(generation, chips)
    ]
    explanation = "".join([": a slice is written as a layout", *examples[:1]])
    return _no_such_slice(name, explanation, f"use {_nearest(generation, chips)}")


def _unknown(name: str) -> PortError:
    names = [candidate.name for candidate in listed_slices()]
    similar = difflib.get_close_matches(name, [*GENERATIONS, *names], n=1)
    return _no_such_slice(
        name,
        "".join(f"; did you mean {match}?" for match in similar),
        f"use one of {', '.join(SMALLEST_SLICES.values())}, v5e:2x4, v6e:2x4 or a larger layout, "
        f"or {', '.join(GENERATIONS)} for the smallest",
    )


def _nearest(generation: Generation, chips: int) -> str:
    """The slices with the most chips below that number, with that number, and with the
    fewest above it.
    """
    by_chips: dict[int, Slice] = {}
    for candidate in legal_slices(generation):
        by_chips.setdefault(candidate.chips, candidate)
    counts = list(by_chips)  # ascending, as the slices are
    first = max(0, bisect.bisect_left(counts, chips) - 1)
    last = bisect.bisect_right(counts, chips)
    return " or ".join(
        f"{by_chips[count].name} ({count} chip{'s' * (count > 1)})"
        for count in counts[first : last + 1]
    )
