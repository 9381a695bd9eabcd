"""Arguments and results of a compiled function as a graph of objects, whose leaves are tensors and plain values.

A jax pytree is a tree of values: what is referenced twice comes back as two, and what is changed in place is lost. Code
written for torch relies on both, a cache with `self.k` above all. So lists, dictionaries and instances of ordinary
classes are nodes with a number here. `flatten` gives each of them one description however often it is referenced;
`unflatten` makes new ones, or writes a changed state back into those that the caller has.

A reference is the number of a leaf, or a tuple: ("object", number), ("tuple", class, references) or
("method", function, reference to its object).
"""

import types
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tpuport.library_classes import is_transformers_cache
from tpuport.object_graph.classes import (
    JAX_CONTAINERS,
    PLAIN,
    HostArray,
    arrays_inside,
    attributes_of,
    container_of,
    kind_of,
    native_base,
    refuse_tensors_inside,
    set_attributes,
)

Reference = Hashable


class Node(NamedTuple):
    """The state of one object.

    Attributes:
        cls: its class.
        attributes: (name, reference) of what is in its `__dict__` and its slots, in order.
        items: references of a list, (class of the key, key, reference) of a dictionary; None without items.
        extra: what else its class needs: the longest length of a deque, the factory of a defaultdict, or jax's
            structure of a registered class.
    """

    cls: type
    attributes: tuple[tuple[str, Reference], ...]
    items: tuple | None
    extra: Hashable


class Structure(NamedTuple):
    """Hashable, and equal for equal graphs.

    Attributes:
        roots: references to the values that were flattened.
        nodes: (number, state) of each object.
    """

    roots: tuple[Reference, ...]
    nodes: tuple[tuple[int, Node], ...]


class Graph(NamedTuple):
    """What `flatten` returns.

    Attributes:
        leaves: what is not an object here, each tensor once.
        names: the path of each leaf: "cache.layers.0.k".
        objects: by number.
        structure: how it all hangs together.
    """

    leaves: list[Any]
    names: list[str]
    objects: dict[int, Any]
    structure: Structure


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or an array, of whatever library."""
    return isinstance(value, torch.Tensor | jax.Array) or hasattr(value, "__array__")


class Flattener:
    """Visits values, and numbers their objects and leaves.

    Args:
        caches_are_leaves: whether caches of transformers are leaves, or registered classes like others.
        known: objects that have numbers already, and are visited only by `add_known`.
        first: the number of the first object that is not known.
    """

    def __init__(
        self, *, caches_are_leaves: bool, known: Mapping[int, Any] | None = None, first: int = 0
    ) -> None:
        self._caches_are_leaves = caches_are_leaves
        self._numbers = {id(value): number for number, value in (known or {}).items()}
        self._next = first
        self.leaves: list[Any] = []
        self._names: list[str] = []
        self._leaf_numbers: dict[int, int] = {}
        self._objects: dict[int, Any] = {}
        self._nodes: dict[int, Node] = {}
        self._roots: list[Reference] = []
        # Leaves that are numbered by their ids must not make room for others with the same id.
        self._kept: list[Any] = []
        self.meets_known = False

    def add_root(self, name: str, value: Any) -> None:
        """Visit one more value."""
        self._roots.append(self._visit(value, name))

    def add_known(self, name: str, number: int, value: Any) -> None:
        """Visit an object that has a number already."""
        self._visit_object(value, name, number)

    def forget_leaves(self, values: Iterable[Any]) -> None:
        """Number these leaves again when they are met again."""
        for value in values:
            self._leaf_numbers.pop(id(value), None)

    def graph(self) -> Graph:
        """All that has been visited."""
        structure = Structure(tuple(self._roots), tuple(self._nodes.items()))
        return Graph(self.leaves, self._names, self._objects, structure)

    def _visit(self, value: Any, name: str) -> Reference:
        cls = type(value)
        if cls in PLAIN:
            return self._new_leaf(value, name)
        number = self._numbers.get(id(value))
        if number is not None:
            self.meets_known |= number not in self._objects
            return ("object", number)
        kind = kind_of(cls)
        if kind == "leaf" or (self._caches_are_leaves and is_transformers_cache(value)):
            return self._visit_leaf(value, name)
        if kind == "tuple":
            steps = getattr(cls, "_fields", range(len(value)))
            parts = zip(steps, value, strict=True)
            return ("tuple", cls, tuple(self._visit(part, f"{name}.{step}") for step, part in parts))
        if kind == "method":
            return ("method", value.__func__, self._visit(value.__self__, name))
        if kind == "opaque":
            refuse_tensors_inside(value, name)
            return self._visit_leaf(value, name)
        if kind == "library" and not arrays_inside(value):
            return self._visit_leaf(value, name)
        number = self._numbers[id(value)] = self._next
        self._next += 1
        self._visit_object(value, name, number)
        return ("object", number)

    def _visit_leaf(self, value: Any, name: str) -> int:
        number = self._leaf_numbers.get(id(value))
        if number is None:
            number = self._leaf_numbers[id(value)] = self._new_leaf(value, name)
        return number

    def _new_leaf(self, value: Any, name: str) -> int:
        self.leaves.append(value)
        self._names.append(name)
        return len(self.leaves) - 1

    def _visit_object(self, value: Any, name: str, number: int) -> None:
        self._objects[number] = value
        state = read_state(value)
        attributes = tuple(
            (attribute, self._visit_attribute(content, f"{name}.{attribute}"))
            for attribute, content in state.attributes.items()
        )
        match state.items:
            case None:
                items = None
            case dict():
                items = tuple(
                    (type(key), key, self._visit(item, f"{name}.{key}")) for key, item in state.items.items()
                )
            case _:
                items = tuple(
                    self._visit(item, f"{name}.{label}")
                    for label, item in zip(state.labels, state.items, strict=True)
                )
        self._nodes[number] = Node(type(value), attributes, items, state.extra)

    def _visit_attribute(self, value: Any, name: str) -> Reference:
        """As `_visit`; arrays of NumPy in an object are tables for NumPy's functions, and do not become tensors."""
        if not isinstance(value, np.ndarray | np.generic):
            return self._visit(value, name)
        number = self._leaf_numbers.get(id(value))
        if number is None:
            number = self._leaf_numbers[id(value)] = self._new_leaf(HostArray(value, name), name)
            self._kept.append(value)
        return number


