"""The values of a function's parameters in a call, and what its annotation promises of
its result.
"""

import ast

from tpuport.lint.abstract_values import (
    UNKNOWN,
    Function,
    Mapping,
    Sequence,
    Static,
    Unknown,
    Value,
)
from tpuport.lint.interpreter.frame import Environment, Interpreter
from tpuport.lint.interpreter.parameters import (
    as_named,
    bound_parameter,
    declared_value,
    generalise,
)
from tpuport.lint.joins import join_all
from tpuport.lint.modules import FunctionInfo
from tpuport.lint.passed_arguments import Arguments


def declared_values(
    interpreter: Interpreter, function: Function, entry: bool
) -> Environment:
    """What the parameters are by the definition alone."""
    info = function.info
    values = bound_parameter(function)
    for parameter in info.named_parameters[len(values) :]:
        values[parameter.arg] = declared_value(interpreter, info, parameter, entry)
    variadic, keywords = info.node.args.vararg, info.node.args.kwarg
    if variadic:
        values[variadic.arg] = Sequence(
            "tuple", None, interpreter.annotation(variadic.annotation, info.module)
        )
    if keywords:
        # `**kwargs: Unpack[Options]` says which ones there may be.
        values[keywords.arg] = Mapping((), UNKNOWN, keywords.annotation is None)
    return values


def bound_values(
    interpreter: Interpreter, function: Function, arguments: Arguments
) -> Environment:
    """What the parameters are in a call with these arguments."""
    info = function.info
    values = bound_parameter(function)
    parameters = info.node.args
    positional = info.positional_parameters[len(values) :]
    names = [parameter.arg for parameter in positional]
    by_name = arguments.keywords | dict(zip(names, arguments.positional, strict=False))
    for parameter in [*positional, *parameters.kwonlyargs]:
        values[parameter.arg] = _argument(
            interpreter, info, parameter, by_name.get(parameter.arg), arguments.is_open
        )
    if parameters.vararg:
        items = tuple(map(generalise, arguments.positional[len(positional) :]))
        known_items = items if arguments.is_counted else None
        values[parameters.vararg.arg] = Sequence("tuple", known_items, join_all(items))
    if parameters.kwarg:
        named = {parameter.arg for parameter in info.named_parameters}
        others = arguments.keywords.items()
        entries = tuple(
            (name, generalise(value)) for name, value in others if name not in named
        )
        values[parameters.kwarg.arg] = Mapping(entries, UNKNOWN, arguments.is_open)
    return values


def _argument(
    interpreter: Interpreter,
    info: FunctionInfo,
    parameter: ast.arg,
    value: Value | None,
    is_open: bool,
) -> Value:
    default = info.defaults.get(parameter.arg)
    if value is None and default is not None and not is_open:
        value = interpreter.module_expression(info.module, default)
    if value is None or value is UNKNOWN:
        return declared_value(interpreter, info, parameter, False)
    if value.origin == "item" and parameter.annotation is not None:
        declared = declared_value(interpreter, info, parameter, False)
        # The function that takes it knows better what it is than the annotation of
        # the dict.
        if isinstance(declared, Static):
            return declared
    return as_named(generalise(value), parameter.arg)


def completed_result(
    interpreter: Interpreter, returned: Value, info: FunctionInfo
) -> Value:
    """What a function returns, with what its annotation promises where the body
    leaves a value unknown.
    """
    match returned:
        case Unknown():
            return promised_result(interpreter, info)
        case Sequence(items=tuple(items)) if UNKNOWN in items:
            promised = promised_result(interpreter, info).items or ()
        case _:
            return returned
    if len(promised) != len(items):
        return returned
    values = [
        promise if item is UNKNOWN else item
        for item, promise in zip(items, promised, strict=True)
    ]
    return Sequence(returned.kind, tuple(values), join_all(values), returned.tensors)


def promised_result(interpreter: Interpreter, info: FunctionInfo) -> Value:
    """What a function's annotation says that it returns."""
    if isinstance(info.node, ast.Lambda):
        return UNKNOWN
    return interpreter.annotation(info.node.returns, info.module)
