"""The numbers of a call that are arguments of its program: where they are, and what
they are after it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.state_places import Snapshot
from tpuport.objects.traced_numbers import (
    LIMIT,
    Path,
    TracedNumber,
    evaluate,
    number_at,
)

Numbers = dict[Path, int]


class NumbersFixed(Exception):
    """The trace of a program needs some of its numbers for themselves."""

    def __init__(self, paths: frozenset[Path]) -> None:
        super().__init__(f"these numbers are a part of the program: {sorted(paths)}")
        self.paths = paths


class CallNumbers:
    """The numbers of a call that are arguments of its program. Equal for calls that
    differ in their values alone.

    Attributes:
        values: of this call, by path.
    """

    __slots__ = ("paths", "values")

    def __init__(self, values: Mapping[Path, int]) -> None:
        self.paths = tuple(values)
        self.values = values

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __hash__(self) -> int:
        return hash(self.paths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallNumbers) and self.paths == other.paths


def is_number(value: Any) -> bool:
    """Whether a value may be an argument of a program in place of a part of it."""
    return type(value) is int and -LIMIT < value < LIMIT


def counters_of(cache: Any, name: str) -> Iterator[tuple[Any, str, Path]]:
    """The numbers that the layers of a cache keep beside their tensors: the attributes
    of the layer, the name there, and the path.
    """
    for number, layer in enumerate(getattr(cache, "layers", ())):
        for attribute, value in vars(layer).items():
            if is_number(value):
                yield (
                    vars(layer),
                    attribute,
                    ("cache", f"{name}.layers[{number}].{attribute}"),
                )
    for attribute, value in vars(cache).items():
        if is_transformers_cache(value):
            yield from counters_of(value, f"{name}.{attribute}")


@contextlib.contextmanager
def counters_as_numbers(
    cache: Any, name: str, varying: frozenset[Path]
) -> Iterator[Numbers]:
    """Let the varying counters of a cache be places in the key of a program; yields
    their values.
    """
    counters = [place for place in counters_of(cache, name) if place[2] in varying]
    values = {path: owner[attribute] for owner, attribute, path in counters}
    try:
        for owner, attribute, path in counters:
            owner[attribute] = number_at(path)
        yield values
    finally:
        for owner, attribute, path in counters:
            owner[attribute] = values[path]


def place_numbers(state: PythonState, snapshots: Sequence[Snapshot]) -> None:
    """Traced. Put the numbers of a state that are arguments of the program where the
    code finds them.

    Raises:
        NumbersFixed: one is in a place that cannot be written.
    """
    missing = dict(state.numbers)
    for location, container, contents, _ in snapshots if missing else ():
        path = state.path(location.node)
        placed = {}
        for name, value in contents.items():
            item = ("state", container.path_of(path, name))
            if type(value) is int and missing.get(item) == (location.node, value):
                placed[name] = number_at(item)
                del missing[item]
        if placed:
            container.fill(contents | placed)
    if missing:
        raise NumbersFixed(frozenset(missing))


def settle(value: Any, numbers: Mapping[Path, int]) -> Any:
    """The int that a number of a finished trace is in a call; any other value as it
    is.
    """
    if type(value) is TracedNumber:
        return evaluate(value.term, numbers)
    return value
