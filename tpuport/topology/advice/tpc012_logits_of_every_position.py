"""TPC012: logits of a whole prompt, of which one is used."""

from collections.abc import Iterator
from math import prod
from typing import Any

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import MIB, output_embedding
from tpuport.topology.advice.products import Product
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import size, work


def check(evidence: Evidence) -> Iterator[Hit]:
    """A product with the head's weight, for more rows than the batch has, in a prefill."""
    rows = _vocabulary(evidence)
    if evidence.report.task != "prefill" or rows is None:
        return
    batch = max(1, _number(evidence.inputs.get("batch"))) * max(1, evidence.mesh.shape.get("dp", 1))
    made = [one for one in _logits(evidence, rows) if prod(one.output.shape) // rows > batch]
    if not made or not _is_compiled(evidence, rows, batch):
        return
    largest = max(made, key=lambda one: one.output.size)
    array, tokens = largest.output, prod(largest.output.shape) // rows
    nbytes = array.size * array.dtype.itemsize / evidence.mesh.size
    if nbytes < MIB:
        return
    yield Hit(
        f"logits {list(array.shape)} {array.dtype} for {tokens:,} positions, {size(nbytes)} and "
        f"{work(largest.flops / evidence.mesh.size)} a device if evenly shared out, and the last position alone "
        "chooses a token",
        "let forward take logits_to_keep, as transformers' models do: the head on hidden[:, -logits_to_keep:]",
        nbytes,
    )


def _vocabulary(evidence: Evidence) -> int | None:
    weight = getattr(output_embedding(evidence.model), "weight", None)
    told = getattr(evidence.config, "vocab_size", None)
    return int(weight.shape[0]) if weight is not None else told if isinstance(told, int) else None


def _logits(evidence: Evidence, rows: int) -> list[Product]:
    """Products with the head's weight, whatever it is called; with any that has so many rows where no head is told."""
    weight = getattr(output_embedding(evidence.model), "weight", None)
    named = evidence.model.named_parameters(remove_duplicate=False)
    heads = set() if weight is None else {name for name, one in named if one is weight}
    return [
        one
        for one in evidence.products.made
        if one.output.shape[-1:] == (rows,) and (not heads or one.weight in heads)
    ]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 1


def _is_compiled(evidence: Evidence, rows: int, batch: int) -> bool:
    """Whether they are still in the compiled program, in any share; where there is none, they count as traced."""
    if evidence.program is None:
        return True
    shares = set(evidence.sizes.values()) | {1, evidence.mesh.size}
    widths = {rows // share for share in shares if rows % share == 0}
    return any(
        array.dims and array.dims[-1] in widths and prod(array.dims[:-1]) > batch
        for one in evidence.instructions
        if one.operation not in ("parameter", "get-tuple-element", "tuple")
        for array in one.arrays
    )


RULE = Rule(
    id="TPC012",
    name="logits-of-every-position",
    summary="a prefill that computes logits of every position of the prompt",
    why="""A prefill needs the logits of the last position. Those of all of them are [B, L, V]: for 8,192 tokens and
128,256 words 2 GiB in bfloat16, twice that in float32, and 8,192 times the work of the head. That array is often the
largest of the whole program, and the reason that it does not fit.""",
    measured="""A product with the output embedding's weight in the traced program, for more rows than the batch
has, that is still in the compiled program, from 1 MiB a device.""",
    before="""logits = self.lm_head(hidden)""",
    after="""logits = self.lm_head(hidden[:, -logits_to_keep:])""",
    check=check,
)
