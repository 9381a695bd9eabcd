"""Calls: of functions and classes of the linted code, of library functions, of
methods.
"""

import ast
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    BOOL_TENSOR,
    CONFIG,
    FALSE,
    NONE,
    STATIC,
    TRUE,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    Interpreted,
    Layer,
    Mapping,
    Method,
    Namespace,
    Partial,
    Sequence,
    Static,
    Value,
    options_of,
    tensor,
)
from tpuport.lint.events import Call
from tpuport.lint.gpu_packages import asks_for_gpu_package, is_gpu_package
from tpuport.lint.interpreter import library, standard_library
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.instantiation import instantiate
from tpuport.lint.interpreter.masked_reads import reads_in
from tpuport.lint.interpreter.members import super_attribute
from tpuport.lint.interpreter.object_state import store, store_after_call
from tpuport.lint.interpreter.placement import gets_tensor
from tpuport.lint.interpreter.python_builtins import call_builtin
from tpuport.lint.interpreter.value_methods import (
    call_instance,
    call_method,
    call_unknown,
)
from tpuport.lint.joins import (
    join_all,
)
from tpuport.lint.passed_arguments import Arguments

# transformers asks these whether a tensor is a tracer, among others one of jax.jit
# through torchax.
_TRUE_WHEN_TRACED: Final = frozenset({"is_tracing", "is_jax_jitting"})
# Library functions that call their first argument with the others.
_CALL_FIRST: Final = frozenset(
    {"torch.utils.checkpoint.checkpoint", "torch.func.functional_call", "torch.cond"}
)
# Library functions that return their first argument, or a function that does the same.
_WRAP_FIRST: Final = frozenset(
    "torch.compile torch.vmap torch.func.vmap functools.wraps functools.lru_cache functools.cache torch.jit.script"
    " torch.no_grad torch.compiler.disable torch._dynamo.disable".split()
)
_CHECKPOINT_OPTIONS: Final = frozenset({"use_reentrant", "context_fn"})
# Functions and methods of torch that take a mask, without a last "_".
_MASKED: Final = frozenset({"masked_fill", "masked_scatter", "masked_select"})


def evaluate_call(frame: Frame, node: ast.Call) -> Value:
    """What a call expression returns."""
    match node.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
            callee = super_attribute(frame, name)
        case function:
            callee = frame.evaluate(function)
    arguments = _evaluate_arguments(frame, node)
    # Unknown arguments that are passed on as a whole say less than the callee's own
    # declaration.
    if _passes_everything_on(frame, node):
        functions = _functions(frame, callee)
        if functions:
            results = [
                frame.interpreter.call_declared(frame, item, frame.entry)
                for item in functions
            ]
            return join_all(results)
    frame.interpreter.changed_receiver = None
    result = apply(frame, callee, arguments, node)
    store_after_call(frame, node.func, callee)
    _recognize_mask(frame, node, callee)
    return result


def _recognize_mask(frame: Frame, node: ast.Call, callee: Value) -> None:
    """After `torch.masked_select(x, mask)` or `x.masked_fill(mask, 0)`, a name of which
    nothing was known has booleans: torch takes nothing else there.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=arguments) if (
            name.rstrip("_") in _MASKED
        ):
            for mask in arguments[isinstance(callee, External) :][:1]:
                if isinstance(mask, ast.Name) and frame.lookup(mask.id) is UNKNOWN:
                    store(frame, mask, BOOL_TENSOR)


def _passes_everything_on(frame: Frame, node: ast.Call) -> bool:
    """Whether it is `f(*args, **kwargs)` of arguments that are not known."""
    match node:
        case ast.Call(
            args=[ast.Starred(value=ast.Name(id=args))],
            keywords=[ast.keyword(arg=None, value=ast.Name(id=kwargs))],
        ):
            match frame.lookup(args), frame.lookup(kwargs):
                case Sequence(items=None), Mapping(entries=()):
                    return True
    return False


def _functions(frame: Frame, callee: Value) -> list[Function]:
    """The functions of the linted code that a call would run; none if that is not
    certain.
    """
    classes = frame.interpreter.classes
    functions: list[Function] = []
    for option in options_of(callee):
        if isinstance(option, Instance) and classes.is_module(option.info):
            forward = classes.method(option.info, "forward")
            if forward is not None:
                option = Function(forward, option)
        if not isinstance(option, Function):
            return []
        functions.append(option)
    return functions


def _evaluate_arguments(frame: Frame, node: ast.Call) -> Arguments:
    """The values of a call's arguments. Stars are spread if their parts are known."""
    positional, is_counted = evaluate_starred(frame, node.args)
    keywords: dict[str, Value] = {}
    is_open = False
    for keyword in node.keywords:
        match keyword.arg, frame.evaluate(keyword.value):
            case str(name), value:
                keywords[name] = value
            # Entries of `**mapping` whose keys are not known could be any argument.
            case None, Mapping(entries=entries) as mapping:
                is_open |= mapping.is_open
                keywords.update(
                    (key, entry) for key, entry in entries if isinstance(key, str)
                )
    return Arguments(positional, keywords, is_counted, is_open)


