"""The Pallas kernels of a program, with what they say that they cost."""

import re
from typing import Final

from tpuport.topology.hlo.program import Instruction, Program
from tpuport.topology.report import Kernel

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


def kernels(program: Program) -> tuple[Kernel, ...]:
    """Pallas kernels by name, in its order; of branches those of the one with the most FLOPs in kernels."""
    found: dict[str, list[float]] = {}
    for one in program.taken(
        lambda one: 1e-9 + (estimated(one) or {}).get("flops", 0.0) if is_kernel(one) else 0.0
    ):
        if (cost := estimated(one)) is not None:
            sums = found.setdefault(_COPY.sub("", one.name), [0, 0.0, 0.0])
            sums[0] += one.times
            sums[1] += one.times * cost.get("flops", 0.0)
            sums[2] += one.times * cost.get("bytes_accessed", 0.0)
    return tuple(
        Kernel(name, int(times), flops, moved) for name, (times, flops, moved) in sorted(found.items())
    )
