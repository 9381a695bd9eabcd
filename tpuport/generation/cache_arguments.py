"""Under which name a model of transformers takes its cache.

transformers renames the argument from one release to another (`past_key_values`, then
`cache`), and its own loop has the name of today in its signature.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax.numpy as jnp
from transformers import GenerationMixin
from transformers.generation import utils

from tpuport import compat

_parameters = inspect.signature(
    vars(GenerationMixin)["prepare_inputs_for_generation"]
).parameters
# Of keys and values: today's name first, then that of code for earlier releases.
KEY_VALUE_NAMES: Final = (
    *(name for name, value in _parameters.items() if "Cache" in str(value.annotation)),
    "past_key_values",
)
# Of states of a recurrence too, in this release or in an earlier one.
CACHE_NAMES: Final = frozenset({*KEY_VALUE_NAMES, "cache_params"})
_WITH_MODELS_OWN: Final = CACHE_NAMES | set(getattr(utils, "ALL_CACHE_NAMES", ()))


def cache_argument(parameters: Mapping[str, Any]) -> str | None:
    """The name in the signature of a model's `forward` under which it takes a cache of
    keys and values; None if it takes none.
    """
    return next((name for name in KEY_VALUE_NAMES if name in parameters), None)


def set_cache(output: Any, cache: Any) -> None:
    """Put a cache into an output of transformers."""
    names = {field.name for field in dataclasses.fields(output)}
    setattr(output, next(name for name in KEY_VALUE_NAMES if name in names), cache)


def takes_cache(parameters: Mapping[str, Any]) -> bool:
    """Whether a model's `forward` takes a cache of any kind, by its signature."""
    return not _WITH_MODELS_OWN.isdisjoint(parameters)


def add_written_columns(
    arguments: dict[str, Any],
    parameters: Mapping[str, Any],
    first: Callable[[], Any],
    count: int,
) -> None:
    """Traced. Tell a model the columns of the cache that a call writes, [N].

    The first releases of transformers 5 take them as an argument, and without it make a
    range, whose bounds would be tensors.

    Args:
        arguments: of the call, of jax or of torch; written to.
        parameters: of the model's `forward`.
        first: gives the first of the columns.
        count: N.
    """
    if "cache_position" in parameters:
        columns = compat.as_jax(first()) + jnp.arange(count, dtype=jnp.int32)
        arguments["cache_position"] = compat.as_torch(columns)
