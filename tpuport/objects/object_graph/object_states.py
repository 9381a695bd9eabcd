"""What an object consists of: its attributes and items, read and compared."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from tpuport.objects.object_graph.classes import attributes_of, container_of, kind_of


class State(NamedTuple):
    """What an object consists of at the moment.

    Attributes:
        attributes: what is in its `__dict__` and its slots, by name.
        items: a list, or a dict with the keys of a dictionary; None if its class has no
            items.
        extra: as `Node.extra`.
        labels: the names of items without keys.
    """

    attributes: dict[str, Any]
    items: list[Any] | dict[Any, Any] | None
    extra: Hashable
    labels: Iterable[Any] = ()

    @property
    def is_registered(self) -> bool:
        """Whether jax knows the class, so that its objects are values."""
        return isinstance(self.extra, jax.tree_util.PyTreeDef)

    def contents(self) -> list[Any]:
        """What the object refers to, also in tuples."""
        contents = []
        pending = [*self.attributes.values(), *self.item_values()]
        while pending:
            value = pending.pop()
            # A tuple is not an object of its own here: what it has belongs to the
            # object that has the tuple.
            if isinstance(value, tuple):
                pending.extend(value)
            else:
                contents.append(value)
        return contents

    def item_values(self) -> list[Any]:
        """The items, of a dictionary without their keys."""
        match self.items:
            case None:
                return []
            case dict():
                return list(self.items.values())
        return list(self.items)


def read_state(value: Any) -> State:
    """The state of an object; the containers in it are new, so that they stay as they
    are.
    """
    cls = type(value)
    if kind_of(cls) == "registered":
        # One level only: what is inside of its parts is visited like anything else.
        pairs, structure = jax.tree_util.tree_flatten_with_path(
            value, is_leaf=lambda part: part is not value
        )
        labels = [
            jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in pairs
        ]
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
    # As above, and `list(value)` would use the class's own `__iter__`.
    items = list(base.__iter__(value))
    return State(attributes, items, extra, range(len(items)))


def is_changed(before: State, after: State) -> bool:
    """Whether an object has other attributes or items than before; what these consist
    of does not matter.
    """
    if before.extra != after.extra or list(before.attributes) != list(after.attributes):
        return True
    if not _are_same(list(before.attributes.values()), list(after.attributes.values())):
        return True
    if isinstance(before.items, dict) and list(before.items) != list(after.items or ()):
        # Other keys, or the same in another order, which a loop over the dictionary
        # shows.
        return True
    old, new = before.item_values(), after.item_values()
    if before.is_registered:
        # The function that takes an object of the class apart may pack its parts anew
        # each time.
        old, new = jax.tree_util.tree_leaves(old), jax.tree_util.tree_leaves(new)
    return not _are_same(old, new)


def matching_contents(before: State, after: State) -> Iterator[tuple[Any, Any]]:
    """What an object had, and has, under the same names and in the same items; not what
    is in tuples.
    """
    for name, old in before.attributes.items():
        if name in after.attributes:
            yield old, after.attributes[name]
    if isinstance(before.items, dict) and isinstance(after.items, dict):
        yield from (
            (old, after.items[key])
            for key, old in before.items.items()
            if key in after.items
        )
    elif before.items is not None and after.items is not None:
        yield from zip(before.items, after.items, strict=False)


def _are_same(before: list[Any], after: list[Any]) -> bool:
    """Whether two lists have the same values, in the same order."""
    return len(before) == len(after) and all(map(_is_same, before, after))


def _is_same(before: Any, after: Any) -> bool:
    """Whether two values are one object, or equal and without an identity. Tensors are
    never compared by contents.
    """
    if before is after:
        return True
    # Of one class, since 1 and True are equal.
    return (
        type(before) is type(after)
        and isinstance(before, int | str | bytes)
        and before == after
    )
