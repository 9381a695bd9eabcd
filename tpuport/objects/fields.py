"""Flatten objects by field and rebuild them: arrays become children, plain values
become the structure.

A field's value is classified by its kind, never by being a torch tensor: the same field
may contain a torch tensor on the host, a torchax tensor, a `jax.Array`, a tracer, a
`jax.ShapeDtypeStruct` or a placeholder of jax. Lists, tuples and dictionaries are
searched for arrays, and keep their type, their order and their plain values.

The value of a field is described by a skeleton, a nested tuple that can be hashed and
compared: `_CHILD` for an array, `(type, value)` for a plain value,
`(container type, keys, skeletons)` for a container. The type is part of it because True
== 1 == 1.0, and none may come back as another.
"""

import dataclasses
import enum
import functools
import itertools
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jax import tree_util
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

from tpuport.objects.object_parts import slots
from tpuport.objects.traced_numbers import TracedNumber, rebuild_number

Skeleton = tuple
# (attributes, items): skeletons by name; the items of a mapping come beside its
# attributes.
Structure = tuple[tuple[tuple[str, Skeleton], ...], tuple[tuple[Any, Skeleton], ...]]

_CHILD: Skeleton = ("child",)
# The value of an item that is the attribute of the same name, as in a ModelOutput.
_SAME: Skeleton = ("same",)
# jax builds objects with plain values instead of arrays, for in_axes or shardings. Such
# an object, and no other, remembers under this attribute where its children are.
_MARK = "_tpuport_structure"

_PLAIN = frozenset({
    bool, int, str, bytes, types.NoneType, types.EllipsisType, range, frozenset,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
})  # fmt: skip
# Values that cannot be hashed, or do not equal themselves (nan): how to encode and
# decode them.
_CODES: dict[type, tuple[Callable, Callable]] = {
    float: (float.hex, float.fromhex),
    complex: (repr, complex),
    set: (frozenset, set),
    # Of two terms that may be equal only the program knows whether they are.
    TracedNumber: (operator.attrgetter("term"), rebuild_number),
}
_CONTAINERS = frozenset({list, tuple, dict, OrderedDict})
# Compared by their own ==, which may be costly or leave them without a hash: see
# _Constant.
_CONSTANTS = (
    bool, int, float, complex, str, bytes, enum.Enum, np.dtype, Mesh, AbstractMesh, Sharding, PartitionSpec, frozenset,
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
    torch.Stream, torch.Generator,
)  # fmt: skip


class _Constant:
    """A value in the tree structure: equal to itself and to whatever its own ==
    accepts.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return False
        return self.value is other.value or bool(self.value == other.value)

    def __repr__(self) -> str:
        return repr(self.value)


@functools.cache
def _kind(cls: type) -> str:
    """How a value of this class is stored: plain, coded, container, record, constant or
    child.
    """
    if cls in _PLAIN:
        return "plain"
    if cls in _CODES:
        return "coded"
    if cls in _CONTAINERS:
        return "container"
    # A namedtuple's constructor takes its fields one by one, unlike tuple's.
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "record"
    # np.float64 is a float, and an array too.
    if issubclass(cls, np.generic) or tree_util.is_tree_node(cls):
        return "child"
    # A configuration (PretrainedConfig, GenerationConfig) is what can be written to a
    # dictionary.
    if issubclass(cls, _CONSTANTS) or hasattr(cls, "to_dict"):
        return "constant"
    return "child"


def _take(value: Any, children: list[Any], guide: Skeleton | None = None) -> Skeleton:
    """The skeleton of a value; its arrays, and whatever is where the guide has an
    array, are appended to `children`.
    """
    cls = type(value)
    kind = _kind(cls)
    if guide is _CHILD or kind == "child":
        children.append(value)
        return _CHILD
    match kind:
        case "plain":
            return (cls, value)
        case "coded":
            return (cls, _CODES[cls][0](value))
        case "constant":
            return (cls, _Constant(value))
    keys = None
    items = value
    if issubclass(cls, dict):
        keys = tuple(value)
        items = value.values()
    guides: Iterable[Skeleton | None] = itertools.repeat(None, len(value))
    if guide is not None and guide[:2] == (cls, keys) and len(guide[2]) == len(value):
        guides = guide[2]
    # map, not a generator: this runs for every field of every cache in each call.
    return (cls, keys, tuple(map(_take, items, itertools.repeat(children), guides)))


def _give(skeleton: Skeleton, children: Iterator[Any]) -> Any:
    """The value of a skeleton, with new containers and the next children."""
    if skeleton is _CHILD:
        return next(children)
    cls, content = skeleton[:2]
    kind = _kind(cls)
    match kind:
        case "plain":
            return content
        case "coded":
            return _CODES[cls][1](content)
        case "constant":
            return content.value
    values = [_give(item, children) for item in skeleton[2]]
    # The content of a dictionary are its keys; other containers have none.
    if content is not None:
        return cls(zip(content, values, strict=True))
    if kind == "record":
        return cls._make(values)
    return cls(values)


def _labels(skeleton: Skeleton, path: str) -> Iterator[str]:
    """The path of every child below a skeleton: keys, conv_states[0]."""
    if skeleton is _CHILD:
        yield path
    elif len(skeleton) == 3:
        cls, keys, items = skeleton
        if _kind(cls) == "record":
            steps = [f".{name}" for name in cls._fields]
        else:
            steps = [f"[{key!r}]" for key in keys or range(len(items))]
        for step, item in zip(steps, items, strict=True):
            yield from _labels(item, path + step)


@functools.cache
def _fields(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass in their order; none for other classes."""
    if not dataclasses.is_dataclass(cls):
        return ()
    return tuple(field.name for field in dataclasses.fields(cls))


