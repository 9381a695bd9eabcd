"""What torch itself says of the operation that failed: asked again with tensors that have shapes and no values."""

import ast
import builtins
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

from tpuport.compat import is_ported
from tpuport.compat.operators import indexing
from tpuport.topology.failures.expressions import place_of
from tpuport.topology.failures.frames import Frame, Way

# Tensors without values cannot do everything: what torch says then is about that, and not about the operation.
_WITHOUT_VALUES: Final = re.compile(
    r"\bmeta\b|data-dependent|does not have a (storage|kernel)", re.IGNORECASE
)
_LONGEST: Final = 60
_WRITES: Final = (indexing.set_tensor_item.__name__, indexing.set_view_item.__name__)
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
    "eq": "==", "ne": "!=",
}  # fmt: skip


class Asked(NamedTuple):
    """An operation that failed while tracing, and what torch says of it.

    Attributes:
        operation: with the dtypes and shapes of its operands: "linear(float32[128,128], float32[64,64])".
        refused: torch's own error; None where torch takes it, and where it is not known.
        taken: whether torch takes it.
        host: the tensor that the operation reads or writes first, where it is on the host and others are on the device.
    """

    operation: str
    refused: Exception | None = None
    taken: bool = False
    host: torch.Tensor | None = None


def asked(way: Way) -> Asked | None:
    """What torch says of the operation at the end of a way; None where none is known.

    Args:
        way: to an error that tracing raised. The operation is the one that the innermost line of the model's code asks
            for, with the operands that torch or Python handed on.
    """
    called = _call(way) or _expression(way)
    if called is None:
        return None
    function, args, kwargs = called
    tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    first = args[0] if args else None
    on_host = (
        isinstance(first, torch.Tensor) and not is_ported(first) and not first.is_meta and first.ndim > 0
    )
    said = Asked(_shown(function, args, kwargs))
    if on_host and any(is_ported(one) for one in tensors):
        return said._replace(host=first)
    try:
        with no_dispatch(), torch._C.DisableTorchFunction(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*_without_values(args), **_without_values(kwargs))
    except NotImplementedError:
        return said
    except Exception as error:  # noqa: BLE001 - whatever torch says
        return said if _WITHOUT_VALUES.search(str(error)) else said._replace(refused=error)
    return said._replace(taken=True)


_Called = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _call(way: Way) -> _Called | None:
    """The first operation that torchax was given after the innermost line of the model's code."""
    own = [place for place, frame in enumerate(way.frames) if frame.level]
    for frame in way.frames[own[-1] + 1 if own else 0 :]:
        if frame.python is None:
            continue
        found = frame.python.f_locals
        if frame.module == "torchax.tensor" and "func" in found and "args" in found:
            args = found.get("old_args", found["args"])
            kwargs = found.get("old_kwargs", found.get("kwargs"))
            return found["func"], tuple(args), dict(kwargs or {})
        if (
            frame.module == indexing.__name__ and frame.function in _WRITES
        ):  # called by Python, not by torchax
            return (
                torch.Tensor.__setitem__,
                tuple(found[name] for name in frame.python.f_code.co_varnames[:3]),
                {},
            )
    return None


def _expression(way: Way) -> _Called | None:
    """The operation between two operands at the end of the way: torch's error was lost in Python's own."""
    last = way.frames[-1] if way.frames else None
    if last is None or last.python is None or not last.level or not isinstance(way.error, TypeError):
        return None
    match place_of(last):
        case (
            ast.BinOp(left=left, op=kind, right=right)
            | ast.Compare(left=left, ops=[kind], comparators=[right])
        ):
            pass
        case ast.AugAssign(target=left, op=kind, value=right):
            pass
        case _:
            return None
    try:
        with no_dispatch(), torch._C.DisableTorchFunction():
            operands = _evaluated(left, last), _evaluated(right, last)
        return _OPERATORS[type(kind)], operands, {}
    except Exception:  # noqa: BLE001 - operands that cannot be had again without running the model's code
        return None


def _evaluated(node: ast.AST | None, frame: Frame) -> Any:
    """The value of an expression with tensors that have no values; code of the model's is not called for it.

    Raises:
        LookupError: it is no expression of that kind.
    """
    match node:
        case None:
            return None
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _without_values(_named(name, frame))
        case ast.Attribute(value=owner, attr=name):
            return _without_values(getattr(_evaluated(owner, frame), name))
        case ast.Subscript(value=owner, slice=index):
            return _without_values(_evaluated(owner, frame)[_evaluated(index, frame)])
        case ast.Slice(lower=first, upper=last, step=step):
            return slice(*(_evaluated(one, frame) for one in (first, last, step)))
        case ast.Tuple(elts=parts):
            return tuple(_evaluated(one, frame) for one in parts)
        case ast.List(elts=parts):
            return [_evaluated(one, frame) for one in parts]
    return _computed(node, frame)


def _computed(node: ast.AST, frame: Frame) -> Any:
    match node:
        case ast.UnaryOp(op=kind, operand=operand):
            return _OPERATORS[type(kind)](_evaluated(operand, frame))
        case ast.BinOp(left=left, op=kind, right=right):
            return _OPERATORS[type(kind)](_evaluated(left, frame), _evaluated(right, frame))
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=words):
            value = _evaluated(owner, frame)
            if isinstance(value, torch.Tensor) or value is torch or value is torch.nn.functional:
                named = {word.arg or "": _evaluated(word.value, frame) for word in words}
                return getattr(value, name)(*(_evaluated(one, frame) for one in args), **named)
    raise LookupError(ast.dump(node))


def _named(name: str, frame: Frame) -> Any:
    assert frame.python is not None
    spaces: tuple[Mapping[str, Any], ...] = (frame.python.f_locals, frame.python.f_globals, vars(builtins))
    return next(space[name] for space in spaces if name in space)


def _without_values(tree: Any) -> Any:
    """Tensors on the meta device: as torch would have them, so integers of 32 bits on the device are of 64 there."""

    def like(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("meta")
        if not isinstance(value, torch.Tensor):
            return value
        wide = is_ported(value) and value.dtype == torch.int32
        return torch.empty(tuple(value.shape), dtype=torch.int64 if wide else value.dtype, device="meta")

    if isinstance(tree, dict) and "device" in tree:
        tree = {**tree, "device": torch.device("meta")}
    return pytree.tree_map(like, tree)


def _shown(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    name = str(getattr(function, "__name__", function)).partition(".")[0]
    if function in _OPERATORS.values() and len(args) == 2:
        return f"{_operand(args[0])} {_SIGNS[name]} {_operand(args[1])}"
    if name in ("__getitem__", "__setitem__") and len(args) >= 2:
        key = args[1] if isinstance(args[1], tuple) else (args[1],)
        place = f"{_operand(args[0])}[{', '.join(map(_operand, key))}]"
        return f"{place} = {_operand(args[2])}" if len(args) > 2 else place
    positional = [_operand(one) for one in args if one is not None]
    named = [f"{word}={_operand(one)}" for word, one in kwargs.items() if one is not None]
    return f"{name}({', '.join([*positional, *named])})"


def _operand(value: Any) -> str:
    """A tensor as reports show it, dtype and shape; any other value as Python shows it."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_operand, value))})"
    if isinstance(value, slice):
        parts = [value.start, value.stop, *([] if value.step is None else [value.step])]
        return ":".join("" if one is None else _operand(one) for one in parts)
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
