"""TPC016: a program that only just fits."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import divides_weights

# Of the capacity. A second program (a prefill beside a decode step), outputs that a caller still holds and gaps
# between arrays need room that the compiler does not count.
_HEADROOM: Final = 0.05


def check(evidence: Evidence) -> Iterator[Hit]:
    """Memory used against the capacity."""
    memory = evidence.report.memory
    if memory.used is None or not memory.fits:
        return
    unused = memory.capacity - memory.used
    if unused >= _HEADROOM * memory.capacity:
        return
    parts = {
        "weights": memory.weights, "the cache": memory.cache, "other arguments": memory.arguments or 0,
        "outputs": memory.outputs or 0, "temporaries": memory.temporaries or 0, "code": memory.code or 0,
    }  # fmt: skip
    # The largest part has the most to save.
    largest = max(parts, key=lambda name: parts[name])
    yield Hit(
        f"{format_bytes(memory.used)} of {format_bytes(memory.capacity)} are used, {unused / memory.capacity:.1%} are "
        f"left; the most, {format_bytes(parts[largest])}, is {largest}",
        _remedy(evidence),
        _HEADROOM * memory.capacity - unused,
    )


def _remedy(evidence: Evidence) -> str:
    has_tp = any(divides_weights(evidence, axis) for axis in evidence.model_axes)
    spread = (
        "more devices along tp (--tp)" if has_tp else "weights divided over tp by rules (--tp, --rules FILE)"
    )
    cache = "a shorter cache (--max-cache-len), " if evidence.report.memory.cache else ""
    return f"{spread}, {cache}a smaller batch (--batch), or dtype='bfloat16' (--dtype bfloat16)"


RULE = AdviceRule(
    id="TPC016",
    name="little-headroom",
    summary="a program that fits with less than 5% of the memory left",
    why="""The compiler counts one program. A run has several: the prefill beside the decode step, outputs that the
caller holds while the next call runs, and gaps that allocations leave. What only just fits by itself is out of memory
in a run.""",
    measured="""Bytes used of the device's capacity: more than 95%, and not more than all.""",
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
