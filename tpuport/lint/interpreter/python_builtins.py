"""Python's own functions: what a call of each returns."""

import ast
import functools
import re
from collections.abc import Callable
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    NOT_CONSTANT,
    SLICE,
    STATIC,
    STR,
    UNKNOWN,
    Class,
    Function,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    class_of,
    is_tensor,
    is_traced,
    tensor,
)
from tpuport.lint.events import Iteration
from tpuport.lint.interpreter import overloading
from tpuport.lint.interpreter.computed_names import known_ends
from tpuport.lint.interpreter.containers import as_mapping, compare_by_key, rows_of
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.members import attribute
from tpuport.lint.interpreter.object_state import store
from tpuport.lint.interpreter.placement import on_device
from tpuport.lint.interpreter.truth import is_instance
from tpuport.lint.joins import (
    join,
    join_all,
)
from tpuport.lint.passed_arguments import Arguments

_FIXED_RESULTS: Final[dict[str, Value]] = {
    "int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "repr": STR, "format": STR, "hasattr": BOOL,
    "issubclass": BOOL, "callable": BOOL, "id": INT, "hash": INT, "ord": INT, "chr": STR, "print": NONE,
    "delattr": NONE, "complex": Static("complex"), "divmod": STATIC,
    "dir": STATIC, "any": BOOL, "all": BOOL, "input": STR, "bytes": STATIC,
    "range": Sequence("iterator", None, INT),
}  # fmt: skip
_CONTAINER_KINDS: Final = {
    "list": "list", "tuple": "tuple", "set": "set", "frozenset": "set", "sorted": "list", "iter": "iterator",
}  # fmt: skip
# Of more elements, what any of them is says enough.
_MOST_MAPPED: Final = 8
_ORDERING: Final = frozenset({"sorted", "min", "max"})
# Built-in names that are known, but whose calls say nothing.
_OTHER_NAMES: Final = frozenset(
    "super object property staticmethod classmethod open locals globals".split()
)


def is_builtin(name: str) -> bool:
    """Whether a name is that of a built-in function or class."""
    return name in _BUILTIN_NAMES


def call_builtin(
    frame: Frame, name: str, arguments: Arguments, node: ast.Call
) -> Value:
    """What a built-in function returns."""
    handler = _HANDLERS.get(name)
    if handler is None:
        return _FIXED_RESULTS.get(name, UNKNOWN)
    if name in _ORDERING and len(arguments.positional) == 1:
        compare_by_key(frame, arguments.first, arguments, node)
    return handler(frame, arguments, node)


