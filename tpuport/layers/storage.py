"""A ported model that keeps the weights of identical blocks as one array each, and no copy of them beside it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.errors import PortError
from tpuport.layers.stacks import Stack, find_stacks, joined, row
from tpuport.tracing import trace_lock


@dataclasses.dataclass(eq=False)
class Stored:
    """One stacked weight: [L, ...], and what it is called in a block."""

    array: jax.Array
    name: str
    whole: bool


class StackedWeight(torch.Tensor):
    """Stands in a block for its weight, which is a row of a stacked array. Whatever is computed with it is an error."""

    stored: Stored
    place: int

    @staticmethod
    def __new__(cls: Any, stored: Stored, index: int) -> "StackedWeight":
        array = stored.array
        made = torch.Tensor._make_wrapper_subclass(
            cls, tuple(array.shape[1:]), dtype=compat.torch_dtype(array.dtype), device=torch.device("meta")
        )
        made.stored, made.place = stored, index
        return made

    def __init__(self, stored: Stored, index: int) -> None: ...

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The same that tensors on the device say."""
        return torch.device("jax:0")

    def jax(self) -> Any:
        """There is no array of this weight alone."""
        raise _touched()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("detach", "alias"):
            return StackedWeight(args[0].stored, args[0].place)
        raise _touched()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"StackedWeight({tuple(self.shape)}, row {self.place} of {tuple(self.stored.array.shape)})"


def _touched() -> PortError:
    return PortError(
        "this block's weight is a row of an array that holds those of all blocks",
        fix="use the model through tpuport.compile, generate or denoise; or tpuport.layers.unstack_layers(model) first",
    )


def stack_layers(model: torch.nn.Module) -> tuple[Stack, ...]:
    """Let a ported model keep the weights of identical blocks stacked; programs made of it take them so.

    One weight after another is stacked and given up in the blocks, so that at no time more than one is there twice.
    Blocks have a `StackedWeight` in its place. What is stacked already stays.

    Returns:
        What was stacked now.
    """
    with trace_lock:
        named = {name: x for name, x in model.named_parameters() if compat.is_ported(x)}
        found = find_stacks(model, {name: compat.as_jax(tensor) for name, tensor in named.items()})
        shared = _shared(model)
        del named
        for stack in found:
            for name in stack.names:
                if not shared & set(stack.singles(name)):
                    _stack(model, stack, name)
        return found


def _shared(model: torch.nn.Module) -> set[str]:
    """Names of parameters that have other names too: those stay, or each name would keep its own copy."""
    seen: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        seen.setdefault(id(parameter), []).append(name)
    return {name for names in seen.values() if len(names) > 1 for name in names}


def _stack(model: torch.nn.Module, stack: Stack, name: str) -> None:
    singles = stack.singles(name)
    stored = Stored(
        joined([compat.as_jax(model.get_parameter(single)) for single in singles]), name, stack.whole
    )
    stored.array.block_until_ready()
    for index, single in enumerate(singles):
        _put(model, single, StackedWeight(stored, index))


def unstack_layers(model: torch.nn.Module) -> None:
    """Give each block its own weights again, one stacked weight after another; nothing where none is stacked."""
    with trace_lock:
        left = {name: x for name, x in model.named_parameters() if isinstance(x, StackedWeight)}
        by_array: dict[int, list[tuple[str, Any]]] = {}
        for name, tensor in left.items():
            by_array.setdefault(id(tensor.stored), []).append((name, tensor))
        del left
        while by_array:
            _unstack(model, by_array.popitem()[1])


def _unstack(model: torch.nn.Module, members: list[tuple[str, Any]]) -> None:
    rows = _rows(members[0][1].stored.array)
    for name, tensor in members:
        _put(model, name, compat.wrap(rows[tensor.place]))


def _rows(array: jax.Array) -> list[jax.Array]:
    sharding: Any = array.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    else:
        sharding = None
    take = jax.jit(lambda stacked: [row(stacked, n) for n in range(stacked.shape[0])], out_shardings=sharding)
    return jax.block_until_ready(take(array))


def _put(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module: Any = model.get_submodule(path)
    module._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)


def split_stacked(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(stacked arrays by name, the tensors that are not stacked) of a model's tensors by name.

    Raises:
        PortError: the tensors are of a part of the blocks alone.
    """
    members: dict[int, dict[int, str]] = {}
    arrays: dict[int, Stored] = {}
    for name, tensor in named.items():
        if isinstance(tensor, StackedWeight):
            arrays[id(tensor.stored)] = tensor.stored
            members.setdefault(id(tensor.stored), {})[tensor.place] = name
    result: dict[str, Any] = {}
    for key, stored in arrays.items():
        names = [members[key].get(n) for n in range(stored.array.shape[0])]
        if None in names or stored.name not in names[0]:  # type: ignore[operator]
            raise PortError(
                "some blocks of a model whose weights are stacked are used without the others",
                where=next(iter(members[key].values())),
                fix="compile the whole model, or tpuport.layers.unstack_layers(model) first",
            )
        blocks = [str(name).removesuffix("." + stored.name).rpartition(".") for name in names]
        places = "*" if stored.whole else "[" + ",".join(place for _, _, place in blocks) + "]"
        result[f"{blocks[0][0]}.{places}.{stored.name}"] = stored.array
    return result, {name: x for name, x in named.items() if not isinstance(x, StackedWeight)}
