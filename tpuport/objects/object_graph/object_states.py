"""What an object consists of: its attributes and items, read and compared."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import jax

from tpuport.objects.object_graph.classes import kind_of
from tpuport.objects.object_parts import parts_of
from tpuport.objects.part_containers import Contents, container_of


class State(NamedTuple):
    """What an object consists of at the moment.

    Attributes:
        containers: what is in each of its containers, as of `parts_of`; of a class that
            jax knows, what it is made of, by number.
        extra: as `Node.extra`.
        labels: what is made of its parts: their names.
    """

    containers: dict[str, Contents]
    extra: Hashable
    labels: tuple[str, ...] = ()

    @property
    def is_registered(self) -> bool:
        """Whether jax knows the class, so that its objects are values."""
        return isinstance(self.extra, jax.tree_util.PyTreeDef)

    def parts(self) -> list[Any]:
        """All that the object refers to."""
        return [
            part for contents in self.containers.values() for part in contents.values()
        ]

    def contents(self) -> list[Any]:
        """What the object refers to, also in tuples."""
        contents = []
        pending = self.parts()
        while pending:
            value = pending.pop()
            # A tuple is not an object of its own here: what it has belongs to the
            # object that has the tuple.
            if isinstance(value, tuple):
                pending.extend(value)
            else:
                contents.append(value)
        return contents


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
        children = dict(enumerate(child for _, child in pairs))
        return State({"": children}, structure, tuple(labels))
    base = container_of(cls)
    extra = None
    if base is deque:
        extra = value.maxlen
    elif base is defaultdict:
        extra = value.default_factory
    contents = {part: each.read() for part, each in parts_of(value).items()}
    return State(contents, extra)


def is_changed(before: State, after: State) -> bool:
    """Whether an object has other attributes or items than before; what these consist
    of does not matter.
    """
    # Names in another order are seen by a loop over a dictionary.
    if before.extra != after.extra or _names(before) != _names(after):
        return True
    old, new = before.parts(), after.parts()
    if before.is_registered:
        # The function that takes an object of the class apart may pack its parts anew
        # each time.
        old, new = jax.tree_util.tree_leaves(old), jax.tree_util.tree_leaves(new)
    return not _are_same(old, new)


def _names(state: State) -> list[tuple[str, list[Any]]]:
    return [(part, list(contents)) for part, contents in state.containers.items()]


def matching_contents(before: State, after: State) -> Iterator[tuple[Any, Any]]:
    """What an object had, and has, under the same names and in the same items; not what
    is in tuples.
    """
    for part, contents in before.containers.items():
        present = after.containers.get(part, {})
        for name, old in contents.items():
            if name in present:
                yield old, present[name]


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
