"""TPC024: float32 arrays written to memory by elementwise code of a 16-bit model."""

from collections.abc import Iterator
from typing import Final

import jax.numpy as jnp

from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.timed_code import format_seconds, timed_lines
from tpuport.topology.hlo import HBM, Array
from tpuport.topology.timing import Span

# What is smaller stays in VMEM, or takes no time.
_LEAST_BYTES: Final = 1 << 20
_KINDS: Final = {"elementwise", "copies and layouts"}


def check(evidence: Evidence) -> Iterator[Hit]:
    """A finding for each line; none for a model that is float32 throughout."""
    if not any(
        weight.dtype in (jnp.bfloat16, jnp.float16)
        for weight in evidence.weights.values()
    ):
        return
    for line in timed_lines(evidence, _float32_array):
        yield Hit(
            f"float32 arrays in HBM between operations of a 16-bit model, such as {line.largest}, take "
            f"{format_seconds(evidence, line.seconds)}",
            "cast back to the model's dtype on the line that needs the precision, .to(x.dtype), so that what goes to "
            "memory has 16 bits",
            line.seconds / 2,
            "seconds",
            source=line.source,
            explained_by=frozenset({"TPC005"}),
        )


def _float32_array(span: Span) -> Array | None:
    if span.work.kind not in _KINDS:
        return None
    for array in span.instruction.results:
        if array.dtype == "f32" and array.space == HBM and array.nbytes >= _LEAST_BYTES:
            return array
    return None


RULE = AdviceRule(
    id="TPC024",
    name="float32-between-kernels",
    summary="float32 arrays in memory between the operations of a 16-bit model",
    why="""Norms, rotary embeddings and activations in float32 cost nothing while the compiler keeps their numbers in
registers. Where it cannot fuse them with what follows, such as a kernel or a product that takes its operand in another
layout, the float32 array is written to memory and read again: twice the bytes of the model's own dtype.""",
    measured="""The time of elementwise operations and copies that write float32 arrays of at least 1 MiB to HBM in a
model with 16-bit weights, by the line that they come from, if all of them take at least 2% of a step, and the line 1%;
half of it is the cost.
Programs with float32 products are reported by TPC005.""",
    before="""class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2048))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


inputs = {"x": torch.empty(1, 4096, 2048, device="meta", dtype=torch.bfloat16)}
compile_for(Normed(), inputs, topology="v6e:1x1", dtype="bfloat16")""",
    after="""class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2048))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return wide.to(x.dtype)


inputs = {"x": torch.empty(1, 4096, 2048, device="meta", dtype=torch.bfloat16)}
compile_for(Normed(), inputs, topology="v6e:1x1", dtype="bfloat16")""",
    check=check,
)
