"""TPC016: a program that only just fits."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import divides_weights

# Of the capacity. A second program (a prefill beside a decode step), outputs that a
# caller still holds and gaps between arrays need room that the compiler does not count.
_HEADROOM: Final = 0.05


def check(evidence: Evidence) -> Iterator[Hit]:
    """Memory used against the capacity."""
    memory = evidence.report.memory
    # A program that does not fit has another finding, and no room that is left.
    if memory.used is None or not memory.fits:
        return
    unused = memory.capacity - memory.used
    if unused >= _HEADROOM * memory.capacity:
        return
    parts = {
        "weights": memory.weights, "the cache": memory.cache, "other arguments": memory.arguments,
        "outputs": memory.outputs, "temporaries": memory.temporaries, "code": memory.code,
    }  # fmt: skip
    # The largest part has the most to save. The compiler may leave some out.
    largest, nbytes = max(parts.items(), key=lambda part: part[1] or 0)
    yield Hit(
        f"{format_bytes(memory.used)} of {format_bytes(memory.capacity)} are used, which leaves "
        f"{unused / memory.capacity:.1%}; the largest part is {largest}, {format_bytes(nbytes or 0)}",
        _remedy(evidence),
        _HEADROOM * memory.capacity - unused,
    )


def _remedy(evidence: Evidence) -> str:
    # In the order of what they cost the user: more devices first, another result last.
    remedies = ["a smaller batch (--batch)", "or dtype='bfloat16' (--dtype bfloat16)"]
    if evidence.report.memory.cache:
        remedies.insert(0, "a shorter cache (--max-cache-len)")
    if any(divides_weights(evidence, axis) for axis in evidence.model_axes):
        return ", ".join(["more devices along tp (--tp)", *remedies])
    return ", ".join(
        ["weights divided over tp by rules (--tp, --rules FILE)", *remedies]
    )


RULE = AdviceRule(
    id="TPC016",
    name="little-headroom",
    summary="a program that fits with less than 5% of the memory left",
    why="""The compiler accounts for one program. A real run needs more: the prefill beside the decode step, outputs
that the caller still holds while the next call runs, and fragmentation. A program that only just fits by itself runs
out of memory in practice.""",
    measured="""The bytes used, between 95% and 100% of the device's capacity.""",
    before="""class Total(nn.Module):
    def forward(self, x):
        return x.sum()


x = torch.empty(15500, 1024, 1024, dtype=torch.bfloat16, device="meta")   # 30.3 GiB
compile_for(Total(), {"x": x}, topology="v6e:2x2", tp=4)""",
    after="""class Total(nn.Module):
    def forward(self, x):
        return x.sum()


x = torch.empty(15000, 1024, 1024, dtype=torch.bfloat16, device="meta")   # 29.3 GiB
compile_for(Total(), {"x": x}, topology="v6e:2x2", tp=4)""",
    check=check,
)
