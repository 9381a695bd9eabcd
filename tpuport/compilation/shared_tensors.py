"""Tensors that a model has in two places, or that share memory, and are one after the
model has moved and in programs.

In torch `self.alias = self.buffer` is the buffer, and `self.first = self.buffer[0]` its
memory. A model that moves gets new tensors for its weights, so whatever else refers to
the old ones is given the new ones here. A program has each tensor as one argument: what
is a weight and an attribute too is a weight. Views of one memory would be two
arguments, so programs that write to one of them are refused (`call_results`).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.checkpoint import fetch
from tpuport.compat import aliasing, memory_layouts, view_steps
from tpuport.compat.operators.strided_views import join_memory
from tpuport.compat.tracing import trace_lock
from tpuport.hardware import process_watch
from tpuport.internals.torchax_internals import ARRAY, array_of
from tpuport.objects.part_containers import NamedContainer
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.state_places import (
    WEIGHTS,
    Snapshot,
    take_snapshots,
)

# The number of a model and the name of one of its weights.
WeightSlot = tuple[int, str]
# The number of a tensor of the program, or of the state, or the slot of a weight.
Slot = int | WeightSlot
# Dictionaries of a module that hold no tensors, or weights.
_NOT_SEARCHED = (*WEIGHTS, "_modules")


def weights_in_state(
    tensors: Sequence[torch.Tensor], weights: Sequence[Mapping[str, torch.Tensor]]
) -> tuple[tuple[int, WeightSlot], ...]:
    """(the number of a tensor, the weight that it is) for each tensor of a state that
    is a weight of a model too.

    Args:
        tensors: of the state.
        weights: of each model, by name.
    """
    if not tensors:
        return ()
    slots = {
        id(weight): (model, name)
        for model, named in enumerate(weights)
        for name, weight in named.items()
    }
    return tuple(
        (number, slots[id(tensor)])
        for number, tensor in enumerate(tensors)
        if id(tensor) in slots
    )


def show_weight(tensor: Any, weight: Any) -> None:
    """Traced. Let a tensor be the weight that a trace computes with, until it gets its
    own attributes back.
    """
    vars(tensor).update({ARRAY: array_of(weight), "_alias": None})
    aliasing.link(tensor, weight, view_steps.WHOLE, aliasing.twin(weight))


@contextlib.contextmanager
def weights_shown(
    tensors: Sequence[torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    in_use: Mapping[str, torch.Tensor],
) -> Iterator[None]:
    """Traced. Let the tensors of a state that are weights of a model be those that the
    trace computes with.

    Args:
        weights: the model's own, by name; `in_use` are those of the trace.
    """
    shared = [
        (tensors[number], in_use[name])
        for number, (_, name) in weights_in_state(tensors, [weights])
    ]
    attributes = [dict(vars(tensor)) for tensor, _ in shared]
    for tensor, weight in shared:
        show_weight(tensor, weight)
    try:
        yield
    finally:
        for (tensor, _), former in zip(shared, attributes, strict=True):
            vars(tensor).clear()
            vars(tensor).update(former)


class _Member(NamedTuple):
    """A tensor that shares its memory with a weight.

    Attributes:
        path: the name of a weight, or what leads to any other tensor.
        layout: a tensor on the meta device with its strides.
        tensor: None for a weight, whose memory on the host is to be freed as soon as it
            has moved.
    """

    path: str
    layout: torch.Tensor
    tensor: torch.Tensor | None


class _Shared(NamedTuple):
    """What a model's tensors have in common.

    Attributes:
        same: tensors that are weights too, with the names of these.
        views: (a tensor, another that has some of its elements).
        containers: that hold tensors beside the weights.
    """

    same: list[tuple[torch.Tensor, str]]
    views: list[tuple[_Member, _Member]]
    containers: list[Snapshot]


@contextlib.contextmanager
def keep_shared(model: Any) -> Iterator[None]:
    """While a model moves: what shares memory with its weights before shares memory
    with them afterwards.
    """
    if not isinstance(model, torch.nn.Module):
        yield
        return
    with trace_lock:
        shared = _find_shared(model)
    yield
    if shared.same or shared.views:
        _share_again(model, shared)


def _find_shared(model: torch.nn.Module) -> _Shared:
    state = PythonState(model, [model])
    containers = [
        each
        for each in take_snapshots(state)
        if each.location.part not in _NOT_SEARCHED
    ]
    state_tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for snapshot in containers:
        for path, tensor in _tensors_in(snapshot, state):
            state_tensors.setdefault(id(tensor), (path, tensor))
    names = {
        id(tensor): name for name, tensor in reversed(_named_tensors(model).items())
    }
    same = [
        (tensor, names[number])
        for number, (_, tensor) in state_tensors.items()
        if number in names
    ]
    groups: dict[Any, list[_Member]] = {}
    for name, tensor in _named_tensors(model, first_names=True).items():
        groups.setdefault(_memory(tensor), []).append(
            _Member(name, _layout(tensor), None)
        )
    for number, (path, tensor) in state_tensors.items():
        if number not in names and _memory(tensor) in groups:
            groups[_memory(tensor)].append(_Member(path, _layout(tensor), tensor))
    groups.pop(None, None)
    views = [
        pair
        for members in groups.values()
        if len(members) > 1
        for pair in _find_views(members)
    ]
    return _Shared(same, views, containers if same or views else [])


def _named_tensors(
    model: torch.nn.Module, *, first_names: bool = False
) -> dict[str, torch.Tensor]:
    tensors = dict(model.named_parameters(remove_duplicate=first_names))
    return tensors | dict(model.named_buffers(remove_duplicate=first_names))


def _tensors_in(
    snapshot: Snapshot, state: PythonState
) -> Iterator[tuple[str, torch.Tensor]]:
    path = state.path(snapshot.location.node)
    for name, value in snapshot.contents.items():
        for tensor in _parts(value):
            yield snapshot.container.path_of(path, name), tensor


def _parts(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, itself or in tuples, which cannot be changed where they
    are.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _parts(part)


def _memory(tensor: torch.Tensor) -> Any:
    """What is the same for tensors that share memory; None without memory."""
    if compat.is_ported(tensor):
        alias = getattr(tensor, "_alias", None)
        return None if alias is None else id(alias.storage)
    is_dense = tensor.layout is torch.strided and not tensor.is_meta
    return (is_dense and tensor.untyped_storage().data_ptr()) or None


def _layout(tensor: torch.Tensor) -> torch.Tensor:
    if compat.is_ported(tensor):
        return aliasing.twin(tensor)
    size = (
        tensor.untyped_storage().nbytes() // tensor.element_size()
        if _memory(tensor)
        else tensor.numel()
    )
    memory = view_steps.on_twins(torch.empty, size, dtype=tensor.dtype, device="meta")
    if not _memory(tensor):
        return memory
    return view_steps.on_twins(
        memory.as_strided, tensor.shape, tensor.stride(), tensor.storage_offset()
    )


def _find_views(members: list[_Member]) -> Iterator[tuple[_Member, _Member]]:
    """(a tensor, another that has some of its elements) of those in one memory."""
    members = sorted(members, key=lambda member: -member.layout.numel())
    for number, member in enumerate(members):
        owners = [
            other
            for other in members[:number]
            if memory_layouts.layouts_meet(other.layout, member.layout)
        ]
        wholes = [
            owner
            for owner in owners
            if memory_layouts.is_inside(member.layout, owner.layout)
        ]
        if wholes:
            yield wholes[0], member


def _share_again(model: torch.nn.Module, shared: _Shared) -> None:
    weights = _named_tensors(model)
    moved = {id(tensor): weights[name] for tensor, name in shared.same}
    for owner, view in shared.views:
        weight = owner if owner.tensor is None else view
        dtype = (
            weights[weight.path].dtype if weight.tensor is None else view.layout.dtype
        )
        whole, part = (
            _moved(member, weights, moved, dtype) for member in (owner, view)
        )
        if compat.is_ported(whole):
            join_memory(whole, part, owner.layout, view.layout)
        elif owner.layout.is_contiguous():
            offset = view.layout.storage_offset() - owner.layout.storage_offset()
            part.data = whole.detach().as_strided(
                view.layout.shape, view.layout.stride(), int(offset)
            )
    for _, container, contents, _ in shared.containers:
        current = {name: _replaced(value, moved) for name, value in contents.items()}
        changes = {
            name: value
            for name, value in current.items()
            if value is not contents[name]
        }
        if isinstance(container, NamedContainer):
            # To move a model gives it attributes that it did not have.
            container.change(changes)
        elif changes:
            container.fill(current)


def _moved(
    member: _Member,
    weights: Mapping[str, torch.Tensor],
    moved: dict[int, torch.Tensor],
    dtype: torch.dtype,
) -> torch.Tensor:
    """A tensor where the model is now."""
    if member.tensor is None:
        return weights[member.path]
    if id(member.tensor) not in moved:
        moved[id(member.tensor)] = _move_beside(
            member.tensor.to(dtype), next(iter(weights.values()))
        )
    return moved[id(member.tensor)]


def _move_beside(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if not compat.is_ported(weight):
        return fetch(tensor)
    return compat.wrap(
        process_watch.put(compat.to_jax(tensor), _whole(compat.as_jax(weight).sharding))
    )


def _whole(sharding: Any) -> Any:
    """A sharding on the same devices, each with the whole array."""
    mesh = getattr(sharding, "mesh", None)
    return (
        sharding
        if mesh is None
        else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )


def _replaced(value: Any, moved: Mapping[int, torch.Tensor]) -> Any:
    """The value with what has moved; itself if nothing in it has."""
    if isinstance(value, torch.Tensor):
        return moved.get(id(value), value)
    if not isinstance(value, tuple):
        return value
    parts = [_replaced(part, moved) for part in value]
    if all(map(lambda new, old: new is old, parts, value)):
        return value
    # A named tuple takes its fields one by one.
    return getattr(type(value), "_make", type(value))(parts)
