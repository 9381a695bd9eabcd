"""The Pallas kernels of a program and what they do: as was counted where they were traced, or as they state.

Kernels that the compiler makes by itself are among them: `compiler_kernels` counts those.
"""

import collections
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tpuport.topology.compile_report import Kernel
from tpuport.topology.hlo.array_types import HBM, Array, search_group
from tpuport.topology.hlo.compiler_kernels import count_compiler_kernel
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.kernels.kernel_calls import KernelCall, KernelCost

_ESTIMATE: Final = re.compile(r'"cost_estimate":\{([^{}]*)\}')
_FIELD: Final = re.compile(r'"(\w+)":"?(-?[\d.]+(?:e[+-]?\d+)?)"?')
# What the compiler adds to the name of a kernel of which there are several.
_COPY: Final = re.compile(r"(?:\.clone|\.\d+)+$")
# A kernel without FLOPs still decides which branch is reported.
_TINY: Final = 1e-9


class _Stated(NamedTuple):
    """A kernel's own estimate; None for what it does not state."""

    flops: float | None = None
    nbytes: float | None = None


def is_kernel(instruction: Instruction) -> bool:
    """Whether it is a Pallas kernel."""
    return instruction.target == "tpu_custom_call"


def _stated(instruction: Instruction) -> _Stated:
    """A Pallas kernel's own estimate; nothing for anything else."""
    if not is_kernel(instruction):
        return _Stated()
    estimate = search_group(_ESTIMATE, instruction.attributes)
    fields = {name: float(value) for name, value in _FIELD.findall(estimate)}
    return _Stated(fields.get("flops"), fields.get("bytes_accessed"))


def stated_flops(instruction: Instruction) -> float:
    """FLOPs of a Pallas kernel by its own estimate; 0 for anything else."""
    return _stated(instruction).flops or 0.0


def apply_kernel_costs(program: Program, calls: Sequence[KernelCall]) -> None:
    """Let the program's kernels cost what was counted of the calls that were traced.

    A kernel is matched with calls by its name, the dimensions of its operands and results, and its estimate. If several
    calls match it has their mean, weighted by how often each is made, so that all kernels together cost what all calls
    cost. A kernel that the compiler has made by itself is counted here.
    """
    for instruction in filter(is_kernel, program.instructions):
        cost = count_compiler_kernel(program, instruction, calls)
        cost = cost or _mean_cost(_matching_calls(program, instruction, calls))
        if cost is not None:
            program.kernel_costs[instruction.name] = cost


def _matching_calls(program: Program, kernel: Instruction, calls: Sequence[KernelCall]) -> list[KernelCall]:
    stated = _stated(kernel)
    signature = (
        [array.dims for array in program.operand_arrays(kernel)], [array.dims for array in kernel.results],
        (stated.flops or 0.0, stated.nbytes or 0.0),
    )  # fmt: skip
    matches = [call for call in calls if _signature(call) == signature]
    scope = kernel.op_name.split("/")
    named = [call for call in matches if call.name and call.name.split("/")[-1] in scope]
    # A call without a name may be any kernel, and a kernel of unknown origin any call.
    return named or [call for call in matches if not call.name or not kernel.op_name]


def _signature(call: KernelCall) -> tuple[object, ...]:
    """What a call has in common with its kernel: dimensions of operands and results, and the estimate."""
    operands = [dims for _, dims in call.operands]
    results = [dims for _, dims in call.results]
    return operands, results, call.stated or (0.0, 0.0)


def _mean_cost(calls: Sequence[KernelCall]) -> KernelCost | None:
    """The mean of what calls cost, weighted by how often each is made; None without calls."""
    if not calls:
        return None
    costs = [call.cost for call in calls]
    times = sum(call.times for call in calls)
    if times == 0 or all(cost == costs[0] for cost in costs):
        return costs[0]
    # Calls with different masks look the same in the text of the compiled program.
    weights = [call.times / times for call in calls]

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    def means(rows: Sequence[tuple[float, ...] | None]) -> tuple[float, ...] | None:
        known = [row for row in rows if row is not None]
        return tuple(map(mean, zip(*known, strict=True))) if len(known) == len(rows) else None

    # Calls that are counted too high and too low may cancel out in the mean.
    bounds = {cost.bound for cost in costs} - {None}
    return KernelCost(
        flops=mean([cost.flops for cost in costs]),
        nbytes=mean([cost.nbytes for cost in costs]),
        source=costs[0].source,
        bound="about" if len(bounds) > 1 else next(iter(bounds), None),
        read=means([cost.read for cost in costs]),
        written=means([cost.written for cost in costs]),
        copied=mean([cost.copied for cost in costs]),
    )


def kernel_flops(program: Program, instruction: Instruction) -> float:
    """FLOPs of one execution of a Pallas kernel; 0 for anything else."""
    cost = program.kernel_costs.get(instruction.name)
    return stated_flops(instruction) if cost is None else cost.flops


def kernel_bytes(program: Program, instruction: Instruction) -> float | None:
    """Bytes of HBM that one execution of a Pallas kernel moves; None for anything else, or if nothing says so.

    Of what was counted, the arrays that lie in HBM, with the padding of their tiles; an array in VMEM takes none.
    """
    cost = program.kernel_costs.get(instruction.name)
    if cost is None:
        return _stated(instruction).nbytes
    # What a kernel states is a total, of which it is not known what lies in VMEM.
    if cost.read is None or cost.written is None:
        return cost.nbytes
    moved = (*cost.read, *cost.written)
    arrays = (*program.operand_arrays(instruction), *instruction.results)
    ratios = map(_padding_ratio, arrays)
    return cost.copied + sum(nbytes * ratio for nbytes, ratio in zip(moved, ratios, strict=True))


def _padding_ratio(array: Array) -> float:
    """What an array takes in HBM, as a multiple of its elements' bytes."""
    return array.tiled_nbytes / array.nbytes if array.space == HBM and array.nbytes else 0.0


class _Group(NamedTuple):
    """What kernels of a program have in common that are reported together, in the order of the report."""

    name: str
    source: str
    bound: str


def list_kernels(program: Program) -> tuple[Kernel, ...]:
    """Pallas kernels by name; of branches, those of the branch with the most FLOPs in kernels."""

    def branch_cost(instruction: Instruction) -> float:
        return _TINY + kernel_flops(program, instruction) if is_kernel(instruction) else 0.0

    groups: dict[_Group, list[Instruction]] = collections.defaultdict(list)
    for instruction in filter(is_kernel, program.executed_instructions(branch_cost)):
        cost = program.kernel_costs.get(instruction.name, KernelCost(0.0, 0.0, "kernel"))
        group = _Group(_COPY.sub("", instruction.name), cost.source, cost.bound or "")
        groups[group].append(instruction)
    return tuple(_report(program, group, kernels) for group, kernels in sorted(groups.items()))


def _report(program: Program, group: _Group, kernels: Sequence[Instruction]) -> Kernel:
    return Kernel(
        group.name,
        count=sum(kernel.times for kernel in kernels),
        flops=sum(kernel.times * kernel_flops(program, kernel) for kernel in kernels),
        hbm_bytes=sum(kernel.times * (kernel_bytes(program, kernel) or 0.0) for kernel in kernels),
        source=group.source,
        bound=group.bound or None,
    )
