"""The containers that code can leave values in, each read and filled in its own way:
dictionaries, lists, sets, slots, variables and globals.

Code may go through any of them, so that they are filled in the order that the code gave
them.
"""

import contextlib
import contextvars
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tpuport.objects.object_graph import container_of
from tpuport.objects.state.reachable import ABSENT, cell_contents

# By name, or by number where items have no names.
Contents = dict[Any, Any]


class Container:
    """Something that has values.

    Attributes:
        has_names: whether each value has a name of its own, so that it can be changed
            alone.
    """

    has_names = False

    def is_object(self, value: Any) -> bool:
        """Whether a value is what this is the container of."""
        return False

    def read(self) -> Contents:
        """What is in the container now."""
        raise NotImplementedError

    def fill(self, contents: Contents) -> None:
        """Replace what is in the container."""
        raise NotImplementedError

    def has(self, contents: Contents) -> bool:
        """Whether these very objects are in the container, in this order."""
        present = self.read()
        # By identity: to compare tensors by value would compute.
        return (
            len(present) == len(contents)
            and all(present.get(name, ABSENT) is contents[name] for name in contents)
            and not late_names(contents, present)
        )


class NamedContainer(Container):
    """One whose values have names. `change` leaves all others alone, so that an
    interrupt never meets a module without its attributes.
    """

    has_names = True

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        """Assign values by name, or remove those that are `ABSENT`; then let the names
        in `late` be the last.
        """
        raise NotImplementedError

    def fill(self, contents: Contents) -> None:
        """Replace what is in the container."""
        present = self.read()
        changes = {name: ABSENT for name in present if name not in contents}
        changes |= {
            name: value
            for name, value in contents.items()
            if present.get(name, ABSENT) is not value
        }
        self.change(changes, late_names(present, contents))


class Dictionary(NamedContainer):
    """The items of a dictionary, or the attributes of an object."""

    def __init__(self, items: dict) -> None:
        self._items = items
        # A derived class may count, check or refuse what is written to it.
        self._class = container_of(type(items))

    def is_object(self, value: Any) -> bool:
        return value is self._items

    def read(self) -> Contents:
        return dict(self._class.items(self._items))

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        for name, value in changes.items():
            if value is ABSENT:
                self._class.pop(self._items, name, None)
            else:
                self._class.__setitem__(self._items, name, value)
        for name in late:
            value = self._class.pop(self._items, name)
            self._class.__setitem__(self._items, name, value)


class Globals(NamedContainer):
    """The globals of a file that a function assigns, which may not be there yet."""

    def __init__(self, names: dict[str, Any], assigned: Sequence[str]) -> None:
        self._names = names
        self._assigned = assigned

    def read(self) -> Contents:
        return {name: self._names.get(name, ABSENT) for name in self._assigned}

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        # Which global is the first shows nowhere.
        Dictionary(self._names).change(changes)


class Slots(NamedContainer):
    """The slots of an object; a slot may be empty."""

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self._owner = owner
        self._names = names

    def read(self) -> Contents:
        return {name: getattr(self._owner, name, ABSENT) for name in self._names}

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        # Not `setattr`: a frozen dataclass refuses its own.
        for name, value in changes.items():
            if value is not ABSENT:
                object.__setattr__(self._owner, name, value)
            else:
                with contextlib.suppress(AttributeError):
                    object.__delattr__(self._owner, name)


class Variable(Container):
    """A variable of a closure, or of a context."""

    def __init__(self, variable: types.CellType | contextvars.ContextVar) -> None:
        self._variable = variable

    def read(self) -> Contents:
        if isinstance(self._variable, types.CellType):
            return {0: cell_contents(self._variable)}
        return {0: self._variable.get(ABSENT)}

    def fill(self, contents: Contents) -> None:
        value = contents[0]
        match self._variable:
            case contextvars.ContextVar():
                # One that has never had a value cannot lose it again.
                self._variable.set(None if value is ABSENT else value)
            case _ if value is ABSENT:
                del self._variable.cell_contents
            case _:
                self._variable.cell_contents = value


class Items(Container):
    """What is in a list, a deque or a set.

    Attributes:
        has_order: whether more items come behind the others.
    """

    def __init__(self, values: list | deque | set) -> None:
        self._values = values
        self._class = container_of(type(values))
        self.has_order = self._class is not set

    def read(self) -> Contents:
        return dict(enumerate(self._class.__iter__(self._values)))

    def fill(self, contents: Contents) -> None:
        self._class.clear(self._values)
        add: Any = set.update if self._class is set else self._class.extend
        add(self._values, contents.values())


class Location(NamedTuple):
    """Where a container is: the number of an object in a `PythonState`, and the name of
    the container in the object.
    """

    node: int
    part: str


def late_names(before: Iterable[Any], after: Iterable[Any]) -> tuple[Any, ...]:
    """The names of a dictionary that were taken out and put in again behind others:
    those that are to be moved to its end, in order, so that all are in the order of
    `after`.
    """
    positions = {name: number for number, name in enumerate(before)}
    names = list(after)
    latest = -1
    for number, name in enumerate(names):
        # A new name has its place behind all others.
        position = positions.get(name, len(positions))
        if position < latest:
            return tuple(names[number:])
        latest = position
    return ()
