"""Weights of identical blocks as one array: [L, ...] for L blocks, sharded as one of
them is.

A stacked weight is named like the weight of a block, with the blocks' own names in its
name: "model.layers.*.mlp.weight" if they are the whole list,
"model.layers.[0,2,4].mlp.weight" if they are a part of it. A ported model may keep its
weights so, without a copy of them beside it (`stack_layers`).
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.checkpoint.device_layout import find_owner, put_buffer, put_parameter
from tpuport.compat.tracing import trace_lock
from tpuport.errors import PortError
from tpuport.internals.torch_internals import make_wrapper
from tpuport.quantization import part_names

_STACKED_NAME = re.compile(
    r"(?P<list>.*?)\.(?:(?P<all>\*)|\[(?P<blocks>[^\]]+)\])\.(?P<weight>.+)"
)


@dataclasses.dataclass(frozen=True)
class Stack:
    """Blocks of one list whose weights agree in names, shapes, dtypes and shardings.

    Attributes:
        path: of the list in the model: "model.layers".
        block_class: the name of the blocks' class.
        blocks: their names in the list: "0", "1".
        is_whole_list: whether the list has no other blocks.
        weights: the names of the weights within a block.
        nbytes: of all the blocks' weights, on all devices.
    """

    path: str
    block_class: str
    blocks: tuple[str, ...]
    is_whole_list: bool
    weights: tuple[str, ...]
    nbytes: int

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def name(self, weight: str) -> str:
        """The name of the stacked array of a weight."""
        return _stacked_name(self.path, self.blocks, self.is_whole_list, weight)

    def block_weights(self, weight: str) -> list[str]:
        """The names that a weight has in the model, block by block."""
        return [f"{self.path}.{block}.{weight}" for block in self.blocks]

    def members(self) -> dict[str, list[str]]:
        """The names of the blocks' weights by the name of the stacked array."""
        return {
            self.name(weight): self.block_weights(weight) for weight in self.weights
        }


def _stacked_name(
    path: str, blocks: Iterable[str], is_whole_list: bool, weight: str
) -> str:
    wildcard = "*" if is_whole_list else f"[{','.join(blocks)}]"
    return f"{path}.{wildcard}.{weight}"


def find_stacks(model: torch.nn.Module, arrays: Mapping[str, Any]) -> tuple[Stack, ...]:
    """The blocks of a model that can be stacked: two or more of one class in one list;
    lists inside of them stay.

    Args:
        model: the model.
        arrays: its weights by name, jax arrays or jax.ShapeDtypeStruct, with shardings.
    """
    weights = _weights(model).keys() & arrays.keys()
    return tuple(_find_in_module(model, "", {name: arrays[name] for name in weights}))


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters and the parts of its quantised weights. Other buffers are small,
    and are not stacked.
    """
    parts = part_names(module)
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in parts}
    return dict(module.named_parameters()) | buffers


def _find_in_module(
    module: torch.nn.Module, path: str, arrays: dict[str, Any]
) -> Iterator[Stack]:
    for name, child in module.named_children():
        child_path = f"{path}.{name}".removeprefix(".")
        stacks: list[Stack] = []
        if isinstance(child, torch.nn.ModuleList | torch.nn.Sequential):
            stacks = _find_in_list(child, child_path, arrays)
        yield from stacks or _find_in_module(child, child_path, arrays)


def _find_in_list(
    blocks: torch.nn.Module, path: str, arrays: dict[str, Any]
) -> list[Stack]:
    groups: dict[Any, list[str]] = collections.defaultdict(list)
    for name, block in blocks.named_children():
        # A container has no forward of its own, so no model calls it as a block.
        if isinstance(block, torch.nn.ModuleList | torch.nn.ModuleDict):
            continue
        names = {weight: f"{path}.{name}.{weight}" for weight in _weights(block)}
        forms = {
            weight: _array_form(arrays[own])
            for weight, own in names.items()
            if own in arrays
        }
        if forms:
            groups[type(block), tuple(forms), tuple(forms.values())].append(name)
    every_block = list(map(str, range(len(list(blocks.children())))))
    return [
        _make_stack(path, block_class, names, names == every_block, weights, arrays)
        for (block_class, weights, _), names in groups.items()
        if len(names) > 1
    ]


def _make_stack(
    path: str,
    block_class: type,
    blocks: list[str],
    is_whole_list: bool,
    weights: tuple,
    arrays: dict,
) -> Stack:
    stack = Stack(
        path, block_class.__name__, tuple(blocks), is_whole_list, weights, nbytes=0
    )
    members = map(
        arrays.__getitem__, itertools.chain.from_iterable(stack.members().values())
    )
    nbytes = sum(array.size * array.dtype.itemsize for array in members)
    return dataclasses.replace(stack, nbytes=nbytes)


def _array_form(array: Any) -> tuple:
    return tuple(array.shape), array.dtype, getattr(array, "sharding", None)


def stack_weights(arrays: Mapping[str, Any], stacks: Iterable[Stack]) -> dict[str, Any]:
    """The arrays with those of each stacked weight as one, in the place of the first of
    them; others unchanged.

    Args:
        arrays: jax arrays, which are copied, or jax.ShapeDtypeStruct, by name.
        stacks: of the same model.
    """
    members = dict(collections.ChainMap(*(stack.members() for stack in stacks)))
    stacked_names = {
        name: stacked for stacked, names in members.items() for name in names
    }
    result: dict[str, Any] = {}
    for name, array in arrays.items():
        stacked = stacked_names.get(name)
        if stacked is None:
            result[name] = array
        # The other blocks' weights are in it already.
        elif stacked not in result:
            result[stacked] = _stack_arrays([arrays[part] for part in members[stacked]])
    return result


def _stack_arrays(arrays: list[Any]) -> Any:
    """Arrays [...] of one form as one [L, ...]; each device keeps its own parts."""
    first = arrays[0]
    sharding = getattr(first, "sharding", None)
    # The new axis stays whole: each iteration of a loop takes one row of it on every
    # device.
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    # Programs for a described TPU are compiled without weights.
    if isinstance(first, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(
            (len(arrays), *first.shape), first.dtype, sharding=sharding
        )
    return jax.jit(lambda arrays: jnp.stack(arrays), out_shardings=sharding)(arrays)


def block_weight_names(name: str, array: Any) -> list[str] | None:
    """The names of the weights in a stacked array, in order; None for the name of any
    other array.
    """
    match = _STACKED_NAME.fullmatch(name)
    if match is None:
        return None
    blocks = range(array.shape[0]) if match["all"] else match["blocks"].split(",")
    return [f"{match['list']}.{block}.{match['weight']}" for block in blocks]


def stacked_lists(arrays: Mapping[str, Any]) -> list[str]:
    """The paths of the lists whose blocks' weights are stacked."""
    matches = filter(None, map(_STACKED_NAME.fullmatch, arrays))
    return list(dict.fromkeys(match["list"] for match in matches))


