"""TPC026: arrays that a loop over blocks copies in each of its rounds."""

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
        if not is_at_border_of_loop(evidence.compiled, span.instruction):
            return None
        return reordered_array(span)

    for line in timed_lines(evidence, copied_array):
        yield Hit(
            f"copies with which each round of a loop begins or ends, such as {line.largest}, take "
            f"{format_seconds(evidence, line.seconds)}",
            "write the blocks one by one, scan_layers=False (--no-scan-layers): then each takes its arrays as the one "
            "before has left them. Or let a block give back its state with its dimensions in the order in which they "
            "came",
            line.seconds,
            "seconds",
            source=line.source,
            # A cache that is not donated is copied for another reason.
            explained_by=frozenset({"TPC009", "TPC020"}),
        )


RULE = AdviceRule(
    id="TPC026",
    name="copied-between-rounds",
    summary="arrays that a loop over identical blocks copies in every round",
    why="""A loop hands on its arrays in one place and in one layout. A block that reads its input until it has written
its output, or that leaves it in another layout, makes the compiler copy the array in every round. Of blocks that are
written one by one, each reads what the one before has written, wherever and however that is. A loop compiles faster
and takes less code; whether the copies are worth it depends on how often the program runs.""",
    measured="""The time of copies, transposes and reshapes of at least 65,536 elements in the body of a loop whose
operand the loop hands to the round, or whose result the round hands on, by the line that they come from, if all of
them take at least 2% of a step, and the line 1%. Other copies are reported by TPC023.""",
    before="""class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return self.proj(x).relu().transpose(1, 2)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Mixed() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


inputs = {"x": torch.empty(8, 1024, 1024, device="meta", dtype=torch.bfloat16)}
compile_for(Blocks, inputs, topology="v6e:1x1", dtype="bfloat16", scan_layers=True)""",
    after="""class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return self.proj(x).relu().transpose(1, 2)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Mixed() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


inputs = {"x": torch.empty(8, 1024, 1024, device="meta", dtype=torch.bfloat16)}
compile_for(Blocks, inputs, topology="v6e:1x1", dtype="bfloat16", scan_layers=False)""",
    check=check,
)
