"""Slice shapes that can be rented, and the ways in which people write them.

Two dimensions (v5e, v6e): eight shapes up to the pod of 16x16. Three dimensions (v4, v5p, tpu7x): four shapes within a
cube of 4x4x4 chips, and cubes beside each other, every dimension a multiple of 4 and none smaller than the one before,
up to the pod. libtpu itself describes more than that: any multiple of a host's 2x2 chips, of any size.
Sources: the pages of `hardware.FIGURES`, docs.cloud.google.com/tpu/docs/types-topologies and `hardware.XPK`.
"""

import difflib
import functools
import re
from math import prod
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.hardware import FIGURES, GIB, Figure

Shape = tuple[int, ...]

_FLAT: Final[tuple[Shape, ...]] = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_WITHIN_A_CUBE: Final[tuple[Shape, ...]] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_EDGE: Final = 4
_CUBE: Final = _EDGE**3
# The shapes that Google's pages list; the pages say that there are more.
_LISTED: Final[tuple[Shape, ...]] = (
    (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16), (16, 16, 24), (16, 16, 36),
)  # fmt: skip
# The smallest slice of whole hosts, which a generation's bare name stands for.
_SMALLEST: Final = {2: (2, 2), 3: (2, 2, 1)}
# What else a generation is called before the dash of an accelerator type, such as v5litepod-8.
_ALIASES: Final = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x"}
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_LAYOUT: Final = re.compile(rf"{_NUMBER.pattern}(x{_NUMBER.pattern})+")


