"""Arguments and results of a compiled function as a graph of objects, whose leaves are
tensors and plain values.

A jax pytree is a tree of values: what is referenced twice comes back as two, and what
is changed in place is lost. Code written for torch relies on both, a cache with
`self.k` above all. So lists, dictionaries and instances of ordinary classes are nodes
with a number here. `flatten` gives each of them one description however often it is
referenced; `unflatten` makes new ones, or writes a changed state back into those that
the caller has.

A reference is the number of a leaf, or a tuple: ("object", number), ("tuple", class,
references), ("method", function, reference to its object), ("partial", references to
its function, arguments and keywords) or ("function", body, references to the cells of
the variables that it has captured).
"""

import functools
import itertools
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.objects.object_graph.classes import (
    JAX_CONTAINERS,
    PLAIN,
    FunctionBody,
    HostArray,
    arrays_inside,
    kind_of,
    refuse_tensors_inside,
)
from tpuport.objects.object_graph.object_states import read_state

Reference = Hashable
# Leaves that a program may call.
_CODE = (type, types.FunctionType, functools.partial)


class Node(NamedTuple):
    """The state of one object.

    Attributes:
        cls: its class.
        containers: (name, names of the parts, references to them) of each of its
            containers, as of `parts_of`.
        extra: what else its class needs: the longest length of a deque, the factory of
            a defaultdict, or jax's structure of a registered class.
    """

    cls: type
    containers: tuple[tuple[str, tuple[Any, ...], tuple[Reference, ...]], ...]
    extra: Hashable

    @property
    def references(self) -> Iterator[Reference]:
        """To all its parts."""
        return itertools.chain.from_iterable(part for *_, part in self.containers)


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
        code: functions, and classes whose methods may be called.
    """

    leaves: list[Any]
    names: list[str]
    objects: dict[int, Any]
    structure: Structure
    code: tuple[Any, ...]


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or an array, of whatever library."""
    return isinstance(value, torch.Tensor | jax.Array) or (
        hasattr(value, "__array__") and not isinstance(value, int)
    )


