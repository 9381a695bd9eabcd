"""Methods of values that the linted code's classes do not define, and calls of what has
no code to interpret.

These are methods of lists, dicts, strings, caches, layers and `nn.Module`s;
`tensor_functions` has those of tensors.
"""

import ast
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    CONFIG,
    FLOAT_TENSOR,
    INT,
    NONE,
    NOT_CONSTANT,
    STATIC,
    STR,
    TENSOR,
    UNKNOWN,
    Function,
    Instance,
    KeyValueCache,
    Layer,
    Mapping,
    Method,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    changed,
    is_tensor,
    is_traced,
    tensor,
)
from tpuport.lint.events import AttributeStore, Formatting
from tpuport.lint.interpreter import library
from tpuport.lint.interpreter.computed_names import known_ends
from tpuport.lint.interpreter.containers import (
    as_mapping,
    compare_by_key,
    entries_by_name,
    entries_of,
    keys_of,
    replace,
)
from tpuport.lint.interpreter.frame import ELEMENTS, Frame
from tpuport.lint.interpreter.object_state import with_field, with_fields
from tpuport.lint.interpreter.placement import gets_tensor, on_device
from tpuport.lint.interpreter.tensor_functions import TENSOR_ONLY_METHODS, tensor_method
from tpuport.lint.joins import (
    join,
    join_all,
    with_element,
    with_entry,
    with_last,
)
from tpuport.lint.passed_arguments import Arguments

# Methods that return the module itself.
_FLUENT: Final = frozenset(
    "to cuda cpu half float double bfloat16 eval train requires_grad_ type apply".split()
)
# On an unknown receiver in traced code, these are tensor methods: no array of another
# library comes there.
_METHODS_OF_ARRAYS: Final = TENSOR_ONLY_METHODS | set(
    "view reshape mean sum max min prod norm abs sqrt pow clone std var any all isnan".split()
)
_STATIC_METHODS: Final = frozenset(
    "size dim numel item tolist stride is_floating_point get_seq_length".split()
)
_STRING_METHODS: Final = frozenset("format lower upper strip replace join".split())


def call_method(
    frame: Frame, node: ast.Call, method: Method, arguments: Arguments
) -> Value:
    """What `receiver.name(...)` returns. A container that the method changes is changed
    in the frame.
    """
    if isinstance(method.receiver, Tensor):
        _write_in_place(frame, node, method.receiver, method.name, arguments)
        return tensor_method(method.receiver, method.name, arguments)
    if method.name == "sort":
        compare_by_key(frame, method.receiver, arguments, node)
    handler = _METHOD_HANDLERS.get(type(method.receiver), _method_of_unknown)
    return handler(frame, node, method.receiver, method.name, arguments)


def _write_in_place(
    frame: Frame, node: ast.Call, receiver: Tensor, name: str, arguments: Arguments
) -> None:
    """A tensor of the host is on the device once a traced tensor is written to it."""
    is_written = name.endswith("_") and not name.endswith("__")
    written = (*arguments.positional, *arguments.keywords.values())
    if receiver.host and is_written and any(map(is_traced, written)):
        _replace_receiver(frame, node, on_device(receiver), None)


def call_unknown(frame: Frame, arguments: Arguments, name: str = "") -> Value:
    """Something unknown is called: it is taken to call the functions among its
    arguments, the first with the rest.
    """
    interpreter = frame.interpreter
    match arguments.positional:
        case [Function() as function, _, *_]:
            return interpreter.call_function(
                frame, function, Arguments(arguments.positional[1:], {})
            )
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
    if method is not None:
        return frame.interpreter.call_function(
            frame, Function(method, instance), arguments
        )
    if classes.is_module(instance.info):
        forwards = [
            _with_receiver(function, instance)
            for function in classes.forwards(instance.info)
        ]
        if forwards:
            results = [
                frame.interpreter.call_function(frame, forward, arguments)
                for forward in forwards
            ]
            return join_all(results)
    # A subclass of a torch layer that only changes how it is constructed.
    torch_base = classes.torch_base(instance.info)
    if torch_base:
        return library.layer_call(torch_base, arguments)
    return call_unknown(frame, arguments)


