"""TPC011: embeddings and heads whose vocabulary every device holds."""

from collections.abc import Iterator

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import (
    device_bytes,
    divides_weights,
    is_worth_a_finding,
    layer_pattern,
    replicated_weights,
    vocabulary_weights,
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Large ones that an axis does not divide although it divides other weights."""
    for axis, parts in evidence.model_axes.items():
        # An axis that divides nothing at all has TPC002.
        whole = replicated_weights(evidence, axis) if divides_weights(evidence, axis) else ()
        for name, weight in vocabulary_weights(evidence):
            nbytes = device_bytes(weight)
            if name not in whole or not is_worth_a_finding(nbytes, evidence):
                continue
            rows = weight.shape[0]
            reason = ""
            remedy = (
                f"rules.override({{r'{layer_pattern(name)}': PartitionSpec({axis!r}, None)}}) (--rules FILE)"
            )
            if rows % parts:
                reason = f", because {axis}={parts} does not divide {rows} rows"
                remedy = (
                    "model.resize_token_embeddings(pad_to_multiple_of=128), and then the model's own rules"
                )
            yield Hit(
                f"{name} {tuple(weight.shape)}, {format_bytes(nbytes)}, is whole on each of the {parts} devices of "
                f"{axis}{reason}",
                remedy,
                nbytes * (1 - 1 / parts),
            )


RULE = AdviceRule(
    id="TPC011",
    name="vocabulary-not-sharded",
    summary="an embedding or a head of which every device holds the whole vocabulary",
    why="""With 128,256 rows of 4,096 in bfloat16 an embedding is 1 GiB and the head another, on each device; the
head is read whole for each token, and its product done whole. Sharded over the vocabulary they cost one all-reduce
of the activations, and the greedy choice two small all-gathers.""",
    measured="""Embeddings and the output embedding as the model names it, from 1 MiB and 1% of all weights on a
device, that no axis of the model divides.""",
    before="""rules = ShardingRules.from_model(llama()).override({r"lm_head\\.weight": PartitionSpec()})
compile_for(
    llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16"
)""",
    after="""rules = ShardingRules.from_model(llama())   # the vocabulary over tp
compile_for(
    llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16"
)""",
    check=check,
)
