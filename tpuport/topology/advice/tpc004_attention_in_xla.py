"""TPC004: long attention that the fused kernel does not compute."""

from collections.abc import Iterator
from typing import Final

from tpuport.attention.call_report import Call
from tpuport.topology.advice.equations import Equation
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.masks import unknown_mask
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.scores import LONG, Scores, is_long, score_bytes, scores_in_hbm, scores_of
from tpuport.topology.advice.wording import several, site, size

_REMEDIES: Final = {
    "asked for": "tpuport.attention.register(implementation='auto'), or --attention flash",
    "head dimension": "a head dimension from 32 to 256; pad queries, keys and values with zeros to the next one",
    "the kernel computes": "dtype='bfloat16' (--dtype bfloat16)",
}
# Where `attend` computes in XLA, the calls say so themselves.
_OURS: Final = ("attention/xla.py", "attention/reference.py", "attention/by_head.py")


def check(evidence: Evidence) -> Iterator[Hit]:
    """Calls that fell back, and a model's own products and softmax."""
    fallen: dict[tuple[str, str], list[tuple[Call, int]]] = {}
    for call, times in evidence.report.attention:
        if is_long(call) and call.implementation == "xla" and "dense" not in call.mask:
            fallen.setdefault((call.reason, call.site), []).append((call, times))
    for (reason, place), calls in fallen.items():
        yield from _fallen(evidence, reason, place, calls)
    yield from _by_hand(evidence)


def _fallen(evidence: Evidence, reason: str, place: str, calls: list[tuple[Call, int]]) -> Iterator[Hit]:
    call, times = calls[0][0], sum(times for _, times in calls)
    if evidence.program is None:
        through = sum(2 * score_bytes(one) * count for one, count in calls) / evidence.mesh.size
    else:
        through = scores_in_hbm(evidence, {scores_of(one) for one, _ in calls}, float32=True)
    if not through:
        return
    fix = next((text for start, text in _REMEDIES.items() if reason.startswith(start)), "see the reason")
    yield Hit(
        f"{several(times, 'attention call')} of {call.query[2]} x {call.key[2]} scores a head in XLA and not in the "
        f"kernel ({reason}): {size(through)} of scores a device {_said(evidence)}",
        fix,
        through,
        source=site(place, call.module),
    )


def _by_hand(evidence: Evidence) -> Iterator[Hit]:
    """A product [.., Q, T] over pairs of a batch, and as many exponentials; torch puts batch and heads together."""
    exponentials = {_form(one) for one in evidence.equations if one.primitive == "exp"}
    made = [one for one in evidence.equations if _is_scores(one) and _form(one) in exponentials]
    if not made:
        return
    *_, queries, keys = made[0].outputs[0].shape
    if evidence.program is None:
        through = sum(2 * one.outputs[0].size * 4 * one.times for one in made) / evidence.mesh.size
    else:
        forms = {Scores(one.outputs[0].size // (queries * keys), queries, keys) for one in made}
        through = scores_in_hbm(evidence, forms, float32=False)
    if not through:
        return
    yield Hit(
        f"{several(sum(one.times for one in made), 'time')} a step the model multiplies queries and keys itself: "
        f"{queries} x {keys} scores a head, {size(through)} a device {_said(evidence)}",
        _remedy(evidence, queries, keys),
        through,
    )


def _remedy(evidence: Evidence, queries: int, keys: int) -> str:
    call = (
        "call torch.nn.functional.scaled_dot_product_attention; of transformers, attn_implementation='sdpa'"
    )
    mask = None if evidence.jaxpr is None else unknown_mask(evidence.jaxpr.jaxpr, queries, keys)
    if mask is None:
        return call
    return (
        f"the scores have a dense mask {mask}, whose structure cannot be read: with it "
        "scaled_dot_product_attention is not the kernel either, but XLA in blocks of queries, which takes less memory "
        f"and not less time. Say what the mask means, as TPC003 (dense-mask) has it, and {call}; where it means "
        "nothing that the kernel knows, such as a window in two dimensions, leave it as it is"
    )


def _said(evidence: Evidence) -> str:
    if evidence.program is None:
        return (
            "to write and read again, by arithmetic and if evenly shared out (there is no program to measure)"
        )
    return "written to HBM and read again"


def _form(one: Equation) -> tuple[int, tuple[int, ...]]:
    """How many numbers it makes, and the last two dimensions."""
    made = one.outputs[0]
    return int(made.size), tuple(made.shape[-2:])


def _is_scores(one: Equation) -> bool:
    if one.primitive != "dot_general" or len(one.outputs[0].shape) < 3:
        return False
    _, (batched, _) = one.params["dimension_numbers"]
    inside = any(file.endswith(_OURS) for file in one.files)
    return bool(batched) and min(one.outputs[0].shape[-2:]) >= LONG and not inside


RULE = Rule(
    id="TPC004",
    name="attention-in-xla",
    summary="attention over long sequences that the fused kernel does not compute",
    why="""The kernel keeps scores on the chip, a block at a time. What is too large for VMEM XLA writes to HBM and
reads again for the softmax and for the product with the values: at 8,192 tokens that is 256 MiB for every head, and
more time than the arithmetic takes.""",
    measured="""Attention calls as they were traced, of at least 1,024 queries and keys, with the reason that
`tpuport.attention.explain()` gives; and batched products of that size in the traced program whose exponential is
taken. The cost is that of the arrays of scores, or of blocks of them, which the compiled program has in HBM: where
they stay in VMEM there is no finding. Where there is no program it is their size by arithmetic. Calls with a dense
mask have TPC003.""",
    before="""model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")""",
    after="""model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
report = compile_for(model, tpuport.topology.Prefill(length=8192), topology="v5e:2x4", tp=8)""",
    check=check,
)