def _with_receiver(function: Function, instance: Instance) -> Function:
    """A function that belongs to an object of the class, as this object has it."""
    is_method = (
        isinstance(function.bound, Instance) and function.bound.info is instance.info
    )
    return Function(function.info, instance) if is_method else function


def _method_of_layer(
    frame: Frame, node: ast.Call, receiver: Layer, name: str, arguments: Arguments
) -> Value:
    if name == "forward":
        return library.layer_call(receiver.name, arguments)
    if name in _FLUENT:
        return receiver
    if receiver.name.startswith(library.OPTIMIZERS):
        # `step(closure)`
        return call_unknown(frame, arguments)
    return library.layer_method(receiver.name, name)


def _method_of_unknown(
    frame: Frame, node: ast.Call, receiver: Value, name: str, arguments: Arguments
) -> Value:
    # A constructor clones configurations, and computes with arrays of NumPy.
    methods_of_tensors = (
        TENSOR_ONLY_METHODS if frame.building is not None else _METHODS_OF_ARRAYS
    )
    if name in methods_of_tensors:
        return tensor_method(TENSOR, name, arguments)
    if name in _STATIC_METHODS:
        return STATIC
    return _default_function(name, arguments) or call_unknown(frame, arguments, name)


def _method_of_static(
    frame: Frame, node: ast.Call, receiver: Static, name: str, arguments: Arguments
) -> Value:
    match receiver.kind:
        case "str":
            return _method_of_string(frame, node, receiver, name, arguments)
        # `config.get("rope_scaling")` is a part of the configuration, or one of its
        # settings.
        case "config" if not gets_tensor(arguments):
            return _default_function(name, arguments) or CONFIG
        # Not a configuration then, but a model that was made from one.
        case "config":
            return UNKNOWN
        case _:
            return _default_function(name, arguments) or STATIC


def _method_of_string(
    frame: Frame, node: ast.Call, receiver: Static, name: str, arguments: Arguments
) -> Value:
    if name == "format":
        for part, value in zip(node.args, arguments.positional, strict=False):
            report_formatting(frame, part, value)
    if name in _STRING_METHODS:
        return STR
    match name, receiver.constant, arguments.first.constant:
        case "startswith" | "endswith", str(text), str(part):
            return Static("bool", getattr(text, name)(part))
    return STATIC


def report_formatting(
    frame: Frame, node: ast.expr, value: Value, has_spec: bool = False
) -> None:
    """Let the rules hear of a tensor that becomes text; `has_spec`: the format asks for
    a number.
    """
    # The program ends at a `raise` anyway, whatever its message formats.
    if is_tensor(value) and not frame.raising:
        frame.report(Formatting(node, value, has_spec))


def _default_function(name: str, arguments: Arguments) -> Value | None:
    """The default of `table.get(key, function)`, where the table of functions and the
    key are not known.
    """
    if name in {"get_interface", "get"}:
        return arguments.first_function
    return None


# --- methods of containers ---


def _method_of_sequence(
    frame: Frame, node: ast.Call, receiver: Sequence, name: str, arguments: Arguments
) -> Value:
    match name, arguments.positional:
        case "append", [value, *_] if receiver.kind == "list":
            _replace_receiver(frame, node, with_last(receiver, value), value)
            return NONE
        case (("append" | "add" | "appendleft"), [value, *_]) | (
            "insert",
            [_, value, *_],
        ):
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
            return frame.interpreter.apply(
                frame, receiver, Arguments(arguments.positional, {}), node
            )
        case "children", _ if receiver.kind in {"modules", "sequential"}:
            return Sequence("list", receiver.items, receiver.element)
        case _ if receiver.kind in {"modules", "sequential"} and name in _FLUENT:
            return receiver
        case _:
            return UNKNOWN


def _grow(frame: Frame, node: ast.Call, receiver: Sequence, value: Value) -> Value:
    """A method adds a value to a list; the result is the method's."""
    added = on_device(value) if receiver.kind == "modules" else value
    _replace_receiver(frame, node, with_element(receiver, added), added)
    return NONE


