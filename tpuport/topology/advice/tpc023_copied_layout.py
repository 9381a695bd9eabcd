"""TPC023: copies that only change where the elements of an array lie."""

from collections.abc import Iterator

from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.reordered_arrays import (
    is_at_border_of_loop,
    reordered_array,
)
from tpuport.topology.advice.timed_code import format_seconds, timed_lines
from tpuport.topology.hlo import Array
from tpuport.topology.timing import Span


def check(evidence: Evidence) -> Iterator[Hit]:
    """A finding for each line."""

    def copied_array(span: Span) -> Array | None:
        # Those of a loop have another remedy.
        if is_at_border_of_loop(evidence.compiled, span.instruction):
            return None
        return reordered_array(span)

    for line in timed_lines(evidence, copied_array):
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


RULE = AdviceRule(
    id="TPC023",
    name="copied-layout",
    summary="copies between operations that want the dimensions of an array in different orders",
    why="""The compiler chooses for each array in which order its dimensions lie in memory. Where two operations want
different orders, it copies the array between them, which reads and writes all of it and computes nothing.""",
    measured="""The time of copies, transposes and reshapes of at least 65,536 elements that are instructions of their
own, by the line that they come from, if all of them take at least 2% of a step, and the line 1%. Copies that run beside
other work count only as far as the core waits for them. Those with which the rounds of a loop begin or end are reported
by TPC026.""",
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
