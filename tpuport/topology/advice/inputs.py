"""What a call is given, by name."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(inputs: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of everything in mappings, lists and tuples, however deep."""
    if isinstance(inputs, Mapping):
        parts: list[tuple[Any, Any]] = list(inputs.items())
    elif isinstance(inputs, list | tuple):
        parts = list(enumerate(inputs))
    else:
        yield name, inputs
        return
    for key, value in parts:
        yield from leaves(value, f"{name}[{key!r}]" if name else str(key))
