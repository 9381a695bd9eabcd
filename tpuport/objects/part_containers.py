"""Containers of the parts of objects, each read and filled in its own way:
dictionaries, lists, slots, variables, classes, globals.

Code may go through any of them, so that they are filled in the order that the code gave
them.
"""

import contextlib
import contextvars
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ABSENT = object()
# By name, or by number where items have no names.
Contents = dict[Any, Any]

# The classes of Python whose items are parts that can change, also of classes derived
# from them. The first that fits counts.
CONTAINERS = (OrderedDict, defaultdict, dict, list, deque, set, bytearray)


class Container:
    """Something that has values.

    Attributes:
        has_names: whether each value has a name of its own, so that it can be changed
            alone.
        is_fixed: whether it has the same values as long as it exists.
    """

    has_names = False
    is_fixed = False

    @property
    def versioned(self) -> dict | None:
        """The dictionary whose version tells of each change of the container; None if
        none does.
        """
        return None

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

    def label(self, name: Any) -> str:
        """What a value is called in messages, behind the path of the object that has
        the container: ".seen".
        """
        return f".{name}"

    def path_of(self, path: str, name: Any) -> str:
        """The path and the label: "layers.0.seen"."""
        label = self.label(name)
        return f"{path}{label}" if path else label.removeprefix(".")


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
    """The items of a dictionary."""

    def __init__(self, items: dict) -> None:
        self.items = items
        # A derived class may count, check or refuse what is written to it.
        self._class = container_of(type(items))

    @property
    def versioned(self) -> dict | None:
        # An ordered one has its order beside the dictionary.
        return None if self._class is OrderedDict else self.items

    def read(self) -> Contents:
        return dict(self._class.items(self.items))

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        for name, value in changes.items():
            if value is ABSENT:
                self._class.pop(self.items, name, None)
            else:
                self._class.__setitem__(self.items, name, value)
        for name in late:
            value = self._class.pop(self.items, name)
            self._class.__setitem__(self.items, name, value)

    def label(self, name: Any) -> str:
        return f"[{name!r}]"


class Attributes(Dictionary):
    """The attributes of an object, but for those in slots; also a dictionary that a
    module shows as its attributes.
    """

    def __init__(self, items: dict, owner: Any = None) -> None:
        super().__init__(items)
        self._owner = owner

    @property
    def is_replaced(self) -> bool:
        """Whether the object has got another dictionary, `value.__dict__ = {}`."""
        return self._owner is not None and self._owner.__dict__ is not self.items

    @property
    def versioned(self) -> dict | None:
        return self._owner.__dict__ if self.is_replaced else self.items

    def read(self) -> Contents:
        return dict(self._owner.__dict__ if self.is_replaced else self.items)

    def has(self, contents: Contents) -> bool:
        return not self.is_replaced and super().has(contents)

    def fill(self, contents: Contents) -> None:
        if self.is_replaced:
            # Whoever has `vars(value)` goes on with that.
            object.__setattr__(self._owner, "__dict__", self.items)
        super().fill(contents)

    label = Container.label


class ClassAttributes(NamedContainer):
    """What a class has names for."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def read(self) -> Contents:
        return dict(vars(self._cls))

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        # Which name is the first shows nowhere.
        for name, value in changes.items():
            if value is ABSENT:
                type.__delattr__(self._cls, name)
            else:
                type.__setattr__(self._cls, name, value)


class Globals(NamedContainer):
    """The globals of a file that a function assigns, which may not be there yet."""

    def __init__(self, names: dict[str, Any], assigned: Sequence[str]) -> None:
        self._names = names
        self._assigned = assigned

    def read(self) -> Contents:
        return {
            name: self._names[name] for name in self._assigned if name in self._names
        }

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        # As of classes.
        Dictionary(self._names).change(changes)

    def path_of(self, path: str, name: Any) -> str:
        return str(name)


class Slots(NamedContainer):
    """The slots of an object; a slot may be empty."""

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self._owner = owner
        self._names = names

    def read(self) -> Contents:
        values = ((name, getattr(self._owner, name, ABSENT)) for name in self._names)
        return {name: value for name, value in values if value is not ABSENT}

    def change(self, changes: Mapping[Any, Any], late: Iterable[Any] = ()) -> None:
        # Not `setattr`: a frozen dataclass refuses its own.
        for name, value in changes.items():
            if value is not ABSENT:
                object.__setattr__(self._owner, name, value)
            else:
                with contextlib.suppress(AttributeError):
                    object.__delattr__(self._owner, name)


class Variable(Container):
    """A variable of a closure, or of a context.

    Attributes:
        variable: that.
    """

    def __init__(self, variable: types.CellType | contextvars.ContextVar) -> None:
        self.variable = variable

    def read(self) -> Contents:
        match self.variable:
            case types.CellType() as cell:
                value = cell_contents(cell)
            case variable:
                value = variable.get(ABSENT)
        return {} if value is ABSENT else {0: value}

    def fill(self, contents: Contents) -> None:
        value = contents.get(0, ABSENT)
        match self.variable:
            case contextvars.ContextVar():
                # One that has never had a value cannot lose it again.
                self.variable.set(None if value is ABSENT else value)
            case _ if value is ABSENT:
                del self.variable.cell_contents
            case _:
                self.variable.cell_contents = value

    def label(self, name: Any) -> str:
        return ""


class Items(Container):
    """What is in a list, a deque, a set or a bytearray.

    Attributes:
        values: that object.
        has_order: whether more items come behind the others.
    """

    def __init__(self, values: Any) -> None:
        self.values = values
        self._class = container_of(type(values))
        self.has_order = self._class is not set

    def read(self) -> Contents:
        # The base's own method: a class may show its items in another way.
        return dict(enumerate(self._class.__iter__(self.values)))

    def fill(self, contents: Contents) -> None:
        self._class.clear(self.values)
        add: Any = set.update if self._class is set else self._class.extend
        add(self.values, contents.values())

    label = Dictionary.label


class Fixed(Container):
    """What an object refers to as long as it exists."""

    is_fixed = True

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def read(self) -> Contents:
        return self._contents


class FixedItems(Fixed):
    """As `Fixed`, of a tuple or a frozenset."""

    label = Dictionary.label


@functools.lru_cache(maxsize=4096)
def container_of(cls: type) -> Any:
    """The class of Python that has the items of this class; None if it has none."""
    return next((base for base in CONTAINERS if issubclass(cls, base)), None)


def cell_contents(cell: types.CellType) -> Any:
    """The value of a variable in a closure, or `ABSENT`."""
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned yet
        return ABSENT


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