def _replace_receiver(
    frame: Frame, node: ast.Call, container: Value, added: Value | None
) -> None:
    """Values are immutable, so a changed container is another value from now on."""
    # `append = items.append` hides which name the list has.
    if not isinstance(node.func, ast.Attribute):
        return
    holder = node.func.value
    replace(frame, holder, container)
    match holder:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if added is not None:
            frame.report(
                AttributeStore(
                    node, frame.lookup(owner), name, added, in_container=True
                )
            )


def _method_of_mapping(
    frame: Frame, node: ast.Call, receiver: Mapping, name: str, arguments: Arguments
) -> Value:
    match name, arguments.positional:
        case "setdefault", [key, default, *_]:
            value = _entry(receiver, name, arguments.positional)
            value = default if value is UNKNOWN else value
            changed = with_entry(receiver, key.constant, value)
            _replace_receiver(frame, node, changed, None)
            return value
        case "get" | "pop" | "setdefault" | "__getitem__", [_, *_]:
            possible = _with_keys_like(receiver, node.args)
            return _entry(possible, name, arguments.positional)
        case "items", _:
            return entries_of(receiver)
        case "values", _:
            return Sequence("iterator", None, _any_entry(receiver))
        case "keys", _:
            return keys_of(receiver)
        case "copy", _:
            return receiver
        case "update", _:
            _update(frame, node, receiver, arguments)
            return NONE
    return UNKNOWN


def _update(
    frame: Frame, node: ast.Call, receiver: Mapping, arguments: Arguments
) -> None:
    entries = dict(receiver.entries) | entries_by_name(arguments)
    _replace_receiver(
        frame, node, Mapping(tuple(entries.items()), receiver.element), None
    )


def _any_entry(mapping: Mapping) -> Value:
    if mapping.entries:
        return join_all(mapping.values)
    return mapping.element


def _with_keys_like(mapping: Mapping, arguments: list[ast.expr]) -> Mapping:
    """The dict without the entries that a computed key, the first argument, cannot
    have: `f"output_{name}"`.
    """
    start, end = known_ends(arguments[0]) if arguments else ("", "")
    entries = tuple(
        (name, value)
        for name, value in mapping.entries
        if str(name).startswith(start) and str(name).endswith(end)
    )
    return Mapping(entries, mapping.element, mapping.is_open)


def _entry(receiver: Mapping, name: str, positional: list[Value]) -> Value:
    """`mapping.get(key, default)` and the like."""
    key = positional[0].constant
    value = _any_entry(receiver) if key is NOT_CONSTANT else receiver.get(key)
    match value, positional[1:]:
        # A table of functions that is not known: its default shows what they do.
        case Unknown(), [Function() as default, *_] if name == "get":
            return default
        case Unknown(), _:
            return UNKNOWN
        # The key is none of those that the source text tells.
        case _, [default, *_] if key not in {NOT_CONSTANT, *dict(receiver.entries)}:
            return join(value, default)
        case _:
            return value


# --- methods of caches ---

# A cache of fixed shape counts its tokens on the device.
_LENGTH: Final = tensor("int", ndim=0)
_KEYS_AND_VALUES: Final = Sequence("tuple", (TENSOR, TENSOR), TENSOR)
_CACHE_METHODS: Final[dict[str, Value]] = {
    "get_seq_length": _LENGTH, "update": _KEYS_AND_VALUES, "get_max_length": INT, "get_max_cache_shape": INT,
    "get_mask_sizes": Sequence("tuple", (INT, INT), INT),
}  # fmt: skip


def _method_of_cache(
    frame: Frame,
    node: ast.Call,
    receiver: KeyValueCache,
    name: str,
    arguments: Arguments,
) -> Value:
    if name in _CACHE_METHODS:
        return _CACHE_METHODS[name]
    # States of convolutions and recurrences.
    return (
        TENSOR if name.startswith("update_") else call_unknown(frame, arguments, name)
    )


# --- methods of modules ---