class Flattener:
    """Visits values, and numbers their objects and leaves.

    Args:
        caches_are_leaves: whether caches of transformers are leaves, or registered
            classes like others.
        whole: ids of objects that are leaves.
        known: objects that have numbers already, and are visited only by `add_known`.
        first: the number of the first object that is not known.

    Attributes:
        leaves: the leaves so far, in the order of their numbers.
        meets_known: whether a known object was referenced that had not been visited.
    """

    def __init__(
        self,
        *,
        caches_are_leaves: bool,
        whole: Container[int] = (),
        known: Mapping[int, Any] | None = None,
        first: int = 0,
    ) -> None:
        self._caches_are_leaves = caches_are_leaves
        self._whole = whole
        self._code: dict[Any, None] = {}
        self._known = known or {}
        self._numbers = {id(value): number for number, value in self._known.items()}
        self._next = first
        self.leaves: list[Any] = []
        self._names: list[str] = []
        self._leaf_numbers: dict[int, int] = {}
        self._objects: dict[int, Any] = {}
        self._nodes: dict[int, Node] = {}
        self._weak: dict[int, weakref.ReferenceType] = {}
        # By the id of the value, with the value, so that no other gets its id.
        self._made: dict[int, tuple[Any, Reference]] = {}
        self._roots: list[Reference] = []
        self.meets_known = False

    def add_root(self, name: str, value: Any) -> None:
        """Visit one more value."""
        self._roots.append(self._visit(value, name))

    def add_known(self, name: str, number: int, value: Any) -> None:
        """Visit an object that has a number already."""
        self._visit_object(value, name, number)

    def forget_leaves(self, values: Iterable[Any]) -> None:
        """Number these leaves again when they are met again."""
        forgotten = {self._leaf_numbers.pop(id(value), None) for value in values}
        self._made = {
            number: (value, reference)
            for number, (value, reference) in self._made.items()
            if forgotten.isdisjoint(references_in([reference]))
        }

    def forget_known(self) -> None:
        """Let known objects be new ones when they are met again."""
        for value in self._known.values():
            del self._numbers[id(value)]

    def recall_known(self) -> dict[int, int]:
        """Let known objects have their numbers again; by the number of each new one,
        that of the known.
        """
        pairs = {number: id(value) for number, value in self._known.items()}
        new = {self._numbers.get(each): number for number, each in pairs.items()}
        self._numbers |= {each: number for number, each in pairs.items()}
        return {new: old for new, old in new.items() if new not in (None, old)}

    def graph(self) -> Graph:
        """All that has been visited."""
        weak = {
            number: self._weak_node(reference)
            for number, reference in self._weak.items()
        }
        nodes = (*self._nodes.items(), *weak.items())
        structure = Structure(tuple(self._roots), nodes)
        code = tuple(self._code)
        return Graph(self.leaves, self._names, self._objects, structure, code)

    def _visit(self, value: Any, name: str) -> Reference:
        cls = type(value)
        if cls in PLAIN:
            return self._new_leaf(value, name)
        number = self._numbers.get(id(value))
        if number is not None:
            # Known objects have numbers from the start, but are among `_objects` only
            # once they are visited.
            self.meets_known |= number not in self._objects
            return ("object", number)
        # Before its kind: a cache that is registered with jax would be a value, which
        # cannot be written to.
        is_cache = self._caches_are_leaves and is_transformers_cache(value)
        if is_cache or id(value) in self._whole:
            self._code[cls] = None
            return self._visit_leaf(value, name)
        return self._visit_kind(value, kind_of(cls), name)

    def _visit_kind(self, value: Any, kind: str, name: str) -> Reference:
        match kind:
            case "tuple":
                return self._visit_once(self._visit_tuple, value, name)
            case "frozenset" if all(type(part) in PLAIN for part in value):
                return self._visit_leaf(value, name)
            case "method":
                # A bound method is made anew at each access: only its object has an
                # identity.
                self._code[value.__func__] = None
                return ("method", value.__func__, self._visit(value.__self__, name))
            case "partial" if not vars(value):
                return self._visit_once(self._visit_partial, value, name)
            case "weak":
                return self._visit_weak(value)
            case "leaf" | "partial":
                return self._visit_single(value, name)
            case "opaque":
                refuse_tensors_inside(value, name)
                return self._visit_leaf(value, name)
            case "library" if not arrays_inside(value):
                return self._visit_leaf(value, name)
        return self._visit_new_object(value, name)

    def _visit_single(self, value: Any, name: str) -> Reference:
        """A value of a class whose objects are leaves, but for some."""
        if type(value) is types.FunctionType and (body := FunctionBody.of(value)):
            self._code[body.without_variables()] = None
            visit = functools.partial(self._visit_function, body)
            return self._visit_once(visit, value, name)
        if isinstance(value, _CODE):
            self._code[value] = None
        return self._visit_leaf(value, name)

    def _visit_weak(self, value: weakref.ReferenceType) -> Reference:
        # What it refers to may be met later, or not at all, which a reference of this
        # kind is no reason for.
        number = self._new_number(value)
        self._objects[number] = self._weak[number] = value
        return ("object", number)

    def _weak_node(self, value: weakref.ReferenceType) -> Node:
        target = value()
        number = self._numbers.get(id(target))
        if number is None:
            known = (n for n, each in self._known.items() if each is target)
            number = next(known, None)
        target = (
            self._visit_leaf(value, "a weak reference")
            if number is None
            else ("object", number)
        )
        return Node(type(value), (("fields", ("()",), (target,)),), None)

    def _visit_once(
        self, visit: Callable[[Any, str], Reference], value: Any, name: str
    ) -> Reference:
        """The one reference to a value that has no number: what is in two places is
        made once.
        """
        if id(value) not in self._made:
            self._made[id(value)] = (value, visit(value, name))
        return self._made[id(value)][1]

    def _visit_tuple(self, value: tuple, name: str) -> Reference:
        # Tuples cannot be changed, so that they are described where they are met,
        # without a number.
        labels = getattr(type(value), "_fields", range(len(value)))
        parts = zip(labels, value, strict=True)
        return (
            "tuple",
            type(value),
            tuple(self._visit(part, f"{name}.{label}") for label, part in parts),
        )

    def _visit_partial(self, value: functools.partial, name: str) -> Reference:
        parts = (value.func, value.args, value.keywords)
        return ("partial", *(self._visit(part, name) for part in parts))

    def _visit_function(
        self, body: FunctionBody, value: types.FunctionType, name: str
    ) -> Reference:
        # Made anew in each call, such as a mask's function of indices, it has no
        # identity that matters; what it has captured is an argument.
        cells = zip(body.code.co_freevars, value.__closure__ or (), strict=True)
        references = (self._visit(cell, f"{name}.{label}") for label, cell in cells)
        return ("function", body, tuple(references))

    def _visit_new_object(self, value: Any, name: str) -> Reference:
        # The number comes before the visit, since an object may lead back to itself.
        number = self._new_number(value)
        self._visit_object(value, name, number)
        return ("object", number)

    def _new_number(self, value: Any) -> int:
        number = self._numbers[id(value)] = self._next
        self._next += 1
        return number

    def _visit_leaf(self, value: Any, name: str) -> int:
        # By identity, so that a tensor that is referenced twice is one argument of the
        # program.
        if id(value) not in self._leaf_numbers:
            self._leaf_numbers[id(value)] = self._new_leaf(value, name)
        return self._leaf_numbers[id(value)]

    def _new_leaf(self, value: Any, name: str) -> int:
        self.leaves.append(value)
        self._names.append(name)
        return len(self.leaves) - 1

    def _visit_object(self, value: Any, name: str, number: int) -> None:
        self._objects[number] = value
        self._code[type(value)] = None
        state = read_state(value)
        is_keyed = isinstance(value, dict) and not state.is_registered
        containers = []
        for part, contents in state.containers.items():
            is_items = part == "[]" or state.is_registered
            visit = self._visit if is_items else self._visit_attribute
            names: tuple[Any, ...] = tuple(contents)
            if is_keyed and is_items:
                # With the class of the key, as 1 and True are equal and would share a
                # program.
                names = tuple((type(key), key) for key in contents)
            labels = state.labels or contents
            references = tuple(
                visit(item, name if part == "variable" else f"{name}.{label}")
                for label, item in zip(labels, contents.values(), strict=True)
            )
            containers.append((part, names, references))
        self._nodes[number] = Node(type(value), tuple(containers), state.extra)

    def _visit_attribute(self, value: Any, name: str) -> Reference:
        """As `_visit`; arrays of NumPy in an object are tables for NumPy's functions,
        and do not become tensors.
        """
        if not isinstance(value, np.ndarray | np.generic):
            return self._visit(value, name)
        if id(value) not in self._leaf_numbers:
            # The leaf's `source` keeps the array alive, so that no other gets its id.
            self._leaf_numbers[id(value)] = self._new_leaf(HostArray(value, name), name)
        return self._leaf_numbers[id(value)]


