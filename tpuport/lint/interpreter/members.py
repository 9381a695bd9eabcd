"""Attributes of values, items of instances, and what constructing a class of the linted
code returns.
"""

import ast
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    BOOL,
    CONFIG,
    DEVICE,
    DTYPE,
    FALSE,
    INT,
    NONE,
    SHAPE,
    STATIC,
    STR,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    Interpreted,
    KeyValueCache,
    Layer,
    Mapping,
    Method,
    Module,
    Namespace,
    Partial,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    changed,
    is_config_name,
    tensor,
)
from tpuport.lint.interpreter import library
from tpuport.lint.interpreter.frame import ELEMENTS, Frame
from tpuport.lint.interpreter.masked_reads import KNOWN
from tpuport.lint.interpreter.placement import HOST_DEVICE, TRACED_DEVICE
from tpuport.lint.joins import (
    join,
    join_all,
    join_optional,
)
from tpuport.lint.modules import ClassInfo, FunctionInfo
from tpuport.lint.passed_arguments import Arguments

_TENSOR_ATTRIBUTES: Final[dict[str, Value]] = {
    "shape": SHAPE, "dtype": DTYPE, "device": TRACED_DEVICE, "ndim": INT, "is_cuda": FALSE, "requires_grad": BOOL,
    "layout": STATIC, "is_leaf": BOOL, "is_sparse": BOOL, "is_meta": BOOL, "is_quantized": BOOL, "names": STATIC,
    "itemsize": INT, "nbytes": INT, "is_nested": BOOL, "is_mps": FALSE, "is_cpu": BOOL, "grad_fn": STATIC,
}  # fmt: skip
_ARRAY_ATTRIBUTES: Final[dict[str, Value]] = {
    **dict.fromkeys(("T", "flat", "real", "imag"), STATIC),
    **dict.fromkeys(("size", "ndim"), INT),
    "shape": SHAPE,
}
_DTYPE_ATTRIBUTES: Final = {
    "type": STR, "is_floating_point": BOOL, "is_complex": BOOL, "itemsize": INT,
}  # fmt: skip
_LAYER_METHODS: Final = frozenset(
    "forward to eval train half float cuda cpu requires_grad_ state_dict".split()
)
_LAYER_WEIGHTS: Final = frozenset("weight bias running_mean running_var".split())
_GROUP: Final = Mapping(
    (("params", Sequence("list", None, tensor("float", origin="parameter"))),), UNKNOWN
)
# The state of a parameter is what the optimizer puts into it.
_ATTRIBUTES_OF_OPTIMIZERS: Final[dict[str, Value]] = {
    "param_groups": Sequence("list", None, _GROUP), "state": Mapping((), Mapping((), UNKNOWN)),
}  # fmt: skip
# These say the same of every object in traced code that has them.
_TELLING_ATTRIBUTES: Final = {
    "shape": SHAPE, "dtype": DTYPE, "device": DEVICE, "ndim": INT, "is_cuda": BOOL, "training": STATIC,
}  # fmt: skip


def attribute(frame: Frame, base: Value, name: str) -> Value:
    """What `base.name` is."""
    return _HANDLERS[type(base)](frame, base, name)


def _of_tensor(frame: Frame, base: Tensor, name: str) -> Value:
    match name:
        case "grad":
            return tensor(base.dtype, base.exact, base.ndim, origin=base.origin)
        # These share memory with the tensor.
        case "T" | "mT" | "H" | "mH" | "data" | "real" | "imag":
            return changed(base, optional=False, view=True)
        case "device" if base.host:
            return HOST_DEVICE
        # The fields of a named tuple that was taken for a tensor:
        # `x.max(dim=1).values`.
        case "values":
            return tensor(base.dtype, host=base.host, decided=base.decided)
        case "indices":
            return tensor("int", host=base.host, decided=base.decided)
        case _:
            known = _TENSOR_ATTRIBUTES.get(name)
            if base.masked_read is not None and known and name not in KNOWN:
                frame.interpreter.report_read(base.masked_read)
            return known or Method(base, name)


