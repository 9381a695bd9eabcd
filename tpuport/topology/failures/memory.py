"""Programs that do not fit: how much they want, and which lines of code make the arrays that take most."""

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final, NamedTuple

from tpuport.topology import hlo
from tpuport.topology.compile_report import Buffer, Failure, Memory, Source
from tpuport.topology.failures import live, origins
from tpuport.topology.failures.assigned import Assignment

# Compiler options with which there is a program although it does not fit: the same that there would be if it did. Where
# one part is larger than the memory, there is none: no code can have its addresses.
UNFIT: Final[dict[str, str | bool]] = {"xla_tpu_no_crash_on_oom": True}

_SIZE: Final = r"([\d.]+)([KMGTP]?)i?B?"
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_HBM: Final = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
)
_EXCEEDED: Final = re.compile(rf"Exceeded hbm capacity by {_SIZE}")
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
_SPREAD: Final = "spread it over more devices (--tp, a larger topology)"
_SAID: Final = 0.01  # of the capacity: what is less does not decide


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


def too_large(
    message: str,
    program_text: str | None = None,
    memory: Memory | None = None,
    assigned: Assignment | None = None,
    traced: tuple[Buffer, ...] = (),
) -> Failure:
    """Why a program does not fit, and what takes most.

    Args:
        message: what the compiler said: "RESOURCE_EXHAUSTED: ...".
        program_text: of the program compiled with `UNFIT`.
        memory: what is known of what it takes.
        assigned: what the compiler set aside. The arrays are those that it holds when it holds most, and the outputs;
            without it, they are reckoned from `program_text`; without that, they are those that the message lists; and
            where it lists none, `traced`.
        traced: arrays as they were traced, the largest first.

    Returns:
        The failure; its buffers are in the order of what their lines of code take together, largest first.
    """
    wanted = _wanted(message)
    if memory is not None and memory.used is not None:
        wanted = _Wanted(memory.used, memory.capacity, "HBM")
    if wanted is not None and wanted.space != "HBM":
        return _kernel_too_large(message, wanted)
    buffers, whose = _arrays(message, program_text, assigned, traced)
    lines = by_line(buffers)
    spread = _spread(assigned.text if assigned else program_text)
    decisive = [line for line in lines if wanted is None or line.nbytes >= _SAID * wanted.capacity]
    said = f"{_said(wanted)}{_parts(memory)}{_gaps(assigned, memory)}{_largest(decisive, whose)}"
    return Failure(
        "memory", said, source=decisive[0].source if decisive else None, remedy=_remedy(memory, spread),
        buffers=tuple(one for line in lines for one in line.buffers), traceback=message,
    )  # fmt: skip


def _kernel_too_large(message: str, wanted: "_Wanted") -> Failure:
    lines = by_line(_listed(message))
    return Failure(
        "memory", _kernel(message, wanted), source=lines[0].source if lines else None,
        buffers=tuple(one for line in lines for one in line.buffers),
        remedy="give the kernel smaller blocks", traceback=message,
    )  # fmt: skip


def _arrays(
    message: str, program_text: str | None, assigned: Assignment | None, traced: tuple[Buffer, ...]
) -> tuple[Iterable[Buffer], str]:
    """The arrays that take most, and how that is known."""
    if assigned is not None:
        return _set_aside(assigned), "by the compiler's buffer assignment"
    if program_text:
        return _at_peak(program_text), "reckoned from the compiled program"
    listed = _listed(message)
    if listed or not traced:
        return listed, "by the compiler's list"
    return traced, "as traced, before the compiler fuses and divides them"


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
            wanted, capacity = _bytes(found[1], found[2]), _bytes(found[3], found[4])
            more = _EXCEEDED.search(message)  # says it exactly where both figures are rounded to the same
            return _Wanted(
                max(wanted, capacity + _bytes(more[1], more[2])) if more else wanted, capacity, "HBM"
            )
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


