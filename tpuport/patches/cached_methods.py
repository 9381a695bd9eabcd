"""Methods of models of libraries that remember their results compute anew in our
traces.

The caches are shared by all models of a class, so that they would give one trace
another's values.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from tpuport.library_classes import is_library_model

# Has `compile_compatible_method_lru_cache`, which asks this whether to look into its
# cache: not while torch.compile traces.
_MODULE = "transformers.pytorch_utils"
_GUARD = "is_torchdynamo_compiling"


@contextlib.contextmanager
def without_caches(models: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Traced. Compute what the methods of these models have in caches."""
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
        for owner in classes:
            for name, method in _uncached_methods(owner).items():
                stack.enter_context(mock.patch.object(owner, name, method))
        yield


@functools.cache
def _uncached_methods(owner: type) -> dict[str, Any]:
    """The methods of a class itself that have an `lru_cache`, without it, by name."""
    return {
        name: method.__wrapped__
        for name, method in vars(owner).items()
        if isinstance(method, functools._lru_cache_wrapper)
    }