def _of_static(frame: Frame, base: Static, name: str) -> Value:
    match base.kind, name:
        # Settings read other settings, apart from the methods of a configuration that
        # is a dict.
        case ("config", "get" | "to_dict") | ("str", _):
            return Method(base, name)
        # Python objects of which nothing else is known are arrays of NumPy above all.
        case "", _:
            return _ARRAY_ATTRIBUTES.get(name) or Method(base, name)
        case "config", _:
            return CONFIG
        case "device", "type":
            return Static("str", base.constant)
        case _:
            return _DTYPE_ATTRIBUTES.get(name) or Method(base, name)


def _of_sequence(frame: Frame, base: Sequence, name: str) -> Value:
    """Also of two results that a function returns as a tuple: `x.max(dim=1).values`,
    `rotary(x).cos`.
    """
    match base.items, name:
        case [values, _], "values" | "cos":
            return values
        case [_, indices], "indices" | "sin":
            return indices
        case _, "values":
            return base.element
        case _:
            return Method(base, name)


def _of_external(frame: Frame, base: External, name: str) -> Value:
    if base.missing:
        return External(f"{base.name}.{name}", missing=True)
    return library.attribute(f"{base.name}.{name}")


def _of_layer(frame: Frame, base: Layer, name: str) -> Value:
    if name in _LAYER_METHODS or name in library.METHODS_OF_DISTRIBUTIONS:
        return Method(base, name)
    if base.name.startswith(library.OPTIMIZERS):
        return _ATTRIBUTES_OF_OPTIMIZERS.get(name) or Method(base, name)
    return library.layer_attribute(base.name, name)


def _of_class(frame: Frame, base: Class, name: str) -> Value:
    classes = frame.interpreter.classes
    method = classes.method(base.info, name)
    if method is not None:
        return Function(method, base if method.is_a("classmethod") else None)
    if name == "apply" and classes.is_autograd_function(base.info):
        return _autograd_forward(frame, base.info)
    # Members of an enumeration are constants, whatever their values are.
    if classes.is_enumeration(base.info):
        return STATIC
    return classes.class_level(base.info, name) or _of_function(frame, base, name)


def _autograd_forward(frame: Frame, info: ClassInfo) -> Value:
    """`MyFunction.apply` of a `torch.autograd.Function`: its forward, after a context
    that only backward reads.
    """
    classes = frame.interpreter.classes
    forward = classes.method(info, "forward")
    if forward is None:
        return UNKNOWN
    # In the newer style, a method of its own gets the context.
    if classes.method(info, "setup_context"):
        return Function(forward)
    return Partial(Function(forward), (STATIC,), ())


def _of_module(frame: Frame, base: Module, name: str) -> Value:
    interpreter = frame.interpreter
    if interpreter.project.lookup(base.info, name) is not None:
        return interpreter.global_name(base.info, name)
    dotted = f"{base.info.name}.{name}"
    submodule = interpreter.project.module(dotted, base.info)
    return Module(submodule) if submodule else External(dotted)


def _of_function(frame: Frame, base: Function | Class, name: str) -> Value:
    # `__name__`, `__doc__`, `__module__`
    return STATIC if name.startswith("__") else UNKNOWN


def _of_partial(frame: Frame, base: Partial, name: str) -> Value:
    return base.target if name == "func" else UNKNOWN


def _of_choice(frame: Frame, base: Choice, name: str) -> Value:
    values = [attribute(frame, option, name) for option in base.options]
    # An option whose class does not define it is not meant.
    defined = [value for value in values if not isinstance(value, Method)]
    return join_all(defined or values)


def _of_mapping(frame: Frame, base: Mapping, name: str) -> Value:
    return Method(base, name)


def _of_cache(frame: Frame, base: KeyValueCache, name: str) -> Value:
    # The two parts of an encoder-decoder cache are caches themselves.
    return (
        base
        if name in {"self_attention_cache", "cross_attention_cache"}
        else Method(base, name)
    )


def _of_namespace(frame: Frame, base: Namespace, name: str) -> Value:
    return dict(base.attributes).get(name, UNKNOWN)


