"""Under which name a model of transformers takes its cache.

transformers renames the argument from one release to another (`past_key_values`, then
`cache`), and its own loop has the name of today in its signature.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from transformers import GenerationMixin
from transformers.generation import utils

_parameters = inspect.signature(
    vars(GenerationMixin)["prepare_inputs_for_generation"]
).parameters
# Of keys and values: today's name first, then that of code for earlier releases.
_KEY_VALUE_NAMES: Final = (
    *(name for name, value in _parameters.items() if "Cache" in str(value.annotation)),
    "past_key_values",
)
# Of states of a recurrence too, in this release or in an earlier one.
CACHE_NAMES: Final = frozenset({*_KEY_VALUE_NAMES, "cache_params"})
_WITH_MODELS_OWN: Final = CACHE_NAMES | set(getattr(utils, "ALL_CACHE_NAMES", ()))


def cache_argument(parameters: Mapping[str, Any]) -> str | None:
    """The name in the signature of a model's `forward` under which it takes a cache of
    keys and values; None if it takes none.
    """
    return next((name for name in _KEY_VALUE_NAMES if name in parameters), None)


def takes_cache(parameters: Mapping[str, Any]) -> bool:
    """Whether a model's `forward` takes a cache of any kind, by its signature."""
    return not _WITH_MODELS_OWN.isdisjoint(parameters)
