"""Remedies that several rules share: sharding rules, meshes, inputs over dp, and the
command's options for them.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from math import ceil, gcd
from typing import Any, Final, NamedTuple

from jax.sharding import PartitionSpec

from tpuport.compilation.layers import block_weight_names
from tpuport.topology import mesh_splits
from tpuport.topology.advice.advice_rules import format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.repeated_work import batch_rows
from tpuport.topology.advice.weight_placement import (
    UndividedHeads,
    device_bytes,
    divides_weights,
    group_by_pattern,
    layer_pattern,
    sharding_axes,
    weights_of_undivided_heads,
    whole_bytes,
)

BESIDE_OTHER_RULES: Final = (
    "beside the rules of the other weights, because FILE replaces the model's own plan"
)
INPUTS_OVER_DP: Final = (
    "pass the inputs sharded over dp: compat.wrap(jax.device_put(compat.to_jax(x), NamedSharding(mesh, "
    "PartitionSpec('dp')))), with from tpuport import compat (in compile_for: jax.ShapeDtypeStruct with that sharding)"
)
# Patterns that a remedy names: those of an MLP, or of attention's projections.
_MOST_PATTERNS: Final = 2

Spec = tuple[str | None, ...]


class SingleWeight(NamedTuple):
    """A weight as sharding rules see it: of blocks in a loop, that of the first
    block.
    """

    name: str
    shape: tuple[int, ...]


def single_weight(name: str, array: Any) -> SingleWeight:
    """The weight for which rules are asked, of an array that may have those of all
    blocks.
    """
    names = block_weight_names(name, array)
    if not names:
        return SingleWeight(name, tuple(array.shape))
    # The first dimension of a stacked array counts the blocks.
    return SingleWeight(names[0], tuple(array.shape[1:]))


def longest_dimension_spec(
    shape: tuple[int, ...], axis: str, parts: int
) -> Spec | None:
    """A PartitionSpec's entries that divide the longest dimension that can be divided;
    None if none can.

    Of two products that follow each other and are wide between them, it is the outputs
    of the first and the inputs of the second.
    """
    divisible = [dim for dim, length in enumerate(shape) if length % parts == 0]
    if not divisible:
        return None
    longest = max(divisible, key=lambda dim: shape[dim])
    before, after = longest, len(shape) - longest - 1
    return (*[None] * before, axis, *[None] * after)


def write_python(regex: str, spec: Spec) -> str:
    """An entry of a mapping in Python: r'up': PartitionSpec('tp', None)."""
    return f"r'{regex}': PartitionSpec({', '.join(map(repr, spec))})"


def write_json(regex: str, spec: Spec) -> str:
    """The same in a file for --rules: "up": ["tp", null]."""
    return f"{json.dumps(regex)}: {json.dumps(spec)}"


def without_fused(evidence: Evidence, names: Iterable[str]) -> list[str]:
    """The weights that hold one projection each: a cut through any other is what TPC021
    finds.
    """
    return [name for name in names if name not in evidence.products.fused]


class RulesText(NamedTuple):
    """Rules in a remedy: the text has the largest of them, and the finding has all."""

    text: str
    rules: dict[str, Spec]


def write_rules(
    weights: Mapping[str, Any],
    names: Iterable[str],
    axis: str,
    parts: int,
    *,
    override: bool = False,
) -> RulesText:
    """ShardingRules for these weights, and the file that gives them to the command.

    Args:
        weights: all weights by name.
        names: of those that are to be divided.
        axis: over which; parts: its size.
        override: whether they change rules that other weights have.
    """
    specs, sizes = _divided_specs(weights, names, axis, parts)
    # By size, then by name, so that the text is the same each time.
    rules = {
        regex: specs[regex]
        for regex in sorted(specs, key=lambda regex: (-sizes[regex], regex))
    }
    # If no dimension can be divided, the form of a rule is all that can be said.
    entries = list(rules.items())[:_MOST_PATTERNS] or [("...weight", (axis, None))]
    code = ", ".join(itertools.starmap(write_python, entries))
    file = ", ".join(itertools.starmap(write_json, entries))
    others = ""
    if len(rules) > len(entries):
        others = f" and {len(rules) - len(entries)} more (all {len(rules)}: --format json, or html)"
    if override:
        text = f"rules.override({{{code}}}){others}; for --rules FILE, {{{file}}} {BESIDE_OTHER_RULES}"
    else:
        text = (
            f"tpuport.ShardingRules({{{code}}}){others}; for --rules FILE, {{{file}}}"
        )
    return RulesText(text, rules)


def divided_rules(
    weights: Mapping[str, Any], names: Iterable[str], axis: str, parts: int
) -> dict[str, PartitionSpec]:
    """The rules of `write_rules`, to be compiled."""
    specs, _ = _divided_specs(weights, names, axis, parts)
    return {regex: PartitionSpec(*spec) for regex, spec in specs.items()}


def _divided_specs(
    weights: Mapping[str, Any], names: Iterable[str], axis: str, parts: int
) -> tuple[dict[str, Spec], dict[str, int]]:
    """By pattern: the spec that divides the longest dimension, and the bytes of the
    weights on a device.
    """
    specs: dict[str, Spec] = {}
    sizes: dict[str, int] = {}
    for regex, group in group_by_pattern(names).items():
        single = single_weight(group[0], weights[group[0]])
        spec = longest_dimension_spec(single.shape, axis, parts)
        # Vectors, such as biases and the weights of norms, are whole on every device.
        if spec is None or len(single.shape) < 2:
            continue
        # Rules see the weights of each block, and not those of a loop, which have
        # another name.
        if single.name != group[0]:
            regex = layer_pattern(single.name)
        specs[regex] = spec
        sizes[regex] = sum(device_bytes(weights[name]) for name in group)
    return specs, sizes


def has_inputs_over_dp(evidence: Evidence) -> bool:
    """Whether a forward call's inputs are sharded over dp."""
    return any("dp" in sharding_axes(value) for value in evidence.inputs.values())