def _of_method(frame: Frame, base: Method, name: str) -> Value:
    return _of_unknown(frame, UNKNOWN, name)


def _of_unknown(frame: Frame, base: Value, name: str) -> Value:
    if is_config_name(name):
        return CONFIG
    return _TELLING_ATTRIBUTES.get(name) or Method(base, name)


# --- instances of the linted code's classes ---


def _of_instance(frame: Frame, base: Instance, name: str) -> Value:
    info = base.info
    classes = frame.interpreter.classes
    fields = dict(base.fields)
    if frame.is_building(base):
        fields = (frame.building or {}) | fields
    # A method may have replaced None since.
    if name in fields and not (
        fields[name] == NONE and classes.is_set_later(info, name)
    ):
        return fields[name]
    method = classes.method(info, name)
    if method is not None:
        return _bound_method(frame, base, method)
    value = _attribute_set_by_methods(frame, info, name)
    if value is not None:
        return value
    value = classes.class_level(info, name)
    match value:
        case None:
            return _inherited_attribute(frame, base, name)
        # A flag of a module class is often changed from outside.
        case Static() if classes.is_module(info):
            return UNKNOWN
        case Static() if not classes.is_output(info):
            return _declared_field(frame, info, name, value)
        # `field(default_factory=dict)`
        case Unknown():
            return classes.declared_fields(info).get(name, UNKNOWN)
        case _:
            return value


def _declared_field(frame: Frame, info: ClassInfo, name: str, default: Static) -> Value:
    """A field of a dataclass, of which its default is an example: whoever creates the
    object may pass another.
    """
    declared = frame.interpreter.classes.declared_fields(info).get(name)
    if declared is None:
        return default
    if declared is not UNKNOWN:
        return declared
    return UNKNOWN if default == NONE else Static(default.kind)


def _bound_method(frame: Frame, base: Instance, method: FunctionInfo) -> Value:
    if method.is_a("property", "cached_property", "lazy_property"):
        value = frame.interpreter.call_function(
            frame, Function(method, base), Arguments([], {})
        )
        # `-> int` is written for `self._step`, which the constructor sets to None, as
        # well.
        return join(value, NONE) if _starts_as_none(frame, method) else value
    if method.is_a("staticmethod"):
        return Function(method)
    if method.is_a("classmethod"):
        return Function(method, Class(base.info))
    return Function(method, base)


def _starts_as_none(frame: Frame, method: FunctionInfo) -> bool:
    """Whether a property returns an attribute that the constructor sets to None, for
    other methods to fill.
    """
    if method.owner is None or isinstance(method.node, ast.Lambda):
        return False
    match method.node.body[-1]:
        case ast.Return(value=ast.Attribute(value=ast.Name(), attr=name)):
            return frame.interpreter.classes.attributes(method.owner).get(name) == NONE
        case _:
            return False


def _attribute_set_by_methods(frame: Frame, info: ClassInfo, name: str) -> Value | None:
    classes = frame.interpreter.classes
    value = classes.attributes(info).get(name)
    match value:
        case None | Static(constant=None):
            # `self.cache = None` in `__init__`: another method sets the real value.
            later = classes.attribute_set_later(info, name)
            if later is not None:
                value = join_optional(value, later)
            elif value is not None and classes.is_set_later(info, name):
                value = UNKNOWN
    match value:
        case Mapping(entries=(), element=Unknown()):
            # `self.cache = {}` in `__init__`: other methods fill it.
            return Mapping((), classes.entries_set_later(info).get(name, UNKNOWN))
        case Sequence(kind="list", items=()) if name in classes.entries_set_later(info):
            return Sequence("list", None, classes.entries_set_later(info)[name])
        case Static(kind=kind) if value != NONE:
            # A constant that `__init__` sets may be changed later, so only its kind is
            # certain.
            return Static(kind)
        case _:
            return value


