"""The roofline as SVG: what the chip can do at each intensity, and where the program is."""

import math
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from tpuport.topology.reports import quantities

_WIDTH: Final = 440.0
_HEIGHT: Final = 290.0
_LEFT: Final = 66.0
_RIGHT: Final = 26.0
_TOP: Final = 26.0
_BOTTOM: Final = 44.0
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


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
    """A figure with an svg element; empty where the program has no operations or reads nothing.

    The roofs are the peaks that the estimate was made with: what the program does over the time that it takes there.

    Args:
        costs, estimate: of a report's plain values.
    """
    flops, nbytes = float(costs["flops"]), float(costs["hbm_bytes"])
    if not (flops > 0 and nbytes > 0 and estimate["compute"] > 0 and estimate["memory"] > 0):
        return ""
    peak, bandwidth = flops / estimate["compute"], nbytes / estimate["memory"]
    intensity, ridge = flops / nbytes, peak / bandwidth
    reached, apart = flops / estimate["seconds"], flops / estimate["seconds_apart"]
    net = flops / estimate["interconnect"] if estimate["interconnect"] else None
    low, high = min(intensity, ridge) / 3, max(intensity, ridge) * 3
    axes = Axes((low, high), (min(apart, bandwidth * low), peak))
    shown = net if net is not None and axes.y[0] < math.log10(net) < axes.y[1] else None
    body = [
        *_grid(axes),
        _roof(axes, peak, bandwidth),
        _net(axes, shown),
        _point(axes, intensity, reached, apart),
    ]
    return (
        f'<figure><svg class="plot" role="img" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" aria-label="roofline" '
        f'data-intensity="{intensity:.6g}" data-reached="{reached:.6g}" data-peak="{peak:.6g}">{"".join(body)}</svg>'
        f"<figcaption>{_caption((peak, bandwidth), (intensity, reached, apart), shown)}</figcaption></figure>"
    )


def _caption(roofs: tuple[float, float], point: tuple[float, float, float], net: float | None) -> str:
    intensity, reached, apart = point
    speeds = f"{quantities.rate(reached, 'FLOP')} at most, "
    speeds += f"{quantities.rate(apart, 'FLOP')} with nothing at the same time"
    rows = [
        (
            "roof",
            f"what a device can do: {quantities.rate(roofs[0], 'FLOP')}, HBM {quantities.rate(roofs[1], 'B')}",
        ),
        ("net", f"what the interconnect leaves time for: {quantities.rate(net, 'FLOP')}" if net else ""),
        ("point", f"this program: {quantities.number(intensity)} FLOP a byte of HBM, {speeds}"),
    ]
    return "".join(f'<p><i class="key {name}"></i>{escape(text)}</p>' for name, text in rows if text)


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
        yield _text(x - 6, y + 4, _tick(power), "end")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "FLOP a byte of HBM", "middle")
    yield _text(4.0, 14.0, "FLOP/s of one device", "start")


def _roof(axes: Axes, peak: float, bandwidth: float) -> str:
    left, right = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    start = max(left, 10.0 ** axes.y[0] / bandwidth)
    corners = [(start, bandwidth * start), (peak / bandwidth, peak), (right, peak)]
    points = " ".join(f"{x},{y}" for x, y in (axes.at(*corner) for corner in corners))
    return f'<polyline class="roof" points="{points}"/>'


def _net(axes: Axes, reached: float | None) -> str:
    """What the interconnect lets the program reach."""
    if reached is None:
        return ""
    return _line("net", axes.at(10.0 ** axes.x[0], reached), axes.at(10.0 ** axes.x[1], reached))


def _point(axes: Axes, intensity: float, reached: float, apart: float) -> str:
    x, y = axes.at(intensity, reached)
    line = _line("apart", (x, y), axes.at(intensity, apart))
    return f'{line}<circle class="point" cx="{x}" cy="{y}" r="6"/>'


def _line(name: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{name}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{round(x, 2)}" y="{round(y, 2)}" text-anchor="{anchor}">{escape(text)}</text>'


def _tick(power: int) -> str:
    """A power of ten in engineering notation: "10 T"."""
    third = min(max(power // 3, 0), len(_PREFIXES) - 1)
    return f"{10.0 ** (power - 3 * third):g} {_PREFIXES[third]}".strip()


def _decades(least: float, most: float) -> tuple[int, int]:
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most) + 0.05)
    return low, max(high, low + 1)