def evaluate_starred(frame: Frame, nodes: list[ast.expr]) -> tuple[list[Value], bool]:
    """Values of expressions, some of them starred, and whether their number is certain.

    An iterable of unknown length contributes one element.
    """
    values: list[Value] = []
    is_certain = True
    for node in nodes:
        if not isinstance(node, ast.Starred):
            values.append(frame.evaluate(node))
            continue
        iterable = frame.evaluate(node.value)
        if iterable.items is not None:
            values.extend(iterable.items)
        else:
            values.append(frame.element_of(iterable))
            is_certain = False
    return values, is_certain


def apply(frame: Frame, callee: Value, arguments: Arguments, node: ast.Call) -> Value:
    """What calling a value returns. Rules hear of library calls."""
    handler = _HANDLERS.get(type(callee), _call_unknown)
    return handler(frame, callee, arguments, node)


def _call_unknown(
    frame: Frame, callee: Value, arguments: Arguments, node: ast.Call
) -> Value:
    return call_unknown(frame, arguments)


def _call_function(
    frame: Frame, callee: Function, arguments: Arguments, node: ast.Call
) -> Value:
    name = callee.info.qualname
    if asks_for_gpu_package(callee.info.name):
        return FALSE
    if name in _TRUE_WHEN_TRACED and arguments.positional and arguments.first != NONE:
        return TRUE
    # A table of attention functions by name, whose default shows what any of them does.
    if name.endswith("get_interface") and arguments.first_function is not None:
        return arguments.first_function
    return frame.interpreter.call_function(frame, callee, arguments)


def _call_class(
    frame: Frame, callee: Class, arguments: Arguments, node: ast.Call
) -> Value:
    # What an object holds, others may ask for.
    for read in reads_in([*arguments.positional, *arguments.keywords.values()]):
        frame.interpreter.report_read(read)
    return instantiate(frame, callee.info, arguments)


def _call_instance(
    frame: Frame, callee: Instance, arguments: Arguments, node: ast.Call
) -> Value:
    return call_instance(frame, callee, arguments)


def _call_method(
    frame: Frame, callee: Method, arguments: Arguments, node: ast.Call
) -> Value:
    result = call_method(frame, node, callee, arguments)
    return _reported(frame, node, callee.name, callee.receiver, arguments, result)


def _reported(
    frame: Frame,
    node: ast.Call,
    name: str,
    receiver: Value | None,
    arguments: Arguments,
    result: Value,
    *,
    is_missing: bool = False,
) -> Value:
    """What a call returns, of which the rules hear; `is_missing` if its package is."""
    positional, keywords = arguments.positional, arguments.keywords
    event = Call(node, name, receiver, positional, keywords, result, frame.is_certain)
    if is_missing:
        frame.report_package(event)
        return result
    coordinates = frame.report(event)
    if coordinates is None:
        return result
    return Sequence("tuple", None, tensor("int", masked_read=coordinates))


def _call_partial(
    frame: Frame, callee: Partial, arguments: Arguments, node: ast.Call
) -> Value:
    positional = [*callee.args, *arguments.positional]
    keywords = dict(callee.keywords) | arguments.keywords
    return apply(
        frame,
        callee.target,
        Arguments(positional, keywords, arguments.is_counted),
        node,
    )


def _call_layer(
    frame: Frame, callee: Layer, arguments: Arguments, node: ast.Call
) -> Value:
    result = library.layer_call(callee.name, arguments)
    return _reported(frame, node, "forward", callee, arguments, result)


def _call_interpreted(
    frame: Frame, callee: Interpreted, arguments: Arguments, node: ast.Call
) -> Value:
    return callee.result


def _call_choice(
    frame: Frame, callee: Choice, arguments: Arguments, node: ast.Call
) -> Value:
    possible = [option for option in callee.options if _accepts(frame, option, node)]
    return join_all(
        apply(frame, option, arguments, node) for option in possible or callee.options
    )