class State(NamedTuple):
    """What an object consists of at the moment; see `Node`. `labels` are the names of items without keys."""

    attributes: dict[str, Any]
    items: Any
    extra: Hashable
    labels: Iterable[Any] = ()

    @property
    def is_registered(self) -> bool:
        """Whether jax knows the class, so that its objects are values."""
        return isinstance(self.extra, jax.tree_util.PyTreeDef)

    def contents(self) -> list[Any]:
        """What the object refers to, also in tuples."""
        items = self.items or ()
        if isinstance(items, dict):
            items = items.values()
        pending = [*self.attributes.values(), *items]
        contents = []
        while pending:
            value = pending.pop()
            if isinstance(value, tuple):
                pending.extend(value)
            else:
                contents.append(value)
        return contents


def read_state(value: Any) -> State:
    """The state of an object; the containers in it are new, so that they stay as they are."""
    cls = type(value)
    if kind_of(cls) == "registered":
        pairs, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
        labels = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in pairs]
        return State({}, [child for _, child in pairs], structure, labels)
    attributes = attributes_of(value)
    base = container_of(cls)
    if base is None:
        return State(attributes, None, None)
    extra = None
    if base is deque:
        extra = value.maxlen
    elif base is defaultdict:
        extra = value.default_factory
    if issubclass(base, dict):
        # The base's own method: a class may show its items in another way.
        return State(attributes, dict(base.items(value)), extra)
    items = list(base.__iter__(value))
    return State(attributes, items, extra, range(len(items)))


