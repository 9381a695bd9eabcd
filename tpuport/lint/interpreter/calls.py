"""Calls: of functions and classes of the linted code, of library functions, of methods."""

import ast
from typing import Final

from tpuport.lint.abstract_values import (
    FLOAT_TENSOR,
    NONE,
    TRUE,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    Layer,
    Mapping,
    Method,
    Partial,
    Sequence,
    Static,
    Value,
    join_all,
)
from tpuport.lint.events import Call, Iterate
from tpuport.lint.interpreter import builtin, expressions, iteration, library, members, methods
from tpuport.lint.interpreter.frame import Frame

# transformers asks these whether a tensor is a tracer, of jax.jit through torchax among others.
_TRUE_WHEN_TRACED: Final = frozenset({"is_tracing", "is_jax_jitting"})
Arguments = tuple[list[Value], dict[str, Value]]

# Library functions that call their first argument with the rest, or give back something that does.
_CALLS_FIRST: Final = frozenset(
    {"torch.utils.checkpoint.checkpoint", "torch.func.functional_call", "torch.cond"}
)
_WRAPS_FIRST: Final = frozenset(
    "torch.compile torch.vmap torch.func.vmap functools.wraps functools.lru_cache functools.cache torch.jit.script"
    " torch.no_grad torch.compiler.disable torch._dynamo.disable".split()
)


def call(frame: Frame, node: ast.Call) -> Value:
    """What a call gives."""
    callee = _super_method(frame, node)
    if callee is None:
        callee = expressions.evaluate(frame, node.func)
    args, keywords = arguments(frame, node)
    if _passes_everything_on(frame, node):
        functions = _functions(frame, callee)
        if functions:
            return join_all([frame.machine.call_declared(one, frame, frame.entry) for one in functions])
    return apply(frame, callee, args, keywords, node)


def _passes_everything_on(frame: Frame, node: ast.Call) -> bool:
    """Whether it is `f(*args, **kwargs)` of arguments that are not known."""
    if len(node.args) != 1 or len(node.keywords) != 1 or node.keywords[0].arg is not None:
        return False
    star, stars = node.args[0], node.keywords[0].value
    if not (
        isinstance(star, ast.Starred) and isinstance(star.value, ast.Name) and isinstance(stars, ast.Name)
    ):
        return False
    given, named = frame.name(star.value.id), frame.name(stars.id)
    return (
        isinstance(given, Sequence)
        and given.items is None
        and isinstance(named, Mapping)
        and not named.entries
    )


def _functions(frame: Frame, callee: Value) -> list[Function]:
    """The functions of the linted code that a call of this would run; none where that is not sure."""
    found: list[Function] = []
    for option in callee.options if isinstance(callee, Choice) else (callee,):
        if isinstance(option, Instance) and frame.machine.classes.is_module(option.info):
            method = frame.machine.classes.method(option.info, "forward")
            option = Function(method, option) if method else option
        if not isinstance(option, Function):
            return []
        found.append(option)
    return found


def arguments(frame: Frame, node: ast.Call) -> Arguments:
    """The values of a call's arguments; stars are spread where their parts are known."""
    args: list[Value] = []
    for item in node.args:
        if isinstance(item, ast.Starred):
            inside = expressions.evaluate(frame, item.value)
            if frame.emitting:
                frame.tell(Iterate(item.value, inside, "star"))
            if isinstance(inside, Sequence) and inside.items is not None:
                args.extend(inside.items)
            else:
                args.append(iteration.element(frame, inside))
        else:
            args.append(expressions.evaluate(frame, item))
    keywords: dict[str, Value] = {}
    for keyword in node.keywords:
        value = expressions.evaluate(frame, keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, Mapping):
            keywords.update({key: part for key, part in value.entries if isinstance(key, str)})
    return args, keywords


def apply(
    frame: Frame, callee: Value, args: list[Value], keywords: dict[str, Value], node: ast.Call
) -> Value:
    """What calling a value gives; the rules hear of library calls."""
    if isinstance(callee, Function):
        return _function(frame, callee, args, keywords)
    if isinstance(callee, Class):
        return frame.machine.classes.instantiate(frame, callee.info, args, keywords)
    if isinstance(callee, Instance):
        return call_instance(frame, callee, args, keywords)
    if isinstance(callee, External):
        return _external(frame, callee.name, args, keywords, node)
    if isinstance(callee, Method):
        result = methods.call(frame, node, callee, args, keywords)
        if frame.emitting:
            frame.tell(Call(node, callee.name, callee.receiver, args, keywords, result))
        return result
    return _apply_other(frame, callee, args, keywords, node)


