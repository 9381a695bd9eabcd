"""Objects made of the structure of a graph: new ones, or the caller's with a changed
state.
"""

import functools
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from tpuport.objects.object_graph.classes import HostArray, kind_of, native_base
from tpuport.objects.object_graph.flattening import Node, Structure
from tpuport.objects.object_parts import parts_of
from tpuport.objects.part_containers import container_of

# Kinds of objects whose parts have to be there before them.
_MADE_OF_PARTS = frozenset({"registered", "frozenset", "weak"})


def unflatten(
    structure: Structure,
    leaves: Sequence[Any],
    objects: Mapping[int, Any] | None = None,
) -> tuple[list[Any], dict[int, Any]]:
    """The roots, and all objects by number.

    Args:
        objects: by number; these get the state that the structure has for them, and
            others are made.
    """
    builder = _Builder(structure, leaves, objects or {})
    return list(map(builder.resolve, structure.roots)), builder.objects


class _Builder:
    """Makes the objects of a structure.

    Attributes:
        objects: by number: those of the caller, and those that are made.
    """

    def __init__(
        self, structure: Structure, leaves: Sequence[Any], objects: Mapping[int, Any]
    ) -> None:
        self.objects = dict(objects)
        self._leaves = leaves
        # By the id of the reference, which the structure keeps.
        self._made: dict[int, Any] = {}
        self._nodes = dict(structure.nodes)
        # A registered class makes its objects from their parts, which have to be there
        # before: see `resolve`.
        own = [
            (number, node)
            for number, node in structure.nodes
            if kind_of(node.cls) not in _MADE_OF_PARTS
        ]
        self.objects |= {
            number: _empty(node) for number, node in own if number not in objects
        }
        # All exist before the first is filled, because objects may lead to each other.
        for number, node in own:
            self._fill(self.objects[number], node)

    def resolve(self, reference: Any) -> Any:
        """The value that a reference means."""
        match reference:
            case int():
                return _without_wrapper(self._leaves[reference])
            case ("object", number):
                if number not in self.objects:
                    self.objects[number] = self._make(self._nodes[number])
                return self.objects[number]
        if id(reference) not in self._made:
            self._made[id(reference)] = self._join(reference)
        return self._made[id(reference)]

    def _join(self, reference: Any) -> Any:
        """A value without a number, of its parts."""
        match reference:
            case ("method", function, owner):
                return types.MethodType(function, self.resolve(owner))
            case ("partial", *parts):
                function, arguments, keywords = map(self.resolve, parts)
                return functools.partial(function, *arguments, **keywords)
            case ("function", body, cells):
                return body.make(map(self.resolve, cells))
        _, cls, references = reference
        values = list(map(self.resolve, references))
        # A namedtuple, whose `__new__` takes fields one by one.
        if hasattr(cls, "_make"):
            return cls._make(values)
        if hasattr(cls, "n_sequence_fields"):  # torch.return_types
            return cls(values)
        return tuple.__new__(cls, values)

    def _make(self, node: Node) -> Any:
        """An object that is made of its parts."""
        structure: Any = node.extra
        parts = list(map(self.resolve, node.references))
        if structure is not None:
            return jax.tree_util.tree_unflatten(structure, parts)
        if node.cls is frozenset:
            return frozenset(parts)
        [target] = parts
        is_unknown = isinstance(target, weakref.ReferenceType)
        return target if is_unknown else weakref.ref(target)

    def _fill(self, instance: Any, node: Node) -> None:
        containers = parts_of(instance)
        for part, names, references in node.containers:
            if part == "[]" and issubclass(node.cls, dict):
                names = tuple(key for _, key in names)
            values = map(self.resolve, references)
            # `fill` uses the methods of Python's own class: a derived one may count,
            # check or refuse what is written to it.
            containers[part].fill(dict(zip(names, values, strict=True)))


def _without_wrapper(leaf: Any) -> Any:
    """A leaf as the traced code sees it: a table of NumPy's is read-only there."""
    if isinstance(leaf, HostArray):
        return leaf.array
    return leaf


def _empty(node: Node) -> Any:
    """An object of exactly this class without attributes and items. No `__init__` of
    the user's runs.
    """
    base = container_of(node.cls)
    # Not `object.__new__`, which refuses classes that derive from one in C.
    instance: Any = (base or native_base(node.cls)).__new__(node.cls)
    extra: Any = node.extra
    if base is deque:
        deque.__init__(instance, (), extra)
    elif base is defaultdict:
        defaultdict.__init__(instance, extra)
    return instance
