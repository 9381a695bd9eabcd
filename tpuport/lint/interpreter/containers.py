"""Containers in a frame: values are immutable, so a changed list, dict or object is
another value, which takes the old one's place wherever that is.
"""

import ast
from typing import Final

from tpuport.lint.abstract_values import (
    STATIC,
    UNKNOWN,
    Class,
    Function,
    Instance,
    Mapping,
    Namespace,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    is_traced,
)
from tpuport.lint.events import Call
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.object_state import store, with_field
from tpuport.lint.interpreter.placement import on_device
from tpuport.lint.joins import join_all, with_element, with_entry
from tpuport.lint.passed_arguments import Arguments

# Longer tables are not looked through one by one.
_MOST_RUNS: Final = 8


def replace(frame: Frame, holder: ast.expr, value: Value) -> None:
    """Let an expression hold another value: a name, an attribute, an entry."""
    match holder:
        case ast.Subscript(value=table, slice=key):
            _replace_entry(frame, table, key, value)
        # `table.setdefault(key, []).append(x)`
        case ast.Call(
            func=ast.Attribute(value=table, attr="setdefault"), args=[key, *_]
        ):
            _replace_entry(frame, table, key, value)
        case _:
            store(frame, holder, value)
    match holder:
        case ast.Attribute(value=owner, attr=name) if (
            frame.building is not None and frame.is_self(owner)
        ):
            frame.building[name] = value


def _replace_entry(frame: Frame, table: ast.expr, key: ast.expr, value: Value) -> None:
    container = frame.evaluate_silently(table)
    changed = with_item(frame, table, container, [frame.evaluate_silently(key)], value)
    if changed is not None:
        replace(frame, table, changed)


def with_item(
    frame: Frame, holder: ast.expr, container: Value, indices: list[Value], value: Value
) -> Value | None:
    """The container that an expression holds after `container[index] = value`; None if
    nothing is known of it.
    """
    key = indices[0] if indices else UNKNOWN
    match container:
        # What is written to, or where, has no values while tracing.
        case Tensor(host=True) if any(map(is_traced, (value, *indices))):
            return on_device(container)
        case Mapping():
            return with_entry(container, key.constant, value)
        # What has entries with names is a dict.
        case Unknown() if (
            key.kind == "str"
            and isinstance(holder, ast.Name)
            and frame.building is None
        ):
            return with_entry(Mapping((), UNKNOWN), key.constant, value)
        case Sequence(kind="list"):
            return _with_element_at(container, key, value)
        case Instance(info=info) if frame.interpreter.classes.is_dict(
            info
        ) and isinstance(key.constant, str):
            return with_field(container, key.constant, value)
        case _:
            return None


def _with_element_at(container: Sequence, key: Value, value: Value) -> Value:
    match container.items, key.constant:
        case tuple(items), int(position) if -len(items) <= position < len(items):
            changed = [*items]
            changed[position] = value
            return Sequence(container.kind, tuple(changed), join_all(changed))
        case _:
            return with_element(container, value)


def entries_by_name(arguments: Arguments) -> dict[str, Value]:
    """What `dict(...)` and `update(...)` get, at the keys that are names."""
    match arguments.first:
        case Mapping(entries=entries):
            pass
        case _:
            entries = ()
    named = {key: value for key, value in entries if isinstance(key, str)}
    return named | arguments.keywords


def entries_of(mapping: Mapping) -> Value:
    """`mapping.items()`: one by one, if all keys are known."""
    pairs = [
        Sequence("tuple", (_key(key), value), UNKNOWN) for key, value in mapping.entries
    ]
    if pairs and mapping.element is UNKNOWN:
        return Sequence("iterator", tuple(pairs), join_all(pairs))
    any_entry = join_all(mapping.values) if pairs else mapping.element
    return Sequence("iterator", None, Sequence("tuple", (STATIC, any_entry), UNKNOWN))


def as_mapping(owner: Value) -> Value:
    """The attributes of an object as a dict: `vars(owner)`, `asdict(owner)`."""
    match owner:
        case Instance(fields=entries) | Namespace(attributes=entries):
            return Mapping(entries, UNKNOWN)
        case _:
            return UNKNOWN


def keys_of(mapping: Mapping) -> Value:
    """The keys of a dict, one by one if all are known."""
    keys = tuple(_key(key) for key, _ in mapping.entries)
    if keys and mapping.element is UNKNOWN:
        return Sequence("dict_views", keys, STATIC)
    return Sequence("dict_views", None, STATIC)


def _key(key: object) -> Value:
    return Static(type(key).__name__, key) if isinstance(key, str | int) else STATIC


def rows_of(frame: Frame, sources: list[Value]) -> Value:
    """`zip(*sources)`: row by row, if one of them has a few names."""
    elements = tuple(map(frame.element_of, sources))
    counts = [len(items) for items in map(told_apart, sources) if items]
    if not counts:
        return Sequence(
            "iterator", None, Sequence("tuple", elements, join_all(elements))
        )
    count = min(counts)
    columns = [
        told_apart(source) or source.items or (element,) * count
        for source, element in zip(sources, elements, strict=True)
    ]
    rows = tuple(
        Sequence("tuple", row, join_all(row)) for row in zip(*columns, strict=False)
    )
    return Sequence("iterator", rows, join_all(rows))


def compare_by_key(
    frame: Frame, values: Value, arguments: Arguments, node: ast.Call
) -> None:
    """Let the rules hear what `sorted`, `max`, `list.sort` and the like compare: what
    the function `key` makes of the elements.
    """
    key = arguments.keywords.get("key")
    if isinstance(key, Function):
        element = Arguments([frame.element_of(values)], {})
        result = frame.interpreter.call_function(frame, key, element)
        items = None if values.items is None else (result,) * len(values.items)
        compared = Sequence("iterator", items, result)
        frame.report(Call(node, "builtins.sorted", None, [compared], {}, UNKNOWN))


def told_apart(source: Value) -> tuple[Value, ...] | None:
    """The elements of what a loop is over, if each has a run of its own: a few classes,
    names, or pairs of a name and a value that are written down. None for all else.
    """
    match source:
        case Mapping():
            items = keys_of(source).items
        case _:
            items = source.items
    if items and len(items) <= _MOST_RUNS and all(map(_has_name, items)):
        return items
    return None


def _has_name(item: Value) -> bool:
    match item:
        case Class() | Static(constant=str()):
            return True
        case Sequence(items=(*parts,)):
            return any(isinstance(part.constant, str) for part in parts)
        case Namespace(attributes=(("name", Static(constant=str())), *_)):
            return True
        case _:
            return False
