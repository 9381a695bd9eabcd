"""Errors about values that code catches while it is traced: it would go on in another
way than in torch, which has the values.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import jax

from tpuport.trace_errors.libraries import Owner, is_installed, owner_of

# Errors of other classes about values are derived from these.
_CLASSES: Final = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class _Thread(threading.local):
    """The errors of the innermost trace of this thread; None outside of traces."""

    errors: list[Exception] | None = None


_thread = _Thread()


class CaughtErrors:
    """A trace in which the user's code cannot catch an error about values: at the end
    of the block, the first one that was caught is raised after all.

    What libraries catch is their own affair: they try what they can do without.
    """

    def __init__(self) -> None:
        self._outer: list[Exception] | None = None

    def __enter__(self) -> None:
        _note_errors()
        self._outer, _thread.errors = _thread.errors, []

    def __exit__(self, kind: Any, *error: Any) -> None:
        errors, _thread.errors = _thread.errors, self._outer
        caught = next(filter(_is_caught_by_user, errors or ()), None)
        if kind is None and caught is not None:
            raise caught


@functools.cache
def _note_errors() -> None:
    """Let the classes note their errors. They do so for good, and only within traces:
    several threads may trace at once.
    """
    for cls in _CLASSES:
        cls.__init__ = _noting(cls.__init__)


def _noting(initialize: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialize)
    def initialize_and_note(error: Exception, *args: Any, **kwargs: Any) -> None:
        initialize(error, *args, **kwargs)
        if _thread.errors is not None:
            _thread.errors.append(error)

    return initialize_and_note


def _is_caught_by_user(error: Exception) -> bool:
    """Whether an error came as far as a function of the user's."""
    # A traceback begins with the function that caught the error.
    trace = error.__traceback__
    if trace is None:
        return False
    file = trace.tb_frame.f_code.co_filename
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    return owner_of(file, module) == Owner.MODEL and not is_installed(file)
