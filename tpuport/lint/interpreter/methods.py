"""Methods of values that are not instances of the linted code's classes: tensors, lists, dicts, layers."""

import ast
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    INT,
    NONE,
    SHAPE,
    STATIC,
    STR,
    TENSOR,
    UNKNOWN,
    Function,
    Instance,
    Layer,
    Mapping,
    Method,
    Sequence,
    Static,
    Tensor,
    Value,
    is_tensor,
    join,
    join_all,
    tensor,
)
from tpuport.lint.events import AttributeStore, Formatted
from tpuport.lint.interpreter import dtypes, iteration, library
from tpuport.lint.interpreter.frame import Frame, path_of

_TENSOR_STATIC: Final[dict[str, Value]] = {
    "dim": INT, "ndimension": INT, "numel": INT, "nelement": INT, "element_size": INT, "stride": SHAPE,
    "is_floating_point": BOOL, "is_complex": BOOL, "is_contiguous": BOOL, "get_device": INT, "data_ptr": INT,
    "storage_offset": INT, "is_pinned": BOOL, "item": STATIC, "numpy": STATIC, "equal": BOOL, "allclose": BOOL,
    "is_nonzero": BOOL, "is_same_size": BOOL, "backward": NONE, "register_hook": NONE, "__len__": INT,
    "is_shared": BOOL, "is_set_to": BOOL, "is_inference": BOOL, "untyped_storage": STATIC, "storage": STATIC,
}  # fmt: skip
_CASTS: Final = {
    "bool": ("bool", ""), "long": ("int", "int64"), "int": ("int", ""), "short": ("int", ""), "byte": ("int", ""),
    "float": ("float", ""), "half": ("float", "float16"), "double": ("float", "float64"),
    "bfloat16": ("float", "bfloat16"),
    "char": ("int", ""), "cfloat": ("complex", ""), "cdouble": ("complex", "complex128"),
}  # fmt: skip
_NEW: Final = frozenset("new_zeros new_ones new_empty new_full new_tensor".split())
# Methods that give back the module itself.
_FLUENT: Final = frozenset(
    "to cuda cpu half float double bfloat16 eval train requires_grad_ type apply".split()
)


