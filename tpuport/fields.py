"""Objects taken apart by field and put together again: arrays become children, plain values the structure.

A field's value is judged by its kind, never by being a torch tensor: the same field holds in turn a torch
tensor on the host, a torchax tensor, a `jax.Array`, a tracer, a `jax.ShapeDtypeStruct` or a placeholder of
jax's own. Lists, tuples and dictionaries are searched for arrays, and keep their type, their order and
their plain values.

What a field holds is written as a skeleton, a nested tuple that can be hashed and compared: `_CHILD` where
an array stood, `(type, value)` for a plain value, `(container type, keys, skeletons)` for a container. The
type is part of it because True == 1 == 1.0, and one must not come back as another.
"""

import dataclasses
import enum
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jax import tree_util
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

Skeleton = tuple
# (attributes, items): names with what they hold; items are what a mapping holds beside its attributes.
Structure = tuple[tuple[tuple[str, Skeleton], ...], tuple[tuple[Any, Skeleton], ...]]

_CHILD: Skeleton = ("child",)
# The value of an item that is the attribute of the same name, as in a ModelOutput.
_SAME: Skeleton = ("same",)
# What an object remembers that was given plain values for its arrays, as jax does for in_axes or shardings: where
# they stand. No other object has it.
_MARK = "_tpuport_structure"

_PLAIN = frozenset({
    bool, int, str, bytes, types.NoneType, types.EllipsisType, range, frozenset,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
})  # fmt: skip
# Values that cannot be hashed, or do not equal themselves (nan): how they are written, and read.
_CODES: dict[type, tuple[Callable, Callable]] = {
    float: (float.hex, float.fromhex),
    complex: (repr, complex),
    set: (frozenset, set),
}
_CONTAINERS = frozenset({list, tuple, dict, OrderedDict})
# Compared by their own ==, which may be costly or leave them without a hash: see _Held.
_HELD = (
    bool, int, float, complex, str, bytes, enum.Enum, np.dtype, Mesh, AbstractMesh, Sharding, PartitionSpec, frozenset,
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
    torch.Stream, torch.Generator,
)  # fmt: skip


class _Held:
    """A value in the tree structure as it is: equal to itself and to what its own == says."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and (self.value is other.value or bool(self.value == other.value))

    def __repr__(self) -> str:
        return repr(self.value)


@functools.cache
def _kind(cls: type) -> str:
    """How a value of this class is kept: plain, coded, container, record, held or child."""
    if cls in _PLAIN:
        return "plain"
    if cls in _CODES:
        return "coded"
    if cls in _CONTAINERS:
        return "container"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "record"
    if issubclass(cls, np.generic) or tree_util.is_tree_node(cls):  # np.float64 is a float, and an array too
        return "child"
    # A configuration (PretrainedConfig, GenerationConfig) is what can be written to a dictionary.
    return "held" if issubclass(cls, _HELD) or hasattr(cls, "to_dict") else "child"


def _take(value: Any, children: list[Any], guide: Skeleton | None = None) -> Skeleton:
    """The skeleton of a value; the arrays in it, and what stands where the guide has one, go to `children`."""
    cls = type(value)
    kind = "child" if guide is _CHILD else _kind(cls)
    if kind == "plain":
        return (cls, value)
    if kind == "child":
        children.append(value)
        return _CHILD
    if kind == "coded":
        return (cls, _CODES[cls][0](value))
    if kind == "held":
        return (cls, _Held(value))
    keys, inner = (tuple(value), value.values()) if issubclass(cls, dict) else (None, value)
    if guide is not None and guide[:2] == (cls, keys) and len(guide[2]) == len(value):
        return (cls, keys, tuple([_take(x, children, g) for x, g in zip(inner, guide[2], strict=True)]))
    return (cls, keys, tuple([_take(x, children) for x in inner]))


def _give(skeleton: Skeleton, children: Iterator[Any]) -> Any:
    """The value of a skeleton, its containers new, with the next children in it."""
    if skeleton is _CHILD:
        return next(children)
    cls, what = skeleton[:2]
    kind = _kind(cls)
    if kind == "plain":
        return what
    if kind == "coded":
        return _CODES[cls][1](what)
    if kind == "held":
        return what.value
    values = [_give(x, children) for x in skeleton[2]]
    if what is not None:
        return cls(zip(what, values, strict=True))
    return cls._make(values) if kind == "record" else cls(values)


def _labels(skeleton: Skeleton, path: str) -> Iterator[str]:
    """The path of every child below a skeleton: keys, conv_states[0]."""
    if skeleton is _CHILD:
        yield path
    elif len(skeleton) == 3:
        cls, keys, inner = skeleton
        for key, x in zip(range(len(inner)) if keys is None else keys, inner, strict=True):
            step = f".{cls._fields[key]}" if _kind(cls) == "record" else f"[{key!r}]"
            yield from _labels(x, path + step)


@functools.cache
def _slots(cls: type) -> frozenset[str]:
    """The names of the slots of a class and its bases."""
    found = [base.__dict__.get("__slots__", ()) for base in cls.__mro__]
    names = {name for slots in found for name in ((slots,) if isinstance(slots, str) else slots)}
    return frozenset(names - {"__dict__", "__weakref__"})


@functools.cache
def _fields(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass in their order."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else ()


def _attributes(value: Any) -> dict[str, Any]:
    """Every attribute: a dataclass's fields in their order, then the others by name.

    By name because equals differ in the order of assignment: a layer allocated early and one allocated late.
    """
    cls = type(value)
    state = getattr(value, "__dict__", {})
    if slots := _slots(cls):
        state = state | {name: getattr(value, name) for name in slots if hasattr(value, name)}
    first = [name for name in _fields(cls) if name in state]
    return {name: state[name] for name in first + sorted(state.keys() - first)}


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Children and structure of an object: its __dict__, its slots, and its items if it is a dictionary."""
    children: list[Any] = []
    state = _attributes(value)
    guides: tuple[dict, dict] = state.pop(_MARK) if _MARK in state else ({}, {})
    attributes = tuple([(name, _take(x, children, guides[0].get(name))) for name, x in state.items()])
    if not isinstance(value, dict):
        return children, (attributes, ())
    items = []
    for key, x in OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value):
        same = key in state and state[key] is x
        items.append((key, _SAME if same else _take(x, children, guides[1].get(key))))
    return children, (attributes, tuple(items))


def labels(structure: Structure) -> list[str]:
    """The path of every child that `flatten` gave, in its order."""
    attributes, items = structure
    named = [*attributes, *((str(key), skeleton) for key, skeleton in items if skeleton is not _SAME)]
    return [path for name, skeleton in named for path in _labels(skeleton, name)]


def unflatten(cls: type, structure: Structure, children: Iterable[Any]) -> Any:
    """An object of exactly this class with these fields. No __init__ runs."""
    children = list(children)
    left = iter(children)
    attributes, items = structure
    base: Any = next((b for b in (OrderedDict, dict) if issubclass(cls, b)), object)
    made = base.__new__(cls)
    state = {name: _give(skeleton, left) for name, skeleton in attributes}
    for name, value in state.items():
        # Into the __dict__ where that is what holds it: a property of the same name must not run.
        if name in _slots(cls):
            object.__setattr__(made, name, value)
        else:
            made.__dict__[name] = value
    for key, skeleton in items:
        base.__setitem__(made, key, state[key] if skeleton is _SAME else _give(skeleton, left))
    if any(_kind(type(child)) != "child" for child in children):
        made.__dict__[_MARK] = (dict(attributes), dict(items))
    return made
