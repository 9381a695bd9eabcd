"""Which of a program's collectives move what: weights, or activations, and for which operation."""

from collections.abc import Iterator
from typing import Any, Final

from tpuport.topology.advice.evidence import Evidence

_ENDS: Final = ("-done", "-update")


def collectives(evidence: Evidence, *kinds: str) -> Iterator[Any]:
    """The instructions of these kinds; of one that starts here and ends elsewhere, the start."""
    for one in evidence.instructions:
        if one.operation.removesuffix("-start") in kinds:
            yield one


def made_for(instruction: Any) -> str:
    """The jax primitive that an instruction was made for: "dot_general", or an empty string."""
    return str(instruction.op_name or "").rpartition("/")[2].partition("[")[0]


def result_bytes(instruction: Any) -> int:
    """Bytes that a collective leaves on a device in a step; its start names its operands too, of which it has fewer."""
    largest = max((array.nbytes for array in instruction.arrays), default=0)
    whole = largest if instruction.operation.endswith("-start") else sum(a.nbytes for a in instruction.arrays)
    return int(whole * instruction.times)
