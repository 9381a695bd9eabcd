"""TPC011: embeddings and heads whose vocabulary every device holds."""

from collections.abc import Iterator

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import (
    held,
    is_large,
    is_used_by_weights,
    pattern,
    replicated,
    vocabulary,
)
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import size


def check(evidence: Evidence) -> Iterator[Hit]:
    """Large ones that an axis does not divide, where it divides other weights."""
    for axis, parts in evidence.model_axes.items():
        whole = set(replicated(evidence, axis)) if is_used_by_weights(evidence, axis) else set()
        for name, weight in vocabulary(evidence):
            each = held(weight)
            if name not in whole or not is_large(each, evidence):
                continue
            rows = weight.shape[0]
            why = f", because {axis}={parts} does not divide {rows} rows" if rows % parts else ""
            yield Hit(
                f"{name} {tuple(weight.shape)}, {size(each)}, is whole on each of the {parts} devices of {axis}{why}",
                "model.resize_token_embeddings(pad_to_multiple_of=128), and then the model's own rules"
                if why
                else f"rules.override({{r'{pattern(name)}': PartitionSpec({axis!r}, None)}}) (--rules FILE)",
                each * (1 - 1 / parts),
            )


RULE = Rule(
    id="TPC011",
    name="vocabulary-not-sharded",
    summary="an embedding or a head of which every device holds the whole vocabulary",
    why="""With 128,256 rows of 4,096 in bfloat16 an embedding is 1 GiB and the head another, on each device; the
head is read whole for each token, and its product done whole. Sharded over the vocabulary they cost one all-reduce
of the activations, and the greedy choice two small all-gathers.""",
    measured="""Embeddings and the output embedding as the model names it, from 1 MiB and 1% of all weights on a
device, that no axis of the model divides.""",
    before="""rules = ShardingRules.from_model(model).override({r"lm_head\\.weight": PartitionSpec()})""",
    after="""rules = ShardingRules.from_model(model)   # the vocabulary over tp""",
    check=check,
)
