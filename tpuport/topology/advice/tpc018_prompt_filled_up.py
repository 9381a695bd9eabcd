"""TPC018: a prompt length that `generate` fills up."""

from collections.abc import Iterator
from typing import Final

from tpuport.generation.prompts import bucket
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.rule import Hit, Rule

# Of the columns: buckets are an eighth of a power of two apart, so that more is filled up only where it can be helped.
_SHARE: Final = 0.1


def check(evidence: Evidence) -> Iterator[Hit]:
    """A prefill's length against its bucket."""
    length, costs = evidence.inputs.get("length"), evidence.report.costs
    if evidence.report.task != "prefill" or not isinstance(length, int) or length < 1:
        return
    columns = bucket(length)
    idle = (columns - length) / columns
    if idle >= _SHARE:
        yield Hit(
            f"a prompt of {length} tokens runs in a program of {columns} columns: {idle:.0%} of its work is on padding",
            f"prompts of {columns} tokens cost the same; where the length is yours to choose, take {columns} "
            f"(--length {columns})",
            0.0 if costs is None else costs.flops * idle,
            "flops",
        )


RULE = Rule(
    id="TPC018",
    name="prompt-filled-up",
    summary="a prompt length well below the fixed length that serves it",
    why="""`generate` compiles one program for each of a few fixed lengths and fills prompts up to the next: a
program for each length would compile again and again. What is filled up is computed and thrown away.""",
    measured="""The prompt's length against `generate`'s bucket for it: 10% of the columns or more are padding.""",
    before="""Prefill(length=1030)    # 1,280 columns""",
    after="""Prefill(length=1024)    # 1,024 columns""",
    check=check,
)
