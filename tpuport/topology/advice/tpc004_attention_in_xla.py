"""TPC004: long attention that the fused kernel does not compute."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tpuport.attention.call_report import Call
from tpuport.jaxprs import Visit
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes, format_count, parse_source
from tpuport.topology.advice.attention_scores import (
    LONG,
    Scores,
    call_scores,
    count_score_traffic,
    find_unreadable_mask,
    is_long,
    is_own_attention,
    score_bytes,
)
from tpuport.topology.advice.evidence import Evidence

# By how the reason of a call that fell back begins.
_REMEDIES: Final = {
    "asked for": "tpuport.attention.register(implementation='auto'), or --attention flash",
    "head dimension": "a head dimension from 32 to 256; pad queries, keys and values with zeros to the next one",
    "the kernel computes": "dtype='bfloat16' (--dtype bfloat16)",
}


class _Result(NamedTuple):
    """The size of a result, and its last two dimensions."""

    size: int
    matrix: tuple[int, ...]


def check(evidence: Evidence) -> Iterator[Hit]:
    """Calls that fell back, and a model's own products and softmax."""
    groups: dict[tuple[str, str], list[tuple[Call, int]]] = {}
    for call, times in evidence.report.attention:
        # A call with a dense mask has TPC003.
        if is_long(call) and call.implementation == "xla" and "dense" not in call.mask:
            groups.setdefault((call.reason, call.site), []).append((call, times))
    for calls in groups.values():
        yield from _describe_fallback(evidence, calls)
    yield from _find_own_attention(evidence)


def _describe_fallback(evidence: Evidence, calls: list[tuple[Call, int]]) -> Iterator[Hit]:
    call, times = calls[0][0], sum(times for _, times in calls)
    # Of a program that was refused, the size by arithmetic is all that is known.
    if evidence.program is None:
        traffic = sum(2 * score_bytes(call) * count for call, count in calls) / evidence.mesh.size
    else:
        scores = {call_scores(call) for call, _ in calls}
        traffic = count_score_traffic(evidence, scores, only_float32=True)
    if not traffic:
        return
    # A reason may end with figures, so that its beginning decides.
    remedies = [remedy for start, remedy in _REMEDIES.items() if call.reason.startswith(start)]
    yield Hit(
        f"{format_count(times, 'attention call')} of {call.query[2]} x {call.key[2]} scores a head in XLA and not in "
        f"the kernel ({call.reason}): {format_bytes(traffic)} of scores a device {_how_measured(evidence)}",
        remedies[0] if remedies else "see the reason",
        traffic,
        source=parse_source(call.site, call.module),
    )


def _find_own_attention(evidence: Evidence) -> Iterator[Hit]:
    """A product [.., Q, T] over pairs of a batch, and as many exponentials; torch puts batch and heads together."""
    # A softmax takes the exponential of scores, which have the shape of the product.
    exponentials = {_result(visit) for visit in evidence.equations if visit.equation.primitive.name == "exp"}
    products = [
        visit
        for visit in evidence.equations
        if _is_long_batched_product(visit) and _result(visit) in exponentials
    ]
    if not products:
        return
    queries, keys = _result(products[0]).matrix
    if evidence.program is None:
        elements = sum(_result(product).size * product.times for product in products)
        traffic = 2 * 4 * elements / evidence.mesh.size
    else:
        scores = {Scores(_result(product).size // (queries * keys), queries, keys) for product in products}
        traffic = count_score_traffic(evidence, scores, only_float32=False)
    if not traffic:
        return
    times = sum(product.times for product in products)
    yield Hit(
        f"{format_count(times, 'time')} a step the model multiplies queries and keys itself: {queries} x {keys} scores "
        f"a head, {format_bytes(traffic)} a device {_how_measured(evidence)}",
        _remedy(evidence, queries, keys),
        traffic,
    )


def _result(visit: Visit) -> _Result:
    aval = visit.equation.outvars[0].aval
    return _Result(int(aval.size), tuple(aval.shape[-2:]))


def _is_long_batched_product(visit: Visit) -> bool:
    if visit.equation.primitive.name != "dot_general":
        return False
    _, (batched, _) = visit.equation.params["dimension_numbers"]
    # Without a batch it is a product with a weight.
    matrix = _result(visit).matrix
    return bool(batched) and len(matrix) == 2 and min(matrix) >= LONG and not is_own_attention(visit.equation)


def _remedy(evidence: Evidence, queries: int, keys: int) -> str:
    call = (
        "call torch.nn.functional.scaled_dot_product_attention; of transformers, attn_implementation='sdpa'"
    )
    mask = find_unreadable_mask(evidence.traced.jaxpr, queries, keys)
    if mask is None:
        return call
    return (
        f"the scores have a dense mask {mask}, whose structure cannot be read: with it scaled_dot_product_attention is "
        "not the kernel either, but XLA in blocks of queries, which takes less memory and not less time. Say what the "
        f"mask means, as TPC003 (dense-mask) has it, and {call}; if it means nothing that the kernel knows, such as a "
        "window in two dimensions, leave the code unchanged"
    )


def _how_measured(evidence: Evidence) -> str:
    if evidence.program is None:
        return "to write and read again, by arithmetic and if evenly divided (there is no program to measure)"
    return "written to HBM and read again"


RULE = AdviceRule(
    id="TPC004",
    name="attention-in-xla",
    summary="attention over long sequences that the fused kernel does not compute",
    why="""The kernel keeps scores on the chip, a block at a time. Scores that are too large for VMEM are written to
HBM by XLA, and read again for the softmax and for the product with the values: at 8,192 tokens that is 256 MiB for
every head, and takes more time than the arithmetic.""",
    measured="""Attention calls as they were traced, of at least 1,024 queries and keys, with the reason that
`tpuport.attention.explain()` gives; and batched products of that size in the traced program whose exponential is
taken. The cost is that of the arrays of scores, or of blocks of them, which the compiled program has in HBM: if they
stay in VMEM there is no finding. If there is no program it is their size by arithmetic. Calls with a dense mask have
TPC003.""",
    before="""class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(2, 3) / 8
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


q = torch.empty(32, 4, 1024, 64, dtype=torch.bfloat16, device="meta")
compile_for(Attention(), {"q": q, "k": q, "v": q}, topology="v6e:2x2", tp=4)""",
    after="""class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


q = torch.empty(32, 4, 1024, 64, dtype=torch.bfloat16, device="meta")
compile_for(Attention(), {"q": q, "k": q, "v": q}, topology="v6e:2x2", tp=4)""",
    check=check,
)
