"""TPC011: embeddings and heads whose vocabulary every device holds."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import (
    MIB,
    device_bytes,
    divides_weights,
    is_worth_a_finding,
    layer_pattern,
    replicated_weights,
    vocabulary_weights,
)

# A smaller table, such as one of labels, is not a reason to change a model.
_WORTH_PADDING: Final = 64 * MIB


def check(evidence: Evidence) -> Iterator[Hit]:
    """Large ones that an axis does not divide although it divides other weights."""
    whole = set(replicated_weights(evidence))
    large = {
        name: weight
        for name, weight in vocabulary_weights(evidence).items()
        if name in whole and is_worth_a_finding(device_bytes(weight), evidence)
    }
    # An axis that divides nothing at all has TPC002.
    axes = [axis for axis in evidence.model_axes if divides_weights(evidence, axis)]
    for axis, (name, weight) in itertools.product(axes, large.items()):
        if weight.shape[0] % evidence.model_axes[axis] == 0 or _is_worth_padding(
            evidence, weight
        ):
            yield _describe(evidence, name, weight, axis, evidence.model_axes[axis])


def _is_worth_padding(evidence: Evidence, weight: Any) -> bool:
    """Whether a table is one of tokens, which transformers can pad, or large enough to
    change the model for it.
    """
    return (
        hasattr(evidence.model, "resize_token_embeddings")
        or device_bytes(weight) >= _WORTH_PADDING
    )


def _describe(evidence: Evidence, name: str, weight: Any, axis: str, parts: int) -> Hit:
    nbytes, rows = device_bytes(weight), weight.shape[0]
    reason = ""
    remedy = f"rules.override({{r'{layer_pattern(name)}': PartitionSpec({axis!r}, None)}}) (--rules FILE)"
    # Rows are added rather than the width divided: a width that is divided has TPC001.
    if rows % parts:
        reason = f", because {axis}={parts} does not divide {rows} rows"
        remedy = (
            f"build it with {-(-rows // parts) * parts} rows, the last of which no index names, and shard it: "
            f"PartitionSpec({axis!r}, None)"
        )
        if hasattr(evidence.model, "resize_token_embeddings"):
            remedy = "model.resize_token_embeddings(pad_to_multiple_of=128), then use the model's own rules"
    return Hit(
        f"{name} {tuple(weight.shape)}, {format_bytes(nbytes)}, is whole on each of the {parts} devices of "
        f"{axis}{reason}",
        remedy,
        nbytes * (1 - 1 / parts),
    )


RULE = AdviceRule(
    id="TPC011",
    name="vocabulary-not-sharded",
    summary="an embedding or output head whose whole vocabulary is on every device",
    why="""With 128,256 rows of 4,096 bfloat16 values, the embedding takes up 1 GiB on each device and the head
another, and each token reads all of the head and computes its whole product. Sharded over the vocabulary, they cost one
all-reduce of the activations, and two small all-gathers for the greedy choice.""",
    measured="""Embeddings, and the output embedding that the model names, that no model axis divides, from 1 MiB and
1% of all weights on a device. A table whose rows the axis does not divide is reported if transformers can pad it, or
from 64 MiB.""",
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
