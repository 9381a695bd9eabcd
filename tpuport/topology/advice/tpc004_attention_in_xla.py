"""TPC004: long attention that the fused kernel does not compute."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tpuport.base.plurals import count_noun
from tpuport.compat.jaxprs import Visit
from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    format_bytes,
    parse_source,
)
from tpuport.topology.advice.attention_scores import (
    LONG,
    CallCount,
    Scores,
    call_scores,
    count_score_traffic,
    find_unreadable_mask,
    group_long_calls,
    is_own_attention,
    score_bytes,
)
from tpuport.topology.advice.evidence import Evidence

# By how the reason of a call that fell back begins.
_REMEDIES: Final = {
    "asked for": "tpuport.attention.register(implementation='auto'), or --attention flash",
    "head dimension": "a head dimension from 32 to 256; if needed, pad queries, keys and values with zeros",
    "the kernel computes": "dtype='bfloat16' (--dtype bfloat16)",
}


class _Result(NamedTuple):
    """The size of a result, and its last two dimensions."""

    size: int
    matrix: tuple[int, ...]


def check(evidence: Evidence) -> Iterator[Hit]:
    """Calls that fell back, and a model's own products and softmax."""
    alike = group_long_calls(
        evidence, lambda call: (call.implementation, call.reason, "dense" in call.mask)
    )
    for calls in alike:
        first = calls[0].call
        # A call with a dense mask has TPC003.
        if first.implementation == "xla" and "dense" not in first.mask:
            yield from _describe_fallback(evidence, calls)
    yield from _find_own_attention(evidence)


def _describe_fallback(evidence: Evidence, calls: list[CallCount]) -> Iterator[Hit]:
    call, times = calls[0].call, sum(times for _, times in calls)
    # Of a program that was refused, the size by arithmetic is all that is known.
    if evidence.program is None:
        traffic = (
            sum(2 * score_bytes(call) * count for call, count in calls)
            / evidence.mesh.size
        )
    else:
        scores = {call_scores(call) for call, _ in calls}
        # tpuport's attention in XLA has scores in float32.
        traffic = count_score_traffic(evidence, scores, dtypes=("f32",))
    if not traffic:
        return
    # A reason may end with figures, so that its beginning decides.
    remedies = (
        remedy for start, remedy in _REMEDIES.items() if call.reason.startswith(start)
    )
    yield Hit(
        f"{count_noun(times, 'attention call')} of {call.query[2]} x {call.key[2]} scores a head in XLA instead of "
        f"the kernel ({call.reason}): {format_bytes(traffic)} of scores a device {_how_measured(evidence)}",
        next(remedies, "see the reason"),
        traffic,
        source=parse_source(call.site, call.module),
    )


def _find_own_attention(evidence: Evidence) -> Iterator[Hit]:
    """A product [.., Q, T] over pairs of a batch, and as many exponentials; torch puts
    batch and heads together.
    """
    # A softmax takes the exponential of scores, which have the shape of the product.
    exponentials = {
        _result(visit)
        for visit in evidence.equations
        if visit.equation.primitive.name == "exp"
    }
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
        scores = {
            Scores(_result(product).size // (queries * keys), queries, keys)
            for product in products
        }
        traffic = count_score_traffic(evidence, scores)
    if not traffic:
        return
    times = sum(product.times for product in products)
    yield Hit(
        f"{count_noun(times, 'time')} per step, the model multiplies queries and keys itself: {queries} x {keys} "
        f"scores a head, {format_bytes(traffic)} a device {_how_measured(evidence)}",
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
    return (
        bool(batched)
        and len(matrix) == 2
        and min(matrix) >= LONG
        and not is_own_attention(visit.equation)
    )


def _remedy(evidence: Evidence, queries: int, keys: int) -> str:
    call = "call torch.nn.functional.scaled_dot_product_attention (in transformers, attn_implementation='sdpa')"
    mask = find_unreadable_mask(evidence.traced.jaxpr, queries, keys)
    if mask is None:
        return call
    return (
        f"the scores have a dense mask {mask} whose structure cannot be derived: with it, scaled_dot_product_attention "
        "would not use the kernel either, but XLA in blocks of queries, which takes less memory and not less time. "
        f"Express the mask as TPC003 (dense-mask) describes, and {call}; if the kernel knows no such mask, such as a "
        "two-dimensional window, leave the code unchanged"
    )


def _how_measured(evidence: Evidence) -> str:
    if evidence.program is None:
        return "to write and read again, by arithmetic, if evenly divided (there is no program to measure)"
    return "written to HBM and read again"


RULE = AdviceRule(
    id="TPC004",
    name="attention-in-xla",
    summary="attention over long sequences that does not run in the fused kernel",
    why="""The kernel keeps attention scores on the chip, one block at a time. XLA writes scores that are too large for
VMEM to HBM, and reads them back for the softmax and for the product with the values. At 8,192 tokens these are 256 MiB
per head, and moving them takes longer than the arithmetic.""",
    measured="""Traced attention calls with at least 1,024 queries and keys that did not use the kernel, with the
reason that `tpuport.attention.explain()` gives; and batched matrix products of that size in the traced program whose
result goes into an exponential. The cost is the traffic of the score arrays, or blocks of them, that the compiled
program keeps in HBM; if they stay in VMEM, there is no finding. Without a compiled program, the cost is computed from
their shapes. TPC003 covers calls with a dense mask.""",
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
