"""The way of a call of torch to the device: what is checked before it runs, what runs,
and what is made of the result.

A function of torch without a lowering is composed of operators, and only these come to
a lowering. The tables below say what happens to a call before that, in order, and of
which functions and operators; `expectations` asks torch about the results.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from tpuport.compat import (
    aliasing,
    autocast,
    deferral,
    differentiation,
    host_sizes,
    narrowing,
    recording,
)
from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Answer, Call, Method
from tpuport.compat.operators import (
    argument_dtypes,
    device_placement,
    expectations,
    index_bounds,
    indexing,
    integer_division,
    lowered_calls,
    masked_selection,
    module_arguments,
    outside,
)
from tpuport.compat.randomness import placement
from tpuport.compat.replacements import original
from tpuport.internals.torch_internals import (
    OpOverload,
    OpOverloadPacket,
    not_compiled,
    without_subclass_functions,
)
from tpuport.internals.torchax_internals import DISPATCH, entry_of, is_debugged


class Before(NamedTuple):
    """What happens to a call before a lowering runs.

    Attributes:
        concerns: of which functions and operators; asked once for each.
        step: may change the call, refuse it, or answer it.
    """

    concerns: Callable[[Any], bool]
    step: Callable[[Call], Answer | None]


def _all(function: Any) -> bool:
    return True


def _functions(function: Any) -> bool:
    return not isinstance(function, OpOverload)


# To what the user has called.
_FIRST: Final = (
    Before(_all, module_arguments.move),
    Before(differentiation.may_have_backward, differentiation.check_operator),
    Before(_all, differentiation.stop_gradients),
    Before(_all, device_placement.compute_on_host),
    Before(device_placement.is_move, device_placement.move),
    Before(device_placement.takes_device, device_placement.follow_device),
    Before(placement.is_sampler, placement.draw_in_program),
    Before(_functions, autocast.cast),
    Before(argument_dtypes.has_rule, argument_dtypes.check),
)
# To each step that views and writes consist of.
_OF_STEPS: Final = (
    Before(_all, masked_selection.answer),
    Before(_functions, host_sizes.as_numbers),
    Before(expectations.multiplies_matrices, expectations.refuse_mixed_dtypes),
)
# To what runs, also if it runs a second time in float32 (`integer_overflow`).
_LAST: Final = (
    Before(index_bounds.has_rule, index_bounds.check),
    Before(integer_division.divides, integer_division.check),
)


# Functions of torch, and the few of others that ask torch's modes.
_REMEMBERED: Final = 4096


class _Steps(NamedTuple):
    """What happens to calls of one function or operator."""

    first: tuple[Callable[[Call], Answer | None], ...]
    of_steps: tuple[Callable[[Call], Answer | None], ...]
    last: tuple[Callable[[Call], Answer | None], ...]


@functools.lru_cache(_REMEMBERED)
def _steps_for(function: Any) -> _Steps:
    return _Steps(
        *(
            tuple(before.step for before in table if before.concerns(function))
            for table in (_FIRST, _OF_STEPS, _LAST)
        )
    )


def dispatch(
    environment: Any, func: Any, types: Any, args: tuple, kwargs: dict | None
) -> Any:
    """torchax's `Environment.dispatch`: a call of a function or an operator."""
    call = Call(environment, func, args, kwargs or {})
    collector = deferral.collector()
    if collector is not None:
        answer = collector.collect(call)
        if answer is not None:
            return answer.value
    for step in _steps_for(func).first:
        answer = step(call)
        if answer is not None:
            return answer.value
    run = functools.partial(_run_step, environment)
    if not isinstance(func, OpOverload):
        return aliasing.dispatch(run, call.function, call.args, call.kwargs)
    with device_placement.inside_operator():
        return aliasing.dispatch(run, func, call.args, call.kwargs)


