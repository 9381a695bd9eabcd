"""Why a program does not fit: how much it takes, what takes most, and what to do about it."""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from tpuport.topology import hlo
from tpuport.topology.compile_report import Buffer, Failure, Memory
from tpuport.topology.memory.buffer_assignment import BufferAssignment
from tpuport.topology.memory.large_arrays import (
    ALLOCATION,
    SIZE,
    LineArrays,
    assigned_arrays,
    group_by_line,
    listed_arrays,
    parse_size,
)

# Compiler options with which there is a program although it does not fit: the same that there would be if it did. If
# one part is larger than the memory, there is none: no code can have its addresses.
ALLOW_OVERSIZE: Final[dict[str, str | bool]] = {"xla_tpu_no_crash_on_oom": True}

_EXCEEDED: Final = re.compile(rf"Exceeded hbm capacity by {SIZE}")
_TWO_CORES: Final = re.compile(
    rf"TensorCore Hbm usage: {SIZE}, SparseCore Hbm usage:? {SIZE}, exceeding available bytes: {SIZE}"
)
# What a program needs, and what there is, of HBM if no space is named; the first that the message has.
_NEEDED: Final = (
    re.compile(rf"Used {SIZE} of {SIZE} hbm"),
    re.compile(rf"\({SIZE}\) exceeds available HBM \({SIZE}\)"),
    re.compile(rf"Requires {SIZE}, has {SIZE} available"),
    re.compile(rf"Used {SIZE} of {SIZE} (?P<space>[a-z]+)\."),
)
_KERNEL_NAME: Final = re.compile(r'op_name="([^"]*)"|:: ([\w.-]+)\.?\s*$')
_WEIGHT: Final = re.compile(r"weights\['(.+?)'\]")
_MOST_WEIGHTS: Final = 2  # that a remedy names
_MOST_LINES: Final = 3  # that a message names
_NEGLIGIBLE: Final = 0.01  # of the capacity: a line that makes less is not why a program does not fit
_MORE_DEVICES: Final = "spread it over more devices (--tp, a larger topology)"
_SMALLER_INPUTS: Final = (
    f"{_MORE_DEVICES}, give it less at once (--batch, --length), or avoid the largest arrays"
)
_RULES: Final = "tpuport.ShardingRules({...}), or --rules FILE"
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class _Need(NamedTuple):
    """Bytes of one memory space that a program needs, and that there are."""

    used: int
    capacity: int
    space: str


def requested_hbm(message: str) -> int | None:
    """How many bytes of one device's HBM the compiler says a program needs; None if it does not say."""
    need = _read_need(message)
    return need.used if need and need.space == "HBM" else None


def explain_oversize(
    message: str, memory: Memory | None = None, assignment: BufferAssignment | None = None
) -> Failure:
    """Why a program does not fit, and what takes most.

    Args:
        message: what the compiler said: "RESOURCE_EXHAUSTED: ...".
        memory: what is known about what it takes.
        assignment: of the compiler; the arrays are those that are live when they take most, and the outputs. Without
            it, they are those that the message lists.

    Returns:
        The failure; its buffers are in the order of what their lines of code take together, largest first.
    """
    need = _read_need(message)
    if memory is not None and memory.used is not None:
        need = _Need(memory.used, memory.capacity, "HBM")
    if need is not None and need.space != "HBM":
        return _kernel_failure(message, need)
    lines = group_by_line(assigned_arrays(assignment) if assignment else listed_arrays(message))
    threshold = _NEGLIGIBLE * need.capacity if need else 0
    decisive = [line for line in lines if line.nbytes >= threshold]
    text = f"{_describe_need(need)}{_describe_parts(memory)}{_describe_gaps(assignment, memory)}"
    return Failure(
        "memory",
        f"{text}; {_describe_arrays(decisive, assignment)}",
        source=decisive[0].source if decisive else None,
        remedy=_remedy(memory, assignment),
        buffers=_all_buffers(lines),
        traceback=message,
    )


def _kernel_failure(message: str, need: _Need) -> Failure:
    """A kernel that needs more than there is of a memory close to the cores."""
    lines = group_by_line(listed_arrays(message))
    match = _KERNEL_NAME.search(message)
    name = f" ({match[1] or match[2]})" if match else ""
    return Failure(
        "memory",
        f"a kernel{name} needs {_format_bytes(need.used)} of {need.space}, and there are "
        f"{_format_bytes(need.capacity)}",
        source=lines[0].source if lines else None,
        remedy="give the kernel smaller blocks",
        buffers=_all_buffers(lines),
        traceback=message,
    )


def _all_buffers(lines: Iterable[LineArrays]) -> tuple[Buffer, ...]:
    return tuple(buffer for line in lines for buffer in line.buffers)


