"""Expressions: what each may be."""

import ast
from collections.abc import Callable, Iterable
from typing import Any, Final

from tpuport.lint.events import (
    Arithmetic,
    AttributeLoad,
    Compare,
    Formatted,
    Iterate,
    Membership,
    Reference,
    SliceBound,
    Subscript,
    Truth,
)
from tpuport.lint.interpreter import calls, dtypes, iteration, members, targets
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.narrowing import narrow
from tpuport.lint.modules import FunctionInfo
from tpuport.lint.values import (
    BOOL,
    DTYPE,
    FALSE,
    NONE,
    STATIC,
    STR,
    TENSOR,
    TRUE,
    UNKNOWN,
    External,
    Function,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join,
    join_all,
    joint_element,
    tensor,
)


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
            truth(frame, condition, "comprehension")
            narrow(frame, condition, True)
    if isinstance(node, ast.DictComp):
        evaluate(frame, node.key)
        result: Value = Mapping((), evaluate(frame, node.value))
    else:
        kind = {ast.ListComp: "list", ast.SetComp: "set"}.get(type(node), "iterator")
        result = Sequence(kind, None, evaluate(frame, node.elt))
    frame.env = before
    return result


# --- truth ---


def truth(frame: Frame, node: ast.expr, where: str) -> bool | None:
    """Ask an expression for its truth: tells the rules of tensors in it, gives the answer where it is known."""
    if isinstance(node, ast.BoolOp):
        return _boolean_truth(frame, node, where)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(frame, node.operand, "not" if where not in {"assert"} else where)
        return None if inner is None else not inner
    value = evaluate(frame, node)
    if frame.emitting and isinstance(value, Tensor):
        frame.tell(Truth(node, value, where, frame.statement))
    return constant_truth(value)


def constant_truth(value: Value) -> bool | None:
    """Whether a value is surely true or surely false."""
    if isinstance(value, Static):
        if value.constant is None:
            return False
        if isinstance(value.constant, bool):
            return value.constant
    if isinstance(value, Function):
        return True
    return None


def _boolean_truth(frame: Frame, node: ast.BoolOp, where: str) -> bool | None:
    deciding = isinstance(node.op, ast.Or)
    before = frame.env
    frame.env = dict(before)
    unsure = False
    answer: bool | None = not deciding
    for part in node.values:
        constant = truth(frame, part, where)
        if constant is deciding:
            # Behind a surely deciding part nothing is evaluated; before it, an unsure one may have decided the same.
            answer = deciding
            unsure = False
            break
        unsure = unsure or constant is None
        if not narrow(frame, part, not deciding):
            answer = deciding if constant is None else answer
            break
    frame.env = before
    return None if unsure else answer


def _bool_op(frame: Frame, node: ast.BoolOp) -> Value:
    """`a and b` as a value: what the last part is, where the earlier ones only guard it."""
    deciding = isinstance(node.op, ast.Or)
    word = "or" if deciding else "and"
    before = frame.env
    frame.env = dict(before)
    result: Value | None = None
    for position, part in enumerate(node.values):
        value = evaluate(frame, part)
        last = position == len(node.values) - 1
        constant = constant_truth(value)
        if not last and frame.emitting and isinstance(value, Tensor):
            frame.tell(Truth(part, value, word))
        if constant is deciding:
            result = value if result is None else _guarded(result, value)
            break
        if last or constant is None:
            result = value if result is None else _guarded(result, value)
        if not last and not narrow(frame, part, not deciding):
            break
    frame.env = before
    return UNKNOWN if result is None else result


def _guarded(guard: Value, value: Value) -> Value:
    if isinstance(value, Tensor) and isinstance(guard, Static) and guard.kind in {"bool", "none"}:
        return value
    if isinstance(guard, Tensor) and value == NONE:
        return guard
    return join(guard, value)


def _if_exp(frame: Frame, node: ast.IfExp) -> Value:
    constant = truth(frame, node.test, "conditional expression")
    before = frame.env
    results: list[Value] = []
    for held, branch in ((True, node.body), (False, node.orelse)):
        if constant is (not held):
            continue
        frame.env = dict(before)
        if narrow(frame, node.test, held):
            results.append(evaluate(frame, branch))
    frame.env = before
    return join_all(results)


# --- operators ---


def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left = evaluate(frame, node.left)
    right = evaluate(frame, node.right)
    if isinstance(node.op, ast.Mod) and isinstance(left, Static) and left.kind == "str":
        text = left.constant if isinstance(left.constant, str) else ""
        _formatted(
            frame, node.right, right, any(letter in text for letter in ("%d", "%i", "%.", "%f", "%g", "%x"))
        )
        return STR
    result = arithmetic(left, node.op, right)
    if frame.emitting and (isinstance(left, Tensor) or isinstance(right, Tensor)):
        frame.tell(Arithmetic(node, left, node.op, right, result))
    return result


