"""What the user's functions remember (`functools.lru_cache`), emptied where it is of a
trace, or of a run in another dtype or on another device.

Such a function often keeps a table of positions or a mask for each length. A cache
without tensors, and one with a module that is to be made once, is left alone.
"""

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tpuport.objects.object_parts import is_traced, leads_to
from tpuport.objects.state.reachable import is_library

_MOST_DECORATORS = 8


def traced_results_forgotten(
    models: Iterable[torch.nn.Module],
) -> contextlib.AbstractContextManager[None]:
    """Traced. Empty afterwards the caches of the user's functions, and of attributes of
    these models, that have got tensors of the trace.
    """
    return _results_forgotten(models, is_traced)


def tensors_forgotten(
    model: torch.nn.Module,
) -> contextlib.AbstractContextManager[None]:
    """Empty afterwards the caches that have got any tensors."""
    return _results_forgotten([model], lambda tensor: True)


@contextlib.contextmanager
def _results_forgotten(
    models: Iterable[torch.nn.Module], is_sought: Callable[[torch.Tensor], bool]
) -> Iterator[None]:
    caches = [*_caches_in_files(), *_caches_in_models(models)]
    misses = [cache.cache_info().misses for cache in caches]
    try:
        yield
    finally:
        for cache, before in zip(caches, misses, strict=True):
            if cache.cache_info().misses == before:
                continue
            # Its entries are among what the garbage collector visits.
            if leads_to(gc.get_referents(cache), is_sought, enters_modules=False):
                cache.cache_clear()


def _caches_in_files() -> Iterator[functools._lru_cache_wrapper]:
    """The caches of functions, and of methods of classes, in the user's files."""
    for name, module in list(sys.modules.items()):
        if module is None or is_library(name):
            continue
        for value in list(vars(module).values()):
            yield from _caches([value])
            if isinstance(value, type):
                yield from _caches(vars(value).values())


def _caches_in_models(
    models: Iterable[torch.nn.Module],
) -> Iterator[functools._lru_cache_wrapper]:
    for model in models:
        for module in model.modules():
            yield from _caches(vars(module).values())


def _caches(values: Iterable[Any]) -> Iterator[functools._lru_cache_wrapper]:
    """Those among values, also inside of other decorators."""
    for value in values:
        function = value
        if isinstance(value, staticmethod | classmethod):
            function = value.__func__
        for _ in range(_MOST_DECORATORS):
            if isinstance(function, functools._lru_cache_wrapper):
                yield function
            namespace = getattr(function, "__dict__", None)
            if not isinstance(namespace, dict) or "__wrapped__" not in namespace:
                break
            function = namespace["__wrapped__"]
