"""What torch itself says about the operation that failed: tried again with tensors that
have shapes and no values.
"""

import ast
import builtins
import collections
import contextlib
import itertools
import operator
import re
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from tpuport.internals.torch_internals import outside_of_modes, torch_pytree
from tpuport.trace_errors.libraries import Owner
from tpuport.trace_errors.lint_matches import node_at
from tpuport.trace_errors.tracebacks import ErrorPath, Frame

# Tensors without values cannot do everything: what torch says then is about that, and
# not about the operation.
_WITHOUT_VALUES: Final = re.compile(
    r"\bmeta\b|data-dependent|does not have a (storage|kernel)", re.IGNORECASE
)
_LONGEST: Final = 60  # characters of an operand's repr
# Where torch's operators are, and where they check their arguments.
_OWN_OPERATORS: Final = (
    "tpuport.compat.operators.",
    "tpuport.compat.randomness.",
    "tpuport.compat.argument_checks",
)
# Its functions have the operation as `func`, `args` and `kwargs`.
_DISPATCH: Final = "tpuport.compat.operators.dispatching"
# tpuport's own `tensor[key] = value`: Python calls them, and torchax does not see the
# operation.
_ITEM_MODULE: Final = "tpuport.compat.operators.indexing"
_ITEM_WRITERS: Final = ("set_item",)
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Invert: operator.invert, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_SIGNS: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "div": "/",
}  # fmt: skip


_DEVICES = re.compile(r"same device.*\bmeta\b|\bmeta\b.*same device", re.DOTALL)


class Trial(NamedTuple):
    """An operation that failed while tracing, and what torch says about it.

    Attributes:
        operation: with the dtypes and shapes of its operands: "linear(float32[128,128],
            float32[64,64])".
        error: torch's own error; None if torch accepts the operation or could not be
            asked.
        is_accepted: whether torch accepts it.
        mixes_devices: whether the tensor that the operation reads or writes first is on
            the host, and others are on the device.
    """

    operation: str
    error: Exception | None = None
    is_accepted: bool = False
    mixes_devices: bool = False


