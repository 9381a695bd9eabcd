"""What functions give that pass on what they get: of itertools, functools, operator,
collections and the like.
"""

import ast
import functools
from collections.abc import Callable
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    FLOAT_TENSOR,
    INT,
    UNKNOWN,
    Class,
    Instance,
    Mapping,
    Namespace,
    Sequence,
    Static,
    Tensor,
    Value,
    tensor,
)
from tpuport.lint.interpreter.arithmetic_values import arithmetic
from tpuport.lint.interpreter.containers import as_mapping
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.object_state import with_fields
from tpuport.lint.joins import join, join_all
from tpuport.lint.passed_arguments import Arguments

_Handler = Callable[[Frame, Arguments, ast.Call], Value]


def _iterator(element: Value) -> Value:
    return Sequence("iterator", None, element)


def _tuple(*items: Value) -> Value:
    return Sequence("tuple", items, join_all(items))


# --- functools, operator ---


def _reduce(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`functools.reduce(function, values, initial)`."""
    if len(arguments.positional) < 2:
        return UNKNOWN
    function, values, *initial = arguments.positional
    element = frame.element_of(values)
    first = initial[0] if initial else element
    result = frame.interpreter.apply(
        frame, function, Arguments([first, element], {}), node
    )
    # A number to begin with becomes a tensor with the first of them.
    return result if isinstance(result, Tensor) else join(first, result)


def _operator(
    operator: ast.operator, frame: Frame, arguments: Arguments, node: ast.Call
) -> Value:
    """`operator.add(a, b)`."""
    if len(arguments.positional) != 2:
        return UNKNOWN
    left, right = arguments.positional
    return arithmetic(left, operator, right)


def _comparison(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`operator.gt(a, b)`."""
    are_tensors = [isinstance(value, Tensor) for value in arguments.positional]
    if any(are_tensors):
        is_of_host = all(getattr(value, "host", True) for value in arguments.positional)
        return tensor("bool", host=is_of_host)
    return UNKNOWN if UNKNOWN in arguments.positional else BOOL


_OPERATORS: Final[dict[str, ast.operator]] = {
    "add": ast.Add(), "sub": ast.Sub(), "mul": ast.Mult(), "truediv": ast.Div(), "floordiv": ast.FloorDiv(),
    "mod": ast.Mod(), "pow": ast.Pow(), "matmul": ast.MatMult(), "and_": ast.BitAnd(), "or_": ast.BitOr(),
    "xor": ast.BitXor(), "iadd": ast.Add(), "imul": ast.Mult(),
}  # fmt: skip


# --- itertools, collections ---


def _chain(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    return _iterator(join_all(map(frame.element_of, arguments.positional)))


def _chain_of_iterables(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    return _iterator(frame.element_of(frame.element_of(arguments.first)))


def _same_elements(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`islice(values, n)`, `cycle(values)`, `heapq.nsmallest(n, values)`."""
    sources = [
        value
        for value in arguments.positional
        if isinstance(value, Sequence | Tensor | Instance)
    ]
    return _iterator(frame.element_of(sources[0])) if sources else UNKNOWN


def _of_predicate(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`takewhile(predicate, values)`."""
    if len(arguments.positional) != 2:
        return UNKNOWN
    predicate, values = arguments.positional
    element = frame.element_of(values)
    frame.interpreter.apply(frame, predicate, Arguments([element], {}), node)
    return _iterator(element)


def _selections(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`combinations(values, n)`."""
    element = frame.element_of(arguments.first)
    return _iterator(Sequence("tuple", None, element))


def _pairs(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    element = frame.element_of(arguments.first)
    return _iterator(_tuple(element, element))


def _product(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    elements = list(map(frame.element_of, arguments.positional))
    if "repeat" in arguments.keywords:
        return _iterator(Sequence("tuple", None, join_all(elements)))
    return _iterator(_tuple(*elements))


def _repeat(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    return _iterator(arguments.first)


def _count(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    return _iterator(INT)


def _accumulate(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    element = frame.element_of(arguments.first)
    function = arguments.get(1, "func")
    if function is not UNKNOWN:
        frame.interpreter.apply(
            frame, function, Arguments([element, element], {}), node
        )
    return _iterator(element)


def _starmap(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if len(arguments.positional) != 2:
        return UNKNOWN
    function, values = arguments.positional
    parts = frame.element_of(values).items
    if parts is None:
        return UNKNOWN
    return _iterator(
        frame.interpreter.apply(frame, function, Arguments(list(parts), {}), node)
    )


def _deque(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if not arguments.positional:
        return Sequence("list", (), UNKNOWN)
    return Sequence("list", None, frame.element_of(arguments.first))


def _default_dict(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if not arguments.positional:
        return Mapping((), UNKNOWN)
    return Mapping(
        (), frame.interpreter.apply(frame, arguments.first, Arguments([], {}), node)
    )


def _pop(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`heapq.heappop(heap)`."""
    return frame.element_of(arguments.first)


# --- others ---


def _cast(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`typing.cast(kind, value)`."""
    return arguments.get(1)


def _replaced(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`dataclasses.replace(instance, field=value)`."""
    instance = arguments.first
    if not isinstance(instance, Instance):
        return instance
    return with_fields(instance, dict(instance.fields) | arguments.keywords)


def _fields(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`dataclasses.fields(instance)`."""
    instance = arguments.first
    if not isinstance(instance, Instance | Class):
        return UNKNOWN
    names = frame.interpreter.classes.constructor_fields(instance.info)
    return _tuple(*(Namespace((("name", Static("str", name)),)) for name in names))


def _attributes(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`dataclasses.asdict(instance)`."""
    return as_mapping(arguments.first)


def _mapped_tree(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`tree_map(function, tree)`."""
    if len(arguments.positional) < 2:
        return UNKNOWN
    function, tree = arguments.positional[:2]

    def mapped(part: Value) -> Value:
        match part:
            case Sequence(kind=kind, items=tuple(items)):
                values = tuple(map(mapped, items))
                return Sequence(kind, values, join_all(values))
            case Sequence(kind=kind, element=element):
                return Sequence(kind, None, mapped(element))
            case Mapping(entries=entries, element=element):
                return Mapping(
                    tuple((key, mapped(value)) for key, value in entries),
                    mapped(element),
                )
            case _:
                return frame.interpreter.apply(
                    frame, function, Arguments([part], {}), node
                )

    return mapped(tree)


def _derivative(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`torch.autograd.functional.jacobian(function, inputs)`."""
    if len(arguments.positional) < 2:
        return UNKNOWN
    function, inputs = arguments.positional[:2]
    passed = (
        inputs.items
        if isinstance(inputs, Sequence) and inputs.items is not None
        else (inputs,)
    )
    frame.interpreter.apply(frame, function, Arguments(list(passed), {}), node)
    return FLOAT_TENSOR if isinstance(inputs, Tensor) else UNKNOWN


def _imported_module(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`importlib.import_module(name)`."""
    name = arguments.first.constant
    if not isinstance(name, str) or name.startswith("."):
        return UNKNOWN
    return frame.interpreter.project.imported(name, frame.module)


HANDLERS: Final[dict[str, _Handler]] = {
    "importlib.import_module": _imported_module,
    "functools.reduce": _reduce,
    **{f"operator.{name}": functools.partial(_operator, operator) for name, operator in _OPERATORS.items()},
    **dict.fromkeys((f"operator.{name}" for name in "lt le gt ge eq ne".split()), _comparison),
    "itertools.chain": _chain,
    "itertools.chain.from_iterable": _chain_of_iterables,
    **dict.fromkeys((f"itertools.{name}" for name in "islice cycle tee".split()), _same_elements),
    **dict.fromkeys(("heapq.nsmallest", "heapq.nlargest", "random.sample", "random.choices"), _same_elements),
    **dict.fromkeys((f"itertools.{name}" for name in "takewhile dropwhile filterfalse".split()), _of_predicate),
    **dict.fromkeys(
        (f"itertools.{name}" for name in "combinations permutations combinations_with_replacement".split()), _selections
    ),
    "itertools.pairwise": _pairs,
    "itertools.product": _product,
    "itertools.repeat": _repeat,
    "itertools.count": _count,
    "itertools.accumulate": _accumulate,
    "itertools.starmap": _starmap,
    "collections.deque": _deque,
    "collections.defaultdict": _default_dict,
    **dict.fromkeys(("heapq.heappop", "random.choice"), _pop),
    "typing.cast": _cast,
    "dataclasses.replace": _replaced,
    "dataclasses.fields": _fields,
    "dataclasses.asdict": _attributes,
    **dict.fromkeys(("torch.utils._pytree.tree_map", "optree.tree_map"), _mapped_tree),
    **dict.fromkeys(
        ("torch.autograd.functional.jacobian", "torch.autograd.functional.hessian"), _derivative
    ),
}  # fmt: skip
