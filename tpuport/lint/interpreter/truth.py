"""Conditions: the truth of values, what a condition says about the names in it, `isinstance`."""

import ast
from collections.abc import Iterator
from typing import Final, TypeVar

from tpuport.lint.abstract_values import (
    BOOL,
    FALSE,
    NONE,
    STATIC,
    TENSOR,
    TRUE,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    Layer,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    choice,
    constant_of,
    join,
    join_all,
    options_of,
    without_none,
)
from tpuport.lint.dtype_families import TENSOR_CLASSES
from tpuport.lint.events import Truth
from tpuport.lint.interpreter.frame import Frame, path_of

_Branch = TypeVar("_Branch", ast.expr, list[ast.stmt])

# Whether something is certainly true or certainly false; None if that is not known.
Answer = bool | None

_AS_VALUES: Final[dict[Answer, Value]] = {True: TRUE, False: FALSE, None: BOOL}


def as_value(answer: Answer) -> Value:
    """An answer as the value of an expression."""
    return _AS_VALUES[answer]


def decide(frame: Frame, node: ast.expr, construct: str) -> Answer:
    """Evaluate a condition. Rules hear of tensors in it; `construct` is the syntax that asks ("if", "while")."""
    match node:
        case ast.BoolOp():
            return _decide_boolean(frame, node, construct)
        case ast.UnaryOp(op=ast.Not()):
            # `assert not x` has a remedy of its own.
            answer = decide(frame, node.operand, "assert" if construct == "assert" else "not")
            return None if answer is None else not answer
    value = frame.evaluate(node)
    if isinstance(value, Tensor):
        frame.report(Truth(node, value, construct, frame.statement))
    return truth_of(value)


def truth_of(value: Value) -> Answer:
    """Whether a value is certainly true or certainly false."""
    if isinstance(value, Function):
        return True
    constant = constant_of(value)
    if constant is None:
        return False
    return constant if isinstance(constant, bool) else None


def _decide_boolean(frame: Frame, node: ast.BoolOp, construct: str) -> Answer:
    # The value of a part at which evaluation stops: True ends `or`, False ends `and`.
    deciding = isinstance(node.op, ast.Or)
    env = frame.env
    frame.env = dict(env)
    answer: Answer = not deciding
    for part in node.values:
        part_answer = decide(frame, part, construct)
        if part_answer is deciding:
            # Nothing after it is evaluated; unsure parts before it could only have decided the same.
            answer = deciding
            break
        if part_answer is None:
            answer = None
        # If it cannot turn out otherwise, evaluation does not go on.
        if not narrow(frame, part, not deciding):
            break
    frame.env = env
    return answer


def boolean_operation(frame: Frame, node: ast.BoolOp) -> Value:
    """`a and b` as a value: the last part, which the parts before it guard."""
    deciding = isinstance(node.op, ast.Or)
    construct = "or" if deciding else "and"
    env = frame.env
    frame.env = dict(env)
    result: Value | None = None
    for part in node.values:
        value = frame.evaluate(part)
        is_last = part is node.values[-1]
        answer = truth_of(value)
        if isinstance(value, Tensor) and not is_last:
            frame.report(Truth(part, value, construct))
        # A part that certainly does not decide is skipped, unless it is the last.
        if is_last or answer is None or answer is deciding:
            result = value if result is None else _guarded(result, value)
        if is_last or answer is deciding or not narrow(frame, part, not deciding):
            break
    frame.env = env
    return result or UNKNOWN


def _guarded(guard: Value, value: Value) -> Value:
    """`guard and value`, `guard or value`."""
    if isinstance(value, Tensor) and isinstance(guard, Static) and guard.kind in {"bool", "none"}:
        return value
    if isinstance(guard, Tensor) and value == NONE:
        return guard
    return join(guard, value)


def conditional_expression(frame: Frame, node: ast.IfExp) -> Value:
    """`a if b else c`."""
    branches = possible_branches(frame, node.test, "conditional expression", node.body, node.orelse)
    return join_all(map(frame.evaluate, branches))


def possible_branches(
    frame: Frame, test: ast.expr, construct: str, body: _Branch, orelse: _Branch
) -> Iterator[_Branch]:
    """The branches of a condition that can run, each to be interpreted in the environment that the frame then has.

    Afterwards the frame has its former environment again.
    """
    answer = decide(frame, test, construct)
    env = frame.env
    for holds, branch in ((True, body), (False, orelse)):
        frame.env = dict(env)
        if answer in (holds, None) and narrow(frame, test, holds):
            yield branch
    frame.env = env


# --- what follows from a condition ---