def count_places(structure: Structure) -> Counter[int]:
    """How often objects refer to each leaf, by its number; not in tuples."""
    places: Counter[int] = Counter()
    for _, node in structure.nodes:
        places.update(
            reference for reference in node.references if isinstance(reference, int)
        )
    return places


def is_for_jax(graph: Graph) -> bool:
    """Whether jax can return a graph as a tree: arrays in its own containers and in
    registered classes, each in one place.
    """
    if not all(leaf is None or is_array(leaf) for leaf in graph.leaves):
        return False
    if max(_count_objects(graph.structure).values(), default=0) > 1:
        return False
    # Classes derived from jax's containers are not nodes for it, and would be leaves.
    others = [
        node for _, node in graph.structure.nodes if node.cls not in JAX_CONTAINERS
    ]
    if not all(isinstance(node.extra, jax.tree_util.PyTreeDef) for node in others):
        return False
    return all(
        _has_sorted_keys(node)
        for _, node in graph.structure.nodes
        if node.cls in (dict, defaultdict)
    )


def _count_objects(structure: Structure) -> Counter[Any]:
    """How often each object, by its number, is referred to."""
    nodes = (node.references for _, node in structure.nodes)
    references = [*structure.roots, *itertools.chain.from_iterable(nodes)]
    return Counter(
        reference
        for reference in references_in(references)
        if isinstance(reference, tuple)
    )


def references_in(references: Iterable[Reference]) -> Iterator[Reference]:
    """The references to leaves and objects among these, and in their parts."""
    pending = list(references)
    while pending:
        match pending.pop():
            case ("tuple" | "function", _, parts):
                pending += parts
            case ("method", _, owner):
                pending.append(owner)
            case ("partial", *parts):
                pending += parts
            case reference:
                yield reference


def _has_sorted_keys(node: Node) -> bool:
    """Whether jax, which sorts the keys of a dictionary, leaves this one in its
    order.
    """
    [(_, names, _)] = node.containers
    keys = [key for _, key in names]
    try:
        return keys == sorted(keys)
    except TypeError:  # jax cannot sort them either
        return False


def is_own_object(value: Any) -> bool:
    """Whether this is an instance of a class of the user's, which is taken apart."""
    return kind_of(type(value)) == "object"


def is_plain(value: Any) -> bool:
    """Whether this is a value without an identity, such as a number."""
    return type(value) in PLAIN
