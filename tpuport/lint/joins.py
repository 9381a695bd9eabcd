"""What a value may be after two branches, or after a container got another element."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from tpuport.lint.abstract_values import (
    CACHE,
    GIVEN_CACHE,
    NONE,
    NOT_CONSTANT,
    UNKNOWN,
    Choice,
    Class,
    External,
    Function,
    Instance,
    KeyValueCache,
    Layer,
    Mapping,
    Partial,
    Sequence,
    Static,
    Tensor,
    Value,
    changed,
    is_traced,
    options_of,
    tensor,
)

_T = TypeVar("_T")
_Join = Callable[[Value, Value], Value]


class Losses:
    """Counts joins of a traced tensor with a Python object, of which nothing is known
    afterwards.

    Attributes:
        count: how many there were; only differences say something.
    """

    count = 0


losses: Final = Losses()

# Each further option is interpreted at each call, and more than a few say little about
# any of them.
_MOST_OPTIONS: Final = 8


def join(left: Value, right: Value) -> Value:
    """What a name is after two branches that leave it as `left` and as `right`."""
    if left is right or left == right:
        return left
    # Dispatch by hand: this is the interpreter's busiest function, and tensors are the
    # busiest values.
    if isinstance(left, Tensor):
        return _join_tensor(left, right)
    if isinstance(right, Tensor):
        return _join_tensor(right, left)
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(_common(left.kind, right.kind, ""))
    # Code that reads an attribute or calls a value that may be None means the value.
    if left == NONE:
        return _or_none(right)
    if right == NONE:
        return _or_none(left)
    return _join_objects(left, right)


def _join_objects(left: Value, right: Value) -> Value:
    match left, right:
        case Sequence(), Sequence():
            return _join_sequences(left, right)
        # A cache that the model creates itself is another one, which the loop that
        # calls the model replaces.
        case (KeyValueCache(), KeyValueCache() | Instance()) | (
            Instance(),
            KeyValueCache(),
        ):
            return CACHE
        case Mapping(), Mapping():
            return _join_mappings(left, right)
        case Instance(), Instance() if left.info is right.info:
            return Instance(left.info, _common_fields(left, right))
    return choice([left, right])


def carried(before: Value, after: Value) -> Value:
    """What a loop's next run finds, by what the last one found and what it left.

    `total = 0; for ...: total = total + x.sum()` leaves a tensor, since loops over
    layers do run: also in an entry of a dict and in an attribute.
    """
    match before, after:
        case Static(), Tensor():
            return after
        case Instance(), Instance() if before.info is after.info:
            return Instance(after.info, _common_fields(before, after, carried))
        case Mapping(), Mapping():
            return _join_mappings(before, after, carried)
        case _:
            return join(before, after)


def join_all(values: Iterable[Value]) -> Value:
    """The join of several values; `UNKNOWN` if there are none."""
    remaining = iter(values)
    return functools.reduce(join, remaining, next(remaining, UNKNOWN))


def join_optional(joined: Value | None, value: Value) -> Value:
    """The join of a value with what was seen before it, which is None for the first
    value.
    """
    return value if joined is None else join(joined, value)


def choice(values: list[Value]) -> Value:
    """One of these callables; `UNKNOWN` if there are too many, or if some cannot be
    called.
    """
    options: dict[Any, Value] = {}
    parts = list(itertools.chain.from_iterable(map(options_of, values)))
    if any(isinstance(part, Class) for part in parts):
        # `kind = KINDS.get(kind) if isinstance(kind, str) else kind`
        parts = [part for part in parts if part is not UNKNOWN]
    for option in parts:
        match option:
            case Instance(info=info):
                # Objects of one class become one option, with the attributes that they
                # share.
                options[info] = join_optional(options.pop(info, None), option)
            case (
                Class() | Function() | Layer() | Partial() | Sequence(kind="sequential")
            ):
                options[option] = option
            # `nn.GRU if ... else nn.LSTM`; of other packages' functions one may be
            # missing.
            case External(name=name, missing=False) if name.startswith("torch."):
                options[option] = option
            case _:
                return UNKNOWN
    match tuple(options.values()):
        case (only_option,):
            return only_option
        case several if len(several) <= _MOST_OPTIONS:
            return Choice(several)
        case _:
            return UNKNOWN


def _common_fields(
    left: Instance, right: Instance, joined: _Join = join
) -> tuple[tuple[str, Value], ...]:
    fields, others = dict(left.fields), dict(right.fields)
    joint = (
        (
            name,
            _joint_part(fields.get(name, UNKNOWN), others.get(name, UNKNOWN), joined),
        )
        for name in _joint_names(fields, others)
    )
    return tuple((name, value) for name, value in joint if value is not UNKNOWN)


def _join_tensor(left: Tensor, right: Value) -> Value:
    if isinstance(right, Tensor):
        return tensor(
            _common(left.dtype, right.dtype, ""),
            _common(left.exact, right.exact, ""),
            _common(left.ndim, right.ndim, -1),
            left.optional | right.optional,
            left.view | right.view,
            _joint_origin(left, right),
            # What is traced in one branch fails where this branch runs.
            left.host and right.host,
            left.several and right.several,
            left.decided and right.decided,
            # What is selected in one branch stops where this branch runs.
            left.masked_read or right.masked_read,
        )
    if right == NONE:
        return changed(left, optional=True)
    if isinstance(right, Static) and not left.host:
        losses.count += 1
    return UNKNOWN


_MASK_OR_NUMBERS: Final = frozenset({"bool", "float"})


def _joint_origin(left: Tensor, right: Tensor) -> str:
    """The origin of one of two tensors. Where one is of booleans and the other of
    floats, what indexes is a mask: torch takes no float there.
    """
    if {left.dtype, right.dtype} == _MASK_OR_NUMBERS:
        return "mask"
    return _common(left.origin, right.origin, "")


def _or_none(value: Value) -> Value:
    return CACHE if value is GIVEN_CACHE else value


def _common(left: _T, right: _T, default: _T) -> _T:
    return left if left == right else default


def _join_sequences(left: Sequence, right: Sequence) -> Value:
    kind = _common(left.kind, right.kind, "list")
    match left.items, right.items:
        case tuple(left_items), tuple(right_items) if len(left_items) == len(
            right_items
        ):
            items = tuple(map(join, left_items, right_items))
            return Sequence(kind, items, join(left.element, right.element))
        # Code that unpacks a tuple, or takes an element of it, has one that is filled:
        # `except ValueError: return ()`.
        case ((), tuple()) if kind == "tuple":
            return right
        case (tuple(), ()) if kind == "tuple":
            return left
        case _:
            # One branch may have appended in a loop, so any length is possible.
            return Sequence(
                kind, None, joint_element(left, right), left.tensors or right.tensors
            )


def joint_element(left: Sequence, right: Sequence) -> Value:
    """What an element of either sequence is. An empty display says nothing about later
    elements.
    """
    if left.items == ():
        return right.element
    if right.items == ():
        return left.element
    return join(left.element, right.element)


def _join_mappings(left: Mapping, right: Mapping, joined: _Join = join) -> Value:
    names = _joint_names(dict(left.entries), dict(right.entries))
    entries = tuple(
        (name, _joint_part(left.get(name), right.get(name), joined)) for name in names
    )
    is_open = left.is_open or right.is_open
    return Mapping(entries, _joint_others(left, right), is_open)


def _joint_names(left: dict[Any, Value], right: dict[Any, Value]) -> list[Any]:
    """The names of both, in their order or, where they differ, in one that does not
    depend on which branch comes first.
    """
    if list(left) == list(right):
        return list(left)
    return sorted({*left, *right}, key=repr)


def _joint_others(left: Mapping, right: Mapping) -> Value:
    """What either dict has at other keys. An empty one says nothing about later
    entries.
    """
    for empty, other in ((left, right), (right, left)):
        if not empty.entries and empty.element is UNKNOWN:
            return other.element
    return join(left.element, right.element)


def _joint_part(left: Value, right: Value, joined: _Join) -> Value:
    """What two dicts have at a key, or two objects of a class as an attribute. A
    tensor, or a dict of tensors, that only one of them is known to have is the other's
    too.

    `if not state: state["step"], state["mean"] = ...` fills a dict that a former call
    has filled otherwise.
    """
    values = (left, right)
    for value, other in (values, values[::-1]):
        parts = value.values if isinstance(value, Mapping) else [value]
        if other is UNKNOWN and any(map(is_traced, parts)):
            return value
    return joined(*values)


# --- containers ---


def with_element(container: Sequence, value: Value) -> Sequence:
    """The container after it got one more element, or another element in place of
    one.
    """
    # A container that has been empty so far says nothing about its elements.
    is_empty = container.items == () or (
        container.element is UNKNOWN and not container.tensors
    )
    element = value if is_empty else join(container.element, value)
    return Sequence(
        container.kind, None, element, container.tensors or is_traced(value)
    )


# How many elements a longer list has says little.
_MOST_APPENDED: Final = 8


def with_last(container: Sequence, value: Value) -> Sequence:
    """The list after `container.append(value)`."""
    if container.items is None or len(container.items) >= _MOST_APPENDED:
        return with_element(container, value)
    items = (*container.items, value)
    return Sequence(container.kind, items, join_all(items))


def with_entry(mapping: Mapping, key: Any, value: Value) -> Mapping:
    """The dict after `dict[key] = value`; the key is `NOT_CONSTANT` if the source text
    does not tell it.
    """
    if key is not NOT_CONSTANT:
        others = tuple(entry for entry in mapping.entries if entry[0] != key)
        return Mapping((*others, (key, value)), mapping.element, mapping.is_open)
    # A dict that has been empty so far says nothing about its values.
    return Mapping(
        mapping.entries,
        join(mapping.element, value) if mapping.entries else value,
        mapping.is_open,
    )
