"""Caches and outputs of transformers and diffusers as jax pytrees, flattened by field name.

jax keeps registrations for the life of the process and refuses a second one, so classes of the libraries are registered
when they exist, a class of the user's own when one of our programs first meets it, and a registration that somebody
else made is left as it is.
"""

import copy
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import torch
import wrapt

logger = logging.getLogger("tpuport")

# Base classes by the module that defines them; everything derived from them is meant too.
_BASES = {
    "transformers.cache_utils": ("Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin", "DummyLayer"),
    "transformers.utils.generic": ("ModelOutput",),
    "diffusers.utils.outputs": ("BaseOutput",),
}
_SCALARS = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, np.dtype,
    jax.sharding.Mesh, jax.sharding.Sharding,
)  # fmt: skip
_CONTAINERS = (list, tuple, dict, set, frozenset)

_lock = threading.RLock()
_done: set[type] = set()
_hooked: set[str] = set()


def register() -> None:
    """Register every cache, cache layer and output class of transformers and diffusers that is imported by now.

    Classes that the libraries define later follow by themselves: the modules are watched for their import, the base
    classes for new subclasses. Idempotent; jax offers no way to take a registration back.
    """
    for module, names in _BASES.items():
        with _lock:
            if module in _hooked:
                continue
            _hooked.add(module)
        wrapt.register_post_import_hook(_watcher(names), module)


def register_used(*values: Any) -> None:
    """Register the classes of these values and of what they hold, the user's own subclasses among them."""
    for value in values:
        for kind in {type(part) for part in _parts(value)}:
            if kind not in _done and isinstance(kind, type) and issubclass(kind, _bases()):
                _register(kind)


def _bases() -> tuple[type, ...]:
    """The base classes whose modules are imported."""
    found = ((sys.modules.get(module), name) for module, names in _BASES.items() for name in names)
    return tuple(getattr(module, name) for module, name in found if hasattr(module, name))


def _parts(value: Any) -> Iterator[Any]:
    """A value and everything inside its containers and unregistered caches."""
    yield value
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif isinstance(value, _bases()):
        inner = vars(value).values()
    for part in inner:
        yield from _parts(part)


def _watcher(names: tuple[str, ...]) -> Callable:
    def watch(module: Any) -> None:
        for name in names:
            base = getattr(module, name, None)
            if base is not None:
                _watch(base)
                for kind in _family(base):
                    _register(kind)

    return watch


def _family(base: type) -> Iterator[type]:
    """The class and all its subclasses from the libraries."""
    if _from_library(base):
        yield base
    for kind in base.__subclasses__():
        yield from _family(kind)


def _from_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("transformers", "diffusers", "tpuport")


def _watch(base: type) -> None:
    """Let the base class tell us of subclasses that the libraries define from now on."""
    original = base.__init_subclass__

    def __init_subclass__(cls: type, **kwargs: Any) -> None:  # noqa: N807
        original.__func__(cls, **kwargs) if hasattr(original, "__func__") else original(**kwargs)
        if _from_library(cls):
            _register(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]


def _register(kind: type) -> None:
    with _lock:
        if kind in _done:
            return
        _done.add(kind)
    output = issubclass(kind, OrderedDict)
    flatten, unflatten = (_flatten_output, _unflatten_output) if output else (_flatten_object, _unflatten_object)
    try:
        jax.tree_util.register_pytree_with_keys(
            kind,
            lambda value: _with_keys(flatten(value)),
            lambda aux, children: unflatten(kind, aux, children),
            lambda value: _without_keys(flatten(value)),
        )
    except ValueError:
        logger.debug("%s is a pytree already, by a registration that is left as it is", kind.__qualname__)


class _Static:
    """A value that is part of the tree's structure: hashed and compared by content, handed out as a copy."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = _key(value)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __repr__(self) -> str:
        return repr(self.value)


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        return (dict, tuple((_key(k), _key(v)) for k, v in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value), frozenset(map(_key, value)))
    if isinstance(value, _CONTAINERS):
        return (type(value), tuple(map(_key, value)))
    # 1, 1.0 and True are equal and hash alike, and are not the same program.
    return (type(value), value.to_json_string() if _is_config(value) else value)


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_json_string") and hasattr(value, "model_type")


def _is_static(value: Any) -> bool:
    """By the kind of the value, whatever stands in for tensors: plain values, and containers of nothing else."""
    if isinstance(value, dict):
        return all(map(_is_static, value.values()))
    if isinstance(value, _CONTAINERS):
        return all(map(_is_static, value))
    return isinstance(value, _SCALARS) or _is_config(value)


Flat = tuple[list[tuple[str, Any]], tuple[tuple[str, ...], tuple[tuple[str, _Static], ...]]]


def _split(items: Iterable[tuple[str, Any]]) -> Flat:
    """Children and static part of named values."""
    children, static = [], []
    for name, value in items:
        (static if _is_static(value) else children).append((name, value))
    aux = tuple(name for name, _ in children), tuple((name, _Static(value)) for name, value in static)
    return children, aux


def _with_keys(flat: Flat) -> tuple[list[tuple[Any, Any]], Any]:
    children, aux = flat
    return [(jax.tree_util.GetAttrKey(name), value) for name, value in children], aux


def _without_keys(flat: Flat) -> tuple[list[Any], Any]:
    children, aux = flat
    return [value for _, value in children], aux


def _join(aux: Any, children: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    names, static = aux
    yield from zip(names, children, strict=True)
    for name, value in static:
        plain = isinstance(value.value, _CONTAINERS)
        yield name, copy.deepcopy(value.value) if plain else value.value


def _flatten_object(value: Any) -> Flat:
    # Sorted, because lazily made attributes come in another order and are the same structure.
    return _split(sorted(vars(value).items()))


def _unflatten_object(kind: type, aux: Any, children: Iterable[Any]) -> Any:
    result = object.__new__(kind)
    for name, value in _join(aux, children):
        object.__setattr__(result, name, value)
    return result


def _flatten_output(value: Any) -> Flat:
    """A field that is None is an attribute and no item: by attribute first, then items that are no attribute."""
    attributes = vars(value)
    return _split([*attributes.items(), *((k, v) for k, v in value.items() if k not in attributes)])


def _unflatten_output(kind: type, aux: Any, children: Iterable[Any]) -> Any:
    """Items keep the order of the fields, as in an output that the model made."""
    values = dict(_join(aux, children))
    result = kind.__new__(kind)
    order = [*getattr(kind, "__dataclass_fields__", ()), *values]
    for name in dict.fromkeys(name for name in order if name in values):
        if isinstance(name, str):
            object.__setattr__(result, name, values[name])
        if values[name] is not None:
            OrderedDict.__setitem__(result, name, values[name])
    return result
