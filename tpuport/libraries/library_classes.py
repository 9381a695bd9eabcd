"""Recognise classes of transformers and diffusers by name, without importing either
library.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def is_diffusers_class(cls: type) -> bool:
    """Whether a class, or a base of it, is defined in diffusers."""
    return any(base.__module__.startswith("diffusers.") for base in cls.__mro__)


def is_diffusers_model(value: Any) -> bool:
    """Whether this is a model of diffusers, or of a class derived from one."""
    return _is_instance(value, "ModelMixin", "diffusers")


def is_library_model(value: Any) -> bool:
    """Whether this is a model of transformers or diffusers, or of a class derived from
    one.
    """
    return _is_instance(value, "PreTrainedModel", "transformers") or is_diffusers_model(
        value
    )


def is_of_library(value: Any) -> bool:
    """Whether this is a model of a class of transformers or diffusers itself, whose
    code is not the user's to change.
    """
    is_own = type(value).__module__.startswith(("transformers.", "diffusers."))
    return is_own and is_library_model(value)


def is_pipeline(value: Any) -> bool:
    """Whether this is a pipeline of diffusers."""
    return _is_instance(value, "DiffusionPipeline", "diffusers")


def is_transformers_cache(value: Any) -> bool:
    """Whether this is a cache of transformers, which compiled functions donate."""
    return _is_instance(value, "Cache", "transformers")


def cache_of_output(output: Any, default: Any = None) -> Any:
    """The first cache of transformers among the parts of a model's output.

    Its field has another name in each family of models and release of transformers.
    """
    parts = output.values() if isinstance(output, Mapping) else output
    if not isinstance(output, Mapping | tuple | list):
        return default
    return next(filter(is_transformers_cache, parts), default)


def _is_instance(value: Any, class_name: str, library: str) -> bool:
    # By name, because importing diffusers takes seconds, and whoever has such an object
    # has imported it already.
    return any(
        base.__name__ == class_name and base.__module__.startswith(f"{library}.")
        for base in type(value).__mro__
    )


def positive_attribute(owner: Any, names: Iterable[str]) -> int | None:
    """The first of these attributes that is a positive integer; the libraries have
    several names for many a size.
    """
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
