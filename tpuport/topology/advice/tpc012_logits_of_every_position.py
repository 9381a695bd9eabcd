"""TPC012: logits of a whole prompt, of which one is used."""

from collections.abc import Iterator
from math import prod
from typing import Final

from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    format_bytes,
    format_flops,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.traced_products import Product
from tpuport.topology.advice.weight_placement import MIB, output_embedding

# They name arrays that something else has made.
_NAMES: Final = ("parameter", "get-tuple-element", "tuple")


def check(evidence: Evidence) -> Iterator[Hit]:
    """A product with the head's weight, for more rows than the batch has, in a
    prefill.
    """
    vocabulary = _vocabulary_size(evidence)
    if evidence.report.task != "prefill" or vocabulary is None:
        return
    # Each row chooses one token; rows may be filled up to a multiple of dp.
    rows = evidence.inputs["batch"] * evidence.axis_sizes.get("dp", 1)
    products = _head_products(evidence, vocabulary)
    # Several products may be as wide as the vocabulary: the largest costs most.
    largest = max(products, key=lambda product: product.output.size, default=None)
    if largest is None:
        return
    logits, positions = largest.output, largest.output.size // vocabulary
    if positions <= rows or not _is_compiled(evidence, vocabulary, rows):
        return
    nbytes = logits.size * logits.dtype.itemsize / evidence.mesh.size
    if nbytes < MIB:
        return
    yield Hit(
        f"logits {list(logits.shape)} {logits.dtype} for {positions:,} positions, {format_bytes(nbytes)} and "
        f"{format_flops(largest.flops / evidence.mesh.size)} a device if evenly divided, although only the last "
        "position chooses a token",
        "let forward take logits_to_keep, as transformers' models do, and apply the head to "
        "hidden[:, -logits_to_keep:]",
        nbytes,
    )


def _vocabulary_size(evidence: Evidence) -> int | None:
    weight = getattr(output_embedding(evidence.model), "weight", None)
    if weight is not None:
        return int(weight.shape[0])
    return getattr(evidence.config, "vocab_size", None)


def _head_products(evidence: Evidence, vocabulary: int) -> list[Product]:
    """Products with the head's weight, whatever it is called; with any as wide if the
    model does not name a head.
    """
    products = [
        product
        for product in evidence.products.all
        if product.output.shape[-1:] == (vocabulary,)
    ]
    weight = getattr(output_embedding(evidence.model), "weight", None)
    if weight is None:
        return products
    # A tied head has the name of the embedding in the program.
    named = evidence.model.named_parameters(remove_duplicate=False)
    heads = {name for name, parameter in named if parameter is weight}
    return [product for product in products if not heads or product.weight in heads]


def _is_compiled(evidence: Evidence, vocabulary: int, rows: int) -> bool:
    """Whether they are still in the compiled program, in any share; if there is none,
    they count as traced.
    """
    if evidence.program is None:
        return True
    # The compiler may drop them, as nobody reads all but one.
    parts = {1, evidence.mesh.size, *evidence.axis_sizes.values()}
    widths = {vocabulary // part for part in parts if vocabulary % part == 0}
    computed = [
        instruction
        for instruction in evidence.compiled.instructions
        if instruction.operation not in _NAMES
    ]
    arrays = (array for instruction in computed for array in instruction.arrays)
    return any(
        array.dims and array.dims[-1] in widths and prod(array.dims[:-1]) > rows
        for array in arrays
    )


RULE = AdviceRule(
    id="TPC012",
    name="logits-of-every-position",
    summary="a prefill that computes logits for every position of the prompt",
    why="""A prefill needs the logits of the last position only. Those of all positions are [B, L, V]: for 8,192 tokens
and a vocabulary of 128,256 they take up 2 GiB in bfloat16 and 4 GiB in float32, and the head does 8,192 times the work.
This array is often the largest in the program, and the reason why the program does not fit.""",
    measured="""A product with the output embedding's weight in the traced program that has more rows than the batch
and is still in the compiled program, from 1 MiB per device.""",
    before="""class Scorer(LlamaForCausalLM):
    def forward(self, input_ids, logits_to_keep=0, **kwargs):
        output = super().forward(input_ids, **kwargs)
        output.logits = output.logits / output.logits.abs().amax(1, keepdim=True)
        return output


config = llama().config
compile_for(
    lambda: Scorer(config), Prefill(length=512), topology="v6e:2x2", tp=4, dtype="bfloat16"
)""",
    after="""class Scorer(LlamaForCausalLM):
    def forward(self, input_ids, logits_to_keep=0, **kwargs):
        kwargs["logits_to_keep"] = logits_to_keep
        output = super().forward(input_ids, **kwargs)
        output.logits = output.logits / output.logits.abs().amax(1, keepdim=True)
        return output


config = llama().config
compile_for(
    lambda: Scorer(config), Prefill(length=512), topology="v6e:2x2", tp=4, dtype="bfloat16"
)""",
    check=check,
)
