"""Heads of attention and the axes that should share them out."""

from typing import NamedTuple

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import replicated


class Undivided(NamedTuple):
    """An axis that does not divide the heads: `query` and `kv` of them, each of size `dim`."""

    axis: str
    parts: int
    query: int
    kv: int
    dim: int


def undivided(evidence: Evidence) -> list[Undivided]:
    """Each distinct one, the query heads of the traced calls against each axis of the model."""
    counts = {
        (call.query[1], _kv_heads(evidence, call.query[1], call.key[1]), call.query[3])
        for call, _ in evidence.report.attention
        if len(call.query) == 4 and len(call.key) == 4
    }
    return [
        Undivided(axis, parts, query, kv, dim)
        for axis, parts in evidence.model_axes.items()
        for query, kv, dim in sorted(counts)
        if query and kv and (query % parts or kv % parts)
    ]


def kept_whole(evidence: Evidence) -> set[str]:
    """Weights whose heads an axis does not divide, which are therefore whole on each of its devices."""
    found: set[str] = set()
    for one in undivided(evidence):
        widths = {count * one.dim for count in (one.query, one.kv) if count % one.parts}
        widths |= {(one.query + 2 * one.kv) * one.dim}
        others = {one.query * one.dim, one.kv * one.dim, *_widths_of(evidence)}
        whole = replicated(evidence, one.axis)
        matrices = {name for name in whole if _is_of(evidence.weights[name].shape, widths, widths | others)}
        owners = {name.rpartition(".")[0] for name in matrices}
        found |= {name for name in whole if name.rpartition(".")[0] in owners}
    return found


def _is_of(shape: tuple[int, ...], widths: set[int], known: set[int]) -> bool:
    """Whether a matrix, or several stacked, has heads on one side; that of an MLP has another width on its other."""
    sides = shape[-2:]
    return len(shape) > 1 and bool(widths.intersection(sides)) and known.issuperset(sides)


def _widths_of(evidence: Evidence) -> list[int]:
    """The model's width by its config; where there is none, every side of a matrix."""
    told = getattr(evidence.config, "hidden_size", None)
    if isinstance(told, int):
        return [told]
    return [side for weight in evidence.weights.values() for side in weight.shape]


def _kv_heads(evidence: Evidence, query: int, key: int) -> int:
    """Those of the weights: a model may have repeated them for the call."""
    told = getattr(evidence.config, "num_key_value_heads", None)
    heads = getattr(evidence.config, "num_attention_heads", None)
    return told if isinstance(told, int) and key == query == heads else key