def unstack_weights(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `stack_weights`: a slice of each stacked array for each block. May
    be traced.
    """
    result: dict[str, Any] = {}
    for name, array in arrays.items():
        names = block_weight_names(name, array)
        if names is None:
            result[name] = array
        else:
            result |= {
                block_name: _take_row(array, index)
                for index, block_name in enumerate(names)
            }
    return result


def _take_row(array: Any, index: int) -> Any:
    """One block's array out of a stacked one."""
    if isinstance(array, jax.Array):
        return jax.lax.index_in_dim(array, index, axis=0, keepdims=False)
    return jax.ShapeDtypeStruct(
        array.shape[1:], array.dtype, sharding=_row_sharding(array.sharding)
    )


def _row_sharding(sharding: Any) -> NamedSharding | None:
    """The sharding of a row; None if the stacked array is on one device."""
    if not isinstance(sharding, NamedSharding):
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))


@dataclasses.dataclass(eq=False)
class StackedArray:
    """One stacked weight in a model: the array [L, ...], and the weight's name in a
    block.
    """

    array: jax.Array
    weight: str
    is_whole_list: bool


class StackedWeight(torch.Tensor):
    """Takes the place of a block's weight, which is a row of a stacked array. To
    compute with it is an error.
    """

    stacked: StackedArray
    row: int

    @staticmethod
    def __new__(cls: Any, stacked: StackedArray, row: int) -> "StackedWeight":
        array = stacked.array
        dtype = compat.torch_dtype(array.dtype)
        tensor = make_wrapper(
            cls, tuple(array.shape[1:]), dtype=dtype, device=torch.device("meta")
        )
        tensor.stacked, tensor.row = stacked, row
        return tensor

    def __init__(self, stacked: StackedArray, row: int) -> None: ...

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The device that tensors on the device report."""
        return torch.device("jax:0")

    def jax(self) -> Any:
        """There is no array of this weight alone."""
        raise _row_error()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # torch.nn.Parameter detaches what it is made of.
        if func.overloadpacket.__name__ in ("detach", "alias"):
            return StackedWeight(args[0].stacked, args[0].row)
        raise _row_error()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"StackedWeight({tuple(self.shape)}, row {self.row} of {tuple(self.stacked.array.shape)})"


def _row_error() -> PortError:
    return PortError(
        "this block's weight is a row of an array that holds those of all blocks",
        fix="use tpuport.compile, generate or denoise; or call tpuport.compilation.layers.unstack_layers(model) first",
    )


def stack_layers(model: torch.nn.Module) -> tuple[Stack, ...]:
    """Let a ported model keep the weights of identical blocks stacked; its programs
    take them so.

    One weight after another is stacked and dropped from the blocks, so that at most one
    is in memory twice. Blocks have a `StackedWeight` in its place. What is stacked
    already stays.

    Returns:
        What was stacked now.
    """
    with trace_lock:
        ported = {
            name: tensor
            for name, tensor in _weights(model).items()
            if compat.is_ported(tensor)
        }
        stacks = find_stacks(
            model, {name: compat.as_jax(tensor) for name, tensor in ported.items()}
        )
        shared = _shared_parameters(model)
        # Or these references keep every weight alive.
        del ported
        for stack in stacks:
            for weight in stack.weights:
                # Another name of a weight would keep its array beside the stacked one.
                if shared.isdisjoint(stack.block_weights(weight)):
                    _stack_weight(model, stack, weight)
        return stacks


def _shared_parameters(model: torch.nn.Module) -> set[str]:
    """Names of parameters that have other names too. They stay: otherwise each name
    would get its own copy.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    counts = collections.Counter(map(id, parameters.values()))
    return {name for name, parameter in parameters.items() if counts[id(parameter)] > 1}


