"""Where a patched function is defined, and every other name that is bound to it."""

import collections
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from tpuport.errors import PortError

# Longer tables are vocabularies and caches; searching them would make enabling slow.
_LONGEST_TABLE = 4096
# Exact types only: a subclass may do something else when an item is set.
_TABLES = (dict, list, collections.OrderedDict, collections.defaultdict)


@dataclasses.dataclass(frozen=True)
class Definition:
    """A function in the namespace that defines it.

    Args:
        holder: the module or class.
        name: the function's name in it.
        raw: the holder's attribute of this name: a function, static or class method, or
            property.
        function: the plain function inside `raw`.
    """

    holder: Any
    name: str
    raw: Any
    function: Callable[..., Any]

    @property
    def slot(self) -> tuple[Any, str]:
        """The attribute that it is. Classes of the same name, as a reload makes them,
        share a place, but no slot.
        """
        return self.holder, self.name

    @property
    def place(self) -> str:
        """Where it stands: "module:qualified.name"."""
        if isinstance(self.holder, type):
            return f"{self.holder.__module__}:{self.holder.__qualname__}.{self.name}"
        return f"{self.holder.__name__}:{self.name}"

    def wrap_like(self, function: Callable[..., Any]) -> Any:
        """Another function, wrapped as the holder's attribute is: as a property, static
        or class method, or plain.
        """
        if isinstance(self.raw, property):
            return property(function, self.raw.fset, self.raw.fdel, self.raw.__doc__)
        if isinstance(self.raw, (staticmethod, classmethod)):
            return type(self.raw)(function)
        return function


def underlying(raw: Any) -> Any:
    """The function in a static or class method, a bound method, or a property."""
    if isinstance(raw, property):
        return raw.fget
    return getattr(raw, "__func__", raw)


def locate(module: ModuleType, qualname: str) -> Definition:
    """The function of this qualified name, as the module defines it now.

    Raises:
        PortError: there is no such name, another module or class defines it, or it is
            not a function.
    """
    where = f"{module.__name__}:{qualname}"
    # First, because the errors below would be about the wrong module.
    _check_home(module, qualname, where)
    holder: Any = module
    *outer, name = qualname.split(".")
    for part in outer:
        holder = vars(holder).get(part)
        if not isinstance(holder, type):
            raise PortError(f"there is no class {part}", where=where)
    if name not in vars(holder):
        inherited = next(
            (base for base in getattr(holder, "__mro__", ()) if name in vars(base)),
            None,
        )
        if inherited is not None:
            home = f"{inherited.__module__}:{inherited.__qualname__}.{name}"
            raise PortError(f"{name} is inherited", where=where, fix=f"name {home}")
        raise PortError(f"there is no {name}", where=where)
    # Not getattr, which would bind a class method and unwrap a static one.
    raw = vars(holder)[name]
    function = underlying(raw)
    if isinstance(raw, type) or not callable(function):
        raise PortError(
            f"{name} is not a function",
            where=where,
            fix="name a function, or a method of the class",
        )
    return Definition(holder, name, raw, function)


def _check_home(module: ModuleType, qualname: str, where: str) -> None:
    """Refuse a name that the module only imports: patching it there would reach
    everyone who has it.
    """
    first = qualname.partition(".")[0]
    value = vars(module).get(first)
    # Some values have `__module__` None.
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if home is not None and home is not module and vars(home).get(first) is value:
        fix = f"name {home.__name__}:{qualname}"
        raise PortError(
            f"{first} is not defined there but in {home.__name__}", where=where, fix=fix
        )


def bind(definition: Definition, value: Any, former: Any) -> None:
    """Bind a definition's name to a value, and its other names in the class and in
    classes that inherit from it.

    Args:
        former: the value that the name is bound to now.
    """
    if not isinstance(definition.holder, type):
        setattr(definition.holder, definition.name, value)
        return
    # Past the metaclass: some classes refuse or redirect assignments to their
    # attributes.
    type.__setattr__(definition.holder, definition.name, value)
    replacements = {id(former): (former, value)}
    # A set, because of diamonds: a class may be reached through two bases.
    for cls in set(_with_subclasses(definition.holder)):
        _rebind_class(cls, replacements)


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for child in type.__subclasses__(cls):
        yield from _with_subclasses(child)


def rebind(modules: Iterable[ModuleType], pairs: Mapping[Any, Any]) -> int:
    """Rebind every name that refers to a key of `pairs` to the key's value, and count
    those names.

    The names are globals of any module; and, in modules that know the target or its
    module, attributes of classes and items of tables (dict, list), including tables
    that are class attributes. What closures, default arguments and `functools.partial`
    refer to is not changed.

    Args:
        modules: the modules of the targets.
        pairs: new values by the value that they replace; compared by identity.
    """
    # The old value stands beside the new one to keep it alive: its id must not be
    # reused.
    replacements = {id(old): (old, _final_replacement(old, pairs)) for old in pairs}
    homes = set(map(id, modules))
    wanted = homes | replacements.keys()
    count = 0
    for module in list(sys.modules.values()):
        # sys.modules may contain anything: None, or lazy modules that import when they
        # are asked.
        namespace = getattr(module, "__dict__", None)
        if not isinstance(namespace, dict):
            continue
        # A copy: another thread may import something into the namespace meanwhile.
        values = list(namespace.values())
        # Of thousands of modules, nearly all know nothing of the targets.
        if id(module) not in homes and wanted.isdisjoint(map(id, values)):
            continue
        value_ids = set(map(id, values))
        has_target = not value_ids.isdisjoint(replacements)
        if has_target:
            count += _rebind_items(namespace, replacements)
        # Classes and tables are searched only where the target is known: searching all
        # would take seconds.
        if has_target or id(module) in homes or not value_ids.isdisjoint(homes):
            count += sum(_rebind_inside(value, replacements) for value in values)
    return count


def _final_replacement(old: Any, pairs: Mapping[Any, Any]) -> Any:
    """The replacement of a value, where that replacement may itself be replaced."""
    new = pairs[old]
    # Bounded, because pairs may form a circle.
    for _ in pairs:
        if new not in pairs:
            break
        new = pairs[new]
    return new


_Replacements = dict[int, tuple[Any, Any]]


def _rebind_inside(value: Any, replacements: _Replacements) -> int:
    if isinstance(value, type):
        return _rebind_class(value, replacements)
    return _rebind_table(value, replacements)


def _rebind_table(value: Any, replacements: _Replacements) -> int:
    if type(value) not in _TABLES or len(value) > _LONGEST_TABLE:
        return 0
    return _rebind_items(value, replacements)


def _rebind_items(container: Any, replacements: _Replacements) -> int:
    items = enumerate(container) if isinstance(container, list) else container.items()
    # Collected first: a dict must not change while it is iterated over.
    changes = {
        key: replacements[id(item)][1]
        for key, item in list(items)
        if id(item) in replacements
    }
    for key, new in changes.items():
        container[key] = new
    return len(changes)


def _rebind_class(cls: type, replacements: _Replacements) -> int:
    count = 0
    for name, value in list(vars(cls).items()):
        inner = (
            value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        )
        if id(value) in replacements:
            type.__setattr__(cls, name, replacements[id(value)][1])
            count += 1
        elif id(inner) in replacements:
            type.__setattr__(cls, name, type(value)(replacements[id(inner)][1]))
            count += 1
        else:
            count += _rebind_table(value, replacements)
    return count
