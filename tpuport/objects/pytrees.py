"""Caches and outputs of transformers and diffusers as jax pytrees, by field name, and
what torch's operators return with names (`x.topk(3)`).

jax keeps a registration for the life of the process and refuses a second one. So the
libraries' classes are registered when they are defined, a user's class only when one of
our programs first meets it (its author may be about to register it), and a class that
somebody else has registered keeps that registration. Code that registers the libraries'
classes itself must do so before `tpuport.enable()`, or not at all.
"""

import functools
import inspect
import itertools
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import wrapt
from jax import tree_util

from tpuport.internals.torch_internals import return_types
from tpuport.libraries.cache_classes import REGISTERED
from tpuport.objects import fields

logger = logging.getLogger("tpuport")

_LIBRARIES = ("transformers", "diffusers", "tpuport")

_lock = threading.RLock()
_listening = False
_hooked = False
_registered: set[type] = set()
_watched: dict[
    type, Any
] = {}  # bases whose __init_subclass__ we replaced, with the original


def register() -> None:
    """Register every cache, cache layer and output class: those that exist now, and
    others when they are defined.

    Idempotent. Later classes of the libraries are registered upon the import of their
    module, or after the class statement; see `register_used` for a user's own classes.
    """
    global _listening, _hooked
    with _lock:
        _listening = True
        # torch's own list leaves out those whose name begins with an underscore.
        for _, cls in inspect.getmembers(return_types(), inspect.isclass):
            _register_return_type(cls)
        # After `retract` the hooks of modules that are imported have been called, and
        # are not called again.
        for name in REGISTERED:
            if name in sys.modules:
                _register_module(sys.modules[name])
        if not _hooked:
            _hooked = True
            for name in REGISTERED:
                wrapt.register_post_import_hook(_register_module, name)


def retract() -> None:
    """Stop registering new classes. Registered ones stay registered: jax cannot forget
    them.
    """
    global _listening
    with _lock:
        _listening = False
        for base, original in _watched.items():
            if original is None:
                del base.__init_subclass__
            else:
                base.__init_subclass__ = original
        _watched.clear()


def register_used(*values: Any) -> None:
    """Register the classes of these values and of the values inside them, including a
    user's own subclasses.
    """
    for value in _parts(values):
        _register_class(type(value))


def register_known(cls: type) -> None:
    """Register a class if it is, or derives from, a cache or an output of the
    libraries.
    """
    if cls not in _registered and _has_base(cls):
        _register_class(cls)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """As `jax.tree.map`, but dictionaries keep the order of their keys, which jax
    sorts.
    """

    def map_node(node: Any) -> Any:
        if not _is_dict(node):
            return function(node)
        copy = node.copy()
        copy.update((key, map_leaves(function, item)) for key, item in node.items())
        return copy

    return tree_util.tree_map(map_node, tree, is_leaf=_is_dict)


def _is_dict(value: Any) -> bool:
    return type(value) in (dict, defaultdict)


@functools.cache
def _has_base(cls: type) -> bool:
    """Whether a class is or derives from one of the bases. Cached: once a class exists,
    so do its bases.
    """
    return issubclass(cls, tuple(_bases()))


def _bases() -> Iterator[type]:
    """The classes of REGISTERED that have been defined so far."""
    return itertools.chain.from_iterable(map(_bases_of, REGISTERED))


def _bases_of(module: str) -> list[type]:
    """The classes of REGISTERED that a module has defined so far; a release of its
    library may lack some.
    """
    namespace = getattr(sys.modules.get(module), "__dict__", {})
    return [namespace[name] for name in REGISTERED[module] if name in namespace]


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """Every cache, layer and output among the values, in their containers and in each
    other's fields.
    """
    for value in values:
        if _has_base(type(value)):
            yield value
            yield from _parts(vars(value).values())
        if isinstance(value, dict):
            yield from _parts(dict.values(value))
        elif isinstance(value, list | tuple):
            yield from _parts(value)


def _register_module(module: ModuleType) -> None:
    """Register the bases that a module defines and the classes derived from them, and
    watch for more.
    """
    with _lock:
        if not _listening:
            return
        for base in _bases_of(module.__name__):
            _register_family(base)
            _watch(base)


def _register_family(cls: type) -> None:
    if _is_library_class(cls):
        _register_class(cls)
    for derived in cls.__subclasses__():
        _register_family(derived)


def _is_library_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _LIBRARIES


def _register_class(cls: type) -> None:
    with _lock:
        if cls in _registered:
            return
        _registered.add(cls)
        if tree_util.is_tree_node(cls):
            logger.debug(
                "%s.%s keeps its own jax registration", cls.__module__, cls.__qualname__
            )
            return
        unflatten = functools.partial(fields.unflatten, cls)
        tree_util.register_pytree_with_keys(
            cls, _flatten_with_keys, unflatten, fields.flatten
        )


def _register_return_type(cls: type) -> None:
    """Register a tuple with names, whose class makes one of an iterable."""
    if cls in _registered or tree_util.is_tree_node(cls):
        return
    _registered.add(cls)
    tree_util.register_pytree_node(
        cls, lambda value: (tuple(value), None), lambda _, items: cls(items)
    )


class _Field(tree_util.GetAttrKey):
    """An attribute in a path; jax reads `key` to explain how two structures differ."""

    @property
    def key(self) -> str:
        return self.name


def _flatten_with_keys(value: Any) -> tuple[list[tuple[_Field, Any]], fields.Structure]:
    """Children with the names that jax puts in its messages: .layers[0], then .keys."""
    children, structure = fields.flatten(value)
    names = [_Field(label) for label in fields.labels(structure)]
    return list(zip(names, children, strict=True)), structure


def _watch(base: type) -> None:
    """Register the classes that the libraries derive from a base class in the
    future.
    """
    # `register` may be called again.
    if base in _watched:
        return
    original = base.__dict__.get("__init_subclass__")

    def __init_subclass__(cls: type, **kwargs: Any) -> None:  # noqa: N807
        if original is None:
            super(base, cls).__init_subclass__(**kwargs)
        else:
            original.__get__(None, cls)(**kwargs)
        if _is_library_class(cls):
            _register_class(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)  # pyright: ignore[reportAttributeAccessIssue]
    _watched[base] = original
