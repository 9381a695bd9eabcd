"""Where code can leave values: which containers an object has, and what these are
called in messages.
"""

import contextvars
import dis
import functools
import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.objects.fields import slots
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.python_values import PLAIN
from tpuport.objects.state.reachable import (
    cell_contents,
    is_library,
    loaded_names,
    user_globals,
)
from tpuport.objects.state.state_containers import (
    Container,
    Contents,
    Dictionary,
    Globals,
    Items,
    Location,
    Slots,
    Variable,
)

# Dictionaries of a module whose values are weights.
WEIGHTS = ("_parameters", "_buffers")
# "seen" of "layers.0.mlp.seen" and of "seen[2]['key']": the name that the code has for
# the location.
_LAST_NAME = re.compile(r"(\w+)(?:\[[^\[\]]*\])*$")


class Snapshot(NamedTuple):
    """A container with the contents that it had at some moment."""

    location: Location
    container: Container
    contents: Contents


def take_snapshots(state: PythonState) -> list[Snapshot]:
    """Every container of a state with its present contents."""
    return [
        Snapshot(Location(number, part), container, container.read())
        for number, node in enumerate(state.nodes)
        for part, container in containers_of(node).items()
    ]


def containers_of(node: Any) -> dict[str, Container]:
    """The dictionaries, lists, sets and variables of an object by their names; "" has
    its attributes.
    """
    match node:
        case torch.nn.Module():
            attributes = vars(node)
            # Only these: any other dictionary among the attributes is an object of the
            # state itself.
            own: dict[str, Container] = {
                name: Dictionary(value) for name, value in attributes.items()
                if isinstance(value, dict) and (name in (*WEIGHTS, "_modules") or "_hooks" in name)
            }  # fmt: skip
            return own | {"": Dictionary(attributes)}
        case types.FunctionType():
            names = user_globals(node)
            assigned = sorted(loaded_names(node.__code__).assigned) if names else ()
            return {"globals": Globals(node.__globals__, assigned)} if assigned else {}
        case types.CellType() | contextvars.ContextVar():
            return {"variable": Variable(node)}
    containers: dict[str, Container] = {}
    match node:
        case dict():
            containers["[]"] = Dictionary(node)
        case list() | set() | deque():
            containers["[]"] = Items(node)
    names = slots(type(node))
    if names and not is_library(type(node).__module__):
        containers["slots"] = Slots(node, names)
    attributes = getattr(node, "__dict__", None)
    # A bound method shows the attributes of its function.
    has_attributes = isinstance(attributes, dict) and not isinstance(
        node, types.MethodType
    )
    return (
        containers | {"": Dictionary(attributes)}  # type: ignore[arg-type]
        if has_attributes
        else containers
    )


def is_same(old: Any, new: Any) -> bool:
    """Whether these are one object, or equal numbers, strings or the like of one
    class.
    """
    # Of one class, since 1 and True are equal.
    return old is new or (
        type(old) is type(new) and isinstance(old, PLAIN) and old == new
    )


def item_path(path: str, part: str, name: Any) -> str:
    """What an item of a container is called in messages: "layers.0.seen"."""
    match part:
        case "[]":
            return f"{path}[{name!r}]"
        case "globals":
            return str(name)
    return f"{path}.{name}" if path else str(name)


def number_path(path: str, part: str, name: Any) -> str:
    """As `item_path`, as the key of a state names the place."""
    return path if part == "variable" else item_path(path, part, name)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a tensor has, or had, its value in a trace alone."""
    return isinstance(compat.as_jax(tensor), Tracer)


def leads_to_traced(value: Any, seen: set[int]) -> bool:
    """Whether a value that was made while tracing is, or contains, a tensor that is
    being traced.
    """
    return leads_to(value, is_traced, seen)


def leads_to(
    value: Any,
    is_sought: Callable[[torch.Tensor], bool],
    seen: set[int],
    *,
    enters_modules: bool = True,
) -> bool:
    """Whether a value is, or contains, a tensor of some kind.

    Args:
        seen: ids of what has been visited, where the walk ends.
        enters_modules: whether what modules contain counts.
    """
    if isinstance(value, (*PLAIN, type, types.ModuleType)) or id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return is_sought(value)
    if isinstance(value, torch.nn.Module) and not enters_modules:
        return False
    parts: list[Any] = []
    match value:
        case dict():
            parts += value.values()
        case list() | tuple() | set() | frozenset() | deque():
            parts += value
        case types.FunctionType():
            parts += map(cell_contents, value.__closure__ or ())
        case types.MethodType():
            parts.append(value.__self__)
        case functools.partial():
            parts += (value.func, *value.args, *value.keywords.values())
    parts += getattr(value, "__dict__", {}).values()
    parts += (getattr(value, name, None) for name in slots(type(value)))
    return any(
        leads_to(part, is_sought, seen, enters_modules=enters_modules) for part in parts
    )


def assigning_line(state: PythonState, path: str) -> str:
    """The line that assigns an attribute or a variable, as far as its name tells; the
    path if no code names it.
    """
    match = _LAST_NAME.search(path)
    name = match[1] if match else path
    lines = list(_lines_naming(state, name))
    stores = [line for is_store, line in lines if is_store]
    # What a call assigned has been prepared in the constructor.
    later_stores = (line for line in stores if not line.endswith(".__init__"))
    # A list is changed by code that only loads its name.
    loads = (line for is_store, line in lines if not is_store)
    return next(later_stores, next(iter(stores), next(loads, path)))


def _lines_naming(state: PythonState, name: str) -> Iterator[tuple[bool, str]]:
    """Each line that has a name, and whether it assigns the name."""
    for function in state.functions():
        for instruction in dis.get_instructions(function):
            if instruction.argval == name:
                line = instruction.positions and instruction.positions.lineno
                text = f"{function.__code__.co_filename}, line {line}, in {function.__qualname__}"
                yield instruction.opname.startswith("STORE_"), text
