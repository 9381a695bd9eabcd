"""The Pallas kernels of a program, with what they do: as was counted from what was traced, or as they say.

Those that the compiler makes by itself are among them: `own` counts them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

<<<<<<< HEAD:tpuport/topology/hlo/pallas.py
from tpuport.topology.compile_report import Kernel
from tpuport.topology.hlo import own
from tpuport.topology.hlo.program import Instruction, Program
from tpuport.topology.hlo.shapes import HBM, Array
from tpuport.topology.kernels.calls import Call, Cost
=======
from tpuport.topology.hlo import compiler_kernels
from tpuport.topology.hlo.program import Instruction, Program
from tpuport.topology.hlo.array_types import HBM, Array
from tpuport.topology.kernels.kernel_calls import KernelCall, KernelCost
from tpuport.topology.report import Kernel
>>>>>>> 996991f (Name the modules and functions of hlo and kernels by their subjects):tpuport/topology/hlo/kernel_costs.py

TARGET: Final = 'custom_call_target="tpu_custom_call"'
_ESTIMATE: Final = re.compile(r'"cost_estimate":\{([^{}]*)\}')
_FIELD: Final = re.compile(r'"(\w+)":"?(-?[\d.]+(?:e[+-]?\d+)?)"?')
_COPY: Final = re.compile(r"(?:\.clone|\.\d+)+$")


def is_kernel(instruction: Instruction) -> bool:
    """Whether it is a Pallas kernel."""
    return instruction.operation.startswith("custom-call") and TARGET in instruction.attributes


def estimated(instruction: Instruction) -> dict[str, float] | None:
    """A Pallas kernel's own estimate: "flops", "bytes_accessed", "transcendentals"; empty where it gives none.

    None for anything that is no Pallas kernel.
    """
    if not is_kernel(instruction):
        return None
    found = _ESTIMATE.search(instruction.attributes)
    return {name: float(value) for name, value in _FIELD.findall(found[1])} if found else {}


def apply_kernel_costs(program: Program, calls: Sequence[KernelCall]) -> None:
    """Let the program's kernels cost what was counted of the calls that were traced.

    A kernel is a call of its name, of its operands' and its results' sizes, and with its estimate. Of several such
    calls it has the mean, weighted by how often each is made, so that all of them together cost what they cost.
    One that the compiler has made by itself costs what `own.counted` says.
    """
    for one in program.instructions:
        if not is_kernel(one):
            continue
        if (cost := own.counted(program, one, calls)) is not None:
            program.kernel_costs[one.name] = cost
        elif found := _calls_of(program, one, calls):
            program.kernel_costs[one.name] = _mean(found)


def _calls_of(program: Program, instruction: Instruction, calls: Sequence[KernelCall]) -> list[KernelCall]:
    scope, stated = instruction.op_name.split("/"), estimated(instruction) or {}
    operands = _dims(made for one in program.operands(instruction) for made in one.arrays)
    results = _dims(instruction.results)
    alike = [
        call
        for call in calls
        if [dims for _, dims in call.operands] == operands
        and [dims for _, dims in call.results] == results
        and (call.stated or (0.0, 0.0)) == (stated.get("flops", 0.0), stated.get("bytes_accessed", 0.0))
    ]
    named = [call for call in alike if call.name and call.name.split("/")[-1] in scope]
    return named or [call for call in alike if not call.name or not instruction.op_name]


def _dims(found: Iterable[Array]) -> list[tuple[int, ...]]:
    return [made.dims for made in found]


def _mean(calls: Sequence[KernelCall]) -> KernelCost:
    costs, whole = [call.cost for call in calls], sum(call.times for call in calls)
    if all(one == costs[0] for one in costs) or not whole:
        return costs[0]
    shares = [call.times / whole for call in calls]

    def mean(values: Sequence[float]) -> float:
        return sum(share * value for share, value in zip(shares, values, strict=True))

    def means(parts: Sequence[tuple[float, ...] | None]) -> tuple[float, ...] | None:
        known = [one for one in parts if one is not None]
        return tuple(map(mean, zip(*known, strict=True))) if len(known) == len(parts) else None

    bounds = {one.bound for one in costs if one.bound is not None}
    return KernelCost(
        mean([one.flops for one in costs]), mean([one.nbytes for one in costs]), costs[0].source,
        bounds.pop() if len(bounds) == 1 else "about" if bounds else None,
        means([one.read for one in costs]), means([one.written for one in costs]),
        mean([one.copied for one in costs]),
    )  # fmt: skip


def kernel_flops(program: Program, instruction: Instruction) -> float:
    """FLOPs of one execution of a Pallas kernel; 0 for anything else."""
    if (cost := program.kernel_costs.get(instruction.name)) is not None:
        return cost.flops
    return (estimated(instruction) or {}).get("flops", 0.0)


def kernel_bytes(program: Program, instruction: Instruction) -> float | None:
    """Bytes of HBM that one execution of a Pallas kernel moves; None where nothing says so.

    Of what was counted, the arrays that lie in HBM, as tiles pad them; one in VMEM takes none.
    """
    cost = program.kernel_costs.get(instruction.name)
    if cost is None:
        return (estimated(instruction) or {}).get("bytes_accessed")
    if cost.read is None or cost.written is None:
        return cost.nbytes
    given = [made for one in program.operands(instruction) for made in one.arrays]
    pairs = (*zip(cost.read, given, strict=True), *zip(cost.written, instruction.results, strict=True))
    return cost.copied + sum(nbytes * _padding(made) for nbytes, made in pairs)


def _padding(made: Array) -> float:
    """What an array takes in HBM as a multiple of its numbers' bytes."""
    return made.tiled_nbytes / made.nbytes if made.space == HBM and made.nbytes else 0.0


def list_kernels(program: Program) -> tuple[Kernel, ...]:
    """Pallas kernels by name, in its order; of branches those of the one with the most FLOPs in kernels."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in program.executed_instructions(
        lambda one: 1e-9 + kernel_flops(program, one) if is_kernel(one) else 0.0
    ):
        if is_kernel(one):
            cost = program.kernel_costs.get(one.name)
            key = _COPY.sub("", one.name), cost.source if cost else "kernel", (cost and cost.bound) or ""
            sums = found.setdefault(key, [0, 0.0, 0.0])
            sums[0] += one.times
            sums[1] += one.times * kernel_flops(program, one)
            sums[2] += one.times * (kernel_bytes(program, one) or 0.0)
    return tuple(
        Kernel(name, int(times), flops, moved, source, bound or None)
        for (name, source, bound), (times, flops, moved) in sorted(found.items())
    )
