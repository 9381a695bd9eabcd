"""TPC002: large weights that every device holds whole."""

from collections.abc import Iterator

from tpuport.topology.advice import heads
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import (
    by_pattern,
    held,
    is_large,
    is_used_by_weights,
    pattern,
    replicated,
    vocabulary,
)
from tpuport.topology.advice.remedies import as_rules_see, more_rows, rules_for, spec_of
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size


def check(evidence: Evidence) -> Iterator[Hit]:
    """Of each axis of the model: all weights, or the large ones that it does not divide."""
    # Those have rules of their own, which say more.
    others = {name for name, _ in vocabulary(evidence)} | heads.kept_whole(evidence)
    others |= {name for name, _ in evidence.model.named_buffers()}  # no rule places buffers
    for axis, parts in evidence.model_axes.items():
        whole = replicated(evidence, axis)
        if not is_used_by_weights(evidence, axis):
            yield from _nothing(evidence, whole, axis, parts)
            continue
        for regex, names in by_pattern(name for name in whole if name not in others).items():
            each = sum(held(evidence.weights[name]) for name in names)
            if is_large(each, evidence):
                yield _hit(evidence, regex, names, axis, parts, each)


def _nothing(evidence: Evidence, names: list[str], axis: str, parts: int) -> Iterator[Hit]:
    whole = sum(held(evidence.weights[name]) for name in names)
    if is_large(whole, evidence):
        yield Hit(
            f"no weight is sharded over {axis}={parts}: each device holds all {size(whole)}, and does all of the work "
            "on them",
            _everything(evidence, names, axis, parts),
            whole * (1 - 1 / parts),
        )


def _everything(evidence: Evidence, names: list[str], axis: str, parts: int) -> str:
    """Rules; for what fits whole, rows of its own for each device."""
    others = {name for name, _ in evidence.model.named_buffers()}
    fix = f"say what divides them: {rules_for(evidence.weights, (n for n in names if n not in others), axis, parts)}"
    rows = more_rows(evidence)
    return f"{fix}; or, as it fits whole, {rows}" if rows else fix


def _hit(evidence: Evidence, regex: str, names: list[str], axis: str, parts: int, each: int) -> Hit:
    single, shape = as_rules_see(names[0], evidence.weights[names[0]])
    regex = regex if single == names[0] else pattern(single)
    spec = spec_of(shape, axis, parts)
    fix = (
        f"pad a dimension of {shape} to a multiple of {parts}, and shard it"
        if spec is None
        else f"rules.override({{r'{regex}': {spec}}}), or a line for it in the file of --rules; of two weights that "
        "follow each other, the first by its outputs and the second by its inputs"
    )
    return Hit(
        f"{several(len(names), 'weight')} of shape {shape}, {size(each)} together, "
        f"{'is' if len(names) == 1 else 'are'} whole on each of the {parts} devices of {axis}: {names[0]}"
        + (" and others like it" if len(names) > 1 else ""),
        fix,
        each * (1 - 1 / parts),
    )


RULE = Rule(
    id="TPC002",
    name="replicated-weight",
    summary="large weights that every device holds whole",
    why="""A replicated weight takes its whole size on each device, is read whole in each step, and every device does
all of its work. A decode step is as long as reading the weights takes, so a replicated half of the model halves what
more devices could gain.""",
    measured="""Bytes of weights on a device that no axis of the model divides, from 1 MiB and 1% of all weights
there; the same weight of all layers is one finding. Embeddings have TPC011, heads that do not divide have TPC007.""",
    before="""rules = tpuport.ShardingRules({r".*\\.(q|k|v)_proj\\.weight": PartitionSpec("tp", None)})""",
    after="""rules = tpuport.ShardingRules({
    r".*\\.(q|k|v|gate|up)_proj\\.weight": PartitionSpec("tp", None),
    r".*\\.(o|down)_proj\\.weight": PartitionSpec(None, "tp"),
})""",
    check=check,
)
