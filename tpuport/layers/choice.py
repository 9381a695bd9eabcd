"""Whether a loop over blocks is clearly the better program, from what compiling real models both ways has shown.

Seconds of lowering and compiling together, and HBM for temporaries and code of one device, on two busy cores:

| program | apart | in a loop |
|---|---|---|
| Llama-2-7B, forward of 1024 tokens, v5e:2x4, tp=8 | 37 s, 214 MB | 20 s, 6 MB |
| Llama-2-7B, prefill of 1024 tokens, v5e:2x4, tp=8 | 155 s, 781 MB | 66 s, 81 MB |
| HunyuanVideo-1.5, 54 blocks, v6e:2x4, sp=4 tp=2, effort -1 | 296 s, 2420 MB | 58 s, 1982 MB |

Of temporaries these are at most so many: the compiler's sum has gaps between arrays twice. A loop can take more: of 4
blocks of HunyuanVideo-1.5 with sp=8 they are 2164 MB apart and 2936 MB in a loop, which is what 54 blocks take too.

A step of decoding takes one cache array for each layer: to loop over them they would have to be copied together. Given
stacked, it compiles in 9 s instead of 26 s, and the loop writes the whole cache anew in each step, not one column.
"""

import dataclasses
from collections.abc import Sequence

from tpuport.layers.stacks import Stack

# Fewer blocks than this are compiled in seconds either way.
LEAST: int = 8


@dataclasses.dataclass(frozen=True)
class ScanDecision:
    """Whether to scan, as its truth value, and why."""

    scan: bool
    reason: str

    def __bool__(self) -> bool:
        return self.scan


def decide_scan(found: Sequence[Stack], task: str) -> ScanDecision:
    """Whether these blocks should be in loops, for a task: "forward", "prefill" or "decode"."""
    if task == "decode":
        return ScanDecision(
            False, "each layer's cache is an array of its own, which a loop would have to copy"
        )
    longest = max((stack.count for stack in found), default=0)
    if longest < LEAST:
        return ScanDecision(False, f"{longest} identical blocks are compiled in seconds either way")
    return ScanDecision(
        True,
        f"{longest} identical blocks: a loop is compiled several times sooner, and what does not fit is tried without",
    )