def _inherited_attribute(frame: Frame, base: Instance, name: str) -> Value:
    """An attribute that no code at hand sets."""
    classes = frame.interpreter.classes
    if is_config_name(name):
        return CONFIG
    match name:
        case "training" if frame.interpreter.options.training:
            return STATIC
        case "training":
            return FALSE
        case "dtype" | "device" if classes.is_module(base.info):
            return _TENSOR_ATTRIBUTES[name]
        case "__class__":
            return Class(base.info)
    fields = classes.declared_fields(base.info)
    if name in fields:
        return fields[name]
    if name in _ATTRIBUTES_OF_OPTIMIZERS and classes.is_optimizer(base.info):
        return _ATTRIBUTES_OF_OPTIMIZERS[name]
    layer_base = classes.layer_base(base.info)
    if name in _LAYER_WEIGHTS and layer_base:
        return library.layer_attribute(layer_base, name)
    return _computed_attribute(frame, base, name)


def _computed_attribute(frame: Frame, base: Instance, name: str) -> Value:
    """What the class's `__getattr__` gives for a name; a method where it has none."""
    getter = frame.interpreter.classes.method(base.info, "__getattr__")
    value: Value = UNKNOWN
    if getter is not None and not name.startswith("_"):
        value = frame.interpreter.call_function(
            frame, Function(getter, base), Arguments([Static("str", name)], {})
        )
    return Method(base, name) if value is UNKNOWN else value


_HANDLERS: Final[dict[type, Callable[[Frame, Any, str], Value]]] = {
    Tensor: _of_tensor,
    Static: _of_static,
    Sequence: _of_sequence,
    Mapping: _of_mapping,
    External: _of_external,
    Layer: _of_layer,
    Instance: _of_instance,
    Class: _of_class,
    Module: _of_module,
    Function: _of_function,
    Partial: _of_partial,
    Choice: _of_choice,
    Method: _of_method,
    Namespace: _of_namespace,
    KeyValueCache: _of_cache,
    Unknown: _of_unknown,
    Interpreted: _of_unknown,
}


def super_attribute(frame: Frame, name: str) -> Value:
    """`super().name`, for an object of whatever class `self` is."""
    # In a comprehension's lambda or a nested function, the method's frame is further
    # out.
    while frame.receiver is None and frame.parent is not None:
        frame = frame.parent
    receiver, owner = frame.receiver, frame.owner
    if owner is None or not isinstance(receiver, Instance | Class):
        return UNKNOWN
    classes = frame.interpreter.classes
    order = classes.mro(receiver.info)
    if owner not in order:
        order = classes.mro(owner)
    for info in order[order.index(owner) + 1 :]:
        if name in info.methods:
            return Function(info.methods[name], receiver)
    # `super().forward(x)` of a torch layer returns what that layer returns.
    layer_base = classes.layer_base(receiver.info)
    if layer_base and name in {"forward", "__call__"}:
        return Layer(layer_base)
    return Method(receiver, name)


def item(frame: Frame, base: Instance, key: Value) -> Value:
    """`instance[key]`: by its own `__getitem__`, or the fields of an output class in
    their order.
    """
    classes = frame.interpreter.classes
    if isinstance(key.constant, str):
        return _of_instance(frame, base, key.constant)
    elements = dict(base.fields).get(ELEMENTS)
    if elements is not None:
        return frame.element_of(elements)
    method = classes.method(base.info, "__getitem__")
    if method is not None and not classes.is_output(base.info):
        return frame.interpreter.call_function(
            frame, Function(method, base), Arguments([key], {})
        )
    # Which field is at a later position depends on how many before it are None.
    if key.constant != 0:
        return UNKNOWN
    fields = dict(base.fields) or classes.declared_fields(base.info)
    # Output classes leave out fields that are None.
    return next(
        (value for value in fields.values() if value.constant is not None), UNKNOWN
    )


def named_tuple_items(frame: Frame, value: Instance) -> tuple[Value, ...] | None:
    """The fields of a named tuple in the order of their declaration; None of an
    instance of another class.
    """
    classes = frame.interpreter.classes
    if not classes.is_named_tuple(value.info):
        return None
    declared = classes.declared_fields(value.info)
    return tuple((declared | dict(value.fields)).values())
