"""Numbers and names as reports write them: memory in GiB (2**30 bytes), traffic in GB
(10**9 bytes).
"""

import math
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final, TypeAlias

from tpuport.hardware import GENERATIONS, GIB

Number: TypeAlias = float | int

# Prefixes of units, the largest first.
_BINARY: Final = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_DECIMAL: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_FRACTIONS: Final = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_WORDS: Final = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))

# What has memory of its own, by the devices on a chip.
_MEMORY_UNITS: Final = {1: "chip", 2: "device"}
# Operations that do not run at the rate of bf16, in the order in which they are listed.
_OPERATION_PHRASES: Final = {
    "int8_flops": "{} in int8",
    "fp8_flops": "{} in fp8",
    "pass_flops": "and {} more as float32 products take several passes",
}
# The parts of `Memory` that add up to what is used.
MEMORY_PARTS: Final = (
    "weights",
    "cache",
    "arguments",
    "outputs",
    "temporaries",
    "code",
)


def optional(render: Callable[[Any], str], value: Any, missing: str = "") -> str:
    """The value as text, or another text if it is None."""
    if value is None:
        return missing
    return render(value)


def memory_size(nbytes: Number) -> str:
    """Bytes in memory: "10.94 GiB"."""
    return _with_prefix(nbytes, "B", _BINARY)


def gib(nbytes: Number) -> str:
    """Bytes in memory, always in GiB: "10.94"."""
    return f"{nbytes / GIB:.2f}"


def used_memory(memory: dict[str, Any]) -> str:
    """What is used of the capacity: "10.94 of 31.25 GiB"."""
    capacity = f"{gib(memory['capacity'])} GiB"
    used = memory["used"]
    if used is None:
        return f"more than the {capacity}"
    # In GiB, less than a tenth would read as 0.00 to 0.09.
    if used < GIB / 10:
        return f"{memory_size(used)} of {capacity}"
    return f"{gib(used)} of {capacity}"


def memory_parts(memory: dict[str, Any]) -> dict[str, int | None]:
    """The bytes of each part, None if unknown; and "other" if a program that does not
    fit uses more than those.
    """
    parts = {part: memory[part] for part in MEMORY_PARTS}
    other = (memory["used"] or 0) - sum(filter(None, parts.values()))
    if other > 0:
        parts["other"] = other
    return parts


def memory_unit(generation: str) -> str:
    """What memory figures are of: "chip", or "device" if a chip has two."""
    return _MEMORY_UNITS[GENERATIONS[generation].devices]


def traffic(nbytes: Number) -> str:
    """Bytes that are read, written or sent: "1.75 GB"."""
    return _with_prefix(nbytes, "B", _DECIMAL)


def flops(count: Number) -> str:
    """Operations: "13.5 GFLOP"."""
    return _with_prefix(count, "FLOP", _DECIMAL)


def rate(per_second: Number, unit: str) -> str:
    """An amount a second: "197 TFLOP/s"."""
    return f"{_with_prefix(per_second, unit, _DECIMAL)}/s"


def duration(seconds: Number) -> str:
    """A time: "2.14 ms"."""
    # Estimates of a small collective may be fractions of a nanosecond.
    if 0 < seconds < 1e-9:
        return f"{seconds / 1e-9:.2g} ns"
    return _with_prefix(seconds, "s", _FRACTIONS)


def long_duration(seconds: Number) -> str:
    """A time that people wait: "6 min 10 s", "2 h 5 min"; below a minute as `duration`
    gives it.
    """
    if seconds < 59.5:
        return duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def plain_number(value: Number) -> str:
    """A count or a rate without a unit: "12,345" or "3.21"."""
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return _three_digits(value)


def number_in_words(number: int) -> str:
    """A large count: "6.74 billion"."""
    for size, name in _WORDS:
        if number >= size:
            return f"{number / size:.2f} {name}"
    return f"{number:,}"


def has_program(report: dict[str, Any]) -> bool:
    """Whether the compiler made a program. One whose code could not be generated may
    still have its collectives.
    """
    return report["costs"] is not None or bool(report["collectives"])


def dimensions(shape: list[int]) -> str:
    """A shape as HLO writes it: "[8,128]"."""
    return f"[{','.join(map(str, shape))}]"


def units_per_second(units: dict[str, Any]) -> str:
    """The rate of an estimate or a split: "14,815 tokens"; "" if there is none."""
    if not units["units_per_second"]:
        return ""
    return f"{plain_number(units['units_per_second'])} {units['unit']}"