def is_changed(before: State, after: State) -> bool:
    """Whether an object has other attributes or items than before; what these consist of does not matter."""
    if before.extra != after.extra or not _are_same(before.attributes, after.attributes):
        return True
    if isinstance(before.items, dict):
        return not _are_same(before.items, after.items)
    old, new = before.items or [], after.items or []
    if before.is_registered:
        # The function that takes an object of the class apart may pack its parts anew each time.
        old, new = jax.tree_util.tree_leaves(old), jax.tree_util.tree_leaves(new)
    return len(old) != len(new) or not all(map(_is_same, old, new))


def _are_same(before: dict, after: dict) -> bool:
    """Whether two dictionaries have the same values, in the same order."""
    return list(before) == list(after) and all(map(_is_same, before.values(), after.values()))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, int | str | bytes) and one == other


def unflatten(
    structure: Structure, leaves: Sequence[Any], objects: Mapping[int, Any] | None = None
) -> tuple[list[Any], dict[int, Any]]:
    """The roots, and all objects by number.

    Args:
        objects: by number; these get the state that the structure has for them, and others are made.
    """
    builder = _Builder(structure, leaves, objects or {})
    return [builder.resolve(root) for root in structure.roots], builder.objects


class _Builder:
    def __init__(self, structure: Structure, leaves: Sequence[Any], objects: Mapping[int, Any]) -> None:
        self.objects = dict(objects)
        self._leaves = leaves
        self._nodes = dict(structure.nodes)
        for number, node in structure.nodes:
            if number not in self.objects and kind_of(node.cls) != "registered":
                self.objects[number] = _empty(node)
        # All exist before the first is filled, because objects may lead to each other.
        for number, node in structure.nodes:
            if kind_of(node.cls) != "registered":
                self._fill(self.objects[number], node)

    def resolve(self, reference: Any) -> Any:
        """The value that a reference means."""
        if isinstance(reference, int):
            leaf = self._leaves[reference]
            return leaf.array if isinstance(leaf, HostArray) else leaf
        match reference:
            case ("object", number):
                if number not in self.objects:
                    self.objects[number] = self._make_registered(self._nodes[number])
                return self.objects[number]
            case ("method", function, owner):
                return types.MethodType(function, self.resolve(owner))
        _, cls, references = reference
        values = [self.resolve(item) for item in references]
        if hasattr(cls, "_make"):
            return cls._make(values)
        if hasattr(cls, "n_sequence_fields"):  # torch.return_types
            return cls(values)
        return tuple.__new__(cls, values)

    def _make_registered(self, node: Node) -> Any:
        structure: Any = node.extra
        return jax.tree_util.tree_unflatten(structure, map(self.resolve, node.items or ()))

    def _fill(self, instance: Any, node: Node) -> None:
        set_attributes(instance, {name: self.resolve(value) for name, value in node.attributes})
        base = container_of(node.cls)
        if base is None:
            return
        base.clear(instance)
        if issubclass(base, dict):
            for _, key, reference in node.items or ():
                base.__setitem__(instance, key, self.resolve(reference))
            return
        add: Any = set.add if base is set else base.append
        for reference in node.items or ():
            add(instance, self.resolve(reference))


def _empty(node: Node) -> Any:
    """An object of exactly this class without attributes and items. No `__init__` of the user's runs."""
    base = container_of(node.cls)
    instance: Any = (base or native_base(node.cls)).__new__(node.cls)
    extra: Any = node.extra
    if base is deque:
        deque.__init__(instance, (), extra)
    elif base is defaultdict:
        defaultdict.__init__(instance, extra)
    return instance


def is_for_jax(graph: Graph) -> bool:
    """Whether jax can return a graph as a tree: arrays in its own containers and in registered classes."""
    nodes = [node for _, node in graph.structure.nodes]
    in_trees = all(
        node.cls in JAX_CONTAINERS or isinstance(node.extra, jax.tree_util.PyTreeDef) for node in nodes
    )
    return in_trees and all(leaf is None or is_array(leaf) for leaf in graph.leaves)


def is_own_object(value: Any) -> bool:
    """Whether this is an instance of a class of the user's, which is taken apart."""
    return kind_of(type(value)) == "object"


def is_plain(value: Any) -> bool:
    """Whether this is a value without an identity, such as a number."""
    return type(value) in PLAIN
