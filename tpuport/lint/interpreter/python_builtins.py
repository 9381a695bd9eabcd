"""Python's own functions, and methods of values that the linted code's classes do not define.

The latter are methods of lists, dicts, strings, layers and `nn.Module`s; methods of tensors are in `tensor_functions`.
"""

import ast
import functools
import re
from collections.abc import Callable
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    CONFIG,
    FLOAT,
    FLOAT_TENSOR,
    INT,
    NONE,
    NOT_CONSTANT,
    STATIC,
    STR,
    TENSOR,
    UNKNOWN,
    Arguments,
    Class,
    Function,
    Instance,
    Layer,
    Mapping,
    Method,
    Sequence,
    Static,
    Tensor,
    Value,
    constant_of,
    is_tensor,
    join,
    join_all,
    tensor,
)
from tpuport.lint.events import AttributeStore, Formatting, Iteration
from tpuport.lint.interpreter import library
from tpuport.lint.interpreter.frame import Frame, path_of
from tpuport.lint.interpreter.members import attribute
from tpuport.lint.interpreter.tensor_functions import TENSOR_ONLY_METHODS, tensor_method
from tpuport.lint.interpreter.truth import is_instance

# --- functions ---

_FIXED_RESULTS: Final[dict[str, Value]] = {
    "len": INT, "int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "repr": STR, "format": STR, "hasattr": BOOL,
    "issubclass": BOOL, "callable": BOOL, "id": INT, "hash": INT, "ord": INT, "chr": STR, "print": NONE,
    "delattr": NONE, "complex": Static("complex"), "slice": Static("slice"), "divmod": STATIC, "vars": STATIC,
    "dir": STATIC, "any": BOOL, "all": BOOL, "input": STR, "bytes": STATIC,
    "range": Sequence("iterator", None, INT),
}  # fmt: skip
_CONTAINER_KINDS: Final = {
    "list": "list",
    "tuple": "tuple",
    "set": "set",
    "frozenset": "set",
    "sorted": "list",
    "iter": "iterator",
}
# Built-in names that are known, but whose calls say nothing.
_OTHER_NAMES: Final = frozenset("super object property staticmethod classmethod open locals globals".split())


def is_builtin(name: str) -> bool:
    """Whether a name is that of a built-in function or class."""
    return name in _FIXED_RESULTS or name in _HANDLERS or name in _OTHER_NAMES


def call_builtin(frame: Frame, name: str, arguments: Arguments, node: ast.Call) -> Value:
    """What a built-in function returns."""
    handler = _HANDLERS.get(name)
    if handler is None:
        return _FIXED_RESULTS.get(name, UNKNOWN)
    return handler(frame, arguments, node)