def title(target: str, topology: str, report: dict[str, Any] | None) -> str:
    """The title of a result: "llama-2-7b, decode on v5e:2x4"."""
    # A forward call goes without saying, and the names of some targets say their task.
    if report is not None and report["task"] not in f"forward {target}":
        target = f"{target}, {report['task']}"
    return f"{target} on {topology}"


def run_headline(run: dict[str, Any]) -> str:
    """A whole run in one line: "a clip of 121 frames of 720x1280: 6 min 10 s on
    v6e:2x4".
    """
    text = f"{run['product']}: {long_duration(run['seconds'])} on {run['topology']}"
    if run["missing"]:
        text += f", without {', '.join(run['missing'])}"
    return text


def run_part(part: dict[str, Any]) -> tuple[str, str, str, str]:
    """A program of a run, how often it is called, the time of a call, and of all."""
    return (
        part["target"], f"{part['times']:,g} x", duration(part["seconds"]),
        f"= {long_duration(part['times'] * part['seconds'])}",
    )  # fmt: skip


def mesh_name(sizes: dict[str, int], devices: int = 1) -> str:
    """Axis sizes without axes of one device: "tp=8"; "tp=8 over 8 devices" if their
    number is given.
    """
    axes = " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    if not axes:
        return "one device"
    if devices == 1:
        return axes
    return f"{axes} over {devices} devices"


def split_name(split: dict[str, Any]) -> str:
    """The mesh of a split, and the scheme of its weights: "tp=8, int8"."""
    return ", ".join(filter(None, (mesh_name(split["mesh"]), split["quantize"])))


def compiled_inputs(report: dict[str, Any]) -> dict[str, str]:
    """What the program was compiled for, without what the user left open."""
    return {name: value for name, value in report["inputs"].items() if value != "None"}


def short_source(source: dict[str, Any]) -> str:
    """A line of code with the end of its path: "llama/modeling_llama.py:123"."""
    return f"{'/'.join(PurePath(source['file']).parts[-2:])}:{source['line']}"


def kernel_work(kernel: dict[str, Any]) -> str:
    """A kernel's work in a step and its source: "32 times, 1.2 GFLOP, 3 GB, counted
    over its grid".
    """
    basis = "by its own estimate"
    if kernel["source"] == "counted":
        basis = "counted over its grid"
        if kernel["bound"]:
            basis += f" ({kernel['bound']})"
    return f"{kernel['count']:,} times, {flops(kernel['flops'])}, {traffic(kernel['hbm_bytes'])}, {basis}"


def operations(costs: dict[str, Any], per: str = "") -> str:
    """All operations of a step, with what explains their number.

    Args:
        costs: of the report.
        per: follows the number, such as " a device".
    """
    parts = [flops(costs["flops"]) + per]
    # Far more operations than the model has, few of them in products: the products were
    # turned into elementwise work.
    is_elementwise = costs["product_flops"] < costs["model_flops"] / 2
    if is_elementwise and costs["flops"] >= 1.3 * costs["model_flops"]:
        parts.append(
            "counted elementwise: a product of a matrix and one vector is some 4 operations a weight where the "
            "model's are 2; nothing is computed twice"
        )
    parts += [
        phrase.format(flops(costs[field]))
        for field, phrase in _OPERATION_PHRASES.items()
        if costs[field]
    ]
    return ", ".join(parts)


def model_operations(costs: dict[str, Any], per: str = "") -> str:
    """The model's operations, and how often the program computes its products; "" if
    the model has none.
    """
    model_flops = costs["model_flops"]
    if not model_flops:
        return ""
    text = flops(model_flops) + per
    # With fewer product FLOPs than the model's, the compiler has turned products into
    # elementwise work.
    if costs["product_flops"] < model_flops:
        return text
    text += f"; the program's products are {costs['product_flops'] / model_flops:.2f} times that"
    if costs["expanded_flops"]:
        text += ", as few rows are multiplied by all experts"
    if costs["digit_flops"]:
        text += ", as few rows are multiplied digit by digit"
    return text


def attention_reasons(call: dict[str, Any], *fields: str) -> str:
    """Why an attention call is computed the way it is."""
    return "; ".join(call[field] for field in fields if call[field])


def _with_prefix(
    value: Number, unit: str, prefixes: tuple[tuple[Number, str], ...]
) -> str:
    for size, prefix in prefixes:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _three_digits(value: Number) -> str:
    """Three significant digits, without an exponent, and at most two decimals."""
    # Decimals that 1, 10 and 100 leave room for.
    decimals = 2 - math.floor(math.log10(abs(value) or 1.0))
    return f"{value:,.{min(2, max(0, decimals))}f}"
