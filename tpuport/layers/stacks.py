"""Weights of identical blocks as one array: [L, ...] for L blocks, sharded as one of them is.

A stacked weight is named like one of a block, with the places of the blocks in its name: "model.layers.*.mlp.weight"
where they are the whole list, "model.layers.[0,2,4].mlp.weight" where they are a part of it.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding, PartitionSpec

_NAME = re.compile(r"(?P<path>.*?)\.(?:(?P<all>\*)|\[(?P<some>[^\]]+)\])\.(?P<name>.+)")


@dataclasses.dataclass(frozen=True)
class Stack:
    """Blocks of one list whose weights agree in names, shapes, dtypes and shardings.

    Attributes:
        path: of the list in the model: "model.layers".
        kind: the blocks' class.
        places: of the blocks in the list.
        whole: whether they are all of the list.
        names: of the weights within a block.
        nbytes: of all the blocks' weights, on all devices.
    """

    path: str
    kind: str
    places: tuple[str, ...]
    whole: bool
    names: tuple[str, ...]
    nbytes: int

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.places)

    def name(self, name: str) -> str:
        """What the stacked weight is called that is `name` in a block."""
        return f"{self.path}.{'*' if self.whole else '[' + ','.join(self.places) + ']'}.{name}"

    def singles(self, name: str) -> list[str]:
        """What the weights of the blocks are called that are `name` in a block, in order."""
        return [f"{self.path}.{place}.{name}" for place in self.places]


def find_stacks(model: torch.nn.Module, arrays: Mapping[str, Any]) -> tuple[Stack, ...]:
    """The blocks of a model that can be stacked: two or more of one class in one list; lists inside of them stay.

    Args:
        arrays: the model's weights by name, jax arrays or jax.ShapeDtypeStruct, with shardings.
    """
    weights = {name for name, _ in model.named_parameters()} & arrays.keys()
    return tuple(_found(model, "", {name: arrays[name] for name in weights}))


def _found(module: torch.nn.Module, path: str, arrays: dict[str, Any]) -> Iterator[Stack]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        found = (
            _of_list(child, where, arrays)
            if isinstance(child, torch.nn.ModuleList | torch.nn.Sequential)
            else []
        )
        yield from found or _found(child, where, arrays)


def _of_list(blocks: torch.nn.Module, path: str, arrays: dict[str, Any]) -> list[Stack]:
    children = dict(blocks.named_children())
    alike: dict[Any, list[str]] = {}
    for place, block in children.items():
        names = [name for name, _ in block.named_parameters() if f"{path}.{place}.{name}" in arrays]
        forms = [_form(arrays[f"{path}.{place}.{name}"]) for name in names]
        # A container has no forward of its own, so nobody calls it as a block.
        if names and not isinstance(block, torch.nn.ModuleList | torch.nn.ModuleDict):
            alike.setdefault((type(block), tuple(names), tuple(forms)), []).append(place)
    found = []
    for (kind, names, _), places in alike.items():
        if len(places) > 1:
            held = sum(_nbytes(arrays[f"{path}.{place}.{name}"]) for place in places for name in names)
            whole = places == [str(place) for place in range(len(children))]
            found.append(Stack(path, kind.__name__, tuple(places), whole, names, held))
    return found


def _form(array: Any) -> tuple:
    return tuple(array.shape), array.dtype, getattr(array, "sharding", None)


def _nbytes(array: Any) -> int:
    return array.size * array.dtype.itemsize


def stack_weights(arrays: Mapping[str, Any], found: tuple[Stack, ...]) -> dict[str, Any]:
    """The arrays with those of each stack as one, in the place of its first block's; others as they are.

    Args:
        arrays: jax arrays, which are copied, or jax.ShapeDtypeStruct.
    """
    first = {stack.singles(name)[0]: (stack, name) for stack in found for name in stack.names}
    gone = {single for stack in found for name in stack.names for single in stack.singles(name)}
    result: dict[str, Any] = {}
    for key, array in arrays.items():
        if key in first:
            stack, name = first[key]
            result[stack.name(name)] = joined([arrays[single] for single in stack.singles(name)])
        elif key not in gone:
            result[key] = array
    return result


def joined(arrays: list[Any]) -> Any:
    """Equal arrays [...] as one [L, ...], each device keeping what it has."""
    one = arrays[0]
    sharding = getattr(one, "sharding", None)
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    if isinstance(one, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((len(arrays), *one.shape), one.dtype, sharding=sharding)
    return jax.jit(lambda arrays: jnp.stack(arrays), out_shardings=sharding)(arrays)


def block_weight_names(name: str, array: Any) -> list[str] | None:
    """The names of the weights in a stacked one, in order; None for the name of any other array."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    places = range(array.shape[0]) if found["all"] else found["some"].split(",")
    return [f"{found['path']}.{place}.{found['name']}" for place in places]


def stacked_lists(arrays: Mapping[str, Any]) -> list[str]:
    """The paths of the lists whose blocks' weights are stacked."""
    return list({found["path"]: None for name in arrays if (found := _NAME.fullmatch(name))})


def unstack_weights(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What `stack_weights` was given: a slice of each stacked array for each block. May be traced."""
    result: dict[str, Any] = {}
    for name, array in arrays.items():
        singles = block_weight_names(name, array)
        if singles is None:
            result[name] = array
        else:
            result |= {single: row(array, index) for index, single in enumerate(singles)}
    return result


def row(array: Any, index: int) -> Any:
    """One of a stack's arrays."""
    if isinstance(array, jax.Array):
        return jax.lax.index_in_dim(array, index, axis=0, keepdims=False)
    sharding = array.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype, sharding=sharding)
