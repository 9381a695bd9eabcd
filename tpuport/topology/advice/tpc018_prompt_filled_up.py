"""TPC018: a prompt length that `generate` fills up."""

from collections.abc import Iterator
from typing import Final

from tpuport.generation.prompts import bucket_length
from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence

# Of the columns. Buckets are an eighth of a power of two apart, so that more is padding
# only if it can be avoided.
_SHARE: Final = 0.1


def check(evidence: Evidence) -> Iterator[Hit]:
    """A prefill's length against its bucket."""
    if evidence.report.task != "prefill":
        return
    length = evidence.inputs["length"]
    # The program of a bucket serves every shorter prompt, and does the work of the
    # longest.
    columns = bucket_length(length)
    idle = (columns - length) / columns
    if idle >= _SHARE:
        yield Hit(
            f"a prompt of {length} tokens runs in a program of {columns} columns: {idle:.0%} of its work is on padding",
            f"prompts of up to {columns} tokens cost the same; if you can choose the length, use {columns} "
            f"(--length {columns})",
            evidence.costs.flops * idle,
            "flops",
        )


RULE = AdviceRule(
    id="TPC018",
    name="prompt-filled-up",
    summary="a prompt length well below the fixed length that it is padded to",
    why="""`generate` compiles one program for each of a few fixed lengths and pads prompts to the next one, because a
program per length would mean compiling again and again. The results for the padding are computed and thrown away.""",
    measured="""The prompt's length against the length that `generate` pads it to: at least 10% of the columns are
padding.""",
    before="""compile_for(
    llama, Prefill(length=257), topology="v6e:2x2", tp=4, dtype="bfloat16"   # 320 columns
)""",
    after="""compile_for(
    llama, Prefill(length=256), topology="v6e:2x2", tp=4, dtype="bfloat16"   # 256 columns
)""",
    check=check,
)
