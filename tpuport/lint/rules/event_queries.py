"""What several rules ask about an event or a value."""

import ast
from typing import Any, Final

from tpuport.lint.abstract_values import (
    Instance,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    is_traced,
)
from tpuport.lint.dtype_families import dtype_of_argument
from tpuport.lint.events import AttributeStore, Call, Text, Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Hit

# --- values ---


def has_tensor(value: Value | None) -> bool:
    """Whether it is certainly a traced tensor, or a list or tuple with one in it."""
    if isinstance(value, Sequence):
        return value.tensors
    return is_traced(value)


def is_mask(value: Value) -> bool:
    """Whether it is a traced tensor of booleans: by its dtype, or by its name if the
    dtype is not known.
    """
    if not isinstance(value, Tensor) or value.host:
        return False
    return value.dtype == "bool" or (value.dtype == "" and value.origin == "mask")


def is_weight(value: Value | None) -> bool:
    """Whether it is a parameter or a buffer."""
    return isinstance(value, Tensor) and value.origin in {"parameter", "buffer"}


def is_missing_or_none(value: Value | None) -> bool:
    """Whether an argument is missing, or certainly None."""
    return value is None or (isinstance(value, Static) and value.kind == "none")


# --- calls ---

_TENSOR_NAMESPACES: Final = frozenset({"torch", "torch.nn.functional", "torch.Tensor"})


def is_call_of(event: Call, *names: str) -> bool:
    """Whether it is `torch.name(...)`, `torch.nn.functional.name(...)` or
    `tensor.name(...)`.

    A method of an unknown receiver counts too: only tensors have methods of the names
    that rules ask for. What is done with a tensor of the host does not: it has values,
    also while tracing.
    """
    if event.receiver is not None:
        return (
            event.name in names
            and isinstance(event.receiver, Tensor | Unknown)
            and not _is_of_host(event)
        )
    head, _, last = event.name.rpartition(".")
    return last in names and head in _TENSOR_NAMESPACES and not _is_of_host(event)


def _is_of_host(event: Call) -> bool:
    """Whether the tensor that a function works on is one of the host."""
    match operands(event):
        case [Tensor(host=True), *_]:
            return True
        case _:
            return False


def is_method_of_tensor(event: Call, *names: str) -> bool:
    """Whether it is `tensor.name(...)` of what is certainly a tensor."""
    return event.name in names and isinstance(event.receiver, Tensor)


def operands(event: Call) -> list[Value]:
    """The tensor that the function works on and its further arguments, for both ways of
    writing it.
    """
    if event.receiver is None:
        return event.args
    return [event.receiver, *event.args]


def argument(event: Call, position: int, *names: str) -> Value | None:
    """An argument by position (the tensor itself is 0) or by one of its names; None if
    it is missing.
    """
    for name in names:
        if name in event.keywords:
            return event.keywords[name]
    positional = operands(event)
    if position < len(positional):
        return positional[position]
    return None


def keyword_nodes(call: ast.Call, *names: str) -> list[ast.expr]:
    """The expressions of these keyword arguments."""
    return [keyword.value for keyword in call.keywords if keyword.arg in names]


def following_text(call: ast.Call, context: Context) -> str:
    """What is written after a call: the rest of its last line, and the next one."""
    last = (call.end_lineno or call.lineno) - 1
    # Offsets of syntax nodes count bytes.
    rest_of_line = context.source[last].encode()[call.end_col_offset or 0 :].decode()
    return "\n".join((rest_of_line, *context.source[last + 1 : last + 2]))


def dtype_hits(event: Call, *dtypes: str) -> list[Hit]:
    """A hit at the first argument that names one of these dtypes: in `dtype=`,
    `.to(...)` or `.type(...)`.
    """
    is_cast = event.name in {"to", "type"}
    if not is_cast and "dtype" not in event.keywords:
        return []
    pairs: list[tuple[ast.expr, Value]] = []
    # `finfo(torch.float16)` computes nothing in the dtype; a function without a name is
    # the linted code's.
    if "dtype" in event.keywords and event.name not in {
        "",
        "torch.finfo",
        "torch.iinfo",
    }:
        pairs += [
            (node, event.keywords["dtype"])
            for node in keyword_nodes(event.call, "dtype")
        ]
    if is_cast and not any(isinstance(node, ast.Starred) for node in event.call.args):
        pairs += zip(event.call.args, event.args, strict=False)
    for node, value in pairs:
        dtype = dtype_of_argument(value)
        if dtype and dtype.exact in dtypes:
            return [Hit(node=node)]
    return []


def is_minus_infinity(node: ast.expr) -> bool:
    """Whether an expression is minus infinity as it is written: `float("-inf")`,
    `-torch.inf`.
    """
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Attribute(attr="inf")):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_float_of(operand, "inf", "infinity")
    return _is_float_of(node, "-inf", "-infinity")


def _is_float_of(node: ast.expr, *texts: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=text), *_]):
            return text in texts
    return False


# --- GPU-only code ---


def gpu_hit(event: Use | Text, warn_in_host_code: bool = True) -> Hit | None:
    """A hit for something that needs a GPU.

    An error if the port is certain to run it: at import, in a module's `__init__`, in
    traced code. A warning under a condition, and in host code unless
    `warn_in_host_code` is false. None if the code asks for the GPU first.
    """
    is_model_code = event.traced or event.in_init
    # A `try` in host code lets the program go on without a GPU.
    if event.checked or (event.tried and not is_model_code):
        return None
    if is_model_code or (event.at_import and not event.guarded):
        return Hit(severity=Severity.WARNING if event.guarded else Severity.ERROR)
    return Hit(severity=Severity.WARNING) if warn_in_host_code else None


# --- state ---


def class_facts(info: Any) -> dict[str, Any]:
    """What the interpreter found out about a class; missing if it had no reason to
    ask.
    """
    return vars(info)


def stored_tensor_hit(event: AttributeStore) -> Hit | None:
    """A tensor stored in a module that outlives the call."""
    if not isinstance(event.base, Instance) or not has_tensor(event.value):
        return None
    if not class_facts(event.base.info).get("is_module"):
        return None
    return Hit(stops=False)
