"""TPC001: a residual stream that is sharded along its width."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.data_movement import (
    count_executions,
    primitive,
    sent_bytes,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import (
    dimension_axes,
    layer_pattern,
    vocabulary_weights,
)
from tpuport.topology.hlo import Instruction

# One norm over a sharded width may be the last one, or one that is meant to be. From
# two on it is the stream.
_LEAST_NORMS: Final = 2


def check(evidence: Evidence) -> Iterator[Hit]:
    """Norms' sums that are reduced over devices, and activations gathered again for the
    products after them.
    """
    movement = evidence.movement
    reductions = [
        collective
        for collective in movement.collectives("all-reduce", "reduce-scatter")
        if _is_float(collective)
    ]
    sums = [
        collective for collective in reductions if primitive(collective) == "reduce_sum"
    ]
    maxima = [
        collective for collective in reductions if primitive(collective) == "reduce_max"
    ]
    # A softmax over devices reduces its maximum as often as its sum.
    norms = count_executions(sums) - count_executions(maxima)
    if norms < _LEAST_NORMS:
        return
    # What is computed from weights alone has TPC013.
    gathers = [
        collective
        for collective in movement.collectives("all-gather")
        if movement.feeds_product(collective)
        and not movement.weights_behind(collective)
    ]
    if not gathers:
        return
    total = sum(collective.count for collective in evidence.report.collectives)
    # The line that most of them come from is where to look first.
    lines = Counter(map(evidence.compiled.source, (*sums, *gathers)))
    embeddings = _width_sharded_embeddings(evidence)
    yield Hit(
        f"{count_noun(norms, 'all-reduce')} of norms' sums and "
        f"{count_noun(count_executions(gathers), 'all-gather')} of activations, of "
        f"{count_noun(total, 'collective')} a step: the activations between layers are sharded along their "
        f"width{_cause(embeddings)}",
        _remedy(embeddings),
        sent_bytes((*sums, *gathers)),
        "bytes sent",
        lines.most_common(1)[0][0],
    )


def _is_float(instruction: Instruction) -> bool:
    return any(array.dtype.startswith(("f", "bf")) for array in instruction.arrays)


def _width_sharded_embeddings(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Embeddings that are sharded along their width, and over which axes."""
    axes = {
        name: dimension_axes(weight, 1)
        for name, weight in vocabulary_weights(evidence).items()
    }
    return {
        name: over
        for name, over in axes.items()
        if not evidence.axis_sizes.keys().isdisjoint(over)
    }


def _cause(embeddings: dict[str, tuple[str, ...]]) -> str:
    # The first explains the activations; a head that is sharded likewise only reads
    # them.
    for name, axes in embeddings.items():
        return f", because {name} is over {'+'.join(axes)}"
    return ""


def _remedy(embeddings: dict[str, tuple[str, ...]]) -> str:
    if not embeddings:
        return (
            "shard the weights that read these activations by their outputs, PartitionSpec('tp', None), and the "
            "weights that produce them by their inputs, PartitionSpec(None, 'tp'): use rules.override({r'...': ...}), "
            "or a file for --rules"
        )
    # Over the vocabulary, each device looks up some of the tokens, and one all-reduce
    # adds them up.
    changes = ", ".join(
        f"r'{layer_pattern(name)}': PartitionSpec({axes[0]!r}, None)"
        for name, axes in embeddings.items()
    )
    return f"shard the embedding over the vocabulary: rules.override({{{changes}}}) (--rules FILE)"


RULE = AdviceRule(
    id="TPC001",
    name="width-sharded-activations",
    summary="activations that are sharded along their width between layers",
    why="""A norm sums over the whole width, and a matrix product reads the whole width of its input. If the residual
stream is sharded along its width, each norm costs an all-reduce of its sums and an all-gather of its result, on top of
the two all-reduces per layer that tensor parallelism needs anyway. In this state, Llama-2-7B's decode step on 8 devices
ran 194 collectives; changing one rule brought it down to 67. A decode step waits for every one of them. The usual cause
is the embedding: if it is sharded along its width, so are the activations it produces, and the compiler keeps them that
way.""",
    measured="""At least 2 all-reduces in the compiled program that compute sums (those of a softmax do not count),
together with all-gathers of activations that feed matrix products.""",
    before="""rules = ShardingRules.from_model(llama()).override(
    {r"model\\.embed_tokens\\.weight": PartitionSpec(None, "tp")}
)
compile_for(
    llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16"
)""",
    after="""rules = ShardingRules.from_model(llama()).override(
    {r"model\\.embed_tokens\\.weight": PartitionSpec("tp", None)}  # the vocabulary, as from_model has it
)
compile_for(
    llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16"
)""",
    check=check,
)