def _slice(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`slice(0, n)`: the rules hear of bounds that are tensors where it indexes."""
    bounds = tuple(arguments.positional)
    return Sequence("slice", bounds, UNKNOWN) if any(map(is_traced, bounds)) else SLICE


def _container(kind: str, frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`list(x)`, `sorted(x)` and the like."""
    if not arguments.positional:
        return Sequence(kind, (), UNKNOWN)
    source = arguments.first
    match source:
        # How many elements of a set differ is not known.
        case Sequence(items=tuple(items), element=element) if kind != "set":
            return Sequence(kind, items, element)
        case Sequence(tensors=has_tensors):
            return Sequence(kind, None, frame.element_of(source), has_tensors)
        case _:
            return Sequence(kind, None, frame.element_of(source))


def _reversed(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    iterator = _container("iterator", frame, arguments, node)
    match iterator:
        case Sequence(items=tuple(items), element=element):
            return Sequence("iterator", items[::-1], element)
        case _:
            return iterator


def _len(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """The length of a tuple. What a list has is not counted on: a branch that is not
    followed may append to it.
    """
    match arguments.first:
        case Sequence(kind="tuple", items=tuple(items)):
            return Static("int", len(items))
        case instance:
            # Its own method may ask for values.
            overloading.call_method(frame, instance, "__len__")
            return INT


def _isinstance(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if len(node.args) == 2:
        return is_instance(frame, arguments.first, node.args[1])
    return BOOL


def _getattr(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [base, Static(constant=str(name))]:
            return attribute(frame, base, name)
        case [base, Static(constant=str(name)), default, *_]:
            value = attribute(frame, base, name)
            if value is UNKNOWN:
                return value
            return join(value, default)
        case [Instance() as base, _, *_] if len(node.args) >= 2:
            return _attributes_like(frame, base, *known_ends(node.args[1]))
        case [Static(), *_]:
            return STATIC
        case _:
            return UNKNOWN


def _attributes_like(frame: Frame, base: Instance, start: str, end: str) -> Value:
    """Any attribute whose name starts and ends like this; `UNKNOWN` if neither end is
    known.
    """
    if not (start or end):
        return UNKNOWN
    classes = frame.interpreter.classes
    names = set(classes.attributes(base.info)).union(
        *(info.methods for info in classes.mro(base.info))
    )
    # Something stands in the place of what is computed. Names with two underscores are
    # Python's own.
    pattern = re.compile(f"(?!__)(?={re.escape(start)}.).*{re.escape(end)}")
    # Sorted, since the order of options decides which of them is interpreted first.
    return join_all(
        attribute(frame, base, name)
        for name in sorted(filter(pattern.fullmatch, names))
    )


def _setattr(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [_, name, value] if len(node.args) == 3 and frame.is_self(node.args[0]):
            # As an assignment does: a module is moved before it is traced, with what
            # its constructor has set.
            owner = class_of(frame.receiver)
            is_moved = owner is not None and frame.interpreter.classes.is_module(owner)
            frame.set_by_name(
                name, node.args[1], on_device(value) if is_moved else value
            )
    match arguments.positional:
        case [_, Static(constant=str(name)), value] if frame.building is None:
            store(frame, ast.Attribute(node.args[0], name, ast.Store()), value)
    return NONE


def _enumerate(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    source = arguments.first
    for part in node.args[:1]:
        frame.report(Iteration(part, source))
    return rows_of(frame, [Sequence("iterator", None, INT), source])


def _zip(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    for source, part in zip(arguments.positional, node.args, strict=False):
        frame.report(Iteration(part, source))
    match node.args:
        case [ast.Starred()] if not arguments.is_counted:
            return _transposed(arguments.first)
    return rows_of(frame, arguments.positional)


def _transposed(row: Value) -> Value:
    """`zip(*rows)`: the first elements of all rows, the second ones, and so on."""
    match row:
        case Sequence(items=tuple(items)):
            columns = tuple(Sequence("tuple", None, item) for item in items)
            return Sequence("iterator", columns, join_all(columns))
        case Sequence(element=element):
            return Sequence("iterator", None, Sequence("tuple", None, element))
        case _:
            return UNKNOWN


def _map(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    function, *sources = arguments.positional or [UNKNOWN]

    def result(*elements: Value) -> Value:
        passed = Arguments(list(elements), {})
        return frame.interpreter.apply(frame, function, passed, node)

    match sources:
        case []:
            return UNKNOWN
        # `map(list, zip(*rows))`: a list for each column
        case [Sequence(items=(_, *_) as items)] if len(items) <= _MOST_MAPPED:
            results = tuple(map(result, items))
            return Sequence("iterator", results, join_all(results))
    return Sequence("iterator", None, result(*map(frame.element_of, sources)))


def _filter(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    if len(arguments.positional) < 2:
        return UNKNOWN
    function, source = arguments.positional[:2]
    if isinstance(function, Function):
        element = Arguments([frame.element_of(source)], {})
        frame.interpreter.call_function(frame, function, element)
    return Sequence("iterator", None, frame.element_of(source))


def _extreme(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`max(values)` or `max(a, b)`."""
    values = arguments.positional
    if len(values) == 1:
        return frame.element_of(values[0])
    if not any(map(is_tensor, values)):
        return join_all(values)
    if all(map(is_tensor, values)):
        return values[0]
    # Of a tensor and a number it may be either. Where it could be traced, as
    # torch.maximum, it would be a tensor.
    return next(filter(is_traced, values), UNKNOWN)


def _element(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`next` and `sum`."""
    return frame.element_of(arguments.first)


def _number(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """`abs`, `round` and `pow` return what they get."""
    first = arguments.first
    if isinstance(first, Tensor):
        return tensor(
            first.dtype, ndim=first.ndim, host=first.host, several=first.several
        )
    return first


def _dict(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [Mapping(entries=entries, element=element), *_]:
            return Mapping(tuple((dict(entries) | arguments.keywords).items()), element)
        # `dict([("a", x), ("b", y)])`
        case [Sequence(items=tuple(pairs)), *_]:
            entries = {
                pair.items[0].constant: pair.items[1]
                for pair in pairs
                if pair.items and len(pair.items) == 2
            }
            is_known = len(entries) == len(pairs) and NOT_CONSTANT not in entries
            return Mapping(tuple(entries.items()) if is_known else (), UNKNOWN)
        case _:
            return Mapping(tuple(arguments.keywords.items()), UNKNOWN)


def _vars(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    return as_mapping(arguments.first)


def _type(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    match arguments.positional:
        case [Instance(info=info)]:
            return Class(info)
        case _:
            return STATIC


_HANDLERS: Final[dict[str, Callable[[Frame, Arguments, ast.Call], Value]]] = {
    "len": _len, "isinstance": _isinstance, "getattr": _getattr, "setattr": _setattr, "enumerate": _enumerate,
    "zip": _zip, "map": _map, "filter": _filter, "max": _extreme, "min": _extreme, "sum": _element, "next": _element,
    "abs": _number, "round": _number, "pow": _number, "dict": _dict, "type": _type, "reversed": _reversed,
    "slice": _slice, "vars": _vars,
    **{name: functools.partial(_container, kind) for name, kind in _CONTAINER_KINDS.items()},
}  # fmt: skip
_BUILTIN_NAMES: Final = _OTHER_NAMES.union(_FIXED_RESULTS, _HANDLERS)
