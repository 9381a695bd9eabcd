"""What each instruction of a program asks of the device: cycles of the core, bytes of
HBM, time of the links.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Final

from tpuport.hardware import Generation
from tpuport.hardware.schedules import KernelSchedule
from tpuport.topology import roofline
from tpuport.topology.hlo import collectives, flop_counts, kernel_costs, memory_traffic
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.timing.kernel_cycles import KernelCycles, count_cycles

PRODUCTS: Final = "matrix products"
ATTENTION: Final = "attention"
KERNELS: Final = "other kernels"
COPIES: Final = "copies and layouts"
ELEMENTWISE: Final = "elementwise"
COLLECTIVES: Final = "collectives"
WAITING: Final = "waiting"
KINDS: Final = (PRODUCTS, ATTENTION, KERNELS, COPIES, ELEMENTWISE, COLLECTIVES, WAITING)

_PRODUCT_OPERATIONS: Final = {"convolution", "dot"}
_PRODUCT_NAMES: Final = ("/dot_general", "/conv_general_dilated")
# They put the elements of arrays elsewhere, and compute none.
_MOVING_OPERATIONS: Final = {
    "bitcast", "bitcast-convert", "broadcast", "concatenate", "constant", "copy", "dynamic-slice",
    "dynamic-update-slice", "gather", "get-tuple-element", "iota", "pad", "parameter", "reshape", "reverse", "slice",
    "transpose", "tuple",
}  # fmt: skip
# Names that attention kernels have: ours, jax's flash and splash kernels.
_ATTENTION_NAMES: Final = ("flash", "splash", "attention", "mha")


@dataclasses.dataclass(frozen=True)
class Work:
    """What one execution of an instruction asks for.

    Attributes:
        kind: one of `KINDS`.
        core_seconds: of the core by its schedule, with everything that it reads at
            hand, and at least `product_seconds`: a schedule does not have the bundles
            that wait for a busy matrix unit. Each copy that it starts adds to that.
        product_seconds: that its products take at the published peak of the matrix
            units.
        hbm_bytes: read and written.
        link_seconds: that a collective takes of the links along `axes`.
        flops: of products and kernels.
        cycles: where `core_seconds` come from; None if the core has nothing to do.
    """

    kind: str
    core_seconds: float = 0.0
    product_seconds: float = 0.0
    hbm_bytes: float = 0.0
    link_seconds: float = 0.0
    axes: tuple[str, ...] = ()
    flops: float = 0.0
    cycles: KernelCycles | None = None


class WorkCounter:
    """Tells the work of each instruction of a program.

    Args:
        program: with the costs of its kernels applied.
        schedules: of its kernels, by name.
        hardware: of its devices.
        mesh: of its arguments; rings: the links along each axis, by `roofline.layout`.
    """

    def __init__(
        self,
        program: Program,
        schedules: Mapping[str, KernelSchedule],
        hardware: Generation,
        mesh: Any,
        rings: Mapping[str, tuple[roofline.Ring, ...]],
    ) -> None:
        self.program = program
        self._hardware = hardware
        self._mesh = mesh
        self._rings = rings
        self._cycles = count_cycles(program, schedules)
        self._known: dict[str, Work] = {}

    def work(self, instruction: Instruction) -> Work:
        """What one execution asks for, without the computations of a loop, a branch or
        a call.
        """
        if instruction.name not in self._known:
            self._known[instruction.name] = self._count(instruction)
        return self._known[instruction.name]

    def _count(self, instruction: Instruction) -> Work:
        link_seconds, axes = self._links(instruction)
        cycles = None
        if not _is_asynchronous(instruction):
            cycles = self._cycles.get(instruction.name)
        flops, product_seconds = self._flops(instruction)
        core_seconds = product_seconds
        if cycles is not None:
            scheduled = cycles.cycles / self._hardware.clock
            if self._may_do_less(instruction):
                product_seconds = min(product_seconds, scheduled)
            core_seconds = (
                max(scheduled, product_seconds)
                + cycles.copies * self._hardware.copy_start.value
            )
        return Work(
            kind=self._kind(instruction),
            core_seconds=core_seconds,
            product_seconds=product_seconds,
            hbm_bytes=self._hbm_bytes(instruction),
            link_seconds=link_seconds,
            axes=axes,
            flops=flops,
            cycles=cycles,
        )

    def _hbm_bytes(self, instruction: Instruction) -> float:
        nbytes = memory_traffic.instruction_bytes(self.program, instruction)
        if instruction.operation != "async-start":
            return nbytes
        # What runs beside the core is in a computation of its own.
        inside = itertools.chain.from_iterable(
            self.program.computations[name].instructions for name in instruction.callees
        )
        return nbytes + sum(map(self._hbm_bytes, inside))

    def _kind(self, instruction: Instruction) -> str:
        if self.collectives_of(instruction):
            return COLLECTIVES
        if _is_asynchronous(instruction):
            return COPIES
        inside = _operations_inside(self.program, instruction)
        if instruction.is_kernel:
            names = f"{instruction.name} {instruction.op_name}".lower()
            return (
                ATTENTION
                if any(name in names for name in _ATTENTION_NAMES)
                else KERNELS
            )
        # A product with a vector is elementwise work to the compiler.
        if inside & _PRODUCT_OPERATIONS or instruction.op_name.endswith(_PRODUCT_NAMES):
            return PRODUCTS
        if inside <= _MOVING_OPERATIONS:
            return COPIES
        return ELEMENTWISE

    def collectives_of(self, instruction: Instruction) -> list[Instruction]:
        """The collectives that an instruction is, or that a fusion starts or does."""
        candidates = [instruction]
        for name in (
            instruction.callees
            if instruction.operation in ("fusion", "async-start")
            else ()
        ):
            if name in self.program.computations:
                candidates.extend(self.program.computations[name].instructions)
        return [
            candidate
            for candidate in candidates
            if collectives.sent_bytes(self.program, candidate)
        ]

    def _links(self, instruction: Instruction) -> tuple[float, tuple[str, ...]]:
        seconds, axes = 0.0, ()
        for collective in self.collectives_of(instruction):
            described = collectives.describe_execution(
                self.program, collective, self._mesh
            )
            seconds += roofline.collective_seconds(
                described, self._rings, self._hardware
            )
            axes = described.axes
        return seconds, axes

    def _flops(self, instruction: Instruction) -> tuple[float, float]:
        """FLOPs of the products of one execution, and the seconds that they take at the
        peak of their dtypes.
        """
        if not instruction.is_kernel:
            products = flop_counts.executed_products(self.program, instruction)
            flops, others = flop_counts.product_flops_by_rate(self.program, products)
            return flops, roofline.compute_seconds(flops, *others, self._hardware)
        flops = kernel_costs.kernel_flops(self.program, instruction)
        return flops, flops / self._hardware.device.bf16

    def _may_do_less(self, instruction: Instruction) -> bool:
        """Whether an instruction is a kernel whose FLOPs are more than it may compute,
        or what it says itself.
        """
        if not instruction.is_kernel:
            return False
        cost = self.program.kernel_costs.get(instruction.name)
        return cost is None or cost.bound in ("at most", "about")


def _is_asynchronous(instruction: Instruction) -> bool:
    return instruction.operation.endswith(("-start", "-done", "-update"))


def _operations_inside(program: Program, instruction: Instruction) -> set[str]:
    """The opcodes of an instruction and of all that it fuses."""
    operations: set[str] = set()
    waiting = [instruction]
    while waiting:
        current = waiting.pop()
        inside = program.fused_computation(current)
        if inside is None:
            operations.add(current.kind)
        else:
            waiting.extend(inside.instructions)
    return operations