class _Operation(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def try_operation(path: ErrorPath) -> Trial | None:
    """What torch says about the operation at the end of a path; None if none is known.

    Args:
        path: to an error that tracing raised. The operation is the one that the
            innermost line of the model's code asks for, with the operands that torch or
            Python passed on.
    """
    operation = _dispatched_operation(path) or _written_operation(path)
    if operation is None:
        return None
    text = _render_operation(operation)
    # torch was asked with tensors without values in place of those of the device.
    is_about_devices = _DEVICES.search(str(path.error))
    if _mixes_devices(operation) or is_about_devices:
        return Trial(text, mixes_devices=True)
    try:
        with outside_of_modes(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            operation.function(
                *_without_values(operation.args), **_without_values(operation.kwargs)
            )
    except NotImplementedError:
        return Trial(text)
    except Exception as error:  # noqa: BLE001 - whatever torch says
        if _WITHOUT_VALUES.search(str(error)):
            return Trial(text)
        return Trial(text, error)
    if _is_refused_for_torch(path):
        return Trial(text, path.error)  # type: ignore[arg-type]
    return Trial(text, is_accepted=True)


def _is_refused_for_torch(path: ErrorPath) -> bool:
    """Whether the error is tpuport's for what torch refuses with values: its own
    refusals of what torch accepts are PortErrors.
    """
    module = path.frames[-1].module if path.frames else ""
    return type(path.error) is RuntimeError and module.startswith(_OWN_OPERATORS)


def _mixes_devices(operation: _Operation) -> bool:
    match operation.args:
        # A tensor without dimensions may be on the host: torch takes it for a number.
        case [torch.Tensor() as first, *_] if first.ndim and first.device.type not in (
            "jax",
            "meta",
        ):
            return any(
                map(
                    _is_on_device,
                    torch_pytree.tree_leaves((operation.args, operation.kwargs)),
                )
            )
    return False


def _is_on_device(value: Any) -> bool:
    """Whether this is a tensor, or a view, of torchax."""
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def _dispatched_operation(path: ErrorPath) -> _Operation | None:
    """The first operation that the device was asked for after the innermost line of the
    model's code.
    """
    library_frames = itertools.takewhile(
        lambda frame: frame.owner == Owner.LIBRARY, reversed(path.frames)
    )
    for frame in reversed(list(library_frames)):
        variables = frame.python.f_locals
        if frame.module == _DISPATCH and {"func", "args"}.issubset(variables):
            args, kwargs = variables["args"], variables.get("kwargs")
            return _Operation(variables["func"], tuple(args), dict(kwargs or {}))
        if frame.module == _ITEM_MODULE and frame.function in _ITEM_WRITERS:
            names = frame.python.f_code.co_varnames[:3]
            return _Operation(
                torch.Tensor.__setitem__, operator.itemgetter(*names)(variables), {}
            )
    return None


def _written_operation(path: ErrorPath) -> _Operation | None:
    """The operation between two operands at the end of the path: Python replaced
    torch's error by its own.
    """
    if path.is_raised_by_library or not isinstance(path.error, TypeError):
        return None
    frame = path.frames[-1]
    match node_at(frame):
        case (
            ast.BinOp(left=left, op=kind, right=right)
            | ast.Compare(left=left, ops=[kind], comparators=[right])
            | ast.AugAssign(target=left, op=kind, value=right)
        ):
            # Operands that only the model's code could compute again may raise
            # anything.
            with (
                contextlib.suppress(Exception),
                outside_of_modes(),
            ):
                operands = _evaluate(left, frame), _evaluate(right, frame)
                return _Operation(_OPERATORS[type(kind)], operands, {})
    return None


def _evaluate(node: ast.AST | None, frame: Frame) -> Any:
    """The value of an expression, with tensors that have no values; code of the model's
    is not called for it.

    Raises:
        LookupError: it is an expression of another kind.
    """
    match node:
        case None:
            return None
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _without_values(_look_up(name, frame))
        case ast.Attribute(value=owner, attr=name):
            return _without_values(getattr(_evaluate(owner, frame), name))
        case ast.Subscript(value=owner, slice=index):
            return _without_values(_evaluate(owner, frame)[_evaluate(index, frame)])
        case ast.Slice(lower=start, upper=stop, step=step):
            return slice(*(_evaluate(bound, frame) for bound in (start, stop, step)))
        case ast.Tuple(elts=elements):
            return tuple(_evaluate(element, frame) for element in elements)
        case ast.List(elts=elements):
            return [_evaluate(element, frame) for element in elements]
    return _compute(node, frame)


def _compute(node: ast.AST, frame: Frame) -> Any:
    """The value of an expression with operators or calls; as `_evaluate`."""
    match node:
        case ast.UnaryOp(op=kind, operand=operand):
            return _OPERATORS[type(kind)](_evaluate(operand, frame))
        case ast.BinOp(left=left, op=kind, right=right):
            return _OPERATORS[type(kind)](
                _evaluate(left, frame), _evaluate(right, frame)
            )
        case ast.Call(
            func=ast.Attribute(value=owner, attr=name), args=args, keywords=keywords
        ):
            return _call_torch(_evaluate(owner, frame), name, args, keywords, frame)
    raise LookupError(ast.dump(node))


def _call_torch(
    owner: Any,
    name: str,
    args: list[ast.expr],
    keywords: list[ast.keyword],
    frame: Frame,
) -> Any:
    """The result of a method of a tensor, or of a function of torch.

    Raises:
        LookupError: it is a method of something else, which may do anything.
    """
    if not isinstance(owner, torch.Tensor) and owner not in (
        torch,
        torch.nn.functional,
    ):
        raise LookupError(name)
    named = {keyword.arg or "": _evaluate(keyword.value, frame) for keyword in keywords}
    return getattr(owner, name)(*(_evaluate(arg, frame) for arg in args), **named)


def _look_up(name: str, frame: Frame) -> Any:
    """The value of a variable; LookupError if there is none."""
    return collections.ChainMap(
        frame.python.f_locals, frame.python.f_globals, builtins.__dict__
    )[name]


def _without_values(tree: Any) -> Any:
    """Tensors on the meta device, as torch would have them."""
    # A device that is passed as a string is in no tensor.
    if isinstance(tree, dict) and "device" in tree:
        tree = {**tree, "device": torch.device("meta")}
    return torch_pytree.tree_map(_leaf_without_values, tree)


def _leaf_without_values(value: Any) -> Any:
    match value:
        case torch.device():
            return torch.device("meta")
        case torch.Tensor():
            return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
    return value


def _render_operation(operation: _Operation) -> str:
    function, args, kwargs = operation
    name = str(getattr(function, "__name__", function)).partition(".")[0]
    # In place, torch's name ends in a line.
    sign = _SIGNS.get(name) or _SIGNS.get(name.removesuffix("_"))
    if sign and len(args) == 2 and not kwargs:
        return f"{_render_value(args[0])} {sign} {_render_value(args[1])}"
    if name in ("__getitem__", "__setitem__"):
        tensor, key, *values = args
        indices = key if isinstance(key, tuple) else (key,)
        item = f"{_render_value(tensor)}[{', '.join(map(_render_value, indices))}]"
        return " = ".join([item, *map(_render_value, values)])
    arguments = [_render_value(arg) for arg in args if arg is not None]
    arguments += [
        f"{word}={_render_value(value)}"
        for word, value in kwargs.items()
        if value is not None
    ]
    return f"{name}({', '.join(arguments)})"


def _render_value(value: Any) -> str:
    """A tensor as reports show it, dtype and shape; any other value as Python shows
    it.
    """
    match value:
        case torch.Tensor():
            return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
        case tuple() | list():
            return f"({', '.join(map(_render_value, value))})"
        case slice():
            return _render_slice(value)
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _render_slice(value: slice) -> str:
    """As in an index: "2:", ":-1", "::2"."""
    bounds = [value.start, value.stop]
    if value.step is not None:
        bounds.append(value.step)
    return ":".join("" if bound is None else _render_value(bound) for bound in bounds)
