"""Numbers as reports write them: room in memory in GiB (2**30 bytes), what is moved in GB (10**9 bytes)."""

import math
from pathlib import PurePath
from typing import Any, Final, TypeAlias

from tpuport.hardware import GENERATIONS

Number: TypeAlias = float | int

_BINARY: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_DECIMAL: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def room(nbytes: Number | None) -> str:
    """Bytes that memory holds: "10.94 GiB"."""
    if nbytes is None:
        return "unknown"
    for size, unit in _BINARY:
        if abs(nbytes) >= size:
            return f"{_three(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def gib(nbytes: Number) -> str:
    """Bytes that memory holds, in GiB whatever their number: "10.94"."""
    return f"{nbytes / (1 << 30):.2f}"


def rest(memory: dict[str, Any], parts: tuple[str, ...]) -> int:
    """Bytes that are used by none of the parts: what the compiler wanted for parts that are not known."""
    return max(0, (memory["used"] or 0) - sum(memory[name] or 0 for name in parts))


def used(memory: dict[str, Any]) -> str:
    """What is used of the capacity: "10.94 of 31.25 GiB"."""
    capacity = f"{gib(memory['capacity'])} GiB"
    if memory["used"] is None:
        return f"more than the {capacity}"
    small = memory["used"] < (1 << 30) / 10
    return f"{room(memory['used']) if small else gib(memory['used'])} of {capacity}"


def title(target: str, topology: str, report: dict[str, Any] | None) -> str:
    """Of a result: "llama-2-7b, decode on v5e:2x4"."""
    task = report["task"] if report else "forward"
    return f"{target}{'' if task == 'forward' or task in target else f', {task}'} on {topology}"


def counted(number: int) -> str:
    """A large number of things in words: "6.74 billion"."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.2f} {name}"
    return f"{number:,}"


def moved(nbytes: Number) -> str:
    """Bytes that are read, written or sent: "1.75 GB"."""
    return _scaled(nbytes, "B")


def flops(count: Number) -> str:
    """Operations: "13.5 GFLOP"."""
    return _scaled(count, "FLOP")


def kernel(one: dict[str, Any]) -> str:
    """What a kernel does in a step, and what that rests on: "32 times, 1.2 GFLOP, 3 GB, counted over its grid"."""
    if one["source"] == "kernel":
        basis = "by its own estimate"
    else:
        basis = "counted over its grid" + (f" ({one['bound']})" if one["bound"] else "")
    return f"{one['count']:,} times, {flops(one['flops'])}, {moved(one['hbm_bytes'])}, {basis}"


def rate(per_second: Number, unit: str) -> str:
    """So much a second: "197 TFLOP/s"."""
    return f"{_scaled(per_second, unit)}/s"


def span(seconds: Number) -> str:
    """A time: "2.14 ms"."""
    for size, unit in _SECONDS:
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return "0 s" if seconds <= 0 else f"{seconds / 1e-9:.2g} ns"


def number(value: Number) -> str:
    """A count or a rate without a unit: "12,345" or "3.21"."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else _three(value)


def share(part: Number, whole: Number) -> float:
    """A part of a whole, from 0 to 1."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def mesh(sizes: dict[str, int], devices: int = 1) -> str:
    """Axis sizes: "tp=8", without the axes of one device; "tp=8 over 8 devices" where their number is given."""
    shown = " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    return f"{shown}{f' over {devices} devices' if devices > 1 else ''}".strip() if shown else "one device"


def inputs(report: dict[str, Any]) -> dict[str, str]:
    """What the program was compiled for, without a cache's length that nobody set."""
    unset = ("max_cache_len", "None")
    return {name: value for name, value in report["inputs"].items() if (name, value) != unset}


def place(source: dict[str, Any] | None) -> str:
    """A line of code, with as much of its path as tells files apart: "llama/modeling_llama.py:123"."""
    if not source:
        return ""
    return f"{'/'.join(PurePath(source['file']).parts[-2:])}:{source['line']}"


def device(generation: str) -> str:
    """What memory figures are of: "chip", or "device" where a chip is two."""
    return "chip" if GENERATIONS[generation].devices == 1 else "device"


def _scaled(value: Number, unit: str) -> str:
    for size, prefix in _DECIMAL:
        if abs(value) >= size:
            return f"{_three(value / size)} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _three(value: Number) -> str:
    """Three significant digits, never an exponent."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(0, min(2, digits))}f}"


def done(costs: dict[str, Any]) -> str:
    """How often the program does the model's products; nothing where the compiler has made them elementwise work."""
    if costs["product_flops"] < costs["model_flops"] or not costs["model_flops"]:
        return ""
    why = ", as few rows are multiplied by all experts" if costs["expanded_flops"] else ""
    return f"; the program's products are {costs['product_flops'] / costs['model_flops']:.2f} times that{why}"


def rates(costs: dict[str, Any]) -> str:
    """Products that are not done at bfloat16's rate: ", 1.2 GFLOP in int8"; nothing where there are none."""
    said = [f"{flops(costs[f'{one}_flops'])} in {one}" for one in ("int8", "fp8") if costs[f"{one}_flops"]]
    if costs["pass_flops"]:
        said.append(f"and {flops(costs['pass_flops'])} more as float32 products take several passes")
    return "".join(f", {one}" for one in said)


def elementwise(costs: dict[str, Any]) -> str:
    """Why there are more operations than the model's, where its products are elementwise work: none is done twice."""
    if costs["product_flops"] >= costs["model_flops"] / 2 or costs["flops"] < 1.3 * costs["model_flops"]:
        return ""
    return (
        ", counted elementwise: a product of a matrix and one vector is some 4 operations a weight where the model's "
        "are 2; nothing is computed twice"
    )