def _stack_weight(model: torch.nn.Module, stack: Stack, weight: str) -> None:
    names = stack.block_weights(weight)
    weights = _weights(model)
    array = _stack_arrays([compat.as_jax(weights[name]) for name in names])
    # Or these references keep every weight alive.
    del weights
    # The blocks' own arrays can go only when they have been copied.
    array.block_until_ready()
    stacked = StackedArray(array, weight, stack.is_whole_list)
    for row, name in enumerate(names):
        _put_weight(model, name, StackedWeight(stacked, row))


def _put_weight(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    module, leaf = find_owner(model, name)
    put = put_parameter if leaf in module._parameters else put_buffer
    put(model, [name], tensor)


def unstack_layers(model: torch.nn.Module) -> None:
    """Give each block its own weights again, one stacked weight after another; nothing
    happens if none is stacked.
    """
    with trace_lock:
        members = _group_rows(_weights(model))
        while members:
            # Taken out first, so that each stacked array is freed before the next one
            # is copied.
            _unstack_weight(model, members.popitem()[1])


def _group_rows(tensors: Mapping[str, Any]) -> dict[int, dict[str, StackedWeight]]:
    """The stacked weights among tensors, by the id of their array and their name."""
    groups: dict[int, dict[str, StackedWeight]] = collections.defaultdict(dict)
    for name, tensor in tensors.items():
        if isinstance(tensor, StackedWeight):
            groups[id(tensor.stacked)][name] = tensor
    return dict(groups)


def _unstack_weight(model: torch.nn.Module, rows: dict[str, StackedWeight]) -> None:
    stacked = next(iter(rows.values())).stacked.array
    sharding = _row_sharding(stacked.sharding)
    take_all = jax.jit(
        lambda stacked: [_take_row(stacked, row) for row in range(stacked.shape[0])],
        out_shardings=sharding,
    )
    arrays = jax.block_until_ready(take_all(stacked))
    for name, tensor in rows.items():
        _put_weight(model, name, compat.wrap(arrays[tensor.row]))


def stacked_arrays(tensors: Mapping[str, Any]) -> dict[int, StackedArray]:
    """The stacked arrays that tensors are rows of, by the id of the array."""
    return {
        id(tensor.stacked.array): tensor.stacked
        for tensor in tensors.values()
        if isinstance(tensor, StackedWeight)
    }


def split_stacked(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's tensors by name as (stacked arrays by name, the tensors that are not
    stacked).

    Raises:
        PortError: the tensors are of a part of the blocks alone.
    """
    arrays = dict(map(_name_stacked, _group_rows(tensors).values()))
    return arrays, {
        name: tensor
        for name, tensor in tensors.items()
        if not isinstance(tensor, StackedWeight)
    }


def _name_stacked(rows: dict[str, StackedWeight]) -> tuple[str, jax.Array]:
    """(name, array) of the stacked weight that all these rows are of."""
    stacked = next(iter(rows.values())).stacked
    name_by_row = {tensor.row: name for name, tensor in rows.items()}
    has_all_rows = len(name_by_row) == stacked.array.shape[0]
    if not has_all_rows or stacked.weight not in name_by_row[0]:
        raise PortError(
            "some blocks of a model whose weights are stacked are used without the others",
            where=next(iter(rows)),
            fix="compile the whole model, or tpuport.compilation.layers.unstack_layers(model) first",
        )
    paths = [
        name_by_row[row].removesuffix(f".{stacked.weight}")
        for row in sorted(name_by_row)
    ]
    list_path = paths[0].rpartition(".")[0]
    blocks = [path.rpartition(".")[2] for path in paths]
    return _stacked_name(
        list_path, blocks, stacked.is_whole_list, stacked.weight
    ), stacked.array
