"""TPC002: large weights that every device has whole."""

import itertools
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from tpuport.base.plurals import count_noun, is_or_are
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import (
    Spec,
    longest_dimension_spec,
    propose_rows,
    single_weight,
    without_fused,
    write_rules,
)
from tpuport.topology.advice.rules_trial import Trial, try_rules
from tpuport.topology.advice.weight_placement import (
    MIB,
    SMALL,
    buffer_names,
    device_weight_bytes,
    divides_weights,
    group_by_pattern,
    is_worth_a_finding,
    replicated_weights,
    vocabulary_weights,
    weights_of_undivided_heads,
)

# Of what a device has of all weights, and in bytes: embedders that plans leave whole
# are below both (FLUX.1's are 122 MiB of 5.6 GiB over tp=4).
_SHARE: Final = 0.03
_MUCH: Final = 256 * MIB
# Kinds of weights that a finding names; the others are counted.
_MOST_NAMED: Final = 3


def check(evidence: Evidence) -> Iterator[Hit]:
    """For each axis of the model, all weights or those that it does not divide, in one
    finding.
    """
    # TPC011 and TPC007 say more of embeddings and of heads, and no sharding rule places
    # buffers.
    others = weights_of_undivided_heads(evidence) | buffer_names(evidence)
    others.update(vocabulary_weights(evidence))
    whole = replicated_weights(evidence)
    for axis, parts in evidence.model_axes.items():
        if not divides_weights(evidence, axis):
            yield from _find_unsharded_model(evidence, whole, axis, parts)
            continue
        kinds = group_by_pattern(name for name in whole if name not in others)
        matrices = [names for names in kinds.values() if _is_matrix(evidence, names[0])]
        # A finding names the largest first.
        matrices.sort(key=lambda names: -device_weight_bytes(evidence, names))
        total = sum(device_weight_bytes(evidence, names) for names in matrices)
        if total < min(
            _MUCH, max(SMALL, _SHARE * device_weight_bytes(evidence, evidence.weights))
        ):
            continue
        trial = try_rules(
            evidence,
            without_fused(evidence, chain.from_iterable(matrices)),
            axis,
            parts,
        )
        # A division that costs more than it saves is not worth advising.
        if not trial.is_worse:
            yield _describe(evidence, matrices, axis, parts, trial)


def _is_matrix(evidence: Evidence, name: str) -> bool:
    """Whether a weight has two dimensions or more for sharding rules. Those of norms
    are whole on every device.
    """
    return len(single_weight(name, evidence.weights[name]).shape) > 1


def _find_unsharded_model(
    evidence: Evidence, names: list[str], axis: str, parts: int
) -> Iterator[Hit]:
    whole = device_weight_bytes(evidence, names)
    if not is_worth_a_finding(whole, evidence):
        return
    parameters = [name for name in names if name not in buffer_names(evidence)]
    unfused = without_fused(evidence, parameters)
    trial = try_rules(evidence, unfused, axis, parts)
    rules: Mapping[str, Spec] = {}
    if trial.is_worse:
        remedy = f"write sharding rules by hand, or use fewer devices for the weights: {trial.text}"
    elif trial.is_inferred:
        remedy, rules = (
            f"rules=tpuport.ShardingRules.infer(model, inputs); {trial.text}",
            trial.rules,
        )
    else:
        text, rules = write_rules(evidence.weights, unfused, axis, parts)
        remedy = f"add sharding rules for them: {text}; {trial.text}"
    # Nothing has to be exchanged if each device has rows of its own.
    if rows := propose_rows(evidence):
        remedy += f"; or, since the whole model fits on one device, {rows}"
    yield Hit(
        f"no weight is sharded over {axis}={parts}: each device holds all {format_bytes(whole)} and computes every "
        "product with them in full",
        remedy,
        whole * (1 - 1 / parts),
        rules=rules,
    )


def _describe(
    evidence: Evidence, kinds: list[list[str]], axis: str, parts: int, trial: Trial
) -> Hit:
    names = list(itertools.chain.from_iterable(kinds))
    total = device_weight_bytes(evidence, names)
    descriptions = [_describe_kind(evidence, kind) for kind in kinds[:_MOST_NAMED]]
    if len(kinds) > _MOST_NAMED:
        descriptions.append(count_noun(len(kinds) - _MOST_NAMED, "other kind"))
    remedy, rules = _remedy(evidence, names, axis, parts, trial)
    return Hit(
        f"{count_noun(len(names), 'weight')}, {format_bytes(total)} together, {is_or_are(len(names))} whole on each of "
        f"the {parts} devices of {axis}: {'; '.join(descriptions)}",
        remedy,
        total * (1 - 1 / parts),
        rules=rules,
    )


def _describe_kind(evidence: Evidence, names: list[str]) -> str:
    others = f" and {len(names) - 1} like it" if len(names) > 1 else ""
    shape = single_weight(names[0], evidence.weights[names[0]]).shape
    return f"{names[0]} {shape}{others}, {format_bytes(device_weight_bytes(evidence, names))}"


def _remedy(
    evidence: Evidence, names: list[str], axis: str, parts: int, trial: Trial
) -> tuple[str, Mapping[str, Spec]]:
    """What to do, and the rules that it proposes."""
    shapes = {name: single_weight(name, evidence.weights[name]).shape for name in names}
    # No rule can divide the others.
    divisible = [
        name for name in names if longest_dimension_spec(shapes[name], axis, parts)
    ]
    unfused = without_fused(evidence, divisible)
    if divisible and not unfused and not trial.is_inferred:
        return (
            f"use a Linear layer for each projection that {divisible[0]} holds, and shard those by their outputs: a "
            "cut of the whole would divide each projection otherwise than the next product needs it"
        ), {}
    if not divisible:
        return (
            f"pad a dimension of {shapes[names[0]]} to a multiple of {parts}, and shard it",
            {},
        )
    if trial.is_inferred:
        return (
            f"rules=tpuport.ShardingRules.infer(model, inputs); {trial.text}",
            trial.rules,
        )
    text, rules = write_rules(evidence.weights, unfused, axis, parts, override=True)
    order = "Where one weight feeds another, shard the first by its outputs and the second by its inputs"
    return f"{text}. {order}; {trial.text}", rules


RULE = AdviceRule(
    id="TPC002",
    name="replicated-weight",
    summary="large weights that are replicated on every device",
    why="""A replicated weight occupies its full size on each device, is read in full in each step, and its products
are computed in full by every device. A decode step takes about as long as reading the weights, so a model that is half
replicated gets at most half the speedup that more devices could give.""",
    measured="""The bytes on a device of weights with two or more dimensions that no model axis divides: at least
1 MiB and 3% of all weights on the device, or 256 MiB. TPC011 covers embeddings, and TPC007 covers attention heads that
cannot be divided. A program that compiles in seconds is compiled again with the rules that are proposed, and with those
that `ShardingRules.infer` finds; what costs more than it saves is not proposed.""",
    before="""rules = ShardingRules.from_model(llama()).override(
    {r".*\\.(gate|up|down)_proj\\.weight": PartitionSpec()}
)
compile_for(
    llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16"
)""",
    after="""rules = ShardingRules.from_model(llama()).override({
    r".*\\.(gate|up)_proj\\.weight": PartitionSpec("tp", None),
    r".*\\.down_proj\\.weight": PartitionSpec(None, "tp"),
})
compile_for(
    llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16"
)""",
    check=check,
)
