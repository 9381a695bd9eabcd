"""Parts of a mapping, as new dictionaries in its order."""

from collections.abc import Container, Mapping
from typing import TypeVar

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