def arithmetic(left: Value, operator: ast.operator, right: Value) -> Value:
    """What `left operator right` is."""
    if isinstance(operator, ast.Mult) and isinstance(left, Sequence) and isinstance(right, Tensor):
        return Sequence(left.kind, None, left.element, left.tensors)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        mask = (
            _mask_of(left)
            and _mask_of(right)
            and isinstance(operator, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Mult)
        )
        family = "float" if isinstance(operator, ast.Div) else dtypes.promote(left, right)
        return tensor(family, ndim=_ndim(left, right), origin="mask" if mask else "")
    if isinstance(left, Static) and isinstance(right, Static):
        if isinstance(operator, ast.Div):
            return Static("float")
        kinds = {left.kind, right.kind}
        return Static(left.kind if len(kinds) == 1 else "float" if kinds == {"int", "float"} else "")
    if isinstance(left, Sequence) and isinstance(operator, ast.Add) and isinstance(right, Sequence):
        if left.items is not None and right.items is not None:
            items = (*left.items, *right.items)
            return Sequence(left.kind, items, joined(items))
        return Sequence(left.kind, None, joint_element(left, right), left.tensors or right.tensors)
    if isinstance(operator, ast.Mult):
        for one in (left, right):
            if isinstance(one, Sequence):
                return Sequence(one.kind, None, one.element, one.tensors)
    return UNKNOWN


def _mask_of(value: Value) -> bool:
    return isinstance(value, Tensor) and (value.origin == "mask" or value.dtype == "bool")


def _ndim(left: Value, right: Value) -> int:
    one = left.ndim if isinstance(left, Tensor) else 0 if isinstance(left, Static) else -1
    other = right.ndim if isinstance(right, Tensor) else 0 if isinstance(right, Static) else -1
    return -1 if -1 in (one, other) else max(one, other)


def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        answer = truth(frame, node.operand, "not")
        return _not_answer(answer)
    value = evaluate(frame, node.operand)
    if isinstance(value, Tensor):
        result = tensor(
            value.dtype, value.exact, value.ndim, origin=value.origin if value.origin == "mask" else ""
        )
        if frame.emitting:
            frame.tell(Arithmetic(node, value, node.op, None, result))
        return result
    if isinstance(value, Static):
        if isinstance(node.op, ast.USub) and isinstance(value.constant, int):
            return Static("int", -value.constant)
        return Static(value.kind)
    return UNKNOWN


def _not_answer(answer: bool | None) -> Value:
    return BOOL if answer is None else FALSE if answer else TRUE


_IDENTITY: Final = (ast.Is, ast.IsNot)


def _compare(frame: Frame, node: ast.Compare) -> Value:
    left = evaluate(frame, node.left)
    result: Value | None = None
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(frame, right_node)
        one = _compare_one(frame, node, left, operator, right)
        # `a < b < c` asks each part but the last for its truth.
        if result is not None and isinstance(result, Tensor) and frame.emitting:
            frame.tell(Truth(node, result, "and"))
        result = one
        left = right
    return UNKNOWN if result is None else result


def _compare_one(frame: Frame, node: ast.Compare, left: Value, operator: ast.cmpop, right: Value) -> Value:
    if isinstance(operator, _IDENTITY):
        return _identity(left, right, isinstance(operator, ast.Is))
    if isinstance(operator, ast.In | ast.NotIn):
        if frame.emitting:
            frame.tell(Membership(node, left, right))
        return BOOL
    if frame.emitting:
        frame.tell(Compare(node, left, operator, right))
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        other = right if isinstance(left, Tensor) else left
        if isinstance(other, Static) and other.kind in {"str", "none", "shape", "dtype", "device"}:
            return BOOL
        return tensor("bool", ndim=_ndim(left, right))
    if _half(left) != _half(right) and isinstance(operator, ast.Eq | ast.NotEq) and {left, right} & {DTYPE}:
        # Ported models run in bfloat16 or float32: `x.dtype == torch.float16` is false.
        return FALSE if isinstance(operator, ast.Eq) else TRUE
    if left is UNKNOWN or right is UNKNOWN:
        return BOOL if _python(left) or _python(right) else UNKNOWN
    if isinstance(left, Static) and isinstance(right, Static) and isinstance(left.constant, str | int):
        if isinstance(operator, ast.Eq | ast.NotEq) and isinstance(right.constant, str | int):
            same = left.constant == right.constant
            return TRUE if same == isinstance(operator, ast.Eq) else FALSE
    return BOOL


def _half(value: Value) -> bool:
    return isinstance(value, Static) and value.constant in {"torch.float16", "torch.half"}


def _python(value: Value) -> bool:
    return isinstance(value, Static) and value.kind in {"str", "none", "dtype", "device", "shape", "bool"}


def _identity(left: Value, right: Value, wanted: bool) -> Value:
    for one, other in ((left, right), (right, left)):
        if one == NONE:
            if other == NONE:
                return TRUE if wanted else FALSE
            sure = (isinstance(other, Tensor) and not other.optional) or (
                isinstance(other, Static) and other.kind in {"bool", "int", "float", "str"}
            )
            # Of instances and containers it is not kept whether they may be None.
            if sure or isinstance(other, Function):
                return FALSE if wanted else TRUE
    return BOOL


