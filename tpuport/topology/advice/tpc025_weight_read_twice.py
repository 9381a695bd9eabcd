"""TPC025: weights that several products of a step read one after another."""

from collections.abc import Iterator

from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.repeated_reads import repeated_reads
from tpuport.topology.advice.timed_code import format_seconds, is_worth_changing


def check(evidence: Evidence) -> Iterator[Hit]:
    """A finding for each weight."""
    for read in repeated_reads(evidence):
        if not is_worth_changing(evidence, read.seconds):
            continue
        yield Hit(
            f"{count_noun(len(read.products), 'product')} with {read.weight} ({format_bytes(read.nbytes)} on each "
            "device), none of which needs the result of another, read it one by one: the reads beyond the first take "
            f"at least {format_seconds(evidence, read.seconds)}",
            "call the layer once, with the rows of all calls joined: layer(torch.cat([a, b])).chunk(2) in place of "
            "layer(a), layer(b)",
            read.seconds,
            "seconds",
            source=evidence.compiled.source(read.products[-1]),
        )


RULE = AdviceRule(
    id="TPC025",
    name="weight-read-twice",
    summary="a weight that several independent products of a step read one by one",
    why="""A product of few rows takes as long as it takes to read its weight. Two calls of the same layer, such as the
predictions with and without a prompt, read the weight twice, unless it is small enough to stay in VMEM between them.
With the rows of both in one call it is read once, and each row is computed as before.""",
    measured="""Weights that instructions of the compiled program read from HBM for several products, none of which
depends on the result of another. The cost is the time that these instructions wait for what they read beyond the first
read: nothing where products take longer than their weights. It is reported from 2% of a step on.""",
    before="""class Guided(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8192, 16384, bias=False)

    def forward(self, prompt, empty):
        return self.proj(prompt), self.proj(empty)


inputs = {name: torch.empty(64, 8192, device="meta", dtype=torch.bfloat16) for name in ("prompt", "empty")}
compile_for(Guided, inputs, topology="v6e:1x1", dtype="bfloat16")""",
    after="""class Guided(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8192, 16384, bias=False)

    def forward(self, prompt, empty):
        return self.proj(torch.cat([prompt, empty])).chunk(2)


inputs = {name: torch.empty(64, 8192, device="meta", dtype=torch.bfloat16) for name in ("prompt", "empty")}
compile_for(Guided, inputs, topology="v6e:1x1", dtype="bfloat16")""",
    check=check,
)