def narrow(frame: Frame, test: ast.expr, holds: bool) -> bool:
    """Set in the frame what follows from `test` being true (or false); False if it cannot be."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return narrow(frame, test.operand, not holds)
        case ast.BoolOp():
            # If `a and b` holds, both hold; if `a or b` fails, both fail. Otherwise nothing follows for a single part.
            all_alike = isinstance(test.op, ast.And) == holds
            return not all_alike or all(narrow(frame, part, holds) for part in test.values)
        case ast.Compare(
            ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq() as operator],
            comparators=[ast.Constant(value=None)],
        ):
            return _narrow_none(frame, test.left, isinstance(operator, ast.Is | ast.Eq) == holds)
        case ast.Call():
            _narrow_by_call(frame, test, holds)
        case ast.NamedExpr():
            return narrow(frame, test.target, holds)
        case ast.Name() | ast.Attribute() if holds:
            path = path_of(test)
            if path is not None and path in frame.env:
                frame.env[path] = without_none(frame.env[path])
    return True


def _narrow_none(frame: Frame, node: ast.expr, is_none: bool) -> bool:
    """Narrow `node is None` or `node is not None`."""
    path = path_of(node)
    if path is None:
        return True
    value = frame.env.get(path)
    if is_none:
        # An attribute that may be of any kind is not taken for None: other code may set it in between.
        if "." not in path or isinstance(value, Tensor | Static | Instance | Sequence):
            frame.env[path] = NONE
        return True
    if value is not None:
        frame.env[path] = without_none(value)
        return value != NONE
    known = frame.evaluate_silently(node)
    if isinstance(known, Tensor) and known.optional:
        frame.env[path] = without_none(known)
    return True


def _narrow_by_call(frame: Frame, test: ast.Call, holds: bool) -> None:
    """Narrow by `torch.is_tensor(x)` or `isinstance(x, classes)`."""
    path = path_of(test.args[0]) if test.args else None
    if path is None:
        return
    value = frame.env.get(path, UNKNOWN)
    name = frame.module.dotted(test.func)
    if name in {"torch.is_tensor", "torch.overrides.is_tensor_like"}:
        if holds and not isinstance(value, Tensor):
            frame.env[path] = TENSOR
    elif name == "isinstance" and len(test.args) == 2:
        if isinstance(value, Choice):
            frame.env[path] = _narrow_choice(frame, value, test.args[1], holds)
        elif holds:
            narrowed = _narrow_to_classes(frame, value, test.args[1])
            if narrowed is not None:
                frame.env[path] = narrowed


def _narrow_choice(frame: Frame, value: Choice, classes: ast.expr, holds: bool) -> Value:
    """The options that may be instances of the classes, or those that may not."""
    listed = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    kinds = [value_of_class(frame, item) for item in listed]
    infos = {kind.info for kind in kinds if isinstance(kind, Instance)}
    if not all(isinstance(kind, Instance) for kind in kinds):
        return value

    def may_be_left(option: Value) -> bool:
        if isinstance(option, Instance):
            return bool(infos.intersection(frame.interpreter.classes.mro(option.info))) == holds
        # A torch layer is not an instance of the linted code's classes; of functions nothing is known.
        return not (isinstance(option, Layer) and holds)

    options = list(filter(may_be_left, value.options))
    return choice(options) if options else value


def _narrow_to_classes(frame: Frame, value: Value, classes: ast.expr) -> Value | None:
    """What a value is after `isinstance(value, classes)` held; None if nothing follows."""
    kinds = [value_of_class(frame, item) for item in _listed_classes(classes)]
    kind = kinds[0]
    # By their texts, since lists of unknown elements of two classes are the same to us.
    if kind is None or len(set(map(repr, kinds))) != 1:
        return None
    if isinstance(kind, Tensor) and isinstance(value, Tensor):
        return without_none(value)
    if isinstance(kind, Sequence | Mapping) and isinstance(value, Sequence | Mapping):
        return value
    return kind


# --- isinstance ---

_BUILTIN_CLASSES: Final[dict[str, Value]] = {
    **{name: Static(name) for name in ("int", "float", "bool", "str", "complex", "bytes")},
    **dict.fromkeys(("list", "tuple", "set"), Sequence("list", None, UNKNOWN)),
    "dict": Mapping((), UNKNOWN),
}


def value_of_class(frame: Frame, node: ast.expr) -> Value | None:
    """What instances of a class are; None if that is not known."""
    if isinstance(node, ast.Name) and node.id in _BUILTIN_CLASSES:
        return _BUILTIN_CLASSES[node.id]
    value = frame.evaluate_silently(node)
    if isinstance(value, Class):
        return Instance(value.info)
    if isinstance(value, External):
        if value.name.startswith("torch.") and value.name.rpartition(".")[2] in TENSOR_CLASSES:
            return TENSOR
        if value.name.startswith("numpy"):
            return STATIC
    return None


def is_instance(frame: Frame, value: Value, classes: ast.expr) -> Value:
    """What `isinstance(value, classes)` returns."""
    kinds = [value_of_class(frame, item) for item in _listed_classes(classes)]
    answers = {_is_any_of(frame, option, kinds) for option in options_of(value)}
    if len(answers) == 1:
        return as_value(answers.pop())
    return BOOL


def _listed_classes(classes: ast.expr) -> list[ast.expr]:
    """`A`, `(A, B)` or `A | B`."""
    match classes:
        case ast.Tuple():
            return classes.elts
        case ast.BinOp():
            return [classes.left, classes.right]
        case _:
            return [classes]


def _is_any_of(frame: Frame, value: Value, kinds: list[Value | None]) -> Answer:
    answers = {_is_of_kind(frame, value, kind) for kind in kinds}
    if True in answers:
        return True
    return False if answers == {False} else None


def _is_of_kind(frame: Frame, value: Value, kind: Value | None) -> Answer:
    match value, kind:
        case Tensor(), Tensor():
            return None if value.optional else True
        case Tensor(), Static() | Sequence() | Mapping():
            return False
        # A configuration may hold anything, and a shape is a tuple.
        case Static(kind="" | "config" | "shape"), _:
            return None
        case Static(), Tensor() | Sequence() | Mapping():
            return False
        case Static(), Static():
            return value.kind == kind.kind if kind.kind else None
        case Instance(), Instance():
            # The variable may hold an instance of a subclass that the interpreter does not see.
            return kind.info in frame.interpreter.classes.mro(value.info) or None
        case Instance(), Tensor() | Static() | Sequence():
            return False
        case ((Sequence() | Mapping()), (Tensor() | Static())):
            return False
    return None