# --- subscripts ---


def indices(frame: Frame, node: ast.Subscript, base: Value) -> tuple[list[Value], list[ast.expr]]:
    """Values and syntax of an index's parts; the bounds of slices are told to the rules."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    values: list[Value] = []
    for part in parts:
        if isinstance(part, ast.Slice):
            for bound in (part.lower, part.upper, part.step):
                if bound is not None:
                    value = evaluate(frame, bound)
                    if frame.emitting and isinstance(value, Tensor):
                        frame.tell(SliceBound(bound, base, value))
            values.append(Static("slice"))
        else:
            values.append(evaluate(frame, part.value if isinstance(part, ast.Starred) else part))
    return values, list(parts)


def _subscript(frame: Frame, node: ast.Subscript) -> Value:
    base = evaluate(frame, node.value)
    values, nodes = indices(frame, node, base)
    if frame.emitting:
        frame.tell(Subscript(node, base, values, nodes))
    return subscripted(frame, base, values, nodes)


def subscripted(frame: Frame, base: Value, values: list[Value], nodes: list[ast.expr]) -> Value:
    """What `base[values]` is."""
    first = values[0] if values else UNKNOWN
    if isinstance(base, Tensor):
        return _indexed_tensor(base, values, nodes)
    if isinstance(base, Sequence):
        # `x[:, 0]`: annotated as a list or tuple, used as the tensor that it is.
        return _indexed_sequence(base, first, nodes) if len(nodes) == 1 else TENSOR
    if isinstance(base, Mapping):
        key = first.constant if isinstance(first, Static) else ...
        if key is not ...:
            return base.get(key)
        return _any_entry(base)
    if isinstance(base, Static):
        return (
            base
            if base.kind in {"config", "shape"} and isinstance(nodes[0], ast.Slice)
            else Static("int" if base.kind == "shape" else "config" if base.kind == "config" else "")
        )
    if isinstance(base, Instance):
        return members.item(frame, base, first)
    if isinstance(base, External) and base.name.endswith("ACT2FN"):
        return members.ACTIVATION
    return UNKNOWN


def _any_entry(base: Mapping) -> Value:
    """A table of classes or functions indexed by a configuration's word: any of them stands for all."""
    values = [value for _, value in base.entries]
    if values and base.element is UNKNOWN and len({type(value) for value in values}) == 1:
        joint = join_all(values)
        return values[0] if joint is UNKNOWN else joint
    return join_all([*values, base.element]) if values else base.element


def _indexed_sequence(base: Sequence, first: Value, nodes: list[ast.expr]) -> Value:
    if isinstance(nodes[0], ast.Slice):
        return _sliced(base, nodes[0])
    if base.items is not None and isinstance(first, Static) and isinstance(first.constant, int):
        if -len(base.items) <= first.constant < len(base.items):
            return base.items[first.constant]
        return UNKNOWN
    return base.element


def _sliced(base: Sequence, node: ast.Slice) -> Value:
    kind = base.kind if base.kind in {"tuple", "list", "modules", "sequential"} else "list"
    bounds = [None if part is None else _literal(part) for part in (node.lower, node.upper, node.step)]
    if base.items is not None and ... not in bounds:
        items = base.items[slice(*bounds)]
        return Sequence(kind, items, joined(items))
    return Sequence(kind, None, base.element, base.tensors)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _literal(node.operand)
        return ... if inner is ... else -inner
    return ...


def _indexed_tensor(base: Tensor, values: list[Value], nodes: list[ast.expr]) -> Value:
    advanced = any(isinstance(value, Tensor | Sequence) for value in values)
    ndim = base.ndim
    if ndim >= 0:
        if advanced:
            ndim = -1
        for value, node in zip(values, nodes, strict=True):
            if isinstance(node, ast.Constant) and node.value is ...:
                ndim = -1 if ndim < 0 else ndim
            elif value == NONE:
                ndim += ndim >= 0
            elif isinstance(value, Static) and value.kind == "int":
                ndim -= ndim > 0
    return tensor(
        base.dtype, base.exact, ndim, view=not advanced, origin=base.origin if base.origin == "mask" else ""
    )


# --- the rest ---


def _formatted(frame: Frame, node: ast.expr, value: Value, spec: bool) -> None:
    if not frame.emitting or frame.raising:
        return
    if isinstance(value, Sequence) and isinstance(node, ast.Tuple) and value.items is not None:
        for part, one in zip(node.elts, value.items, strict=False):
            _formatted(frame, part, one, spec)
    elif isinstance(value, Tensor):
        frame.tell(Formatted(node, value, spec))


def _joined_str(frame: Frame, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            _formatted(frame, part.value, evaluate(frame, part.value), part.format_spec is not None)
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
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _bool_op,
    ast.Compare: _compare,
    ast.IfExp: _if_exp,
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
