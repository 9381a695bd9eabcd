"""The roofline as SVG: what the chip can do at each arithmetic intensity, and where the
program is.
"""

import math
from collections.abc import Iterator
from html import escape
from typing import Any, Final, NamedTuple

from tpuport.topology.reports import quantities

# The picture and its margins, in SVG units.
_WIDTH: Final = 440.0
_HEIGHT: Final = 290.0
_LEFT: Final = 66.0
_RIGHT: Final = 26.0
_TOP: Final = 26.0
_BOTTOM: Final = 44.0
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")

Point = tuple[float, float]


class Rates(NamedTuple):
    """What the plot shows: FLOP/s of one device, bytes/s of HBM, and FLOP a byte.

    Attributes:
        peak, bandwidth: that the estimate was made with: the program's work over the
            time that it takes at the peak.
        intensity: of the program.
        reached: FLOP/s with compute, memory and interconnect at the same time; apart:
            one after another.
        interconnect: FLOP/s if only the interconnect took time; None if the program
            sends nothing, or too little for the axes.
    """

    peak: float
    bandwidth: float
    intensity: float
    reached: float
    apart: float
    interconnect: float | None = None


class Axes:
    """Two logarithmic axes over whole decades.

    Args:
        x, y: the least and the largest value that must fit on them; positive.
    """

    def __init__(self, x: Point, y: Point) -> None:
        self.x = _decades(*x)
        self.y = _decades(*y)
        self.left, self.right = (10.0**power for power in self.x)
        self.bottom, self.top = (10.0**power for power in self.y)

    def position(self, x: float, y: float) -> Point:
        """The SVG coordinates of a point, rounded for the file."""
        right = (math.log10(x) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(y) - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(_LEFT + right * (_WIDTH - _LEFT - _RIGHT), 2),
            round(_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM), 2),
        )


def roofline(costs: dict[str, Any], estimate: dict[str, Any]) -> str:
    """A figure with an svg element; "" if the program has no operations or no HBM
    traffic.

    Args:
        costs, estimate: of a report's plain values.
    """
    flops, nbytes = float(costs["flops"]), float(costs["hbm_bytes"])
    # Logarithms need positive numbers.
    if min(flops, nbytes, estimate["compute"], estimate["memory"]) <= 0:
        return ""
    rates = Rates(
        peak=flops / estimate["compute"],
        bandwidth=nbytes / estimate["memory"],
        intensity=flops / nbytes,
        reached=flops / estimate["seconds"],
        apart=flops / estimate["seconds_apart"],
    )
    # Where the slope meets the roof: with less intensity, HBM binds.
    ridge = rates.peak / rates.bandwidth
    left = min(rates.intensity, ridge) / 3
    right = max(rates.intensity, ridge) * 3
    axes = Axes((left, right), (min(rates.apart, rates.bandwidth * left), rates.peak))
    if estimate["interconnect"]:
        interconnect = flops / estimate["interconnect"]
        # A line far above the roof would only make the picture small.
        if axes.bottom < interconnect < axes.top:
            rates = rates._replace(interconnect=interconnect)
    body = "".join(
        [
            *_grid(axes),
            _roof(axes, rates),
            _interconnect(axes, rates),
            _program(axes, rates),
        ]
    )
    return (
        f'<figure><svg class="plot" role="img" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" aria-label="roofline" '
        f'data-intensity="{rates.intensity:.6g}" data-reached="{rates.reached:.6g}" data-peak="{rates.peak:.6g}">'
        f"{body}</svg><figcaption>{_caption(rates)}</figcaption></figure>"
    )


def _caption(rates: Rates) -> str:
    peak, bandwidth = (
        quantities.rate(rates.peak, "FLOP"),
        quantities.rate(rates.bandwidth, "B"),
    )
    reached, apart = (
        quantities.rate(rates.reached, "FLOP"),
        quantities.rate(rates.apart, "FLOP"),
    )
    rows = [_caption_row("roof", f"what a device can do: {peak}, HBM {bandwidth}")]
    if rates.interconnect is not None:
        bound = quantities.rate(rates.interconnect, "FLOP")
        rows.append(
            _caption_row("net", f"what the interconnect leaves time for: {bound}")
        )
    intensity = quantities.plain_number(rates.intensity)
    text = f"this program: {intensity} FLOP a byte of HBM, {reached} at most, {apart} without overlap"
    rows.append(_caption_row("point", text))
    return "".join(rows)


def _caption_row(name: str, text: str) -> str:
    return f'<p><i class="key {name}"></i>{escape(text)}</p>'


def _grid(axes: Axes) -> Iterator[str]:
    # A line and a label for each decade.
    for power in range(axes.x[0], axes.x[1] + 1):
        x, y = axes.position(10.0**power, axes.bottom)
        yield _line("grid", (x, y), axes.position(10.0**power, axes.top))
        yield _label(x, y + 16, f"{10.0**power:g}", "middle")
    for power in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.position(axes.left, 10.0**power)
        yield _line("grid", (x, y), axes.position(axes.right, 10.0**power))
        yield _label(x - 6, y + 4, _engineering_notation(power), "end")
    yield _label(
        (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "FLOP a byte of HBM", "middle"
    )
    yield _label(4.0, 14.0, "FLOP/s of one device", "start")


def _roof(axes: Axes, rates: Rates) -> str:
    # The slope starts on the left axis or on the bottom one.
    start = max(axes.left, axes.bottom / rates.bandwidth)
    corners = [
        axes.position(start, rates.bandwidth * start),
        axes.position(rates.peak / rates.bandwidth, rates.peak),
        axes.position(axes.right, rates.peak),
    ]
    points = " ".join(f"{x},{y}" for x, y in corners)
    return f'<polyline class="roof" points="{points}"/>'


def _interconnect(axes: Axes, rates: Rates) -> str:
    """The line that the interconnect does not let the program exceed."""
    if rates.interconnect is None:
        return ""
    start = axes.position(axes.left, rates.interconnect)
    return _line("net", start, axes.position(axes.right, rates.interconnect))


def _program(axes: Axes, rates: Rates) -> str:
    """A point, and a line down to what the program reaches without overlap."""
    x, y = axes.position(rates.intensity, rates.reached)
    line = _line("apart", (x, y), axes.position(rates.intensity, rates.apart))
    return f'{line}<circle class="point" cx="{x}" cy="{y}" r="6"/>'


def _line(name: str, start: Point, end: Point) -> str:
    return f'<line class="{name}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{round(x, 2)}" y="{round(y, 2)}" text-anchor="{anchor}">{escape(text)}</text>'


def _engineering_notation(power: int) -> str:
    """A power of ten with an SI prefix: "10 T"."""
    thousands = min(max(power // 3, 0), len(_PREFIXES) - 1)
    return f"{10.0 ** (power - 3 * thousands):g} {_PREFIXES[thousands]}".strip()


def _decades(least: float, largest: float) -> tuple[int, int]:
    """The powers of ten around an interval, with some room above it."""
    # Rounding up after adding a little leaves room above a roof that is close to a
    # whole decade.
    low = math.floor(math.log10(least))
    high = math.ceil(math.log10(largest) + 0.05)
    return low, max(high, low + 1)