def _accepts(frame: Frame, callee: Value, node: ast.Call) -> bool:
    """Whether Python would make this call of a callee: not with too many arguments, or
    of names that it does not have.

    A model with two kinds of attention, for instance, calls each with the arguments of
    its own.
    """
    functions = _functions(frame, callee)
    if len(functions) != 1:
        return True
    function = functions[0]
    parameters = function.info.node.args
    is_bound = function.bound is not None
    most = len(function.info.positional_parameters) - is_bound
    fewest = sum(not isinstance(argument, ast.Starred) for argument in node.args)
    if fewest > most and parameters.vararg is None:
        return False
    # A decorator may take other names, such as a deprecated one, but hardly ever more
    # arguments.
    if function.info.decorators:
        return True
    known = {parameter.arg for parameter in function.info.named_parameters}
    names = {keyword.arg for keyword in node.keywords if keyword.arg}
    return names <= known or parameters.kwarg is not None


def _call_static(
    frame: Frame, callee: Static, arguments: Arguments, node: ast.Call
) -> Value:
    name = frame.module.dotted(node.func)
    # `flash_attn_func = None` in place of an import that has failed: the rules know the
    # import's name.
    if callee == NONE and is_gpu_package(name):
        return _reported(frame, node, name, None, arguments, UNKNOWN)
    # `torch.enable_grad()(closure)`
    if callee == STATIC and arguments.first_function is not None:
        return arguments.first_function
    # A model that was made from a configuration, rather than that itself.
    return UNKNOWN if callee == CONFIG and gets_tensor(arguments) else callee


def _call_sequence(
    frame: Frame, callee: Sequence, arguments: Arguments, node: ast.Call
) -> Value:
    """`nn.Sequential` calls its layers one after another."""
    if callee.kind != "sequential":
        return call_unknown(frame, arguments)
    value = arguments.first
    if callee.items is None:
        # Layers of which only the common class is known: the first shows what all do.
        if callee.element is UNKNOWN:
            return UNKNOWN
        return apply(frame, callee.element, Arguments(arguments.positional, {}), node)
    for layer in callee.items:
        value = apply(frame, layer, Arguments([value], {}), node)
    return value


# --- library functions ---


def _call_external(
    frame: Frame, callee: External, arguments: Arguments, node: ast.Call
) -> Value:
    name = callee.name
    # `torch.Tensor.view(x, ...)` is `x.view(...)`, for the rules too.
    if name.startswith("torch.Tensor.") and arguments.positional:
        method = Method(arguments.first, name.rpartition(".")[2])
        return apply(frame, method, arguments.without_first(), node)
    result = _external_result(frame, name, arguments, node)
    return _reported(
        frame, node, name, None, arguments, result, is_missing=callee.missing
    )


def _external_result(
    frame: Frame, name: str, arguments: Arguments, node: ast.Call
) -> Value:
    if asks_for_gpu_package(name.rpartition(".")[2]):
        return FALSE
    if name == "importlib.util.find_spec" and is_gpu_package(
        str(arguments.first.constant)
    ):
        return NONE
    if name == "types.SimpleNamespace":
        return Namespace(tuple(arguments.keywords.items()))
    if name == "collections.OrderedDict":
        name = "builtins.dict"
    if name.startswith("builtins."):
        return call_builtin(frame, name.removeprefix("builtins."), arguments, node)
    if name in standard_library.HANDLERS:
        return standard_library.HANDLERS[name](frame, arguments, node)
    return _library_result(frame, name, arguments, node)


def _library_result(
    frame: Frame, name: str, arguments: Arguments, node: ast.Call
) -> Value:
    positional, keywords = arguments.positional, arguments.keywords
    match positional:
        case [target, *others] if name == "functools.partial":
            return Partial(target, tuple(others), tuple(keywords.items()))
        case [target, *_] if name in _WRAP_FIRST:
            return target
        case [target, *others] if name in _CALL_FIRST:
            passed_on = {
                key: value
                for key, value in keywords.items()
                if key not in _CHECKPOINT_OPTIONS
            }
            return apply(frame, target, Arguments(others, passed_on), node)
    # A library function that the tables do not know may call the functions that it
    # gets.
    result = library.call(name, arguments)
    if result is UNKNOWN:
        return call_unknown(frame, arguments)
    return result


_HANDLERS: Final[dict[type, Callable[[Frame, Any, Arguments, ast.Call], Value]]] = {
    Function: _call_function,
    Class: _call_class,
    Instance: _call_instance,
    External: _call_external,
    Method: _call_method,
    Partial: _call_partial,
    Interpreted: _call_interpreted,
    Layer: _call_layer,
    Sequence: _call_sequence,
    Choice: _call_choice,
    Static: _call_static,
}
