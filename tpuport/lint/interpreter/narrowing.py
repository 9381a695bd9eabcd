"""What a condition says about the names in it, on the side where it held or failed."""

import ast

from tpuport.lint.abstract_values import (
    NONE,
    STATIC,
    TENSOR,
    UNKNOWN,
    Choice,
    Class,
    External,
    Instance,
    Layer,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    choice,
    without_none,
)
from tpuport.lint.interpreter import dtypes
from tpuport.lint.interpreter.frame import Frame, path_of

_PYTHON_TYPES = frozenset("int float bool str complex bytes".split())


def narrow(frame: Frame, test: ast.expr, held: bool) -> bool:
    """Note in the frame what follows from `test` being true (or false); False where that cannot be."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return narrow(frame, test.operand, not held)
    if isinstance(test, ast.BoolOp):
        return _boolean(frame, test, held)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _comparison(frame, test, held)
    if isinstance(test, ast.Call):
        _call(frame, test, held)
    elif isinstance(test, ast.NamedExpr):
        return narrow(frame, test.target, held)
    elif held:
        path = path_of(test)
        if path is not None and (value := frame.env.get(path)) is not None:
            frame.env[path] = without_none(value)
    return True


def _boolean(frame: Frame, test: ast.BoolOp, held: bool) -> bool:
    # `a and b` held: both held; `a or b` failed: both failed. Of the other two nothing follows for a single name.
    if isinstance(test.op, ast.And) == held:
        return all(narrow(frame, value, held) for value in test.values)
    return True


def _comparison(frame: Frame, test: ast.Compare, held: bool) -> bool:
    right = test.comparators[0]
    if not (isinstance(right, ast.Constant) and right.value is None):
        return True
    operator = test.ops[0]
    if not isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        return True
    path = path_of(test.left)
    if path is None:
        return True
    is_none = isinstance(operator, ast.Is | ast.Eq) == held
    value = frame.env.get(path)
    if is_none:
        if isinstance(value, Tensor | Static | Instance | Sequence) or "." not in path:
            frame.env[path] = NONE
    elif value is not None:
        if value == NONE:
            return False
        frame.env[path] = without_none(value)
    else:
        known = frame.machine.evaluate(frame, test.left)
        if isinstance(known, Tensor) and known.optional:
            frame.env[path] = without_none(known)
    return True


def _call(frame: Frame, test: ast.Call, held: bool) -> None:
    name = frame.module.dotted(test.func)
    path = path_of(test.args[0]) if test.args else None
    if path is None:
        return
    value = frame.env.get(path, UNKNOWN)
    if (
        name in {"torch.is_tensor", "torch.overrides.is_tensor_like"}
        and held
        and not isinstance(value, Tensor)
    ):
        frame.env[path] = TENSOR
    if name != "isinstance" or len(test.args) != 2:
        return
    if isinstance(value, Choice):
        _choose(frame, path, value, test.args[1], held)
        return
    found = narrowed(frame, value, test.args[1])
    if held and found is not None:
        frame.env[path] = found


def _choose(frame: Frame, path: str, value: Choice, classes: ast.expr, held: bool) -> None:
    """Keep the options that may be instances of the classes, or those that may not."""
    listed = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    wanted = [one_class(frame, item) for item in listed]
    if not all(isinstance(kind, Instance) for kind in wanted):
        return
    infos = {kind.info for kind in wanted if isinstance(kind, Instance)}
    kept = []
    for option in value.options:
        known = isinstance(option, Instance | Layer)
        inside = isinstance(option, Instance) and infos.intersection(frame.machine.classes.mro(option.info))
        if not known or bool(inside) == held:
            kept.append(option)
    if kept:
        frame.env[path] = choice(kept)


def narrowed(frame: Frame, value: Value, classes: ast.expr) -> Value | None:
    """What a value is where `isinstance(value, classes)` held; None if nothing follows."""
    listed = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    if isinstance(classes, ast.BinOp):
        listed = [classes.left, classes.right]
    kinds = [one_class(frame, item) for item in listed]
    if len(set(map(repr, kinds))) != 1 or kinds[0] is None:
        return None
    kind = kinds[0]
    if isinstance(kind, Tensor):
        return without_none(value) if isinstance(value, Tensor) else kind
    if isinstance(kind, Sequence | Mapping) and isinstance(value, Sequence | Mapping):
        return value
    return kind


def one_class(frame: Frame, node: ast.expr) -> Value | None:
    """The value that instances of a class are taken for; None if that is not known."""
    if isinstance(node, ast.Name) and node.id in _PYTHON_TYPES:
        return Static(node.id)
    if isinstance(node, ast.Name) and node.id in {"list", "tuple", "set"}:
        return Sequence("list", None, UNKNOWN)
    if isinstance(node, ast.Name) and node.id == "dict":
        return Mapping((), UNKNOWN)
    value = frame.machine.evaluate(frame, node)
    if isinstance(value, External):
        last = value.name.rpartition(".")[2]
        if value.name.startswith("torch.") and last in dtypes.TENSOR_CLASSES:
            return TENSOR
        if value.name.startswith("numpy"):
            return STATIC
    return Instance(value.info) if isinstance(value, Class) else None
