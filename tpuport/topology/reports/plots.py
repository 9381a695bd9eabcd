"""The roofline as SVG: what the chip can do at each intensity, and where the program is."""

import math
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from tpuport.topology.reports import units

_WIDTH: Final = 440.0
_HEIGHT: Final = 290.0
_LEFT: Final = 62.0
_RIGHT: Final = 14.0
_TOP: Final = 26.0
_BOTTOM: Final = 44.0


class Axes:
    """Two logarithmic axes over whole decades.

    Args:
        x, y: (least, most) that must be on them; positive.
    """

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x = _decades(*x)
        self.y = _decades(*y)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where on the picture a point is, rounded for the file."""
        right = (math.log10(x) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(y) - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(_LEFT + right * (_WIDTH - _LEFT - _RIGHT), 2),
            round(_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM), 2),
        )


def roofline(costs: dict[str, Any], estimate: dict[str, Any]) -> str:
    """An svg element; empty where the program has no operations or reads nothing.

    The roofs are the peaks that the estimate was made with: what the program does over the time that it takes there.

    Args:
        costs, estimate: of a report's plain values.
    """
    flops, nbytes = float(costs["flops"]), float(costs["hbm_bytes"])
    if not (flops > 0 and nbytes > 0 and estimate["compute"] > 0 and estimate["memory"] > 0):
        return ""
    peak, bandwidth = flops / estimate["compute"], nbytes / estimate["memory"]
    intensity, ridge = flops / nbytes, peak / bandwidth
    reached = flops / estimate["seconds"]
    apart = flops / estimate["seconds_apart"]
    low, high = min(intensity, ridge) / 3, max(intensity, ridge) * 3
    axes = Axes((low, high), (min(apart, bandwidth * low), peak))
    body = "".join(
        (
            *_grid(axes),
            _roof(axes, peak, bandwidth),
            _net(axes, flops, float(estimate["interconnect"])),
            _point(axes, intensity, reached, apart),
        )
    )
    told = (
        f"Roofline: {intensity:.3g} FLOP a byte of HBM, at most {units.rate(reached, 'FLOP')} of "
        f"{units.rate(peak, 'FLOP')}"
    )
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" aria-label="{escape(told)}" '
        f'data-intensity="{intensity:.6g}" data-reached="{reached:.6g}" data-peak="{peak:.6g}">{body}</svg>'
    )


def _grid(axes: Axes) -> Iterator[str]:
    bottom, top = 10.0 ** axes.y[0], 10.0 ** axes.y[1]
    left, right = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    for power in range(axes.x[0], axes.x[1] + 1):
        x, y = axes.at(10.0**power, bottom)
        yield _line("grid", (x, y), axes.at(10.0**power, top))
        yield _text(x, y + 16, f"{10.0**power:g}", "middle")
    for power in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(left, 10.0**power)
        yield _line("grid", (x, y), axes.at(right, 10.0**power))
        yield _text(x - 6, y + 4, units.flops(10.0**power).removesuffix("FLOP").strip(), "end")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "FLOP a byte of HBM", "middle")
    yield _text(4.0, 14.0, "FLOP/s of one device", "start")


def _roof(axes: Axes, peak: float, bandwidth: float) -> str:
    left, right = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    start = max(left, 10.0 ** axes.y[0] / bandwidth)
    corners = [(start, bandwidth * start), (peak / bandwidth, peak), (right, peak)]
    points = " ".join(f"{x},{y}" for x, y in (axes.at(*corner) for corner in corners))
    x, y = axes.at(right, peak)
    label = _text(x - 4, y - 6, f"peak {units.rate(peak, 'FLOP')}", "end")
    x, y = axes.at(*corners[0])
    slope = _text(x + 8, min(y - 14, _HEIGHT - _BOTTOM - 30), f"HBM {units.rate(bandwidth, 'B')}", "start")
    return f'<polyline class="roof" points="{points}"/>{label}{slope}'


def _net(axes: Axes, flops: float, interconnect: float) -> str:
    """What the interconnect lets the program reach, where that is on the picture."""
    if not interconnect or not axes.y[0] < math.log10(flops / interconnect) < axes.y[1]:
        return ""
    at = flops / interconnect
    x, y = axes.at(10.0 ** axes.x[1], at)
    return _line("net", axes.at(10.0 ** axes.x[0], at), (x, y)) + _text(x - 4, y + 14, "interconnect", "end")


def _point(axes: Axes, intensity: float, reached: float, apart: float) -> str:
    x, y = axes.at(intensity, reached)
    right = x < (_LEFT + _WIDTH) / 2
    label = _text(x + (10 if right else -10), y + 18, "this program", "start" if right else "end", "said")
    line = _line("apart", (x, y), axes.at(intensity, apart))
    return f'{line}<circle class="point" cx="{x}" cy="{y}" r="6"/>{label}'


def _line(name: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{name}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def _text(x: float, y: float, text: str, anchor: str, name: str = "") -> str:
    kind = f' class="{name}"' if name else ""
    return f'<text{kind} x="{round(x, 2)}" y="{round(y, 2)}" text-anchor="{anchor}">{escape(text)}</text>'


def _decades(least: float, most: float) -> tuple[int, int]:
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most) + 0.05)
    return low, max(high, low + 1)
