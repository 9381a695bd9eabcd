"""Where a patched function lives, and every other name that is bound to it."""

import collections
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from tpuport.errors import PortError
from tpuport.patches.digests import underlying

# Longer tables are vocabularies and caches; looking through them would make enabling slow.
_LONGEST_TABLE = 4096
_TABLES = (dict, list, collections.OrderedDict, collections.defaultdict)


@dataclasses.dataclass(frozen=True)
class Place:
    """A function where it is defined.

    Args:
        holder: the module or class.
        name: its name there.
        raw: what the holder has under the name: a function, static or class method, property.
        function: the function in it.
    """

    holder: Any
    name: str
    raw: Any
    function: Callable[..., Any]

    def holding(self, function: Callable[..., Any]) -> Any:
        """Another function, in the form that the holder has this one in."""
        if isinstance(self.raw, property):
            return property(function, self.raw.fset, self.raw.fdel, self.raw.__doc__)
        if isinstance(self.raw, (staticmethod, classmethod)):
            return type(self.raw)(function)
        return function


def locate(module: ModuleType, qualname: str) -> Place:
    """The function of this qualified name, as the module has it now.

    Raises:
        PortError: there is none, it is another module's or class's, or it is no function.
    """
    where = f"{module.__name__}:{qualname}"
    _check_home(module, qualname, where)
    holder: Any = module
    *outer, name = qualname.split(".")
    for part in outer:
        holder = vars(holder).get(part)
        if not isinstance(holder, type):
            raise PortError(f"there is no class {part}", where=where)
    if name not in vars(holder):
        inherited = next((base for base in getattr(holder, "__mro__", ()) if name in vars(base)), None)
        if inherited is not None:
            home = f"{inherited.__module__}:{inherited.__qualname__}.{name}"
            raise PortError(f"{name} is inherited", where=where, fix=f"name {home}")
        raise PortError(f"there is no {name}", where=where)
    raw = vars(holder)[name]
    function = underlying(raw)
    if isinstance(raw, type) or not callable(function):
        raise PortError(
            f"{name} is no function", where=where, fix="name a function, or a method of the class"
        )
    return Place(holder, name, raw, function)


def _check_home(module: ModuleType, qualname: str, where: str) -> None:
    """PortError for what a module has only imported: patching it there would reach all who have it."""
    first = qualname.partition(".")[0]
    value = vars(module).get(first)
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if home is not None and home is not module and vars(home).get(first) is value:
        fix = f"name {home.__name__}:{qualname}"
        raise PortError(f"{first} is not defined there but in {home.__name__}", where=where, fix=fix)


def put(place: Place, value: Any, former: Any = None) -> None:
    """Let a place hold a value, also under other names of its class and in classes that inherit from it.

    Args:
        former: what it holds now; None means `place.raw`.
    """
    if not isinstance(place.holder, type):
        setattr(place.holder, place.name, value)
        return
    former = place.raw if former is None else former
    type.__setattr__(place.holder, place.name, value)
    table = {id(former): (former, value)}
    for cls in set(_family(place.holder)):
        _in_class(cls, table)


def _family(cls: type) -> Iterator[type]:
    yield cls
    for child in type.__subclasses__(cls):
        yield from _family(child)


def rewrite(modules: Iterable[ModuleType], pairs: Mapping[Any, Any]) -> int:
    """Put each second value in place of the first wherever a name is bound to it, and count the names.

    Names are globals of any module; and, in modules that know the target or its module, attributes of classes and
    values of tables (dict, list), also of tables that are attributes of classes. What closures, default arguments and
    `functools.partial` hold stays.

    Args:
        modules: those of the targets.
        pairs: values by the value that they replace; compared by identity.
    """
    table = {id(old): (old, _last(old, pairs)) for old in pairs}
    homes = {id(module) for module in modules}
    count = 0
    for other in list(sys.modules.values()):
        names = getattr(other, "__dict__", None)
        if not isinstance(names, dict):
            continue
        values = list(names.values())
        found = any(id(value) in table for value in values)
        if found:
            count += _replace(names, table)
        if found or id(other) in homes or any(id(value) in homes for value in values):
            count += sum(_inside(value, table) for value in values)
    return count


def _last(old: Any, pairs: Mapping[Any, Any]) -> Any:
    """What replaces a value, where what replaces it may be replaced in turn."""
    new = pairs[old]
    for _ in pairs:
        if new not in pairs:
            break
        new = pairs[new]
    return new


def _inside(value: Any, table: dict[int, tuple[Any, Any]]) -> int:
    if isinstance(value, type):
        return _in_class(value, table)
    return _in_table(value, table)


def _in_table(value: Any, table: dict[int, tuple[Any, Any]]) -> int:
    if type(value) not in _TABLES or len(value) > _LONGEST_TABLE:
        return 0
    return _replace(value, table)


def _replace(container: Any, table: dict[int, tuple[Any, Any]]) -> int:
    items = list(enumerate(container) if isinstance(container, list) else container.items())
    found = [(key, table[id(item)][1]) for key, item in items if id(item) in table]
    for key, new in found:
        container[key] = new
    return len(found)


def _in_class(cls: type, table: dict[int, tuple[Any, Any]]) -> int:
    count = 0
    for name, value in list(vars(cls).items()):
        inner = underlying(value) if isinstance(value, (staticmethod, classmethod)) else value
        if id(value) in table:
            type.__setattr__(cls, name, table[id(value)][1])
            count += 1
        elif id(inner) in table:
            type.__setattr__(cls, name, type(value)(table[id(inner)][1]))
            count += 1
        else:
            count += _in_table(value, table)
    return count