def propose_rows(evidence: Evidence) -> str:
    """A mesh of dp alone, each device with all weights and rows of its own; empty if
    those do not fit.
    """
    devices, capacity = evidence.mesh.size, evidence.report.memory.capacity
    if (
        not evidence.report.fits
        or minimum_device_bytes(evidence, dp=devices, tp=1) > capacity
    ):
        return ""
    mesh = _write_mesh(dp=devices)
    if evidence.report.task != "forward":
        return f"{mesh} and a batch of a multiple of {devices}"
    return f"{mesh} for a batch of a multiple of {devices}, and {INPUTS_OVER_DP}"


def _write_mesh(**sizes: int) -> str:
    """A mesh in Python and as options: tpuport.create_mesh(dp=2, tp=4) (--dp 2 --tp
    4).
    """
    arguments = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    options = " ".join(f"--{axis} {size}" for axis, size in sizes.items())
    return f"tpuport.create_mesh({arguments}) ({options})"


def propose_tp(evidence: Evidence) -> str:
    """All devices for weights. If that cuts through heads, the split with the most tp
    that suits them, or "".

    The split suits the batch as well, and the sequence of a prompt, and a device can
    hold its weights and cache.
    """
    if not uneven_heads_reason(evidence, evidence.mesh.size):
        return _propose_all_over_tp(evidence)
    sequences = tuple(sorted({call.query[2] for call, _ in evidence.report.attention}))
    # Attention alone is divided over sp, and not the blocks as in a diffusion
    # transformer.
    facts = mesh_splits.Facts(
        batch=max(batch_rows(evidence), 1), sequences=sequences, divides_blocks=False
    )
    splits = mesh_splits.split_reasons(evidence.mesh.size, facts).items()
    suitable = [
        split
        for split, reason in splits
        if not reason and _is_better_split(evidence, split)
    ]
    if not suitable:
        return ""
    # dp divides everything else, sp long attention only.
    best = max(suitable, key=lambda split: (split.tp, split.dp))
    return _write_mesh(
        **{axis: size for axis, size in best._asdict().items() if size > 1}
    )


def _is_better_split(evidence: Evidence, split: mesh_splits.Split) -> bool:
    """Whether a split is not the present one, has no less tp to speak of, divides the
    heads, and fits.
    """
    current = mesh_splits.Split(
        *(evidence.axis_sizes.get(axis, 1) for axis in ("dp", "sp", "tp"))
    )
    if split == current or split.tp <= current.tp // 2:
        return False
    needed = minimum_device_bytes(evidence, dp=split.dp, tp=split.tp)
    return (
        not uneven_heads_reason(evidence, split.tp)
        and needed <= evidence.report.memory.capacity
    )


def uneven_heads_reason(evidence: Evidence, tp: int) -> str:
    """Why tp does not suit the heads of some attention call; "" if it does."""
    calls = evidence.report.attention
    reasons = (mesh_splits.uneven(tp, call.query[1], call.key[1]) for call, _ in calls)
    return next(filter(None, reasons), "")


def proposed_tp_rules(evidence: Evidence) -> dict[str, Spec]:
    """All the rules that the text of `propose_tp` has; none if it has none."""
    devices = evidence.mesh.size
    if uneven_heads_reason(evidence, devices) or not _lacks_rules(evidence):
        return {}
    return write_rules(evidence.weights, evidence.weights, "tp", devices).rules


