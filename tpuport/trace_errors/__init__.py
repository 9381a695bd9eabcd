"""Explains model code that cannot be traced: the user's line, the lint rule about it,
and what to do.

Importing this package is cheap. What explains an error is imported when there is one.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.trace_errors.failure import CannotTrace as CannotTrace
from tpuport.trace_errors.failure import Source as Source
from tpuport.trace_errors.failure import TraceFailure as TraceFailure
from tpuport.trace_errors.failure import first_line as first_line
from tpuport.trace_errors.failure import remedies as remedies

__all__ = [
    "CannotTrace", "Source", "TraceFailure", "asks_for_values", "explain", "explain_refusal", "explained",
    "first_line", "has_model_code", "is_explicable", "is_of_code", "is_trace_error", "remedies",
]  # fmt: skip

# By name, so that asking needs neither jax nor torchax.
_TRACE_ERRORS: Final = frozenset(
    {"JAXTypeError", "JAXIndexError", "OperatorNotFound", "NoCudaError"}
)
# What torch says of `.cuda()` where there is no CUDA, if tpuport is not enabled; its
# classes are anybody's.
_NO_CUDA: Final = re.compile(r"Torch not compiled with CUDA|Found no NVIDIA driver")


def is_trace_error(error: BaseException) -> bool:
    """Whether jax, torchax or torch raised this because code cannot be traced; other
    errors may be anybody's.
    """
    names = {base.__name__ for base in type(error).__mro__}
    return (
        not _TRACE_ERRORS.isdisjoint(names) or _NO_CUDA.search(str(error)) is not None
    )


@contextlib.contextmanager
def explained(
    model: Any,
    *,
    catch: Callable[[Exception], bool] = is_trace_error,
    alternative: str = "",
) -> Iterator[None]:
    """Raise `CannotTrace` in place of an error that tracing raises inside the block.

    Args:
        model: the module that is traced, or a function.
        catch: whether an error is one of tracing; others go through.
        alternative: what the user can do instead of changing the code, the end of a
            sentence.

    Raises:
        CannotTrace: in place of the error.
        KeyboardInterrupt: in place of an error that a library has raised because of
            one, as jax does where an interrupt falls into a comparison of its own.
    """
    try:
        yield
    except CannotTrace as error:
        # Explained already, by a block inside of this one; only the alternative is
        # added.
        raise _with_alternative(error, error.failure, alternative) from error.__cause__
    except Exception as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        if not catch(error):
            raise
        raise _with_alternative(error, explain(error, model), alternative) from error


def _is_interrupt(error: BaseException) -> bool:
    """Whether an error, or one that it was explicitly raised from, is an interrupt."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__
    return False


def _with_alternative(
    error: Exception, failure: TraceFailure, alternative: str
) -> CannotTrace:
    if alternative:
        failure = dataclasses.replace(
            failure, remedy=f"{failure.remedy}; or {alternative}"
        )
    kind = next((kind for kind in _PYTHON_KINDS if isinstance(error, kind)), None)
    return _class_of(kind)(failure)


# Of these, what was raised may be caught by its class as in torch. Derived ones first.
_PYTHON_KINDS: Final = (
    NotImplementedError,
    RuntimeError,
    IndexError,
    TypeError,
    ValueError,
)


@functools.cache
def _class_of(kind: type[Exception] | None) -> type[CannotTrace]:
    """`CannotTrace`, or a class that is also one of Python's."""
    if kind is None:
        return CannotTrace
    return type(
        "CannotTrace",
        (CannotTrace, kind),
        {"__module__": __name__, "__doc__": CannotTrace.__doc__},
    )


def explain(error: BaseException, model: Any) -> TraceFailure:
    """Why a model's code could not be traced or lowered; see `explainer.explain`."""
    if isinstance(error, CannotTrace):
        return error.failure
    from tpuport.trace_errors import explainer

    return explainer.explain(error, model)


def explain_refusal(error: BaseException) -> TraceFailure:
    """What the TPU compiler refused, in a sentence; see `refusals.explain_refusal`."""
    from tpuport.trace_errors import refusals

    return refusals.explain_refusal(error)


def has_model_code(error: BaseException) -> bool:
    """Whether an error that tracing raised came out of the user's code or a model's,
    and so has a line in it.
    """
    from tpuport.trace_errors.libraries import Owner
    from tpuport.trace_errors.tracebacks import path_to

    return any(frame.owner > Owner.LIBRARY for frame in path_to(error).frames)


def is_of_code(error: Exception) -> bool:
    """Whether a line of the model's or the user's explains an error: what jax, torch or
    tpuport refuses there.

    An exception that the code itself raises is the code's answer to its caller, and
    goes through.
    """
    if is_trace_error(error):
        return True
    if not has_model_code(error):
        return False
    from tpuport.trace_errors.tracebacks import path_to

    return isinstance(error, PortError) or path_to(error).is_raised_by_library


def asks_for_values(error: Exception) -> bool:
    """Whether a trace ended where code asks for values that it does not have, or for an
    operator that needs them.
    """
    from tpuport.trace_errors import error_kinds

    return error_kinds.kind_of(error).name in ("value", "mask", "operator")


def is_explicable(error: Exception) -> bool:
    """Whether a line of the model explains an error, or a defect does: any error but
    tpuport's own about its inputs.
    """
    return not isinstance(error, PortError) or has_model_code(error)