_PARAMETER: Final = tensor(origin="parameter")
_NAMED_PARAMETER: Final = Sequence("tuple", (STR, _PARAMETER), UNKNOWN)
_INHERITED_METHODS: Final[dict[str, Value]] = {
    **dict.fromkeys(("parameters", "buffers"), Sequence("iterator", None, _PARAMETER)),
    **dict.fromkeys(
        ("named_parameters", "named_buffers"),
        Sequence("iterator", None, _NAMED_PARAMETER),
    ),
    **dict.fromkeys(
        ("get_seq_length", "get_max_cache_shape", "is_gradient_checkpointing"), STATIC
    ),
}
_METHODS_OF_DICTS: Final = frozenset(
    "items keys values get pop update setdefault".split()
)
_REGISTRATIONS: Final = frozenset(
    "register_buffer register_parameter add_module register_module".split()
)


def _method_of_instance(
    frame: Frame, node: ast.Call, receiver: Instance, name: str, arguments: Arguments
) -> Value:
    """Methods that an instance has from a library's base class, from `nn.Module` above
    all.
    """
    if name in _FLUENT:
        return receiver
    classes = frame.interpreter.classes
    if name in _METHODS_OF_DICTS and classes.is_dict(receiver.info):
        return _method_of_dict(frame, node, receiver, name, arguments)
    fields = dict(receiver.fields)
    match name, fields.get(ELEMENTS):
        case "append", Sequence() as elements:
            grown = with_last(elements, arguments.first)
            _replace_receiver(frame, node, with_field(receiver, ELEMENTS, grown), None)
            return NONE
        # `super().__setattr__(name, value)`
        case "__setattr__", _ if isinstance(arguments.first.constant, str):
            changed = with_field(
                receiver, arguments.first.constant, arguments.get(1, "value")
            )
            replace(frame, ast.Name(frame.self_name or ""), changed)
            return NONE
        case "_replace", _:
            return with_fields(receiver, fields | arguments.keywords)
        case "_asdict", _:
            return as_mapping(receiver)
    if name in _REGISTRATIONS:
        _register(frame, node, name, arguments)
        return NONE
    # The parts of a pipeline, by name.
    if name == "register_modules" and frame.building is not None:
        frame.building |= arguments.keywords
        return NONE
    return _INHERITED_METHODS.get(name) or call_unknown(frame, arguments, name)


def _method_of_dict(
    frame: Frame, node: ast.Call, receiver: Instance, name: str, arguments: Arguments
) -> Value:
    """A method of an object that is a dict: what it holds are its attributes too."""
    match name:
        case "update":
            fields = dict(receiver.fields) | entries_by_name(arguments)
            _replace_receiver(frame, node, with_fields(receiver, fields), None)
            return NONE
        case "setdefault":
            name = "get"
    return _method_of_mapping(
        frame, node, Mapping(receiver.fields, UNKNOWN), name, arguments
    )


def _register(frame: Frame, node: ast.Call, method: str, arguments: Arguments) -> None:
    value = arguments.get(1, "tensor", "param", "module", default=NONE)
    match method, value:
        case "register_buffer", Unknown():
            value = tensor(origin="buffer")
        case "register_buffer", Tensor():
            value = _as_weight(value, "buffer")
        case _, Tensor():
            value = _as_weight(value, "parameter")
    if node.args:
        frame.set_by_name(arguments.first, node.args[0], value)
    elif "name" in arguments.keywords:
        frame.set_by_name(arguments.keywords["name"], node, value)


def _as_weight(value: Tensor, origin: str) -> Tensor:
    if value.origin == "sparse":
        origin = "sparse buffer"
    return changed(value, view=False, origin=origin, host=False, several=False)


_METHOD_HANDLERS: Final[
    dict[type, Callable[[Frame, ast.Call, Any, str, Arguments], Value]]
] = {
    Sequence: _method_of_sequence,
    Mapping: _method_of_mapping,
    Static: _method_of_static,
    Layer: _method_of_layer,
    Instance: _method_of_instance,
    KeyValueCache: _method_of_cache,
}