def _container(kind: str, frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`list(x)`, `sorted(x)` and the like."""
    if not arguments.positional:
        return Sequence(kind, (), UNKNOWN)
    source = arguments.first
    match source:
        # How many elements of a set differ is not known.
        case Sequence(items=tuple(items), element=element) if kind != "set":
            return Sequence(kind, items, element)
        case Sequence(tensors=has_tensors):
            return Sequence(kind, None, frame.element_of(source), has_tensors)
        case _:
            return Sequence(kind, None, frame.element_of(source))


def _reversed(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    iterator = _container("iterator", frame, arguments, node)
    match iterator:
        case Sequence(items=tuple(items), element=element):
            return Sequence("iterator", items[::-1], element)
        case _:
            return iterator


def _isinstance(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if len(node.args) == 2:
        return is_instance(frame, arguments.first, node.args[1])
    return BOOL


def _getattr(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [base, Static(constant=str(name))]:
            return attribute(frame, base, name)
        case [base, Static(constant=str(name)), default, *_]:
            value = attribute(frame, base, name)
            if value is UNKNOWN:
                return value
            return join(value, default)
        case [Instance() as base, _, *_] if len(node.args) >= 2:
            return _attributes_like(frame, base, *_known_ends(node.args[1]))
        case [Static(), *_]:
            return STATIC
        case _:
            return UNKNOWN


def _known_ends(node: ast.expr) -> tuple[str, str]:
    """What a computed string starts and ends with: `"_" + mode`, `f"layer{i}"`, `"layer%d" % i`."""
    match node:
        case ast.Constant(value=str(text)):
            return text, text
        case ast.JoinedStr(values=[first, *_]):
            return _known_ends(first)[0], _known_ends(node.values[-1])[1]
        case ast.BinOp(op=ast.Add()):
            return _known_ends(node.left)[0], _known_ends(node.right)[1]
        case ast.BinOp(op=ast.Mod()):
            return _known_ends(node.left)[0].partition("%")[0], ""
        case ast.Call(func=ast.Attribute(attr="format", value=template)):
            start, end = _known_ends(template)
            return start.partition("{")[0], end.rpartition("}")[2]
        case _:
            return "", ""


def _attributes_like(frame: Frame, base: Instance, start: str, end: str) -> Value:
    """Any attribute whose name starts and ends like this; `UNKNOWN` if neither end is known."""
    if not (start or end):
        return UNKNOWN
    classes = frame.interpreter.classes
    names = set(classes.attributes(base.info)).union(*(info.methods for info in classes.mro(base.info)))
    # Something stands in the place of what is computed. Names with two underscores are Python's own.
    pattern = re.compile(f"(?!__)(?={re.escape(start)}.).*{re.escape(end)}")
    # Sorted, since the order of options decides which of them is interpreted first.
    return join_all(attribute(frame, base, name) for name in sorted(filter(pattern.fullmatch, names)))


def _setattr(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [_, Static(constant=str(name)), value]:
            if frame.building is not None and frame.is_self(node.args[0]):
                frame.building[name] = value
    return NONE


def _enumerate(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    source = arguments.first
    for part in node.args[:1]:
        frame.report(Iteration(part, source))
    element = frame.element_of(source)
    return Sequence("iterator", None, Sequence("tuple", (INT, element), join(INT, element)))


def _zip(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    for source, part in zip(arguments.positional, node.args, strict=False):
        frame.report(Iteration(part, source))
    elements = tuple(map(frame.element_of, arguments.positional))
    return Sequence("iterator", None, Sequence("tuple", elements, join_all(elements)))


def _map(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    function, *sources = arguments.positional or [UNKNOWN]
    if not sources:
        return UNKNOWN
    elements = Arguments(list(map(frame.element_of, sources)), {})
    return Sequence("iterator", None, frame.interpreter.apply(frame, function, elements, node))


def _filter(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if len(arguments.positional) < 2:
        return UNKNOWN
    function, source = arguments.positional[:2]
    if isinstance(function, Function):
        element = Arguments([frame.element_of(source)], {})
        frame.interpreter.call_function(frame, function, element)
    return Sequence("iterator", None, frame.element_of(source))


def _extreme(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`max(values)` or `max(a, b)`."""
    values = arguments.positional
    if len(values) == 1:
        return frame.element_of(values[0])
    tensors = list(filter(is_tensor, values))
    if not tensors:
        return join_all(values)
    # Of a tensor and a number it may be either.
    return values[0] if tensors == values else UNKNOWN


def _element(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`next` and `sum`."""
    return frame.element_of(arguments.first)


def _number(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`abs`, `round` and `pow` return what they get."""
    first = arguments.first
    if isinstance(first, Tensor):
        return tensor(first.dtype, ndim=first.ndim)
    return first


def _dict(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [Mapping(entries=entries, element=element), *_]:
            return Mapping(tuple((dict(entries) | arguments.keywords).items()), element)
        case _:
            return Mapping(tuple(arguments.keywords.items()), UNKNOWN)


def _type(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [Instance(info=info)]:
            return Class(info)
        case _:
            return STATIC


_HANDLERS: Final[dict[str, Callable[[Frame, Arguments, ast.Call], Value]]] = {
    "isinstance": _isinstance, "getattr": _getattr, "setattr": _setattr, "enumerate": _enumerate, "zip": _zip,
    "map": _map, "filter": _filter, "max": _extreme, "min": _extreme, "sum": _element, "next": _element,
    "abs": _number, "round": _number, "pow": _number, "dict": _dict, "type": _type, "reversed": _reversed,
    **{name: functools.partial(_container, kind) for name, kind in _CONTAINER_KINDS.items()},
}  # fmt: skip

# --- methods ---

# Methods that return the module itself.
_FLUENT: Final = frozenset(
    "to cuda cpu half float double bfloat16 eval train requires_grad_ type apply".split()
)
# On an unknown receiver in traced code, these are tensor methods: no array of another library comes there.
_METHODS_OF_ARRAYS: Final = TENSOR_ONLY_METHODS | set("view reshape mean sum abs sqrt pow clone std".split())
_STATIC_METHODS: Final = frozenset(
    "size dim numel item tolist stride is_floating_point get_seq_length".split()
)
_STRING_METHODS: Final = frozenset("format lower upper strip replace join".split())


def call_method(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    """What `receiver.name(...)` returns. A container that the method changes is changed in the frame."""
    handler = _METHOD_HANDLERS.get(type(method.receiver), _method_of_unknown)
    return handler(frame, node, method, arguments)


def call_unknown(frame: Frame, arguments: Arguments, name: str = "") -> Value:
    """Something unknown is called: it is taken to call the functions among its arguments, the first with the rest."""
    interpreter = frame.interpreter
    match arguments.positional:
        case [Function() as function, _, *_]:
            return interpreter.call_function(frame, function, Arguments(arguments.positional[1:], {}))
        case [Instance() as module, *_] if "checkpoint" in name:
            return call_instance(frame, module, Arguments(arguments.positional[1:], {}))
    if frame.emitting:
        for function in arguments.functions():
            interpreter.call_declared(frame, function)
    return UNKNOWN


def call_instance(frame: Frame, instance: Instance, arguments: Arguments) -> Value:
    """`instance(...)`: `__call__`, or a module's forward."""
    classes = frame.interpreter.classes
    if classes.is_replaced(instance.info):
        return FLOAT_TENSOR
    method = classes.method(instance.info, "__call__")
    if method is None and classes.is_module(instance.info):
        method = classes.method(instance.info, "forward")
    if method is not None:
        return frame.interpreter.call_function(frame, Function(method, instance), arguments)
    torch_base = classes.torch_base(instance.info)
    if torch_base:
        return library.layer_call(torch_base, arguments)
    return call_unknown(frame, arguments)


def _method_of_tensor(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    assert isinstance(method.receiver, Tensor)
    return tensor_method(method.receiver, method.name, arguments)


def _method_of_layer(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    assert isinstance(method.receiver, Layer)
    if method.name == "forward":
        return library.layer_call(method.receiver.name, arguments)
    if method.name in _FLUENT:
        return method.receiver
    return UNKNOWN


def _method_of_unknown(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    if method.name in _METHODS_OF_ARRAYS:
        return tensor_method(TENSOR, method.name, arguments)
    if method.name in _STATIC_METHODS:
        return STATIC
    return _default_function(method, arguments) or call_unknown(frame, arguments, method.name)


def _method_of_static(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    assert isinstance(method.receiver, Static)
    if method.receiver.kind == "str":
        return _method_of_string(frame, node, method, arguments)
    as_value = CONFIG if method.receiver.kind == "config" else STATIC
    return _default_function(method, arguments) or as_value


def _method_of_string(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    if method.name == "format":
        for part, value in zip(node.args, arguments.positional, strict=False):
            report_formatting(frame, part, value)
    return STR if method.name in _STRING_METHODS else STATIC


def report_formatting(frame: Frame, node: ast.expr, value: Value, has_spec: bool = False) -> None:
    """Let the rules hear of a tensor that becomes text; `has_spec`: the format asks for a number."""
    # The program ends at a `raise` anyway, whatever its message formats.
    if is_tensor(value) and not frame.raising:
        frame.report(Formatting(node, value, has_spec))


def _default_function(method: Method, arguments: Arguments) -> Value | None:
    """The default of `table.get(name, function)`, where the table of functions and the name are not known."""
    if method.name in {"get_interface", "get"}:
        return arguments.first_function
    return None


# --- methods of containers ---


def _method_of_sequence(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    receiver = method.receiver
    assert isinstance(receiver, Sequence)
    match method.name, arguments.positional:
        case (("append" | "add" | "appendleft"), [value, *_]) | ("insert", [_, value, *_]):
            return _grow(frame, node, receiver, value)
        case "extend" | "update", [values, *_]:
            return _grow(frame, node, receiver, frame.element_of(values))
        case "pop" | "popleft" | "__getitem__", _:
            return receiver.element
        case "copy", _:
            return receiver
        case "index" | "count" | "__len__", _:
            return INT
        case "forward", _ if receiver.kind == "sequential":
            return frame.interpreter.apply(frame, receiver, Arguments(arguments.positional, {}), node)
    if receiver.kind in {"modules", "sequential"} and method.name in _FLUENT:
        return receiver
    return UNKNOWN


def _grow(frame: Frame, node: ast.Call, receiver: Sequence, value: Value) -> Value:
    """A method adds a value to a list; the result is the method's."""
    _replace_receiver(frame, node, receiver.with_element(value), value)
    return NONE


def _replace_receiver(frame: Frame, node: ast.Call, container: Value, added: Value | None) -> None:
    """Values are immutable, so a changed container is another value from now on."""
    match node.func:
        case ast.Attribute(value=holder):
            path = path_of(holder)
        case _:
            return
    if path is None:
        return
    frame.env[path] = container
    match holder:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            if frame.building is not None and owner == frame.self_name:
                frame.building[name] = container
            if added is not None:
                frame.report(AttributeStore(node, frame.lookup(owner), name, added, in_container=True))


def _method_of_mapping(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    receiver = method.receiver
    assert isinstance(receiver, Mapping)
    match method.name, arguments.positional:
        case "get" | "pop" | "setdefault" | "__getitem__", [_, *_]:
            return _entry(receiver, method.name, arguments.positional)
        case "items", _:
            return Sequence("iterator", None, Sequence("tuple", (STATIC, _any_entry(receiver)), UNKNOWN))
        case "values", _:
            return Sequence("iterator", None, _any_entry(receiver))
        case "keys", _:
            return Sequence("dict_views", None, STATIC)
        case "copy", _:
            return receiver
        case "update", _:
            added = arguments.first.entries if isinstance(arguments.first, Mapping) else ()
            entries = dict(receiver.entries) | dict(added) | arguments.keywords
            _replace_receiver(frame, node, Mapping(tuple(entries.items()), receiver.element), None)
            return NONE
    return UNKNOWN


def _any_entry(mapping: Mapping) -> Value:
    if mapping.entries:
        return join_all(value for _, value in mapping.entries)
    return mapping.element


def _entry(receiver: Mapping, name: str, positional: list[Value]) -> Value:
    """`mapping.get(key, default)` and the like."""
    key = constant_of(positional[0])
    is_known = key is not NOT_CONSTANT
    value = receiver.get(key) if is_known else _any_entry(receiver)
    if len(positional) == 1:
        return value
    default = positional[1]
    if value is UNKNOWN:
        # A table of functions that is not known: its default shows what they do.
        if name == "get" and isinstance(default, Function):
            return default
        return UNKNOWN
    is_missing = is_known and key not in dict(receiver.entries)
    return join(value, default) if is_missing else value


# --- methods of modules ---

_PARAMETERS: Final = Sequence("iterator", None, tensor(origin="parameter"))
_NAMED_PARAMETERS: Final = Sequence(
    "iterator", None, Sequence("tuple", (STR, tensor(origin="parameter")), UNKNOWN)
)
_INHERITED_METHODS: Final[dict[str, Value]] = {
    **dict.fromkeys(("parameters", "buffers"), _PARAMETERS),
    **dict.fromkeys(("named_parameters", "named_buffers"), _NAMED_PARAMETERS),
    **dict.fromkeys(("get_seq_length", "get_max_cache_shape", "is_gradient_checkpointing"), STATIC),
}
_REGISTRATIONS: Final = frozenset("register_buffer register_parameter add_module register_module".split())


def _method_of_instance(frame: Frame, node: ast.Call, method: Method, arguments: Arguments) -> Value:
    """Methods that an instance has from a library's base class, from `nn.Module` above all."""
    if method.name in _FLUENT:
        return method.receiver
    if method.name in _REGISTRATIONS:
        _register(frame, method.name, arguments)
        return NONE
    return _INHERITED_METHODS.get(method.name) or call_unknown(frame, arguments, method.name)


def _register(frame: Frame, method: str, arguments: Arguments) -> None:
    name = constant_of(arguments.get(0, "name"))
    if frame.building is None or not isinstance(name, str):
        return
    is_buffer = method == "register_buffer"
    value = arguments.get(1, "tensor", "param", "module", default=NONE)
    if isinstance(value, Tensor):
        origin = "buffer" if is_buffer else "parameter"
        value = tensor(value.dtype, value.exact, value.ndim, value.optional, False, origin)
    elif is_buffer and value is UNKNOWN:
        value = tensor(origin="buffer")
    frame.building[name] = value


_METHOD_HANDLERS: Final[dict[type, Callable[[Frame, ast.Call, Method, Arguments], Value]]] = {
    Tensor: _method_of_tensor,
    Sequence: _method_of_sequence,
    Mapping: _method_of_mapping,
    Static: _method_of_static,
    Layer: _method_of_layer,
    Instance: _method_of_instance,
}
