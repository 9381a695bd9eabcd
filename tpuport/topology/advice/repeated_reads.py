"""Weights that a step reads from HBM several times, for products of which one could
do.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tpuport.hardware import GENERATIONS
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import Instruction, Program, memory_traffic
from tpuport.topology.timing import Span

# Of what is read of a weight: less is a part that two instructions overlap in.
_LEAST_REPEATED: Final = 0.3


class RepeatedRead(NamedTuple):
    """A weight that is read more than once.

    Attributes:
        weight: its name; nbytes: its size on a device.
        products: with it, none of which depends on another.
        seconds: of a step that the reads beyond the first take.
    """

    weight: str
    nbytes: float
    products: tuple[Instruction, ...]
    seconds: float


def repeated_reads(evidence: Evidence) -> Iterator[RepeatedRead]:
    """The weights of a program that fits whose products are independent, and read them
    one by one.
    """
    timeline = evidence.report.timeline
    if timeline is None or evidence.program is None:
        return
    spans = {
        span.instruction: span for span in timeline.computations[timeline.entry].spans
    }
    bandwidth = GENERATIONS[evidence.report.generation].device.hbm_bandwidth
    for weight, parameter in evidence.movement.weight_parameters.items():
        reads = _reads(evidence.compiled, parameter)
        nbytes = float(sum(array.hbm_nbytes for array in parameter.arrays))
        repeated = 1 - nbytes / max(nbytes, sum(reads.values()), 1.0)
        if repeated < _LEAST_REPEATED:
            continue
        products = evidence.movement.independent_products(weight)
        if len(products) < 2:
            continue
        seconds = sum(
            _read_seconds(evidence.compiled, reader, spans, read / bandwidth)
            for reader, read in reads.items()
        )
        yield RepeatedRead(weight, nbytes, products, repeated * seconds)


def _reads(program: Program, array: Instruction) -> dict[Instruction, float]:
    """The bytes that each instruction reads of an array in HBM."""
    reads: dict[Instruction, float] = {}
    for user in program.users(array):
        if user.operation == "bitcast":
            reads |= _reads(program, user)
        elif memory_traffic.stores_arrays(user):
            reads[user] = float(memory_traffic.read_bytes(program, user, array))
    return reads


def _read_seconds(
    program: Program,
    reader: Instruction,
    spans: Mapping[Instruction, Span],
    transfer_seconds: float,
) -> float:
    """What a step would be shorter by if an instruction found at hand what it takes
    `transfer_seconds` to read.
    """
    if reader.operation.endswith("-start"):
        # It costs what its end waits for.
        ends = [spans[end] for end in program.users(reader) if end in spans]
        return min(transfer_seconds, sum(end.waiting for end in ends))
    if reader not in spans:
        return 0.0
    span = spans[reader]
    return min(transfer_seconds, max(0.0, span.busy - span.work.core_seconds))