def _set_aside(assigned: Assignment) -> list[Buffer]:
    """What the compiler holds when it holds most, those of one line and shape together."""
    program = hlo.parse(assigned.text)
    named = {one.name: one for one in program.instructions}
    found: dict[tuple[str, int, str, Source | None], int] = {}
    for value in assigned.held:
        made = named.get(value.instruction)
        if value.type.startswith("("):
            continue  # a tuple: a few addresses
        shape = value.type.partition("{")[0]
        source = origins.source(program, made, value.place) if made else None
        key = shape, value.nbytes, made.operation if made else "", source
        found[key] = found.get(key, 0) + 1
    return _most(found)


def _at_peak(text: str) -> list[Buffer]:
    """The largest arrays that a program holds when it holds most, those of one line and shape together."""
    program = hlo.parse(text)
    found: dict[tuple[str, int, str, Source | None], int] = {}
    for array, instruction, size, _ in live.at_peak(program):
        key = str(array.bare), size, instruction.operation, program.source(instruction)
        found[key] = found.get(key, 0) + 1
    return _most(found)


def _most(found: dict[tuple[str, int, str, Source | None], int]) -> list[Buffer]:
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


def _parts(memory: Memory | None) -> str:
    """What it takes by kind, the largest first, and of which kinds nothing is known."""
    if memory is None:
        return ""
    named = {
        "weights": memory.weights, "cache": memory.cache, "other arguments": memory.arguments,
        "outputs": memory.outputs, "temporaries": memory.temporaries, "code": memory.code,
    }  # fmt: skip
    known = {name: size for name, size in named.items() if size is not None}
    parts = sorted(((size, name) for name, size in known.items() if size > 0), reverse=True)
    rest = (memory.used or 0) - sum(known.values())
    if rest > 0:
        unknown = [name for name, size in named.items() if size is None] or ["what the compiler adds"]
        parts.append((rest, " and ".join([", ".join(unknown[:-1]), unknown[-1]] if unknown[1:] else unknown)))
    return ": " + ", ".join(f"{_room(size)} for {name}" for size, name in parts) if parts else ""


def _gaps(assigned: Assignment | None, memory: Memory | None) -> str:
    """What lies unused between arrays, where it is much."""
    if assigned is None or memory is None or assigned.gaps < _SAID * memory.capacity:
        return ""
    return f" ({_room(assigned.gaps)} of the temporaries lie unused between arrays)"


def _largest(lines: list[Line], whose: str) -> str:
    told = [f"{_place(line.source)} ({_room(line.nbytes)})" for line in lines[:_TOLD] if line.source]
    return f"; the largest arrays, {whose}, come from {', '.join(told)}" if told else ""


def _place(source: Source | None) -> str:
    return f"{PurePath(source.file).name}:{source.line}" if source else ""


def _spread(program_text: str | None) -> str:
    """What gives a device less: more devices for weights that are divided, or rules that divide them."""
    rules = "tpuport.ShardingRules({...}), or --rules FILE"
    if program_text is None:
        return f"{_SPREAD}, where rules divide the weights ({rules})"
    names = _held_whole(hlo.parse(program_text))
    if not names:
        return _SPREAD
    return (
        f"say which weights tp divides, as most are whole on every device: {rules}, beginning with the largest, "
        f"{', '.join(names[:_NAMED])}, and --tp over all devices"
    )


def _held_whole(program: hlo.Program) -> list[str]:
    """Weights of which every device of several has all, largest first; none where most are divided."""
    found: list[tuple[int, str]] = []
    total = 0
    if "num_partitions=" not in program.header:
        return []  # there is one device
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
    if memory is None or _others(memory) >= max(memory.weights, memory.cache):
        return f"{_SPREAD}, give it less at once (--batch, --length), or avoid the largest arrays"
    if memory.cache > memory.weights:
        return f"{spread}, or make the cache smaller (--max-cache-len, --batch)"
    return f"{spread}, so that each holds fewer weights, or hold them in fewer bits (--dtype bfloat16)"


def _others(memory: Memory) -> int:
    """Bytes for all but weights and cache: they grow with what is given at once."""
    known = (memory.arguments, memory.outputs, memory.temporaries)
    return max(sum(size or 0 for size in known), (memory.used or 0) - memory.weights - memory.cache)


def _room(nbytes: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= size:
            return f"{nbytes / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{nbytes} B"
