"""What a state consists of, watched: whether anything of it has changed since.

References are compared, and not what they refer to. Most of them are in dictionaries,
which are asked for their versions first: 15 microseconds for a language model of 4
layers, where the comparison takes 150.
"""

import copy
import gc
import itertools
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from tpuport.internals.torch_internals import (
    DICTIONARY_VERSIONS,
    dictionary_versions,
    global_forward_hooks,
)
from tpuport.objects.part_containers import (
    ABSENT,
    Container,
    Dictionary,
    Items,
    Variable,
    cell_contents,
    container_of,
)
from tpuport.objects.state import python_values

_namespace_of = operator.attrgetter("__dict__")


class Change(NamedTuple):
    """A place that has another value than before.

    Attributes:
        old, new: the values.
        place: its number among `WatchedValues.values`.
        owner: what was being watched for.
    """

    old: Any
    new: Any
    place: int
    owner: int | None


class WatchedValues:
    """Containers, attributes, variables and tensors, and what was in them.

    Attributes:
        owner: the number of the object for which the next containers are watched.
        settings: torch's own, when the watch began.
        values: all that was referred to when `remember` was called.
        version: another object after each change of a dictionary; after each comparison
            where torch does not tell versions.
    """

    def __init__(self) -> None:
        self.settings = _torch_settings()
        self.owner: int | None = None
        self.values: list[Any] = []
        # Sized: dictionaries and sequences; views: their values; lookups: other ways to
        # values. Beside the last three the owner of each.
        self._sized: list[Any] = []
        # Of what is watched, dictionaries whose versions tell of each change, by id,
        # and the views of anything else.
        self._dictionaries: dict[int, dict] = {}
        self._other_views: list[Iterable[Any]] = []
        self._versions: list[int] | None = None
        self._keys: list[Iterable[Any]] = []
        self._views: list[Iterable[Any]] = []
        self._lookups: list[Callable[[], Iterable[Any]]] = []
        # Of the lookups, variables of closures, and all others.
        self._cells: list[types.CellType] = []
        self._other_lookups: list[Callable[[], Iterable[Any]]] = []
        self._instances: list[Any] = []
        # Of these, the ones with attributes, and the dictionaries of these.
        self._with_namespaces: list[Any] = []
        self._namespaces: list[dict] = []
        self._owners_of_views: list[int | None] = []
        self._owners_of_lookups: list[int | None] = []
        self._owners_of_instances: list[int | None] = []
        self._host_tensors: list[tuple[torch.Tensor, int | None]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []

    def add_container(self, container: Container) -> None:
        """Watch the names and the identities of all that is in a container."""
        match container:
            case _ if container.is_fixed:
                pass
            case Dictionary():
                self.add_dictionary(container.items)
            case Items():
                self._sized.append(container.values)
                self._other_views.append(container.values)
                self._add_view(container.values)
            case Variable(variable=types.CellType() as cell):
                self._cells.append(cell)
                self._add_lookup(lambda: (cell_contents(cell),))
            case _:
                self.add_lookup(lambda: watched_items(container.read()))

    def add_dictionary(self, value: dict) -> None:
        """Watch the keys of a dictionary and the identities of its values."""
        self.add_keys(value)
        if value:
            values = container_of(type(value)).values(value)
            self._add_view(values)
            if isinstance(value, OrderedDict):
                self._other_views.append(values)

    def add_keys(self, value: dict) -> None:
        """Watch the keys of a dictionary, and not its values."""
        self._sized.append(value)
        self._dictionaries[id(value)] = value
        if value:
            keys = container_of(type(value)).keys(value)
            self._keys.append(keys)
            if isinstance(value, OrderedDict):
                # It has its order beside the dictionary, whose version says nothing of
                # it.
                self._other_views.append(keys)

    def add_names(self, names: Mapping[str, Any]) -> None:
        """Watch the values of a namespace, whose names change only along with these."""
        self._sized.append(names)
        # The namespace of a class is a view of a dictionary.
        for part in [names] if isinstance(names, dict) else gc.get_referents(names):
            if isinstance(part, dict):
                self._dictionaries[id(part)] = part
        self._add_view(names.values())

    def _add_view(self, values: Iterable[Any]) -> None:
        self._views.append(values)
        self._owners_of_views.append(self.owner)

    def add_size(self, value: Any) -> None:
        """Watch how many items a container has."""
        self._sized.append(value)

    def add_instance(self, value: Any) -> None:
        """Watch the class of an object, and which dictionary has its attributes."""
        self._instances.append(value)
        self._owners_of_instances.append(self.owner)
        namespace = getattr(value, "__dict__", None)
        if isinstance(namespace, dict):
            self._with_namespaces.append(value)
            self._namespaces.append(namespace)

    def add_lookup(self, read: Callable[[], Iterable[Any]]) -> None:
        """Watch the values that a function gives."""
        self._other_lookups.append(read)
        self._add_lookup(read)

    def add_attributes(self, attributes: dict[str, Any], names: Iterable[str]) -> None:
        """Watch the attributes of an object that have these names, present or not.

        An unchanged version of all its attributes is enough.
        """
        if attributes:
            self._dictionaries[id(attributes)] = attributes
            self._add_lookup(lookup(attributes.get, names))
        else:
            self.add_lookup(lookup(attributes.get, names))

    def _add_lookup(self, read: Callable[[], Iterable[Any]]) -> None:
        self._lookups.append(read)
        self._owners_of_lookups.append(self.owner)

    def add_host_tensor(self, tensor: torch.Tensor) -> int | None:
        """Watch writes to a tensor of the host; its version now."""
        version = python_values.host_version(tensor)
        self._host_tensors.append((tensor, version))
        return version

    def has_array(self, array: Any) -> bool:
        """Whether an array of NumPy is watched."""
        return any(known is array for known, _ in self._arrays)

    def add_array(self, array: np.ndarray) -> None:
        """Watch writes to an array of NumPy, which counts none, so that only a copy
        tells.
        """
        self._arrays.append((array, array.copy()))

    @property
    def has_contents(self) -> bool:
        """Whether the contents of tensors of the host, or of arrays, are watched."""
        return bool(self._host_tensors or self._arrays)

    def changes(self) -> list[Change] | None:
        """The places with other values than when `remember` was called; None if
        anything else has changed.
        """
        if not self._has_same_form():
            return None
        lookups = (lookup() for lookup in self._lookups)
        owned = itertools.chain(
            zip(
                self._owners_of_instances,
                ((type(v),) for v in self._instances),
                strict=True,
            ),
            zip(self._owners_of_views, self._views, strict=True),
            zip(self._owners_of_lookups, lookups, strict=True),
        )
        present = [(owner, value) for owner, values in owned for value in values]
        if len(present) != len(self.values):
            return None
        return [
            Change(old, new, place, owner)
            for place, (old, (owner, new)) in enumerate(
                zip(self.values, present, strict=True)
            )
            if new is not old
        ]

    def with_changes(self, changes: Iterable[Change]) -> "WatchedValues":
        """The same watch, of the values that are there now."""
        watched = copy.copy(self)
        watched.values = list(self.values)
        for change in changes:
            watched.values[change.place] = change.new
        # The next comparison notes them.
        watched._versions = None
        return watched

    def remember(self) -> None:
        """Note what everything is now, for `are_same`."""
        self._versioned = [
            value
            for value, namespace in zip(
                self._with_namespaces, self._namespaces, strict=True
            )
            if id(namespace) in self._dictionaries
        ]
        namespaces = set(map(id, self._namespaces))
        dictionaries = [
            part
            for number, part in self._dictionaries.items()
            if number not in namespaces
        ]
        self._filled = [part for part in dictionaries if part]
        # Before the values: a change by another thread must not be missed.
        versions = self._current_versions()
        self._sizes = list(map(len, self._sized))
        others = [part for part in self._sized if id(part) not in self._dictionaries]
        # Most dictionaries of a module have its hooks, of which there are none.
        self._empty = [part for part in (*others, *dictionaries) if not part]
        self._other_sized = [part for part in others if part]
        self._other_sizes = list(map(len, self._other_sized))
        self._names = list(itertools.chain.from_iterable(self._keys))
        self.values = list(self._observe())
        self._note_versions(versions)

    def are_same(self) -> bool:
        """Whether everything is as it was when `remember` was called."""
        versions = self._current_versions()
        if versions is not None and versions == self._versions:
            return self._are_others_same()
        # The form first: the comparison stops at the shorter of two sequences.
        are_same = self._has_same_form() and all(
            map(operator.is_, self._observe(), self.values)
        )
        if are_same:
            # What was changed has been changed back.
            self._note_versions(versions)
        return are_same

    def _current_versions(self) -> list[int] | None:
        """Of the dictionaries; None where torch does not tell them."""
        if not DICTIONARY_VERSIONS.works():
            return None
        # Of the attributes that each object has now: another dictionary has another
        # version.
        namespaces = map(_namespace_of, self._versioned)
        dictionaries = itertools.chain(namespaces, self._filled)
        return list(map(dictionary_versions(), dictionaries))

    def _note_versions(self, versions: list[int] | None) -> None:
        """Note the versions of dictionaries that are as they were since, and what is
        in no dictionary.
        """
        self._versions = versions
        self.version = object()
        self._classes = list(map(type, self._instances))
        self._others = list(self._observe_others())

    def _are_others_same(self) -> bool:
        """Whether all that is in no dictionary with a version is as it was."""
        return (
            not any(self._empty)
            and list(map(len, self._other_sized)) == self._other_sizes
            and list(map(type, self._instances)) == self._classes
            and self._has_same_contents()
            and all(map(operator.is_, self._observe_others(), self._others))
        )

    def _has_same_form(self) -> bool:
        """Whether everything but the values of places is as it was."""
        namespaces = map(_namespace_of, self._with_namespaces)
        return (
            all(map(operator.is_, namespaces, self._namespaces))
            and list(map(len, self._sized)) == self._sizes
            and list(itertools.chain.from_iterable(self._keys)) == self._names
            and self._has_same_contents()
        )

    def _has_same_contents(self) -> bool:
        """Whether tensors of the host, arrays and torch's settings are as they were."""
        return (
            all(
                python_values.host_version(tensor) == version
                for tensor, version in self._host_tensors
            )
            and all(itertools.starmap(np.array_equal, self._arrays))
            and _torch_settings() == self.settings
        )

    def _observe(self) -> Iterator[Any]:
        return itertools.chain(
            map(type, self._instances),
            itertools.chain.from_iterable(self._views),
            itertools.chain.from_iterable(read() for read in self._lookups),
        )

    def _observe_others(self) -> Iterator[Any]:
        """The values that are in no dictionary with a version."""
        return itertools.chain(
            itertools.chain.from_iterable(filter(None, self._other_views)),
            map(cell_contents, self._cells),
            itertools.chain.from_iterable(read() for read in self._other_lookups),
        )


def lookup(
    get: Callable[[Any, Any], Any], names: Iterable[Any]
) -> Callable[[], Iterable[Any]]:
    """A function for the present values of names."""
    return lambda: map(get, names, itertools.repeat(ABSENT))


def watched_items(items: Mapping[str, Any]) -> Iterable[Any]:
    """What a lookup gives for named values that may come and go."""
    return itertools.chain((len(items),), items, items.values())


def _torch_settings() -> tuple:
    """What modules do by that is in no object of theirs. `Program` knows of dtypes and
    autocast.
    """
    return torch.is_grad_enabled(), *global_forward_hooks()
