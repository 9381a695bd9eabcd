"""Conditions: the truth of values, what a condition says about the names in it,
`isinstance`.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, TypeVar

from tpuport.lint.abstract_values import (
    BOOL,
    FALSE,
    GIVEN_CACHE,
    NONE,
    PACKED_SEQUENCE,
    PACKED_SEQUENCES,
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
    Namespace,
    Sequence,
    Static,
    Tensor,
    Value,
    class_of,
    is_tensor,
    options_of,
    tensor,
    without_none,
)
from tpuport.lint.dtype_families import TENSOR_CLASSES
from tpuport.lint.events import Truth
from tpuport.lint.interpreter.frame import (
    Frame,
    copy_environment,
    path_of,
    tuple_elements,
)
from tpuport.lint.joins import (
    choice,
    join,
    join_all,
)

_Branch = TypeVar("_Branch", ast.expr, list[ast.stmt])

# Whether something is certainly true or certainly false; None if that is not known.
Answer = bool | None

_AS_VALUES: Final[dict[Answer, Value]] = {True: TRUE, False: FALSE, None: BOOL}
_NEGATIONS: Final[dict[Answer, Answer]] = {True: False, False: True, None: None}


def as_value(answer: Answer) -> Value:
    """An answer as the value of an expression."""
    return _AS_VALUES[answer]


def decide(frame: Frame, node: ast.expr, construct: str) -> Answer:
    """Evaluate a condition. Rules hear of tensors in it; `construct` is the syntax that
    asks ("if", "while").
    """
    match node:
        case ast.BoolOp():
            return _decide_boolean(frame, node, construct)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            # `assert not x` has a remedy of its own.
            if construct != "assert":
                construct = "not"
            return _NEGATIONS[decide(frame, operand, construct)]
        case ast.Constant(value=constant):
            return bool(constant)
    value = frame.evaluate(node)
    if isinstance(value, Tensor):
        frame.report(Truth(node, value, construct, frame.statement))
    return truth_of(value)


def truth_of(value: Value) -> Answer:
    """Whether a value is certainly true or certainly false."""
    match value:
        case Function():
            return True
        case Static(constant=None) | External(missing=True):
            return False
        case Static(constant=bool(answer)):
            return answer
        case _:
            return None


def _decide_boolean(frame: Frame, node: ast.BoolOp, construct: str) -> Answer:
    # The value of a part at which evaluation stops: True ends `or`, False ends `and`.
    deciding = isinstance(node.op, ast.Or)
    env = frame.env
    frame.env = copy_environment(env)
    answer: Answer = not deciding
    for part in node.values:
        part_answer = decide(frame, part, construct)
        if part_answer is deciding:
            # Nothing after it is evaluated; unsure parts before it could only have
            # decided the same.
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
    passing = isinstance(node.op, ast.And)
    construct = "and" if passing else "or"
    env = frame.env
    frame.env = copy_environment(env)
    *guards, last = node.values
    result: Value | None = None
    for guard in guards:
        value = frame.evaluate(guard)
        answer = truth_of(value)
        # Python does not ask the last part for its truth.
        if isinstance(value, Tensor):
            frame.report(Truth(guard, value, construct))
        # A part with which evaluation certainly goes on is never the result.
        if answer is not passing:
            result = _guarded(result, value)
        # Without a doubt the result is known, and what follows is not evaluated.
        if answer is (not passing) or not narrow(frame, guard, passing):
            break
    else:
        result = _guarded(result, frame.evaluate(last))
    frame.env = env
    return result or UNKNOWN


def _guarded(guard: Value | None, value: Value) -> Value:
    """`guard and value`, `guard or value`; without a guard the value."""
    match guard, value:
        case (None, _) | (Static(kind="bool" | "none"), Tensor()):
            return value
        # `done or count > limit`: a program that computes both has a tensor.
        case Tensor(), Static(constant=None) | Static(kind="bool"):
            return guard
        case _:
            return join(guard, value)


def conditional_expression(frame: Frame, node: ast.IfExp) -> Value:
    """`a if b else c`."""
    branches = possible_branches(
        frame, node.test, "conditional expression", node.body, node.orelse
    )
    return join_all(map(frame.evaluate, branches))


def possible_branches(
    frame: Frame, test: ast.expr, construct: str, body: _Branch, orelse: _Branch
) -> Iterator[_Branch]:
    """The branches of a condition that can run, each to be interpreted in the
    environment that the frame then has.

    Afterwards the frame has its former environment again.
    """
    answer = decide(frame, test, construct)
    env = frame.env
    frame.doubts += answer is None
    for holds, branch in ((True, body), (False, orelse)):
        frame.env = copy_environment(env)
        if answer in (holds, None) and narrow(frame, test, holds):
            yield branch
    frame.doubts -= answer is None
    frame.env = env


# --- what follows from a condition ---

# Calls that tell what their argument is.
_NARROWING: Final = frozenset(
    {"isinstance", "torch.is_tensor", "torch.overrides.is_tensor_like"}
)


def narrow(frame: Frame, test: ast.expr, holds: bool) -> bool:
    """Set in the frame what follows from `test` being true (or false); False if it
    cannot be.
    """
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return narrow(frame, test.operand, not holds)
        case ast.BoolOp():
            # If `a and b` holds, both hold; if `a or b` fails, both fail. Otherwise
            # nothing follows for a single part.
            all_alike = isinstance(test.op, ast.And) == holds
            return not all_alike or all(
                narrow(frame, part, holds) for part in test.values
            )
        case ast.Compare(
            ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq() as operator],
            comparators=[ast.Constant(value=None)],
        ):
            return _narrow_none(
                frame, test.left, isinstance(operator, ast.Is | ast.Eq) == holds
            )
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="len"), args=[container]),
            ops=[ast.Gt() | ast.NotEq() | ast.Eq() as operator],
            comparators=[ast.Constant(value=0)],
        ):
            if isinstance(operator, ast.Eq) == holds:
                _narrow_to_empty(frame, container)
        case ast.Call():
            _narrow_by_call(frame, test, holds)
        case ast.NamedExpr():
            return narrow(frame, test.target, holds)
        case ast.Name() | ast.Attribute():
            return _narrow_by_truth(frame, test, holds)
    return True


def _narrow_by_truth(frame: Frame, node: ast.Name | ast.Attribute, holds: bool) -> bool:
    """Narrow by a name or an attribute itself, which is not None if it holds, or has
    the answer to a condition.
    """
    path = path_of(node)
    if path in frame.conditions:
        return _narrow_by_flag(frame, path, holds)
    if holds and path in frame.env:
        frame.env[path] = without_none(frame.env[path])
    return True


def remember_condition(frame: Frame, name: str, test: ast.expr) -> None:
    """Note that a name got the answer to a condition:
    `is_packed = isinstance(x, PackedSequence)`.
    """
    frame.conditions.pop(name, None)
    match test:
        case ast.Compare(
            ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]
        ):
            pass
        case ast.Call(func=function) if frame.module.dotted(function) in _NARROWING:
            pass
        case _:
            return
    names = {
        part.id for part in ast.walk(test) if isinstance(part, ast.Name)
    } & frame.env.keys()
    frame.conditions[name] = (test, {part: frame.env[part] for part in (*names, name)})


def _narrow_by_flag(frame: Frame, name: str, holds: bool) -> bool:
    """Narrow by a name that holds the answer to a condition, as long as no name in it
    has got another value.
    """
    test, values = frame.conditions[name]
    is_as_then = all(frame.env.get(part) == value for part, value in values.items())
    return narrow(frame, test, holds) if is_as_then else True


def _narrow_none(frame: Frame, node: ast.expr, is_none: bool) -> bool:
    """Narrow `node is None` or `node is not None`."""
    path = path_of(node)
    if path is None:
        return True
    value = frame.env.get(path)
    if is_none:
        # An attribute that may be of any kind is not taken for None: other code may set
        # it in between.
        if value is GIVEN_CACHE:
            return False
        if "." not in path or isinstance(value, Tensor | Static | Instance | Sequence):
            frame.env[path] = NONE
        return True
    if value is not None:
        frame.env[path] = without_none(value)
        return value != NONE
    # Of an attribute only a tensor is worth an entry in the frame: anything else the
    # object knows as well.
    match frame.evaluate_silently(node):
        case Tensor(optional=True) as known:
            frame.env[path] = without_none(known)
    return True


def _narrow_to_empty(frame: Frame, node: ast.expr) -> None:
    """Narrow to a list, tuple or set without elements."""
    path = path_of(node)
    match frame.env.get(path or ""):
        case Sequence(kind="list" | "tuple" | "set" as kind) if path:
            frame.env[path] = Sequence(kind, (), UNKNOWN)


def _narrow_by_call(frame: Frame, test: ast.Call, holds: bool) -> None:
    """Narrow by `torch.is_tensor(x)` or `isinstance(x, classes)`."""
    match test.args:
        case [ast.Name() | ast.Attribute() as subject, *others]:
            path = path_of(subject)
        case _:
            return
    if path is None:
        return
    value = frame.env.get(path, UNKNOWN)
    narrowed: Value | None = None
    match frame.module.dotted(test.func), others, value:
        case ("torch.is_tensor" | "torch.overrides.is_tensor_like", _, _) if (
            holds and not is_tensor(value)
        ):
            narrowed = TENSOR
        case "isinstance", [classes], Choice():
            narrowed = _narrow_choice(frame, value, classes, holds)
        case "isinstance", [classes], _ if holds:
            narrowed = _narrow_to_classes(frame, value, classes)
    # Nothing is stored if nothing follows, since an entry hides what the object itself
    # knows of an attribute.
    if narrowed is not None:
        frame.env[path] = narrowed


def _narrow_choice(
    frame: Frame, value: Choice, classes: ast.expr, holds: bool
) -> Value:
    """The options that may be instances of the classes, or those that may not."""
    infos = set(map(class_of, _values_of_classes(frame, classes)))
    # One of them is not a class of the linted code.
    if None in infos:
        return value

    def may_be_left(option: Value) -> bool:
        match option:
            case Instance(info=info):
                return infos.isdisjoint(frame.interpreter.classes.mro(info)) != holds
            # A torch layer is not an instance of the linted code's classes.
            case Layer():
                return not holds
            case _:
                return True

    options = list(filter(may_be_left, value.options))
    return choice(options) if options else value


def _narrow_to_classes(frame: Frame, value: Value, classes: ast.expr) -> Value | None:
    """What a value is after `isinstance(value, classes)` held; None if nothing
    follows.
    """
    # By their texts, since lists of unknown elements of two classes are the same to us.
    kinds = {repr(kind): kind for kind in _values_of_classes(frame, classes)}
    match list(kinds.values()), value:
        case [Tensor()], Tensor():
            return without_none(value)
        case [Sequence() | Mapping()], (Sequence() | Mapping()):
            return value
        # Where its sizes are is known where it was packed.
        case [kind], Namespace() if {kind, value} <= set(PACKED_SEQUENCES):
            return value
        case [kind], _:
            return kind
        case _:
            return None


# --- isinstance ---

# A bare name is not enough: any library may have a class `Tensor` of its own.
_TENSOR_CLASS: Final = re.compile(rf"torch\.(.*\.)?({'|'.join(TENSOR_CLASSES)})")
_BUILTIN_CLASSES: Final[dict[str, Value]] = {
    **{
        name: Static(name)
        for name in ("int", "float", "bool", "str", "complex", "bytes")
    },
    **{kind: Sequence(kind, None, UNKNOWN) for kind in ("list", "tuple", "set")},
    "dict": Mapping((), UNKNOWN),
}


def value_of_class(frame: Frame, node: ast.expr) -> Value | None:
    """What instances of a class are; None if that is not known."""
    match node:
        case ast.Name(id=name) if name in _BUILTIN_CLASSES:
            return _BUILTIN_CLASSES[name]
    match frame.evaluate_silently(node):
        case Class(info=info):
            return Instance(info)
        case External(name=name) if _TENSOR_CLASS.fullmatch(name):
            return tensor(TENSOR_CLASSES[name.rpartition(".")[2]])
        case External(name="torch.nn.utils.rnn.PackedSequence"):
            return PACKED_SEQUENCE
        case External(name=name) if name.startswith("numpy"):
            return STATIC
        case _:
            return None


def is_instance(frame: Frame, value: Value, classes: ast.expr) -> Value:
    """What `isinstance(value, classes)` returns."""
    kinds = _values_of_classes(frame, classes)
    answers = {_is_any_of(frame, option, kinds) for option in options_of(value)}
    # Of a choice, some options may be instances and others not.
    if len(answers) > 1:
        return BOOL
    return as_value(answers.pop())


def _values_of_classes(frame: Frame, classes: ast.expr) -> list[Value | None]:
    """What instances of `A`, `(A, B)` or `A | B` are, class by class."""
    parts = tuple_elements(classes)
    match classes:
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
    return [value_of_class(frame, part) for part in parts]


def _is_any_of(frame: Frame, value: Value, kinds: list[Value | None]) -> Answer:
    answers = {_is_of_kind(frame, value, kind) for kind in kinds}
    if True in answers:
        return True
    return None if None in answers else False


def _is_of_kind(frame: Frame, value: Value, kind: Value | None) -> Answer:
    match value, kind:
        case (Static(kind="shape"), Sequence(kind="tuple")) | (Mapping(), Mapping()):
            return True
        case Static(kind="shape"), Tensor() | Mapping():
            return False
        # A configuration may hold anything.
        case (Static(kind="" | "config" | "shape"), _) | (Static(), Static(kind="")):
            return None
        case Static(), Static():
            return value.kind == kind.kind
        case Tensor(optional=False), Tensor():
            return _has_dtype_of_class(value, kind)
        # Of another kind it may be nevertheless: a list may be what two branches leave,
        # one of them a tuple.
        case Sequence(kind=kind_of_value), Sequence(kind=kind_of_class) if (
            kind_of_value == kind_of_class
        ):
            return True
        case Namespace(), Namespace() if {value, kind} <= set(PACKED_SEQUENCES):
            return True
        case Instance(), Instance():
            # The variable may hold an instance of a subclass that the interpreter does
            # not see.
            return kind.info in frame.interpreter.classes.mro(value.info) or None
        case (
            (Tensor(), Static() | Sequence() | Mapping() | Namespace())
            | (Sequence(), Mapping())
            | (Namespace(), Tensor() | Static())
            | (Static(), Tensor() | Sequence() | Mapping())
            | (Sequence(), Tensor() | Static())
            | (Mapping(), Tensor() | Static() | Sequence())
            | (Instance(), Tensor() | Static() | Sequence())
        ):
            return False
        case _:
            return None


def _has_dtype_of_class(value: Tensor, kind: Tensor) -> Answer:
    """Whether a tensor is an instance of `torch.LongTensor` and its like, or of
    `torch.Tensor`.
    """
    if kind.dtype == "":
        return True
    # There are several classes of each family.
    return False if value.dtype not in ("", kind.dtype) else None
