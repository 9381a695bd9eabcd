"""Programs that do not fit: how much they want, and which lines of code make the arrays that take most."""

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final, NamedTuple

from tpuport.topology import hlo
from tpuport.topology.failures import live
from tpuport.topology.report import Buffer, Failure, Memory, Source

# Compiler options with which there is a program although it does not fit: the same that there would be if it did.
# How much memory it wants, and for what, is then known exactly.
UNFIT: Final[dict[str, str | bool]] = {"xla_tpu_no_crash_on_oom": True}

_SIZE: Final = r"([\d.]+)([KMGTP]?)i?B?"
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_HBM: Final = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
)
_CORES: Final = re.compile(
    rf"TensorCore Hbm usage: {_SIZE}, SparseCore Hbm usage:? {_SIZE}, exceeding available bytes: {_SIZE}"
)
_OTHER: Final = re.compile(rf"Used {_SIZE} of {_SIZE} (vmem|smem|[a-z]+)\.")
_ALLOCATION: Final = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)"
    r"(?:.*?\bshape = '([^'{]*))?.*?\bspace=(\w+)(?:.*?\btag = '([^']*)')?"
)
# An entry of the compiler's list: "1. Size: 2.00G", then lines "Name: value".
_ENTRY: Final = re.compile(rf"^\s*\d+\. Size: {_SIZE}\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^\s+(Operator|Shape|Unpadded size|XLA label|Tag|Source): (.*)$", re.MULTILINE)
_OPCODE: Final = re.compile(r"= ?(?:\S+ )?([a-z][\w-]*)\(")
_PLACE: Final = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_SOURCE: Final = re.compile(r"(.+?):(\d+)")
_WINDOW: Final = re.compile(r"(input|output) window.*?window shape is (\S+?),? ")
_WEIGHT: Final = re.compile(r"weights\['(.+?)'\]")
_NAMED: Final = 2
_LISTED: Final = 12
_TOLD: Final = 3


class Line(NamedTuple):
    """Arrays that one line of code makes: how much they take together."""

    source: Source | None
    nbytes: int
    buffers: tuple[Buffer, ...]


class _Wanted(NamedTuple):
    used: int
    capacity: int
    space: str


def used(message: str) -> int | None:
    """How many bytes of HBM the compiler says that a program wants on one device; None where it does not say."""
    wanted = _wanted(message)
    return wanted.used if wanted and wanted.space == "HBM" else None


def too_large(message: str, program_text: str | None = None, memory: Memory | None = None) -> Failure:
    """Why a program does not fit, and what takes most.

    Args:
        message: what the compiler said: "RESOURCE_EXHAUSTED: ...".
        program_text: of the program compiled with `UNFIT`. The arrays are then those that it holds when it holds most;
            otherwise those that the message lists, where it lists any.
        memory: of the program compiled with `UNFIT`.

    Returns:
        The failure; its buffers are in the order of what their lines of code take together, largest first.
    """
    wanted = _wanted(message)
    if memory is not None and memory.used is not None:
        wanted = _Wanted(memory.used, memory.capacity, "HBM")
    buffers = _at_peak(program_text) if program_text else _listed(message)
    lines = by_line(buffers)
    ordered = tuple(one for line in lines for one in line.buffers)
    if wanted is not None and wanted.space != "HBM":
        return Failure(
            "memory", _kernel(message, wanted), source=lines[0].source if lines else None, buffers=ordered,
            remedy="give the kernel smaller blocks", traceback=message,
        )  # fmt: skip
    arguments, spread = _arguments(memory), _spread(program_text)
    return Failure(
        "memory", f"{_said(wanted)}{arguments}{_largest(lines)}", source=lines[0].source if lines else None,
        remedy=_remedy(memory, spread), buffers=ordered, traceback=message,
    )  # fmt: skip


def by_line(buffers: Iterable[Buffer]) -> tuple[Line, ...]:
    """Arrays by the line of code that makes them, what takes most first."""
    found: dict[tuple[str, int] | None, list[Buffer]] = {}
    for one in buffers:
        found.setdefault((one.source.file, one.source.line) if one.source else None, []).append(one)
    lines = [
        Line(
            group[0].source, sum(_total(one) for one in group), tuple(sorted(group, key=_total, reverse=True))
        )
        for group in found.values()
    ]
    return tuple(sorted(lines, key=lambda line: -line.nbytes))


def _total(one: Buffer) -> int:
    return one.nbytes * one.count


def _wanted(message: str) -> _Wanted | None:
    for pattern in _HBM:
        if found := pattern.search(message):
            return _Wanted(_bytes(found[1], found[2]), _bytes(found[3], found[4]), "HBM")
    if found := _CORES.search(message):
        both = _bytes(found[1], found[2]) + _bytes(found[3], found[4])
        return _Wanted(both, _bytes(found[5], found[6]), "HBM")
    if found := _OTHER.search(message):
        return _Wanted(_bytes(found[1], found[2]), _bytes(found[3], found[4]), found[5].upper())
    if found := _ALLOCATION.search(message):
        return _Wanted(int(found[1]), int(found[2]), found[4].upper())
    return None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _listed(message: str) -> list[Buffer]:
    """The arrays that a message lists under "Largest program allocations", or the one that it is about."""
    if one := _ALLOCATION.search(message):
        tag = one[5] or ""
        return [Buffer(_shape(tag, one[3] or ""), int(one[1]), _tagged(tag) or "allocation", 1)]
    entries = list(_ENTRY.finditer(message))
    ends = [*(entry.start() for entry in entries[1:]), len(message)][: len(entries)]
    found: dict[tuple[str, int, str, Source | None], int] = {}
    for entry, end in zip(entries, ends, strict=True):
        fields = dict(_FIELD.findall(message[entry.end() : end]))
        tag, opcode = fields.get("Tag", ""), _OPCODE.search(fields.get("XLA label", ""))
        made = _tagged(tag) or (opcode[1] if opcode else "")
        shape = _shape(tag, fields.get("Shape", "").partition("{")[0])
        key = shape, _bytes(entry[1], entry[2]), made, _source(fields)
        found[key] = found.get(key, 0) + 1
    return [Buffer(shape, size, made, count, source) for (shape, size, made, source), count in found.items()]


