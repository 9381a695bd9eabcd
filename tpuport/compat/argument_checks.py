"""Errors for the values of arguments, with torch's own words."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


def is_known(*values: Any) -> bool:
    """Whether arguments have values now: none is one that only a program knows."""
    return not any(isinstance(value, Tracer) for value in values)


def require(condition: bool, message: str) -> None:
    """Raise torch's own error for an argument."""
    if not condition:
        raise RuntimeError(message)


def require_values(predicate: Callable[..., Any], *values: Any, message: str) -> None:
    """Raise torch's own error for the values of arrays or numbers; those that only a
    program knows are not checked.

    Args:
        predicate: what must hold, of every element.
    """
    if is_known(*values):
        # Also for numbers in a trace, which jax would make a part of the program.
        with jax.ensure_compile_time_eval():
            require(bool(jnp.all(predicate(*map(jnp.asarray, values)))), message)
