"""Where weights are: the axes that divide each, what of it a device has, and the heads
that an axis does not divide.
"""

import itertools
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from tpuport.base.mappings import group_by, only
from tpuport.sharding.specs import axis_names
from tpuport.topology.abstract_weights import local_nbytes as device_bytes
from tpuport.topology.abstract_weights import nbytes as whole_bytes
from tpuport.topology.advice.evidence import Evidence

__all__ = ["device_bytes", "whole_bytes"]

MIB: Final = 1 << 20
# The placement of less is not worth a rule: reading it takes a device about a
# microsecond.
SMALL: Final = MIB
# Of what a device has of all weights. Less does not decide on what fits.
_SHARE: Final = 0.01
_LAYER_NUMBER: Final = re.compile(r"(?:(?<=^)|(?<=\\\.))\d+(?=\\\.)")


def sharding_axes(array: Any) -> frozenset[str]:
    """The mesh axes that divide an array."""
    return frozenset(itertools.chain.from_iterable(map(axis_names, _spec(array))))


def dimension_axes(array: Any, dim: int) -> tuple[str, ...]:
    """The mesh axes that divide one dimension of an array."""
    # A spec may leave out dimensions at the end, which nothing divides.
    return axis_names(dict(enumerate(_spec(array))).get(dim))


def _spec(array: Any) -> Iterable[Any]:
    """The entries of an array's PartitionSpec; none for what has no sharding, such as a
    number among the inputs.
    """
    sharding = getattr(array, "sharding", None)
    return getattr(sharding, "spec", ())


def device_weight_bytes(evidence: Evidence, names: Iterable[str]) -> int:
    """Bytes on one device of these weights."""
    return sum(device_bytes(evidence.weights[name]) for name in names)


def is_worth_a_finding(nbytes: int, evidence: Evidence) -> bool:
    """Whether this many bytes on a device matter beside its weights."""
    return nbytes >= max(
        SMALL, _SHARE * device_weight_bytes(evidence, evidence.weights)
    )


def layer_pattern(name: str) -> str:
    r"""A regex for a weight in all layers: r"layers\.\d+\.up\.weight" of
    "layers.0.up.weight".
    """
    return _LAYER_NUMBER.sub(r"\\d+", re.escape(name))


def group_by_pattern(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of weights by their pattern."""
    return group_by(names, layer_pattern)


def buffer_names(evidence: Evidence) -> set[str]:
    """Names of the model's buffers, which no sharding rule places."""
    return {name for name, _ in evidence.model.named_buffers()}


def replicated_weights(evidence: Evidence) -> list[str]:
    """The weights that no axis of the model divides, so that any of them could."""
    axes = evidence.model_axes.keys()
    return [
        name
        for name, weight in evidence.weights.items()
        if sharding_axes(weight).isdisjoint(axes)
    ]


def divides_weights(evidence: Evidence, axis: str) -> bool:
    """Whether an axis divides any weight."""
    return any(axis in sharding_axes(weight) for weight in evidence.weights.values())


def vocabulary_weights(evidence: Evidence) -> dict[str, Any]:
    """The embeddings, and the head that computes logits, by name."""
    # The head may be tied to the embedding, and has its own name where it is not.
    head = output_embedding(evidence.model)
    names = {
        f"{name}.weight"
        for name, module in evidence.model.named_modules()
        if isinstance(module, torch.nn.Embedding) or module is head
    }
    return only(evidence.weights, names)


def output_embedding(model: Any) -> Any:
    """The module that computes logits; None if the model does not say which."""
    try:
        return getattr(model, "get_output_embeddings", lambda: None)()
    # Some models of transformers have none.
    except (AttributeError, NotImplementedError):
        return None


class UndividedHeads(NamedTuple):
    """Heads of attention that an axis does not divide.

    Attributes:
        axis: of the mesh.
        parts: its size.
        query: the number of query heads.
        kv: the number of key/value heads.
        dim: the size of each.
    """

    axis: str
    parts: int
    query: int
    kv: int
    dim: int


def undivided_heads(evidence: Evidence) -> list[UndividedHeads]:
    """The heads of the traced calls that an axis of the model does not divide, each
    number of heads once.
    """
    calls = [call for call, _ in evidence.report.attention]
    heads = {
        (
            call.query[1],
            _weight_kv_heads(evidence, call.query[1], call.key[1]),
            call.query[3],
        )
        for call in calls
    }
    return [
        UndividedHeads(axis, parts, query, kv, dim)
        for axis, parts in evidence.model_axes.items()
        for query, kv, dim in sorted(heads)
        if query % parts or kv % parts
    ]


def _weight_kv_heads(evidence: Evidence, query: int, key: int) -> int:
    """Key/value heads of the weights: a model may have repeated them for the call."""
    if key == query == getattr(evidence.config, "num_attention_heads", None):
        # Configs of models whose heads are all alike may lack the field, or have None
        # there.
        return getattr(evidence.config, "num_key_value_heads", None) or key
    return key


def weights_of_undivided_heads(evidence: Evidence) -> set[str]:
    """Weights that are whole on each device of an axis because it does not divide their
    heads.
    """
    names: set[str] = set()
    for heads in undivided_heads(evidence):
        replicated = replicated_weights(evidence)
        owners = {
            _owner(name) for name in replicated if _has_heads(evidence, name, heads)
        }
        # The bias of a projection goes with its matrix.
        names |= {name for name in replicated if _owner(name) in owners}
    return names


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _has_heads(evidence: Evidence, name: str, heads: UndividedHeads) -> bool:
    """Whether a matrix, or several stacked, has heads on one side; that of an MLP has
    another width on its other.
    """
    # Projections of queries, keys and values are often stacked in one matrix.
    fused = heads.query + 2 * heads.kv
    undivided = [count for count in (heads.query, heads.kv) if count % heads.parts]
    widths = {count * heads.dim for count in (fused, *undivided)}
    known = {count * heads.dim for count in (fused, heads.query, heads.kv)}
    shape = evidence.weights[name].shape
    sides = shape[-2:]
    is_known = known.union(_model_widths(evidence)).issuperset(sides)
    return len(shape) > 1 and not widths.isdisjoint(sides) and is_known


def _model_widths(evidence: Evidence) -> list[int]:
    """The model's width by its config; if it has none, every side of a matrix."""
    width = getattr(evidence.config, "hidden_size", None)
    if isinstance(width, int):
        return [width]
    return [side for weight in evidence.weights.values() for side in weight.shape]
