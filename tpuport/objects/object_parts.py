"""What a value of each kind consists of, for all that walk over objects: containers of
named parts (`part_containers.py`).

A walker decides which of them it follows, and what it does with a value that has none.
"""

import contextvars
import functools
import gc
import itertools
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.objects.part_containers import (
    CONTAINERS,
    Attributes,
    ClassAttributes,
    Container,
    Dictionary,
    Fixed,
    FixedItems,
    Items,
    Slots,
    Variable,
)

# Values that cannot change, and that are the same in a program if they are equal and of
# one type.
PLAIN = (
    bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, range, torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip
# What leads to nothing that a trace leaves behind.
_LEAVES = (*PLAIN, type, types.ModuleType, weakref.ReferenceType)


def _parts_of_sequence(value: Any) -> dict[str, Container]:
    base: Any = tuple if isinstance(value, tuple) else frozenset
    return {"[]": FixedItems(dict(enumerate(base.__iter__(value))))}


def _parts_of_function(value: types.FunctionType) -> dict[str, Container]:
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    defaults = {
        "__defaults__": value.__defaults__,
        "__kwdefaults__": value.__kwdefaults__,
    }
    return {"closure": Fixed(dict(cells)), "defaults": Fixed(defaults)}


def _named(names: Sequence[str]) -> Callable[[Any], dict[str, Container]]:
    def read(value: Any) -> dict[str, Container]:
        return {"fields": Fixed({name: getattr(value, name) for name in names})}

    return read


def _parts_of_generator(value: types.GeneratorType) -> dict[str, Container]:
    # One that has finished has no frame.
    frame = value.gi_frame
    return {"fields": Fixed({} if frame is None else dict(frame.f_locals))}


def _referents(value: Any) -> dict[str, Container]:
    # Whatever it is a view of, or goes through.
    return {"fields": Fixed(dict(enumerate(gc.get_referents(value))))}


# Views of dictionaries, and iterators of Python's own.
_VIEWS = (
    *map(type, ({}.keys(), {}.values(), {}.items(), reversed([]), reversed({}))),
    *(type(iter(values)) for values in ([], (), {}, {}.values(), {}.items(), set(), deque())),
    *(map, filter, zip, enumerate, reversed),
    *(value for value in vars(itertools).values() if isinstance(value, type)),
)  # fmt: skip


# What values of each kind have beside attributes. The first class that fits counts.
_KINDS: tuple[tuple[Any, Callable[[Any], dict[str, Container]]], ...] = (
    (dict, lambda value: {"[]": Dictionary(value)}),
    (CONTAINERS, lambda value: {"[]": Items(value)}),
    ((tuple, frozenset), _parts_of_sequence),
    (types.FunctionType, _parts_of_function),
    (types.MethodType, _named(("__self__", "__func__"))),
    (functools.partial, _named(("func", "args", "keywords"))),
    (
        (types.CellType, contextvars.ContextVar),
        lambda value: {"variable": Variable(value)},
    ),
    (types.MappingProxyType, _referents),
    (_VIEWS, _referents),
    (types.GeneratorType, _parts_of_generator),
    (weakref.ReferenceType, lambda value: {"fields": Fixed({"()": value()})}),
)
# What goes through others, and weak references, may lead to anything.
PYTHONS_OWN = tuple(
    kind
    for kind, _ in _KINDS
    if kind not in (types.GeneratorType, weakref.ReferenceType, _VIEWS)
)


@functools.lru_cache(maxsize=4096)
def _kind_of(cls: type) -> Callable[[Any], dict[str, Container]] | None:
    return next((read for kind, read in _KINDS if issubclass(cls, kind)), None)


def parts_of(value: Any) -> dict[str, Container]:
    """The containers of a value by their names: "[]" has the items, "" the attributes,
    "slots" those in slots. A value that refers to nothing has none.
    """
    cls = type(value)
    if isinstance(value, type):
        return {"class": ClassAttributes(value)}
    read = _kind_of(cls)
    parts = {} if read is None else read(value)
    attributes = getattr(value, "__dict__", None)
    # A bound method shows the attributes of its function.
    if isinstance(attributes, dict) and cls is not types.MethodType:
        parts[""] = Attributes(attributes, value)
    names = slots(cls)
    if names:
        parts["slots"] = Slots(value, names)
    return parts


def contents_of(value: Any) -> list[Any]:
    """All parts of a value."""
    return [
        part
        for container in parts_of(value).values()
        for part in container.read().values()
    ]


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a tensor has, or had, its value in a trace alone."""
    return isinstance(compat.as_jax(tensor), Tracer)


def leads_to_traced(value: Any) -> bool:
    """Whether a value that was made while tracing is, or contains, a tensor that is
    being traced.
    """
    return leads_to(value, is_traced)


def leads_to(
    value: Any,
    is_sought: Callable[[torch.Tensor], bool],
    *,
    enters_modules: bool = True,
    without: Collection[int] = (),
) -> bool:
    """Whether a value is, or contains, a tensor of some kind.

    Args:
        enters_modules: whether what modules contain counts.
        without: ids of values whose contents do not count.
    """
    seen: dict[int, Any] = {}
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, _LEAVES) or id(part) in seen or id(part) in without:
            continue
        # With the value, so that no other gets its id.
        seen[id(part)] = part
        if isinstance(part, torch.Tensor):
            if is_sought(part):
                return True
        elif enters_modules or not isinstance(part, torch.nn.Module):
            pending += contents_of(part)
    return False


def has_parts(value: Any) -> bool:
    """Whether a value is of a kind that may refer to others."""
    cls = type(value)
    return (
        issubclass(cls, PYTHONS_OWN)
        or isinstance(getattr(value, "__dict__", None), dict)
        or bool(slots(cls))
    )


@functools.cache
def slots(cls: type) -> tuple[str, ...]:
    """The names of the slots of a class and its bases, as `getattr` takes them."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        declared = base.__dict__.get("__slots__", ())
        if isinstance(declared, str):
            declared = (declared,)
        names |= dict.fromkeys(_mangle(name, base) for name in declared)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _mangle(name: str, cls: type) -> str:
    """The name under which a class has an attribute: `__secret` is private to it."""
    if name.startswith("__") and not name.endswith("__"):
        return f"_{cls.__name__.lstrip('_')}{name}"
    return name
