"""Where code can leave values: which containers an object has, and what these are
called in messages.
"""

import dis
import re
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tpuport.base.temporary import garbage_collection_off
from tpuport.internals.torch_internals import DICTIONARY_VERSIONS, dictionary_versions
from tpuport.objects.object_parts import PLAIN, parts_of
from tpuport.objects.part_containers import Attributes, Container, Contents, Globals
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.reachable import is_library, loaded_names, user_globals

# Dictionaries of a module whose values are weights.
WEIGHTS = ("_parameters", "_buffers")
# "seen" of "layers.0.mlp.seen" and of "seen[2]['key']": the name that the code has for
# the location.
_LAST_NAME = re.compile(r"(\w+)(?:\[[^\[\]]*\])*$")


class Location(NamedTuple):
    """Where a container is: the number of an object in a `PythonState`, and the name of
    the container in the object.
    """

    node: int
    part: str


class Snapshot(NamedTuple):
    """A container with the contents that it had at some moment.

    Attributes:
        version: of its dictionary then; None if no version tells of its changes.
    """

    location: Location
    container: Container
    contents: Contents
    version: int | None

    @classmethod
    def of(cls, location: Location, container: Container) -> "Snapshot":
        """A container with its present contents."""
        # The version first: a change by another thread must not be missed.
        version = _version(container)
        return cls(location, container, container.read(), version)

    def is_current(self) -> bool:
        """Whether the same is in the container, without reading what has the same
        version.
        """
        if self.version is not None and self.version == _version(self.container):
            return True
        return self.container.has(self.contents)

    def restore(self) -> None:
        """Give the container back what it had."""
        if not self.is_current():
            self.container.fill(self.contents)


def _version(container: Container) -> int | None:
    dictionary = container.versioned
    if dictionary is None or not DICTIONARY_VERSIONS.works():
        return None
    return dictionary_versions()(dictionary)


def take_snapshots(state: PythonState) -> list[Snapshot]:
    """Every container of a state with its present contents."""
    # A collection takes longer than all snapshots of a large model.
    with garbage_collection_off():
        return [
            Snapshot.of(Location(number, part), container)
            for number, node in enumerate(state.nodes)
            for part, container in containers_of(node).items()
        ]


def containers_of(node: Any) -> dict[str, Container]:
    """The containers of an object in which code can leave values, by their names."""
    containers = {
        name: container
        for name, container in parts_of(node).items()
        if not container.is_fixed
    }
    if is_library(type(node).__module__):
        containers.pop("slots", None)
    match node:
        case torch.nn.Module():
            attributes = vars(node)
            # Only these: any other dictionary among the attributes is an object of the
            # state itself.
            own = {
                name: Attributes(value) for name, value in attributes.items()
                if isinstance(value, dict) and (name in (*WEIGHTS, "_modules") or "_hooks" in name)
            }  # fmt: skip
            return own | containers
        case types.FunctionType():
            names = user_globals(node)
            assigned = sorted(loaded_names(node.__code__).assigned) if names else ()
            if assigned:
                containers["globals"] = Globals(node.__globals__, assigned)
    return containers


def is_same(old: Any, new: Any) -> bool:
    """Whether these are one object, or equal numbers, strings or the like of one
    class.
    """
    # Of one class, since 1 and True are equal.
    return old is new or (
        type(old) is type(new) and isinstance(old, PLAIN) and old == new
    )


def assigning_line(state: PythonState, path: str) -> str:
    """The line that assigns an attribute or a variable, as far as its name tells; the
    path if no code names it.
    """
    match = _LAST_NAME.search(path)
    name = match[1] if match else path
    lines = list(_lines_naming(state, name))
    # What a call assigned has been prepared in the constructor.
    later = [each for each in lines if not each[1].endswith(".__init__")]
    # A list is changed by code that only loads its name.
    stores_first = sorted(later or lines, key=lambda each: not each[0])
    return next((line for _, line in stores_first), path)


def _lines_naming(state: PythonState, name: str) -> Iterator[tuple[bool, str]]:
    """Each line that has a name, and whether it assigns the name."""
    for function in state.functions():
        for instruction in dis.get_instructions(function):
            if instruction.argval == name:
                line = instruction.positions and instruction.positions.lineno
                text = f"{function.__code__.co_filename}, line {line}, in {function.__qualname__}"
                yield instruction.opname.startswith("STORE_"), text
