"""When attention's scores are worth a kernel, and where a program keeps them."""

from collections.abc import Collection
from itertools import combinations
from math import prod
from typing import Final, NamedTuple

from tpuport.attention.call_report import Call
from tpuport.attention.xla_attention import block_size
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import HBM, Array
from tpuport.topology.hlo.memory_traffic import makes_arrays

# From here on one head's scores in float32 are 4 MiB: 32 heads of them fill a v5e's VMEM (128 MiB), so that scores
# which no kernel keeps on the chip go through HBM.
LONG: Final = 1024


class Scores(NamedTuple):
    """Those of a call: `outer` heads of all rows, each of `queries` x `keys`."""

    outer: int
    queries: int
    keys: int


def is_long(call: Call) -> bool:
    """Whether a call has many queries and many keys."""
    return len(call.query) == 4 and len(call.key) == 4 and min(call.query[2], call.key[2]) >= LONG


def scores_of(call: Call) -> Scores:
    """What a call computes."""
    return Scores(call.query[0] * call.query[1], call.query[2], call.key[2])


def score_bytes(call: Call) -> int:
    """Bytes of all scores of a call, in float32."""
    return 4 * prod(scores_of(call))


def scores_in_hbm(evidence: Evidence, forms: Collection[Scores], float32: bool) -> float:
    """Bytes of scores that a device writes to HBM and reads again in a step, by the compiled program.

    Args:
        evidence: has a program.
        forms: of the scores; the program may hold a device's share of them, in blocks of queries.
        float32: whether only such arrays are scores, as in tpuport's attention.
    """
    wanted = {one for form in forms for one in _forms(evidence, form)}
    found = 0.0
    for one in evidence.instructions:
        if one.is_fused or not makes_arrays(one):
            continue
        for array in one.results:
            is_kind = array.dtype == "f32" if float32 else array.dtype in ("f32", "bf16", "f16")
            if array.space == HBM and is_kind and any(_is(array, form) for form in wanted):
                found += 2 * array.tiled_nbytes * one.times
    return found


def _forms(evidence: Evidence, whole: Scores) -> set[Scores]:
    """What of the scores one device may hold at a time."""
    sizes, sp = tuple(evidence.sizes.values()), evidence.sizes.get("sp", 1)
    shares = {prod(some) for count in range(len(sizes) + 1) for some in combinations(sizes, count)}
    found = set()
    for outer in {whole.outer // share for share in shares if whole.outer % share == 0}:
        for queries in {whole.queries, whole.queries // sp}:
            block = block_size(queries, outer * whole.keys)
            found |= {Scores(outer, queries, whole.keys), Scores(outer, block, whole.keys)}
    return found


def _is(array: Array, form: Scores) -> bool:
    """Whether an array is of this form, heads and queries in as many dimensions as the compiler likes."""
    if array.size != prod(form) or form.keys not in array.dims:
        return False
    rest = list(array.dims)
    rest.remove(form.keys)
    return any(extent % form.queries == 0 for extent in rest)