def _attributes(value: Any) -> dict[str, Any]:
    """Every attribute: a dataclass's fields in their order, then the others by name.

    By name because equal objects may differ in the order of assignment: a layer
    allocated early and one allocated late.
    """
    cls = type(value)
    state = getattr(value, "__dict__", {})
    names = slots(cls)
    if names:
        state = state | {
            name: getattr(value, name) for name in names if hasattr(value, name)
        }
    first = [name for name in _fields(cls) if name in state]
    return {name: state[name] for name in first + sorted(state.keys() - first)}


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Children and structure of an object: its __dict__, its slots, and its items if it
    is a dictionary.
    """
    children: list[Any] = []
    state = _attributes(value)
    attribute_guides, item_guides = state.pop(_MARK, ({}, {}))
    attributes = tuple(
        [
            (name, _take(attribute, children, attribute_guides.get(name)))
            for name, attribute in state.items()
        ]
    )
    if not isinstance(value, dict):
        return children, (attributes, ())
    # The base's own method: a ModelOutput's items() would leave out the fields that are
    # None.
    base = _mapping_base(type(value))
    items = []
    for key, item in base.items(value):
        if key in state and state[key] is item:
            items.append((key, _SAME))
        else:
            items.append((key, _take(item, children, item_guides.get(key))))
    return children, (attributes, tuple(items))


def _mapping_base(cls: type) -> Any:
    bases = (OrderedDict, dict, object)
    return next(base for base in bases if issubclass(cls, base))


def labels(structure: Structure) -> list[str]:
    """The path of every child of `flatten`, in the same order."""
    attributes, items = structure
    named = [
        *attributes,
        *((str(key), skeleton) for key, skeleton in items if skeleton is not _SAME),
    ]
    return [path for name, skeleton in named for path in _labels(skeleton, name)]


def unflatten(cls: type, structure: Structure, children: Iterable[Any]) -> Any:
    """An object of exactly this class with these fields. No __init__ runs."""
    children = list(children)
    remaining = iter(children)
    attributes, items = structure
    base = _mapping_base(cls)
    # `cls.__new__` may be the class's own, and want arguments.
    instance = base.__new__(cls)
    state = {name: _give(skeleton, remaining) for name, skeleton in attributes}
    names = slots(cls)
    for name, value in state.items():
        # Straight into the __dict__: a property of the same name must not run.
        if name in names:
            object.__setattr__(instance, name, value)
        else:
            instance.__dict__[name] = value
    for key, skeleton in items:
        item = state[key] if skeleton is _SAME else _give(skeleton, remaining)
        base.__setitem__(instance, key, item)
    # Only such an object needs the mark; one with arrays is described by its own
    # fields.
    if any(_kind(type(child)) != "child" for child in children):
        instance.__dict__[_MARK] = (dict(attributes), dict(items))
    return instance
