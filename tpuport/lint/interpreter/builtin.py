"""Python's own functions."""

import ast
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    FALSE,
    FLOAT,
    INT,
    NONE,
    STATIC,
    STR,
    TRUE,
    UNKNOWN,
    Choice,
    Function,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join,
    join_all,
    tensor,
)
from tpuport.lint.events import Iterate
from tpuport.lint.interpreter import iteration, members
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.narrowing import one_class

_STATIC: Final[dict[str, Value]] = {
    "len": INT, "int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "repr": STR, "format": STR, "hasattr": BOOL,
    "issubclass": BOOL, "callable": BOOL, "id": INT, "hash": INT, "ord": INT, "chr": STR, "print": NONE,
    "setattr": NONE, "delattr": NONE, "complex": Static("complex"), "slice": Static("slice"), "divmod": STATIC,
    "vars": STATIC, "dir": STATIC, "type": STATIC, "any": BOOL, "all": BOOL, "input": STR, "bytes": STATIC,
}  # fmt: skip
_COPIES: Final = {
    "list": "list",
    "tuple": "tuple",
    "set": "set",
    "frozenset": "set",
    "sorted": "list",
    "reversed": "iterator",
    "iter": "iterator",
}


def call(frame: Frame, name: str, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    """What a built-in function gives."""
    first = args[0] if args else UNKNOWN
    handler = _HANDLERS.get(name)
    if handler is not None:
        return handler(frame, args, keywords, node)
    if name in _COPIES:
        return _copied(frame, _COPIES[name], args, node)
    if name == "setattr" and len(args) == 3:
        _setattr(frame, args, node)
    if name in {"any", "all"} and isinstance(first, Sequence) and first.items is None:
        return BOOL
    return _STATIC.get(name, UNKNOWN)


def _copied(frame: Frame, kind: str, args: list[Value], node: ast.Call) -> Value:
    if not args:
        return Sequence(kind, (), UNKNOWN)
    first = args[0]
    if isinstance(first, Tensor) and frame.emitting and kind != "iterator":
        frame.tell(Iterate(node.args[0], first, "star"))
    if isinstance(first, Sequence) and first.items is not None and kind not in {"set"}:
        items = first.items[::-1] if kind == "iterator" and len(first.items) > 1 else first.items
        return Sequence(kind, items, first.element)
    return Sequence(
        kind, None, iteration.element(frame, first), isinstance(first, Sequence) and first.tensors
    )


def _isinstance(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    if len(node.args) != 2:
        return BOOL
    value = args[0]
    classes = node.args[1]
    listed = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    if isinstance(classes, ast.BinOp):
        listed = [classes.left, classes.right]
    kinds = [one_class(frame, item) for item in listed]
    options = value.options if isinstance(value, Choice) else (value,)
    answers = {_one_of(frame, option, kinds) for option in options}
    answer = answers.pop() if len(answers) == 1 else None
    return BOOL if answer is None else TRUE if answer else FALSE


def _one_of(frame: Frame, value: Value, kinds: list[Value | None]) -> bool | None:
    """Whether a value is an instance of one of the kinds; None where that is not sure."""
    answers = [_instance_of(frame, value, kind) for kind in kinds]
    if True in answers:
        return True
    return False if answers and all(answer is False for answer in answers) else None


def _instance_of(frame: Frame, value: Value, kind: Value | None) -> bool | None:
    if kind is None or value is UNKNOWN:
        return None
    if isinstance(value, Tensor):
        if isinstance(kind, Tensor):
            return None if value.optional else True
        return False if isinstance(kind, Static | Sequence | Mapping) else None
    if isinstance(value, Static):
        if isinstance(kind, Tensor | Sequence | Mapping):
            return False if value.kind not in {"", "config", "shape"} else None
        if isinstance(kind, Static) and value.kind and kind.kind:
            return value.kind == kind.kind if value.kind not in {"config", "shape"} else None
        return None
    if isinstance(value, Instance):
        return _instance_of_class(frame, value, kind)
    return False if isinstance(value, Sequence | Mapping) and isinstance(kind, Tensor | Static) else None


def _instance_of_class(frame: Frame, value: Instance, kind: Value) -> bool | None:
    if isinstance(kind, Instance):
        return True if kind.info in frame.machine.classes.mro(value.info) else None
    return False if isinstance(kind, Tensor | Static | Sequence) else None


def _getattr(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    if len(args) >= 2 and isinstance(args[1], Static) and isinstance(args[1].constant, str):
        value = members.attribute(frame, args[0], args[1].constant)
        return join(value, args[2]) if len(args) > 2 and value is not UNKNOWN else value
    if len(args) >= 2 and isinstance(args[0], Instance) and len(node.args) >= 2:
        return _named_like(frame, args[0], *_ends(node.args[1]))
    return STATIC if args and isinstance(args[0], Static) else UNKNOWN


def _ends(node: ast.expr) -> tuple[str, str]:
    """What a string that is put together begins and ends with: `"_" + mode`, `f"layer{i}"`, `"layer%d" % i`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, node.value
    if isinstance(node, ast.JoinedStr) and node.values:
        return _ends(node.values[0])[0], _ends(node.values[-1])[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _ends(node.left)[0], _ends(node.right)[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _ends(node.left)[0].partition("%")[0], ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = _ends(node.func.value)
        return text[0].partition("{")[0], text[1].rpartition("}")[2]
    return "", ""


def _named_like(frame: Frame, base: Instance, start: str, end: str) -> Value:
    """Any attribute of an object whose name has this start and end; nothing is known where it has neither."""
    if not (start or end):
        return UNKNOWN
    classes = frame.machine.classes
    known = {name for info in classes.mro(base.info) for name in info.methods} | set(
        classes.attributes(base.info)
    )
    names = [
        name for name in sorted(known)
        if name.startswith(start) and name.endswith(end) and len(name) > len(start) and not name.startswith("__")
    ]  # fmt: skip
    return join_all([members.attribute(frame, base, name) for name in names])


def _setattr(frame: Frame, args: list[Value], node: ast.Call) -> None:
    if frame.building is None or not isinstance(args[1], Static) or not isinstance(args[1].constant, str):
        return
    holder = node.args[0]
    if isinstance(holder, ast.Name) and holder.id == frame.self_name:
        frame.building[args[1].constant] = args[2]


def _range(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    return Sequence("iterator", None, INT)


def _enumerate(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    source = args[0] if args else UNKNOWN
    if isinstance(source, Tensor) and frame.emitting:
        frame.tell(Iterate(node.args[0], source, "for"))
    element = iteration.element(frame, source)
    return Sequence("iterator", None, Sequence("tuple", (INT, element), join(INT, element)))


def _zip(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    for source, part in zip(args, node.args, strict=False):
        if isinstance(source, Tensor) and frame.emitting:
            frame.tell(Iterate(part, source, "for"))
    elements = tuple(iteration.element(frame, source) for source in args)
    return Sequence("iterator", None, Sequence("tuple", elements, join_all(elements)))


def _map(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    from tpuport.lint.interpreter import calls

    if len(args) < 2:
        return UNKNOWN
    elements = [iteration.element(frame, source) for source in args[1:]]
    return Sequence("iterator", None, calls.apply(frame, args[0], elements, {}, node))


def _extreme(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    if len(args) == 1:
        return iteration.element(frame, args[0])
    if any(isinstance(value, Tensor) for value in args):
        tensors = [value for value in args if isinstance(value, Tensor)]
        return tensors[0] if len(tensors) == len(args) else UNKNOWN
    return join_all(args)


def _sum(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    return iteration.element(frame, args[0]) if args else UNKNOWN


def _same(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    """`abs`, `round`, `pow`: what went in."""
    first = args[0] if args else UNKNOWN
    return tensor(first.dtype, ndim=first.ndim) if isinstance(first, Tensor) else first


def _dict(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    base = args[0] if args else None
    if isinstance(base, Mapping):
        return Mapping(tuple({**dict(base.entries), **keywords}.items()), base.element)
    return Mapping(tuple(keywords.items()), UNKNOWN)


def _next(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    return iteration.element(frame, args[0]) if args else UNKNOWN


def _type(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    from tpuport.lint.abstract_values import Class

    if len(args) == 1 and isinstance(args[0], Instance):
        return Class(args[0].info)
    return STATIC


def _filter(frame: Frame, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
    if args and isinstance(args[0], Function) and len(args) > 1:
        frame.machine.call_function(
            args[0].info, args[0].bound, [iteration.element(frame, args[1])], {}, frame
        )
    return Sequence("iterator", None, iteration.element(frame, args[1])) if len(args) > 1 else UNKNOWN


_HANDLERS: Final = {
    "isinstance": _isinstance, "getattr": _getattr, "range": _range, "enumerate": _enumerate, "zip": _zip, "map": _map,
    "max": _extreme, "min": _extreme, "sum": _sum, "abs": _same, "round": _same, "pow": _same, "dict": _dict,
    "next": _next, "type": _type, "filter": _filter,
}  # fmt: skip

NAMES: Final = frozenset(
    {
        *_STATIC,
        *_COPIES,
        *_HANDLERS,
        "super",
        "object",
        "property",
        "staticmethod",
        "classmethod",
        "open",
        "locals",
        "globals",
    }
)