def call(
    frame: Frame, node: ast.Call, method: Method, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """What `receiver.name(...)` gives, with what it changes."""
    receiver, name = method.receiver, method.name
    if isinstance(receiver, Tensor):
        return of_tensor(receiver, name, args, keywords)
    if isinstance(receiver, Sequence):
        return _of_sequence(frame, node, receiver, name, args)
    if isinstance(receiver, Mapping):
        return _of_mapping(frame, node, receiver, name, args, keywords)
    if isinstance(receiver, Static):
        return _of_static(frame, node, receiver, name, args, keywords)
    if isinstance(receiver, Layer):
        if name == "forward":
            return library.layer_call(receiver.name, args)
        return receiver if name in _FLUENT else UNKNOWN
    if isinstance(receiver, Instance):
        return _of_instance(frame, node, receiver, name, args, keywords)
    return _of_unknown(frame, name, args, keywords)


def of_tensor(receiver: Tensor, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """A tensor's method."""
    known = _TENSOR_STATIC.get(name)
    if known is not None:
        return known
    if name == "size" or name == "__len__":
        return INT if args or keywords else SHAPE
    if name in _CASTS:
        return dtypes.with_dtype(receiver, *_CASTS[name])
    if name in {"to", "type", "type_as", "cuda", "cpu", "pin_memory"}:
        return _converted(receiver, args, keywords)
    if name in _NEW:
        family, exact = dtypes.given(keywords, receiver.dtype)
        if name == "new_tensor" and args:
            return tensor(dtypes.given(keywords, "")[0])
        return tensor(family, exact)
    if name == "view" and args and dtypes.of_value(args[0]):
        return dtypes.with_dtype(receiver, *(dtypes.of_value(args[0]) or ("", "")))
    if name in {
        "contiguous",
        "clone",
        "requires_grad_",
        "expand",
        "repeat",
        "fill_",
        "zero_",
        "share_memory_",
    }:
        return tensor(
            receiver.dtype, receiver.exact, receiver.ndim, view=name == "expand", origin=receiver.origin
        )
    bare = name[:-1] if name.endswith("_") and not name.startswith("_") else name
    if bare in {"logical_not", "bitwise_not"}:
        return tensor(
            "bool" if bare == "logical_not" else receiver.dtype, ndim=receiver.ndim, origin=receiver.origin
        )
    return library.tensor_function(bare, [receiver, *args], keywords)


def _converted(receiver: Tensor, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`.to(...)`: the dtype where one is said; a device leaves it."""
    for value in [*args, keywords.get("dtype", NONE)]:
        said = dtypes.of_value(value)
        if said:
            return dtypes.with_dtype(receiver, *said)
        if isinstance(value, Tensor):
            return dtypes.with_dtype(receiver, value.dtype, value.exact)
        if isinstance(value, Static) and value.kind == "dtype":
            # `.to(other.dtype)`: nothing is said of it, but it is hardly ever a change to bool.
            return dtypes.with_dtype(receiver, "float" if receiver.dtype == "float" else "")
    if any(value is UNKNOWN for value in args):
        return dtypes.with_dtype(receiver, receiver.dtype if receiver.dtype == "float" else "")
    return receiver


def _of_unknown(frame: Frame, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    if name in library.TENSOR_ONLY_METHODS or name in _UNKNOWN_RESULT_TENSOR:
        return of_tensor(TENSOR, name, args, keywords)
    if name in {"size", "dim", "numel", "item", "tolist", "stride", "is_floating_point", "get_seq_length"}:
        return STATIC
    if name == "get_interface" or name == "get":
        functions = [value for value in args if isinstance(value, Function)]
        if functions:
            return functions[0]
    from tpuport.lint.interpreter import calls

    return calls.escape(frame, args, keywords, name)


# On a receiver that is not known, in traced code: arrays of other libraries do not come there.
_UNKNOWN_RESULT_TENSOR: Final = frozenset("view reshape mean sum abs sqrt pow clone std".split())


def _of_static(
    frame: Frame, node: ast.Call, receiver: Static, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if receiver.kind == "str":
        if name == "format" and frame.emitting and not frame.raising:
            for part, value in zip(node.args, args, strict=False):
                if is_tensor(value):
                    frame.tell(Formatted(part, value))
        return STR if name in {"format", "lower", "upper", "strip", "replace", "join"} else STATIC
    if name == "get_interface" or name == "get":
        functions = [value for value in args if isinstance(value, Function)]
        if functions:
            return functions[0]
    return receiver if receiver.kind == "config" else STATIC


def _of_sequence(frame: Frame, node: ast.Call, receiver: Sequence, name: str, args: list[Value]) -> Value:
    if name in {"append", "add", "appendleft"} and args:
        _replace(frame, node, _grown(receiver, args[0]), args[0])
        return NONE
    if name == "insert" and len(args) > 1:
        _replace(frame, node, _grown(receiver, args[1]), args[1])
        return NONE
    if name in {"extend", "update"} and args:
        element = iteration.element(frame, args[0])
        _replace(frame, node, _grown(receiver, element), element)
        return NONE
    if name in {"pop", "popleft", "__getitem__"}:
        return receiver.element
    if name == "copy":
        return receiver
    if name in {"index", "count", "__len__"}:
        return INT
    if name in {"forward"} and receiver.kind == "sequential":
        from tpuport.lint.interpreter import calls

        return calls.apply(frame, receiver, args, {}, node)
    if receiver.kind in {"modules", "sequential"} and name in _FLUENT:
        return receiver
    return UNKNOWN


def _grown(receiver: Sequence, value: Value) -> Value:
    """The list with one element more."""
    fresh = receiver.items == () or (receiver.element is UNKNOWN and not receiver.tensors)
    return Sequence(
        receiver.kind,
        None,
        value if fresh else join(receiver.element, value),
        receiver.tensors or is_tensor(value),
    )


def _replace(frame: Frame, node: ast.Call, value: Value, added: Value | None) -> None:
    """The container that a method changed is another from here on."""
    func = node.func
    if not isinstance(func, ast.Attribute):
        return
    path = path_of(func.value)
    if path is None:
        return
    frame.env[path] = value
    holder = func.value
    if isinstance(holder, ast.Attribute) and isinstance(holder.value, ast.Name):
        on_self = holder.value.id == frame.self_name
        if on_self and frame.building is not None:
            frame.building[holder.attr] = value
        if frame.emitting and added is not None:
            owner = frame.name(holder.value.id)
            frame.tell(AttributeStore(node, owner, on_self, holder.attr, added, in_container=True))


def _of_mapping(
    frame: Frame, node: ast.Call, receiver: Mapping, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    values = join_all(
        [*(value for _, value in receiver.entries), *([receiver.element] if not receiver.entries else [])]
    )
    key = args[0].constant if args and isinstance(args[0], Static) else ...
    if name in {"get", "pop", "setdefault", "__getitem__"} and args:
        found = receiver.get(key) if key is not ... else values
        if name == "get" and found is UNKNOWN and len(args) > 1 and isinstance(args[1], Function):
            return args[1]
        missing = key is not ... and key not in {entry for entry, _ in receiver.entries}
        return join(found, args[1]) if len(args) > 1 and missing and found is not UNKNOWN else found
    if name == "items":
        return Sequence("iterator", None, Sequence("tuple", (STATIC, values), UNKNOWN))
    if name == "values":
        return Sequence("iterator", None, values)
    if name == "keys":
        return Sequence("dict_views", None, STATIC)
    if name == "copy":
        return receiver
    if name == "update":
        added = args[0].entries if args and isinstance(args[0], Mapping) else ()
        entries = {**dict(receiver.entries), **dict(added), **keywords}
        _replace(frame, node, Mapping(tuple(entries.items()), receiver.element), None)
        return NONE
    return UNKNOWN


def _of_instance(
    frame: Frame, node: ast.Call, receiver: Instance, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """Methods that an instance has from a library's base class, of `nn.Module` above all."""
    if name in _FLUENT:
        return receiver
    if name in {"register_buffer", "register_parameter", "add_module", "register_module"}:
        _registered(frame, node, name, args, keywords)
        return NONE
    if name in {"parameters", "buffers"}:
        return Sequence("iterator", None, tensor(origin="parameter"))
    if name in {"named_parameters", "named_buffers"}:
        return Sequence("iterator", None, Sequence("tuple", (STR, tensor(origin="parameter")), UNKNOWN))
    if name in {"get_seq_length", "get_max_cache_shape", "is_gradient_checkpointing"}:
        return STATIC
    from tpuport.lint.interpreter import calls

    return calls.escape(frame, args, keywords, name)


def _registered(
    frame: Frame, node: ast.Call, name: str, args: list[Value], keywords: dict[str, Value]
) -> None:
    if frame.building is None:
        return
    key = args[0] if args else keywords.get("name", UNKNOWN)
    value = (
        args[1]
        if len(args) > 1
        else keywords.get("tensor", keywords.get("param", keywords.get("module", NONE)))
    )
    if not (isinstance(key, Static) and isinstance(key.constant, str)):
        return
    if isinstance(value, Tensor):
        origin = "buffer" if name == "register_buffer" else "parameter"
        value = tensor(value.dtype, value.exact, value.ndim, value.optional, False, origin)
    elif name == "register_buffer" and value is UNKNOWN:
        value = tensor(origin="buffer")
    frame.building[key.constant] = value
