"""TPC001: a residual stream that is sharded along its width."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.origins import Origins
from tpuport.topology.advice.placement import dim_axes, pattern, vocabulary
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.traffic import collectives, made_for, sent, times
from tpuport.topology.advice.wording import several
from tpuport.topology.hlo import Instruction

# One norm over a sharded width may be the last one's, or one that is meant so; from two on it is the stream.
_NORMS: Final = 2


def check(evidence: Evidence) -> Iterator[Hit]:
    """Norms' sums that are reduced over devices, and activations gathered again for the products after them."""
    reduces = [one for one in collectives(evidence, "all-reduce", "reduce-scatter") if _is_float(one)]
    sums = [one for one in reduces if made_for(one) == "reduce_sum"]
    # A softmax over devices reduces its maximum too, as often as its sum.
    norms = times(sums) - times([one for one in reduces if made_for(one) == "reduce_max"])
    if norms < _NORMS:
        return
    origins = Origins(evidence)
    gathers = [
        one
        for one in collectives(evidence, "all-gather")
        if made_for(one) in ("dot_general", "conv_general_dilated") and not origins.weights(one)
    ]
    if evidence.program is None or not gathers:
        return
    total = sum(one.count for one in evidence.report.collectives)
    places = Counter(evidence.program.source(one) for one in (*sums, *gathers))
    yield Hit(
        f"{several(norms, 'all-reduce')} of norms' sums and {several(times(gathers), 'all-gather')} of activations, "
        f"of {total} collectives a step: the activations between the layers are sharded along their width"
        + _cause(evidence),
        _remedy(evidence),
        sent((*sums, *gathers)),
        "bytes sent",
        places.most_common(1)[0][0],
    )


def _wide(evidence: Evidence) -> list[tuple[str, tuple[str, ...]]]:
    """Embeddings that are sharded along their width, and over which axes."""
    found = ((name, dim_axes(weight, 1)) for name, weight in vocabulary(evidence))
    return [(name, axes) for name, axes in found if set(axes) & evidence.sizes.keys()]


def _cause(evidence: Evidence) -> str:
    return "".join(f", as {name} is over {'+'.join(axes)}" for name, axes in _wide(evidence)[:1])


def _remedy(evidence: Evidence) -> str:
    wide = _wide(evidence)
    if not wide:
        return (
            "shard weights that read these activations by their outputs, PartitionSpec('tp', None), and those that "
            "write them by their inputs, PartitionSpec(None, 'tp'): rules.override({r'...': ...}), or lines in a "
            "file for --rules"
        )
    changes = ", ".join(f"r'{pattern(name)}': PartitionSpec({axes[0]!r}, None)" for name, axes in wide)
    return f"shard the embedding over the vocabulary: rules.override({{{changes}}}) (--rules FILE)"


def _is_float(instruction: Instruction) -> bool:
    return any(array.dtype.startswith(("f", "bf")) for array in instruction.arrays)


RULE = Rule(
    id="TPC001",
    name="width-sharded-activations",
    summary="activations that are sharded along their width between the layers",
    why="""A norm needs the sum over the whole width, and a product the whole width of its input. Where the residual
stream is sharded along it, each norm costs an all-reduce of its sums and an all-gather of its result, beside the two
all-reduces a layer that tensor parallelism needs. Llama-2-7B's decode step on 8 devices had 194 collectives so, and
has 67 with one rule changed. A decode step waits for each of them. The cause is most often the embedding: sharded
along its width, it hands on activations sharded along theirs, and the compiler keeps them so.""",
    measured="""All-reduces in the compiled program that were made for a sum (those of a softmax taken off), at least
2, and all-gathers of activations for a product.""",
    before="""rules = tpuport.ShardingRules.from_model(model).override(
    {r"model\\.embed_tokens\\.weight": PartitionSpec(None, "tp")}
)""",
    after="""rules = tpuport.ShardingRules.from_model(model).override(
    {r"model\\.embed_tokens\\.weight": PartitionSpec("tp", None)}  # the vocabulary; what from_model says anyway
)""",
    check=check,
)
