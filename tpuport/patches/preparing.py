"""What a patched model needs decided outside of the trace: functions that change the arguments of its calls."""

from collections.abc import Callable
from typing import Any

Preparation = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]

_preparations: dict[str, list[Preparation]] = {}


def before_tracing(target: str) -> Callable[[Preparation], Preparation]:
    """Let a function see, and change, the arguments of a module's calls before they are traced: (module, args, kwargs).

    It runs on the values of each call, while a patch of the class is in force, and returns args and kwargs. It stands
    in the module that holds the replacement:

        @before_tracing("package.models:Model")
        def without_empty_images(module, args, kwargs):
            ...
            return args, kwargs

    Args:
        target: "module:qualified.name" of the class; it counts for classes that inherit from it as well.
    """

    def decorator(function: Preparation) -> Preparation:
        known = _preparations.setdefault(target, [])
        known[:] = [one for one in known if _name(one) != _name(function)]  # the module was imported anew
        known.append(function)
        return function

    return decorator


def _name(function: Preparation) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def preparations(target: str) -> list[Preparation]:
    """What is registered for a class, in order."""
    return list(_preparations.get(target, ()))
