"""The Pallas kernels of a program and what they do: as was counted where they were
traced, or as they state.

Kernels that the compiler makes by itself are among them: `compiler_kernels` counts
those.
"""

import dataclasses
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tpuport.topology.compile_report import Kernel
from tpuport.topology.hlo.array_types import search_group
from tpuport.topology.hlo.compiler_kernels import (
    count_compiler_kernel,
    find_skipped_shares,
)
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.kernels.kernel_calls import CallSignature, KernelCall, KernelCost

_ESTIMATE: Final = re.compile(r'"cost_estimate":\{([^{}]*)\}')
_FIELD: Final = re.compile(r'"(\w+)":"?(-?[\d.]+(?:e[+-]?\d+)?)"?')
# What the compiler adds to the name of a kernel of which there are several.
_COPY: Final = re.compile(r"(?:\.clone|\.\d+)+$")
# A kernel without FLOPs still decides which branch is reported.
_TINY: Final = 1e-9


def _estimate(instruction: Instruction) -> dict[str, float]:
    """What a Pallas kernel states that it costs, by "flops" and so on; nothing for
    anything else.
    """
    if not instruction.is_kernel:
        return {}
    estimate = search_group(_ESTIMATE, instruction.attributes)
    return {name: float(value) for name, value in _FIELD.findall(estimate)}


def stated_flops(instruction: Instruction) -> float:
    """FLOPs of a Pallas kernel by its own estimate; 0 for anything else."""
    return _estimate(instruction).get("flops", 0.0)


def apply_kernel_costs(program: Program, calls: Sequence[KernelCall]) -> None:
    """Let the program's kernels cost what was counted of the calls that were traced.

    A kernel is matched with calls by its name, the dimensions of its operands and
    results, and its estimate. If several calls match it has their mean, weighted by how
    often each is made, so that all kernels together cost what all calls cost. A kernel
    that the compiler has made by itself is counted here.
    """
    for kernel in program.kernels:
        cost = count_compiler_kernel(program, kernel, calls)
        matching = _matching_calls(program, kernel, calls)
        if cost is None and matching:
            cost = _mean_cost(matching)
        if cost is not None:
            program.kernel_costs[kernel.name] = cost
    program.skipped_shares = find_skipped_shares(program, calls)


def _matching_calls(
    program: Program, kernel: Instruction, calls: Sequence[KernelCall]
) -> list[KernelCall]:
    estimate = _estimate(kernel)
    signature = CallSignature(
        tuple(array.dims for array in program.operand_arrays(kernel)),
        tuple(array.dims for array in kernel.results),
        (estimate.get("flops", 0.0), estimate.get("bytes_accessed", 0.0)),
    )
    matches = [call for call in calls if call.signature == signature]
    # A kernel of unknown origin may be any call, and a call without a name any kernel.
    if not kernel.op_name:
        return matches
    scope = kernel.op_name.split("/")
    named = [call for call in matches if call.name.rpartition("/")[2] in scope]
    return named or [call for call in matches if not call.name]


def _mean_cost(calls: Sequence[KernelCall]) -> KernelCost:
    """The mean of what calls cost, weighted by how often each is made."""
    costs = [call.cost for call in calls]
    times = [call.times for call in calls]
    if len(set(costs)) == 1 or not any(times):
        return costs[0]
    flops, nbytes, _, bounds, read, written, copied = zip(*costs, strict=True)

    # Calls with different masks look the same in the text of the compiled program.
    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values, times)

    # One that states its cost has no bytes by operand, and then the mean has none
    # either.
    def column_means(rows: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(map(mean, zip(*rows, strict=False)))

    bound, *others = {*bounds} - {None} or {None}
    # Calls that are counted too high and too low may cancel out in the mean.
    if others:
        bound = "about"
    return KernelCost(
        mean(flops),
        mean(nbytes),
        costs[0].source,
        bound,
        column_means(read),
        column_means(written),
        mean(copied),
    )


def kernel_flops(program: Program, instruction: Instruction) -> float:
    """FLOPs of one execution of a Pallas kernel; 0 for anything else."""
    cost = program.kernel_costs.get(instruction.name)
    if cost is None:
        return stated_flops(instruction)
    return cost.flops


def kernel_bytes(program: Program, instruction: Instruction) -> float | None:
    """Bytes of HBM that one execution of a Pallas kernel moves; None for anything else,
    or if nothing says so.

    Of what was counted, the arrays that lie in HBM, with the padding of their tiles; an
    array in VMEM takes none.
    """
    cost = program.kernel_costs.get(instruction.name)
    if cost is None:
        return _estimate(instruction).get("bytes_accessed")
    # What a kernel states is a total, of which it is not known what lies in VMEM.
    if not cost.written:
        return cost.nbytes
    moved = (*cost.read, *cost.written)
    arrays = (*program.operand_arrays(instruction), *instruction.results)
    padded = [
        nbytes * array.hbm_nbytes / max(1, array.nbytes)
        for nbytes, array in zip(moved, arrays, strict=True)
    ]
    return cost.copied + sum(padded)


class _Group(NamedTuple):
    """What kernels of a program have in common that are reported together, in the order
    of the report.
    """

    name: str
    source: str
    bound: str


def list_kernels(program: Program) -> tuple[Kernel, ...]:
    """Pallas kernels by name; of branches, those of the branch with the most FLOPs in
    kernels.
    """

    def branch_cost(instruction: Instruction) -> float:
        if not instruction.is_kernel:
            return 0.0
        return _TINY + kernel_flops(program, instruction)

    reports: dict[_Group, Kernel] = {}
    for instruction in program.executed_instructions(branch_cost):
        if not instruction.is_kernel:
            continue
        cost = program.kernel_costs.get(
            instruction.name, KernelCost(0.0, 0.0, "kernel")
        )
        # None cannot be sorted.
        group = _Group(_COPY.sub("", instruction.name), cost.source, cost.bound or "")
        times = instruction.times
        total = reports.get(
            group, Kernel(group.name, 0, 0.0, 0.0, cost.source, cost.bound)
        )
        reports[group] = dataclasses.replace(
            total,
            count=total.count + times,
            flops=total.flops + times * kernel_flops(program, instruction),
            hbm_bytes=total.hbm_bytes
            + times * (kernel_bytes(program, instruction) or 0.0),
        )
    return tuple(reports[group] for group in sorted(reports))
