"""Attributes of values."""

from typing import TYPE_CHECKING, Final

from tpuport.lint.abstract_values import (
    BOOL,
    CONFIG,
    DEVICE,
    DTYPE,
    INT,
    SHAPE,
    STATIC,
    STR,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    Layer,
    Mapping,
    Method,
    Module,
    Partial,
    Sequence,
    Static,
    Tensor,
    Value,
    join_all,
    tensor,
)
from tpuport.lint.interpreter import library
from tpuport.lint.modules import ClassInfo

if TYPE_CHECKING:
    from tpuport.lint.interpreter.frame import Frame
    from tpuport.lint.interpreter.machine import Machine

ACTIVATION: Final = Layer("torch.nn.SiLU")

_OF_TENSOR: Final[dict[str, Value]] = {
    "shape": SHAPE, "dtype": DTYPE, "device": DEVICE, "ndim": INT, "is_cuda": BOOL, "requires_grad": BOOL,
    "layout": STATIC, "is_leaf": BOOL, "is_sparse": BOOL, "is_meta": BOOL, "is_quantized": BOOL, "names": STATIC,
    "itemsize": INT, "nbytes": INT, "is_nested": BOOL, "is_mps": BOOL, "is_cpu": BOOL, "grad_fn": STATIC,
}  # fmt: skip
_TENSOR_PARTS: Final = frozenset("T mT data real imag grad H mH".split())


def attribute(frame: "Frame", base: Value, name: str) -> Value:
    """What `base.name` is."""
    handler = _HANDLERS.get(type(base))
    return handler(frame, base, name) if handler is not None else UNKNOWN


def _of_tensor(frame: "Frame", base: Tensor, name: str) -> Value:
    known = _OF_TENSOR.get(name)
    if known is not None:
        return known
    if name in _TENSOR_PARTS:
        return tensor(base.dtype, base.exact, base.ndim, view=name != "grad", origin=base.origin)
    # A named tuple's fields, of a value that was taken for a tensor: `x.max(dim=1).values`.
    if name in {"values", "indices"}:
        return tensor(base.dtype if name == "values" else "int")
    return Method(base, name)


def _of_static(frame: "Frame", base: Static, name: str) -> Value:
    if base.kind == "config":
        return Method(base, name) if name in {"get", "to_dict"} else CONFIG
    if base.kind in {"str", ""}:
        return Method(base, name)
    return {"type": STR, "is_floating_point": BOOL, "is_complex": BOOL, "itemsize": INT}.get(
        name, Method(base, name)
    )


def _of_sequence(frame: "Frame", base: Sequence, name: str) -> Value:
    if name in {"values", "indices", "sin", "cos"} and base.items is not None and len(base.items) == 2:
        return base.items[0 if name in {"values", "cos"} else 1]
    if name == "values":
        return base.element
    return Method(base, name)


def _of_external(frame: "Frame", base: External, name: str) -> Value:
    return library.attribute(f"{base.name}.{name}")


def _of_layer(frame: "Frame", base: Layer, name: str) -> Value:
    if name[:1].islower() and name in {"forward", *_LAYER_METHODS}:
        return Method(base, name)
    return library.layer_attribute(base.name, name)


_LAYER_METHODS: Final = (
    "to",
    "eval",
    "train",
    "half",
    "float",
    "cuda",
    "cpu",
    "requires_grad_",
    "state_dict",
)


def _of_instance(frame: "Frame", base: Instance, name: str) -> Value:
    return frame.machine.classes.attribute(frame, base, name)


def _of_class(frame: "Frame", base: Class, name: str) -> Value:
    classes = frame.machine.classes
    method = classes.method(base.info, name)
    if method is None and name == "apply" and classes.is_autograd_function(base.info):
        return _applied(frame, base.info)
    if method is not None:
        return Function(method, base if method.is_a("classmethod") else None)
    if classes.is_enumeration(base.info):
        return STATIC
    return classes.class_level(base.info, name) or (STATIC if name.startswith("__") else UNKNOWN)


def _applied(frame: "Frame", info: ClassInfo) -> Value:
    """`MyFunction.apply` of a `torch.autograd.Function`: its forward, behind a context that only backward reads."""
    classes = frame.machine.classes
    forward = classes.method(info, "forward")
    if forward is None:
        return UNKNOWN
    context = () if classes.method(info, "setup_context") else (STATIC,)
    return Partial(Function(forward), context, ())


def _of_module(frame: "Frame", base: Module, name: str) -> Value:
    machine = frame.machine
    value = machine.project.lookup(base.info, name)
    if value is not None:
        return machine.global_name(base.info, name)
    submodule = machine.project.module(f"{base.info.name}.{name}", base.info)
    return Module(submodule) if submodule else External(f"{base.info.name}.{name}")


def _of_function(frame: "Frame", base: Function, name: str) -> Value:
    return STATIC if name.startswith("__") else UNKNOWN


def _of_partial(frame: "Frame", base: Partial, name: str) -> Value:
    return base.target if name == "func" else UNKNOWN


def _of_choice(frame: "Frame", base: Choice, name: str) -> Value:
    return join_all([attribute(frame, option, name) for option in base.options])


def _of_unknown(frame: "Frame", base: Value, name: str) -> Value:
    if name in {"shape", "dtype", "device", "ndim", "training", "is_cuda"}:
        return _OF_TENSOR.get(name, STATIC)
    if name == "config" or name.endswith("_config"):
        return CONFIG
    return Method(base, name)


_HANDLERS: Final = {
    Tensor: _of_tensor,
    Static: _of_static,
    Sequence: _of_sequence,
    Mapping: lambda frame, base, name: Method(base, name),
    External: _of_external,
    Layer: _of_layer,
    Instance: _of_instance,
    Class: _of_class,
    Module: _of_module,
    Function: _of_function,
    Partial: _of_partial,
    Choice: _of_choice,
    Method: lambda frame, base, name: _of_unknown(frame, UNKNOWN, name),
    type(UNKNOWN): _of_unknown,
}


def above(machine: "Machine", receiver: Value | None, owner: ClassInfo | None, name: str) -> Value:
    """`super().name` in a method of `owner`, for an object of whatever class `receiver` is."""
    if owner is None or not isinstance(receiver, Instance | Class):
        return UNKNOWN
    classes = machine.classes
    order = classes.mro(receiver.info)
    if owner not in order:
        order = classes.mro(owner)
    for info in order[order.index(owner) + 1 :]:
        if name in info.methods:
            return Function(info.methods[name], receiver)
    # Of a library's class; `super().forward(x)` of a torch layer gives what that layer gives.
    external = classes.external_base(receiver.info)
    if name in {"forward", "__call__"} and external.startswith("torch.nn.") and external != "torch.nn.Module":
        return Layer(external)
    return Method(receiver, name)


def item(frame: "Frame", base: Instance, key: Value) -> Value:
    """`instance[key]`: by its own `__getitem__`, or the fields of an output class in their order."""
    classes = frame.machine.classes
    constant = key.constant if isinstance(key, Static) else ...
    if isinstance(constant, str):
        return classes.attribute(frame, base, constant)
    method = classes.method(base.info, "__getitem__")
    if method is not None and not classes.is_output(base.info):
        return frame.machine.call_function(method, base, [key], {}, frame)
    if constant == 0:
        for _, value in base.fields or tuple(classes.declared_fields(base.info).items()):
            if not (isinstance(value, Static) and value.constant is None):
                return value
    return UNKNOWN
