"""Remedies that several rules share: rules for weights, inputs over dp, and the command's options that say the same."""

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Final

from tpuport.layers import block_weight_names
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.heads import kept_whole
from tpuport.topology.advice.placement import axes, by_pattern, held, is_used_by_weights, nbytes, pattern
from tpuport.topology.advice.wording import size

# Patterns that a remedy names: those of an MLP, or of attention's projections.
_NAMED: Final = 2
# Dimensions of keys that have rows: [B, K, T, D]; of a batch of one they are [K, T, D].
_ROWS: Final = 4
_HEADS: Final = 3  # from the end
BESIDE: Final = "beside those of the other weights, as FILE takes the place of the model's own plan"
_INPUTS: Final = "jax.device_put(x, NamedSharding(mesh, PartitionSpec('dp')))"


def spec_of(shape: tuple[int, ...], axis: str, parts: int) -> tuple[str | None, ...] | None:
    """A PartitionSpec's entries that divide the longest dimension that can be; None where none can.

    Of two products that follow each other and are wide between them, it is the outputs of the first and the inputs of
    the second.
    """
    fitting = [place for place, extent in enumerate(shape) if extent and extent % parts == 0]
    if not fitting:
        return None
    dim = max(fitting, key=lambda place: shape[place])
    return tuple(axis if place == dim else None for place in range(len(shape)))


def as_code(regex: str, spec: tuple[str | None, ...]) -> str:
    """An entry of a mapping in Python: r'up': PartitionSpec('tp', None)."""
    return f"r'{regex}': PartitionSpec({', '.join(map(repr, spec))})"


def as_json(regex: str, spec: tuple[str | None, ...]) -> str:
    """The same in a file for --rules: "up": ["tp", null]."""
    return f"{json.dumps(regex)}: {json.dumps(spec)}"


def as_rules_see(name: str, array: Any) -> tuple[str, tuple[int, ...]]:
    """A weight's name and shape as rules are asked for them; of blocks in a loop, those of the first block's."""
    singles = block_weight_names(name, array)
    return (singles[0], tuple(array.shape[1:])) if singles else (name, tuple(array.shape))


def rules_for(
    weights: Mapping[str, Any], names: Iterable[str], axis: str, parts: int, *, override: bool = False
) -> str:
    """ShardingRules for the largest of these weights, and the file that gives them to the command.

    Args:
        override: whether they change rules that other weights have.
    """
    found: list[tuple[int, str, tuple[str | None, ...]]] = []
    for regex, together in by_pattern(names).items():
        single, shape = as_rules_see(together[0], weights[together[0]])
        if len(shape) > 1 and (spec := spec_of(shape, axis, parts)):
            size = sum(held(weights[name]) for name in together)
            found.append((size, regex if single == together[0] else pattern(single), spec))
    found.sort(key=lambda one: (-one[0], one[1]))
    named = [(regex, spec) for _, regex, spec in found[:_NAMED]] or [("...weight", (axis, None))]
    more = ", ..." if len(found) > _NAMED else ""
    code = ", ".join(as_code(*one) for one in named) + more
    file = ", ".join(as_json(*one) for one in named) + more
    if override:
        return f"rules.override({{{code}}}); for --rules FILE, {{{file}}} {BESIDE}"
    return f"tpuport.ShardingRules({{{code}}}); for --rules FILE, {{{file}}}"


def inputs_over_dp() -> str:
    """How a batch of a forward call is divided: nothing does it by itself."""
    return f"give the inputs sharded over dp, {_INPUTS} (in compile_for: jax.ShapeDtypeStruct with that sharding)"


def are_over_dp(evidence: Evidence) -> bool:
    """Whether a forward call's inputs were given so."""
    return any("dp" in axes(value) for value in evidence.inputs.values() if hasattr(value, "sharding"))


def more_rows(evidence: Evidence) -> str:
    """What makes all devices work on rows of their own, each with all weights; empty where those do not fit."""
    parts = evidence.mesh.size
    if not evidence.report.fits or alone_on(evidence, dp=parts, tp=1) > evidence.report.memory.capacity:
        return ""
    axis = f"tpuport.create_mesh(dp={parts}) (--dp {parts})"
    if evidence.report.task != "forward":
        return f"{axis} and a batch of a multiple of {parts}"
    return f"{axis} for a batch of a multiple of {parts}, and {inputs_over_dp()}"


def all_over_tp(evidence: Evidence) -> str:
    """All devices for weights: with the rules that divide them, where none are divided yet."""
    parts = evidence.mesh.size
    axis = f"tpuport.create_mesh(tp={parts}) (--tp {parts})"
    names = [name for name, weight in evidence.weights.items() if prod(weight.shape)]
    if not any(is_used_by_weights(evidence, one) for one in evidence.model_axes):
        rules = rules_for(evidence.weights, names, "tp", parts)
        return f"{axis}, with rules that divide the weights: {rules}" if names else axis
    alone, have = alone_on(evidence, dp=1, tp=parts), evidence.report.memory.capacity
    if alone > have:
        return (
            f"more chips, or chips with more memory (--list-topologies): with tp={parts} weights and cache alone are "
            f"{size(alone)} a device, of {size(have)}"
        )
    return axis


def alone_on(evidence: Evidence, *, dp: int, tp: int) -> int:
    """Bytes of weights and cache alone that a device would hold with other sizes of the axes.

    Weights stay as they are divided, over tp in place of the axes of the model now; those whose heads do not divide now
    are divided too, so that it is the least that a device would hold. The cache is divided as `tpuport.generate` does
    it: rows over dp, of which each device has one at least, and heads over tp where that divides them.
    """
    model, undivided, total = frozenset(evidence.model_axes), kept_whole(evidence), 0
    for name, weight in evidence.weights.items():
        over = axes(weight)
        parts = (tp if over & model or name in undivided else 1) * (dp if "dp" in over else 1)
        total += nbytes(weight) // parts
    for array in evidence.cache:
        rows = array.shape[0] if len(array.shape) == _ROWS else 1
        heads = array.shape[-_HEADS] if len(array.shape) >= _HEADS else 1
        share = tp if heads % tp == 0 else 1
        total += nbytes(array) // max(rows, 1) * -(-rows // dp) // share
    return total
