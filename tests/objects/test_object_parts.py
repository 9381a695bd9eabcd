"""What a value of each kind consists of: read, called by name, and put back."""

import collections
import contextvars
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpuport.objects.object_parts import contents_of, leads_to, parts_of
from tpuport.objects.part_containers import ABSENT


class Plain:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class Private:
    __slots__ = ("__hidden", "shown")

    def __init__(self, hidden: Any, shown: Any) -> None:
        self.__hidden, self.shown = hidden, shown


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    first: Any
    second: Any


class Pair(NamedTuple):
    first: Any
    second: Any


class Table(dict):
    """Which shows other items than it has, and counts what is written to it."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.writes = 0

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, value)
        self.writes += 1

    def items(self) -> Any:
        return ()


class Stack(list):
    def __iter__(self) -> Any:
        return iter(())


def _variable(value: Any) -> contextvars.ContextVar:
    variable: contextvars.ContextVar = contextvars.ContextVar("variable")
    variable.set(value)
    return variable


def _function(first: Any, second: Any) -> Callable:
    def function(x: Any = second, *, by: Any = second) -> Any:
        return first

    function.noted = second
    return function


# By its name: how to make a value of two others, and the labels of its parts.
MUTABLE: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    "dict": (lambda a, b: {"x": a, 2: b}, ["['x']", "[2]"]),
    "OrderedDict": (lambda a, b: collections.OrderedDict(x=a, y=b), ["['x']", "['y']"]),
    "defaultdict": (lambda a, b: collections.defaultdict(list, x=a, y=b), ["['x']", "['y']"]),
    "dict of a class": (lambda a, b: Table(x=a, y=b), ["['x']", "['y']", ".writes"]),
    "list": (lambda a, b: [a, b], ["[0]", "[1]"]),
    "list of a class": (lambda a, b: Stack([a, b]), ["[0]", "[1]"]),
    "deque": (lambda a, b: collections.deque([a, b], 2), ["[0]", "[1]"]),
    "set": (lambda a, b: {a}, ["[0]"]),
    "bytearray": (lambda a, b: bytearray(b"ab"), ["[0]", "[1]"]),
    "object": (Plain, [".first", ".second"]),
    "namespace": (lambda a, b: types.SimpleNamespace(x=a, y=b), [".x", ".y"]),
    "slots": (Private, ["._Private__hidden", ".shown"]),
    "frozen dataclass": (Frozen, [".first", ".second"]),
    "cell": (lambda a, b: types.CellType(a), [""]),
    "context": (lambda a, b: _variable(a), [""]),
}
FIXED: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    "tuple": (lambda a, b: (a, b), ["[0]", "[1]"]),
    "named tuple": (Pair, ["[0]", "[1]"]),
    "frozenset": (lambda a, b: frozenset([a]), ["[0]"]),
    "method": (lambda a, b: types.MethodType(_function(a, b), b), [".__self__", ".__func__"]),
    "partial": (lambda a, b: functools.partial(max, a, key=b), [".func", ".args", ".keywords"]),
    "mapping": (lambda a, b: types.MappingProxyType({"x": a}), [".0"]),
    "generator": (lambda a, b: (x for x in [b]), ["..0"]),
}
values = st.one_of(st.integers(), st.text(), st.tuples(st.integers()))


def _labels(value: Any) -> list[str]:
    return [container.label(name) for container in parts_of(value).values() for name in container.read()]


@pytest.mark.parametrize("kind", MUTABLE)
@given(first=values, second=values)
def test_what_is_put_back_is_the_same_in_the_same_order(kind: str, first: Any, second: Any) -> None:
    make, labels = MUTABLE[kind]
    value = make(first, second)
    assert _labels(value) == labels
    before = {name: container.read() for name, container in parts_of(value).items()}
    for name, container in parts_of(value).items():
        assert container.has(before[name])
        container.fill(parts_of(make(second, first))[name].read())
        container.fill({})
        if name != "variable" or kind == "cell":
            assert container.read() == {}
        container.fill(before[name])
    for name, container in parts_of(value).items():
        assert container.has(before[name])
        assert list(container.read()) == list(before[name])
    assert getattr(value, "writes", 0) == 0


@pytest.mark.parametrize("kind", FIXED)
def test_what_cannot_change_is_read(kind: str) -> None:
    make, labels = FIXED[kind]
    value = make(1, "b")
    assert _labels(value) == labels
    assert all(container.is_fixed for name, container in parts_of(value).items() if name)


def test_functions_classes_and_weak_references() -> None:
    tensor = torch.ones(1)
    function = _function(tensor, 2)
    assert _labels(function) == [".first", ".__defaults__", ".__kwdefaults__", ".noted"]
    assert parts_of(weakref.ref(tensor))["fields"].read()["()"] is tensor

    class Counting:
        calls = 1

    container = parts_of(Counting)["class"]
    before = container.read()
    Counting.calls, Counting.late = 2, 3
    assert not container.has(before)
    container.fill(before)
    assert (Counting.calls, hasattr(Counting, "late")) == (1, False)


def test_attributes_in_another_dictionary() -> None:
    value = Plain(1, 2)
    own = vars(value)
    container = parts_of(value)[""]
    before = container.read()
    value.__dict__ = dict(own)
    assert not container.has(before)
    value.first = 3
    assert container.read() == {"first": 3, "second": 2}
    container.fill(before)
    assert vars(value) is own
    assert own == before


def test_the_order_of_an_ordered_dictionary() -> None:
    value = collections.OrderedDict(x=1, y=2)
    container = parts_of(value)["[]"]
    before = container.read()
    value.move_to_end("x")
    assert not container.has(before)
    container.fill(before)
    assert list(value) == ["x", "y"]


@pytest.mark.parametrize("kind", [*MUTABLE, *FIXED, "function"])
def test_a_tensor_is_found_in_every_kind(kind: str) -> None:
    if kind in ("bytearray", "generator"):
        return
    make = {"function": (_function, [])} | MUTABLE | FIXED
    tensor = torch.ones(1)
    value = make[kind][0](tensor, 2)
    assert leads_to([value, 1], lambda part: part is tensor)
    assert not leads_to([value, 1], lambda part: part is not tensor)
    assert all(part is not ABSENT for part in contents_of(value))


def test_what_leads_to_itself_ends() -> None:
    value: list = []
    value.append(Plain(value, {"x": value}))
    assert not leads_to(value, lambda tensor: True)
