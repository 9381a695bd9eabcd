"""Parts of mappings, and things by what they have in common; always in their order."""

import collections
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")


def without_nones(mapping: Mapping[Key, Value | None]) -> dict[Key, Value]:
    """The items whose value is not None."""
    return {key: value for key, value in mapping.items() if value is not None}


def only(mapping: Mapping[Key, Value], keys: Container) -> dict[Key, Value]:
    """The items with these keys, as far as they are there."""
    return {key: value for key, value in mapping.items() if key in keys}


def without(mapping: Mapping[Key, Value], keys: Container) -> dict[Key, Value]:
    """The items with other keys."""
    return {key: value for key, value in mapping.items() if key not in keys}


def group_by(
    items: Iterable[Item], key: Callable[[Item], Key]
) -> dict[Key, list[Item]]:
    """The items by their keys."""
    groups: dict[Key, list[Item]] = collections.defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def names_of_each(named: Iterable[tuple[str, Any]]) -> list[list[str]]:
    """The names of each object: an object that has several, such as a tied weight, has
    a list of them all.
    """
    groups = group_by(named, lambda pair: id(pair[1]))
    return [[name for name, _ in group] for group in groups.values()]
