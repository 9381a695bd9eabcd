"""Why a program does not fit: how much it takes, what takes most, and what to do about
it.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from tpuport.topology.abstract_weights import local_nbytes
from tpuport.topology.compile_report import Failure, Memory
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

# Compiler options with which there is a program although it does not fit: the same that
# there would be if it did. If one part is larger than the memory, there is none: no
# code can have its addresses.
ALLOW_OVERSIZE: Final[dict[str, str | bool]] = {"xla_tpu_no_crash_on_oom": True}

_EXCEEDED: Final = re.compile(rf"Exceeded hbm capacity by {SIZE}")
_TWO_CORES: Final = re.compile(
    rf"TensorCore Hbm usage: {SIZE}, SparseCore Hbm usage:? {SIZE}, exceeding available bytes: {SIZE}"
)
# What a program needs, and what there is, of HBM if no space is named; the first that
# the message has.
_NEEDED: Final = (
    re.compile(rf"Used {SIZE} of {SIZE} hbm"),
    re.compile(rf"\({SIZE}\) exceeds available HBM \({SIZE}\)"),
    re.compile(rf"Requires {SIZE}, has {SIZE} available"),
    re.compile(rf"Used {SIZE} of {SIZE} (?P<space>[a-z]+)\."),
)
_KERNEL_NAME: Final = re.compile(r'op_name="([^"]*)"|:: ([\w.-]+)\.?\s*$')
_MOST_WEIGHTS: Final = 2  # that a remedy names
_MOST_LINES: Final = 3  # that a message names
_NEGLIGIBLE: Final = (
    0.01  # of the capacity: a line that makes less is not why a program does not fit
)
_MORE_DEVICES: Final = "spread it over more devices (--tp, a larger topology)"
_SMALLER_INPUTS: Final = f"{_MORE_DEVICES}, give it less at once (--batch, --length), or avoid the largest arrays"
_RULES: Final = "tpuport.ShardingRules({...}), or --rules FILE"
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class _Need(NamedTuple):
    """Bytes of one memory space that a program needs, and that there are; 0 if the
    compiler does not say.
    """

    used: int
    capacity: int
    space: str = "HBM"


def requested_hbm(message: str) -> int | None:
    """How many bytes of one device's HBM the compiler says a program needs; None if it
    does not say.
    """
    need = _read_need(message)
    if need.space != "HBM":
        return None
    return need.used or None


def explain_oversize(
    message: str,
    memory: Memory | None = None,
    assignment: BufferAssignment | None = None,
    weights: Mapping[str, Any] | None = None,
) -> Failure:
    """Why a program does not fit, and what takes most.

    Args:
        message: what the compiler said: "RESOURCE_EXHAUSTED: ...".
        memory: what is known about what it takes.
        assignment: of the compiler; the arrays are those that are live when they take
            most, and the outputs. Without it, they are those that the message lists.
        weights: by name, with their shardings.

    Returns:
        The failure; its buffers are in the order of what their lines of code take
        together, largest first.
    """
    need = _read_need(message)
    if memory is not None and memory.used is not None:
        need = _Need(memory.used, memory.capacity)
    if need.space != "HBM":
        return _kernel_failure(message, need)
    arrays = listed_arrays(message)
    if assignment is not None:
        arrays = assigned_arrays(assignment)
    lines = group_by_line(arrays)
    decisive = [line for line in lines if line.nbytes >= _NEGLIGIBLE * need.capacity]
    text = f"{_describe_need(need)}{_describe_parts(memory)}{_describe_gaps(assignment, memory)}"
    return _failure(
        f"{text}; {_describe_arrays(decisive, assignment)}",
        _remedy(memory, weights),
        decisive,
        lines,
        message,
    )


def _failure(
    text: str,
    remedy: str,
    decisive: Sequence[LineArrays],
    lines: Sequence[LineArrays],
    message: str,
) -> Failure:
    """A failure at the first of the decisive lines, with the arrays of all lines."""
    return Failure(
        "memory",
        text,
        source=next((line.source for line in decisive), None),
        remedy=remedy,
        buffers=tuple(itertools.chain.from_iterable(line.buffers for line in lines)),
        traceback=message,
    )


def _kernel_failure(message: str, need: _Need) -> Failure:
    """A kernel that needs more than there is of a memory close to the cores."""
    lines = group_by_line(listed_arrays(message))
    names = [f" ({label or name})" for label, name in _KERNEL_NAME.findall(message)[:1]]
    needed, available = _format_bytes(need.used), _format_bytes(need.capacity)
    text = f"a kernel{''.join(names)} needs {needed} of {need.space}, and there are {available}"
    return _failure(text, "give the kernel smaller blocks", lines, lines, message)


def _read_need(message: str) -> _Need:
    if cores := _TWO_CORES.search(message):
        used = parse_size(cores[1], cores[2]) + parse_size(cores[3], cores[4])
        return _Need(used, parse_size(cores[5], cores[6]))
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
    return _Need(0, 0)


def _describe_need(need: _Need) -> str:
    if not need.used:
        return "the program does not fit into a device's memory, and the compiler does not say by how much"
    used, capacity = _format_bytes(need.used), _format_bytes(need.capacity)
    comparison = "and"
    if need.used > need.capacity:
        comparison = f"{_format_bytes(need.used - need.capacity)} more than"
    return f"the program needs {used} of HBM on each device, {comparison} the {capacity} there are"


def _describe_parts(memory: Memory | None) -> str:
    """What it takes by kind, the largest first, and for which kinds nothing is
    known.
    """
    if memory is None:
        return ""
    sizes = {
        "weights": memory.weights, "cache": memory.cache, "other arguments": memory.arguments,
        "outputs": memory.outputs, "temporaries": memory.temporaries, "code": memory.code,
    }  # fmt: skip
    parts = sorted([(size, name) for name, size in sizes.items() if size], reverse=True)
    remainder = (memory.used or 0) - sum(size for size, _ in parts)
    if remainder > 0:
        unknown = [name for name, size in sizes.items() if size is None]
        parts.append((remainder, _join_names(unknown) or "what the compiler adds"))
    if not parts:
        return ""
    return ": " + ", ".join(f"{_format_bytes(size)} for {name}" for size, name in parts)


def _join_names(names: Sequence[str]) -> str:
    """The names as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _describe_gaps(assignment: BufferAssignment | None, memory: Memory | None) -> str:
    """What is unused between arrays, if it is much."""
    if (
        assignment is None
        or memory is None
        or assignment.gaps < _NEGLIGIBLE * memory.capacity
    ):
        return ""
    return f" ({_format_bytes(assignment.gaps)} of the temporaries are unused between arrays)"


