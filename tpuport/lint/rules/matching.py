"""What several rules ask of an event."""

import ast

from tpuport.lint.abstract_values import Sequence, Static, Tensor, Unknown, Value
from tpuport.lint.events import Call
from tpuport.lint.interpreter.dtype_families import dtype_of_argument


def is_call_of(event: Call, *names: str) -> bool:
    """Whether it is `torch.name(...)`, `torch.nn.functional.name(...)` or `tensor.name(...)`.

    A method counts on a tensor and on a thing that is not known: only tensors have the names that rules ask for.
    """
    if event.receiver is not None:
        return event.name in names and isinstance(event.receiver, Tensor | Unknown)
    head, _, last = event.name.rpartition(".")
    return last in names and head in {"torch", "torch.nn.functional", "torch.Tensor"}


def operands(event: Call) -> list[Value]:
    """The tensor the function works on and its further arguments, for both ways of writing it."""
    return event.args if event.receiver is None else [event.receiver, *event.args]


def argument(event: Call, position: int, *names: str) -> Value | None:
    """An argument by position (the tensor itself is 0) or by one of its keywords; None if it is not given."""
    for name in names:
        if name in event.keywords:
            return event.keywords[name]
    given = operands(event)
    return given[position] if len(given) > position else None


def holds_tensor(value: Value | None) -> bool:
    """Whether it surely is a tensor, or a list or tuple with a tensor in it."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Sequence):
        return value.tensors
    return False


def is_mask(value: Value) -> bool:
    """Whether it is a tensor of booleans: by dtype, or by being called a mask where no dtype is known."""
    return isinstance(value, Tensor) and (
        value.dtype == "bool" or (value.dtype == "" and value.origin == "mask")
    )


def is_none(value: Value | None) -> bool:
    """Whether it is not given, or surely None."""
    return value is None or (isinstance(value, Static) and value.kind == "none")


def said_dtype(event: Call, *names: str) -> ast.expr | None:
    """The argument that names one of these dtypes: of `dtype=`, of `.to(...)` and `.type(...)`; None if none does."""
    if not event.name or event.name in {"torch.finfo", "torch.iinfo"}:
        return None
    for keyword in event.call.keywords:
        said = dtype_of_argument(event.keywords.get(keyword.arg or "")) if keyword.arg == "dtype" else None
        if said and said[1] in names:
            return keyword.value
    if event.name not in {"to", "type"} or any(isinstance(node, ast.Starred) for node in event.call.args):
        return None
    for node, value in zip(event.call.args, event.args, strict=False):
        said = dtype_of_argument(value)
        if said and said[1] in names:
            return node
    return None


def minus_infinity(node: ast.expr) -> bool:
    """Whether an expression is minus infinity as it is written: `float("-inf")`, `-torch.inf`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _infinity(node.operand, "inf")
    return _infinity(node, "-inf")


def _infinity(node: ast.expr, text: str) -> bool:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float" and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in {text, text + "inity"}
    return text == "inf" and isinstance(node, ast.Attribute) and node.attr == "inf"