def _tagged(tag: str) -> str:
    """What an allocation in a kernel is for: "input window", "scratch operand"."""
    window = _WINDOW.search(tag)
    return f"{window[1]} window" if window else tag.partition(".")[0]


def _shape(tag: str, shape: str) -> str:
    """The array's, where the compiler gives its bytes as the shape."""
    window = _WINDOW.search(tag)
    return window[2] if window else shape


def _source(fields: dict[str, str]) -> Source | None:
    if place := _PLACE.search(fields.get("Operator", "")):
        return Source(place[1], int(place[2] or 0), "")
    if place := _SOURCE.match(fields.get("Source", "")):
        return Source(place[1], int(place[2]), "")
    return None


def _at_peak(text: str) -> list[Buffer]:
    """The largest arrays that a program holds when it holds most, those of one line and shape together."""
    program = hlo.parse(text)
    found: dict[tuple[str, int, str, Source | None], int] = {}
    for array, instruction, size, _ in live.at_peak(program):
        key = str(array.bare), size, instruction.operation, program.source(instruction)
        found[key] = found.get(key, 0) + 1
    buffers = [
        Buffer(shape, size, made, count, source) for (shape, size, made, source), count in found.items()
    ]
    return sorted(buffers, key=_total, reverse=True)[:_LISTED]


def _said(wanted: _Wanted | None) -> str:
    if wanted is None:
        return "the program does not fit into a device's memory, and the compiler does not say by how much"
    more = wanted.used - wanted.capacity
    over = f", {_room(more)} more than" if more > 0 else ", and"
    return f"the program wants {_room(wanted.used)} of HBM on each device{over} the {_room(wanted.capacity)} there are"


def _kernel(message: str, wanted: _Wanted) -> str:
    place = re.search(r'op_name="([^"]*)"|:: ([\w.-]+)\.?\s*$', message)
    name = f" ({place[1] or place[2]})" if place else ""
    return (
        f"a kernel{name} wants {_room(wanted.used)} of {wanted.space}, and there are {_room(wanted.capacity)}"
    )


def _arguments(memory: Memory | None) -> str:
    if memory is None:
        return ""
    named = {
        "weights": memory.weights, "cache": memory.cache, "other arguments": memory.arguments,
        "outputs": memory.outputs, "temporaries": memory.temporaries, "code": memory.code,
    }  # fmt: skip
    parts = sorted(((size, name) for name, size in named.items() if size > 0), reverse=True)
    return ": " + ", ".join(f"{_room(size)} for {name}" for size, name in parts) if parts else ""


def _largest(lines: tuple[Line, ...]) -> str:
    told = [f"{_place(line.source)} ({_room(line.nbytes)})" for line in lines[:_TOLD] if line.source]
    return f"; the largest arrays come from {', '.join(told)}" if told else ""


def _place(source: Source | None) -> str:
    return f"{PurePath(source.file).name}:{source.line}" if source else ""


def _spread(program_text: str | None) -> str:
    """What gives a device less: more devices for weights that are divided, or rules that divide them."""
    more = "spread it over more devices (--tp, a larger topology)"
    rules = "tpuport.ShardingRules({...}), or --rules FILE"
    if program_text is None:
        return f"{more}, where rules divide the weights ({rules})"
    names = _held_whole(hlo.parse(program_text))
    if not names:
        return more
    return (
        f"say which weights tp divides, as most are whole on every device: {rules}, beginning with the largest, "
        f"{', '.join(names[:_NAMED])}, and --tp over all devices"
    )


def _held_whole(program: hlo.Program) -> list[str]:
    """Weights of which every device of several has all, largest first; none where most are divided."""
    found: list[tuple[int, str]] = []
    total = 0
    for one in program.computations[program.entry].parameters.values():
        name = _WEIGHT.match(one.op_name.replace("\\'", "'"))
        if name is None:
            continue
        size = sum(array.tiled_nbytes for array in one.arrays)
        total += size
        if "sharding={replicated}" in one.attributes:
            found.append((size, name[1]))
    whole = sum(size for size, _ in found)
    return [name for _, name in sorted(found, key=lambda one: (-one[0], one[1]))] if 2 * whole > total else []


def _remedy(memory: Memory | None, spread: str) -> str:
    if memory is None or memory.temporaries >= max(memory.weights, memory.cache):
        return f"{spread}, give it less at once (--batch, --length), or avoid the largest arrays"
    if memory.cache > memory.weights:
        return f"{spread}, or make the cache smaller (--max-cache-len, --batch)"
    return f"{spread}, so that each holds fewer weights, or hold them in fewer bits (--dtype bfloat16)"


def _room(nbytes: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= size:
            return f"{nbytes / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{nbytes} B"