def _read_need(message: str) -> _Need | None:
    if cores := _TWO_CORES.search(message):
        used = parse_size(cores[1], cores[2]) + parse_size(cores[3], cores[4])
        return _Need(used, parse_size(cores[5], cores[6]), "HBM")
    for match in filter(None, (pattern.search(message) for pattern in _NEEDED)):
        used, capacity = parse_size(match[1], match[2]), parse_size(match[3], match[4])
        space = match.groupdict().get("space", "HBM").upper()
        # This says it exactly if both figures are rounded to the same.
        exceeded = _EXCEEDED.search(message)
        if exceeded is not None and space == "HBM":
            used = max(used, capacity + parse_size(exceeded[1], exceeded[2]))
        return _Need(used, capacity, space)
    if allocation := ALLOCATION.search(message):
        return _Need(int(allocation[1]), int(allocation[2]), allocation[4].upper())
    return None


def _describe_need(need: _Need | None) -> str:
    if need is None:
        return "the program does not fit into a device's memory, and the compiler does not say by how much"
    used, capacity = _format_bytes(need.used), _format_bytes(need.capacity)
    excess = need.used - need.capacity
    comparison = f"{_format_bytes(excess)} more than" if excess > 0 else "and"
    return f"the program needs {used} of HBM on each device, {comparison} the {capacity} there are"


def _describe_parts(memory: Memory | None) -> str:
    """What it takes by kind, the largest first, and for which kinds nothing is known."""
    if memory is None:
        return ""
    sizes = {
        "weights": memory.weights, "cache": memory.cache, "other arguments": memory.arguments,
        "outputs": memory.outputs, "temporaries": memory.temporaries, "code": memory.code,
    }  # fmt: skip
    known = {name: size for name, size in sizes.items() if size is not None}
    parts = sorted([(size, name) for name, size in known.items() if size], reverse=True)
    remainder = (memory.used or 0) - sum(known.values())
    if remainder > 0:
        unknown = [name for name in sizes if name not in known]
        parts.append((remainder, _join_names(unknown) or "what the compiler adds"))
    if not parts:
        return ""
    return ": " + ", ".join(f"{_format_bytes(size)} for {name}" for size, name in parts)


def _join_names(names: Sequence[str]) -> str:
    """The names as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _describe_gaps(assignment: BufferAssignment | None, memory: Memory | None) -> str:
    """What is unused between arrays, if it is much."""
    if assignment is None or memory is None or assignment.gaps < _NEGLIGIBLE * memory.capacity:
        return ""
    return f" ({_format_bytes(assignment.gaps)} of the temporaries are unused between arrays)"


def _describe_arrays(lines: Sequence[LineArrays], assignment: BufferAssignment | None) -> str:
    locations = [
        f"{PurePath(line.source.file).name}:{line.source.line} ({_format_bytes(line.nbytes)})"
        for line in lines[:_MOST_LINES]
        if line.source
    ]
    if locations:
        origin = "by the compiler's buffer assignment" if assignment else "by the compiler's list"
        return f"the largest arrays, {origin}, come from {', '.join(locations)}"
    if assignment is None:
        return (
            "the compiler wrote no buffer assignment, so that the lines of the largest arrays are not known"
        )
    return "the compiler does not say which lines the largest arrays come from"


def _remedy(memory: Memory | None, assignment: BufferAssignment | None) -> str:
    if memory is None:
        return _SMALLER_INPUTS
    # They grow with the batch and the length, where weights do not.
    known = filter(None, (memory.arguments, memory.outputs, memory.temporaries))
    # What the compiler does not divide by kind is activations too.
    activations = max(sum(known), (memory.used or 0) - memory.weights - memory.cache)
    if activations >= max(memory.weights, memory.cache):
        return _SMALLER_INPUTS
    spread = _spread_remedy(assignment)
    if memory.cache > memory.weights:
        return f"{spread}, or make the cache smaller (--max-cache-len, --batch)"
    return f"{spread}, so that each holds fewer weights, or hold them in fewer bits (--dtype bfloat16)"


def _spread_remedy(assignment: BufferAssignment | None) -> str:
    """What gives a device less: more devices for weights that are divided, or rules that divide them."""
    if assignment is None:
        return f"{_MORE_DEVICES}, where rules divide the weights ({_RULES})"
    names = _replicated_weights(hlo.parse(assignment.text))
    if not names:
        return _MORE_DEVICES
    return (
        f"say which weights tp divides, as most are whole on every device: {_RULES}, beginning with the largest, "
        f"{', '.join(names[:_MOST_WEIGHTS])}, and --tp over all devices"
    )


def _replicated_weights(program: hlo.Program) -> list[str]:
    """Weights that every one of several devices has whole, largest first; none if most bytes are divided."""
    if "num_partitions=" not in program.header:
        return []  # there is one device
    sizes: dict[str, int] = {}
    total = 0
    for parameter in program.parameters.values():
        if name := _WEIGHT.match(parameter.op_name):
            nbytes = sum(array.tiled_nbytes for array in parameter.arrays)
            total += nbytes
            if "sharding={replicated}" in parameter.attributes:
                sizes[name[1]] = nbytes
    if 2 * sum(sizes.values()) <= total:
        return []
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def _format_bytes(nbytes: int) -> str:
    for size, unit in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{nbytes} B"
