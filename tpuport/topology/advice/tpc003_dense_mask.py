"""TPC003: a mask with an entry for every query and key."""

import re
from collections.abc import Iterator
from math import prod
from typing import Final

from tpuport.attention.call_report import Call
from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    format_bytes,
    parse_source,
)
from tpuport.topology.advice.attention_scores import group_long_calls
from tpuport.topology.advice.evidence import Evidence

_DENSE: Final = re.compile(r"dense \[([\d, ]+)\] (\w+)")
_ITEM_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "uint16": 2,
}
_REMEDY: Final = (
    "express the mask in a form the kernel knows: is_causal=True, a key mask [B, 1, 1, T], a window in the config, the "
    "mask that transformers or diffusers builds inside the traced call, or comparisons of positions or segment numbers "
    "joined by &. Any other mask, such as a two-dimensional window or a table of biases, runs in XLA in blocks of "
    "queries: keep it boolean, build it once for all layers, and give it the shape [1, 1, Q, T] for all rows and heads"
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Long attention calls that were given such a mask, those of a mask and a line
    together.
    """
    for calls in group_long_calls(evidence, lambda call: call.mask):
        yield from _describe(evidence, calls[0].call, sum(times for _, times in calls))


def _describe(evidence: Evidence, call: Call, times: int) -> Iterator[Hit]:
    # The report describes masks in words: "dense [1, 1, 1024, 1024] bool", several
    # joined.
    for mask in _DENSE.finditer(call.mask):
        nbytes = prod(map(int, mask[1].split(","))) * _ITEM_BYTES.get(mask[2], 4)
        arrays = _count_arrays(evidence, call)
        stored = (
            f"; the program stores {count_noun(arrays, 'array')} of that size"
            if arrays
            else ""
        )
        yield Hit(
            f"a {mask[0]} mask of {format_bytes(nbytes)} in {count_noun(times, 'attention call')}: {call.reason}, so "
            f"XLA computes {call.query[2]} x {call.key[2]} scores a head{stored}",
            _REMEDY,
            nbytes,
            source=parse_source(call.site, call.module),
        )


def _count_arrays(evidence: Evidence, call: Call) -> int:
    """Arrays [.., Q, T] that the program has in memory, outside of fusions."""
    # The compiler may have any number of dimensions in front, or none.
    matrix = (call.query[2], call.key[2])
    stored = [
        instruction
        for instruction in evidence.compiled.instructions
        if not instruction.is_fused
    ]
    return sum(
        array.dims[-2:] == matrix
        for instruction in stored
        for array in instruction.arrays
    )


RULE = AdviceRule(
    id="TPC003",
    name="dense-mask",
    summary="long attention calls whose mask has an entry for every query and key",
    why="""The fused kernel derives which keys a query attends to from a few numbers (causality, a window, padding,
segments) and skips blocks that are masked out entirely. A mask [.., Q, T] of unknown origin could contain anything, so
the call runs in XLA, block by block, and reads the mask from HBM. The mask grows with the square of the sequence
length, and no block is skipped.""",
    measured="""Traced attention calls (those that `tpuport.attention.explain()` lists) with a dense mask and at
least 1,024 queries and keys.""",
    before="""class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


q = torch.empty(1, 8, 1024, 64, dtype=torch.bfloat16, device="meta")
mask = torch.ones(1024, 1024, dtype=torch.bool).tril()
compile_for(Attention(), {"q": q, "k": q, "v": q, "mask": mask}, topology="v6e:2x2", tp=4)""",
    after="""class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


q = torch.empty(1, 8, 1024, 64, dtype=torch.bfloat16, device="meta")
compile_for(Attention(), {"q": q, "k": q, "v": q}, topology="v6e:2x2", tp=4)""",
    check=check,
)
