"""What decorators of the linted code add to a function: the bodies of their
wrappers.
"""

from tpuport.lint.abstract_values import (
    UNKNOWN,
    Function,
    Interpreted,
    Mapping,
    Partial,
    Sequence,
    Value,
    class_of,
)
from tpuport.lint.interpreter.frame import Environment, Frame
from tpuport.lint.modules import FunctionInfo
from tpuport.lint.passed_arguments import Arguments


def interpret_wrappers(
    frame: Frame, info: FunctionInfo, values: Environment, result: Value
) -> Value:
    """What a decorated function returns. Rules hear of what its wrappers do.

    Args:
        frame: in which the function itself has run.
        info: the function.
        values: of its parameters, which its wrappers get.
        result: what it returns without its decorators. That is kept if it is known,
            since a wrapper says less: it works for any function.
    """
    if not info.decorators:
        return result
    # Wrappers work for any function, so a few calls of one show what they do, and those
    # from elsewhere, which know none of these parameters, only need one.
    are_own = not all("." in name for name in info.decorators)
    values_told_apart = values.values() if are_own else ()
    kinds = frozenset((type(value), value.kind) for value in values_told_apart)
    key = (
        info, frame.emitting, class_of(frame.receiver), kinds, type(result), result.kind
    )  # fmt: skip
    wrapped = frame.interpreter.remembered(
        key, lambda: _wrapped_result(frame, info, values, result)
    )
    return wrapped if result is UNKNOWN else result


def _wrapped_result(
    frame: Frame, info: FunctionInfo, values: Environment, result: Value
) -> Value:
    scope = Frame(frame.interpreter, info.module, None, info.closure, frame.depth)
    wrapped = result
    for node in reversed(getattr(info.node, "decorator_list", [])):
        # Most decorators register, describe or mark the function and give it back; and
        # an installed library's wrappers hold branches that this function never takes.
        match scope.evaluate(getattr(node, "func", node)):
            case Function(info=FunctionInfo(calls_parameter=True, module=module)) if (
                module.top_package == info.module.top_package
            ):
                decorator = scope.evaluate(node)
                wrapper = _wrapper(scope, decorator, wrapped)
                wrapped = _call(frame, wrapper, _passed(info, values), wrapped)
    return wrapped


def _wrapper(scope: Frame, decorator: Value, result: Value) -> Value:
    """What a decorator makes of a function that returns `result`."""
    wrapped = Interpreted(result)
    match decorator:
        case Function():
            inner = Arguments([wrapped], {})
            return scope.interpreter.call_function(scope, decorator, inner)
        # `if function is None: return partial(decorate, size=size)`
        case Partial(target=Function() as target, args=args, keywords=keywords):
            inner = Arguments([*args, wrapped], dict(keywords))
            return scope.interpreter.call_function(scope, target, inner)
        case _:
            return UNKNOWN


def _call(frame: Frame, wrapper: Value, arguments: Arguments, result: Value) -> Value:
    """What a wrapper returns; `result` if it is none."""
    match wrapper:
        case Function(info=FunctionInfo(closure=Frame())):
            return frame.interpreter.call_function(frame, wrapper, arguments)
        case _:
            return result


def _passed(info: FunctionInfo, values: Environment) -> Arguments:
    """The arguments of the call that gave a function's parameters these values."""
    parameters = info.node.args
    positional = [values[parameter.arg] for parameter in info.positional_parameters]
    keywords = {
        parameter.arg: values[parameter.arg] for parameter in parameters.kwonlyargs
    }
    match values.get(getattr(parameters.vararg, "arg", "")):
        case Sequence(items=tuple(items)):
            positional += items
    match values.get(getattr(parameters.kwarg, "arg", "")):
        case Mapping(entries=entries):
            keywords |= dict(entries)
    return Arguments(positional, keywords)
