"""TPC016: a program that only just fits."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import is_used_by_weights
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import size

# Of the capacity. A second program (a prefill beside a decode step), outputs that a caller still holds and gaps
# between arrays need room that the compiler does not count.
_LEFT: Final = 0.05


def check(evidence: Evidence) -> Iterator[Hit]:
    """Memory used against the capacity."""
    memory = evidence.report.memory
    if memory.used is None or memory.used > memory.capacity:
        return
    left = memory.capacity - memory.used
    if left < _LEFT * memory.capacity:
        known = {
            "weights": memory.weights, "the cache": memory.cache, "other arguments": memory.arguments,
            "outputs": memory.outputs, "temporaries": memory.temporaries, "code": memory.code,
        }  # fmt: skip
        parts = {name: nbytes for name, nbytes in known.items() if nbytes is not None}
        largest = max(parts, key=lambda name: parts[name])
        yield Hit(
            f"{size(memory.used)} of {size(memory.capacity)} are used, {left / memory.capacity:.1%} are left; "
            f"the most, {size(parts[largest])}, is {largest}",
            _remedy(evidence),
            _LEFT * memory.capacity - left,
        )


def _remedy(evidence: Evidence) -> str:
    tp = any(is_used_by_weights(evidence, axis) for axis in evidence.model_axes)
    spread = "more devices along tp (--tp)" if tp else "weights divided over tp by rules (--tp, --rules FILE)"
    cache = "a shorter cache (--max-cache-len), " if evidence.report.memory.cache else ""
    return f"{spread}, {cache}a smaller batch (--batch), or dtype='bfloat16' (--dtype bfloat16)"


RULE = Rule(
    id="TPC016",
    name="little-headroom",
    summary="a program that fits with less than 5% of the memory left",
    why="""The compiler counts one program. A run has several: the prefill beside the decode step, outputs that the
caller holds while the next call runs, and gaps that allocations leave. What fits here by a hair is out of memory
there.""",
    measured="""Bytes used of the device's capacity: more than 95%, and not more than all.""",
    before="""compile_for(model, Decode(batch=64, max_cache_len=4096), topology="v5e:2x4", tp=8)""",
    after="""compile_for(model, Decode(batch=48, max_cache_len=4096), topology="v5e:2x4", tp=8)""",
    check=check,
)