@functools.cache
def shapes(generation: str) -> tuple[Shape, ...]:
    """Every legal shape of a generation in chips, fewest chips first, then the most cube-like."""
    figures = FIGURES[generation]
    if figures.dimensions == 2:
        return _FLAT
    most = figures.pod // _CUBE
    cubes = [
        (a, b, c)
        for a in range(1, most + 1)
        for b in range(a, most // a + 1)
        for c in range(b, most // (a * b) + 1)
    ]
    whole = [tuple(_EDGE * size for size in cube) for cube in cubes]
    return tuple(sorted((*_WITHIN_A_CUBE, *whole), key=lambda shape: (prod(shape), max(shape))))


def legal() -> dict[str, tuple[str, ...]]:
    """The names of every legal slice by generation, fewest chips first: "v5e:2x4"."""
    return {
        generation: tuple(_name(generation, shape) for shape in shapes(generation)) for generation in FIGURES
    }


def check(name: str) -> str:
    """The full name of a legal slice, however it is written: "v6e" and "v6e-4" are "v6e:2x2".

    An accelerator type counts chips (v5litepod-8, v6e-8) or, where a chip has two cores, cores (v4-8, v5p-16).

    Raises:
        PortError: there is no such slice; names the nearest that there are.
    """
    generation, colon, layout = name.partition(":")
    if generation in FIGURES and not colon:
        return _name(generation, _SMALLEST[FIGURES[generation].dimensions])
    if generation not in FIGURES:
        return _accelerator(name)
    if not _LAYOUT.fullmatch(layout):
        raise _unknown(name, generation, _count(layout))
    shape = tuple(map(int, layout.split("x")))
    if shape not in shapes(generation):
        raise _illegal(name, generation, shape)
    return name


def shape_of(name: str) -> Shape:
    """The chips of a checked slice in each dimension: (2, 4) of "v5e:2x4"."""
    return tuple(map(int, name.partition(":")[2].split("x")))


def devices_of(name: str) -> int:
    """How many devices jax shows of a checked slice."""
    return prod(shape_of(name)) * FIGURES[name.partition(":")[0]].devices


def options(name: str) -> dict[str, Any]:
    """What `get_topology_desc` has to be told to describe a checked slice, besides its name.

    One chip is a host of its own. The two cores of a v4 chip are one device, as jax shows them on a real one, where
    `hardware.FIGURES` has it so.
    """
    generation, shape = name.partition(":")[0], shape_of(name)
    told: dict[str, Any] = {}
    if prod(shape) == 1:
        told["chips_per_host_bounds"] = (1, 1, 1)
    if generation == "v4" and FIGURES["v4"].devices == 1:
        told["chip_config_name"] = "megacore"
    return told


def listing(every: bool = False) -> list[dict[str, Any]]:
    """A row for each slice: those that Google's pages list, or every legal one.

    Returns:
        Rows with name, generation, shape, chips, devices; bytes of HBM a chip and a device; a chip's FLOP/s in bf16,
        its bytes a second to HBM, over all links both ways, and over one link one way; and the source of each figure.
    """
    return [
        _row(generation, shape)
        for generation, figures in FIGURES.items()
        for shape in shapes(generation)
        if every or figures.dimensions == 2 or shape in _LISTED or shape in _WITHIN_A_CUBE
    ]


def markdown() -> str:
    """The tables of docs/topologies.md: figures of each generation with their sources, and slices."""
    return f"## Figures\n\n{_generations()}\n\n## Slices\n\n{_slices()}\n\n## Sources\n\n{_sources()}"


def _row(generation: str, shape: Shape) -> dict[str, Any]:
    figures, chips = FIGURES[generation], prod(shape)
    return {
        "name": _name(generation, shape), "generation": generation, "shape": list(shape), "chips": chips,
        "devices": chips * figures.devices, "hbm_per_chip": figures.hbm.value, "hbm_per_device": figures.device.hbm,
        "peak_bf16": figures.bf16.value, "hbm_bandwidth": figures.hbm_bandwidth.value,
        "ici_bandwidth": figures.ici.value, "link_bandwidth": figures.link.value, "sources": figures.sources,
    }  # fmt: skip


def _name(generation: str, shape: Shape) -> str:
    return f"{generation}:{'x'.join(map(str, shape))}"


def _count(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _accelerator(name: str) -> str:
    """The slice that an accelerator type such as "v5litepod-8" stands for."""
    called, dash, counted = name.rpartition("-")
    generation = _ALIASES.get(called, called)
    count = _count(counted) if dash else None
    if generation not in FIGURES or not count:
        raise _unknown(name)
    figures = FIGURES[generation]
    chips, rest = divmod(count, figures.cores)
    fitting = [shape for shape in shapes(generation) if prod(shape) == chips]
    if rest or not fitting:
        counts = f"{called}-{count} counts {'cores, two a chip' if figures.cores > 1 else 'chips'}"
        raise PortError(
            f'no TPU slice is called "{name}": {counts}, and no slice has that many',
            where="topology", fix=f"use {_nearest(generation, max(1, chips))}",
        )  # fmt: skip
    return _name(generation, fitting[0])


def _illegal(name: str, generation: str, shape: Shape) -> PortError:
    figures = FIGURES[generation]
    ordered = next((one for one in shapes(generation) if sorted(one) == sorted(shape)), None)
    if len(shape) != figures.dimensions:
        why = f"{generation} has {figures.dimensions} dimensions"
    elif ordered:
        return PortError(
            f'no TPU slice is called "{name}": its dimensions are written in another order',
            where="topology", fix=f"use {_name(generation, ordered)}",
        )  # fmt: skip
    elif figures.dimensions == 2:
        why = f"{generation} has slices of {', '.join('x'.join(map(str, one)) for one in _FLAT)}"
    elif prod(shape) > figures.pod:
        why = f"that is {prod(shape)} chips, and a slice of {generation} has {figures.pod} at most"
    else:
        within = ", ".join("x".join(map(str, one)) for one in _WITHIN_A_CUBE)
        why = f"{generation} has slices of {within}, and those whose every dimension is a multiple of 4"
    return PortError(
        f'no TPU slice is called "{name}": {why}',
        where="topology", fix=f"use {_nearest(generation, prod(shape))}",
    )  # fmt: skip


def _unknown(name: str, generation: str | None = None, chips: int | None = None) -> PortError:
    if generation and chips:
        fitting = [one for one in shapes(generation) if prod(one) == chips]
        hint = f": {_name(generation, fitting[0])} has {chips} chips" if fitting else ""
        return PortError(
            f'no TPU slice is called "{name}": a slice is written as a layout{hint}',
            where="topology", fix=f"use {_nearest(generation, chips)}",
        )  # fmt: skip
    smallest = [check(one) for one in FIGURES]
    near = difflib.get_close_matches(name, [*FIGURES, *(row["name"] for row in listing())], n=1)
    return PortError(
        f'no TPU slice is called "{name}"' + (f"; did you mean {near[0]}?" if near else ""),
        where="topology",
        fix=f"use one of {', '.join(smallest)}, v5e:2x4, v6e:2x4 or a larger layout, "
        f"or {', '.join(FIGURES)} for the smallest",
    )


def _nearest(generation: str, chips: int) -> str:
    """The slices with the most chips below that number, the fewest above it, and that number."""
    counts = sorted({prod(shape) for shape in shapes(generation)})
    below = [count for count in counts if count < chips][-1:]
    above = [count for count in counts if count > chips][:1]
    wanted = [*below, *([chips] if chips in counts else []), *above]
    first = [next(shape for shape in shapes(generation) if prod(shape) == count) for count in wanted]
    return " or ".join(f"{_name(generation, one)} ({prod(one)} chip{'s' * (prod(one) > 1)})" for one in first)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ("---",) * len(header), *rows))


def _generations() -> str:
    header = (
        "a chip of", "HBM", "bf16 TFLOP/s", "int8 TOP/s", "fp8 TFLOP/s", "HBM GB/s", "ICI GB/s, both ways",
        "a link GB/s, one way", "torus", "TensorCores", "devices", "chips at most",
    )  # fmt: skip
    rows = []
    for generation, one in FIGURES.items():
        low = [f"{low.value / 1e12:g}" if low else "" for low in (one.int8, one.fp8)]
        rows.append((
            f"[{one.name}]({one.page}), `{generation}`", f"{one.hbm.value / GIB:g} GiB", f"{one.bf16.value / 1e12:g}",
            *low, *(f"{rate.value / 1e9:g}" for rate in (one.hbm_bandwidth, one.ici, one.link)), f"{one.dimensions}D",
            str(one.cores), str(one.devices), str(one.pod),
        ))  # fmt: skip
    return _table(header, rows)


def _sources() -> str:
    rows = []
    for generation, one in FIGURES.items():
        for name in one.sources:
            figure = getattr(one, name)
            rows.append(
                (
                    f"`{generation}`",
                    name,
                    _shown(figure),
                    f"<{figure.source}>",
                    figure.note,
                )
            )
    return _table(("generation", "figure", "value", "source", "note"), rows)


def _shown(figure: Figure) -> str:
    size, unit = {
        "bytes": (GIB, "GiB"),
        "bytes/s": (1e9, "GB/s"),
        "FLOP/s": (1e12, "TFLOP/s"),
        "s": (1e-6, "µs"),
    }[figure.unit]
    return f"{figure.value / size:g} {unit}"


def _slices() -> str:
    rows = [(f"`{row['name']}`", str(row["chips"]), str(row["devices"])) for row in listing()]
    return _table(("slice", "chips", "devices"), rows)


if __name__ == "__main__":
    import pathlib

    page = pathlib.Path(__file__).parents[2] / "docs/topologies.md"
    text = page.read_text(encoding="utf-8")
    mark = "python -m tpuport.topology.slices` -->\n"
    page.write_text(text[: text.index(mark) + len(mark)] + "\n" + markdown() + "\n", encoding="utf-8")
