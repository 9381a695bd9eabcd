"""TPC003: a mask with an entry for every query and key."""

import re
from collections.abc import Iterator
from math import prod
from typing import Final

from tpuport.attention.call_report import Call
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.scores import is_long
from tpuport.topology.advice.wording import several, site, size

_DENSE: Final = re.compile(r"dense \[([\d, ]+)\] (\w+)")
_ONE_BYTE: Final = ("bool", "int8", "uint8")

_REMEDY: Final = (
    "say what the mask means: is_causal=True, a mask of keys [B, 1, 1, T], a window in the config, the mask that "
    "transformers and diffusers make themselves inside the traced call, or comparisons of positions or of segment "
    "numbers joined by &. For any other, such as a window in two dimensions or a table of biases, XLA in blocks of "
    "queries is what there is: keep it boolean, made once for all layers, and [1, 1, Q, T] for all rows and heads"
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Long attention calls that were given one."""
    calls: dict[tuple[str, str], list[tuple[Call, int]]] = {}
    for call, times in evidence.report.attention:
        if is_long(call) and (found := _DENSE.search(call.mask)):
            calls.setdefault((found[0], call.site), []).append((call, times))
    for (mask, place), made in calls.items():
        call, found = made[0][0], _DENSE.search(mask)
        if found is None:
            continue
        nbytes = prod(map(int, found[1].split(","))) * _width(found[2])
        kept = _kept(evidence, call)
        yield Hit(
            f"a {mask} mask of {size(nbytes)} in {several(sum(times for _, times in made), 'attention call')}: "
            f"{call.reason}, so XLA computes {call.query[2]} x {call.key[2]} scores a head"
            + (f"; the program keeps {several(kept, 'array')} of that size" if kept else ""),
            _REMEDY,
            nbytes,
            source=site(place, call.module),
        )


def _width(dtype: str) -> int:
    return 1 if dtype in _ONE_BYTE else 2 if dtype.endswith("16") else 4


def _kept(evidence: Evidence, call: Call) -> int:
    """Arrays [.., Q, T] that the program has in memory outside of fusions."""
    wanted = (call.query[2], call.key[2])
    arrays = [
        array
        for one in evidence.instructions
        if not one.is_fused
        for array in one.arrays
        if tuple(array.dims[-2:]) == wanted
    ]
    return len(arrays)


RULE = Rule(
    id="TPC003",
    name="dense-mask",
    summary="a long attention call whose mask has an entry for every query and key",
    why="""The fused kernel computes who sees whom from a few numbers (causal, a window, padding, segments) and skips
blocks that nobody sees. A mask [.., Q, T] whose making is not known to it can be anything, so the call is computed
in XLA, block by block, with the mask read from HBM: its size grows with the square of the length, and nothing is
skipped.""",
    measured="""Attention calls as they were traced (those that `tpuport.attention.explain()` lists) with a dense
mask and at least 1,024 queries and keys.""",
    before="""mask = torch.tril(torch.ones(length, length, dtype=torch.bool))
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)""",
    after="""out = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
    check=check,
)
