"""Whatever kind of object has a value that a function reads or writes: it is as in torch."""

import collections
import contextvars
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpuport

X = torch.ones(2)


class Holder:
    def __init__(self, value: Any = 1.0) -> None:
        self.value = value


class Stack(list):
    factor = 1.0


# By the kind: how to make an object, how code reads it, and a change of it.
READ: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "the order of an ordered dictionary": (
        lambda: collections.OrderedDict(a=1.0, b=2.0),
        lambda value: next(iter(value.values())),
        lambda value: value.move_to_end("a"),
    ),
    "bytes": (lambda: bytearray(b"ab"), lambda value: value[0], lambda value: value.__setitem__(0, 3)),
    "a replaced dictionary": (
        Holder, lambda value: value.value, lambda value: setattr(value, "__dict__", {"value": 3.0}),
    ),
    "a view of a dictionary": (
        lambda: Holder({"a": 1.0}),
        lambda value: types.MappingProxyType(value.value)["a"],
        lambda value: value.value.update(a=3.0),
    ),
    "an attribute of a function": (
        lambda: lambda: 0, lambda value: getattr(value, "scale", 1.0), lambda value: setattr(value, "scale", 3.0),
    ),
    "an attribute of a partial function": (
        lambda: functools.partial(max, 1),
        lambda value: getattr(value, "scale", 1.0),
        lambda value: setattr(value, "scale", 3.0),
    ),
    "an attribute of a list": (
        lambda: Stack([1.0]), lambda value: value.factor * value[0], lambda value: setattr(value, "factor", 3.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_a_change_is_seen(kind: str) -> None:
    make, read, change = READ[kind]
    value = make()
    compiled = tpuport.compile(lambda x: x * read(value))
    before = compiled(X)
    change(value)
    result = compiled(X).cpu()
    assert not torch.equal(result, before.cpu())
    torch.testing.assert_close(result, X * read(value))


def test_a_view_of_a_dictionary_is_followed() -> None:
    table = {"a": 1.0}
    view = types.MappingProxyType(table)
    compiled = tpuport.compile(lambda x: x * view["a"])
    compiled(X)
    table["a"] = 3.0
    assert compiled(X).tolist() == [3, 3]


def test_another_dictionary_of_a_module() -> None:
    model = tpuport.port(nn.Dropout(0.0))
    compiled = tpuport.compile(model)
    compiled(X)
    model.__dict__ = vars(model) | {"p": 1.0}
    model.train()
    assert compiled(X).tolist() == [0, 0]


def test_modules_in_every_kind_of_container() -> None:
    """Their weights are arguments, wherever code finds them."""
    for container in (
        collections.deque,
        frozenset,
        lambda parts: types.MappingProxyType(dict(enumerate(parts))),
    ):
        model = tpuport.port(nn.Linear(2, 2))
        found = container([model])
        compiled = tpuport.compile(
            lambda x, found=found: next(iter(found.values() if hasattr(found, "values") else found))(x)
        )
        compiled(X)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        assert compiled(X).tolist() == [0, 0]


# How to make an object, and what code leaves in it.
WRITTEN: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor], Any], Callable[[Any], Any]]] = {
    "an attribute of a function": (
        lambda: lambda: 0,
        lambda value, x: setattr(value, "last", x * 2),
        lambda value: value.last,
    ),
    "an attribute of a class": (
        lambda: type("Noted", (), {"last": None}),
        lambda value, x: setattr(value, "last", x * 2),
        lambda value: value.last,
    ),
    "a new attribute of a class": (
        lambda: type("Noted", (), {}),
        lambda value, x: setattr(value, "last", [x * 2]),
        lambda value: value.last,
    ),
    "a replaced dictionary": (
        Holder,
        lambda value, x: setattr(value, "__dict__", {"value": x * 2}),
        lambda value: value.value,
    ),
    "the order of an ordered dictionary": (
        lambda: collections.OrderedDict(a=1, b=2, c=3),
        lambda value, x: value.move_to_end(next(iter(value))),
        lambda value: [torch.tensor(number) for number in value.values()],
    ),
    "bytes": (
        lambda: bytearray(b"ab"),
        lambda value, x: value.append(len(value)),
        lambda value: torch.tensor(list(value)),
    ),
    "a context": (
        lambda: contextvars.ContextVar("last", default=0),
        lambda value, x: value.set(value.get() + x),
        lambda value: value.get(),
    ),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_is_written_is_there_after_each_call(kind: str) -> None:
    make, write, read = WRITTEN[kind]
    mine, theirs = make(), make()

    def step(value: Any) -> Callable:
        def run(x: torch.Tensor) -> torch.Tensor:
            write(value, x)
            return x + 1

        return run

    compiled, function = tpuport.compile(step(mine)), step(theirs)
    for number in range(3):
        compiled(X + number)
        function(X + number)
        torch.testing.assert_close(tpuport.to_cpu(read(mine)), read(theirs))


Point = collections.namedtuple("Point", "count total")
# Values that are replaced as a whole: how to make one of a number and a tensor, and how to read both.
REPLACED: dict[str, tuple[Callable[..., Any], Callable[[Any], tuple]]] = {
    "a tuple": (lambda count, total: (count, total), tuple),
    "a named tuple": (Point, tuple),
    "a partial": (
        lambda count, total: functools.partial(max, count, key=total),
        lambda value: (value.args[0], value.keywords["key"]),
    ),
}


@pytest.mark.parametrize("kind", REPLACED)
def test_a_number_that_changes_in_what_is_replaced(kind: str) -> None:
    make, read = REPLACED[kind]
    mine, theirs = [make(1, torch.zeros(2).to("jax"))], [make(1, torch.zeros(2))]

    def step(held: list[Any]) -> Callable:
        def run(x: torch.Tensor) -> torch.Tensor:
            count, total = read(held[0])
            held[0] = make(count + 1, total + x)
            return read(held[0])[1] * count

        return run

    compiled, function = tpuport.compile(step(mine)), step(theirs)
    for number in range(4):
        torch.testing.assert_close(tpuport.to_cpu(compiled(X + number)), function(X + number))
        assert read(mine[0])[0] == read(theirs[0])[0]
        torch.testing.assert_close(tpuport.to_cpu(read(mine[0])[1]), read(theirs[0])[1])