def _run_step(environment: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    call = Call(environment, func, args, kwargs)
    for step in _steps_for(func).of_steps:
        answer = step(call)
        if answer is not None:
            return answer.value
    return expectations.run_as_torch(_run, call)


def _run(call: Call) -> Any:
    for step in _steps_for(call.function).last:
        step(call)
    return lowered_calls.run(call)


@not_compiled
def _call_operator(
    mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    """torchax's mode of operators."""
    if is_debugged(mode.env):
        call = original("XLADispatchMode", "__torch_dispatch__")
        return call(mode, func, types, args, kwargs)
    if isinstance(func, OpOverload) and func.namespace in outside.NAMESPACES:
        return mode.env.dispatch(func, types, args, kwargs)
    if isinstance(func, OpOverloadPacket):
        with mode:
            return func(*args, **(kwargs or {}))
    return func(*args, **(kwargs or {}))


def _call_function(
    mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    """torchax's mode of functions."""
    kwargs = kwargs or {}
    if is_debugged(mode.env):
        call = original("XLAFunctionMode", "__torch_function__")
        return call(mode, func, types, args, kwargs)
    if _is_composed(mode.env, func):
        return _compose(Call(mode.env, func, args, kwargs))
    if deferral.collector() is not None:
        return _call_collected(Call(mode.env, func, args, kwargs))
    if recording.is_recorded(args, kwargs) and _is_taken_apart(mode.env, func):
        return _record(Call(mode.env, func, args, kwargs))
    return _run_function(Call(mode.env, func, args, kwargs))


def _run_function(call: Call) -> Any:
    """What a function with a lowering gives; without one, torch takes it apart."""
    from torchax.tensor import OperatorNotFound

    with contextlib.suppress(OperatorNotFound):
        return call.environment.dispatch(call.function, (), call.args, call.kwargs)
    return call.function(*call.args, **call.kwargs)


def _is_composed(environment: Any, function: Any) -> bool:
    """Whether a function is nothing but the operators that it consists of."""
    return (
        _may_be_composed(function)
        and entry_of(environment, function) is None
        and not outside.takes_host_tensors()
        and not torch.is_inference_mode_enabled()
        and not autocast.state()
    )


@functools.lru_cache(_REMEMBERED)
def _may_be_composed(function: Any) -> bool:
    tables = itertools.chain(_FIRST, _OF_STEPS, _LAST)
    is_concerned = any(
        before.concerns(function)
        for before in tables
        if before.concerns not in (_all, _functions)
    )
    is_operator = isinstance(function, OpOverload | OpOverloadPacket)
    return not (
        is_operator
        or is_concerned
        or function in narrowing.WITH_WIDE_STEPS
        or lowered_calls.is_of_torchax(function)
    )


def _compose(call: Call) -> Any:
    answer = masked_selection.answer(call)
    if answer is not None:
        return answer.value
    host_sizes.as_numbers(call)
    wide = expectations.wide_dtype(call.function, call.args, call.kwargs)
    with without_subclass_functions():
        outputs = call.function(*call.args, **call.kwargs)
    if wide is not None and is_ported(outputs):
        narrowing.warn(wide)
    return outputs


def _call_collected(call: Call) -> Any:
    """A function whose operators are collected as far as it has any."""
    if _may_be_composed(call.function):
        return _compose(call)
    with deferral.deferring(None):
        return _run_function(call)


def _is_taken_apart(environment: Any, function: Any) -> bool:
    """Whether autograd records a function by the operators that it consists of."""
    return not (
        isinstance(function, OpOverload | OpOverloadPacket)
        or recording.is_one_node(entry_of(environment, function))
    )


def _record(call: Call) -> Any:
    """A function whose gradient autograd records: by its operators, or, if one of these
    has no lowering but the function has, as a whole.
    """
    from torchax.tensor import OperatorNotFound

    args, kwargs = call.args, call.kwargs
    try:
        return _compose_recorded(call)
    except OperatorNotFound:
        if entry_of(call.environment, call.function) is None:
            raise
    dispatch = functools.partial(call.environment.dispatch, call.function, ())
    return recording.as_one_node(lambda *args, **kwargs: dispatch(args, kwargs))(
        *args, **kwargs
    )


def _compose_recorded(call: Call) -> Any:
    for step in (*_steps_for(call.function).first, indexing.prepare_key):
        answer = step(call)
        if answer is not None:
            return answer.value
    return _compose(call)


LOWERINGS = ()
METHODS = (
    Method(
        "XLAFunctionMode",
        "__torch_function__",
        _call_function,
        "looks for a lowering of each function twice",
        DISPATCH,
    ),
    Method(
        "XLADispatchMode",
        "__torch_dispatch__",
        _call_operator,
        "writes a line for each operator that nobody reads",
        DISPATCH,
    ),
    Method(
        "Environment",
        "dispatch",
        dispatch,
        "writes through most views do not reach what they view; promotes and broadcasts where torch refuses",
    ),
)