def _lacks_rules(evidence: Evidence) -> bool:
    """Whether there are weights, and none of them is divided: a mesh alone would not
    divide anything.
    """
    return bool(evidence.weights) and not any(
        divides_weights(evidence, axis) for axis in evidence.model_axes
    )


def _propose_all_over_tp(evidence: Evidence) -> str:
    """All devices for weights, with the rules that divide them if none are divided
    yet.
    """
    devices = evidence.mesh.size
    mesh = _write_mesh(tp=devices)
    if _lacks_rules(evidence):
        rules = write_rules(evidence.weights, evidence.weights, "tp", devices)
        return f"{mesh}, with rules that divide the weights: {rules.text}; this was not compiled to verify it"
    needed, capacity = (
        minimum_device_bytes(evidence, dp=1, tp=devices),
        evidence.report.memory.capacity,
    )
    if needed <= capacity:
        return mesh
    return (
        f"more chips, or chips with more memory (--list-topologies): with tp={devices}, weights and cache alone take "
        f"{format_bytes(needed)} of {format_bytes(capacity)} a device"
    )


def propose_even_heads(evidence: Evidence, heads: UndividedHeads) -> str:
    """A mesh whose tp divides the heads, if its devices can hold the weights and the
    cache.
    """
    # The largest tp that divides both and the axis.
    tp = gcd(heads.query, heads.kv, heads.parts)
    others = evidence.mesh.size // tp
    needed = minimum_device_bytes(evidence, dp=others, tp=tp)
    if needed > evidence.report.memory.capacity:
        return _without_even_heads(evidence, heads, tp, needed)
    remedy = f"tp={tp} divides both: {_write_mesh(dp=others, tp=tp)}{_divide_by_dp(evidence, others, tp)}"
    if heads.query % heads.parts == 0:
        remedy += "; with a single row or a short cache, the key/value heads may as well stay whole"
    return remedy


def _divide_by_dp(evidence: Evidence, dp: int, tp: int) -> str:
    """What the devices that do not divide heads divide: rows, or long prompts."""
    remedy = ""
    if max(batch_rows(evidence), 1) % dp:
        remedy += f" and a batch of a multiple of {dp}"
    if evidence.report.task == "forward":
        remedy += f", with the batch over dp: {INPUTS_OVER_DP}"
    # A decode step has one token a row, which sp cannot divide.
    if evidence.report.task != "decode":
        remedy += f", or --sp {dp} --tp {tp} for long prompts"
    return remedy


def _without_even_heads(
    evidence: Evidence, heads: UndividedHeads, tp: int, needed: int
) -> str:
    """What remains if a smaller tp divides the heads, and weights and cache are too
    large for it.
    """
    reason = (
        f"tp={tp} would divide both, but weights and cache alone would take {format_bytes(needed)} of "
        f"{format_bytes(evidence.report.memory.capacity)} a device"
    )
    if heads.query % heads.parts:
        return f"{reason}: use chips with more memory (--list-topologies), or a model with other heads"
    cache = (
        ", with a shorter cache (--max-cache-len) or a smaller batch (--batch)"
        if evidence.cache
        else ""
    )
    return (
        f"{reason}: keep {heads.axis}={heads.parts} and the key/value heads whole{cache}, or use chips with more "
        "memory (--list-topologies)"
    )


def minimum_device_bytes(evidence: Evidence, *, dp: int, tp: int) -> int:
    """Bytes of weights and cache alone that a device would hold with other sizes of the
    axes.

    Weights stay divided as they are, over tp in place of the axes of the model now.
    Those whose heads do not divide now are divided too, so that it is the least that a
    device would hold. The cache is divided as `tpuport.generate` does it: rows over dp,
    of which each device has one at least, and heads over tp if that divides them.
    """
    undivided = weights_of_undivided_heads(evidence)
    total = 0
    for name, weight in evidence.weights.items():
        axes, parts = sharding_axes(weight), 1
        if name in undivided or not axes.isdisjoint(evidence.model_axes):
            parts *= tp
        if "dp" in axes:
            parts *= dp
        total += whole_bytes(weight) // parts
    for array in evidence.cache:
        # Keys are [B, K, T, D], or [K, T, D] for a batch of one.
        *_, rows, heads = (1, 1, *array.shape[:-2])
        rows = max(rows, 1)
        parts = tp if heads % tp == 0 else 1
        total += whole_bytes(array) // rows * ceil(rows / dp) // parts
    return total
