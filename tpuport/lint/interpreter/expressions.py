"""Expressions: what each may be."""

import ast
from collections.abc import Callable, Iterable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    FALSE,
    NONE,
    STATIC,
    STR,
    TRUE,
    UNKNOWN,
    External,
    Function,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join,
    join_all,
)
from tpuport.lint.events import (
    AttributeLoad,
    Iterate,
    Reference,
)
from tpuport.lint.interpreter import calls, iteration, members, operators, subscripts, targets, truth
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.narrowing import narrow
from tpuport.lint.modules import FunctionInfo


def evaluate(frame: Frame, node: ast.expr) -> Value:
    """What the expression may be; its events go to the rules on the way."""
    handler = _HANDLERS.get(type(node))
    return handler(frame, node) if handler is not None else UNKNOWN


def joined(values: Iterable[Value]) -> Value:
    """Join of the elements of a display: `UNKNOWN` when it is empty."""
    return join_all(values)


# --- names, constants, attributes ---

_CONSTANT_KINDS: Final = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    complex: "complex",
    bytes: "bytes",
}


def _constant(frame: Frame, node: ast.Constant) -> Value:
    value = node.value
    if value is None:
        return NONE
    if value is True or value is False:
        return TRUE if value else FALSE
    kind = _CONSTANT_KINDS.get(type(value), "")
    return Static(kind, value) if kind in {"int", "str"} else Static(kind)


def _name(frame: Frame, node: ast.Name) -> Value:
    return frame.name(node.id)


def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    base = evaluate(frame, node.value)
    holder = node.value
    if isinstance(holder, ast.Name):
        known = frame.env.get(f"{holder.id}.{node.attr}")
    elif isinstance(holder, ast.Attribute) and isinstance(holder.value, ast.Name):
        known = frame.env.get(f"{holder.value.id}.{holder.attr}.{node.attr}")
    else:
        known = None
    value = known if known is not None else members.attribute(frame, base, node.attr)
    if frame.emitting:
        if isinstance(base, External):
            frame.tell(Reference(node, f"{base.name}.{node.attr}"))
        else:
            on_self = isinstance(holder, ast.Name) and holder.id == frame.self_name
            frame.tell(AttributeLoad(node, base, on_self, node.attr, value))
    return value


# --- displays and comprehensions ---


def _items(frame: Frame, elements: list[ast.expr]) -> tuple[Value, ...] | None:
    found: list[Value] = []
    known = True
    for item in elements:
        if isinstance(item, ast.Starred):
            inside = evaluate(frame, item.value)
            if frame.emitting:
                frame.tell(Iterate(item.value, inside, "star"))
            if isinstance(inside, Sequence) and inside.items is not None:
                found.extend(inside.items)
            else:
                found.append(iteration.element(frame, inside))
                known = False
        else:
            found.append(evaluate(frame, item))
    return tuple(found) if known else None


def _display(kind: str) -> Callable[[Frame, Any], Value]:
    def display(frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items = _items(frame, node.elts)
        if items is None:
            parts = [evaluate(frame, item) for item in node.elts if not isinstance(item, ast.Starred)]
            stars = [item.value for item in node.elts if isinstance(item, ast.Starred)]
            parts += [iteration.element(frame, evaluate(frame, item)) for item in stars]
            return Sequence(kind, None, joined(parts), any(isinstance(part, Tensor) for part in parts))
        return Sequence(kind, items, joined(items))

    return display


def _dict(frame: Frame, node: ast.Dict) -> Value:
    entries: dict[Any, Value] = {}
    rest: Value | None = None
    for key, value_node in zip(node.keys, node.values, strict=True):
        value = evaluate(frame, value_node)
        if key is None:
            if isinstance(value, Mapping):
                entries.update(value.entries)
                value = value.element
            rest = UNKNOWN
        elif isinstance(key, ast.Constant):
            entries[key.value] = value
        else:
            evaluate(frame, key)
            rest = value if rest is None else join(rest, value)
    return Mapping(tuple(entries.items()), UNKNOWN if rest is None else rest)


def _comprehension(frame: Frame, node: Any) -> Value:
    before = dict(frame.env)
    for generator in node.generators:
        source = evaluate(frame, generator.iter)
        if frame.emitting:
            frame.tell(Iterate(generator.iter, source, "comprehension"))
        targets.bind(frame, generator.target, iteration.element(frame, source), generator.iter)
        for condition in generator.ifs:
            truth.truth(frame, condition, "comprehension")
            narrow(frame, condition, True)
    if isinstance(node, ast.DictComp):
        evaluate(frame, node.key)
        result: Value = Mapping((), evaluate(frame, node.value))
    else:
        kind = {ast.ListComp: "list", ast.SetComp: "set"}.get(type(node), "iterator")
        result = Sequence(kind, None, evaluate(frame, node.elt))
    frame.env = before
    return result


# --- the rest ---


def _joined_str(frame: Frame, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            operators.formatted(frame, part.value, evaluate(frame, part.value), part.format_spec is not None)
    return STR


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    info = FunctionInfo(node, frame.module, frame.owner, frame.qualname)
    info.__dict__["closure"] = frame
    return Function(info)


def _walrus(frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    targets.bind(frame, node.target, value, node.value)
    return value


def _yield(frame: Frame, node: ast.Yield) -> Value:
    value = evaluate(frame, node.value) if node.value is not None else NONE
    frame.yielded = value if frame.yielded is None else join(frame.yielded, value)
    return UNKNOWN


def _yield_from(frame: Frame, node: ast.YieldFrom) -> Value:
    value = iteration.element(frame, evaluate(frame, node.value))
    frame.yielded = value if frame.yielded is None else join(frame.yielded, value)
    return UNKNOWN


def _slice(frame: Frame, node: ast.Slice) -> Value:
    return STATIC


_HANDLERS: Final[dict[type, Callable[[Frame, Any], Value]]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: calls.call,
    ast.Subscript: subscripts.subscript,
    ast.BinOp: operators.binary,
    ast.UnaryOp: operators.unary,
    ast.BoolOp: truth.bool_op,
    ast.Compare: operators.compare,
    ast.IfExp: truth.if_exp,
    ast.Tuple: _display("tuple"),
    ast.List: _display("list"),
    ast.Set: _display("set"),
    ast.Dict: _dict,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.JoinedStr: _joined_str,
    ast.Lambda: _lambda,
    ast.NamedExpr: _walrus,
    ast.Yield: _yield,
    ast.YieldFrom: _yield_from,
    ast.Await: lambda frame, node: evaluate(frame, node.value),
    ast.Starred: lambda frame, node: iteration.element(frame, evaluate(frame, node.value)),
    ast.Slice: _slice,
}
