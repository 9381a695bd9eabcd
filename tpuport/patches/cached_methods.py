"""Methods of models of libraries that remember their results, and functions beside
them, compute anew in our traces.

The caches are shared by all models of a class, so that they would give one trace
another's values.
"""

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from tpuport.libraries.library_classes import is_library_model

# Has `compile_compatible_method_lru_cache`, which asks this whether to look into its
# cache: not while torch.compile traces.
_MODULE = "transformers.pytorch_utils"
_GUARD = "is_torchdynamo_compiling"
# In the names of packages that have models.
_MODELS = ".models."


@contextlib.contextmanager
def without_caches(models: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Traced. Compute what the methods of these models, and functions in the packages
    of their classes, have in caches.
    """
    classes = {
        base
        for model in filter(is_library_model, models)
        for module in model.modules()
        for base in type(module).__mro__
    }
    with contextlib.ExitStack() as stack:
        module = sys.modules.get(_MODULE)
        if module is not None:
            stack.enter_context(mock.patch.object(module, _GUARD, return_value=True))
        for owner in (*classes, *_modules_beside(classes)):
            for name, function in _uncached(owner).items():
                stack.enter_context(mock.patch.object(owner, name, function))
        yield


def _modules_beside(classes: Iterable[type]) -> list[ModuleType]:
    """The modules in the packages of models' classes."""
    packages = {cls.__module__.rpartition(".")[0] + "." for cls in classes}
    # Not those of a whole library, whose functions remember what is installed.
    packages = tuple(package for package in packages if _MODELS in package)
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(packages)
    ]


@functools.cache
def _uncached(owner: type | ModuleType) -> dict[str, Any]:
    """What a class or a module itself has that has an `lru_cache`, without it, by
    name.
    """
    return {
        name: function.__wrapped__
        for name, function in vars(owner).items()
        if isinstance(function, functools._lru_cache_wrapper)
    }