def _function(frame: Frame, callee: Function, args: list[Value], keywords: dict[str, Value]) -> Value:
    if callee.info.qualname in _TRUE_WHEN_TRACED and args and args[0] != NONE:
        return TRUE
    if callee.info.qualname.endswith("get_interface"):
        # A table of attention functions by name: the one given as its default stands for all.
        for value in args:
            if isinstance(value, Function):
                return value
    return frame.machine.call_function(callee.info, callee.bound, args, keywords, frame)


def _apply_other(
    frame: Frame, callee: Value, args: list[Value], keywords: dict[str, Value], node: ast.Call
) -> Value:
    if isinstance(callee, Partial):
        return apply(frame, callee.target, [*callee.args, *args], {**dict(callee.keywords), **keywords}, node)
    if isinstance(callee, Layer):
        return library.layer_call(callee.name, args)
    if isinstance(callee, Sequence) and callee.kind == "sequential":
        return _sequential(frame, callee, args, node)
    if isinstance(callee, Choice):
        return join_all([apply(frame, option, args, keywords, node) for option in callee.options])
    if isinstance(callee, Static):
        return callee
    return escape(frame, args, keywords)


def _external(
    frame: Frame, name: str, args: list[Value], keywords: dict[str, Value], node: ast.Call
) -> Value:
    if name.startswith("builtins."):
        result = builtin.call(frame, name[9:], args, keywords, node)
    elif name == "functools.partial" and args:
        result = Partial(args[0], tuple(args[1:]), tuple(keywords.items()))
    elif name in _WRAPS_FIRST and args:
        result = args[0]
    elif name in _CALLS_FIRST and args:
        kept = {key: value for key, value in keywords.items() if key not in {"use_reentrant", "context_fn"}}
        result = apply(frame, args[0], args[1:], kept, node)
    elif name.startswith("torch.Tensor.") and args:
        method = Method(args[0], name.rpartition(".")[2])
        return apply(frame, method, args[1:], keywords, node)
    else:
        result = library.call(name, args, keywords)
        if result is UNKNOWN:
            result = escape(frame, args, keywords)
    if frame.emitting:
        frame.tell(Call(node, name, None, args, keywords, result))
    return result


def escape(frame: Frame, args: list[Value], keywords: dict[str, Value], name: str = "") -> Value:
    """Something unknown is called: functions handed to it are taken to be called, the first with the rest."""
    first = args[0] if args else UNKNOWN
    if len(args) > 1 and isinstance(first, Function):
        return frame.machine.call_function(first.info, first.bound, args[1:], {}, frame)
    if "checkpoint" in name and isinstance(first, Instance):
        return call_instance(frame, first, args[1:], {})
    for value in [*args, *keywords.values()]:
        if isinstance(value, Function) and frame.emitting:
            frame.machine.call_declared(value, frame)
    return UNKNOWN


def call_instance(frame: Frame, callee: Instance, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`instance(...)`: a module's forward, or `__call__`."""
    classes = frame.machine.classes
    if classes.is_replaced(callee.info):
        return FLOAT_TENSOR
    method = classes.method(callee.info, "__call__")
    if method is None and classes.is_module(callee.info):
        method = classes.method(callee.info, "forward")
    if method is None:
        external = classes.external_base(callee.info)
        if external.startswith("torch.nn."):
            return library.layer_call(external, args)
        return escape(frame, args, keywords)
    return frame.machine.call_function(method, callee, args, keywords, frame)


def _sequential(frame: Frame, callee: Sequence, args: list[Value], node: ast.Call) -> Value:
    value = args[0] if args else UNKNOWN
    if callee.items is None:
        return apply(frame, callee.element, args, {}, node) if callee.element is not UNKNOWN else UNKNOWN
    for part in callee.items:
        value = apply(frame, part, [value], {}, node)
    return value


def _super_method(frame: Frame, node: ast.Call) -> Value | None:
    """The method that `super().name` is, bound; None for any other call."""
    func = node.func
    if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call)):
        return None
    inner = func.value.func
    if not (isinstance(inner, ast.Name) and inner.id == "super"):
        return None
    holder = frame
    while holder.receiver is None and holder.parent is not None:
        holder = holder.parent
    return members.above(frame.machine, holder.receiver, holder.owner, func.attr)