def _describe_arrays(
    lines: Sequence[LineArrays], assignment: BufferAssignment | None
) -> str:
    locations = [
        f"{PurePath(line.source.file).name}:{line.source.line} ({_format_bytes(line.nbytes)})"
        for line in lines[:_MOST_LINES]
        if line.source
    ]
    if locations:
        origin = "list"
        if assignment is not None:
            origin = "buffer assignment"
        return f"the largest arrays, by the compiler's {origin}, come from {', '.join(locations)}"
    if assignment is None:
        return "the compiler wrote no buffer assignment, so that the lines of the largest arrays are not known"
    return "the compiler does not say which lines the largest arrays come from"


def _remedy(memory: Memory | None, weights: Mapping[str, Any] | None) -> str:
    if memory is None:
        return _SMALLER_INPUTS
    # They grow with the batch and the length, where weights do not.
    known = filter(None, (memory.arguments, memory.outputs, memory.temporaries))
    # What the compiler does not divide by kind is activations too.
    activations = max(sum(known), (memory.used or 0) - memory.weights - memory.cache)
    if activations >= max(memory.weights, memory.cache):
        return _SMALLER_INPUTS
    spread = _spread_remedy(weights)
    if memory.cache > memory.weights:
        return f"{spread}, or make the cache smaller (--max-cache-len, --batch)"
    return f"{spread}, so that each holds fewer weights, or hold them in fewer bits (--dtype bfloat16)"


def _spread_remedy(weights: Mapping[str, Any] | None) -> str:
    """What gives a device less: more devices for weights that are divided, or rules
    that divide them.
    """
    if weights is None:
        return f"{_MORE_DEVICES}, where rules divide the weights ({_RULES})"
    names = _replicated_weights(weights)
    if not names:
        return _MORE_DEVICES
    return (
        f"say which weights tp divides, as most are whole on every device: {_RULES}, beginning with the largest, "
        f"{', '.join(names[:_MOST_WEIGHTS])}, and --tp over all devices"
    )


def _replicated_weights(weights: Mapping[str, Any]) -> list[str]:
    """Weights that every one of several devices has whole, largest first; none if most
    bytes are divided.
    """
    sizes = {name: local_nbytes(weight) for name, weight in weights.items()}
    whole = [
        name
        for name, weight in weights.items()
        if len(weight.sharding.device_set) > 1 and weight.sharding.is_fully_replicated
    ]
    if 2 * sum(sizes[name] for name in whole) <= sum(sizes.values()):
        return []
    return sorted(whole, key=lambda name: (-sizes[name], name))


def _format_bytes(nbytes: int) -> str:
    for size, unit in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{nbytes} B"
