"""TPC004: long attention that the fused kernel does not compute."""

from collections.abc import Iterator
from typing import Final

from tpuport.attention.calls import Call
from tpuport.topology.advice.equations import Equation
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.scores import LONG, is_long, score_bytes
from tpuport.topology.advice.wording import several, site, size

_REMEDIES: Final = {
    "asked for": "tpuport.attention.register(implementation='auto'), or --attention splash",
    "head dimension": "a head dimension from 32 to 256; pad queries, keys and values with zeros to the next one",
    "the kernel computes": "dtype='bfloat16'",
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
        yield _fallen(evidence, reason, place, calls)
    yield from _by_hand(evidence)


def _fallen(evidence: Evidence, reason: str, place: str, calls: list[tuple[Call, int]]) -> Hit:
    call, times = calls[0][0], sum(times for _, times in calls)
    through = sum(2 * score_bytes(one) * count for one, count in calls) / evidence.mesh.size
    fix = next((text for start, text in _REMEDIES.items() if reason.startswith(start)), "see the reason")
    return Hit(
        f"{several(times, 'attention call')} of {call.query[2]} x {call.key[2]} scores a head in XLA and not in the "
        f"kernel ({reason}): {size(through)} of scores a device written and read again, if evenly shared out",
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
    through = sum(2 * one.outputs[0].size * 4 * one.times for one in made) / evidence.mesh.size
    yield Hit(
        f"{several(sum(one.times for one in made), 'time')} a step the model multiplies queries and keys itself: "
        f"{queries} x {keys} scores a head, {size(through)} a device written and read again, if evenly shared out",
        "call torch.nn.functional.scaled_dot_product_attention; of transformers, attn_implementation='sdpa'",
        through,
    )


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
    why="""The kernel keeps scores on the chip, a block at a time. XLA writes them to HBM and reads them again for
the softmax and for the product with the values: at 8,192 tokens that is 256 MiB for every head, and more time than
the arithmetic takes.""",
    measured="""Attention calls as they were traced, of at least 1,024 queries and keys, with the reason that
`tpuport.attention.explain()` gives; and batched products of that size in the traced program whose exponential is
taken. Calls with a dense mask have TPC003.""",
    before="""model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")""",
    after="""model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
report = compile_for(model, tpuport.topology.Prefill(length=8192), topology="v5e:2x4", tp=8)""",
    check=check,
)
