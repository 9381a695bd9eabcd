"""TPC023: copies that only change where the elements of an array lie."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.timed_code import format_seconds, timed_lines
from tpuport.topology.hlo import Array
from tpuport.topology.timing import Span

_REORDERING: Final = {"copy", "transpose", "reshape"}
_LEAST_ELEMENTS: Final = 1 << 16


def check(evidence: Evidence) -> Iterator[Hit]:
    """A finding for each line."""
    for line in timed_lines(evidence, _copied_array):
        yield Hit(
            f"copies of arrays into another layout, such as {line.largest}, take "
            f"{format_seconds(evidence, line.seconds)}",
            "let what makes the array and what takes it agree on the order of dimensions: leave out .contiguous() and "
            "permute() pairs, or transpose the smaller operand, such as a weight, once",
            line.seconds,
            "seconds",
            source=line.source,
            # A cache that is not donated is copied, and not for its layout.
            explained_by=frozenset({"TPC009", "TPC020"}),
        )


def _copied_array(span: Span) -> Array | None:
    """The result of an instruction that puts all elements elsewhere, and computes nothing."""
    if span.instruction.operation not in _REORDERING:
        return None
    [array, *_] = span.instruction.results
    return array if array.size >= _LEAST_ELEMENTS else None


RULE = AdviceRule(
    id="TPC023",
    name="copied-layout",
    summary="copies between operations that want the dimensions of an array in different orders",
    why="""The compiler chooses for each array in which order its dimensions lie in memory. Where two operations want
different orders, it copies the array between them, which reads and writes all of it and computes nothing.""",
    measured="""The time of copies, transposes and reshapes of at least 65,536 elements that are instructions of their
own, by the line that they come from, if that is at least 2% of a step. Copies that run beside other work count only as
far as the core waits for them.""",
    before="""class Flipped(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous()


inputs = {"x": torch.empty(8, 1024, 1024, device="meta", dtype=torch.bfloat16)}
compile_for(Flipped(), inputs, topology="v6e:1x1")""",
    after="""class Straight(nn.Module):
    def forward(self, x):
        return x.relu()


inputs = {"x": torch.empty(8, 1024, 1024, device="meta", dtype=torch.bfloat16)}
compile_for(Straight(), inputs, topology="v6e:1x1")""",
    check=check,
)
