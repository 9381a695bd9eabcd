"""Where weights are: the axes that divide each, what of it one device holds, and names put together as patterns."""

import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, Final

import jax.numpy as jnp
import torch

from tpuport.sharding.specs import axis_names
from tpuport.topology.advice.evidence import Evidence

MIB: Final = 1 << 20
# Below this a weight's place is not worth a rule: reading it takes a device about a microsecond.
SMALL: Final = MIB
# Of what a device holds of all weights; what is less does not decide on what fits.
SHARE: Final = 0.01
_NUMBER: Final = re.compile(r"(?:(?<=^)|(?<=\\\.))\d+(?=\\\.)")


def axes(array: Any) -> frozenset[str]:
    """The mesh axes that divide an array."""
    spec = getattr(array.sharding, "spec", ())
    return frozenset(axis for entry in spec for axis in axis_names(entry))


def dim_axes(array: Any, dim: int) -> tuple[str, ...]:
    """The mesh axes that divide one dimension of an array."""
    spec = tuple(getattr(array.sharding, "spec", ()))
    place = dim % len(array.shape)
    return axis_names(spec[place]) if place < len(spec) else ()


def nbytes(array: Any) -> int:
    """Bytes of the whole array."""
    return prod(array.shape) * jnp.dtype(array.dtype).itemsize


def held(array: Any) -> int:
    """Bytes of it on one device."""
    shape = array.sharding.shard_shape(tuple(array.shape)) if array.sharding is not None else array.shape
    return prod(shape) * jnp.dtype(array.dtype).itemsize


def all_held(evidence: Evidence) -> int:
    """Bytes of all weights on one device."""
    return sum(held(weight) for weight in evidence.weights.values())


def is_large(size: int, evidence: Evidence) -> bool:
    """Whether so many bytes on a device are worth a finding."""
    return size >= max(SMALL, SHARE * all_held(evidence))


def pattern(name: str) -> str:
    r"""A regex for this weight and the same one of other layers: "layers.0.up.weight" is r"layers\.\d+\.up\.weight"."""
    return _NUMBER.sub(r"\\d+", re.escape(name))


def by_pattern(names: Iterable[str]) -> dict[str, list[str]]:
    """The names that share a pattern."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(pattern(name), []).append(name)
    return found


def replicated(evidence: Evidence, axis: str) -> list[str]:
    """Weights that no other axis of the model divides either, so that `axis` could."""
    others = frozenset(evidence.model_axes)
    return [name for name, weight in evidence.weights.items() if axis in others and not axes(weight) & others]


def is_used_by_weights(evidence: Evidence, axis: str) -> bool:
    """Whether an axis divides any weight."""
    return any(axis in axes(weight) for weight in evidence.weights.values())


def vocabulary(evidence: Evidence) -> Iterator[tuple[str, Any]]:
    """(name, weight) of the embeddings, and of the head that makes logits of them."""
    owners = {
        name for name, module in evidence.model.named_modules() if isinstance(module, torch.nn.Embedding)
    }
    head = output_embedding(evidence.model)
    owners |= {name for name, module in evidence.model.named_modules() if module is head}
    for name, weight in evidence.weights.items():
        owner, _, leaf = name.rpartition(".")
        if owner in owners and leaf == "weight" and len(weight.shape) == 2:
            yield name, weight


def output_embedding(model: Any) -> Any:
    """The module that makes logits; None where the model does not say which."""
    try:
        return getattr(model, "get_output_embeddings", lambda: None)()
    except (AttributeError, NotImplementedError):
        return None
