"""TPC002: large weights that every device holds whole."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice import heads
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import (
    MIB,
    SMALL,
    all_held,
    by_pattern,
    held,
    is_large,
    is_used_by_weights,
    replicated,
    vocabulary,
)
from tpuport.topology.advice.remedies import as_rules_see, more_rows, rules_for, spec_of
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size

# Of what a device holds of all weights, and in bytes: embedders that plans leave whole are below both (FLUX.1's
# are 122 MiB of 5.6 GiB over tp=4).
_SHARE: Final = 0.03
_MUCH: Final = 256 * MIB
# Kinds of weights that a finding names; the others are counted.
_NAMED: Final = 3


def check(evidence: Evidence) -> Iterator[Hit]:
    """Of each axis of the model: all weights, or those that it does not divide, all of them in one finding."""
    # Those have rules of their own, which say more.
    others = {name for name, _ in vocabulary(evidence)} | heads.kept_whole(evidence)
    others |= {name for name, _ in evidence.model.named_buffers()}  # no rule places buffers
    for axis, parts in evidence.model_axes.items():
        whole = replicated(evidence, axis)
        if not is_used_by_weights(evidence, axis):
            yield from _nothing(evidence, whole, axis, parts)
            continue
        kinds = by_pattern(name for name in whole if name not in others)
        large = [names for names in kinds.values() if _is_matrix(evidence, names[0])]
        total = sum(_held(evidence, names) for names in large)
        if total >= min(_MUCH, max(SMALL, _SHARE * all_held(evidence))):
            yield _hit(evidence, sorted(large, key=lambda names: -_held(evidence, names)), axis, parts)


def _is_matrix(evidence: Evidence, name: str) -> bool:
    """Whether a weight has two dimensions or more, as rules see it: those of norms are whole on every device anyway."""
    return len(as_rules_see(name, evidence.weights[name])[1]) > 1


def _held(evidence: Evidence, names: list[str]) -> int:
    return sum(held(evidence.weights[name]) for name in names)


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


def _hit(evidence: Evidence, kinds: list[list[str]], axis: str, parts: int) -> Hit:
    names, each = [name for kind in kinds for name in kind], sum(_held(evidence, kind) for kind in kinds)
    said = [_kind(evidence, kind) for kind in kinds[:_NAMED]]
    said += [f"{several(len(kinds) - _NAMED, 'other kind')}"] if len(kinds) > _NAMED else []
    return Hit(
        f"{several(len(names), 'weight')}, {size(each)} together, {'is' if len(names) == 1 else 'are'} whole on each "
        f"of the {parts} devices of {axis}: {'; '.join(said)}",
        _remedy(evidence, names, axis, parts),
        each * (1 - 1 / parts),
    )


def _kind(evidence: Evidence, names: list[str]) -> str:
    like = f" and {len(names) - 1} like it" if len(names) > 1 else ""
    _, shape = as_rules_see(names[0], evidence.weights[names[0]])
    return f"{names[0]} {shape}{like}, {size(_held(evidence, names))}"


def _remedy(evidence: Evidence, names: list[str], axis: str, parts: int) -> str:
    shapes = {name: as_rules_see(name, evidence.weights[name])[1] for name in names}
    fitting = [name for name in names if len(shapes[name]) > 1 and spec_of(shapes[name], axis, parts)]
    if not fitting:
        return f"pad a dimension of {shapes[names[0]]} to a multiple of {parts}, and shard it"
    return (
        f"{rules_for(evidence.weights, fitting, axis, parts, override=True)}. Of two weights that follow each other, "
        "the first by its outputs and the second by its inputs"
    )


RULE = Rule(
    id="TPC002",
    name="replicated-weight",
    summary="large weights that every device holds whole",
    why="""A replicated weight takes its whole size on each device, is read whole in each step, and every device does
all of its work. A decode step is as long as reading the weights takes, so a replicated half of the model halves what
more devices could gain.""",
    measured="""Bytes of weights of two dimensions or more on a device that no axis of the model divides, together
from 1 MiB and 3% of all weights there, or 256 MiB. Embeddings have TPC011, heads that do not divide have TPC007.""",
    before="""rules = tpuport.ShardingRules({r".*\\.(q|k|v)_proj\\.weight": PartitionSpec("tp", None)})""",
    after="""rules = tpuport.ShardingRules({
    r".*\\.(q|k|v|gate|up)_proj\\.weight": PartitionSpec("tp", None),
    r".*\\.(o|down)_proj\\.weight": PartitionSpec(None, "tp"),
})""",
    check=check,
)
